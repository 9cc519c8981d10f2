//! One TCP connection: a socket of smoltcp, its holder and its timers.
//!
//! ```text
//!   half open --established--> queued --accepted--> application --closed--> none
//! ```
//!
//! The application holds an outgoing connection from the start. A closed connection stays without a
//! holder until its data is acknowledged or the user timeout expires.

mod acceptance;
mod info;
mod loss_recovery;
mod recovery;
mod resend;
mod round_trip;
mod spare;
mod window;

pub(super) use acceptance::Acceptance;
pub use info::TcpInfo;
pub(super) use loss_recovery::is_after;
pub(super) use spare::SpareSockets;

use super::engine::{At, Engine, Written, beginning, seal};
use super::listener::ListenerId;
use super::segment::set_sequence_number;

use self::loss_recovery::LossRecovery;
use crate::stack::config::TcpConfig;
use crate::stack::mtu::Mtus;
use crate::stack::outbox::Packet;
use pollux_verbs::time::Time;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{RecvError, Socket, State};
use smoltcp::wire::IpListenEndpoint;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a connection ended, or why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// The connection is gone.
    #[error("the connection is closed")]
    Closed,
    /// The peer has no listener there.
    #[error("connection refused: the peer has no listener at that port")]
    Refused,
    /// The peer reset the connection.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer does not answer.
    #[error("the peer does not answer: timed out")]
    TimedOut,
    /// The peer is unreachable.
    #[error("the peer is unreachable")]
    Unreachable,
    /// The peer does not answer, and its port has left the subnet.
    #[error("the peer is gone: it does not answer, and its port has left the subnet")]
    PeerGone,
    /// The connection, or its sending half, was shut down locally.
    #[error("the connection was shut down locally")]
    ShutDown,
}

/// Unanswered keep-alive probes before the connection times out. The interval between probes is the
/// keep-alive time divided by this number.
const KEEPALIVE_PROBES: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    Written,
    /// The rate limit allows no probe now.
    Nothing,
    /// The peer has answered none of [`KEEPALIVE_PROBES`] probes.
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    HalfOpen(ListenerId),
    Queued(ListenerId),
    Application,
    None,
}

/// A TCP connection.
pub struct Connection {
    pub(super) sockets: SocketSet<'static>,
    handle: SocketHandle,
    local: SocketAddr,
    remote: SocketAddr,
    pub(super) holder: Holder,
    /// Whether it is in the queue of ready connections.
    pub(super) is_ready: bool,
    /// Whether the last poll had nothing to send, with no event since.
    pub(super) had_nothing_to_send: bool,
    /// Whether `deadline` has to be recomputed.
    pub(super) is_timer_stale: bool,
    /// When the next timer expires.
    pub(super) deadline: Option<Time>,
    /// The entry in the timer queue, at or before `deadline`.
    pub(super) queued_deadline: Option<Time>,
    pub(super) end: Option<TcpError>,
    /// Whether it was removed from the table of addresses, so that another connection may have
    /// them.
    pub(super) is_detached: bool,
    /// When the user timeout after a shutdown expires.
    give_up: Option<Time>,
    /// Bytes in the send queue when `give_up` was last postponed.
    unsent: usize,
    /// When the first segment was sent that the peer has to answer, since its last progress. This,
    /// `give_up` and `last_received_at` are times of the service clock ([`super::service_clock`]).
    unanswered_since: Option<Time>,
    user_timeout: Duration,
    pub(super) keepalive: Option<Duration>,
    /// When the last segment of the peer was received.
    last_received_at: Time,
    /// Keep-alive probes sent since then.
    probes: u32,
    pub(super) progress_due: Time,
    pub(super) loss_recovery: LossRecovery,
}

impl Connection {
    pub(super) fn new(
        config: &TcpConfig,
        (local, remote): (SocketAddr, SocketAddr),
        holder: Holder,
        spare: &mut SpareSockets,
    ) -> Self {
        let (sockets, handle) = spare.take(config);
        Self {
            sockets,
            handle,
            local,
            remote,
            holder,
            is_ready: false,
            had_nothing_to_send: false,
            is_timer_stale: false,
            deadline: None,
            queued_deadline: None,
            end: None,
            is_detached: false,
            give_up: None,
            unsent: 0,
            unanswered_since: None,
            user_timeout: config.user_timeout,
            keepalive: config.keepalive,
            last_received_at: Time::START,
            probes: 0,
            progress_due: Time::START,
            loss_recovery: LossRecovery::new(),
        }
    }

