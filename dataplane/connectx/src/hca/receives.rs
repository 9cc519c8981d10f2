//! Receives: the program's rings of receive WQEs, taken when their doorbell records advance.

use super::Hca;
use crate::cqe::WorkId;
use crate::wqe::{NO_SGE, SGES_MAX, be16, parse_recv};
use pollux_hca::Link;
use pollux_verbs::{Device, RecvRequest};

impl<L: Link> Hca<L> {
    pub(super) fn take_receives(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.srq_numbers.len() {
            let number = self.srq_numbers[index];
            any |= self.take_srq_receives(number);
        }
        for index in 0..self.qp_numbers.len() {
            let number = self.qp_numbers[index];
            any |= self.take_qp_receives(number);
        }
        any
    }

    fn take_srq_receives(&mut self, number: u32) -> bool {
        let Some(srq) = self.srqs.get_mut(number) else { return false };
        let posted = srq.record.word(0) as u16;
        let before = srq.taken;
        while srq.taken != posted {
            let at = srq.head as usize * srq.slot_bytes;
            let mut slot = [0; 16 + 16 * SGES_MAX];
            let slot = &mut slot[..srq.slot_bytes.min(16 + 16 * SGES_MAX)];
            if !srq.ring.read(at, slot) {
                break;
            }
            let mut sges = [NO_SGE; SGES_MAX];
            let count = parse_recv(&slot[16..], &mut sges);
            let id = WorkId::Recv { index: srq.head as u16 }.to_u64();
            let request = RecvRequest { id, sges: &sges[..count] };
            if self.device.post_srq_recv(srq.srq, &[request]).is_err() {
                break;
            }
            srq.head = u32::from(be16(slot, 2)) & (srq.slots - 1);
            srq.taken = srq.taken.wrapping_add(1);
        }
        srq.taken != before
    }

    fn take_qp_receives(&mut self, number: u32) -> bool {
        let Some(qp) = self.qps.get_mut(number) else { return false };
        let (Some(ring), Some(before)) = (&qp.recv_ring, qp.intake.next_recv()) else {
            return false;
        };
        let posted = qp.record.word(0) as u16;
        let mut index = before;
        while index != posted {
            let at = (u32::from(index) & (qp.recv_slots - 1)) as usize * qp.recv_slot_bytes;
            let mut slot = [0; 16 * SGES_MAX];
            let slot = &mut slot[..qp.recv_slot_bytes.min(16 * SGES_MAX)];
            if !ring.read(at, slot) {
                break;
            }
            let mut sges = [NO_SGE; SGES_MAX];
            let count = parse_recv(slot, &mut sges);
            let id = WorkId::Recv { index }.to_u64();
            let request = RecvRequest { id, sges: &sges[..count] };
            if self.device.post_recv(qp.qp, &[request]).is_err() {
                break;
            }
            qp.intake.take_recv();
            index = index.wrapping_add(1);
        }
        index != before
    }
}
