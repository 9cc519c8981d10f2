//! The output of a connection: all segments that smoltcp writes, but in recovery only those that
//! the scoreboard selects.
//!
//! To retransmit, smoltcp is polled with a clock past its timer, and rewrites everything from the
//! first unacknowledged byte.

use super::Connection;
use super::recovery::Verdict;
use crate::stack::outbox::{Packet, PacketSink};
use crate::stack::tcp::engine::{At, Engine, Written, seal};
use crate::stack::tcp::segment::{set_sequence_number, write_segment};
use pollux_wire::ip::tcp::TcpHeader;
use smoltcp::socket::tcp::State;
use std::time::Duration;

/// Longer than any timeout of smoltcp (60 s of its clock, 12 s of real time).
const RUN_OUT: Duration = Duration::from_secs(13);
/// Maximum number of segments discarded before other connections are polled.
const DROPS_MAX: u32 = 64;

impl Connection {
    pub(in crate::stack::tcp) fn transmit(
        &mut self,
        at: At,
        engine: &mut Engine,
        sink: &mut dyn PacketSink,
        draft: &mut Packet,
    ) -> Option<Written> {
        if self.loss_recovery.window_kept.is_some() {
            self.reenter_recovery(at, engine);
        }
        match self.loss_recovery.active {
            None => engine.transmit(at, &mut self.sockets, sink),
            Some(_) => self.transmit_in_recovery(at, engine, sink, draft),
        }
    }

    #[cold]
    fn transmit_in_recovery(
        &mut self,
        at: At,
        engine: &mut Engine,
        sink: &mut dyn PacketSink,
        draft: &mut Packet,
    ) -> Option<Written> {
        let active = self.loss_recovery.active.as_mut()?;
        let (mut clock, mut drops) = (at, 0);
        let mut has_restarted = active.paused.take().unwrap_or(false);
        if let Some(pending_ack) =
            active.pending_ack.take().filter(|pending_ack| active.last_ack != Some(*pending_ack))
        {
            self.draft_empty(self.loss_recovery.sent_to, pending_ack, false, draft)?;
            return self.send_draft(sink, draft);
        }
        loop {
            let written = engine.draft(clock, &mut self.sockets, draft);
            clock = at;
            match written {
                Some(written) if self.select_segment(at, written, draft) => {
                    let is_first = self.loss_recovery.active.as_ref()?.peer_next.is_none();
                    let written = self.send_draft(sink, draft)?;
                    if is_first {
                        self.tell_window(at, engine);
                    }
                    return Some(written);
                }
                Some(_) => {
                    drops += 1;
                    if drops == DROPS_MAX {
                        self.loss_recovery.active.as_mut()?.paused = Some(has_restarted);
                        return None;
                    }
                }
                None => {
                    let active = self.loss_recovery.active.as_mut()?;
                    if !active.recovery.has_lost() {
                        return None;
                    }
                    if has_restarted {
                        return self.transmit_fin(at, sink, draft);
                    }
                    has_restarted = true;
                    active.ran_out = active.ran_out.max(at.now) + RUN_OUT;
                    clock.now = active.ran_out;
                }
            }
        }
    }

    pub(in crate::stack::tcp) fn is_paused(&self) -> bool {
        self.loss_recovery.active.as_ref().is_some_and(|active| active.paused.is_some())
    }

    /// Retransmits a lost FIN if smoltcp does not. After every third duplicate acknowledgment,
    /// smoltcp assumes a loss of data. If only the FIN was lost, it finds no data to retransmit,
    /// and stops its timer.
    fn transmit_fin(
        &mut self,
        at: At,
        sink: &mut dyn PacketSink,
        draft: &mut Packet,
    ) -> Option<Written> {
        let is_closing = matches!(self.state(), State::FinWait1 | State::Closing | State::LastAck);
        let (first, end) = (self.snd_una(), self.loss_recovery.sent_to);
        let is_fin = is_closing && self.unacknowledged() == 0 && first.wrapping_add(1) == end;
        let active = self.loss_recovery.active.as_mut().filter(|_| is_fin)?;
        let last_ack = active.last_ack?;
        if active.recovery.decide(at.now, first, end) == Verdict::Drop {
            return None;
        }
        self.draft_empty(first, last_ack, true, draft)?;
        self.send_draft(sink, draft)
    }

    fn draft_empty(
        &self,
        sequence_number: u32,
        (acknowledgment_number, window): (u32, u16),
        fin: bool,
        draft: &mut Packet,
    ) -> Option<()> {
        let header = TcpHeader {
            sequence_number,
            acknowledgment_number,
            window,
            ack: true,
            fin,
            ..TcpHeader::default()
        };
        write_segment(draft, self.addresses(), header, &[])
    }

    fn send_draft(&mut self, sink: &mut dyn PacketSink, draft: &mut Packet) -> Option<Written> {
        let written = seal(draft.bytes_mut())?;
        sink.buffer(draft.bytes().len()).copy_from_slice(draft.bytes());
        self.loss_recovery.active.as_mut()?.note_ack(&written);
        Some(written)
    }

    /// Whether to send a segment that smoltcp has written. If the scoreboard does not select it,
    /// but its acknowledgment is new, an empty segment with that acknowledgment replaces it.
    fn select_segment(&mut self, at: At, written: Written, draft: &mut Packet) -> bool {
        let sent_to = self.loss_recovery.sent_to;
        let Some(active) = &mut self.loss_recovery.active else { return true };
        if written.syn {
            return true;
        }
        // An empty segment gets SND.MAX as its number: the peer would ignore a reset with another
        // one (RFC 5961 3).
        if written.bytes == 0 {
            set_sequence_number(draft.bytes_mut(), sent_to);
            return true;
        }
        let (start, end) = (written.sequence_number, written.end());
        match active.recovery.decide(at.now, start, end) {
            Verdict::Send => true,
            Verdict::Drop => {
                let Written { acknowledgment_number, window, .. } = written;
                if active.last_ack == Some((acknowledgment_number, window)) {
                    return false;
                }
                self.draft_empty(sent_to, (acknowledgment_number, window), false, draft).is_some()
            }
        }
    }
}