    pub(super) fn listen(&mut self) -> bool {
        let here = IpListenEndpoint { addr: Some(self.local.ip().into()), port: self.local.port() };
        self.socket().listen(here).is_ok()
    }

    pub(super) fn connect(&mut self, now: Time, mtu: u32, isn: u32) -> bool {
        let at = At { now, local: self.local.ip(), mtu };
        let (local, remote) = (self.local, self.remote);
        let mut interface = beginning(at, isn);
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        socket.connect(interface.context(), remote, local).is_ok()
    }

    pub(super) const fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.local, self.remote)
    }

    pub(super) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    pub(super) fn socket_ref(&self) -> &Socket<'static> {
        self.sockets.get(self.handle)
    }

    pub(super) fn state(&self) -> State {
        self.socket_ref().state()
    }

    /// Whether it is closed, with nothing more to send.
    pub(super) fn is_over(&self) -> bool {
        self.state() == State::Closed && self.socket_ref().remote_endpoint().is_none()
    }

    /// Notes a sent packet; returns whether it is a retransmission. The user timeout starts if the
    /// peer has to answer a SYN or data.
    ///
    /// Why not smoltcp's timeout: it starts with any silence of the peer, so it would end idle
    /// connections, and connections whose window stays closed for longer than the interval between
    /// window probes.
    pub(super) fn note_sent(&mut self, (now, served): (Time, Time), written: &Written) -> bool {
        let is_opening = matches!(self.state(), State::SynSent | State::SynReceived);
        if is_opening || self.socket_ref().send_queue() > 0 {
            self.unanswered_since.get_or_insert(served);
        }
        self.loss_recovery.note_written(now, written)
    }

    /// Notes a received packet; `before` and `first` are the state and the first unacknowledged
    /// byte before it. Stops the user timeout only if the peer made progress, has nothing to
    /// acknowledge, or has closed its window.
    pub(super) fn note_progress(&mut self, (before, first): (State, u32)) {
        let has_moved = self.snd_una() != first || self.state() != before;
        if has_moved || self.socket_ref().send_queue() == 0 || self.has_zero_window() {
            self.unanswered_since = None;
        }
    }

    pub(super) fn shut_down(&mut self, now: Time) {
        self.socket().close();
        self.unsent = self.socket_ref().send_queue();
        self.give_up = Some(now + self.user_timeout);
    }

    pub(super) fn abort(&mut self, why: TcpError) {
        self.end.get_or_insert(why);
        self.socket().abort();
    }

    /// Postpones the user timeout after a shutdown, if a packet of the peer has acknowledged data.
    pub(super) fn postpone_give_up(&mut self, now: Time) {
        let unsent = self.socket_ref().send_queue();
        if self.give_up.is_some() && unsent < self.unsent {
            self.unsent = unsent;
            self.give_up = Some(now + self.user_timeout);
        }
    }

    /// Gives up if a timeout has expired; returns whether it did.
    pub(super) fn give_up(&mut self, now: Time) -> bool {
        let is_due = self.closing_due().is_some_and(|due| due <= now);
        if is_due {
            self.abort(TcpError::TimedOut);
        }
        is_due
    }

    /// When the user timeout expires: the peer does not answer, does not acknowledge a FIN, or does
    /// not send its own FIN after the application has closed the connection.
    pub(super) fn closing_due(&self) -> Option<Time> {
        let waits = match self.state() {
            State::FinWait1 | State::Closing | State::LastAck => true,
            State::FinWait2 => self.holder == Holder::None,
            _ => false,
        };
        let unanswered = self.unanswered_since.map(|since| since + self.user_timeout);
        [self.give_up.filter(|_| waits), unanswered].into_iter().flatten().min()
    }

    #[inline]
    pub(super) const fn note_alive(&mut self, served: Time) {
        (self.last_received_at, self.probes) = (served, 0);
    }

    /// When the next keep-alive probe is due, or the end of the connection after the last probe.
    /// `None` for a connection with outstanding data, which has the user timeout.
    pub(super) fn keepalive_due(&self) -> Option<Time> {
        let idle = self.keepalive?;
        let is_open =
            matches!(self.state(), State::Established | State::CloseWait | State::FinWait2);
        let is_idle = is_open && self.unanswered_since.is_none();
        is_idle.then(|| self.last_received_at + idle + idle / KEEPALIVE_PROBES * self.probes)
    }

    /// Writes a keep-alive probe: a segment before the window, which a live peer acknowledges (RFC
    /// 9293 3.8.4).
    #[cold]
    pub(super) fn probe(&mut self, at: At, engine: &mut Engine, probe: &mut Packet) -> Probe {
        if self.probes == KEEPALIVE_PROBES {
            return Probe::Dead;
        }
        self.probes += 1;
        if !self.challenge(at, engine, probe) {
            return Probe::Nothing;
        }
        set_sequence_number(probe.bytes_mut(), self.loss_recovery.sent_to.wrapping_sub(1));
        match seal(probe.bytes_mut()) {
            Some(_) => Probe::Written,
            None => Probe::Nothing,
        }
    }

    pub(super) fn unacknowledged(&self) -> usize {
        self.socket_ref().send_queue()
    }

    /// Whether it is in TIME-WAIT with data that the application has not read.
    pub(super) fn is_kept_for_reader(&self) -> bool {
        let is_held = self.holder == Holder::Application;
        self.state() == State::TimeWait && is_held && self.has_unread()
    }

    /// Whether the application has closed it, and the peer has not acknowledged the FIN.
    pub(super) fn is_flushing(&self) -> bool {
        let is_flushed = matches!(self.state(), State::FinWait2 | State::TimeWait);
        self.holder == Holder::None && !is_flushed && !self.is_over()
    }

    /// Whether receiving would return data, end of file or an error.
    pub(super) fn is_readable(&self) -> bool {
        let is_opening = matches!(self.state(), State::SynSent | State::SynReceived);
        self.has_unread() || self.end.is_some() || !is_opening && !self.socket_ref().may_recv()
    }

    /// Whether so much is unread that the peer may be waiting for a window update.
    pub(super) fn is_narrow(&self) -> bool {
        self.socket_ref().recv_queue() >= self.socket_ref().recv_capacity() / 4
    }

    pub(super) fn has_unread(&self) -> bool {
        self.socket_ref().recv_queue() > 0
    }

    /// Returns the number of bytes taken; `None` if the buffer is full, or if the connection is not
    /// established yet.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TcpError> {
        if let Some(end) = self.end {
            return Err(end);
        }
        if matches!(self.state(), State::SynSent | State::SynReceived) {
            return Ok(None);
        }
        match self.socket().send_slice(bytes) {
            Ok(0) if !bytes.is_empty() => Ok(None),
            Ok(taken) => {
                self.loss_recovery.given_to =
                    self.loss_recovery.given_to.wrapping_add(taken as u32);
                self.loss_recovery.written += taken as u64;
                Ok(Some(taken))
            }
            Err(_) => Err(TcpError::ShutDown),
        }
    }

    /// Returns the number of bytes; 0 at end of file, `None` if none have arrived yet.
    pub(super) fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TcpError> {
        if matches!(self.state(), State::SynSent | State::SynReceived) {
            return Ok(None);
        }
        match (self.socket().recv_slice(buffer), self.end) {
            (Ok(0), None) if !buffer.is_empty() => Ok(None),
            (Ok(taken), _) => {
                self.loss_recovery.read_to = self.loss_recovery.read_to.wrapping_add(taken as u32);
                self.loss_recovery.read += taken as u64;
                Ok(Some(taken))
            }
            // All data of the peer was read.
            (Err(RecvError::Finished), _) | (Err(_), Some(TcpError::ShutDown)) => Ok(Some(0)),
            (Err(_), Some(end)) => Err(end),
            (Err(_), None) => Err(TcpError::Closed),
        }
    }

    /// Like [`Connection::recv`], but the bytes stay in the receive buffer.
    pub(super) fn peek(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TcpError> {
        match self.has_unread() {
            true => Ok(self.socket().peek_slice(buffer).ok()),
            // With nothing unread, `recv` takes no bytes, and returns end of file or the error.
            false => self.recv(buffer),
        }
    }

    pub(super) const fn reason(before: State, received: bool) -> TcpError {
        match (before, received) {
            (State::SynSent, true) => TcpError::Refused,
            (State::LastAck | State::TimeWait | State::Closing, _) => TcpError::ShutDown,
            (_, true) => TcpError::Reset,
            (_, false) => TcpError::TimedOut,
        }
    }

    pub(super) fn at(&self, now: Time, mtus: &Mtus) -> At {
        At { now, local: self.local.ip(), mtu: self.mtu(mtus.of(now, self.remote.ip())) }
    }
}
