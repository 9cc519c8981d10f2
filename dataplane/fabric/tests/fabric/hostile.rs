//! Arbitrary packets to an adapter: they are counted, and change no other queue pair.

use crate::pair::{Connection, Pair, connect, side};
use crate::pair_world::World;
use pollux_fabric::link::Wire;
use pollux_fabric::link::fault::SeededRng;
use pollux_fabric::link::{FrameSink, Link};
use pollux_fabric::{DropReason, SoftDevice, Time};
use pollux_verbs::*;
use pollux_wire::address::Qpn;
use pollux_wire::packet::{ExtendedKind, Opcode, Operation, Transport, seal};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// The drops of an adapter, for all reasons.
fn dropped<L: Link>(device: &SoftDevice<L>) -> u64 {
    device.adapter.port().drops.iter().map(|(_, count)| count).sum()
}

proptest! {
    #[test]
    fn bytes_that_are_no_packet_are_dropped_and_counted_once(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut pair = Pair::new(1, Wire::default(), &Connection::default());
        let device = &mut pair.sides[1].device;
        device.adapter.handle_packet(Time::START, &bytes);
        device.progress();
        prop_assert_eq!(dropped(device), 1);
    }

    /// A packet as of the peer, to a queue pair of side 0, with valid CRCs. The queue pair defines
    /// its effect; a packet that it does not take is counted.
    #[test]
    fn packets_of_any_content_are_taken_or_dropped_and_counted_once(
        bytes in proptest::collection::vec(any::<u8>(), 28..300),
    ) {
        let mut bytes = bytes;
        let words = (bytes.len() - 2) / 4;
        bytes.truncate(words * 4 + 2);
        bytes[..8].copy_from_slice(&[0, 2, 0, 2, 0, words as u8, 0, 1]);
        bytes[9] &= 0xf0;
        bytes[10..12].copy_from_slice(&[0xff, 0xff]);
        bytes[13..16].copy_from_slice(&[0, 0, 0x40]);
        seal(&mut bytes);
        let opcode = Opcode(bytes[8]);
        let mut pair = Pair::new(1, Wire::default(), &Connection::default());
        let device = &mut pair.sides[1].device;
        device.adapter.handle_packet(Time::START, &bytes);
        device.progress();
        let is_rc = opcode.transport() == Transport::RC;
        prop_assert!(dropped(device) == 1 || is_rc && dropped(device) == 0, "{:?}", opcode);
    }
}

/// The first words of a message for side 2 of a world, as its peer writes them.
fn words(opcode: Opcode, flags: u64, dest_qp: Qpn, psn: u32, packets: u64) -> [u64; 3] {
    let first = u64::from(opcode.0) | flags << 8 | 0xffff << 16 | u64::from(dest_qp.0) << 32;
    [first, u64::from(psn) | 2 << 32 | 1 << 48, packets]
}

proptest! {
    #[test]
    fn words_that_make_no_sense_are_dropped_and_counted_each(
        operation in 0..0x18u8, flags in 0..16u64, ahead in 0..3u32, packets in any::<u32>(),
        few in 0..6u64, says_few: bool, more in proptest::collection::vec(any::<u64>(), 0..5),
        bytes in prop_oneof![Just(0usize), Just(8), Just(1024), Just(4096), 0..600usize],
    ) {
        let connection = Connection::default();
        let (world, [mut peer, link]) = World::new(1, Wire::default());
        let mut b = side(link, 2, &connection);
        connect(&mut b, Qpn(0x40), 1, &connection);
        let qpn = b.device.qpn(b.qp).unwrap();
        let sges = [b.sge(0, 4096)];
        let op = SendOp::Read(b.remote(0));
        let (flags_sent, data) = (SendFlags::SIGNALED, Data::Sges(&sges));
        b.device.post_send(b.qp, &[SendRequest { id: 1, op, flags: flags_sent, data }]).unwrap();
        b.device.post_recv(b.qp, &[RecvRequest { id: 2, sges: &sges }]).unwrap();
        let packets = if says_few { few } else { packets.into() };
        const WHOLE: u64 = 1 << 2;
        let extended = Opcode(operation).extended().map(extended_words);
        let makes_sense = extended == Some(more.len()) && (flags & WHOLE != 0 || packets == 1);
        for nth in 0..4 {
            let psn = (connection.psn + nth * ahead) & 0xff_ffff;
            let opcode = Opcode(operation);
            let mut head = words(opcode, flags, qpn, psn, packets).to_vec();
            head.extend_from_slice(&more);
            assert!(peer.send_message(&head, bytes, |bytes| bytes.fill(3)));
        }
        for _ in 0..10 {
            world.step();
            b.device.progress();
            while b.poll().is_some() {}
        }
        let drops = &b.device.adapter.port().drops;
        let nonsense = drops.of(DropReason::Malformed("message"));
        prop_assert!(makes_sense || nonsense == 4, "{:?}", drops);
        prop_assert!(dropped(&b.device) <= 4, "{:?}", drops);
    }
}

