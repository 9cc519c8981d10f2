//! The packets of two adapters, read by tshark.

use crate::pair::{Connection, Pair};
use pollux_fabric::link::Wire;
use pollux_referee::tshark::{DissectedFrame, dissect, judge};
use pollux_verbs::*;
use pollux_wire::address::{Gid, Guid};
use pollux_wire::units::Mtu;
use std::cell::RefCell;
use std::rc::Rc;

/// Packets, each with the end that sent it.
type Seen = Rc<RefCell<Vec<(usize, Vec<u8>)>>>;

/// Every packet of a world from now on.
fn tap(pair: &Pair) -> Seen {
    let seen = Seen::default();
    let into = seen.clone();
    pair.world.set_tap(Box::new(move |_, from, bytes: &[u8]| {
        into.borrow_mut().push((from, bytes.to_vec()));
    }));
    seen
}

/// Posts a request of side 0 and waits for its completion.
fn carry_out(pair: &mut Pair, op: SendOp, sges: &[Sge]) -> Completion {
    let side = &mut pair.sides[0];
    let (flags, data) = (SendFlags::SIGNALED, Data::Sges(sges));
    side.device.post_send(side.qp, &[SendRequest { id: 0, op, flags, data }]).unwrap();
    pair.wait(0)
}

fn post_recv(pair: &mut Pair, bytes: u32) {
    let side = &mut pair.sides[1];
    let sges = [side.sge(0, bytes)];
    side.device.post_recv(side.qp, &[RecvRequest { id: 0, sges: &sges }]).unwrap();
}

/// A message of three packets, one to a peer that is not ready, a read, an atomic, and a refusal:
/// PSNs, acknowledgements and syndromes are those of IBA 9.7.
#[test]
fn a_scripted_exchange() {
    let connection = Connection { psn: 100, mtu: Mtu::BYTES_256, ..Connection::default() };
    let mut pair = Pair::new(1, Wire::default(), &connection);
    let seen = tap(&pair);
    let sge = |pair: &Pair, bytes| [pair.sides[0].sge(0, bytes)];

    post_recv(&mut pair, 600);
    let three = sge(&pair, 600);
    assert_eq!(carry_out(&mut pair, SendOp::Send, &three).status, CompletionStatus::Success);
    // The peer has no receive for this message before its first transmission.
    let side = &mut pair.sides[0];
    let request = SendRequest {
        id: 0,
        op: SendOp::SendImm(5),
        flags: SendFlags::SIGNALED,
        data: Data::EMPTY,
    };
    side.device.post_send(side.qp, &[request]).unwrap();
    while seen.borrow().len() < 6 {
        assert!(pair.step());
    }
    post_recv(&mut pair, 0);
    assert_eq!(pair.wait(0).status, CompletionStatus::Success);
    let (remote, two) = (pair.sides[1].remote(0), sge(&pair, 300));
    carry_out(&mut pair, SendOp::Read(remote), &two);
    let eight = sge(&pair, 8);
    carry_out(&mut pair, SendOp::FetchAdd { remote, add: 1 }, &eight);
    let wrong = Remote { rkey: RKey(0xbad), ..remote };
    let refused = carry_out(&mut pair, SendOp::Write(wrong), &eight);
    assert_eq!(refused.status, CompletionStatus::RemoteAccess);

    // Opcode, PSN, and the kind and value of the syndrome if any. Side 1 answers.
    let script: &[(usize, u8, u32, &str, &str)] = &[
        (0, 0x00, 100, "", ""),
        (0, 0x01, 101, "", ""),
        (0, 0x02, 102, "", ""),
        (1, 0x11, 102, "0", ""),
        (0, 0x05, 103, "", ""),
        (1, 0x11, 103, "1", ""),
        (0, 0x05, 103, "", ""),
        (1, 0x11, 103, "0", ""),
        (0, 0x0c, 104, "", ""),
        (1, 0x0d, 104, "0", ""),
        (1, 0x0f, 105, "0", ""),
        (0, 0x14, 106, "", ""),
        (1, 0x12, 106, "0", ""),
        (0, 0x0a, 107, "", ""),
        (1, 0x11, 107, "3", "2"),
    ];
    let seen = seen.borrow();
    let from: Vec<usize> = seen.iter().map(|(from, _)| *from).collect();
    assert_eq!(from, script.iter().map(|row| row.0).collect::<Vec<_>>());
    let frames: Vec<DissectedFrame> = seen
        .iter()
        .zip(script)
        .enumerate()
        .map(|(nth, ((_, bytes), (_, opcode, psn, kind, code)))| {
            DissectedFrame::new(format!("packet {nth}"), bytes.clone())
                .expect("infiniband.bth.opcode", opcode)
                .expect("infiniband.bth.psn", psn)
                .expect("infiniband.aeth.syndrome.opcode", kind)
                .expect("infiniband.aeth.syndrome.error_code", code)
        })
        .collect();
    judge("a_scripted_exchange", &frames);
}

