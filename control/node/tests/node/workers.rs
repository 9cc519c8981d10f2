//! An interface that several workers move: each by connections of its own, and still one interface.

use crate::device::ailing;
use crate::fabric::{Manager, Running};
use crate::host::{Host, Hosts, settings};
use crate::nodes::PARTITIONS;
use crate::team::{TIMEOUT, World, ip, packet, payload};
use pollux_control::ipoib::WorkerId;
use pollux_control::thread_check::mark_worker_thread;
use pollux_fabric::link::Wire;
use pollux_fabric::link::fault::Faults;
use pollux_node::interface::echo::{EchoOutcome, EchoRequest};
use pollux_node::interface::{self, IpoibLink};
use pollux_node::port::DevicePort;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_verbs::{AsyncEvent, VerbsError};
use std::net::Ipv4Addr;
use std::time::Duration;

const TWO: &str = "mode = 'rc'\nworkers = 2";
const ONE: &str = "mode = 'rc'";

/// Worlds that things go wrong in, and what interfaces are there.
const SEEDS: u64 = 5;
const KEYS: [&str; 5] =
    [ONE, TWO, "mode = 'rc'\nworkers = 3", "mode = 'uc'\nworkers = 2", "mode = 'ud'\nworkers = 2"];

/// Connections of a team that are open, by their workers.
fn workers(world: &World, nth: usize) -> Vec<u8> {
    world.teams[nth].connections().iter().map(|row| row.worker.0).collect()
}

/// The outcome of an echo request of a team.
fn ping(world: &mut World, from: usize, to: usize, bytes: usize) -> EchoOutcome {
    let now = world.now();
    let interface = world.teams[from].interface_mut();
    let id = interface
        .ping(now, EchoRequest::new(ip(to).into(), bytes, Duration::from_secs(5)))
        .expect("it is up");
    let mut outcome = None;
    world.until("an answer, or none", |world| {
        outcome = world.teams[from].interface_mut().echo(id);
        outcome.is_some()
    });
    outcome.expect("waited for").0
}

#[test]
fn workers_of_two_nodes_speak_each_by_a_connection_of_its_own() {
    let mut world = World::new(1, &[TWO, TWO], Wire::default());
    for worker in [0, 1] {
        for bytes in [20, 2000, 60_000] {
            world.must_reach((0, worker), 1, bytes);
        }
    }
    world.until("two connections", |world| workers(world, 0) == [0, 1]);
    assert_eq!(workers(&world, 1), [0, 1]);
    // Once connections are open, packets of a worker reach the worker of the same number.
    for (from, to) in [(0, 1), (1, 0)] {
        for worker in [0, 1] {
            assert_eq!(world.must_reach((from, worker), to, 3000), WorkerId(worker));
        }
    }
    // Packets without a socket go to control, whichever worker they arrive at.
    let echo = matches!(ping(&mut world, 0, 1, 1000), EchoOutcome::Answered { bytes: 1008, .. });
    assert!(echo, "ping");
    world.pass(Duration::from_secs(1));
    for team in &world.teams {
        let all_counters: Vec<_> =
            team.interface().counters().map(|(_, counters)| counters).collect();
        assert_eq!(all_counters.len(), 2);
        for counters in &all_counters {
            let lost =
                (counters.refusals.total(), counters.counts.punts_dropped, counters.counts.no_room);
            assert_eq!(lost, (0, 0, 0), "{counters:?}");
            assert!(counters.traffic.connected_sent > 0 && counters.traffic.connected_received > 0);
        }
        let secondaries = &all_counters[1].uses;
        let row = &team.connections()[1];
        assert!(secondaries[&row.connection].sent > 0, "{secondaries:?}");
    }
}

/// As many as a configuration may ask for, and control beside them.
#[test]
fn eight_workers_speak_each_by_a_connection_of_its_own() {
    const EIGHT: &str = "mode = 'rc'\nworkers = 8";
    let mut world = World::new(2, &[EIGHT, EIGHT], Wire::default());
    (0..8).for_each(|worker| _ = world.must_reach((0, worker), 1, 3000));
    world.until("eight connections", |world| workers(world, 0).len() == 8);
    for worker in 0..8 {
        assert_eq!(world.must_reach((0, worker), 1, 3000), WorkerId(worker));
    }
    end(&mut world);
}

