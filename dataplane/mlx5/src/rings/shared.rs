//! Shared receive queues.
//!
//! The slots are a linked list, whose links are in the slots. The adapter follows them from the
//! first slot, for as many slots as the doorbell record counts. A receive is written to the slot at
//! the head of the list. When a receive completes, its slot is linked after the tail, so slots may
//! be in any order. The tail itself is never filled, because its link must be written before the
//! adapter follows it.

use super::receive::{check, write_segments};
use crate::memory::{Record, RingMemory};
use crate::wqe::UNIT;
use pollux_verbs::{PostRefusal, RecvRequest};

/// The offset of the link in a slot: 16 bits of the first unit, which is zero otherwise.
const LINK_AT: usize = 2;

#[derive(Debug)]
pub(crate) struct SharedRing {
    memory: RingMemory,
    record: Record,
    stride: usize,
    sges_max: usize,
    head: u16,
    tail: u16,
    /// The number of receives posted, which wraps.
    posted: u16,
    slots: Box<[Slot]>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    id: u64,
    /// The next slot of the list.
    next: u16,
}

/// The list as libmlx5 has created it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedList {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// The length of a slot in bytes.
    pub(crate) stride: u32,
    pub(crate) sges_max: u32,
}

impl SharedRing {
    #[cfg(test)]
    pub(crate) fn memory(&self) -> &RingMemory {
        &self.memory
    }

    /// The ring of a list without posted receives. `None` if the slots are too short, or if the
    /// links leave the ring or do not lead from head to tail.
    pub(crate) fn new(memory: RingMemory, record: Record, list: SharedList) -> Option<Self> {
        let (stride, sges_max) = (list.stride as usize, list.sges_max as usize);
        let count = memory.bytes().checked_div(stride)?;
        let (head, tail) = (u16::try_from(list.head).ok()?, u16::try_from(list.tail).ok()?);
        if stride < UNIT + sges_max * UNIT || usize::from(tail) >= count {
            return None;
        }
        let link = |slot| memory.read_be16(slot * stride + LINK_AT);
        let slots: Box<[Slot]> = (0..count).map(|slot| Slot { id: 0, next: link(slot) }).collect();
        let mut at = head;
        for _ in 0..count {
            if at == tail {
                return Some(Self {
                    memory,
                    record,
                    stride,
                    sges_max,
                    head,
                    tail,
                    posted: 0,
                    slots,
                });
            }
            at = slots.get(usize::from(at))?.next;
        }
        None
    }

    /// Writes a receive, which the adapter does not see before [`SharedRing::ring`].
    #[inline]
    pub(crate) fn write(&mut self, request: &RecvRequest<'_>) -> Result<(), PostRefusal> {
        check(request, self.sges_max)?;
        if self.head == self.tail {
            return Err(PostRefusal::Full);
        }
        let slot = usize::from(self.head);
        let start = slot * self.stride;
        write_segments(&self.memory, start + UNIT, start + self.stride, request);
        self.slots[slot].id = request.id;
        self.head = self.slots[slot].next;
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    #[inline]
    pub(crate) fn ring(&self) {
        self.record.set(Record::RECEIVE, self.posted.into());
    }

    /// Completes the receive in this slot. Returns its request ID, or `None` if there is no such
    /// slot.
    #[inline]
    pub(crate) fn complete(&mut self, slot: u16) -> Option<u64> {
        let id = self.slots.get(usize::from(slot))?.id;
        let tail = usize::from(self.tail);
        self.memory.write_be32(tail * self.stride, slot.into());
        self.slots[tail].next = slot;
        self.tail = slot;
        Some(id)
    }
}
