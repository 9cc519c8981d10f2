//! Receive queues of single queue pairs, and the segments of a receive.

use crate::memory::{Record, RingMemory};
use crate::wqe::{SGE_BYTES_MAX, TERMINATOR, UNIT, segment};
use pollux_verbs::{PostRefusal, RecvRequest};

/// The maximum number of slots of a ring, whose indices have 16 bits.
const SLOTS_MAX: u32 = 1 << 15;

/// Writes the segments of a receive between these two offsets of a slot.
#[inline]
pub(super) fn write_segments(
    memory: &RingMemory,
    start: usize,
    end: usize,
    request: &RecvRequest<'_>,
) {
    let mut at = start;
    for sge in request.sges.iter().filter(|sge| sge.bytes > 0) {
        memory.write(at, segment(sge, sge.bytes));
        at += UNIT;
    }
    if at < end {
        memory.write(at, TERMINATOR);
    }
}

/// Checks that a receive fits in a slot.
#[inline]
pub(super) fn check(request: &RecvRequest<'_>, sges_max: usize) -> Result<(), PostRefusal> {
    if request.sges.len() > sges_max {
        return Err(PostRefusal::TooManySges);
    }
    if request.sges.iter().any(|sge| sge.bytes > SGE_BYTES_MAX) {
        return Err(PostRefusal::TooLong);
    }
    Ok(())
}

/// The limits with which a ring is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvLimits {
    pub(crate) requests_max: u32,
    pub(crate) sges_max: u32,
    /// The length of a slot in bytes.
    pub(crate) stride: u32,
}

#[derive(Debug)]
pub(crate) struct RecvRing {
    memory: RingMemory,
    record: Record,
    stride: usize,
    sges_max: usize,
    slots: u16,
    requests_max: u16,
    /// The numbers of receives posted and of receives completed, which wrap.
    posted: u16,
    done: u16,
    ids: Box<[u64]>,
}

impl RecvRing {
    #[cfg(test)]
    pub(crate) fn memory(&self) -> &RingMemory {
        &self.memory
    }

    /// A receive ring. `None` if the number of slots is no power of two or too large, or if the
    /// slots are too short.
    pub(crate) fn new(memory: RingMemory, record: Record, limits: RecvLimits) -> Option<Self> {
        let (stride, sges_max) = (limits.stride as usize, limits.sges_max as usize);
        let slots = u32::try_from(memory.bytes().checked_div(stride)?).ok()?;
        let is_right = slots.is_power_of_two() && slots <= SLOTS_MAX;
        if !is_right || stride < sges_max.max(1) * UNIT {
            return None;
        }
        let requests_max = limits.requests_max.min(slots) as u16;
        let (slots, ids) = (slots as u16, vec![0; slots as usize].into());
        let (posted, done) = (0, 0);
        Some(Self { memory, record, stride, sges_max, slots, requests_max, posted, done, ids })
    }

    /// Writes a receive, which the adapter does not see before [`RecvRing::ring`].
    #[inline]
    pub(crate) fn write(&mut self, request: &RecvRequest<'_>) -> Result<(), PostRefusal> {
        check(request, self.sges_max)?;
        if self.posted.wrapping_sub(self.done) >= self.requests_max {
            return Err(PostRefusal::Full);
        }
        let slot = usize::from(self.posted & (self.slots - 1));
        let start = slot * self.stride;
        write_segments(&self.memory, start, start + self.stride, request);
        self.ids[slot] = request.id;
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    #[inline]
    pub(crate) fn ring(&self) {
        self.record.set(Record::RECEIVE, self.posted.into());
    }

    /// Completes the receive with this index. Returns its request ID.
    #[inline]
    pub(crate) fn complete(&mut self, index: u16) -> u64 {
        self.done = self.done.wrapping_add(1);
        self.ids[usize::from(index & (self.slots - 1))]
    }

    /// Resets the ring to its state after creation. Posted receives are discarded.
    pub(crate) fn reset(&mut self) {
        (self.posted, self.done) = (0, 0);
        self.ring();
    }
}