/// Words of a head that extended headers take.
fn extended_words(kind: ExtendedKind) -> usize {
    match kind {
        ExtendedKind::None => 0,
        ExtendedKind::Imm | ExtendedKind::Ieth | ExtendedKind::Aeth | ExtendedKind::Deth => 1,
        ExtendedKind::Reth | ExtendedKind::AethAtomicAckEth | ExtendedKind::DethImm => 2,
        ExtendedKind::RethImm => 3,
        ExtendedKind::AtomicEth => 4,
    }
}

#[test]
fn an_answer_that_counts_wrongly_completes_nothing() {
    let connection = Connection::default();
    let (world, [mut peer, link]) = World::new(1, Wire::default());
    let mut b = side(link, 2, &connection);
    connect(&mut b, Qpn(0x40), 1, &connection);
    let sges = [b.sge(0, 4096)];
    let (op, flags) = (SendOp::Read(b.remote(0)), SendFlags::SIGNALED);
    b.device.post_send(b.qp, &[SendRequest { id: 1, op, flags, data: Data::Sges(&sges) }]).unwrap();
    let middle = Opcode::new(Transport::RC, Operation::READ_RESPONSE_MIDDLE);
    let qpn = b.device.qpn(b.qp).unwrap();
    // A message that counts as 2^32 - 1 packets, and one more with the same PSN.
    for (psn, packets) in [(connection.psn, u64::from(u32::MAX)), (connection.psn - 1, 2)] {
        let head = words(middle, 0, qpn, psn, packets);
        assert!(peer.send_message(&head, 1024, |bytes| bytes.fill(3)));
    }
    assert!(world.step());
    assert_eq!(b.poll(), None);
}

/// Packets of a real exchange, each with one changed byte and valid CRCs: they have only the
/// effects that their queue pair allows, and the adapter continues.
#[test]
fn packets_with_a_changed_byte_affect_no_other_packets() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let seen = Rc::new(RefCell::new(Vec::new()));
    let into = seen.clone();
    pair.world.set_tap(Box::new(move |_, from, bytes: &[u8]| {
        if from == 0 {
            into.borrow_mut().push(bytes.to_vec());
        }
    }));
    let sges = [pair.sides[0].sge(0, 3000)];
    for op in [SendOp::Write(pair.sides[1].remote(64)), SendOp::Read(pair.sides[1].remote(64))] {
        let side = &mut pair.sides[0];
        let (flags, data) = (SendFlags::SIGNALED, Data::Sges(&sges));
        side.device.post_send(side.qp, &[SendRequest { id: 0, op, flags, data }]).unwrap();
        assert_eq!(pair.wait(0).status, CompletionStatus::Success);
    }
    let mut rng = SeededRng::new(7);
    for packet in seen.take() {
        for _ in 0..300 {
            let mut victim = Pair::new(1, Wire::default(), &Connection::default());
            let side = &mut victim.sides[1];
            let other = side.initialised(side.cq, side.cq);
            let mut changed = packet.clone();
            let at = rng.below(packet.len() as u64 - 6) as usize;
            changed[at] = rng.next_u64() as u8;
            seal(&mut changed);
            let side = &mut victim.sides[1];
            side.device.adapter.handle_packet(Time::START, &changed);
            assert_eq!(side.device.query_qp(other).unwrap().0, QpState::Init);
        }
    }
}

#[test]
fn drops_are_counted_by_reason() {
    let mut pair = Pair::new(1, Wire::default(), &Connection::default());
    let adapter = &mut pair.sides[1].device.adapter;
    let mut good = vec![0, 2, 0, 2, 0, 7, 0, 1, 4, 0, 0xff, 0xff, 0, 0, 0, 0x99];
    good.resize(30, 0);
    // PktLen 6: BTH and ICRC, no payload.
    good.truncate(26);
    good[5] = 6;
    seal(&mut good);
    adapter.handle_packet(Time::START, &good);
    assert_eq!(adapter.port().drops.of(DropReason::NoQp), 1);
    good[20] ^= 1;
    adapter.handle_packet(Time::START, &good);
    assert_eq!(adapter.port().drops.of(DropReason::Crc), 1);
    adapter.handle_packet(Time::START, &[1, 2, 3]);
    assert_eq!(adapter.port().drops.of(DropReason::Malformed("truncated")), 1);
    assert_eq!(adapter.port().drops.iter().map(|(_, count)| count).sum::<u64>(), 3);
}
