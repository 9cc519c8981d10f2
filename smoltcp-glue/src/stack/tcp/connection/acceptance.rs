//! Segments that smoltcp would take wrongly, judged before it sees them (RFC 9293 3.10.7.4,
//! RFC 5961).
//!
//! | segment, in a synchronized state | what becomes of it | clause |
//! |---|---|---|
//! | SYN | challenge ACK | RFC 5961 4.2 |
//! | RST at the next number | accepted | RFC 5961 3.2 |
//! | RST elsewhere in the window | challenge ACK | RFC 5961 3.2 |
//! | RST elsewhere | dropped | RFC 5961 3.2 |
//! | acknowledges what was never sent | challenge ACK | RFC 5961 5.2 |
//! | text, acknowledges what was acknowledged before | text accepted | RFC 9293 3.10.7.4 |
//! | text, acknowledges what is older than a window | challenge ACK | RFC 5961 5.2 |
//!
//! smoltcp drops every segment without an acknowledgment, and so leaves the SYN of a host that has
//! restarted without an answer; it obeys every RST in the window; and it drops text with its older
//! acknowledgment.

use super::Connection;
use super::loss_recovery::{is_after, is_opening};
use crate::stack::outbox::Packet;
use crate::stack::tcp::bare::{Bare, set_acknowledgment, write_bare};
use crate::stack::tcp::engine::{At, Engine};
use pollux_wire::ip::tcp::{TcpHeader, TcpSegment};
use smoltcp::socket::tcp::State;

/// An acknowledgment that is so far off is of nothing that was sent.
const FAR: u32 = 1 << 30;

/// The verdict about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack::tcp) enum Acceptance {
    Accept,
    /// Its text is accepted; its acknowledgment and window are older than what is known.
    AcceptText,
    Challenge,
    Drop,
}

impl Connection {
    /// The next sequence number that is expected of the peer.
    pub(in crate::stack::tcp) fn receive_next(&self) -> u32 {
        let has_fin = matches!(
            self.state(),
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait
        );
        let unread = self.shown().recv_queue() as u32 + u32::from(has_fin);
        self.loss_recovery.read_to.wrapping_add(unread)
    }

    /// The verdict about a segment, with the first unacknowledged byte.
    #[inline]
    pub(in crate::stack::tcp) fn acceptance(
        &self,
        first: u32,
        segment: &TcpSegment<'_>,
    ) -> Acceptance {
        let header = segment.header();
        if header.syn || header.rst {
            return self.acceptance_of_control(&header);
        }
        let acknowledged = header.acknowledgment_number;
        let is_of_sent = !is_after(acknowledged, self.loss_recovery.sent_to);
        if is_of_sent && !is_after(first, acknowledged) {
            return Acceptance::Accept;
        }
        self.acceptance_of_strange(first, segment)
    }

    #[cold]
    fn acceptance_of_control(&self, header: &TcpHeader) -> Acceptance {
        let offset = header.sequence_number.wrapping_sub(self.receive_next());
        match self.state() {
            State::Closed | State::Listen | State::SynSent => Acceptance::Accept,
            _ if header.rst => match offset as usize {
                0 => Acceptance::Accept,
                offset if offset < self.shown().recv_capacity() => Acceptance::Challenge,
                _ => Acceptance::Drop,
            },
            // The SYN that it is the answer to, or the answer to its own.
            State::SynReceived if header.ack || offset == u32::MAX => Acceptance::Accept,
            // It has yet to answer the SYN before.
            State::SynReceived if self.loss_recovery.sent_to == 0 => Acceptance::Drop,
            _ => Acceptance::Challenge,
        }
    }

    #[cold]
    fn acceptance_of_strange(&self, first: u32, segment: &TcpSegment<'_>) -> Acceptance {
        let header = segment.header();
        if !header.ack || is_opening(self.state()) {
            return Acceptance::Accept;
        }
        if is_after(header.acknowledgment_number, self.loss_recovery.sent_to) {
            return Acceptance::Challenge;
        }
        if segment.payload().is_empty() && !header.fin {
            return Acceptance::Accept;
        }
        let window = self.peer_window().max(self.shown().send_capacity());
        match first.wrapping_sub(header.acknowledgment_number) as usize <= window {
            true => Acceptance::AcceptText,
            false => Acceptance::Challenge,
        }
    }

    /// Whether a byte, SYN or FIN with this number was sent, and is not acknowledged.
    pub(in crate::stack::tcp) fn is_in_flight(&self, sequence_number: u32) -> bool {
        // A SYN is before the first byte.
        let first = self.first().wrapping_sub(u32::from(is_opening(self.state())));
        let sent = self.loss_recovery.sent_to.wrapping_sub(first);
        sequence_number.wrapping_sub(first) < sent
    }

    /// Copies a packet, but with the newest acknowledgment and window that the peer has sent.
    pub(in crate::stack::tcp) fn renew(&self, first: u32, bytes: &[u8], renewed: &mut Packet) {
        renewed.buffer(bytes.len()).copy_from_slice(bytes);
        set_acknowledgment(renewed.bytes_mut(), first, self.loss_recovery.window());
    }

    /// Writes a challenge ACK, as often as smoltcp does by itself (RFC 5961 7); says whether there
    /// is one.
    ///
    /// smoltcp, which knows what it has told the peer, writes it: as the answer to a segment that
    /// acknowledges what was never sent; or, since it answers that by a RST before it is open, to
    /// one from before the window.
    #[cold]
    pub(in crate::stack::tcp) fn challenge(
        &mut self,
        at: At,
        engine: &mut Engine,
        answer: &mut Packet,
    ) -> bool {
        let (local, remote) = self.addresses();
        let beyond = if is_opening(self.state()) { 0 } else { FAR };
        let bare = Bare {
            sequence_number: self.receive_next().wrapping_sub(1),
            acknowledgment_number: self.loss_recovery.sent_to.wrapping_add(beyond),
            ..Bare::default()
        };
        let mut forged_ack = Packet::default();
        let is_answered = write_bare(&mut forged_ack, (remote, local), bare).is_some()
            && engine.receive(at, self.sockets(), forged_ack.bytes(), answer);
        if is_answered {
            self.note_answer(answer);
        }
        is_answered
    }
}
