//! A hostile client beside two honest ones, all in processes of their own, for as long as
//! `POLLUX_HOSTILE_SECONDS` says: the honest ones lose nothing and find nothing changed, the server
//! neither fails nor grows, and no word of what the honest ones say to each other is found in
//! anything that the hostile one maps.
//!
//! Three hosts at a switch: the honest ones share a partition of their own, and another one with
//! everybody. The honest clients run here, the others are this program
//! again.
#![expect(clippy::disallowed_methods, reason = "processes need a clock, and are told their part")]

mod attacker;
mod honest;
#[path = "../common/managed.rs"]
mod managed;
#[path = "../fabric/pair.rs"]
#[expect(dead_code, reason = "others need all of it")]
mod pair;
#[path = "../common/pair_world.rs"]
mod pair_world;
#[path = "../common/served.rs"]
#[expect(dead_code, reason = "others need all of it")]
mod served;

use attacker::{ACTS, Attacker, Counts, OUTCOMES};
use honest::{Honest, WAIT_MAX};
use pollux_counted::Counted;
use pollux_fabric::node::{NodeDrop, PKeys};
use pollux_verbs::rng::SeededRng;
use pollux_wire::keys::PKey;
use served::{clock, name, path_of, server};
use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "POLLUX_HOSTILE_ROLE";
const PATH: &str = "POLLUX_HOSTILE_PATH";
const SEED: &str = "POLLUX_HOSTILE_SEED";
const SECONDS: &str = "POLLUX_HOSTILE_SECONDS";

/// Messages of each service that come at the least, however slow the machine is.
const MESSAGES_MIN: usize = 100;
/// What the server may come to need in its heap: two honest clients, and all that a hostile one can
/// have waiting for it or ask for.
const SERVER_HEAP_MAX: u64 = 8 << 20;
/// Pieces of memory that it, or the process of the honest clients, may have mapped when the hostile
/// one is gone, beyond those at the beginning: their rings, and their memory that is leased.
const KEPT_MAX: usize = 16;
/// What the honest ones may have come to need in their heap, beyond what was needed at the
/// beginning.
const HONEST_HEAP_MAX: usize = 2 << 20;
/// Lives of the hostile one in which it has done everything, each of some hundred acts or more.
const LIVES_MAX: u64 = 1000;
/// Repetitions of a question to an agent, at the most, for each one that is answered.
const REPETITIONS_MAX: u64 = 8;

#[global_allocator]
static MEMORY: Counted = Counted::new();

/// A process that plays a part, and does not outlive the test.
struct Part(Child);

