//! Arbitrary packets into an adapter: counted, and nothing changes that they do not belong to.

use crate::pair::{Connection, Pair};
use pollux_fabric::link::fault::Dice;
use pollux_fabric::link::world::Wire;
use pollux_fabric::{Drop, Time};
use pollux_verbs::*;
use pollux_wire::packet::seal;
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

proptest! {
    #[test]
    fn any_octets_are_counted_drops(
        octets in proptest::collection::vec(any::<u8>(), 0..300),
        plausible: bool,
    ) {
        let mut octets = octets;
        if plausible && octets.len() >= 28 {
            // As if from the peer, to a queue pair of ours, with good CRCs.
            let words = (octets.len() - 2) / 4;
            octets.truncate(words * 4 + 2);
            octets[..8].copy_from_slice(&[0, 2, 0, 2, 0, words as u8, 0, 1]);
            octets[9] &= 0xf0;
            octets[10..12].copy_from_slice(&[0xff, 0xff]);
            octets[13..16].copy_from_slice(&[0, 0, 0x40]);
            seal(&mut octets);
        }
        let mut pair = Pair::new(1, Wire::default(), &Connection::default());
        let device = &mut pair.sides[1].device;
        device.adapter_mut().handle_packet(Time::START, &octets);
        device.progress();
    }
}

/// Packets of a real exchange, each with one octet changed and its CRCs made good again: whatever
/// they do, it is only what their queue pair allows, and the adapter goes on.
#[test]
fn packets_with_a_changed_octet_harm_nobody_else() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let seen = Rc::new(RefCell::new(Vec::new()));
    let into = seen.clone();
    pair.world.set_tap(Box::new(move |_, from, octets: &[u8]| {
        if from == 0 {
            into.borrow_mut().push(octets.to_vec());
        }
    }));
    let sges = [pair.sides[0].sge(0, 3000)];
    for op in [SendOp::Write(pair.sides[1].remote(64)), SendOp::Read(pair.sides[1].remote(64))] {
        let side = &mut pair.sides[0];
        let (flags, data) = (SendFlags::SIGNALED, Data::Sges(&sges));
        side.device.post_send(side.qp, &[SendRequest { id: 0, op, flags, data }]).unwrap();
        assert_eq!(pair.wait(0).status, CompletionStatus::Success);
    }
    let mut dice = Dice::new(7);
    for packet in seen.take() {
        for _ in 0..300 {
            let mut victim = Pair::new(1, Wire::default(), &Connection::default());
            let side = &mut victim.sides[1];
            let other = side.initialised(side.cq, side.cq);
            let mut changed = packet.clone();
            let at = dice.below(packet.len() as u64 - 6) as usize;
            changed[at] = dice.roll() as u8;
            seal(&mut changed);
            let side = &mut victim.sides[1];
            side.device.adapter_mut().handle_packet(Time::START, &changed);
            assert_eq!(side.device.query_qp(other).unwrap().0, QpState::Init);
        }
    }
}

#[test]
fn drops_are_counted_by_reason() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let adapter = pair.sides[1].device.adapter_mut();
    let mut good = vec![0, 2, 0, 2, 0, 7, 0, 1, 4, 0, 0xff, 0xff, 0, 0, 0, 0x99];
    good.resize(30, 0);
    // PktLen 6: BTH and ICRC, no payload.
    good.truncate(26);
    good[5] = 6;
    seal(&mut good);
    adapter.handle_packet(Time::START, &good);
    assert_eq!(adapter.port().drops.of(Drop::NoQp), 1);
    good[20] ^= 1;
    adapter.handle_packet(Time::START, &good);
    assert_eq!(adapter.port().drops.of(Drop::Crc), 1);
    adapter.handle_packet(Time::START, &[1, 2, 3]);
    assert_eq!(adapter.port().drops.of(Drop::Malformed("truncated")), 1);
    assert_eq!(adapter.port().drops.iter().map(|(_, count)| count).sum::<u64>(), 3);
}
