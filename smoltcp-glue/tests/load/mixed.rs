//! Eras of faults, each followed by a quiet time, in which all programs end, every host reaches
//! every other, and hosts release their resources.

use crate::MEMORY;
use crate::traffic::{
    Client, Counters, ECHOES, Echo, EchoClient, GroupMember, GroupSender, Plan, STREAMS, Server,
    Shared,
};
use crate::world::{World, at};
use pollux::Mode;
use pollux::stack::{StackConfig, TcpConfig};
use pollux_fabric::link::Wire;
use pollux_fabric::link::fault::Faults;
use pollux_fabric::sm;
use pollux_fabric::topology::End;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MODES: [Mode; 4] = [Mode::Auto, Mode::Rc, Mode::Uc, Mode::Ud];
/// The time of faults in an era.
const FAULTS_TIME: Duration = Duration::from_secs(120);
/// The time limit of programs after the faults: a program has a timeout of 30 s; TCP has a user
/// timeout of 20 s for unacknowledged data, twice if the last segment is lost; TIME-WAIT lasts 10
/// s.
const STUCK_AFTER: Duration = Duration::from_secs(90);
/// The time after the last fault until neighbors are resolved again.
const RESOLVED_IN: Duration = Duration::from_secs(60);
/// The time limit of the test that every host reaches every other.
const REACHED_IN: Duration = Duration::from_secs(60);
/// The quiet time, after which unused neighbors and connections have expired.
const QUIET: Duration = Duration::from_secs(600);

/// A fault.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Cable(usize),
    /// A host is killed, and restarts at the end of the fault.
    Kill(usize),
    /// A host disconnects in order, and restarts at the end of the fault.
    Leave(usize),
    Links(Wire),
    /// Another subnet manager takes over, without state.
    Manager,
}

fn wire() -> Wire {
    Wire { latency: Duration::from_micros(1), ..Wire::default() }
}

impl Fault {
    /// A random fault and its duration.
    fn any(rng: &mut SeededRng) -> (Self, Duration) {
        let host = rng.below(MODES.len() as u64) as usize;
        let fault = match rng.below(10) {
            0..=2 => Self::Cable(host),
            3 | 4 => Self::Kill(host),
            5 => Self::Leave(host),
            6 => Self::Manager,
            _ => Self::Links(storm(rng)),
        };
        let long = if rng.happens(500_000) { SECOND } else { 15 * SECOND };
        (fault, rng.duration(long))
    }

    fn begin(self, world: &mut World) {
        match self {
            Self::Cable(host) => world.set_cable(host, false),
            Self::Kill(host) => world.kill(host),
            Self::Leave(host) => leave(world, host),
            Self::Links(wire) => world.net.net_mut().set_wires(wire),
            Self::Manager => {
                let at = End { node: first_host(world), port: 1 };
                world.net.start_manager(at, sm::SmConfig::default());
            }
        }
    }

    fn end(self, world: &mut World, counters: &Shared) {
        match self {
            Self::Cable(host) => world.set_cable(host, true),
            Self::Kill(host) | Self::Leave(host) if world.slots[host].host.is_none() => {
                world.start(host);
                serve(world, host, counters);
            }
            Self::Links(_) => world.net.net_mut().set_wires(wire()),
            Self::Kill(_) | Self::Leave(_) | Self::Manager => {}
        }
    }
}

fn storm(rng: &mut SeededRng) -> Wire {
    let mut chance = |max: u64| if rng.below(2) == 0 { 0 } else { rng.below(max) as u32 };
    let faults = Faults {
        loss: chance(50_000),
        duplication: chance(10_000),
        reordering: chance(10_000),
        corruption: chance(5_000),
        delay_max: Duration::from_micros(200),
    };
    let latency = rng.duration(Duration::from_millis(2));
    Wire { faults, latency, ..wire() }
}

/// The host of the manager, which is the first.
fn first_host(world: &World) -> u32 {
    let net = world.net.net();
    let nodes = (0..).zip(net.subnet().nodes());
    nodes.into_iter().find(|(_, node)| !node.is_switch()).expect("there are hosts").0
}

