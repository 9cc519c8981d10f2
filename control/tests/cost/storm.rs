//! A cluster whose nodes all start at one moment, and then all have something for everybody else:
//! everyone is asked for by everyone, every path is asked for, every pair connects.
//!
//! Each question of ARP is heard by all, so they hear as many as the cube of their number. Of large
//! clusters only whom it asks for is given it here; how many others would have dropped it is
//! counted.

use crate::MEMORY;
use crate::world::World;
use pollux_control::ipoib::IpoibInterface;
use pollux_control::ipoib::connected::Policy;
use pollux_fabric::sm::SmConfig;
use pollux_verbs::time::Time;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// The largest cluster in which all nodes get all broadcasts.
const HEARD_BY_ALL_MAX: usize = 200;
/// How many nodes there are usually.
const NODES: usize = 48;
/// The deadline for a short packet between every two nodes.
const TALKED_BY: Duration = Duration::from_secs(60);
/// Bytes of the packet that everybody has for everybody.
const PACKET: usize = 100;
const MILLISECOND: Duration = Duration::from_millis(1);

/// What a start was like.
pub struct Storm {
    nodes: usize,
    policy: Policy,
    /// From the start until all are up.
    up: Duration,
    /// The time until every two nodes have exchanged a packet, and until all are connected.
    heard: Duration,
    connected: Duration,
    connections: usize,
    mads: u64,
    questions: u64,
    frames: u64,
    spared: u64,
    /// Packets that wait at one node, and frames and datagrams under way, at the most.
    waiting_max: usize,
    under_way_max: usize,
    drops: BTreeMap<(&'static str, &'static str), u64>,
    /// The entries of a node for another: neighbor, path, peer, and connection if there is one.
    pub bytes_of_a_peer: usize,
    bytes_max: usize,
    took: Duration,
}

/// As many as `POLLUX_NODES` says.
#[expect(clippy::disallowed_methods, reason = "larger clusters are asked for by hand")]
pub fn nodes() -> usize {
    std::env::var("POLLUX_NODES").ok().and_then(|nodes| nodes.parse().ok()).unwrap_or(NODES)
}

/// One start.
#[expect(clippy::disallowed_methods, reason = "how long it took is for people to read")]
pub fn start(nodes: usize, policy: Policy) -> Storm {
    let began = Instant::now();
    let mut cluster = Cluster::new(nodes, policy);
    let up = cluster.until("up", |nodes| {
        nodes.iter().all(|node| node.is_up() && node.addresses().iter().count() > 0)
    });
    cluster.world.pass(1000 * MILLISECOND);
    let before = MEMORY.bytes();
    let begin = cluster.world.now;
    cluster.everybody_talks();
    let heard = since(begin, cluster.world.now);
    let (pairs, wanted) = (nodes * (nodes - 1), usize::from(policy != Policy::Ud));
    let count = |nodes: &[&IpoibInterface]| -> usize {
        let open = |node: &&IpoibInterface| node.connection_rows().filter(|it| it.may_send).count();
        nodes.iter().map(open).sum()
    };
    cluster.until("connected", |nodes| count(nodes) >= pairs * wanted);
    let connected = since(begin, cluster.world.now);
    cluster.world.pass(60_000 * MILLISECOND);
    let connections = count(&cluster.interfaces());
    assert_eq!(connections, pairs * wanted, "one for each pair, of which both ends know");
    let bytes_of_a_peer = (MEMORY.bytes() - before) / pairs;
    Storm {
        nodes,
        policy,
        up,
        heard,
        connected,
        connections: connections / 2,
        mads: cluster.world.mads,
        questions: cluster.world.questions,
        frames: cluster.world.frames,
        spared: cluster.world.spared,
        waiting_max: cluster.waiting_max,
        under_way_max: cluster.under_way_max,
        drops: cluster.drops(),
        bytes_of_a_peer,
        bytes_max: MEMORY.bytes_max(),
        took: began.elapsed(),
    }
}

struct Cluster {
    world: World,
    waiting_max: usize,
    under_way_max: usize,
}

