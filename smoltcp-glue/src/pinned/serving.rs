//! The worker's side of each socket: transfers between the rings of the socket and the stack.
//!
//! A full ring stops only its own socket. Received data waits in the stack, which closes the window
//! or counts drops; data to send waits in the ring. The side that makes space notifies the other
//! side.

use super::common_state::SocketSlot;
use super::datagram::{HEAD_BYTES, Head};
use super::doorbell::SocketFlags;
use super::listener::ListenerLine;
use super::tcp::TcpStream;
use super::tcp_line::{ConnectionState, RequestedState, StreamEnd, TcpLine};
use super::udp::UdpLine;
use crate::host::Host;
use crate::stack::{SocketId, TcpId, UdpError, UdpId};
use pollux_mem::{byte_ring, mpsc};
use pollux_verbs::time::Time;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum number of datagrams that a socket sends before other sockets are served.
const DATAGRAMS_MAX: usize = 64;
/// Maximum bytes of the rings that are kept of ended connections.
const SPARE_RING_BYTES_MAX: usize = 8 << 20;

fn queued(outgoing: &mut byte_ring::Reader, incoming: &mut byte_ring::Writer) -> (usize, usize) {
    let capacity = incoming.capacity();
    (outgoing.len(usize::MAX), capacity - incoming.space(capacity))
}

/// The state of a socket after it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndState {
    /// It waits for an event.
    Waiting,
    /// It has more to send, and waits for space.
    HasMore,
    /// The application has dropped it; it ends when all data is sent.
    Draining,
    /// It has ended.
    Ended,
}

pub(super) struct TcpEnd {
    id: TcpId,
    _slot: SocketSlot,
    pub(super) line: Arc<TcpLine>,
    /// The state that the last notification requested.
    requested_state: RequestedState,
    outgoing: byte_ring::Reader,
    incoming: byte_ring::Writer,
    /// The number of bytes that the stack has taken.
    taken: u64,
    is_shut: bool,
    /// Set once the application has dropped the connection: the time of the last progress of the
    /// ring to the stack, and the unsent bytes at that time.
    draining: Option<(Time, usize)>,
}

/// Rings of ended connections, for new ones. Their pages are mapped already; those of a new ring
/// are zeroed one by one.
pub(super) struct SpareRings {
    all: Vec<(byte_ring::Writer, byte_ring::Reader)>,
    ring_bytes: usize,
}

impl SpareRings {
    pub(super) const fn new(ring_bytes: usize) -> Self {
        Self { all: Vec::new(), ring_bytes }
    }

    /// `None` if a ring cannot have this length.
    fn take(&mut self) -> Option<(byte_ring::Writer, byte_ring::Reader)> {
        self.all.pop().or_else(|| byte_ring::ring(self.ring_bytes))
    }

    pub(super) fn keep(&mut self, end: TcpEnd) {
        let rings = [end.incoming.renew(), end.outgoing.renew()];
        let space = (SPARE_RING_BYTES_MAX / self.ring_bytes).saturating_sub(self.all.len());
        self.all.extend(rings.into_iter().flatten().take(space));
    }
}

impl TcpEnd {
    /// The worker's end, and the application's ends of the rings; `None` if a ring cannot have this
    /// length.
    pub(super) fn new(
        (id, slot): (TcpId, SocketSlot),
        state: ConnectionState,
        rings: &mut SpareRings,
    ) -> Option<(Self, (byte_ring::Reader, byte_ring::Writer))> {
        let (incoming, reader) = rings.take()?;
        let (writer, outgoing) = rings.take()?;
        let line = Arc::new(TcpLine::new(id, state));
        let end = Self {
            id,
            _slot: slot,
            line,
            requested_state: RequestedState::Open,
            outgoing,
            incoming,
            taken: 0,
            is_shut: false,
            draining: None,
        };
        Some((end, (reader, writer)))
    }

    /// Bytes in the rings, from the application and to it.
    pub(super) fn queued(&mut self) -> (usize, usize) {
        queued(&mut self.outgoing, &mut self.incoming)
    }

    /// Reads the requested state. It is read only after a notification was taken from the ring, so
    /// a socket that is removed because of it has no notification left in the ring.
    pub(super) fn handle_notification(&mut self) {
        self.line.flags.clear_dirty();
        self.requested_state = self.line.requested_state();
    }