#[test]
fn a_secondary_worker_knows_the_state_of_the_interface() {
    let mut world = World::new(2, &[TWO, TWO], Wire::default());
    world.pass(Duration::from_secs(1));
    let team = &mut world.teams[0];
    let (others, far) = (ip(1).into(), "192.0.2.1".parse().expect("an address"));
    let state_of = |worker: &interface::InterfaceWorker| {
        let sources = [others, far].map(|to| worker.source_for(to));
        let neighbors = [others, far, ip(254).into()].map(|to| worker.is_on_link(to));
        (worker.own(), sources, neighbors, worker.datagram_mtu())
    };
    let primary = state_of(team.worker(0));
    assert_eq!((&primary, primary.3), (&state_of(team.worker(1)), Some(2044)));
    assert_eq!((primary.1, primary.2), ([Some(ip(0).into()); 2], [true, false, false]));
}

#[test]
fn two_workers_get_on_with_one() {
    for keys in [[TWO, ONE], [ONE, TWO]] {
        let mut world = World::new(3, &keys, Wire::default());
        let (two, one) = if keys[0] == TWO { (0, 1) } else { (1, 0) };
        for bytes in [20, 60_000] {
            for worker in [0, 1] {
                world.must_reach((two, worker), one, bytes);
            }
            world.must_reach((one, 0), two, bytes);
        }
        assert_eq!((workers(&world, two), workers(&world, one)), (vec![0, 1], vec![0, 0]));
    }
}

#[test]
fn a_peer_learns_a_secondary_queue_pair_once_it_receives_messages() {
    let mut world = World::new(3, &["mode = 'uc'\nworkers = 2"; 2], Wire::default());
    world.must_reach((0, 0), 1, 3000);
    world.teams[1].received.clear();
    let send = |world: &mut World, number| {
        world.send((0, 1), 1, &[number; 20]).expect("there is space");
    };
    send(&mut world, 0);
    world.until("its queue pair is made", |world| {
        let mut rows = world.teams[1].interface().control().connection_rows();
        rows.any(|row| row.worker == WorkerId(1) && row.qpn.is_some())
    });
    world.teams[1].asleep_until = Some(world.now() + Duration::from_millis(10));
    for number in 1..200 {
        send(&mut world, number);
        world.pass(Duration::from_micros(100));
    }
    assert_eq!(workers(&world, 0), [0, 1], "all that while it was made");
    world.pass(Duration::from_secs(1));
    let mut received: Vec<_> =
        world.teams[1].received.iter().map(|(_, payload)| payload[0]).collect();
    received.sort_unstable();
    assert_eq!(
        received,
        (0..200).collect::<Vec<_>>(),
        "an unreliable connection sends nothing twice"
    );
}

#[test]
fn a_failed_connection_of_a_secondary_worker_is_made_again_and_the_others_stay() {
    let mut world = World::new(4, &[TWO, TWO], Wire::default());
    for worker in [0, 1] {
        world.must_reach((0, worker), 1, 3000);
    }
    world.until("two connections", |world| workers(world, 0) == [0, 1]);
    let [primary, secondary] = &world.teams[0].connections()[..] else { panic!("there are two") };
    let (primary, secondary) = (primary.connection, secondary.connection);
    {
        let illness = world.teams[0].illness_of(1);
        let mut illness = illness.lock().expect("no test has panicked");
        let last = *illness.qps.last().expect("it has one");
        illness.events.push_back(AsyncEvent::QpAccessError(last));
    }
    let is_there =
        |world: &World, key| world.teams[0].connections().iter().any(|row| row.connection == key);
    world.until("it is gone", |world| !is_there(world, secondary));
    assert_eq!(world.must_reach((0, 0), 1, 3000), WorkerId::PRIMARY);
    // Its packets go by the primary worker's connection until there is another, after a pause.
    let end = world.now() + TIMEOUT;
    while world.must_reach((0, 1), 1, 3000) == WorkerId::PRIMARY {
        assert!(world.now() < end, "there is no other");
    }
    assert_eq!((workers(&world, 0), workers(&world, 1)), (vec![0, 1], vec![0, 1]));
    assert!(is_there(&world, primary), "the primary's stays");
}

