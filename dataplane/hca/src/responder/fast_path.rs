//! The fast path of the responder: one short message into the next receive, and its ACK.
//!
//! A message qualifies if its head words are those that the queue pair expects
//! ([`ExpectedHeads`](crate::common::ExpectedHeads)). For everything else these functions return
//! `false` without a change of state, and the slow path takes over. The slow path implements the
//! whole specification; this file adds no rule.

use super::*;
use crate::head;
use crate::message_bypass::BypassMessage;
use crate::queue::Entries;
use crate::sink::FrameSink;
use pollux_verbs::Source;
use pollux_wire::address::Lid;
use pollux_wire::packet::Grh;

impl Responder {
    /// Copies a message into the next receive, if both qualify for the fast path. Returns whether
    /// it did.
    #[inline(always)]
    pub(crate) fn receive_fast(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        message: &impl BypassMessage,
    ) -> bool {
        let bytes = message.bytes();
        let [first, second, third, fourth] = message.first_words();
        if bytes > common.heads.bytes_max || third != 1 {
            return false;
        }
        let (skip, from) = if common.init.qp_type == QpType::Ud {
            let deth = head::deth_of(fourth);
            if message.head_words() != 4 || Some(deth.qkey) != common.attributes.qkey {
                return false;
            }
            let from = Source {
                src_qp: deth.src_qp,
                slid: Lid((second >> 48) as u16),
                sl: (first >> 56) as u8 & 0xf,
                dlid_path_bits: Lid((second >> 32) as u16).path_bits(shared.port.lmc),
                pkey_index: common.heads.pkey_index,
                has_grh: false,
            };
            (Grh::LEN, Some(from))
        } else {
            let psn = Psn::new(second as u32 & 0xff_ffff);
            if message.head_words() != 3 || !self.expects(psn) {
                return false;
            }
            (0, None)
        };
        let queue = match common.init.srq {
            None => &mut common.receives,
            Some(srq) => match shared.srqs.get_mut(srq.0) {
                Some(queue) if queue.limit == 0 && queue.pd == common.init.pd => {
                    &mut queue.requests
                }
                _ => return false,
            },
        };
        let Some(work) = queue.front() else { return false };
        let Entries::One(sge) = &work.entries else { return false };
        if skip + bytes > sge.bytes as usize {
            return false;
        }
        let Ok((memory, at)) = shared.memory.locate(common.init.pd, sge, true) else {
            return false;
        };
        if !message.copy_to(memory, at + skip) {
            return false;
        }
        let id = work.id;
        queue.pop_front();
        if common.init.qp_type != QpType::Ud {
            let is_reliable = common.init.qp_type == QpType::Rc;
            self.advance_fast(is_reliable && first & head::ACK_REQ != 0);
        }
        let (status, kind) = (CompletionStatus::Success, CompletionKind::Recv);
        let bytes = (skip + bytes) as u32;
        let completion = Completion { bytes, from, ..common.completion(id, status, kind) };
        common.complete(shared, common.init.recv_cq, completion, first & head::SE != 0);
        true
    }

    /// Whether a new message with this PSN is expected next.
    #[inline(always)]
    fn expects(&self, psn: Psn) -> bool {
        psn == self.expected && matches!(self.in_progress, InProgress::Nothing) && !self.failed
    }

    /// Updates the state for a received one-packet message.
    #[inline(always)]
    fn advance_fast(&mut self, ack_req: bool) {
        self.expected = self.expected.plus(1);
        self.msn = self.msn.plus(1);
        self.nak_sent = false;
        if ack_req {
            self.acknowledge();
        }
    }

    /// Sends the queued response if it is the only one and a positive ACK. Returns whether it was
    /// sent.
    #[inline(always)]
    pub(crate) fn answer_fast<L: FrameSink>(
        &mut self,
        common: &mut Common,
        shared: &Shared,
        link: &mut L,
    ) -> bool {
        if !common.has_fast_path(shared) || self.answers.len() != 1 {
            return false;
        }
        let Some(Answer::Ack { psn, syndrome: Syndrome::Ack(_) }) = self.answers.front() else {
            return false;
        };
        let aeth = Aeth { syndrome: Syndrome::Ack(common.credits()), msn: self.msn };
        let second = common.heads.sent | u64::from(psn.get());
        let words = [common.heads.ack, second, 1, head::aeth_word(aeth)];
        let sent = link.send_bytes(&words, &[]);
        if sent {
            self.answers.clear();
        }
        sent
    }
}
