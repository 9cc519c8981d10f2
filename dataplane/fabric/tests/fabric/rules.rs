//! Rules of the transport that need a packet which no correct peer sends at that moment: a forged,
//! repeated or delayed one.

use crate::pair::{Connection, Pair, QKEY};
use pollux_fabric::DropReason;
use pollux_fabric::link::Wire;
use pollux_verbs::work::Bind;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::*;
use pollux_wire::psn::Psn;
use pollux_wire::units::Mtu;
use std::cell::RefCell;
use std::rc::Rc;

/// Packets, LRH to VCRC.
type Packets = Rc<RefCell<Vec<Vec<u8>>>>;

/// The packets that side `from` sends from now on.
fn sent_by(pair: &Pair, from: usize) -> Packets {
    let seen = Packets::default();
    let into = seen.clone();
    pair.world.set_tap(Box::new(move |_, end, bytes: &[u8]| {
        if end == from {
            into.borrow_mut().push(bytes.to_vec());
        }
    }));
    seen
}

/// Delivers a packet of zeros to `side`, as of its peer.
fn give(pair: &mut Pair, side: usize, opcode: Opcode, psn: Psn, ext: Extended, bytes: usize) {
    let to = &mut pair.sides[side];
    let dest_qp = to.device.qpn(to.qp).unwrap();
    let headers = Headers {
        lrh: Lrh { dlid: Lid(side as u16 + 1), slid: Lid(2 - side as u16), ..Lrh::default() },
        grh: None,
        bth: Bth { opcode, pkey: PKey::DEFAULT, dest_qp, psn, ..Bth::default() },
        rd: None,
        extended: ext,
    };
    let mut out = vec![0; bytes + 128];
    let len = headers.emit(&vec![0; bytes], &mut out).unwrap();
    out.truncate(len);
    let now = pair.world.now();
    to.device.adapter.handle_packet(now, &out);
}

/// Delivers an acknowledgement of any kind to side 0.
fn answer(pair: &mut Pair, psn: Psn, syndrome: Syndrome) {
    let opcode = Opcode::new(Transport::RC, Operation::ACKNOWLEDGE);
    let aeth = Extended::Aeth(Aeth { syndrome, msn: Psn::new(0) });
    give(pair, 0, opcode, psn, aeth, 0);
}

/// Posts a signaled request at a side.
fn post(pair: &mut Pair, side: usize, op: SendOp, bytes: u32) {
    let side = &mut pair.sides[side];
    let sges = [side.sge(0, bytes)];
    let request = SendRequest { id: 1, op, flags: SendFlags::SIGNALED, data: Data::Sges(&sges) };
    side.device.post_send(side.qp, &[request]).unwrap();
}

fn drops(pair: &Pair, side: usize, reason: DropReason) -> u64 {
    pair.sides[side].device.adapter.port().drops.of(reason)
}

/// The `nth` PSN of a connection, from 0.
fn psn(nth: u32) -> Psn {
    Psn::new(Connection::default().psn).plus(nth)
}

#[test]
fn a_long_message_waits_for_acknowledgements() {
    let connection =
        Connection { mtu: Mtu::BYTES_256, memory_bytes: 1 << 20, ..Connection::default() };
    let mut pair = Pair::new(1, Wire::default(), &connection);
    let sent = sent_by(&pair, 0);
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at / 256 + at) as u8).collect();
    assert!(pair.sides[0].memory.write(0, &bytes));
    let write = SendOp::Write(pair.sides[1].remote(0));
    post(&mut pair, 0, write, bytes.len() as u32);
    assert_eq!(sent.borrow().len(), 256);

    // An acknowledgement of a PSN that was not sent yet.
    answer(&mut pair, psn(256), Syndrome::Ack(Credits::UNLIMITED));
    assert_eq!(drops(&pair, 0, DropReason::Sequence), 1);
    pair.sides[0].device.progress();
    assert_eq!(sent.borrow().len(), 256);

    assert_eq!(pair.wait(0).status, CompletionStatus::Success);
    assert_eq!(sent.borrow().len(), bytes.len().div_ceil(256));
    let mut came = vec![0; bytes.len()];
    assert!(pair.sides[1].memory.read(0, &mut came));
    assert_eq!(came, bytes);
}