#[test]
fn an_interface_fails_when_any_of_its_workers_loses_its_device() {
    let mut world = World::new(5, &[TWO, TWO], Wire::default());
    world.must_reach((0, 1), 1, 3000);
    {
        let illness = world.teams[0].illness_of(1);
        let mut illness = illness.lock().expect("no test has panicked");
        illness.events.push_back(AsyncEvent::DeviceFatal);
    }
    world.until("it fails", |world| world.teams[0].interface().failed().is_some());
    let failed = world.teams[0].interface().failed();
    assert!(matches!(failed, Some(VerbsError::Lost { what: "adapter", .. })), "{failed:?}");
    // A worker fails without its interface, and an interface without one of its workers.
    world.kill(0);
    world.start(0);
    world.teams[0].workers.truncate(1);
    world.until("it fails again", |world| world.teams[0].interface().failed().is_some());
    let failed = world.teams[0].interface().failed();
    assert!(matches!(failed, Some(VerbsError::Lost { what: "worker", .. })), "{failed:?}");
    world.kill(0);
    world.teams[1].interface = None;
    world.until("its workers go", |world| world.teams[1].workers.is_empty());
    (0..2).for_each(|nth| world.kill(nth));
    (0..2).for_each(|nth| world.start(nth));
    world.must_reach((0, 1), 1, 3000);
}

#[test]
fn an_interface_leaves_with_all_its_workers() {
    let mut world = World::new(6, &[TWO, TWO], Wire::default());
    for worker in [0, 1] {
        world.must_reach((0, worker), 1, 3000);
    }
    world.until("two connections", |world| workers(world, 1) == [0, 1]);
    let now = world.now();
    // Accepted packets go first.
    assert_eq!(world.send((0, 1), 1, &[7; 5000]), Ok(()));
    let drained = |world: &World| world.teams[0].interface().is_drained();
    world.until("drained", |world| drained(world));
    world.teams[0].interface_mut().leave(now);
    world.until("left", |world| world.teams[0].interface().has_left());
    assert_eq!((world.teams[0].interface().failed(), world.teams[0].workers.len()), (None, 0));
    world.until("told", |world| world.teams[1].connections().is_empty());
    assert!(world.teams[1].received.iter().any(|(_, payload)| payload == &[7; 5000]));
    let ended = world.teams[1].interface().control().drop_rows().find(|row| row.1 == "peer_ended");
    assert_eq!(ended.map(|(_, _, count)| count), Some(2));
}

#[test]
fn own_packets_that_a_group_returns_are_ignored() {
    let ud = "mode = 'ud'\nworkers = 3";
    let mut world = World::new(7, &[ud, ud], Wire::default());
    let now = world.now();
    let group = Ipv4Addr::new(239, 1, 2, 3);
    for team in &mut world.teams {
        assert!(team.interface_mut().join_group(now, group.into()));
    }
    world.pass(Duration::from_secs(5));
    let to_group = packet(ip(0), group, b"all");
    for worker in [2, 1, 0, 1, 2] {
        let now = world.now();
        let _ = world.teams[0].worker(worker).send(now, &to_group);
        world.pass(Duration::from_secs(1));
    }
    assert!(world.teams[0].received.is_empty(), "{:?}", world.teams[0].received);
    assert!(world.teams[1].received.len() >= 3, "{:?}", world.teams[1].received);
    assert!(world.teams[1].received.iter().all(|(worker, _)| *worker == WorkerId::PRIMARY));
}

#[test]
fn a_device_without_space_for_a_second_worker_is_refused_with_advice() {
    let fabric = Running::start("a_device_without_a_second_place", 1, Manager::Ours);
    let (opened, illness) = ailing(&fabric.port(1));
    illness.lock().expect("no test has panicked").refuses.push("open_shared");
    let settings = settings("soft:", "10.0.0.1/24", TWO);
    let refused = IpoibLink::new(Time::START, opened, &settings, 1).err();
    let message = refused.expect("it is refused").to_string();
    assert!(message.contains("lower `workers` of the interface"), "{message}");
}

