//! Acceptance of segments that smoltcp would handle wrongly (RFC 9293 3.10.7.4, RFC 5961).
//!
//! | segment, in a synchronized state | action | clause |
//! |---|---|---|
//! | SYN | challenge ACK | RFC 5961 4.2 |
//! | RST at the next number | accepted | RFC 5961 3.2 |
//! | RST elsewhere in the window | challenge ACK | RFC 5961 3.2 |
//! | RST elsewhere | dropped | RFC 5961 3.2 |
//! | acknowledges unsent data | challenge ACK | RFC 5961 5.2 |
//! | text, with an old acknowledgment | text accepted | RFC 9293 3.10.7.4 |
//! | text, with an acknowledgment older than a window | challenge ACK | RFC 5961 5.2 |
//!
//! smoltcp drops every segment without an acknowledgment, so it does not answer the SYN of a
//! restarted host. It accepts every RST in the window. It drops the text of a segment with an old
//! acknowledgment.

use super::Connection;
use super::loss_recovery::{is_after, is_opening};
use crate::stack::outbox::{Packet, PacketSink};
use crate::stack::tcp::engine::{At, Engine};
use crate::stack::tcp::segment::{set_acknowledgment, write_segment};
use pollux_wire::ip::tcp::{TcpHeader, TcpSegment};
use smoltcp::socket::tcp::State;

/// A distance beyond SND.MAX at which an acknowledgment is of unsent data.
const FAR: u32 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stack::tcp) enum Acceptance {
    Accept,
    /// Accept the text, but not the older acknowledgment and window.
    AcceptText,
    Challenge,
    Drop,
}

impl Connection {
    /// The next expected sequence number of the peer.
    pub(in crate::stack::tcp) fn receive_next(&self) -> u32 {
        let has_fin = matches!(
            self.state(),
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait
        );
        let unread = self.socket_ref().recv_queue() as u32 + u32::from(has_fin);
        self.loss_recovery.read_to.wrapping_add(unread)
    }

    /// Decides what to do with a segment. `first` is the first unacknowledged byte.
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
                offset if offset < self.socket_ref().recv_capacity() => Acceptance::Challenge,
                _ => Acceptance::Drop,
            },
            // The SYN of the handshake, or its answer.
            State::SynReceived if header.ack || offset == u32::MAX => Acceptance::Accept,
            // The previous SYN is not answered yet.
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
        let window = self.peer_window().max(self.socket_ref().send_capacity());
        match first.wrapping_sub(header.acknowledgment_number) as usize <= window {
            true => Acceptance::AcceptText,
            false => Acceptance::Challenge,
        }
    }

    /// Whether a byte, SYN or FIN with this number is unacknowledged.
    pub(in crate::stack::tcp) fn is_in_flight(&self, sequence_number: u32) -> bool {
        // A SYN has the sequence number before the first byte.
        let first = self.snd_una().wrapping_sub(u32::from(is_opening(self.state())));
        let sent = self.loss_recovery.sent_to.wrapping_sub(first);
        sequence_number.wrapping_sub(first) < sent
    }

    /// Copies a packet, but with the newest acknowledgment and window of the peer.
    pub(in crate::stack::tcp) fn renew(&self, first: u32, bytes: &[u8], renewed: &mut Packet) {
        renewed.buffer(bytes.len()).copy_from_slice(bytes);
        set_acknowledgment(renewed.bytes_mut(), first, self.loss_recovery.window);
    }

    /// Writes a challenge ACK, within smoltcp's rate limit (RFC 5961 7). Returns whether there is
    /// one.
    ///
    /// smoltcp writes it, because smoltcp knows the last acknowledgment. To cause it, this passes a
    /// forged segment to smoltcp, which acknowledges unsent data. Before the connection is open,
    /// smoltcp would answer such a segment with a RST; then the forged segment is one before the
    /// window.
    #[cold]
    pub(in crate::stack::tcp) fn challenge(
        &mut self,
        at: At,
        engine: &mut Engine,
        answer: &mut Packet,
    ) -> bool {
        let (local, remote) = self.addresses();
        let beyond = if is_opening(self.state()) { 0 } else { FAR };
        let header = TcpHeader {
            sequence_number: self.receive_next().wrapping_sub(1),
            acknowledgment_number: self.loss_recovery.sent_to.wrapping_add(beyond),
            ack: true,
            ..TcpHeader::default()
        };
        let mut forged_ack = Packet::default();
        let is_answered = write_segment(&mut forged_ack, (remote, local), header, &[]).is_some()
            && engine.receive(at, &mut self.sockets, forged_ack.bytes(), answer);
        if is_answered {
            self.note_answer(answer);
        }
        is_answered
    }
}