#[test]
fn a_duplicated_refusal_costs_one_retry() {
    let one = Retries::new(1).unwrap();
    let connection = Connection { retries: one, rnr_retries: one, ..Connection::default() };
    let gap = Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR);
    let not_ready = Syndrome::RnrNak(RnrTimer(1));
    for (refusal, status) in
        [(gap, CompletionStatus::RetryExceeded), (not_ready, CompletionStatus::RnrRetryExceeded)]
    {
        let mut pair = Pair::new(1, Wire::default(), &connection);
        pair.world.set_cut(true);
        let write = SendOp::Write(pair.sides[1].remote(0));
        post(&mut pair, 0, write, 8);
        answer(&mut pair, psn(0), refusal);
        answer(&mut pair, psn(0), refusal);
        assert_eq!(pair.sides[0].state(), QpState::Rts, "{refusal:?}");
        // The one retry is refused or unanswered again.
        while pair.sides[0].device.adapter.deadline().is_some() && pair.step() {
            answer(&mut pair, psn(0), refusal);
        }
        assert_eq!(pair.poll(0).unwrap().status, status);
    }
}

#[test]
fn a_fence_delays_local_operations() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let read = SendOp::Read(pair.sides[1].remote(0));
    let side = &mut pair.sides[0];
    // A region with a bound window cannot be deregistered: this shows whether the window is bound.
    let (memory, pd) = (side.memory.clone(), side.pd);
    let region = side.device.register(pd, &memory, Access::ALL).unwrap();
    let window = side.device.create_window(pd).unwrap().rkey;
    let rkey = RKey(window.0 + 1);
    let (address, bytes, access) = (region.address, 64, Access::REMOTE_READ);
    let bind = Bind { window, rkey, region: region.lkey, address, bytes, access };
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    let local = |op| SendRequest { id: 2, op, flags: fenced, data: Data::EMPTY };
    side.device.post_send(side.qp, &[local(SendOp::Bind(bind))]).unwrap();
    assert_eq!(pair.wait(0).kind, CompletionKind::Bind);

    post(&mut pair, 0, read, 64);
    let side = &mut pair.sides[0];
    side.device.post_send(side.qp, &[local(SendOp::LocalInvalidate(rkey))]).unwrap();
    assert!(matches!(side.device.deregister(region.lkey), Err(VerbsError::Busy { .. })));
    assert_eq!(pair.wait(0).kind, CompletionKind::Read);
    assert_eq!(pair.wait(0).kind, CompletionKind::LocalInvalidate);
    pair.sides[0].device.deregister(region.lkey).unwrap();
}

#[test]
fn a_duplicated_read_takes_no_resource() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let read = Opcode::new(Transport::RC, Operation::READ_REQUEST);
    let there = pair.sides[1].remote(0);
    let reth = Reth { va: there.address, rkey: there.rkey.0, dma_len: 8 };
    // The side answers four reads at once. No response leaves during the test.
    for nth in [0, 0, 0, 1, 0, 2, 1, 3] {
        give(&mut pair, 1, read, psn(nth), Extended::Reth(reth), 0);
    }
    assert_eq!(pair.sides[1].state(), QpState::Rts);
    let sent = sent_by(&pair, 1);
    pair.sides[1].device.progress();
    assert_eq!(sent.borrow().len(), 8);

    // A right that the peer has lost applies to repetitions, too.
    let side = &mut pair.sides[1];
    let none = QpAttributes { access: Some(Access::NONE), ..QpAttributes::default() };
    side.device.modify_qp(side.qp, &none).unwrap();
    give(&mut pair, 1, read, psn(3), Extended::Reth(reth), 0);
    pair.sides[1].device.progress();
    assert_eq!((sent.borrow().len(), drops(&pair, 1, DropReason::Access)), (8, 1));
}

/// The peer repeats a read faster than the answers leave.
#[test]
fn requests_beyond_the_limit_of_answers_are_counted_as_busy() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let read = Opcode::new(Transport::RC, Operation::READ_REQUEST);
    let there = pair.sides[1].remote(0);
    let reth = Reth { va: there.address, rkey: there.rkey.0, dma_len: 8 };
    for _ in 0..70 {
        give(&mut pair, 1, read, psn(0), Extended::Reth(reth), 0);
    }
    let of = |reason| drops(&pair, 1, reason);
    assert_eq!((of(DropReason::Busy), of(DropReason::Sequence)), (6, 0));
}

#[test]
fn a_message_that_begins_within_another_takes_its_receive() {
    let connection = Connection { qp_type: QpType::Uc, ..Connection::default() };
    let mut pair = Pair::new(1, Wire::default(), &connection);
    let side = &mut pair.sides[1];
    let sges = [side.sge(0, 4096)];
    side.device.post_recv(side.qp, &[RecvRequest { id: 7, sges: &sges }]).unwrap();
    let [first, only] =
        [Operation::SEND_FIRST, Operation::SEND_ONLY].map(|op| Opcode::new(Transport::UC, op));
    give(&mut pair, 1, first, psn(0), Extended::None, 1024);
    give(&mut pair, 1, only, psn(1), Extended::None, 12);
    let came = pair.poll(1).unwrap();
    assert_eq!((came.id, came.status, came.bytes), (7, CompletionStatus::Success, 12));
}

