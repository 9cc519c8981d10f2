//! Worlds by seed: traffic under faults, and what must hold after the last fault.
//!
//! `POLLUX_SEEDS=N` runs so many seeds, and `POLLUX_SEED=N` the one that failed.
#![expect(clippy::disallowed_methods, reason = "seeds are asked for by hand")]

use crate::faults::Trouble;
use crate::port_driver::QueuePair;
use crate::world::{World, ip, owner_of};
use pollux_control::ipoib::connected::Policy;
use pollux_control::ipoib::{Adjacency, InterfaceConfig, Load, WorkerId};
use pollux_fabric::sm::SmConfig;
use pollux_verbs::QpState;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// A packet that fits a datagram, and one that does not.
const SHORT: usize = 100;
const LONG: usize = 3000;
/// After the last trouble, short packets arrive from here on: a neighbor that was silent is asked
/// again after a minute, and the administrator after a quarter of one.
const SHORT_BY: Duration = Duration::from_secs(80);
/// Long ones too: a peer that refused five times is left alone for ten minutes.
const LONG_BY: Duration = Duration::from_secs(700);
/// No state that is to pass lasts longer, once there is no trouble.
const PASSING_MAX: Duration = Duration::from_secs(60);
/// Neighbors that nobody talks to are forgotten, their connections with them, and then those that
/// only the other end used.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1500);
/// Of very many nodes so many pairs talk to each other.
const PAIRS_MAX: usize = 64;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// What is drawn for a world before it begins.
struct Plan {
    nodes: usize,
    policies: Vec<Policy>,
    receive_mtus: Vec<u32>,
    workers: Vec<u8>,
    ipv6: bool,
    troubles: Vec<(Duration, Trouble, Duration)>,
}

impl Plan {
    fn of(seed: u64, nodes: usize) -> (Self, SeededRng) {
        let mut rng = SeededRng::new(seed);
        let usual = [Policy::Auto, Policy::Rc, Policy::Rc, Policy::Uc][rng.below(4) as usize];
        let is_mixed = rng.happens(250_000);
        let all = [Policy::Auto, Policy::Rc, Policy::Uc, Policy::Ud];
        let mut policy = |_| if is_mixed { all[rng.below(4) as usize] } else { usual };
        let policies = (0..nodes).map(&mut policy).collect();
        let mtus = [4100, 9004, 65_524, 65_524];
        let receive_mtus = (0..nodes).map(|_| mtus[rng.below(4) as usize]).collect();
        let troubles = (0..rng.below(12)).map(|_| {
            let (trouble, time) = Trouble::any(&mut rng, nodes);
            (rng.duration(60 * SECOND), trouble, time)
        });
        let troubles = troubles.collect();
        let ipv6 = rng.happens(500_000);
        let workers = Self::workers(&mut SeededRng::new(!seed), nodes);
        (Self { nodes, policies, receive_mtus, workers, ipv6, troubles }, rng)
    }

    /// In half of the worlds all nodes have one worker, in a quarter all have the same number.
    fn workers(rng: &mut SeededRng, nodes: usize) -> Vec<u8> {
        let all = [1, 2, 2, 4];
        let usual = all[rng.below(4) as usize];
        match rng.below(4) {
            0 | 1 => vec![1; nodes],
            2 => vec![usual; nodes],
            _ => (0..nodes).map(|_| all[rng.below(4) as usize]).collect(),
        }
    }

    fn configure(&self, config: InterfaceConfig, nth: usize) -> InterfaceConfig {
        let workers = self.workers[nth];
        let mut config = InterfaceConfig { ipv6: self.ipv6, workers, ..config };
        config.peer.policy = self.policies[nth];
        config.peer.receive_mtu = self.receive_mtus[nth];
        config
    }

    /// Whether two nodes are to have a connection.
    fn connects(&self, one: usize, other: usize) -> bool {
        [one, other].iter().all(|nth| self.policies[*nth] != Policy::Ud)
    }

    /// The number of connections of two nodes: one for each worker of the node with more of them.
    fn connections(&self, one: usize, other: usize) -> usize {
        self.workers[one].max(self.workers[other]).into()
    }

