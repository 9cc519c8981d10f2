//! A flow that goes one way: how long it stands still after cables were pulled and put back, and
//! after its receiver computed for long. Nobody answers the sender by the same connection, so
//! nothing but connected mode's own care tells it that the other end is gone.

use crate::world::World;
use pollux_control::ipoib::WorkerId;
use pollux_control::ipoib::connected::{PeerConfig, Policy};
use pollux_fabric::sm::SmConfig;
use pollux_verbs::rng::SeededRng;
use pollux_wire::address::Guid;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
/// A packet too long for a datagram, so that only a connection carries it.
const LONG: usize = 3000;
/// A packet that fits a datagram.
const SHORT: usize = 1000;
/// How long after the last flap a flow may stand still: a sender that hears nothing asks after two
/// seconds, and asks again for two; what waits for an answer of ARP asks again after one.
const STILL_MAX: Duration = Duration::from_secs(4);
const SEEDS: u64 = 25;

/// Two nodes of this policy, of which node 0 sends to node 1.
struct Flow {
    seed: u64,
    len: usize,
    world: World,
    mark: u64,
}

impl Flow {
    fn new(seed: u64, policy: Policy) -> Self {
        let world = World::new(seed, "single:3", SmConfig::default(), |mut config, _| {
            config.peer.policy = policy;
            config
        });
        let len = if policy == Policy::Ud { SHORT } else { LONG };
        let mut flow = Self { seed, len, world, mark: 0 };
        flow.world.pass(5 * SECOND);
        flow.goes_on(10 * SECOND);
        assert!(flow.has_come(), "seed {seed}: not before the trouble either");
        flow
    }

    /// A packet every 20 ms.
    fn goes_on(&mut self, time: Duration) {
        let until = self.world.now + time;
        while self.world.now < until {
            self.mark += 1;
            self.world.send(0, 1, self.mark, self.len);
            self.world.pass(20 * MILLISECOND);
        }
    }

    /// Whether the last packet has arrived.
    fn has_come(&self) -> bool {
        self.world.nodes[1].got.contains_key(&self.mark)
    }

    /// The time until a packet arrives.
    fn until_it_comes(&mut self) -> Duration {
        let begin = self.world.now;
        loop {
            self.goes_on(20 * MILLISECOND);
            let still = self.world.now.since(begin);
            assert!(still < 100 * SECOND, "seed {}: never", self.seed);
            if self.has_come() {
                return still;
            }
        }
    }
}

/// How long a flow stands still once the cable of `whose` was pulled `flaps` times.
fn still_after(seed: u64, policy: Policy, (whose, flaps): (usize, u32)) -> Duration {
    let mut flow = Flow::new(seed, policy);
    let mut rng = SeededRng::new(seed ^ 0xf1a9);
    for _ in 0..flaps {
        flow.world.set_cable(whose, false);
        flow.goes_on(10 * MILLISECOND + rng.duration(600 * MILLISECOND));
        flow.world.set_cable(whose, true);
        flow.goes_on(rng.duration(1500 * MILLISECOND));
    }
    flow.until_it_comes()
}

#[test]
fn a_flow_goes_on_soon_after_its_cables_flapped() {
    for policy in [Policy::Uc, Policy::Rc, Policy::Auto, Policy::Ud] {
        for trouble in [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)] {
            let all = (1..=SEEDS).map(|seed| (still_after(seed, policy, trouble), seed));
            let (longest, seed) = all.max().expect("there are seeds");
            println!("{policy:?}, (end, flaps) {trouble:?}: {longest:?} at the most, seed {seed}");
            assert!(longest <= STILL_MAX, "{policy:?} {trouble:?}: {longest:?}, seed {seed}");
        }
    }
}

/// Its control answers ARP and CM all that while, so it is no imposter (RFC 4755 8).
#[test]
fn a_receiver_that_was_slow_is_sent_to_by_connection_again() {
    let pause_max = PeerConfig::of(Guid(0)).pause_max;
    for seed in 1..=SEEDS {
        let mut flow = Flow::new(seed, Policy::Rc);
        flow.world.busy.insert(1);
        flow.goes_on(60 * SECOND);
        assert!(!flow.has_come(), "seed {seed}: it is busy");
        let sender = flow.world.nodes[0].interface.as_ref().expect("it is alive");
        let link = sender.peer_rows().next().expect("it knows the receiver").link;
        let pause = sender.pause_of(&link, WorkerId::PRIMARY).expect("five attempts have failed");
        assert!(pause.text(flow.world.now).contains("(the queue pair failed)"), "{pause:?}");
        flow.world.busy.clear();
        let still = flow.until_it_comes();
        assert!(still <= pause_max + SECOND, "seed {seed}: {still:?}");
    }
}
