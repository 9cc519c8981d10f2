//! Completion queues.

use crate::cqe::{CQE_BYTES, Cqe, OWNER, opcode};
use crate::memory::{ArmRegister, Record, RingMemory};
use pollux_verbs::Arm;

/// The bits of a consumer index in a record.
const CONSUMER: u32 = 0xff_ffff;
/// Only a solicited completion is notified of.
const SOLICITED: u32 = 1 << 24;

#[derive(Debug)]
pub(crate) struct CompletionRing {
    memory: RingMemory,
    record: Record,
    register: ArmRegister,
    cqn: u32,
    /// Bytes of an entry, of which the last [`CQE_BYTES`] count.
    stride: usize,
    /// The length of the ring is two to the power of this.
    log_length: u32,
    /// Entries taken; without end.
    consumer: u32,
    /// Notifications that were read.
    notifications: u32,
}

impl CompletionRing {
    /// A ring of entries of `stride` bytes; `None` if they are no power of two, or have another
    /// length than 64 or 128.
    pub(crate) fn new(
        memory: RingMemory,
        record: Record,
        register: ArmRegister,
        cqn: u32,
        stride: u32,
    ) -> Option<Self> {
        let stride = stride as usize;
        let length = memory.bytes().checked_div(stride)?;
        if ![CQE_BYTES, 2 * CQE_BYTES].contains(&stride) || !length.is_power_of_two() {
            return None;
        }
        let (log_length, consumer, notifications) = (length.ilog2(), 0, 0);
        Some(Self { memory, record, register, cqn, stride, log_length, consumer, notifications })
    }

    /// Where the entry of an index is; the ring's memory goes around.
    #[inline]
    fn at(&self, index: u32) -> usize {
        index as usize * self.stride + self.stride - CQE_BYTES
    }

    /// The adapter's lap through the ring at an index.
    #[inline]
    fn lap(&self, index: u32) -> u8 {
        (index >> self.log_length) as u8 & OWNER
    }

    /// The entry behind so many that are not taken yet.
    #[inline]
    pub(crate) fn entry(&self, nth: u32) -> Option<Cqe> {
        let index = self.consumer.wrapping_add(nth);
        let lap = self.lap(index);
        let is_ours = |last: u8| last & OWNER == lap && last >> 4 != opcode::INVALID;
        self.memory.read_if(self.at(index), is_ours).map(Cqe)
    }

    /// Takes entries, and gives them back to the adapter.
    #[inline]
    pub(crate) fn take(&mut self, count: u32) {
        self.consumer = self.consumer.wrapping_add(count);
        self.record.set(Record::CONSUMER, self.consumer & CONSUMER);
    }

    /// Requests a notification of the next entry.
    pub(crate) fn arm(&self, arm: Arm) {
        let solicited = if arm == Arm::Solicited { SOLICITED } else { 0 };
        let word = self.notifications << 28 | solicited | self.consumer & CONSUMER;
        self.record.set(Record::ARM, word);
        self.register.ring(word, self.cqn);
    }

    /// A notification was read; the next request differs from the last in this count.
    pub(crate) fn notified(&mut self) {
        self.notifications = (self.notifications + 1) & 3;
    }
}
