//! Writes completions to the program's rings, and sends the notifications that the program armed.

use super::scatter::{self, BEFORE_ENTRY_MAX, IN_ENTRY_MAX};
use super::{Hca, async_events, low_24_bits};
use crate::cqe::{CQE_BYTES, Format, WorkId, encode, set_format};
use crate::objects::{CqObject, QpObject};
use pollux_hca::Link;
use pollux_verbs::{Arm, Completion, Device, QpAttributes, QpState};
use std::sync::atomic::{Ordering, fence};

impl<L: Link> Hca<L> {
    pub(super) fn move_completions(&mut self) -> bool {
        let completed = self.device.adapter.completed();
        if completed == self.completions_moved {
            return false;
        }
        self.completions_moved = completed;
        for index in 0..self.cq_numbers.len() {
            self.move_completions_of(self.cq_numbers[index]);
        }
        true
    }

    fn move_completions_of(&mut self, number: u32) {
        let Some(cq) = self.cqs.get(number).map(|cq| cq.cq) else { return };
        let (mut any, mut is_solicited) = (false, false);
        let mut completions = std::mem::take(&mut self.completions);
        // Poll the adapter directly: the device's poll would also make progress each time.
        let mut has_more = true;
        while has_more && let Ok(count @ 1..) = self.device.adapter.poll(cq, &mut completions) {
            has_more = count == completions.len();
            // The position is relative to the completions just polled: 0 is the last one of them.
            let last = self.device.adapter.last_solicited(cq);
            let last = last.and_then(|last| count.checked_add_signed(last));
            for (nth, completion) in completions[..count].iter().enumerate() {
                let is_last = last == Some(nth + 1);
                self.write(number, completion, is_last);
                is_solicited |= is_last;
            }
            any = true;
        }
        self.completions = completions;
        if any {
            self.notify(number, is_solicited);
        }
    }

    /// Writes the completion of a request that was not posted to the adapter.
    pub(super) fn write_completion(&mut self, number: u32, completion: &Completion) {
        self.write(number, completion, true);
        self.notify(number, true);
    }

    fn write(&mut self, number: u32, completion: &Completion, is_solicited: bool) {
        let Some(cq) = self.cqs.get_mut(number).filter(|cq| !cq.is_dead) else { return };
        if waiting(cq) >= cq.entries && !cq.ignores_overrun {
            cq.is_dead = true;
            let (context, handle) = (cq.context, cq.user_handle);
            self.send_event(context, handle, async_events::CQ_ERR);
            return self.fail_users(number);
        }
        let Some(qp) = self.by_qpn.get(&completion.qpn.0).and_then(|number| self.qps.get(*number))
        else {
            return;
        };
        let version = self.contexts.get(cq.context).map_or(1, |context| context.cqe_version);
        let is_recv = matches!(WorkId::from_u64(completion.id), WorkId::Recv { .. });
        let srqn = if is_recv { qp.srq.map_or(0, low_24_bits) } else { 0 };
        let srqn_uidx = if version == 0 { srqn } else { qp.user_index } & 0xff_ffff;
        let mut cqe = encode(completion, srqn_uidx);
        let is_long = cq.entry_bytes > CQE_BYTES;
        let mut message = [0; BEFORE_ENTRY_MAX];
        let message = &mut message[..if is_long { BEFORE_ENTRY_MAX } else { IN_ENTRY_MAX }];
        let slot = &mut self.slot;
        match scatter::message(completion, qp, &self.srqs, &self.regions, slot, message) {
            Some(message) if is_long => {
                set_format(&mut cqe, Format::MessageBefore);
                let is_written = cq.ring.write(slot_at(cq), message);
                debug_assert!(is_written, "an entry has a half before its last one");
            }
            Some(message) => {
                set_format(&mut cqe, Format::MessageInside);
                cqe[..message.len()].copy_from_slice(message);
            }
            None => {}
        }
        put(cq, cqe);
        if is_solicited {
            cq.last_solicited = cq.produced;
        }
    }

    /// Notifies the program if the queue is armed for any of the completions just written.
    fn notify(&mut self, number: u32, is_solicited: bool) {
        let armed = self.cqs.get(number).and_then(|cq| cq.armed);
        if armed == Some(Arm::Any) || armed == Some(Arm::Solicited) && is_solicited {
            self.fire(number);
        }
    }

    /// Fails the queue pairs of a completion queue that overran (IBA 10.2.5.2).
    fn fail_users(&mut self, number: u32) {
        let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
        let uses = |qp: &QpObject| qp.send_cq == number || qp.recv_cq == number;
        for (_, qp) in self.qps.iter().filter(|(_, qp)| uses(qp)) {
            // A queue pair in RESET has no requests. It refuses the change and stays in RESET.
            let _ = self.device.modify_qp(qp.qp, &error);
        }
    }

    fn fire(&mut self, number: u32) {
        let Some(cq) = self.cqs.get_mut(number) else { return };
        cq.armed = None;
        let (handle, channel) = (cq.user_handle, cq.channel);
        let context = self.contexts.get_mut(cq.context);
        let queue = channel.and_then(|fd| context.and_then(|one| one.channels.get_mut(&fd)));
        if let Some(queue) = queue {
            queue.send(handle, handle.to_ne_bytes());
        }
    }

    /// Whether the program has armed any completion queue.
    pub(crate) fn is_armed(&self) -> bool {
        self.cqs.iter().any(|(_, cq)| cq.armed.is_some())
    }

    /// Arms the completion queues whose doorbells were rung. The value in the register names the
    /// last one. Others, whose stores it overwrote, are found by a change of their records.
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
                let is_named = low_24_bits(number) == doorbell.cqn;
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
        const SOLICITED_ONLY: u32 = 1 << 24;
        // Completions that the adapter already has come before the arm.
        self.move_completions_of(number);
        let Some(cq) = self.cqs.get_mut(number) else { return };
        // Completions that the program had not polled when it armed the queue.
        let unseen = cq.produced.wrapping_sub(word) & 0xff_ffff;
        let (arm, ago) = match word & SOLICITED_ONLY {
            0 => (Arm::Any, 0),
            _ => (Arm::Solicited, cq.produced.wrapping_sub(cq.last_solicited)),
        };
        // An arm for any completion is not replaced by one for solicited ones (IBA 11.4.2.2).
        if cq.armed != Some(Arm::Any) {
            cq.armed = Some(arm);
        }
        if ago < unseen {
            self.fire(number);
        }
    }
}

/// Entries that the program has not polled yet, according to its doorbell record.
pub(crate) fn waiting(cq: &CqObject) -> u32 {
    cq.produced.wrapping_sub(cq.record.word(0)) & 0xff_ffff
}

/// The offset of the next entry in the ring.
fn slot_at(cq: &CqObject) -> usize {
    (cq.produced & (cq.entries - 1)) as usize * cq.entry_bytes
}

/// Writes the next entry of a ring, with the owner bit of the current pass.
pub(crate) fn put(cq: &mut CqObject, mut cqe: [u8; CQE_BYTES]) {
    cqe[CQE_BYTES - 1] |= u8::from(cq.produced & cq.entries != 0);
    let at = slot_at(cq) + cq.entry_bytes - cqe.len();
    let (body, last) = cqe.split_at(56);
    let is_body_written = cq.ring.write(at, body);
    // The word with the owner bit makes the entry valid, so it is written last, in one store.
    fence(Ordering::Release);
    let is_written = is_body_written && cq.ring.write(at + 56, last);
    debug_assert!(is_written, "the ring holds its entries, as `create_cq` checked");
    cq.produced = cq.produced.wrapping_add(1);
}
