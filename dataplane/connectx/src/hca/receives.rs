//! Receives. The adapter fetches receive WQEs from the program's rings, up to the index in the
//! doorbell record.

use super::Hca;
use crate::cqe::WorkId;
use crate::objects::{NEXT, Record, RecvSlots};
use crate::wqe::{be16, recv_segments};
use pollux_hca::Link;
use pollux_hca::recv_source::RecvSource;
use pollux_verbs::{RecvRequest, Sge};

/// The receive ring of a queue pair. Slots are used in order.
#[derive(Debug)]
pub(crate) struct RecvRing {
    slots: RecvSlots,
    record: Record,
    /// The number of fetched WQEs, modulo 2^16.
    taken: u16,
    slot: SlotParts,
}

impl RecvRing {
    pub(crate) fn new(slots: RecvSlots, record: Record) -> Self {
        Self { slots, record, taken: 0, slot: SlotParts::default() }
    }
}

impl RecvSource for RecvRing {
    fn fetch(&mut self, count_max: usize, take: &mut dyn FnMut(&RecvRequest<'_>)) {
        let posted = self.record.word(0) as u16;
        for _ in 0..count_max.min(posted.wrapping_sub(self.taken).into()) {
            let index = self.taken;
            if !self.slots.read(index, &mut self.slot.bytes) {
                return;
            }
            self.slot.pass_on(index, 0, take);
            self.taken = index.wrapping_add(1);
        }
    }

    fn reset(&mut self) {
        self.taken = 0;
    }
}

/// The ring of a shared receive queue: a linked list of slots, each of which contains the index of
/// the next one.
#[derive(Debug)]
pub(crate) struct SrqRing {
    slots: RecvSlots,
    record: Record,
    /// The index of the next slot to fetch.
    head: u16,
    /// The number of fetched WQEs, modulo 2^16.
    taken: u16,
    slot: SlotParts,
}

impl SrqRing {
    pub(crate) fn new(slots: RecvSlots, record: Record) -> Self {
        Self { slots, record, head: 0, taken: 0, slot: SlotParts::default() }
    }
}

impl RecvSource for SrqRing {
    fn fetch(&mut self, count_max: usize, take: &mut dyn FnMut(&RecvRequest<'_>)) {
        let posted = self.record.word(0) as u16;
        for _ in 0..count_max.min(posted.wrapping_sub(self.taken).into()) {
            if !self.slots.read(self.head, &mut self.slot.bytes) {
                return;
            }
            self.slot.pass_on(self.head, NEXT, take);
            self.head = be16(&self.slot.bytes, 2) & (self.slots.count - 1) as u16;
            self.taken = self.taken.wrapping_add(1);
        }
    }

    /// Shared receive queues have no RESET state.
    fn reset(&mut self) {}
}

/// Buffers for a slot and its segments, which are reused.
#[derive(Debug, Default)]
struct SlotParts {
    bytes: Vec<u8>,
    sges: Vec<Sge>,
}

impl SlotParts {
    /// Passes the receive in the buffer to `take`. Its segments begin at the offset `at`.
    fn pass_on(&mut self, index: u16, at: usize, take: &mut dyn FnMut(&RecvRequest<'_>)) {
        self.sges.clear();
        self.sges.extend(recv_segments(&self.bytes[at..]));
        take(&RecvRequest { id: WorkId::Recv { index }.to_u64(), sges: &self.sges });
    }
}

impl<L: Link> Hca<L> {
    /// Flushes receives that were posted to queue pairs in state ERR.
    pub(super) fn flush_receives(&mut self) -> bool {
        let adapter = &mut self.device.adapter;
        self.qps.iter().fold(false, |any, (_, qp)| adapter.flush_receives(qp.qp) | any)
    }
}