#[test]
fn partitions_of_one_port_have_workers_each() {
    let fabric = Running::partitioned("partitions_of_one_port_have_workers", 2, PARTITIONS);
    let mut hosts = Hosts::with(&[], "");
    let mut secondaries = Vec::new();
    for host in 1..=2 {
        let opened = pollux_node::open(&fabric.port(host)).expect("the port is free");
        let port = DevicePort::new(opened).expect("it is whole");
        for (subnet, keys) in ["", "\npkey = 0x8001"].into_iter().enumerate() {
            let settings =
                settings("soft:", &format!("10.0.{subnet}.{host}/24"), &format!("{TWO}{keys}"));
            let context = port.context(settings.pkey).expect("it has space");
            let (primary, team) =
                Host::with_workers(Time::START, context, &settings, 10 * host as u64);
            hosts.hosts.push(primary);
            secondaries.extend(team);
        }
    }
    hosts.come_up();
    let mut received = [0; 4];
    let begun = hosts.now();
    while received.contains(&0) {
        let now = hosts.now();
        assert!(now < begun + TIMEOUT, "{received:?}");
        hosts.step();
        for (nth, secondary) in secondaries.iter_mut().enumerate() {
            let ip = |host| Ipv4Addr::new(10, 0, nth as u8 % 2, host);
            let (own, other) = if nth < 2 { (ip(1), ip(2)) } else { (ip(2), ip(1)) };
            secondary.breathe(now, &mut |_, packet| {
                let is_ours = payload(packet) == Some(&other.octets());
                received[nth] += u32::from(is_ours);
                is_ours
            });
            let _ = secondary.send(now, &packet(own, other, &own.octets()));
            secondary.flush();
        }
    }
    for primary in &hosts.hosts {
        let rows: Vec<_> = primary.control().connection_rows().map(|row| row.worker.0).collect();
        assert!(rows.contains(&1), "{rows:?}");
    }
}

/// The faults of a world's links.
fn storm(rng: &mut SeededRng) -> Wire {
    let mut chance = |max: u64| if rng.below(2) == 0 { 0 } else { rng.below(max) as u32 };
    let faults = Faults {
        loss: chance(50_000),
        duplication: chance(10_000),
        reordering: chance(10_000),
        corruption: chance(5_000),
        delay_max: Duration::from_micros(200),
    };
    Wire { faults, ..Wire::default() }
}

#[test]
fn every_worker_reaches_every_node_after_random_events() {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut rng = SeededRng::new(seed);
        let keys: Vec<_> = (0..3).map(|_| KEYS[rng.below(KEYS.len() as u64) as usize]).collect();
        let mut world = World::new(seed, &keys, Wire::default());
        let wire = storm(&mut rng);
        world.net.net_mut().set_wires(wire);
        for _ in 0..40 {
            let nth = rng.below(3) as usize;
            match rng.below(12) {
                0 => {
                    world.kill(nth);
                    let pause = Duration::from_millis(rng.below(5000));
                    world.pass(pause);
                    world.start(nth);
                }
                1 => {
                    world.set_cable(nth, false);
                    let pause = Duration::from_millis(rng.below(10_000));
                    world.pass(pause);
                    world.set_cable(nth, true);
                }
                _ => {
                    let workers = world.teams[nth].workers.len() as u64;
                    let (worker, to) = (rng.below(workers) as u8, rng.below(2) as usize);
                    let to = (nth + 1 + to) % 3;
                    let bytes = 1 + rng.below(10_000) as usize;
                    let _ = world.send((nth, worker), to, &vec![0; bytes]);
                    let pause = Duration::from_micros(rng.below(1_000_000));
                    world.pass(pause);
                }
            }
        }
        world.net.net_mut().set_wires(Wire::default());
        world.until("all are up", |world| world.teams.iter().all(|team| team.is_up()));
        for from in 0..3 {
            for worker in 0..world.teams[from].workers.len() as u8 {
                for to in (0..3).filter(|to| *to != from) {
                    world.must_reach((from, worker), to, 1000);
                }
            }
        }
        end(&mut world);
    }
}