    pub(super) fn serve(&mut self, now: Time, inner: &mut Host) -> EndState {
        self.look(inner);
        let has_sent = self.send(inner);
        let has_received = self.receive(inner);
        let is_acknowledged = self.acknowledge(inner);
        if has_received {
            self.line.readers.wake();
        }
        if has_sent || is_acknowledged {
            self.line.writers.wake();
        }
        match self.requested_state {
            RequestedState::Open => EndState::Waiting,
            RequestedState::ShutDown => {
                // A shutdown of a connection that is not open yet would cancel the attempt.
                let is_open = self.line.state() != ConnectionState::Opening;
                if is_open && !self.is_shut && self.outgoing.is_empty() {
                    self.is_shut = true;
                    // It fails if the connection has ended, which needs no shutdown.
                    let _ = inner.stack.tcp_shut_down(now, self.id);
                }
                EndState::Waiting
            }
            RequestedState::Close => self.drain(now, inner),
            RequestedState::Abort => self.abort(now, inner),
        }
    }

    /// Sends the rest of a connection that the application has dropped.
    fn drain(&mut self, now: Time, inner: &mut Host) -> EndState {
        // Received data that was not read is lost, and a reset reports that to the peer (RFC 9293
        // 3.6.1). Data that arrives later is discarded: the application might not have read it
        // either.
        if self.draining.is_none() && !self.incoming.is_drained() {
            return self.abort(now, inner);
        }
        let unsent = self.outgoing.len(usize::MAX);
        if unsent == 0 || matches!(self.line.state(), ConnectionState::Ended(_)) {
            inner.stack.tcp_close(now, self.id);
            return EndState::Ended;
        }
        let is_first = self.draining.is_none();
        if self.draining.is_none_or(|(_, before)| unsent < before) {
            self.draining = Some((now, unsent));
        }
        if is_first { EndState::Draining } else { EndState::Waiting }
    }

    fn abort(&self, now: Time, inner: &mut Host) -> EndState {
        inner.stack.tcp_abort(now, self.id);
        EndState::Ended
    }

    /// Whether it was dropped, and has made no progress for longer than the timeout.
    pub(super) fn is_lost(&self, now: Time, user_timeout: Duration) -> bool {
        self.draining.is_some_and(|(since, _)| now > since + user_timeout)
    }

    /// Publishes whether the connection is open or has ended.
    fn look(&self, inner: &Host) {
        let known = self.line.state();
        let state = match inner.stack.tcp_is_open(self.id) {
            Ok(true) => ConnectionState::Open,
            Ok(false) => ConnectionState::Opening,
            Err(why) => ConnectionState::Ended(why),
        };
        if state != known {
            self.line.set_state(state);
            self.line.readers.wake();
            self.line.writers.wake();
        }
    }

    /// Moves data from the application to the stack; returns whether there is more space now.
    fn send(&mut self, inner: &mut Host) -> bool {
        let before = self.taken;
        while !self.outgoing.is_empty() {
            let give = |run: &[u8]| inner.stack.tcp_send(self.id, run).ok().flatten().unwrap_or(0);
            match self.outgoing.drain(give) {
                0 => break,
                sent => self.taken += sent as u64,
            }
        }
        self.taken > before
    }

    /// Moves data from the stack to the application; returns whether there is something to read
    /// now.
    fn receive(&mut self, inner: &mut Host) -> bool {
        if self.draining.is_some() {
            return self.discard(inner);
        }
        let (mut has_received, mut stream_end) = (false, self.line.stream_end());
        while stream_end == StreamEnd::None {
            let incoming = &mut self.incoming;
            if incoming.space(1) == 0 && self.line.flags.stall(|| incoming.space(1) > 0) {
                return has_received;
            }
            let received = incoming.fill(|run| match inner.stack.tcp_recv(self.id, run) {
                Ok(Some(0)) => (stream_end = StreamEnd::Eof, 0).1,
                Ok(received) => received.unwrap_or(0),
                Err(why) => (stream_end = StreamEnd::Error(why), 0).1,
            });
            if stream_end != StreamEnd::None {
                self.line.set_stream_end(stream_end);
                return true;
            }
            if received == 0 {
                return has_received;
            }
            has_received = true;
        }
        false
    }

    /// Discards received data after the application has dropped the connection.
    fn discard(&self, inner: &mut Host) -> bool {
        let mut discarded = [0; 4096];
        while let Ok(Some(1..)) = inner.stack.tcp_recv(self.id, &mut discarded) {}
        false
    }

    /// Publishes the number of acknowledged bytes; returns whether it has changed.
    fn acknowledge(&self, inner: &Host) -> bool {
        let open = inner.stack.tcp_unacknowledged(self.id) as u64;
        let acknowledged = self.taken.saturating_sub(open);
        let before = self.line.acknowledged.swap(acknowledged, Ordering::Release);
        acknowledged != before
    }
}

