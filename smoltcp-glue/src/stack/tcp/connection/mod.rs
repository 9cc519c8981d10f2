//! One TCP connection: a socket of smoltcp, its holder and its timers.
//!
//! ```text
//!   half open --established--> queued --accepted--> the application's --closed--> nobody's
//! ```
//!
//! The application holds an outgoing connection from the start. A closed connection goes on without
//! a holder until sent data is acknowledged, or until the user timeout.

mod acceptance;
mod loss_recovery;
mod recovery;
mod resend;
mod window;

pub(super) use acceptance::Acceptance;
pub(super) use loss_recovery::is_after;

use super::bare::set_sequence_number;
use super::engine::{At, Engine, Written, beginning, seal};
use super::listener::ListenerId;

use self::loss_recovery::LossRecovery;
use crate::stack::config::TcpConfig;
use crate::stack::mtu::Mtus;
use crate::stack::outbox::Packet;
use pollux_verbs::time::Time;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{RecvError, Socket, SocketBuffer, State};
use smoltcp::wire::IpListenEndpoint;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a connection ended, or why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TcpError {
    /// The connection is gone.
    Closed,
    /// The peer has no listener there.
    Refused,
    /// The peer reset the connection.
    Reset,
    /// The peer does not answer.
    TimedOut,
    /// The peer is unreachable.
    Unreachable,
    /// The connection, or its sending half, was shut down locally.
    ShutDown,
}

/// Probes that a peer may leave without an answer. The intervals between them are as many parts of
/// the time before the first.
const KEEPALIVE_PROBES: u32 = 10;

/// Of shorter times: challenge ACKs, which probes are made of, are limited in rate.
const KEEPALIVE_MIN: Duration = Duration::from_secs(10);

/// The result of a long silence of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    Written,
    /// Another one was written a moment ago.
    Nothing,
    /// It has answered none.
    Dead,
}

/// The holder of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    HalfOpen(ListenerId),
    Queued(ListenerId),
    Application,
    Nobody,
}

/// A TCP connection.
pub struct Connection {
    pub(super) sockets: SocketSet<'static>,
    handle: SocketHandle,
    local: SocketAddr,
    remote: SocketAddr,
    pub(super) holder: Holder,
    /// Whether it waits to be polled.
    pub(super) is_ready: bool,
    /// Whether the last poll had nothing to send, and nothing happened since.
    pub(super) had_nothing_to_send: bool,
    /// Whether `deadline` has to be computed anew.
    pub(super) is_timer_stale: bool,
    /// The time of the next poll without an event.
    pub(super) deadline: Option<Time>,
    /// The entry in the timer queue, at or before `deadline`.
    pub(super) queued_deadline: Option<Time>,
    pub(super) end: Option<TcpError>,
    /// Whether nobody finds it by its addresses any more, which may be another's by now.
    pub(super) is_detached: bool,
    /// When it is given up, once we have nothing more to say.
    give_up: Option<Time>,
    /// What was to be sent when that was last put off.
    unsent: usize,
    /// Since when the peer owes an answer: to the first that was sent since it was heard last.
    /// This, when it is given up and when it was heard are by the service clock
    /// ([`super::service_clock`]).
    unanswered_since: Option<Time>,
    user_timeout: Duration,
    /// After how long without a word of the peer it is probed.
    keepalive: Option<Duration>,
    /// When the peer was heard last, and how many probes were sent since.
    last_heard_at: Time,
    probes: u32,
    /// When progress is reported again.
    pub(super) progress_due: Time,
    pub(super) loss_recovery: LossRecovery,
}