    fn pairs(&self) -> Vec<(usize, usize)> {
        let all = (0..self.nodes).flat_map(|one| (0..self.nodes).map(move |other| (one, other)));
        all.filter(|(one, other)| one != other).collect()
    }
}

struct Run {
    seed: u64,
    plan: Plan,
    rng: SeededRng,
    world: World,
    mark: u64,
}

impl Run {
    fn new(seed: u64, nodes: usize) -> Self {
        let (plan, rng) = Plan::of(seed, nodes);
        let topology = format!("single:{}", nodes + 1);
        let world =
            World::new(seed, &topology, SmConfig::default(), |it, nth| plan.configure(it, nth));
        Self { seed, plan, rng, world, mark: 0 }
    }

    fn send(&mut self, (from, to): (usize, usize), len: usize) -> u64 {
        self.mark += 1;
        self.world.send(from, to, self.mark, len);
        self.mark
    }

    /// Runs traffic under faults.
    fn suffer(&mut self) {
        let begin = self.world.now;
        let mut steps = BTreeMap::new();
        for (number, (at, trouble, time)) in self.plan.troubles.iter().enumerate() {
            steps.insert((*at, number), (trouble.clone(), true));
            steps.insert((*at + *time, number), (trouble.clone(), false));
        }
        let pairs = self.plan.pairs();
        for ((at, _), (trouble, begins)) in steps {
            while self.world.now < begin + at {
                let some = pairs[self.rng.below(pairs.len() as u64) as usize];
                let is_both_ways = self.rng.happens(500_000);
                let len = if self.rng.happens(500_000) { SHORT } else { LONG };
                self.send(some, len);
                if is_both_ways {
                    self.send((some.1, some.0), len);
                }
                let left = (begin + at).since(self.world.now);
                let pause = self.rng.duration(2 * SECOND);
                self.world.pass(pause.min(left));
            }
            match begins {
                true => trouble.begin(&mut self.world),
                false => trouble.end(&mut self.world),
            }
        }
        for nth in 0..self.plan.nodes {
            assert!(self.world.nodes[nth].interface.is_some(), "all troubles are over");
        }
    }

    /// Packets of a length get from everyone to everyone some time.
    fn recover(&mut self, mut missing: BTreeSet<(usize, usize)>, len: usize, by: Time) {
        while !missing.is_empty() {
            let sent: Vec<_> = missing.iter().map(|&pair| (pair, self.send(pair, len))).collect();
            self.world.pass(SECOND);
            for (pair, mark) in sent {
                if self.world.nodes[pair.1].got.contains_key(&mark) {
                    missing.remove(&pair);
                }
            }
            if self.world.now > by {
                self.give_up(&missing, len);
            }
        }
    }

    fn give_up(&self, missing: &BTreeSet<(usize, usize)>, len: usize) -> ! {
        for nth in missing.iter().flat_map(|pair| [pair.0, pair.1]).collect::<BTreeSet<_>>() {
            let Some(interface) = &self.world.nodes[nth].interface else { continue };
            println!("{nth}, {}: {:?}", ip(nth), interface.row());
            interface.neighbor_rows().for_each(|row| println!("  {row:?}"));
            interface.connection_rows().for_each(|row| println!("  {row:?}"));
            for row in interface.peer_rows() {
                println!("  {row:?}, {:?}", interface.pause_of(&row.link, WorkerId::PRIMARY));
            }
            interface.drop_rows().filter(|row| row.2 > 0).for_each(|row| println!("  {row:?}"));
        }
        let now = self.world.now;
        panic!("seed {}: {len} bytes do not arrive by {now:?}: {missing:?}", self.seed);
    }

    /// Short packets of everyone to everyone, each second.
    fn talk(&mut self, pairs: &BTreeSet<(usize, usize)>, seconds: u32) {
        for _ in 0..seconds {
            pairs.iter().for_each(|pair| _ = self.send(*pair, SHORT));
            self.world.pass(SECOND);
        }
    }