pub(super) struct UdpEnd {
    id: UdpId,
    _slot: SocketSlot,
    pub(super) line: Arc<UdpLine>,
    is_dropped: bool,
    outgoing: byte_ring::Reader,
    incoming: byte_ring::Writer,
    /// Whether it is in the queue of sockets with more to send.
    pub(super) is_again: bool,
}

impl UdpEnd {
    /// The worker's end, and the application's ends of the rings; `None` if a ring cannot have this
    /// length.
    pub(super) fn new(
        (id, slot): (UdpId, SocketSlot),
        ring_bytes: usize,
    ) -> Option<(Self, (byte_ring::Reader, byte_ring::Writer))> {
        let (incoming, reader) = byte_ring::ring(ring_bytes)?;
        let (writer, outgoing) = byte_ring::ring(ring_bytes)?;
        let line = Arc::new(UdpLine::new(SocketFlags::new(SocketId::Udp(id))));
        let end =
            Self { id, _slot: slot, line, is_dropped: false, outgoing, incoming, is_again: false };
        Some((end, (reader, writer)))
    }

    /// Like [`TcpEnd::queued`], including the heads of datagrams.
    pub(super) fn queued(&mut self) -> (usize, usize) {
        queued(&mut self.outgoing, &mut self.incoming)
    }

    pub(super) fn handle_notification(&mut self) {
        self.line.flags.clear_dirty();
        self.is_dropped = self.line.is_dropped.load(Ordering::Acquire);
    }

    pub(super) fn serve(&mut self, now: Time, inner: &mut Host, scratch: &mut [u8]) -> EndState {
        if !self.is_dropped {
            self.receive(inner, scratch);
        }
        let has_more = self.send(now, inner, scratch);
        match self.is_dropped {
            _ if has_more => EndState::HasMore,
            false => EndState::Waiting,
            true => {
                inner.udp_close(now, self.id);
                EndState::Ended
            }
        }
    }

    /// Moves datagrams from the application to the device; returns whether there are more.
    fn send(&mut self, now: Time, inner: &mut Host, scratch: &mut [u8]) -> bool {
        let mut sent = 0;
        while let Some(head) = Head::peek(&mut self.outgoing) {
            let payload = &mut scratch[..head.len];
            let is_there = self.outgoing.peek(HEAD_BYTES, payload);
            debug_assert!(is_there, "a datagram is written at once");
            match inner.udp_send(now, self.id, head.peer, payload) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => break,
                Err(why) => self.set_pending_error(why),
                Ok(()) => {}
            }
            self.outgoing.skip(HEAD_BYTES + head.len);
            sent += 1;
            if sent == DATAGRAMS_MAX {
                break;
            }
        }
        if sent > 0 {
            self.line.writers.wake();
        }
        !self.outgoing.is_empty()
    }

    /// Moves datagrams from the stack to the application.
    fn receive(&mut self, inner: &mut Host, scratch: &mut [u8]) {
        let mut has_received = false;
        while inner.stack.udp_is_readable(self.id) {
            let bytes = HEAD_BYTES + inner.stack.udp_next_bytes(self.id).unwrap_or(0);
            let mut has_space = || self.incoming.space(bytes) >= bytes;
            if !has_space() && self.line.flags.stall(has_space) {
                break;
            }
            match inner.stack.udp_recv(self.id, scratch) {
                Ok(Some(received)) => {
                    let head = Head { len: received.len, peer: received.from, to: received.to };
                    let is_written = head.write(&mut self.incoming, &scratch[..received.len]);
                    debug_assert!(is_written, "there was space");
                    has_received = true;
                }
                Ok(None) | Err(UdpError::Closed) => break,
                Err(why) => self.set_pending_error(why.into()),
            }
        }
        if has_received {
            self.line.readers.wake();
        }
    }

    fn set_pending_error(&self, why: io::Error) {
        self.line.set_pending_error(why);
        self.line.readers.wake();
        self.line.writers.wake();
    }
}

pub(super) struct ListenerEnd {
    pub(super) _slot: SocketSlot,
    pub(super) line: Arc<ListenerLine>,
    pub(super) ready: mpsc::Sender<TcpStream>,
}

impl ListenerEnd {
    /// Whether another connection may go to the application now.
    pub(super) fn has_space(&mut self) -> bool {
        let ready = &self.ready;
        ready.has_room() || !self.line.flags.stall(|| ready.has_room())
    }
}
