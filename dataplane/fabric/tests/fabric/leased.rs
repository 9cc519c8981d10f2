//! Memory that is leased with a long message: receivers read only what its owner sent.

use crate::pair::{Connection, Pair};
use pollux_fabric::link::Wire;
use pollux_verbs::*;

const BYTES: usize = 4096;

fn post(pair: &mut Pair, op: SendOp) {
    let side = &mut pair.sides[0];
    let sges = [side.sge(0, BYTES as u32)];
    let (flags, data) = (SendFlags::SIGNALED, Data::Sges(&sges));
    side.device.post_send(side.qp, &[SendRequest { id: 1, op, flags, data }]).unwrap();
}

/// The first bytes of a side's memory.
fn content(pair: &Pair, side: usize) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    assert!(pair.sides[side].memory.read(0, &mut bytes));
    bytes
}

fn change(pair: &mut Pair, side: usize, change: &QpAttributes) {
    let side = &mut pair.sides[side];
    side.device.modify_qp(side.qp, change).unwrap();
}

fn err() -> QpAttributes {
    QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() }
}

#[test]
fn a_flushed_write_has_no_data_written_later() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let write = SendOp::Write(pair.sides[1].remote(0));
    post(&mut pair, write);
    change(&mut pair, 0, &err());
    assert!(pair.sides[0].memory.write(0, &[0x5e; BYTES]));
    assert!(pair.world.step());
    pair.sides[1].device.progress();
    assert!(!content(&pair, 1).contains(&0x5e));
}

#[test]
fn an_answer_has_no_data_written_after_the_lease_ended() {
    let no_access = QpAttributes { access: Some(Access::NONE), ..QpAttributes::default() };
    for ending in [err(), no_access] {
        let mut pair = Pair::new(1, Wire::default(), &Connection::default());
        let read = SendOp::Read(pair.sides[1].remote(0));
        post(&mut pair, read);
        assert!(pair.world.step());
        pair.sides[1].device.progress();
        change(&mut pair, 1, &ending);
        assert!(pair.sides[1].memory.write(0, &[0x5e; BYTES]));
        assert!(pair.world.step());
        pair.sides[0].device.progress();
        assert!(!content(&pair, 0).contains(&0x5e), "{:?}", ending.state);
    }
}

#[test]
fn an_answer_through_a_window_has_the_data_of_its_transmission() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let side = &mut pair.sides[1];
    let window = side.device.create_window(side.pd).unwrap().rkey;
    let rkey = RKey(window.0 + 1);
    let (address, region) = (side.region.address, side.region.lkey);
    let (bytes, access) = (BYTES as u64, Access::REMOTE_READ);
    let bind = SendOp::Bind(work::Bind { window, rkey, region, address, bytes, access });
    let local = |op| SendRequest { id: 2, op, flags: SendFlags::SIGNALED, data: Data::EMPTY };
    side.device.post_send(side.qp, &[local(bind)]).unwrap();
    post(&mut pair, SendOp::Read(Remote { address, rkey }));
    assert!(pair.world.step());
    let side = &mut pair.sides[1];
    side.device.progress();
    side.device.post_send(side.qp, &[local(SendOp::LocalInvalidate(rkey))]).unwrap();
    assert!(side.memory.write(0, &[0x5e; BYTES]));
    assert_eq!(pair.wait(0).status, CompletionStatus::Success);
    assert!(!content(&pair, 0).contains(&0x5e));
}

#[test]
fn the_last_region_of_all_is_leased_too() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let side = &mut pair.sides[0];
    let (pd, memory) = (side.pd, side.memory.clone());
    while let Ok(region) = side.device.register(pd, &memory, Access::ALL) {
        side.region = region;
    }
    let write = SendOp::Write(pair.sides[1].remote(0));
    post(&mut pair, write);
    assert_eq!(pair.wait(0).status, CompletionStatus::Success);
}
