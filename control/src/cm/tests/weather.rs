//! Connections made and ended while messages are lost, doubled and late, from seeds.

use super::world::*;
use crate::cm::Phase;
use crate::effects::ConnectionKey;
use pollux_verbs::rng::SeededRng;
use pollux_wire::mad::cm::RejectReason;
use std::collections::BTreeMap;
use std::time::Duration;

const SEEDS: u64 = 3000;

/// Longer than any side keeps trying: sixteen times, some four seconds apart, and that twice.
const LONG: Duration = Duration::from_secs(600);

fn storm(rng: &mut SeededRng) -> Weather {
    Weather {
        lost: rng.below(500_000) as u32,
        doubled: rng.below(300_000) as u32,
        late: Duration::from_millis(rng.below(8000)),
    }
}

/// Which connections of the two sides are each other's.
fn pairs(world: &World) -> Vec<(ConnectionKey, Option<ConnectionKey>)> {
    let theirs: BTreeMap<_, _> = world.sides[1]
        .cm
        .connections()
        .filter_map(|view| Some((view.remote_id?, view.key)))
        .collect();
    let ours = world.sides[0].cm.connections();
    ours.map(|view| (view.key, theirs.get(&view.key.comm_id()).copied())).collect()
}

// req: cm-handshake
#[test]
fn under_any_faults_both_sides_are_established_or_neither() {
    let mut established = 0;
    for seed in 0..SEEDS {
        let mut rng = SeededRng::new(seed);
        let mut world = World::new(seed);
        world.weather = storm(&mut rng);
        for _ in 0..=rng.below(3) {
            let from = rng.below(2) as usize;
            world.connect(from);
            world.pass(rng.duration(Duration::from_secs(2)));
        }
        world.pass(LONG);
        for (ours, theirs) in pairs(&world) {
            established += 1;
            assert_eq!(world.phase(0, ours), Some(Phase::Established), "seed {seed}");
            let theirs = theirs.map(|theirs| world.phase(1, theirs));
            assert_eq!(theirs, Some(Some(Phase::Established)), "seed {seed}");
        }
        let counts = world.sides.iter().map(|side| side.cm.count());
        assert!(counts.collect::<Vec<_>>().windows(2).all(|two| two[0] == two[1]), "seed {seed}");
        assert_terms_agree(&world, seed);
    }
    assert!(established > SEEDS, "most are made: {established}");
}

fn assert_terms_agree(world: &World, seed: u64) {
    for (ours, theirs) in pairs(world) {
        let ours = world.sides[0].cm.terms(ours).unwrap();
        let theirs = world.sides[1].cm.terms(theirs.unwrap()).unwrap();
        assert_eq!((ours.rq_psn, ours.sq_psn), (theirs.sq_psn, theirs.rq_psn), "seed {seed}");
        assert_eq!(ours.path_mtu, theirs.path_mtu, "seed {seed}");
        assert_ne!(ours.dest_qp, theirs.dest_qp, "seed {seed}");
    }
}

#[test]
fn under_any_faults_nothing_is_left_after_the_end() {
    let mut unheard = 0;
    for seed in 0..SEEDS {
        let mut rng = SeededRng::new(seed ^ 0x5eed);
        let mut world = World::new(seed);
        world.weather = storm(&mut rng);
        world.sides[1].refusal =
            rng.happens(200_000).then_some(RejectReason::INVALID_TRANSPORT_SERVICE_TYPE);
        let mut ids = Vec::new();
        for _ in 0..3 {
            let from = rng.below(2) as usize;
            ids.push((from, world.connect(from)));
            world.pass(rng.duration(Duration::from_secs(20)));
        }
        for (end, id) in ids {
            let now = world.now;
            let _gone = world.sides[end].cm.disconnect(now, id, [0; 220]);
            world.exchange(end);
            world.pass(rng.duration(Duration::from_secs(5)));
        }
        world.pass(LONG);
        for (side, number) in world.sides.iter().zip(0..) {
            let left: Vec<_> = side.cm.connections().collect();
            let stands =
                left.iter().filter(|view| view.state.phase() == Phase::Established).count();
            assert_eq!(stands, left.len(), "seed {seed}, side {number}: {left:?}");
            assert!(stands > 0 || side.cm.index.is_empty(), "seed {seed}");
            unheard += stands;
        }
    }
    // If all sixteen DREQs are lost, only unacknowledged data would show the end.
    assert!(unheard < SEEDS as usize / 100, "{unheard} ends were not heard of");
}
