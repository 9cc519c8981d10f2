//! What a connection sends: all that smoltcp writes, until it has to be repaired, and what is to be
//! sent of that from then on.
//!
//! To have something said again smoltcp is shown a clock that has run out, and goes back to the
//! first byte that is not acknowledged. What it writes from there goes by the scoreboard.

use super::Connection;
use super::recovery::Verdict;
use crate::stack::outbox::{Packet, PacketSink};
use crate::stack::tcp::bare::{Bare, set_sequence_number, write_bare};
use crate::stack::tcp::engine::{At, Engine, Written, seal};
use smoltcp::socket::tcp::State;
use std::time::Duration;

/// By then smoltcp's clock has run out, whatever it was wound to (60 s of its own).
const RUN_OUT: Duration = Duration::from_secs(13);
/// Segments that smoltcp writes for nothing before others have a turn.
const DROPS_MAX: u32 = 64;

impl Connection {
    /// Writes what is next to be sent, if there is anything.
    pub(in crate::stack::tcp) fn transmit(
        &mut self,
        at: At,
        engine: &mut Engine,
        sink: &mut dyn PacketSink,
        draft: &mut Packet,
    ) -> Option<Written> {
        if self.loss_recovery.window_kept.is_some() {
            self.respect_window(at, engine);
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
        let mut has_begun_again = active.paused.take().unwrap_or(false);
        if let Some(pending_ack) =
            active.pending_ack.take().filter(|pending_ack| active.last_ack != Some(*pending_ack))
        {
            self.draft_bare(self.loss_recovery.sent_to, pending_ack, false, draft)?;
            return self.hand_over(sink, draft);
        }
        loop {
            let written = engine.draft(clock, &mut self.sockets, draft);
            clock = at;
            match written {
                Some(written) if self.lets_through(at, written, draft) => {
                    let is_first = self.loss_recovery.active.as_ref()?.peer_next.is_none();
                    let written = self.hand_over(sink, draft)?;
                    if is_first {
                        self.loss_recovery.note_written(at.now, &written);
                        self.tell_window(at, engine);
                    }
                    return Some(written);
                }
                Some(_) => {
                    drops += 1;
                    if drops == DROPS_MAX {
                        self.loss_recovery.active.as_mut()?.paused = Some(has_begun_again);
                        return None;
                    }
                }
                None => {
                    let active = self.loss_recovery.active.as_mut()?;
                    if !active.recovery.has_lost() {
                        return None;
                    }
                    if has_begun_again {
                        return self.transmit_fin(at, sink, draft);
                    }
                    has_begun_again = true;
                    active.ran_out = active.ran_out.max(at.now) + RUN_OUT;
                    clock.now = active.ran_out;
                }
            }
        }
    }

    /// Whether it goes on with what smoltcp says again, and had no end yet.
    pub(in crate::stack::tcp) fn is_paused(&self) -> bool {
        self.loss_recovery.active.as_ref().is_some_and(|active| active.paused.is_some())
    }

    /// Says a lost FIN again where smoltcp does not: of letters that say the same it takes every
    /// third for a loss of what it has, and of a FIN it has nothing. Its clock stands still then.
    fn transmit_fin(
        &mut self,
        at: At,
        sink: &mut dyn PacketSink,
        draft: &mut Packet,
    ) -> Option<Written> {
        let is_closing = matches!(self.state(), State::FinWait1 | State::Closing | State::LastAck);
        let (first, end) = (self.first(), self.loss_recovery.sent_to);
        let is_fin = is_closing && self.unacknowledged() == 0 && first.wrapping_add(1) == end;
        let active = self.loss_recovery.active.as_mut().filter(|_| is_fin)?;
        let said = active.last_ack?;
        if active.recovery.judge(at.now, first, end) == Verdict::Drop {
            return None;
        }
        self.draft_bare(first, said, true, draft)?;
        self.hand_over(sink, draft)
    }

    fn draft_bare(
        &self,
        sequence_number: u32,
        (acknowledgment_number, window): (u32, u16),
        fin: bool,
        draft: &mut Packet,
    ) -> Option<()> {
        let bare = Bare { sequence_number, acknowledgment_number, window, fin, ..Bare::default() };
        write_bare(draft, self.addresses(), bare)
    }

    /// Sends what is written.
    fn hand_over(&mut self, sink: &mut dyn PacketSink, draft: &mut Packet) -> Option<Written> {
        let written = seal(draft.bytes_mut())?;
        sink.buffer(draft.bytes().len()).copy_from_slice(draft.bytes());
        self.loss_recovery.active.as_mut()?.note_ack(&written);
        Some(written)
    }

    /// Whether a segment that smoltcp has written is to be sent, if only for what it acknowledges.
    fn lets_through(&mut self, at: At, written: Written, draft: &mut Packet) -> bool {
        let sent_to = self.loss_recovery.sent_to;
        let Some(active) = &mut self.loss_recovery.active else { return true };
        if written.syn {
            return true;
        }
        // Wherever smoltcp is: a reset elsewhere would not be believed (RFC 5961 3).
        if written.bytes == 0 {
            set_sequence_number(draft.bytes_mut(), sent_to);
            return true;
        }
        let (start, end) = (written.sequence_number, written.end());
        match active.recovery.judge(at.now, start, end) {
            Verdict::Send => true,
            Verdict::Drop => {
                let Written { acknowledgment_number, window, .. } = written;
                if active.last_ack == Some((acknowledgment_number, window)) {
                    return false;
                }
                self.draft_bare(sent_to, (acknowledgment_number, window), false, draft).is_some()
            }
        }
    }
}
