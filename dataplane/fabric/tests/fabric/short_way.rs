//! The fast path has the behavior of the slow path in corner cases.

use crate::pair::{Connection, Pair, QKEY, connect, qp_init, side};
use crate::pair_world::World;
use pollux_fabric::link::FrameSink;
use pollux_fabric::link::Wire;
use pollux_verbs::*;
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::packet::{Opcode, Operation, Transport};
use pollux_wire::units::TimeCode;

fn request<'a>(op: SendOp, sges: &'a [Sge]) -> SendRequest<'a> {
    SendRequest { id: 1, op, flags: SendFlags::SIGNALED, data: Data::Sges(sges) }
}

/// A datagram from side 0 to side 1.
fn datagram(pair: &mut Pair) -> SendOp {
    let qpn = pair.sides[1].device.qpn(pair.sides[1].qp).unwrap();
    let ah = pair.sides[0].ah(2);
    SendOp::Datagram(Destination { ah, qpn, qkey: QKEY })
}

fn reset() -> QpAttributes {
    QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() }
}

#[test]
fn sends_that_overrun_their_completion_queue_end_their_queue_pair() {
    for (qp_type, packets_only) in
        [(QpType::Ud, false), (QpType::Ud, true), (QpType::Uc, false), (QpType::Uc, true)]
    {
        let connection = Connection { qp_type, ..Connection::default() };
        let mut pair = Pair::new(1, Wire { packets_only, ..Wire::default() }, &connection);
        let op = if qp_type == QpType::Ud { datagram(&mut pair) } else { SendOp::Send };
        let side = &mut pair.sides[0];
        let sges = [side.sge(0, 8)];
        // One more than the capacity of the queue.
        for _ in 0..=1024 {
            side.device.post_send(side.qp, &[request(op, &sges)]).unwrap();
        }
        side.device.progress();
        assert_eq!(side.state(), QpState::Err, "{qp_type:?}, packets only: {packets_only}");
    }
}

#[test]
fn a_scatter_entry_is_refused_by_a_queue_without_entries() {
    let connection = Connection { qp_type: QpType::Ud, ..Connection::default() };
    let mut pair = Pair::new(1, Wire::default(), &connection);
    let op = datagram(&mut pair);
    let side = &mut pair.sides[0];
    let init = QpInit { send_sges_max: 0, ..qp_init(QpType::Ud, side.pd, side.cq) };
    side.qp = side.device.create_qp(&init).unwrap();
    connect(side, Qpn(0), 2, &connection);
    let sges = [side.sge(0, 8)];
    let posted = side.device.post_send(side.qp, &[request(op, &sges)]);
    assert_eq!(posted.unwrap_err().refusal, PostRefusal::TooManySges);
}

#[test]
fn a_later_timer_does_not_hide_an_earlier_one() {
    let slow = Connection { timeout: TimeCode(20), ..Connection::default() };
    let mut pair = Pair::new(1, Wire::default(), &slow);
    let write = SendOp::Write(pair.sides[1].remote(0));
    let sges = [pair.sides[0].sge(0, 8)];
    let side = &mut pair.sides[0];
    side.device.post_send(side.qp, &[request(write, &sges)]).unwrap();
    assert_eq!(pair.wait(0).status, CompletionStatus::Success);

    let peer = pair.sides[1].device.qpn(pair.sides[1].qp).unwrap();
    let quick = Connection { timeout: TimeCode(1), retries: Retries::NONE, ..slow };
    let side = &mut pair.sides[0];
    side.device.modify_qp(side.qp, &reset()).unwrap();
    connect(side, peer, 2, &quick);
    pair.world.set_cut(true);
    let start = pair.world.now().nanos();
    let side = &mut pair.sides[0];
    side.device.post_send(side.qp, &[request(SendOp::Send, &sges)]).unwrap();
    assert_eq!(pair.wait(0).status, CompletionStatus::RetryExceeded);
    assert!(pair.world.now().nanos() - start < 20_000, "8192 ns and some steps");
}

#[test]
fn received_messages_are_acknowledged_before_the_queue_pair_is_destroyed() {
    for (destroys, packets_only) in [(false, false), (false, true), (true, false), (true, true)] {
        let wire = Wire { packets_only, ..Wire::default() };
        let mut pair = Pair::new(1, wire, &Connection::default());
        let [a, b] = &mut pair.sides;
        let (from, to) = ([a.sge(0, 8)], [b.sge(0, 8)]);
        b.device.post_recv(b.qp, &[RecvRequest { id: 2, sges: &to }]).unwrap();
        a.device.post_send(a.qp, &[request(SendOp::Send, &from)]).unwrap();
        assert!(pair.world.step());
        assert_eq!(pair.poll(1).unwrap().status, CompletionStatus::Success);
        let b = &mut pair.sides[1];
        if destroys {
            b.device.destroy_qp(b.qp).unwrap();
        } else {
            b.device.modify_qp(b.qp, &reset()).unwrap();
        }
        assert_eq!(pair.wait(0).status, CompletionStatus::Success, "destroys: {destroys}");
    }
}

#[test]
fn a_datagram_reports_the_path_bits_of_its_destination() {
    for packets_only in [false, true] {
        let connection = Connection { qp_type: QpType::Ud, ..Connection::default() };
        let mut pair = Pair::new(1, Wire { packets_only, ..Wire::default() }, &connection);
        let port = pair.sides[1].device.adapter.port_mut();
        (port.lid, port.lmc) = (Lid(3), 1);
        let op = datagram(&mut pair);
        let SendOp::Datagram(to) = op else { unreachable!("it is one") };
        let op = SendOp::Datagram(Destination { ah: pair.sides[0].ah(3), ..to });
        let [a, b] = &mut pair.sides;
        let (from, into) = ([a.sge(0, 8)], [b.sge(0, 64)]);
        b.device.post_recv(b.qp, &[RecvRequest { id: 2, sges: &into }]).unwrap();
        a.device.post_send(a.qp, &[request(op, &from)]).unwrap();
        assert_eq!(pair.wait(1).from.unwrap().dlid_path_bits, 1);
    }
}

#[test]
fn nothing_unreliable_is_acknowledged() {
    let connection = Connection { qp_type: QpType::Uc, ..Connection::default() };
    let (world, [mut peer, link]) = World::new(1, Wire::default());
    let mut b = side(link, 2, &connection);
    connect(&mut b, Qpn(0x40), 1, &connection);
    let sges = [b.sge(0, 8)];
    b.device.post_recv(b.qp, &[RecvRequest { id: 2, sges: &sges }]).unwrap();
    let opcode = Opcode::new(Transport::UC, Operation::SEND_ONLY).0;
    let qpn = b.device.qpn(b.qp).unwrap();
    // A complete message that requests an acknowledgement, which this service does not have.
    let flags = 1 << 9 | 1 << 10;
    let first = u64::from(opcode) | flags | 0xffff << 16 | u64::from(qpn.0) << 32;
    let second = u64::from(connection.psn) | 2 << 32 | 1 << 48;
    assert!(peer.send_message(&[first, second, 1], 8, |bytes| bytes.fill(1)));
    assert!(world.step());
    assert_eq!(b.poll().unwrap().status, CompletionStatus::Success);
    b.device.progress();
    assert!(world.is_quiet());
}
