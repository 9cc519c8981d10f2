//! Eras of trouble, each followed by quiet: in that, all that was begun comes to its end, everybody
//! reaches everybody, and then hosts have no more than at first.

use crate::MEMORY;
use crate::traffic::{
    Asker, Client, Counters, ECHOES, Echo, Hearer, Plan, STREAMS, Server, Shared, Speaker,
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
/// How long things happen.
const TROUBLED: Duration = Duration::from_secs(120);
/// How long programs of a troubled time may take to end when it is over: a program has a timeout
/// of 30 s, TCP a user timeout of 20 s for data left behind, twice if a last word is lost, and
/// TIME-WAIT lasts 10 s.
const STUCK_AFTER: Duration = Duration::from_secs(90);
/// How long after the last trouble everybody knows again who is there.
const KNOWN_IN: Duration = Duration::from_secs(60);
/// How long everybody may take to reach everybody then.
const REACHED_IN: Duration = Duration::from_secs(60);
/// How long a quiet is, after which no table remembers what was: neighbors and connections that
/// nobody uses have gone.
const QUIET: Duration = Duration::from_secs(600);

/// Something that happens to a world.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Cable(usize),
    /// A host dies, and begins anew when it is over.
    Death(usize),
    /// A host takes leave, and begins anew when it is over.
    Leave(usize),
    Weather(Wire),
    /// Another subnet manager takes over, which knows nothing.
    Manager,
}

fn wire() -> Wire {
    Wire { latency: Duration::from_micros(1), ..Wire::default() }
}

impl Trouble {
    /// Any one, and how long it lasts.
    fn any(rng: &mut SeededRng) -> (Self, Duration) {
        let host = rng.below(MODES.len() as u64) as usize;
        let trouble = match rng.below(10) {
            0..=2 => Self::Cable(host),
            3 | 4 => Self::Death(host),
            5 => Self::Leave(host),
            6 => Self::Manager,
            _ => Self::Weather(storm(rng)),
        };
        let long = if rng.happens(500_000) { SECOND } else { 15 * SECOND };
        (trouble, rng.duration(long))
    }

    fn begin(self, world: &mut World) {
        match self {
            Self::Cable(host) => world.set_cable(host, false),
            Self::Death(host) => world.kill(host),
            Self::Leave(host) => leave(world, host),
            Self::Weather(wire) => world.net.net_mut().set_wires(wire),
            Self::Manager => {
                let at = End { node: first_host(world), port: 1 };
                world.net.start_manager(at, sm::SmConfig::default());
            }
        }
    }