    /// Some worker does not ask a peer for a connection, though others may have one.
    fn is_paused(&self) -> bool {
        self.world.nodes.iter().any(|node| {
            let interface = node.interface.as_ref().expect("it is alive");
            let pauses = |worker| {
                let peers = interface.peer_rows();
                peers.filter(|row| interface.pause_of(&row.link, worker).is_some()).count()
            };
            (0..node.config.workers).map(WorkerId).any(|worker| pauses(worker) > 0)
        })
    }

    /// Each pair has a connection of each worker if both want any, of which both ends think the
    /// same; and no queue pair is without its connection. Where only some pairs talk, others may
    /// still have what they made before.
    fn assert_connected(&self, pairs: &BTreeSet<(usize, usize)>) {
        let seed = self.seed;
        for (nth, node) in self.world.nodes.iter().enumerate() {
            let interface = node.interface.as_ref().expect("it is alive");
            let rows: Vec<_> = interface.connection_rows().collect();
            let keys: Vec<_> = rows.iter().map(|row| row.connection).collect();
            let queue_pairs: Vec<_> = node.port_driver.connections.keys().copied().collect();
            assert_eq!(keys, queue_pairs, "seed {seed}, {nth}: {rows:?}");
            let load = interface.load();
            assert_eq!(load.managed, rows.len(), "seed {seed}, {nth}: {rows:?}");
            for (other, there) in self.world.nodes.iter().enumerate().filter(|it| it.0 != nth) {
                // What was made with an interface that is no more stays until it is idle for long.
                let link = (there.config.qpn, self.world.view(other).gids[0]);
                let to_other = rows.iter().filter(|row| (row.peer.qpn, row.peer.gid) == link);
                let is_wanted = pairs.contains(&(nth, other)) || pairs.contains(&(other, nth));
                if !is_wanted && pairs.len() < self.plan.pairs().len() {
                    continue;
                }
                let is_wanted = is_wanted && self.plan.connects(nth, other);
                assert_eq!(
                    to_other.clone().count(),
                    if is_wanted { self.plan.connections(nth, other) } else { 0 },
                    "seed {seed}: {nth} to {other}: {rows:?}"
                );
                let own = to_other.map(|row| node.port_driver.connections[&row.connection]);
                own.for_each(|own| self.assert_has_other_end(&own));
            }
        }
    }

    fn assert_has_other_end(&self, own: &QueuePair) {
        let there = own.dest_qp.map(|qpn| &self.world.nodes[owner_of(qpn)].port_driver.connections);
        let others = there.into_iter().flat_map(|all| all.values());
        let ends = others.filter(|other| {
            other.dest_qp == Some(own.qpn)
                && own.dest_qp == Some(other.qpn)
                && (own.sq_psn, own.rq_psn) == (other.rq_psn, other.sq_psn)
                && (own.state, other.state) == (QpState::Rts, QpState::Rts)
        });
        assert_eq!(ends.count(), 1, "seed {}: {own:?}", self.seed);
    }

    /// No state that is to pass has lasted for long.
    fn assert_nothing_is_stuck(&self) {
        let now = self.world.now;
        for (nth, node) in self.world.nodes.iter().enumerate() {
            let interface = node.interface.as_ref().expect("it is alive");
            assert!(interface.is_up(), "seed {}, {nth}: {:?}", self.seed, interface.row());
            let connections = interface.connection_rows().filter(|row| row.state != "open");
            let connections = connections.map(|row| (row.since, format!("{row:?}")));
            let peers = interface.peer_rows().filter(|row| row.adjacency == Adjacency::Pending);
            let peers = peers.map(|row| (row.since, format!("{row:?}")));
            let paths = interface.path_rows().filter(|row| row.is_asked);
            let paths = paths.map(|row| (row.since, format!("{row:?}")));
            let groups = interface.group_rows().filter(|row| row.state == "asked");
            let groups = groups.map(|row| (row.since, format!("{row:?}")));
            for (since, what) in connections.chain(peers).chain(paths).chain(groups) {
                assert!(now < since + PASSING_MAX, "seed {}, {nth}: {what}", self.seed);
            }
        }
    }

