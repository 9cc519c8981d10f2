//! Cables that are pulled and put back while a flow goes one way: nobody answers the sender by the
//! same connection, so nothing but connected mode's own care tells it that the other end is gone.

use crate::world::World;
use pollux_control::peer::Policy;
use pollux_fabric::sm::Config;
use pollux_verbs::dice::Dice;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
/// A packet that no datagram has room for, so that only a connection carries it.
const LONG: usize = 3000;
/// A packet that a datagram has room for.
const SHORT: usize = 1000;
/// How long after the last flap a flow may stand still: a sender that hears nothing asks after two
/// seconds, and asks again for two; what waits for an answer of ARP asks again after one.
const STILL_MAX: Duration = Duration::from_secs(6);
const SEEDS: u64 = 25;

/// How long a flow of packets of `len` octets from node 0 to node 1 stands still once the cable
/// of `whose` was pulled `flaps` times.
fn still_after(seed: u64, policy: Policy, (whose, flaps): (usize, u32), len: usize) -> Duration {
    let mut world = World::new(seed, "single:3", Config::default(), |mut config, _| {
        config.peer.policy = policy;
        config
    });
    let mut dice = Dice::new(seed ^ 0xf1a9);
    let mut mark = 0;
    let mut flow = |world: &mut World, time: Duration| {
        let until = world.now + time;
        while world.now < until {
            mark += 1;
            world.send(0, 1, mark, len);
            world.pass(20 * MILLISECOND);
        }
        mark
    };
    world.pass(5 * SECOND);
    let last = flow(&mut world, 10 * SECOND);
    assert!(world.nodes[1].got.contains_key(&last), "seed {seed}: not before the flap either");
    for _ in 0..flaps {
        world.set_cable(whose, false);
        flow(&mut world, 10 * MILLISECOND + dice.duration(600 * MILLISECOND));
        world.set_cable(whose, true);
        flow(&mut world, dice.duration(1500 * MILLISECOND));
    }
    let over = world.now;
    loop {
        let last = flow(&mut world, 20 * MILLISECOND);
        let still = world.now.since_start().saturating_sub(over.since_start());
        if world.nodes[1].got.contains_key(&last) || still > 100 * SECOND {
            return still;
        }
    }
}

#[test]
fn a_flow_goes_on_soon_after_its_cables_flapped() {
    for policy in [Policy::Uc, Policy::Rc, Policy::Auto, Policy::Ud] {
        for trouble in [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)] {
            let len = if policy == Policy::Ud { SHORT } else { LONG };
            let all = (1..=SEEDS).map(|seed| (still_after(seed, policy, trouble, len), seed));
            let (longest, seed) = all.max().expect("there are seeds");
            println!("{policy:?}, (end, flaps) {trouble:?}: {longest:?} at the most, seed {seed}");
            assert!(longest <= STILL_MAX, "{policy:?} {trouble:?}: {longest:?}, seed {seed}");
        }
    }
}