    fn end(self, world: &mut World, counters: &Shared) {
        match self {
            Self::Cable(host) => world.set_cable(host, true),
            Self::Death(host) | Self::Leave(host) if world.slots[host].host.is_none() => {
                world.start(host);
                serve(world, host, counters);
            }
            Self::Weather(_) => world.net.net_mut().set_wires(wire()),
            Self::Death(_) | Self::Leave(_) | Self::Manager => {}
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

/// The host of the manager stands before all others.
fn first_host(world: &World) -> u32 {
    let net = world.net.net();
    let nodes = (0..).zip(net.subnet().nodes());
    nodes.into_iter().find(|(_, node)| !node.is_switch()).expect("there are hosts").0
}

/// A host takes leave in order, as far as others let it within two seconds.
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

/// A host's programs that others ask for something.
fn serve(world: &mut World, host: usize, counters: &Shared) {
    world.run(host, Server::new(counters));
    world.run(host, Echo::default());
    world.run(host, Hearer::new(counters));
}

/// Any program begins.
fn begin_any(world: &mut World, rng: &mut SeededRng, stream: &mut u64, counters: &Shared) {
    let count = MODES.len() as u64;
    let from = rng.below(count) as usize;
    let to = (from + 1 + rng.below(count - 1) as usize) % MODES.len();
    *stream += 1;
    match rng.below(10) {
        0 | 1 => {
            let lens = (0..=rng.below(20)).map(|_| 1 + rng.below(3000) as usize).collect();
            let every = rng.duration(SECOND / 2);
            world.run(from, Asker::new(counters, at(to, ECHOES), lens, every));
        }
        2 => world.run(from, Speaker::new(counters, 5, rng.duration(SECOND))),
        kind => {
            let most = if kind == 3 { 1_500_000 } else { 30_000 };
            let (there, back) = (rng.below(most) as usize, rng.below(most) as usize);
            let abort_at = (kind == 4).then_some(there / 2);
            // Sometimes nobody listens there.
            let port = if kind == 5 && rng.happens(300_000) { 81 } else { STREAMS };
            let plan = Plan { abort_at, ..Plan::new(*stream, at(to, port), there, back) };
            world.run(from, Client::new(plan, counters));
        }
    }
}

/// Goes on for so long, and lets things happen.
fn troubled(world: &mut World, rng: &mut SeededRng, stream: &mut u64, counters: &Shared) {
    let end = world.now() + TROUBLED;
    let mut next_program = world.now();
    let mut next_trouble = world.now() + rng.duration(5 * SECOND);
    let mut under_way: BTreeMap<(Time, u64), Trouble> = BTreeMap::new();
    let mut number = 0;
    while world.now() < end {
        let now = world.now();
        if next_program <= now {
            begin_any(world, rng, stream, counters);
            next_program = now + rng.duration(SECOND);
        }
        if next_trouble <= now {
            let (trouble, lasts) = Trouble::any(rng);
            trouble.begin(world);
            number += 1;
            under_way.insert((now + lasts, number), trouble);
            next_trouble = now + rng.duration(10 * SECOND);
        }
        while let Some(over) = under_way.first_entry().filter(|entry| entry.key().0 <= now) {
            over.remove().end(world, counters);
        }
        let over = under_way.first_key_value().map(|((at, _), _)| *at);
        let next = [Some(next_program), Some(next_trouble), over, Some(end)];
        let next = next.into_iter().flatten().min().unwrap_or(end);
        while world.step(next) {}
    }
    under_way.into_values().for_each(|trouble| trouble.end(world, counters));
    // Two of a kind may have overlapped.
    (0..MODES.len()).for_each(|host| world.set_cable(host, true));
    world.net.net_mut().set_wires(wire());
}

/// Everybody has a stream, and datagrams, for everybody else.
fn everybody_reaches_everybody(world: &mut World, stream: &mut u64) {
    let counters = Shared::default();
    let pairs = (0..MODES.len()).flat_map(|from| (0..MODES.len()).map(move |to| (from, to)));
    let pairs: Vec<_> = pairs.filter(|(from, to)| from != to).collect();
    let before = world.programs();
    for &(from, to) in &pairs {
        *stream += 1;
        let plan = Plan::new(*stream, at(to, STREAMS), 20_000, 100_000);
        world.run(from, Client::new(plan, &counters));
        world.run(from, Asker::new(&counters, at(to, ECHOES), vec![100; 10], SECOND / 10));
    }
    world.until("everybody reaches everybody", REACHED_IN, |world| world.programs() == before);
    let counters = counters.borrow();
    assert_eq!(counters.done, pairs.len() as u64, "{counters:?}");
    // The first may come before a way is known.
    assert!(counters.echoed >= counters.asked * 9 / 10, "{counters:?}");
}

/// What all hosts have, when nothing happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Holding {
    bytes: usize,
    peers: usize,
    connections: usize,
    queue_pairs: usize,
    /// Pieces of memory for packets that are mapped.
    mapped: usize,
}

/// Each host has two memories for packets, one for datagrams and one for messages, and each of
/// these is mapped twice.
const MAPPED: usize = 4 * MODES.len();

/// Memory for packets that this process has mapped.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux tells");
    maps.lines().filter(|line| line.contains("memfd:packets")).count()
}

/// What hosts have, after it is judged.
fn holding(world: &mut World) -> Holding {
    let now = world.now();
    let mut all = Holding { bytes: MEMORY.bytes(), mapped: mapped(), ..Holding::default() };
    assert_eq!(all.mapped, MAPPED, "memory of hosts that are gone");
    for (nth, slot) in world.slots.iter_mut().enumerate() {
        let qps = slot.qps();
        let host = slot.host();
        assert_eq!(host.stack.tcp_len(), 0, "host {nth}: connections that nobody has");
        assert!(host.has_sent(now), "host {nth}: something waits to be sent");
        let driver = host.node().worker.driver();
        let load = host.control().expect("worker 0 has it").load();
        assert_eq!((load.pending, load.sa_queries), (0, (0, 0)), "host {nth}: {load:?}");
        assert_eq!(driver.netdev().buffers_in_use(), 0, "host {nth}: buffers");
        assert_eq!(driver.undone().count(), 0, "host {nth}: what was refused");
        // One for datagrams and one for management.
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

/// Runs for so long at least.
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
    let (begin, mut stream, mut holdings) = (world.now(), 0, Vec::new());
    while world.now() < begin + time {
        troubled(&mut world, &mut rng, &mut stream, &counters);
        world.until("all programs end", STUCK_AFTER, |world| world.programs() == served);
        world.pass(KNOWN_IN);
        everybody_reaches_everybody(&mut world, &mut stream);
        world.pass(QUIET);
        let holding = holding(&mut world);
        println!("{:?}: {holding:?}", world.now());
        holdings.push(holding);
    }
    let Counters { begun, done, failed, bytes, asked, echoed, told, heard } = &*counters.borrow();
    println!("{begun} streams: {done} whole, others {failed:?}; {bytes} bytes");
    println!("{asked} datagrams: {echoed} echoes; {told} to the group: {heard} heard");
    judge(&holdings);
}

/// Nothing grows from era to era.
fn judge(holdings: &[Holding]) {
    let (early, late) = holdings.split_at(holdings.len().div_ceil(2));
    let most = |all: &[Holding], of: fn(&Holding) -> usize| all.iter().map(of).max();
    if late.is_empty() {
        return;
    }
    let [before, after] = [early, late].map(|all| most(all, |it| it.bytes).unwrap_or(0));
    // Queues keep the room that they once needed.
    assert!(after <= before + before / 8, "memory grows: {before} to {after} bytes");
}