/// All leave, and have their buffers back then.
fn end(world: &mut World) {
    world.pass(Duration::from_secs(1));
    for team in &world.teams {
        let drivers = team.workers.iter().map(interface::InterfaceWorker::driver);
        let used: Vec<_> = drivers.map(|driver| driver.netdev().buffers_in_use()).collect();
        assert!(used.iter().all(|used| *used == 0), "{used:?}");
    }
    let now = world.now();
    world.teams.iter_mut().for_each(|team| team.interface_mut().leave(now));
    world
        .until("all have left", |world| world.teams.iter().all(|team| team.interface().has_left()));
    for team in &world.teams {
        assert_eq!((team.interface().failed(), team.workers.len()), (None, 0));
    }
}

/// A secondary worker in a thread of its own, until its primary worker ends: it sends, and returns
/// the number of received packets.
fn work(
    mut secondary: interface::InterfaceWorker,
    (from, to): (Ipv4Addr, Ipv4Addr),
    clock: impl Fn() -> Time,
) -> u32 {
    mark_worker_thread();
    let (mut received, mut next) = (0, Time::START);
    let packet = packet(from, to, &[9; 5000]);
    while secondary.failed().is_none() {
        let now = clock();
        let busy = secondary.breathe(now, &mut |_, packet| {
            let is_ours = payload(packet) == Some(&[9; 5000]);
            received += u32::from(is_ours);
            is_ours
        });
        if next <= now {
            next = now + Duration::from_millis(1);
            let _ = secondary.send(now, &packet);
            secondary.flush();
        }
        if !busy {
            std::thread::yield_now();
        }
    }
    received
}

#[test]
fn secondary_workers_run_in_threads_of_their_own() {
    let fabric = Running::start("secondary_workers_run_in_threads_of_their_own", 2, Manager::Ours);
    let ips = [1, 2].map(|host| Ipv4Addr::new(10, 0, 0, host));
    std::thread::scope(|scope| {
        // It goes with whatever goes wrong here, and secondary workers with it.
        let mut hosts = Hosts::with(&[], "");
        let start = hosts.start();
        let clock = move || Time::START + start.elapsed();
        let mut threads = Vec::new();
        for (nth, (ip, to)) in [(ips[0], ips[1]), (ips[1], ips[0])].into_iter().enumerate() {
            let (primary, secondaries) =
                Hosts::with_workers(&fabric.port(nth + 1), &format!("{ip}/24"), TWO);
            hosts.hosts.push(primary);
            let thread = |secondary| scope.spawn(move || work(secondary, (ip, to), clock));
            threads.extend(secondaries.into_iter().map(thread));
        }
        hosts.come_up();
        let both = |hosts: &Hosts, nth| {
            let rows = hosts.connections(nth);
            let counts: Vec<_> =
                hosts.hosts[nth].interface().counters().map(|(_, it)| it.traffic).collect();
            rows.iter().any(|row| row.worker == WorkerId(1)) && counts[1].connected_received > 20
        };
        hosts.until("packets of secondaries", |hosts| both(hosts, 0) && both(hosts, 1));
        let now = hosts.now();
        hosts.hosts.iter_mut().for_each(|primary| primary.leave(now));
        hosts.until("left", |hosts| hosts.hosts.iter().all(Host::has_left));
        // Workers end with their interface.
        drop(hosts);
        for thread in threads {
            assert!(thread.join().expect("no secondary panics") > 20);
        }
    });
}

/// It acknowledges when its process polls, which a process that computes does not.
#[test]
fn an_adapter_in_software_is_waited_for_longer_than_hardware() {
    let mut world = World::new(6, &[TWO, TWO], Wire::default());
    world.must_reach((0, 0), 1, 3000);
    let rows: Vec<_> = world.teams.iter().flat_map(|team| team.connections()).collect();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let period = row.retry_period.expect("it is reliable");
        assert_eq!(period.as_millis(), 1073, "eight times 134.2 ms");
    }
}
