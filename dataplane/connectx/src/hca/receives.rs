//! Receives: the program's rings of receive WQEs, fetched when their doorbell records have
//! advanced.

use super::Hca;
use crate::cqe::WorkId;
use crate::objects::{EMPTY_SLOT, NEXT, Record, RecvSlots};
use crate::wqe::{NO_SGE, SGES_MAX, be16, parse_recv};
use pollux_hca::Link;
use pollux_hca::recv_source::RecvSource;
use pollux_verbs::RecvRequest;

/// The receive ring of a queue pair: slots in turn.
#[derive(Debug)]
pub(crate) struct RecvRing {
    pub(crate) slots: RecvSlots,
    pub(crate) record: Record,
    pub(crate) taken: u16,
}

impl RecvSource for RecvRing {
    fn fetch(&mut self, count_max: usize, take: &mut dyn FnMut(&RecvRequest<'_>)) {
        let posted = self.record.word(0) as u16;
        for _ in 0..count_max.min(posted.wrapping_sub(self.taken).into()) {
            let (index, mut slot) = (self.taken, EMPTY_SLOT);
            let Some(slot) = self.slots.read(index, &mut slot) else { return };
            pass_on(index, slot, take);
            self.taken = index.wrapping_add(1);
        }
    }

    fn reset(&mut self) {
        self.taken = 0;
    }
}

/// The ring of a shared receive queue: a list of slots, each with the number of the next.
#[derive(Debug)]
pub(crate) struct SrqRing {
    pub(crate) slots: RecvSlots,
    pub(crate) record: Record,
    /// The next slot to take, and the number taken.
    pub(crate) head: u16,
    pub(crate) taken: u16,
}

impl RecvSource for SrqRing {
    fn fetch(&mut self, count_max: usize, take: &mut dyn FnMut(&RecvRequest<'_>)) {
        let posted = self.record.word(0) as u16;
        for _ in 0..count_max.min(posted.wrapping_sub(self.taken).into()) {
            let mut slot = EMPTY_SLOT;
            let Some(slot) = self.slots.read(self.head, &mut slot) else { return };
            pass_on(self.head, &slot[NEXT..], take);
            self.head = be16(slot, 2) & (self.slots.count - 1) as u16;
            self.taken = self.taken.wrapping_add(1);
        }
    }

    /// A shared queue has no reset.
    fn reset(&mut self) {}
}

fn pass_on(index: u16, segments: &[u8], take: &mut dyn FnMut(&RecvRequest<'_>)) {
    let mut sges = [NO_SGE; SGES_MAX];
    let count = parse_recv(segments, &mut sges);
    take(&RecvRequest { id: WorkId::Recv { index }.to_u64(), sges: &sges[..count] });
}

impl<L: Link> Hca<L> {
    /// Flushes receives that were posted to queue pairs in error.
    pub(super) fn flush_receives(&mut self) -> bool {
        let adapter = &mut self.device.adapter;
        self.qps.iter().fold(false, |any, (_, qp)| adapter.flush_receives(qp.qp) | any)
    }
}