impl Connection {
    pub(super) fn new(
        config: &TcpConfig,
        (local, remote): (SocketAddr, SocketAddr),
        holder: Holder,
    ) -> Self {
        let buffer = |bytes| SocketBuffer::new(vec![0; bytes]);
        let mut socket = Socket::new(buffer(config.receive_bytes), buffer(config.send_bytes));
        socket.set_nagle_enabled(config.nagle);
        // A sender that begins has a small window, and waits for every word.
        socket.set_ack_delay(None);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
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
            keepalive: config.keepalive.map(|idle| idle.max(KEEPALIVE_MIN)),
            last_heard_at: Time::START,
            probes: 0,
            progress_due: Time::START,
            loss_recovery: LossRecovery::new(),
        }
    }

    /// Waits for a SYN, which is at hand.
    pub(super) fn listen(&mut self) -> bool {
        let here = IpListenEndpoint { addr: Some(self.local.ip().into()), port: self.local.port() };
        self.socket().listen(here).is_ok()
    }

    /// Sends the first SYN.
    pub(super) fn connect(&mut self, now: Time, mtu: u32, isn: u32) -> bool {
        let at = At { now, local: self.local.ip(), mtu };
        let (local, remote) = (self.local, self.remote);
        let mut interface = beginning(at, isn);
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        socket.connect(interface.context(), remote, local).is_ok()
    }

    pub(in crate::stack) const fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.local, self.remote)
    }

    pub(super) fn sockets(&mut self) -> &mut SocketSet<'static> {
        &mut self.sockets
    }

    pub(super) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    pub(super) fn shown(&self) -> &Socket<'static> {
        self.sockets.get(self.handle)
    }

    pub(in crate::stack) fn state(&self) -> State {
        self.shown().state()
    }

    /// Whether nothing more comes or goes.
    pub(super) fn is_over(&self) -> bool {
        self.state() == State::Closed && self.shown().remote_endpoint().is_none()
    }

    /// A packet was sent, at that time and that by the service clock. Whoever has nothing to
    /// say to the peer waits for no answer.
    ///
    /// smoltcp's own timeout counts silence of any kind: it would end a connection that nobody
    /// uses, and one whose window is closed for longer than it takes from one probe to the next.
    pub(super) fn note_sent(&mut self, (now, served): (Time, Time), written: &Written) {
        self.loss_recovery.note_written(now, written);
        let is_opening = matches!(self.state(), State::SynSent | State::SynReceived);
        if is_opening || self.shown().send_queue() > 0 {
            self.unanswered_since.get_or_insert(served);
        }
    }

    /// A packet came, before which things stood like that. Only a peer that comes closer keeps us
    /// patient, or one that keeps its window closed.
    pub(super) fn note_progress(&mut self, (before, first): (State, u32)) {
        let has_moved = self.first() != first || self.state() != before;
        if has_moved || self.shown().send_queue() == 0 || self.is_shut() {
            self.unanswered_since = None;
        }
    }

    /// No more is sent after what was.
    pub(in crate::stack) fn shut_down(&mut self, now: Time) {
        self.socket().close();
        self.unsent = self.shown().send_queue();
        self.give_up = Some(now + self.user_timeout);
    }

    /// Ends at once, by a reset.
    pub(super) fn abort(&mut self, why: TcpError) {
        self.end.get_or_insert(why);
        self.socket().abort();
    }

    /// A packet of the peer's came: whoever waits for its last acknowledgment waits on while it
    /// comes closer.
    pub(super) fn postpone_give_up(&mut self, now: Time) {
        let unsent = self.shown().send_queue();
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

    /// When it will be given up: a peer that does not answer, a FIN without answer, or one of the
    /// peer's that never comes and nobody waits for.
    pub(super) fn closing_due(&self) -> Option<Time> {
        let waits = match self.state() {
            State::FinWait1 | State::Closing | State::LastAck => true,
            State::FinWait2 => self.holder == Holder::Nobody,
            _ => false,
        };
        let unanswered = self.unanswered_since.map(|since| since + self.user_timeout);
        [self.give_up.filter(|_| waits), unanswered].into_iter().flatten().min()
    }

    pub(super) fn set_keepalive(&mut self, idle: Option<Duration>) {
        self.keepalive = idle.map(|idle| idle.max(KEEPALIVE_MIN));
    }

    pub(in crate::stack) const fn keepalive(&self) -> Option<Duration> {
        self.keepalive
    }

    /// Something of the peer's came.
    #[inline]
    pub(super) const fn note_alive(&mut self, served: Time) {
        (self.last_heard_at, self.probes) = (served, 0);
    }

    /// When a peer that says nothing is probed, or given up after the last probe: one that owes
    /// nothing, since another one is waited for anyway.
    pub(super) fn keepalive_due(&self) -> Option<Time> {
        let idle = self.keepalive?;
        let is_open =
            matches!(self.state(), State::Established | State::CloseWait | State::FinWait2);
        let is_idle = is_open && self.unanswered_since.is_none();
        is_idle.then(|| self.last_heard_at + idle + idle / KEEPALIVE_PROBES * self.probes)
    }

    /// Writes a probe: a segment from before the window, which a peer that lives acknowledges
    /// (RFC 9293 3.8.4). Says whether there is one.
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

    /// Why it is no more, if that is so.
    pub(in crate::stack) const fn end(&self) -> Option<TcpError> {
        self.end
    }

    /// Bytes that the peer has not acknowledged.
    pub(in crate::stack) fn unacknowledged(&self) -> usize {
        self.shown().send_queue()
    }

    /// Whether it stays only in TIME-WAIT, and for the application to read what came.
    pub(super) fn is_kept_for_reader(&self) -> bool {
        let is_held = self.holder == Holder::Application;
        self.state() == State::TimeWait && is_held && self.has_unread()
    }

    /// Whether its application has left it, and its peer has yet to hear that.
    pub(super) fn is_flushing(&self) -> bool {
        let is_flushed = matches!(self.state(), State::FinWait2 | State::TimeWait);
        self.holder == Holder::Nobody && !is_flushed && !self.is_over()
    }

    /// Whether receiving would say something, if only that nothing more comes.
    pub(in crate::stack) fn is_readable(&self) -> bool {
        let is_opening = matches!(self.state(), State::SynSent | State::SynReceived);
        self.has_unread() || self.end.is_some() || !is_opening && !self.shown().may_recv()
    }

    /// Whether so much waits to be read that the peer may wait for a wider window.
    pub(super) fn is_narrow(&self) -> bool {
        self.shown().recv_queue() >= self.shown().recv_capacity() / 4
    }

    /// Whether there are unread data.
    pub(super) fn has_unread(&self) -> bool {
        self.shown().recv_queue() > 0
    }

    /// Queues bytes for the peer; returns the number taken, 0 if the buffer is full.
    pub(in crate::stack) fn send(&mut self, bytes: &[u8]) -> Result<Option<usize>, TcpError> {
        if let Some(end) = self.end {
            return Err(end);
        }
        if matches!(self.state(), State::SynSent | State::SynReceived) {
            return Ok(None);
        }
        match self.socket().send_slice(bytes) {
            Ok(0) if !bytes.is_empty() => Ok(None),
            Ok(taken) => {
                self.loss_recovery.note_given(taken);
                Ok(Some(taken))
            }
            Err(_) => Err(TcpError::ShutDown),
        }
    }

    /// Takes bytes of the peer; how many there were, 0 at the end of all, none if none came yet.
    pub(in crate::stack) fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TcpError> {
        if matches!(self.state(), State::SynSent | State::SynReceived) {
            return Ok(None);
        }
        match (self.socket().recv_slice(buffer), self.end) {
            (Ok(0), None) if !buffer.is_empty() => Ok(None),
            (Ok(taken), _) => {
                self.loss_recovery.note_read(taken);
                Ok(Some(taken))
            }
            // The peer has said all, and was heard to the end.
            (Err(RecvError::Finished), _) | (Err(_), Some(TcpError::ShutDown)) => Ok(Some(0)),
            (Err(_), Some(end)) => Err(end),
            (Err(_), None) => Err(TcpError::Closed),
        }
    }

    /// The reason of its end, by its previous state.
    pub(super) const fn reason(before: State, heard: bool) -> TcpError {
        match (before, heard) {
            (State::SynSent, true) => TcpError::Refused,
            (State::LastAck | State::TimeWait | State::Closing, _) => TcpError::ShutDown,
            (_, true) => TcpError::Reset,
            (_, false) => TcpError::TimedOut,
        }
    }

    /// Where its peer is, where it is itself, and when it was polled.
    pub(super) fn at(&self, now: Time, mtus: &Mtus) -> At {
        At { now, local: self.local.ip(), mtu: self.mtu(mtus.of(now, self.remote.ip())) }
    }
}