impl Part {
    fn start(role: &str, path: &Path, seed: u64) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "part", "--nocapture"]);
        command.env(ROLE, role).env(PATH, path).env(SEED, seed.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Its output until its end, by name.
    fn said(&mut self) -> BTreeMap<String, u64> {
        let mut said = BTreeMap::new();
        let out = BufReader::new(self.0.stdout.take().expect("it has not been read"));
        for line in out.lines().map_while(Result::ok) {
            let count = line.strip_prefix("count ").and_then(|count| count.split_once(' '));
            let Some((what, number)) = count else { continue };
            if let Ok(number) = number.parse::<u64>() {
                said.insert(what.to_owned(), number);
            }
        }
        said
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

/// Pieces of memory that a process has mapped.
fn mappings(process: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps"));
    maps.expect("it runs").lines().count()
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does nothing as a test. As a process of its own it plays its part.
#[test]
fn part() {
    let (Ok(role), Ok(path)) = (env::var(ROLE), env::var(PATH)) else { return };
    let seed = env::var(SEED).unwrap().parse().unwrap();
    match role.as_str() {
        "server" => serve(Path::new(&path)),
        "attacker" => attack(Path::new(&path), seed),
        _ => panic!("no such part: {role}"),
    }
}

/// Serves until nobody is there to say more to it, and tells what was refused then.
fn serve(path: &Path) {
    let (mut server, clock, mut ports) = (server(path, "single:3"), clock(), 0);
    let (own, all) = (PKey(0x8001), PKey::DEFAULT);
    let keys = |keys: &[PKey]| {
        PKeys::new(std::array::from_fn(|nth| keys.get(nth).copied().unwrap_or(PKey::INVALID)))
    };
    let subnet = server.net_mut().subnet_mut();
    for node in [1, 2] {
        subnet.node_mut(node).ports[1].p_keys = keys(&[own, all]);
    }
    subnet.node_mut(3).ports[1].p_keys = keys(&[all]);
    let cable = &mut subnet.node_mut(0).ports[3];
    cable.info.partition_enforcement_inbound = true;
    cable.info.partition_enforcement_outbound = true;
    cable.p_keys = keys(&[all]);
    let (over, is_over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = over.send(());
    });
    while is_over.try_recv().is_err() {
        server.turn(clock(), &mut ports);
    }
    for (which, node) in server.net().subnet().nodes().iter().enumerate() {
        println!("count node-{which} {}", node.drops.total());
        println!("count unclaimed-{which} {}", node.drops.of(NodeDrop::Unclaimed));
    }
    println!("count heap {}", MEMORY.bytes_max());
}

/// Does whatever the seed says until it is killed, or until it is time to die. Tells of all that it
/// did before that.
fn attack(path: &Path, seed: u64) {
    let (mut rng, mut counts, parent) = (SeededRng::new(seed), Counts::default(), parent_id());
    let turns = 200 + rng.below(2000);
    let mut attacker = None;
    for _ in 0..turns {
        assert_eq!(parent_id(), parent, "nobody is there any more");
        let Some(at) = &mut attacker else {
            counts.acts[ACTS.iter().position(|act| *act == "attach").unwrap()] += 1;
            attacker = Attacker::attach(path, "host3", 0);
            if attacker.is_none() {
                counts.outcomes[1] += 1;
                std::thread::yield_now();
            }
            continue;
        };
        let act = rng.below(ACTS.len() as u64) as usize;
        // To look through all memory takes long, and to leave loses the rings.
        let is_rare = ["attach", "snoop", "nonsense", "deaf"].contains(&ACTS[act]);
        if !is_rare || rng.below(30) == 0 {
            at.act(act, &mut rng, &mut counts);
        }
        if at.is_out() {
            counts.outcomes[0] += 1;
            attacker = None;
        }
    }
    for (what, count) in ACTS.iter().zip(counts.acts).chain(OUTCOMES.iter().zip(counts.outcomes)) {
        println!("count {what} {count}");
    }
    // Wherever it is in what it shares with others.
    std::process::abort();
}

/// Has both honest clients go on; returns how much has come there, by service.
fn step(honest: &mut [Honest; 2]) -> [Vec<usize>; 2] {
    let came = [0, 1].map(|nth| honest[nth].came());
    for (nth, client) in honest.iter_mut().enumerate() {
        client.step(&came[1 - nth]);
    }
    came
}

#[test]
fn a_hostile_client_takes_nothing_from_honest_ones() {
    let seconds = env::var(SECONDS).map_or(3, |seconds| seconds.parse().unwrap());
    let path = path_of("hostile");
    let mut server = Part::start("server", &path, 0);
    let mut honest = [1, 2].map(|host| Honest::new(&name(&path, host)));
    honest.iter_mut().for_each(Honest::await_port);
    let qpns = [0, 1].map(|nth| honest[nth].qpns());
    for (nth, client) in honest.iter_mut().enumerate() {
        client.connect(nth, &qpns[1 - nth]);
    }
    let mut sum: BTreeMap<String, u64> = BTreeMap::new();
    let has_done = |sum: &BTreeMap<String, u64>| {
        let done = ACTS.iter().chain(&["detached", "ring-to"]);
        done.into_iter().all(|what| sum.get(*what).is_some_and(|count| *count > 0))
    };
    let mut attacker = Part::start("attacker", &path, 1);
    let (begun, mut lives, mut progress) = (Instant::now(), 1, Instant::now());
    let processes = [server.0.id(), std::process::id()];
    let (mut before, mapped, heap) = (0, processes.map(mappings), MEMORY.bytes_max());
    loop {
        let came = step(&mut honest);
        let all: usize = came.iter().flatten().sum();
        let least = *came.iter().flatten().min().unwrap();
        if all > before {
            (before, progress) = (all, Instant::now());
        }
        assert!(progress.elapsed() < WAIT_MAX, "nothing comes any more: {came:?}");
        if !attacker.is_running() {
            attacker
                .said()
                .into_iter()
                .for_each(|(what, count)| *sum.entry(what).or_default() += count);
            lives += 1;
            attacker = Part::start("attacker", &path, lives);
        }
        let has_come = honest.iter().all(|client| client.answers > 0 && client.strange > 0);
        let is_done = has_come && least >= MESSAGES_MIN && has_done(&sum);
        if is_done && begun.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
        assert!(is_done || lives < LIVES_MAX, "in {lives} lives it did {sum:?}");
    }
    let honest_heap = MEMORY.bytes_max() - heap;
    drop(attacker);
    // What the hostile one had of others goes with it, as soon as they have heard of its end.
    let (over, mut kept) = (Instant::now(), [usize::MAX; 2]);
    while kept.iter().any(|pieces| *pieces > KEPT_MAX) {
        assert!(over.elapsed() < WAIT_MAX, "server and honest ones keep {kept:?} pieces of memory");
        (0..1000).for_each(|_| drop(step(&mut honest)));
        kept = [0, 1].map(|nth| mappings(processes[nth]).saturating_sub(mapped[nth]));
    }
    drop(server.0.stdin.take());
    let refused = server.said();
    assert!(server.0.wait().unwrap().success(), "the server failed");
    let came = [0, 1].map(|nth| honest[nth].came());
    println!("came {came:?}, in {lives} lives of the hostile one: {sum:?}");
    println!("the server refused {refused:?}; honest ones had {honest_heap} more bytes of heap");
    println!("server and honest ones have kept {kept:?} more pieces of memory");
    for client in &honest {
        let drops = &client.device.adapter.port().drops;
        println!("strange {}, repeated {}, {drops:?}", client.strange, client.repeated);
        assert!(client.repeated <= REPETITIONS_MAX * client.answers, "agents are not reached");
    }
    assert_eq!(sum["found"], 0, "it could read what was not for it");
    assert!(refused["unclaimed-3"] > 0);
    let heap = refused["heap"];
    assert!(heap <= SERVER_HEAP_MAX, "the server had {heap} bytes");
    assert!(honest_heap <= HONEST_HEAP_MAX, "honest ones needed {honest_heap} bytes more");
}
