//! Receives that a consumer posts to memory of its own: the adapter fetches them when it needs
//! them.

use crate::pair::{Connection, Pair, qp_init};
use pollux_fabric::link::Wire;
use pollux_hca::recv_source::RecvSource;
use pollux_verbs::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The memory that receives are posted to.
#[derive(Clone, Debug, Default)]
struct Posted(Arc<Mutex<VecDeque<(u64, Sge)>>>);

impl RecvSource for Posted {
    fn fetch(&mut self, count_max: usize, take: &mut dyn FnMut(&RecvRequest<'_>)) {
        let mut posted = self.0.lock().unwrap();
        let count = count_max.min(posted.len());
        for (id, sge) in posted.drain(..count) {
            take(&RecvRequest { id, sges: &[sge] });
        }
    }

    fn reset(&mut self) {
        self.0.lock().unwrap().clear();
    }
}

impl Posted {
    fn post(&self, pair: &Pair, ids: std::ops::Range<u64>) {
        let sge = pair.sides[1].sge(0, 64);
        self.0.lock().unwrap().extend(ids.map(|id| (id, sge)));
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

fn pair(qp_type: QpType) -> (Pair, Posted) {
    let connection = Connection { qp_type, ..Connection::default() };
    let mut pair = Pair::new(1, Wire::default(), &connection);
    let (posted, qp) = (Posted::default(), pair.sides[1].qp);
    pair.sides[1].device.adapter.set_recv_source(qp, Box::new(posted.clone()));
    (pair, posted)
}

fn send(pair: &mut Pair, id: u64) {
    let side = &mut pair.sides[0];
    let data = [side.sge(0, 32)];
    let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
    let request = SendRequest { id, op, flags, data: Data::Sges(&data) };
    side.device.post_send(side.qp, &[request]).unwrap();
}

#[test]
fn a_message_finds_receives_that_were_posted_after_the_last_progress() {
    for qp_type in [QpType::Uc, QpType::Rc] {
        let (mut pair, posted) = pair(qp_type);
        while pair.step() {}
        // An unreliable connection loses a message that finds no receive.
        for round in 0..3 {
            posted.post(&pair, round * 10..round * 10 + 2);
            for id in round * 10..round * 10 + 2 {
                send(&mut pair, id);
                let completion = pair.wait(1);
                assert_eq!((completion.id, completion.bytes), (id, 32), "{qp_type:?}");
                assert_eq!(completion.status, CompletionStatus::Success);
            }
        }
        assert_eq!(posted.len(), 0);
    }
}

#[test]
fn no_more_is_fetched_than_the_queue_takes() {
    let (mut pair, posted) = pair(QpType::Rc);
    let count_max =
        u64::from(qp_init(QpType::Rc, pair.sides[1].pd, pair.sides[1].cq).recv_requests_max);
    posted.post(&pair, 0..count_max + 5);
    send(&mut pair, 0);
    assert_eq!(pair.wait(1).id, 0);
    assert_eq!(posted.len(), 5);
}

#[test]
fn a_queue_in_error_flushes_all_that_was_and_is_posted() {
    let (mut pair, posted) = pair(QpType::Rc);
    posted.post(&pair, 0..2);
    let qp = pair.sides[1].qp;
    let change = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
    let device = &mut pair.sides[1].device;
    device.modify_qp(qp, &change(QpState::Err)).unwrap();
    assert!(!device.adapter.flush_receives(qp));
    posted.post(&pair, 2..3);
    assert!(pair.sides[1].device.adapter.flush_receives(qp));
    for id in 0..3 {
        let completion = pair.wait(1);
        assert_eq!((completion.id, completion.status), (id, CompletionStatus::Flushed));
    }
    posted.post(&pair, 3..5);
    pair.sides[1].device.modify_qp(qp, &change(QpState::Reset)).unwrap();
    assert_eq!((posted.len(), pair.poll(1)), (0, None));
}

#[test]
fn a_shared_queue_reports_its_limit_only_when_fewer_are_posted() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let posted = Posted::default();
    let side = &mut pair.sides[1];
    let srq = side.device.create_srq(side.pd, 16, 1).unwrap();
    side.device.adapter.set_srq_source(srq, Box::new(posted.clone()));
    let init = QpInit { srq: Some(srq), ..qp_init(QpType::Rc, side.pd, side.cq) };
    let before = std::mem::replace(&mut side.qp, side.device.create_qp(&init).unwrap());
    side.device.destroy_qp(before).unwrap();
    let qpns = [0, 1].map(|nth| pair.sides[nth].device.qpn(pair.sides[nth].qp).unwrap());
    let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
    let qp = pair.sides[0].qp;
    pair.sides[0].device.modify_qp(qp, &reset).unwrap();
    for (side, peer) in [(0, 1), (1, 0)] {
        let lid = peer as u16 + 1;
        crate::pair::connect(&mut pair.sides[side], qpns[peer], lid, &Connection::default());
    }
    posted.post(&pair, 0..1);
    pair.sides[1].device.set_srq_limit(srq, 2).unwrap();
    // Fetched one; the others are posted meanwhile.
    posted.post(&pair, 1..3);
    let mut events = Vec::new();
    for id in 0..2 {
        send(&mut pair, id);
        assert_eq!(pair.wait(1).id, id);
        events.extend(pair.sides[1].device.async_event());
        events.retain(|event| !matches!(event, AsyncEvent::ConnectionEstablished(_)));
        let limit = AsyncEvent::SrqLimitReached(srq);
        assert_eq!(events.contains(&limit), id == 1, "{events:?}");
    }
}