/// Disconnects a host in order, within two seconds.
fn leave(world: &mut World, host: usize) {
    let now = world.now();
    let Some(it) = &mut world.slots[host].host else { return };
    it.disconnect(now);
    let end = now + 2 * SECOND;
    while world.slots[host].host.as_ref().is_some_and(|it| !it.is_disconnected()) && world.step(end)
    {
    }
    world.kill(host);
}

/// Starts the server programs of a host.
fn serve(world: &mut World, host: usize, counters: &Shared) {
    world.run(host, Server::new(counters));
    world.run(host, Echo::default());
    world.run(host, GroupMember::new(counters));
}

/// Starts a random program.
fn begin_any(world: &mut World, rng: &mut SeededRng, stream: &mut u64, counters: &Shared) {
    let count = MODES.len() as u64;
    let from = rng.below(count) as usize;
    let to = (from + 1 + rng.below(count - 1) as usize) % MODES.len();
    *stream += 1;
    match rng.below(10) {
        0 | 1 => {
            let lens = (0..=rng.below(20)).map(|_| 1 + rng.below(3000) as usize).collect();
            let every = rng.duration(SECOND / 2);
            world.run(from, EchoClient::new(counters, at(to, ECHOES), lens, every));
        }
        2 => world.run(from, GroupSender::new(counters, 5, rng.duration(SECOND))),
        kind => {
            let most = if kind == 3 { 1_500_000 } else { 30_000 };
            let (there, back) = (rng.below(most) as usize, rng.below(most) as usize);
            let abort_at = (kind == 4).then_some(there / 2);
            // Some ports are closed.
            let port = if kind == 5 && rng.happens(300_000) { 81 } else { STREAMS };
            let plan = Plan { abort_at, ..Plan::new(*stream, at(to, port), there, back) };
            world.run(from, Client::new(plan, counters));
        }
    }
}

/// Runs an era of random programs and faults.
fn run_faults(world: &mut World, rng: &mut SeededRng, stream: &mut u64, counters: &Shared) {
    let end = world.now() + FAULTS_TIME;
    let mut next_program = world.now();
    let mut next_fault = world.now() + rng.duration(5 * SECOND);
    let mut under_way: BTreeMap<(Time, u64), Fault> = BTreeMap::new();
    let mut number = 0;
    while world.now() < end {
        let now = world.now();
        if next_program <= now {
            begin_any(world, rng, stream, counters);
            next_program = now + rng.duration(SECOND);
        }
        if next_fault <= now {
            let (fault, lasts) = Fault::any(rng);
            fault.begin(world);
            number += 1;
            under_way.insert((now + lasts, number), fault);
            next_fault = now + rng.duration(10 * SECOND);
        }
        while let Some(over) = under_way.first_entry().filter(|entry| entry.key().0 <= now) {
            over.remove().end(world, counters);
        }
        let over = under_way.first_key_value().map(|((at, _), _)| *at);
        let next = [Some(next_program), Some(next_fault), over, Some(end)];
        let next = next.into_iter().flatten().min().unwrap_or(end);
        while world.step(next) {}
    }
    under_way.into_values().for_each(|fault| fault.end(world, counters));
    // Two faults of a kind may have overlapped.
    (0..MODES.len()).for_each(|host| world.set_cable(host, true));
    world.net.net_mut().set_wires(wire());
}

/// Transfers a stream and datagrams between all pairs of hosts.
fn check_reachability(world: &mut World, stream: &mut u64) {
    let counters = Shared::default();
    let pairs = (0..MODES.len()).flat_map(|from| (0..MODES.len()).map(move |to| (from, to)));
    let pairs: Vec<_> = pairs.filter(|(from, to)| from != to).collect();
    let before = world.programs();
    for &(from, to) in &pairs {
        *stream += 1;
        let plan = Plan::new(*stream, at(to, STREAMS), 20_000, 100_000);
        world.run(from, Client::new(plan, &counters));
        world.run(from, EchoClient::new(&counters, at(to, ECHOES), vec![100; 10], SECOND / 10));
    }
    world.until("all hosts reach each other", REACHED_IN, |world| world.programs() == before);
    let counters = counters.borrow();
    assert_eq!(counters.done, pairs.len() as u64, "{counters:?}");
    // Datagrams sent before a path is resolved may be lost.
    assert!(counters.echoed >= counters.asked * 9 / 10, "{counters:?}");
}