#[test]
fn a_port_that_is_down_sends_nothing() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let connection = Connection { qp_type, ..Connection::default() };
        let mut pair = Pair::new(1, Wire::default(), &connection);
        let sent = sent_by(&pair, 0);
        let write = SendOp::Write(pair.sides[1].remote(0));
        pair.sides[0].device.adapter.port_mut().state = PortState::DOWN;
        post(&mut pair, 0, write, 8);
        assert_eq!((sent.borrow().len(), drops(&pair, 0, DropReason::PortDown)), (0, 1));
        if qp_type == QpType::Uc {
            // The requester waits for no answer, so it reports no error.
            assert_eq!(pair.wait(0).status, CompletionStatus::Success);
            continue;
        }
        // The port is up again before the last retry, or stays down.
        pair.sides[0].device.adapter.port_mut().state = PortState::ACTIVE;
        assert_eq!(pair.wait(0).status, CompletionStatus::Success);
        pair.sides[0].device.adapter.port_mut().state = PortState::ARMED;
        post(&mut pair, 0, write, 8);
        assert_eq!(pair.wait(0).status, CompletionStatus::RetryExceeded);
    }
}

#[test]
fn a_write_longer_than_a_message_is_invalid() {
    // A range that is too long but may be requested is another error.
    for (dma_len, too_long) in [(1 << 31, false), ((1 << 31) + 1, true)] {
        let mut pair = Pair::new(1, Wire::default(), &Connection::default());
        let there = pair.sides[1].remote(0);
        let reth = Reth { va: there.address, rkey: there.rkey.0, dma_len };
        let write = Opcode::new(Transport::RC, Operation::WRITE_FIRST);
        give(&mut pair, 1, write, psn(0), Extended::Reth(reth), 1024);
        let side = &mut pair.sides[1];
        let event = match too_long {
            true => AsyncEvent::QpRequestError(side.qp),
            false => AsyncEvent::QpAccessError(side.qp),
        };
        let told = std::iter::from_fn(|| side.device.async_event()).any(|found| found == event);
        assert!(told, "{event:?} of {dma_len:#x} bytes");
    }
}

#[test]
fn a_datagram_longer_than_the_port_carries_is_dropped() {
    for packets_only in [false, true] {
        let connection = Connection { qp_type: QpType::Ud, ..Connection::default() };
        let wire = Wire { packets_only, ..Wire::default() };
        let mut pair = Pair::new(1, wire, &connection);
        pair.sides[1].device.adapter.port_mut().mtu = Mtu::BYTES_256;
        let side = &mut pair.sides[1];
        let sges = [side.sge(0, 1024)];
        side.device.post_recv(side.qp, &[RecvRequest { id: 7, sges: &sges }]).unwrap();
        let qpn = side.device.qpn(side.qp).unwrap();
        let ah = pair.sides[0].ah(2);
        let to = Destination { ah, qpn, qkey: QKEY };
        for bytes in [257, 256] {
            post(&mut pair, 0, SendOp::Datagram(to), bytes);
        }
        assert_eq!(pair.wait(1).bytes, 40 + 256);
        assert_eq!(drops(&pair, 1, DropReason::Length), 1);
    }
}

#[test]
fn a_mask_control_has_three_bits() {
    let connection = Connection { qp_type: QpType::Ud, ..Connection::default() };
    let mut pair = Pair::new(1, Wire::default(), &connection);
    // A manager may set any value; 203 is 3 in three bits.
    pair.sides[1].device.adapter.port_mut().lmc = 203;
    let side = &mut pair.sides[1];
    let sges = [side.sge(0, 1024)];
    side.device.post_recv(side.qp, &[RecvRequest { id: 7, sges: &sges }]).unwrap();
    side.ah(2);
    let qpn = side.device.qpn(side.qp).unwrap();
    let ah = pair.sides[0].ah(7);
    post(&mut pair, 0, SendOp::Datagram(Destination { ah, qpn, qkey: QKEY }), 8);
    assert_eq!(pair.wait(1).from.unwrap().dlid_path_bits, 7);
}

#[test]
fn an_overrun_completion_queue_fails_all_its_queue_pairs() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let side = &mut pair.sides[1];
    let (cq, other) = (side.device.create_cq(1).unwrap(), side.cq);
    let mut init = |send_cq, recv_cq| side.initialised(send_cq, recv_cq);
    let (one, two, apart) = (init(cq, cq), init(cq, other), init(other, other));
    let recv = |id| RecvRequest { id, sges: &[] };
    side.device.post_recv(one, &[recv(1), recv(2), recv(3)]).unwrap();
    side.device.post_recv(two, &[recv(4)]).unwrap();
    let err = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
    side.device.modify_qp(one, &err).unwrap();

    let events: Vec<_> = std::iter::from_fn(|| side.device.async_event()).collect();
    assert_eq!(events, [AsyncEvent::CqError(cq)]);
    let states = [one, two, apart].map(|qp| side.device.query_qp(qp).unwrap().0);
    assert_eq!(states, [QpState::Err, QpState::Err, QpState::Init]);
    // Earlier completions are there, and later ones are not, though the queue has space again.
    assert_eq!(side.poll_at(cq).unwrap().id, 1);
    side.device.post_recv(one, &[recv(5)]).unwrap();
    assert!(side.poll_at(cq).is_none());
    assert_eq!(side.poll().unwrap().id, 4);
    assert!(side.device.async_event().is_none());
}

