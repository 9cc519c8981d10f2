//! A hostile client beside two honest ones, in separate processes, for `POLLUX_HOSTILE_SECONDS`:
//! the honest clients detect no lost or changed message, the server neither fails nor grows, and no
//! memory that the hostile client maps has data of messages between the honest ones.
//!
//! Three hosts at a switch: the honest ones share a partition of their own, and a common one with
//! all. The honest clients run in this process; the others are child processes of the same program.
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

/// The least number of messages of each service, on any machine.
const MESSAGES_MIN: usize = 100;
/// The heap limit of the server: two honest clients, and all that a hostile one can queue or
/// request.
const SERVER_HEAP_MAX: u64 = 8 << 20;
/// Additional mappings of the server, or of the process of the honest clients, after the end of the
/// hostile client: their rings, and their leased memory.
const KEPT_MAX: usize = 16;
/// The additional heap of the honest clients, at most.
const HONEST_HEAP_MAX: usize = 2 << 20;
/// Attachments of the hostile client in which all actions occur, each with some hundred actions or
/// more.
const LIVES_MAX: u64 = 1000;
/// Repetitions of a query for each answered one, at most.
const REPETITIONS_MAX: u64 = 8;

#[global_allocator]
static MEMORY: Counted = Counted::new();

/// A child process with a role, which does not outlive the test.
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

/// The number of mappings of a process.
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

/// Does nothing as a test. As a child process it has its role.
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

/// Serves until its standard input ends, and then prints the drops.
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

/// Executes the actions of the seed until it is killed or its time is over, and prints them.
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
        // A search of all memory takes long, and a detach loses the rings.
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
    // The data may be anywhere in shared memory.
    std::process::abort();
}

/// Lets both honest clients make progress; returns the arrived messages, by service.
fn step(honest: &mut [Honest; 2]) -> [Vec<usize>; 2] {
    let came = [0, 1].map(|nth| honest[nth].came());
    for (nth, client) in honest.iter_mut().enumerate() {
        client.step(&came[1 - nth]);
    }
    came
}

#[test]
fn a_hostile_client_does_not_affect_honest_ones() {
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
    // Resources that the hostile client had of others are released when they have read of its end.
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