    /// Nobody is talked to for long enough to be forgotten.
    fn assert_nothing_is_left(&mut self) {
        self.world.pass(FORGOTTEN_AFTER);
        for (nth, node) in self.world.nodes.iter().enumerate() {
            let load = node.interface.as_ref().expect("it is alive").load();
            assert!(load.paths <= self.plan.nodes, "seed {}, {nth}: {load:?}", self.seed);
            let Load { paths, groups, .. } = load;
            let nothing = Load { paths, groups, ..Load::default() };
            assert_eq!(load, nothing, "seed {}, {nth}", self.seed);
            assert!(node.port_driver.connections.is_empty(), "seed {}, {nth}", self.seed);
            let adjacencies = groups * usize::from(node.config.workers);
            assert!(node.port_driver.peers.len() <= adjacencies, "seed {}, {nth}", self.seed);
        }
    }
}

/// The time until traffic flowed again, for short and for long packets.
type Recovery = (Duration, Duration);

/// One world; panics where it does not hold what is promised.
fn run(seed: u64, nodes: usize) -> Recovery {
    let mut run = Run::new(seed, nodes);
    run.world.pass(5 * SECOND);
    run.suffer();
    let over = run.world.now;
    let mut pairs = run.plan.pairs();
    while pairs.len() > PAIRS_MAX {
        let one = run.rng.below(pairs.len() as u64) as usize;
        let (from, to) = pairs.swap_remove(one);
        pairs.retain(|pair| *pair != (to, from));
    }
    let pairs: BTreeSet<_> = pairs.into_iter().collect();
    run.recover(pairs.clone(), SHORT, over + SHORT_BY);
    let short = run.world.now;
    let connected = pairs.iter().copied().filter(|pair| run.plan.connects(pair.0, pair.1));
    run.recover(connected.collect(), LONG, over + LONG_BY);
    let long = run.world.now;
    while run.is_paused() {
        assert!(run.world.now < over + LONG_BY + LONG_BY, "seed {seed}: paused for ever");
        run.talk(&pairs, 1);
        run.world.pass(10 * SECOND);
    }
    run.talk(&pairs, 60);
    run.assert_nothing_is_stuck();
    run.assert_connected(&pairs);
    run.assert_nothing_is_left();
    (since(over, short), since(over, long))
}

fn since(begin: Time, end: Time) -> Duration {
    end.since(begin)
}

/// Runs seeds on all cores there are, and says which failed, or how long recoveries took.
fn run_all(seeds: RangeInclusive<u64>, nodes: fn(u64) -> usize) {
    if let Some(seed) = setting("POLLUX_SEED") {
        println!("seed {seed}: {:?}", run(seed, nodes(seed)));
        return;
    }
    let next = AtomicU64::new(*seeds.start());
    let (failed, longest) = (Mutex::new(BTreeSet::new()), Mutex::new(Recovery::default()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > *seeds.end() {
                return;
            }
            match catch_unwind(|| run(seed, nodes(seed))) {
                Ok((short, long)) => {
                    let mut longest = longest.lock().expect("nobody panics here");
                    *longest = (longest.0.max(short), longest.1.max(long));
                }
                Err(_) => _ = failed.lock().expect("nobody panics here").insert(seed),
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| _ = scope.spawn(work)));
    let failed = failed.into_inner().expect("nobody panicked");
    assert!(failed.is_empty(), "POLLUX_SEED=N replays seeds that failed: {failed:?}");
    let (short, long) = longest.into_inner().expect("nobody panicked");
    println!("{seeds:?}: short packets again after {short:?} at the most, long after {long:?}");
}

// req: cm-crossing-requests
#[test]
fn whatever_happens_to_a_few_nodes_they_find_together_again_and_leave_nothing() {
    let seeds = setting("POLLUX_SEEDS").unwrap_or(24);
    run_all(1..=seeds, |seed| 2 + (seed % 7) as usize);
}

#[test]
fn whatever_happens_to_many_nodes_they_find_together_again() {
    let seeds = setting("POLLUX_SEEDS").map_or(1, |seeds| (seeds / 200).max(1));
    run_all(1..=seeds, |_| 64);
}