#[test]
fn armed_for_any_stays_armed_for_any() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let write = SendOp::Write(pair.sides[1].remote(0));
    let side = &mut pair.sides[0];
    side.device.arm(side.cq, Arm::Any).unwrap();
    side.device.arm(side.cq, Arm::Solicited).unwrap();
    post(&mut pair, 0, write, 8);
    while !pair.world.is_quiet() {
        pair.step();
    }
    let side = &mut pair.sides[0];
    assert_eq!(side.device.wait(std::time::Duration::from_millis(1)), Ok(Some(side.cq)));
}

#[test]
fn answers_and_requests_alternate() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let sent = sent_by(&pair, 1);
    let there = pair.sides[1].remote(0);
    let reth = Reth { va: there.address, rkey: there.rkey.0, dma_len: 20 << 10 };
    let read = Opcode::new(Transport::RC, Operation::READ_REQUEST);
    give(&mut pair, 1, read, psn(0), Extended::Reth(reth), 0);
    let write = SendOp::Write(pair.sides[0].remote(0));
    post(&mut pair, 1, write, 10 << 10);
    let is_request = |bytes: &Vec<u8>| {
        let packet = Packet::parse(bytes).unwrap();
        packet.bth().opcode.is_request()
    };
    let order: Vec<bool> = sent.borrow().iter().map(is_request).collect();
    assert_eq!(order.len(), 30);
    assert!(order[..20].chunks(2).all(|two| two[0] != two[1]), "{order:?}");
}

#[test]
fn a_sender_receives_only_groups_that_it_has_joined() {
    for packets_only in [false, true] {
        let connection = Connection { qp_type: QpType::Ud, ..Connection::default() };
        let wire = Wire { packets_only, ..Wire::default() };
        let mut pair = Pair::new(1, wire, &connection);
        // Two groups that differ in one byte of the MGID and have the same MLID.
        let group = |last| Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let (ours, other, mlid) = (group(1), group(2), Lid(0xc005));
        let side = &mut pair.sides[0];
        side.device.attach_multicast(side.qp, ours, mlid).unwrap();
        let sges = [side.sge(0, 1024)];
        side.device.post_recv(side.qp, &[RecvRequest { id: 7, sges: &sges }]).unwrap();
        for mgid in [other, ours] {
            let ah = pair.sides[0].ah_to_group(mgid, mlid);
            let to = Destination { ah, qpn: Qpn::MULTICAST, qkey: QKEY };
            post(&mut pair, 0, SendOp::Datagram(to), 8);
        }
        let (first, second, third) = (pair.wait(0), pair.wait(0), pair.wait(0));
        let kinds = [first.kind, second.kind, third.kind];
        assert_eq!(kinds, [CompletionKind::Send, CompletionKind::Send, CompletionKind::Recv]);
        assert_eq!(drops(&pair, 0, DropReason::NoMember), 0);
    }
}

// req: iba-uc
#[test]
fn an_unreliable_message_without_its_middle_is_dropped_and_its_receive_takes_the_next() {
    let (qp_type, mtu) = (QpType::Uc, Mtu::BYTES_256);
    let connection = Connection { qp_type, mtu, ..Connection::default() };
    let mut pair = Pair::new(1, Wire::default(), &connection);
    let side = &mut pair.sides[1];
    let sges = [side.sge(0, 1024)];
    side.device.post_recv(side.qp, &[RecvRequest { id: 7, sges: &sges }]).unwrap();
    let parts = [Operation::SEND_FIRST, Operation::SEND_MIDDLE, Operation::SEND_LAST];
    let mut give_part = |nth: u32| {
        let opcode = Opcode::new(Transport::UC, parts[nth as usize % 3]);
        give(&mut pair, 1, opcode, psn(nth), Extended::None, 256);
        pair.sides[1].device.progress();
        pair.poll(1).map(|completion| (completion.id, completion.status, completion.bytes))
    };
    assert_eq!([0, 2].map(&mut give_part), [None, None], "the second of three packets is lost");
    let complete = Some((7, CompletionStatus::Success, 3 * 256));
    assert_eq!([3, 4, 5].map(&mut give_part), [None, None, complete]);
}