impl Cluster {
    fn new(nodes: usize, policy: Policy) -> Self {
        let topology = match nodes {
            0..=253 => format!("single:{}", nodes + 1),
            _ => format!("leaf-spine:{}x8x16", (nodes + 1).div_ceil(16)),
        };
        let mut world = World::new(1, &topology, SmConfig::default(), |mut config, _| {
            config.ipv6 = false;
            config.peer.policy = policy;
            config
        });
        world.spares_bystanders = nodes > HEARD_BY_ALL_MAX;
        world.nodes.iter_mut().skip(nodes).for_each(|node| node.interface = None);
        Self { world, waiting_max: 0, under_way_max: 0 }
    }

    fn interfaces(&self) -> Vec<&IpoibInterface> {
        self.world.nodes.iter().filter_map(|node| node.interface.as_ref()).collect()
    }

    fn pass(&mut self, time: Duration) {
        self.world.pass(time);
        let waiting = self.interfaces().iter().map(|node| node.load().pending).max();
        self.waiting_max = self.waiting_max.max(waiting.unwrap_or(0));
        self.under_way_max = self.under_way_max.max(self.world.events.len());
    }

    /// Goes on until something is so; says how long that was.
    fn until(&mut self, what: &str, is: impl Fn(&[&IpoibInterface]) -> bool) -> Duration {
        let begin = self.world.now;
        while !is(&self.interfaces()) {
            self.pass(100 * MILLISECOND);
            assert!(since(begin, self.world.now) < TALKED_BY, "{what}: not yet");
        }
        since(begin, self.world.now)
    }

    /// Each node sends each other one a packet, and again each second until it arrived.
    fn everybody_talks(&mut self) {
        let nodes = self.interfaces().len();
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        let mut missing: Vec<_> = pairs.filter(|(from, to)| from != to).collect();
        let begin = self.world.now;
        while !missing.is_empty() {
            for &(from, to) in &missing {
                self.world.send(from, to, from as u64, PACKET);
            }
            self.under_way_max = self.under_way_max.max(self.world.events.len());
            for _ in 0..100 {
                self.pass(10 * MILLISECOND);
            }
            let world = &self.world;
            missing.retain(|(from, to)| !world.nodes[*to].got.contains_key(&(*from as u64)));
            assert!(since(begin, world.now) < TALKED_BY, "not heard: {}", missing.len());
        }
    }

    fn drops(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        let rows = self.interfaces().into_iter().flat_map(IpoibInterface::drop_rows);
        let mut drops = BTreeMap::new();
        for (of, why, count) in rows.filter(|row| row.2 > 0) {
            *drops.entry((of, why)).or_default() += count;
        }
        drops
    }
}

fn since(begin: Time, end: Time) -> Duration {
    end.since(begin)
}

impl fmt::Display for Storm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes as u64;
        writeln!(f, "{nodes} nodes start at once, each with a packet for each: {:?}", self.policy)?;
        writeln!(f, "  all are up after                  {:?}", self.up)?;
        writeln!(f, "  all have heard all after          {:?} more", self.heard)?;
        writeln!(f, "  all are connected after           {:?} more", self.connected)?;
        writeln!(f, "  connections                       {}", self.connections)?;
        writeln!(f, "  management datagrams of a node    {}", self.mads / nodes)?;
        writeln!(f, "  of that to the administrator      {}", self.questions / nodes)?;
        writeln!(f, "  frames that a node was given      {}", self.frames / nodes)?;
        writeln!(f, "  questions for others, of a node   {}", self.spared / nodes)?;
        writeln!(f, "  packets waiting at a node, most   {}", self.waiting_max)?;
        writeln!(f, "  events under way, most            {}", self.under_way_max)?;
        writeln!(f, "  memory of a peer                  {} bytes", self.bytes_of_a_peer)?;
        let megabytes = self.bytes_max / 1_000_000;
        writeln!(f, "  memory of all, at the most        {megabytes} MB")?;
        let took = self.took.as_secs_f64();
        writeln!(f, "  took here                         {took:.1} s")?;
        for ((of, why), count) in &self.drops {
            writeln!(f, "  drops: {of} {why}: {count}")?;
        }
        Ok(())
    }
}