/// The resources of all hosts in the quiet time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Resources {
    bytes: usize,
    peers: usize,
    connections: usize,
    queue_pairs: usize,
    /// Mappings of packet memory.
    mapped: usize,
}

/// Each host has two packet memories, one for datagrams and one for messages, each mapped twice.
const MAPPED: usize = 4 * MODES.len();

/// Mappings of packet memory in this process.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("there is /proc");
    maps.lines().filter(|line| line.contains("memfd:packets")).count()
}

/// The resources of all hosts, after checks of each host.
fn check_resources(world: &mut World) -> Resources {
    let mut all = Resources { bytes: MEMORY.bytes(), mapped: mapped(), ..Resources::default() };
    assert_eq!(all.mapped, MAPPED, "mappings of killed hosts");
    for (nth, slot) in world.slots.iter_mut().enumerate() {
        let qps = slot.qps();
        let host = slot.host();
        assert_eq!(host.stack.tcp_len(), 0, "host {nth}: leaked connections");
        assert!(host.has_sent(), "host {nth}: unsent packets");
        let driver = host.node().worker.driver();
        let load = host.control().expect("worker 0 has it").load();
        assert_eq!((load.pending, load.sa_queries), (0, (0, 0)), "host {nth}: {load:?}");
        assert_eq!(driver.netdev().buffers_in_use(), 0, "host {nth}: buffers");
        assert_eq!(driver.undone().count(), 0, "host {nth}: undone commands");
        // One queue pair for datagrams, and one for management.
        assert_eq!(qps, 2 + load.connections, "host {nth}: queue pairs, {load:?}");
        let most = MODES.len();
        let is_within = load.neighbors <= most && load.peers <= 2 * most && load.paths <= most;
        assert!(is_within && load.connections <= 2 * most, "host {nth}: {load:?}");
        all.peers += load.peers;
        all.connections += load.connections;
        all.queue_pairs += qps;
    }
    all
}

/// Runs eras for the time at least.
pub fn run(seed: u64, time: Duration) {
    let tcp = TcpConfig {
        receive_bytes: 128 << 10,
        send_bytes: 128 << 10,
        user_timeout: 20 * SECOND,
        ..TcpConfig::default()
    };
    let config = StackConfig { tcp, ..StackConfig::default() };
    let mut rng = SeededRng::new(seed);
    let mut world = World::new(rng.next_u64(), &MODES, wire(), &config);
    let counters = Shared::default();
    (0..MODES.len()).for_each(|host| serve(&mut world, host, &counters));
    let served = world.programs();
    let (begin, mut stream, mut samples) = (world.now(), 0, Vec::new());
    while world.now() < begin + time {
        run_faults(&mut world, &mut rng, &mut stream, &counters);
        world.until("all programs end", STUCK_AFTER, |world| world.programs() == served);
        world.pass(RESOLVED_IN);
        check_reachability(&mut world, &mut stream);
        world.pass(QUIET);
        let resources = check_resources(&mut world);
        println!("{:?}: {resources:?}", world.now());
        samples.push(resources);
    }
    let Counters { begun, done, failed, bytes, asked, echoed, group_sent, group_received } =
        &*counters.borrow();
    println!("{begun} streams: {done} complete, others {failed:?}; {bytes} bytes");
    println!(
        "{asked} datagrams: {echoed} echoes; {group_sent} to the group: {group_received} received"
    );
    check_growth(&samples);
}

/// Memory does not grow from era to era.
fn check_growth(samples: &[Resources]) {
    let (early, late) = samples.split_at(samples.len().div_ceil(2));
    let most = |all: &[Resources], of: fn(&Resources) -> usize| all.iter().map(of).max();
    if late.is_empty() {
        return;
    }
    let [before, after] = [early, late].map(|all| most(all, |it| it.bytes).unwrap_or(0));
    // Queues keep their capacity.
    assert!(after <= before + before / 8, "memory grows: {before} to {after} bytes");
}
