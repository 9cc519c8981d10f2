//! Completions, written into the program's rings, and the notifications that it asked for.

use super::{Hca, async_events, short};
use crate::cqe::{CqeContext, WorkId, encode};
use pollux_hca::Link;
use pollux_verbs::Completion;
use std::sync::atomic::{Ordering, fence};

impl<L: Link> Hca<L> {
    pub(super) fn move_completions(&mut self) -> bool {
        let mut any = false;
        let mut completions = std::mem::take(&mut self.completions);
        for index in 0..self.cq_numbers.len() {
            let number = self.cq_numbers[index];
            let Some(cq) = self.cqs.get(number).map(|cq| cq.cq) else { continue };
            // The adapter's progress is made once in a turn, not by each poll.
            while let Ok(count @ 1..) = self.device.adapter.poll(cq, &mut completions) {
                completions[..count].iter().for_each(|one| self.write_completion(number, one));
                any = true;
            }
        }
        self.completions = completions;
        any
    }

    pub(super) fn write_completion(&mut self, number: u32, completion: &Completion) {
        let Some(cq) = self.cqs.get_mut(number).filter(|cq| !cq.is_dead) else { return };
        let consumed = cq.record.word(0);
        let waiting = cq.produced.wrapping_sub(consumed) & 0xff_ffff;
        if waiting >= cq.entries && !cq.ignores_overrun {
            cq.is_dead = true;
            let (context, handle) = (cq.context, cq.user_handle);
            return self.send_event(context, handle, async_events::CQ_ERR);
        }
        let Some(qp) = self.by_qpn.get(&completion.qpn.0).and_then(|number| self.qps.get(*number))
        else {
            return;
        };
        let version = self.contexts.get(cq.context).map_or(1, |context| context.cqe_version);
        let is_recv = matches!(WorkId::from_u64(completion.id), WorkId::Recv { .. });
        let srqn = if is_recv { qp.srq.map_or(0, short) } else { 0 };
        let srqn_uidx = if version == 0 { srqn } else { qp.user_index } & 0xff_ffff;
        let owner = u8::from(cq.produced & cq.entries != 0);
        let cqe = encode(completion, CqeContext { srqn_uidx, owner });
        let slot = (cq.produced & (cq.entries - 1)) as usize;
        let at = (slot + 1) * cq.entry_bytes - cqe.len();
        let (body, last) = cqe.split_at(56);
        let is_body_written = cq.ring.write(at, body);
        // The word with the owner bit is written last, and at once.
        fence(Ordering::Release);
        let is_written = is_body_written && cq.ring.write(at + 56, last);
        debug_assert!(is_written, "the ring holds its entries, as `create_cq` checked");
        cq.produced = cq.produced.wrapping_add(1);
        if cq.is_armed {
            self.fire(number);
        }
    }

    /// Notifies the program that waits for a completion.
    fn fire(&mut self, number: u32) {
        let Some(cq) = self.cqs.get_mut(number) else { return };
        cq.is_armed = false;
        let (handle, channel) = (cq.user_handle, cq.channel);
        let context = self.contexts.get_mut(cq.context);
        let queue = channel.and_then(|fd| context.and_then(|one| one.channels.get_mut(&fd)));
        if let Some(queue) = queue {
            queue.send(handle, handle.to_ne_bytes());
        }
    }

    /// Whether the program waits for a notification.
    pub(crate) fn is_armed(&self) -> bool {
        self.cqs.iter().any(|(_, cq)| cq.is_armed)
    }

    /// Arms the completion queues that the program asked to be notified of. The store names one;
    /// the records of the others show those whose store it hid.
    pub(super) fn take_arms(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.context_numbers.len() {
            let context = self.context_numbers[index];
            let pages = self.contexts.get(context).map(|context| &context.pages);
            let Some(doorbell) = pages.and_then(|pages| pages.take_cq_doorbell()) else { continue };
            for index in 0..self.cq_numbers.len() {
                let number = self.cq_numbers[index];
                let Some(cq) = self.cqs.get_mut(number) else { continue };
                let word = cq.record.word(1);
                let is_named = short(number) == doorbell.cqn;
                if cq.context != context || !is_named && word == cq.arm_seen {
                    continue;
                }
                cq.arm_seen = word;
                any = true;
                self.arm(number, word);
            }
        }
        any
    }

    fn arm(&mut self, number: u32, word: u32) {
        let Some(cq) = self.cqs.get_mut(number) else { return };
        cq.is_armed = true;
        // The program may have seen fewer completions than there are.
        if cq.produced.wrapping_sub(word) & 0xff_ffff != 0 {
            self.fire(number);
        }
    }
}