/// MigReq is 1 with one path, 0 while an alternate path is loaded, and 1 after the migration, at
/// both ends (IBA 17.2.8).
// req: iba-migration
#[test]
fn mig_req_reports_whether_the_sender_has_migrated() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let seen = tap(&pair);
    let mut frames = Vec::new();
    // A message and its acknowledgement.
    let mut talk = |pair: &mut Pair, mig_req: u8, next_header: &str| {
        post_recv(pair, 0);
        assert_eq!(carry_out(pair, SendOp::Send, &[]).status, CompletionStatus::Success);
        assert_eq!(seen.borrow().len(), 2);
        frames.extend(seen.take().into_iter().map(|(from, bytes)| {
            DissectedFrame::new(format!("a packet of {from}"), bytes)
                .expect("infiniband.bth.m", mig_req)
                .expect("infiniband.grh.nxthdr", next_header)
        }));
    };
    talk(&mut pair, 1, "");
    for (nth, side) in pair.sides.iter_mut().enumerate() {
        // The alternate path differs by its GRH.
        let dgid = Gid::new(Gid::DEFAULT_PREFIX, Guid(2 - nth as u64));
        let grh = Some(GlobalRoute::to(dgid, 1));
        let (_, found) = side.device.query_qp(side.qp).unwrap();
        let change = QpAttributes {
            alternate_path: found.path.map(|path| AddressVector { grh, ..path }),
            migration: Some(Migration::Rearm),
            ..QpAttributes::default()
        };
        side.device.modify_qp(side.qp, &change).unwrap();
    }
    talk(&mut pair, 0, "");
    let migration = Some(Migration::Migrated);
    let change = QpAttributes { migration, ..QpAttributes::default() };
    let [side, _] = &mut pair.sides;
    side.device.modify_qp(side.qp, &change).unwrap();
    talk(&mut pair, 1, "27");
    judge("mig_req_reports_whether_the_sender_has_migrated", &frames);
}

// req: iba-packets
#[test]
fn traffic_of_all_kinds_is_well_formed() {
    let mut frames = Vec::new();
    for mtu in [Mtu::BYTES_256, Mtu::BYTES_1024, Mtu::BYTES_4096] {
        for bytes in [0, 1, 255, 256, 257, 5000] {
            let connection = Connection { mtu, ..Connection::default() };
            let mut pair = Pair::new(1, Wire::default(), &connection);
            // Payload of ones: a heuristic dissector matches nothing in it.
            for side in &pair.sides {
                assert!(side.memory.write(0, &[0xff; 8192]));
            }
            let seen = tap(&pair);
            let (remote, sge) = (pair.sides[1].remote(0), [pair.sides[0].sge(0, bytes)]);
            for op in [SendOp::Send, SendOp::SendImm(1), SendOp::WriteImm(remote, 2)] {
                post_recv(&mut pair, bytes);
                carry_out(&mut pair, op, &sge);
            }
            for op in [SendOp::Write(remote), SendOp::Read(remote)] {
                carry_out(&mut pair, op, &sge);
            }
            frames.extend(seen.take().into_iter().map(|(_, bytes)| bytes));
        }
    }
    assert!(frames.len() > 300, "{} packets", frames.len());
    let bytes: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let Some(rows) = dissect("traffic_of_all_kinds_is_well_formed", &bytes, &[]) else { return };
    let malformed: Vec<_> = rows.iter().filter(|row| !row.malformed.is_empty()).collect();
    assert_eq!(malformed.len(), 0);
}
