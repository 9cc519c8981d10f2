//! Hostile and malformed datagrams.

use super::world::*;
use crate::cm::CmDatagram;
use crate::cm::{Cm, CmConfig, CmDrop, CmEvent, Phase};
use crate::mad::Envelope;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::address::Qpn;
use pollux_wire::mad::MAD_LEN;
use pollux_wire::mad::cm::{CmMessage, RejectReason};
use proptest::prelude::*;
use std::time::Duration;

const SOON: Duration = Duration::from_millis(1);

/// A datagram of the class, so that some get further than its header.
fn datagram() -> impl Strategy<Value = [u8; MAD_LEN]> {
    let bytes = proptest::collection::vec(any::<u8>(), MAD_LEN);
    (bytes, any::<bool>(), 0x10u8..0x1b).prop_map(|(bytes, is_cm, attribute)| {
        let mut mad: [u8; MAD_LEN] = bytes.try_into().unwrap();
        if is_cm {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&[0, attribute]);
        }
        mad
    })
}

/// All messages of two sides, from REQ to DREP.
fn history() -> Vec<(usize, CmMessage)> {
    let mut world = World::new(3);
    let id = world.connect(0);
    world.pass(SOON);
    let now = world.now;
    world.sides[0].cm.disconnect(now, id, [0; 220]).unwrap();
    world.exchange(0);
    while world.step() {}
    world.said
}

proptest! {
    #[test]
    fn any_datagrams_are_survived_and_what_they_began_ends(
        datagrams in prop::collection::vec((datagram(), 1usize..5), 0..60),
    ) {
        let mut cm = Cm::new(CmConfig::of(guid(0)), SeededRng::new(1));
        cm.listen(SERVICE, WORDS).unwrap();
        for (mad, from) in datagrams {
            cm.handle_mad(Time::START, &CmDatagram::parse(&Envelope { peer: address(from), mad }));
        }
        while let Some(due) = cm.poll_timeout() {
            cm.handle_timeout(due);
        }
        prop_assert!(cm.index.is_empty());
    }

    /// Changed in a few bytes, a message of the peer's may end the peer's own connection. A
    /// stranger's never does, even if it was overheard and not changed at all.
    #[test]
    fn strangers_change_nothing(
        which in 0usize..5,
        changes in prop::collection::vec((4usize..MAD_LEN, any::<u8>()), 0..4),
    ) {
        let said = history();
        let mut world = World::new(3);
        let id = world.connect(0);
        world.pass(SOON);
        let other = world.only(1);
        let said = said[which % said.len()].1;
        for to in 0..2 {
            let mut mad = said.emit_mad(9);
            changes.iter().for_each(|(at, byte)| mad[*at] = *byte);
            let envelope = Envelope { peer: address(8), mad };
            world.sides[to].cm.handle_mad(world.now, &CmDatagram::parse(&envelope));
        }
        prop_assert_eq!(world.phase(0, id), Some(Phase::Established));
        prop_assert_eq!(world.phase(1, other), Some(Phase::Established));
    }

    /// The peer itself gone mad: whatever it says, our side ends up in order.
    #[test]
    fn a_mad_peer_leaves_nothing_stuck(
        messages in prop::collection::vec(
            (0usize..5, prop::collection::vec((4usize..120, any::<u8>()), 0..3)),
            0..20,
        ),
    ) {
        let said = history();
        let mut world = World::new(3);
        world.connect(0);
        world.pass(SOON);
        for (which, changes) in messages {
            let mut mad = said[which % said.len()].1.emit_mad(9);
            changes.iter().for_each(|(at, byte)| mad[*at] = *byte);
            for to in 0..2 {
                let peer = address(1 - to);
                let envelope = Envelope { peer, mad };
                world.sides[to].cm.handle_mad(world.now, &CmDatagram::parse(&envelope));
                world.exchange(to);
            }
        }
        while world.step() {}
        for side in &world.sides {
            let mut all = side.cm.connections();
            prop_assert!(all.all(|one| one.state.phase() == Phase::Established));
        }
    }
}

#[test]
fn a_flood_is_bounded_in_every_table() {
    let limits = |config| CmConfig {
        connections_max: 50,
        requests_pending_per_peer_max: 20,
        requests_pending_max: 40,
        messages_max: 30,
        events_max: 60,
        ..config
    };
    let mut cm = Cm::new(limits(CmConfig::of(guid(0))), SeededRng::new(1));
    cm.listen(SERVICE, WORDS).unwrap();
    let mut rng = SeededRng::new(5);
    let mut now = Time::START;
    for number in 0..5000 {
        let qpn = Qpn(rng.next_u64() as u32 & 0xff_ffff);
        let mut req = request(1 + number % 4, 0, qpn);
        req.local_comm_id.0 = rng.next_u64() as u32;
        let peer = address(1 + number % 4);
        let mad = CmMessage::Req(req).emit_mad(rng.next_u64());
        cm.handle_mad(now, &CmDatagram::parse(&Envelope { peer, mad }));
        now = now + Duration::from_millis(20);
        cm.handle_timeout(now);
        assert!(cm.count() <= 50);
    }
    assert_eq!(std::iter::from_fn(|| cm.poll_transmit()).count(), 30);
    // Each connection also has an event for its end, so new ones are refused beyond a limit.
    assert!(std::iter::from_fn(|| cm.poll_event()).count() <= 60 + 3 * 50);
}

#[test]
fn requests_that_were_rejected_count_too_as_long_as_they_are_remembered() {
    let config = CmConfig { requests_pending_per_peer_max: 20, ..CmConfig::of(guid(0)) };
    let mut cm = Cm::new(config, SeededRng::new(1));
    cm.listen(SERVICE, WORDS).unwrap();
    let mut now = Time::START;
    let ask = |cm: &mut Cm, from: usize, number: u32, now| {
        let mut req = request(from, 0, Qpn(0x100 + number));
        req.local_comm_id.0 = 0x100 + number;
        let mad = CmMessage::Req(req).emit_mad(u64::from(number));
        cm.handle_mad(now, &CmDatagram::parse(&Envelope { peer: address(from), mad }));
        while let Some(event) = cm.poll_event() {
            if let CmEvent::Request { key: id, .. } = event {
                cm.reject(now, id, RejectReason::CONSUMER_REJECT, &[], [0; 148]).unwrap();
            }
        }
    };
    (0..200).for_each(|number| ask(&mut cm, 1, number, now));
    assert_eq!((cm.count(), cm.drops().of(CmDrop::TooManyRequests)), (20, 180));
    ask(&mut cm, 2, 1000, now);
    assert_eq!(cm.count(), 21, "another is heard");
    while let Some(due) = cm.poll_timeout() {
        now = due;
        cm.handle_timeout(now);
    }
    assert!(now <= Time::START + config.time_wait_max);
    ask(&mut cm, 1, 2000, now);
    assert_eq!(cm.count(), 1, "after a while it is heard again");
}
