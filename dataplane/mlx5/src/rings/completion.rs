//! Completion queues.

use crate::cqe::{CQE_BYTES, Cqe, OWNER, opcode};
use crate::memory::{ArmRegister, Record, RingMemory};
use pollux_verbs::Arm;

/// The bits of a consumer index in a record.
const CONSUMER: u32 = 0xff_ffff;
/// Requests a notification only for a solicited completion.
const SOLICITED: u32 = 1 << 24;

#[derive(Debug)]
pub(crate) struct CompletionRing {
    memory: RingMemory,
    record: Record,
    register: ArmRegister,
    cqn: u32,
    /// The length of an entry in bytes. The last [`CQE_BYTES`] of them are used.
    stride: usize,
    /// The binary logarithm of the number of entries.
    log_length: u32,
    /// The number of entries taken, which wraps.
    consumer: u32,
    /// The number of notifications read, modulo 4.
    notifications: u32,
}

impl CompletionRing {
    /// A ring of entries of `stride` bytes. `None` if their number is no power of two, or their
    /// length is neither 64 nor 128.
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

    /// The offset of the used part of an entry. [`RingMemory`] wraps it.
    #[inline]
    fn at(&self, index: u32) -> usize {
        index as usize * self.stride + self.stride - CQE_BYTES
    }

    /// The owner bit that the adapter writes at an index.
    #[inline]
    fn lap(&self, index: u32) -> u8 {
        (index >> self.log_length) as u8 & OWNER
    }

    /// The entry after `nth` entries that are not taken yet. `None` if the adapter has not written
    /// it.
    #[inline]
    pub(crate) fn entry(&self, nth: u32) -> Option<Cqe> {
        let index = self.consumer.wrapping_add(nth);
        let lap = self.lap(index);
        let is_ours = |last: u8| last & OWNER == lap && last >> 4 != opcode::INVALID;
        self.memory.read_if(self.at(index), is_ours).map(Cqe)
    }

    /// Takes `count` entries, and returns their slots to the adapter.
    #[inline]
    pub(crate) fn take(&mut self, count: u32) {
        self.consumer = self.consumer.wrapping_add(count);
        self.record.set(Record::CONSUMER, self.consumer & CONSUMER);
    }

    /// Requests a notification for the next entry.
    pub(crate) fn arm(&self, arm: Arm) {
        let solicited = if arm == Arm::Solicited { SOLICITED } else { 0 };
        let word = self.notifications << 28 | solicited | self.consumer & CONSUMER;
        self.record.set(Record::ARM, word);
        self.register.ring(word, self.cqn);
    }

    /// Counts a notification that was read. The adapter recognizes a new request by this count.
    pub(crate) fn notified(&mut self) {
        self.notifications = (self.notifications + 1) & 3;
    }
}
