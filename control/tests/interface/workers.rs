//! Interfaces that several workers move, each by connections of its own.

use crate::world::{World, packet, v4};
use pollux_control::cm::Role;
use pollux_control::ipoib::connected::{ConnectionRow, Policy};
use pollux_control::ipoib::{ConnectionKey, InterfaceConfig, WorkerId};
use pollux_fabric::sm::SmConfig;
use pollux_wire::ip::link_address::LinkAddress;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// Longer than any datagram.
const LONG: [u8; 9000] = [7; 9000];

fn adjusted(
    seed: u64,
    workers: [u8; 2],
    adjust: impl Fn(InterfaceConfig, usize) -> InterfaceConfig,
) -> World {
    let mut world = World::with(seed, 2, SmConfig::default(), |mut config, nth| {
        config.peer.policy = Policy::Rc;
        config.workers = workers[nth];
        adjust(config, nth)
    });
    world.pass(5 * SECOND);
    world.assert_up();
    world
}

/// Two hosts that connect, the first and the second with so many workers.
fn world(seed: u64, workers: [u8; 2]) -> World {
    adjusted(seed, workers, |config, _| config)
}

fn all(workers: u8) -> impl DoubleEndedIterator<Item = WorkerId> {
    (0..workers).map(WorkerId)
}

/// Every worker of a host reaches the other host by packets too long for a datagram.
fn assert_all_reach(world: &mut World, from: usize, workers: u8, within: Duration) {
    let (own, other) = (from as u8 + 1, 2 - from as u8);
    // In reverse order first, so that the primary worker sends last.
    for worker in all(workers).rev().chain(all(workers)) {
        let long = packet(v4(own), v4(other), &LONG);
        assert!(world.reaches_by(from, worker, 1 - from, &long, within), "{from}: {worker:?}");
    }
}

fn standing(world: &World, nth: usize) -> Vec<ConnectionRow> {
    let rows = world.hosts[nth].interface.connection_rows();
    rows.filter(|row| row.state != "ending").collect()
}

/// The connection of a host's worker, which has one.
fn of(world: &World, nth: usize, worker: WorkerId) -> ConnectionKey {
    let rows = standing(world, nth);
    let own: Vec<_> = rows.iter().filter(|row| row.worker == worker).collect();
    assert!(matches!(own[..], [ConnectionRow { state: "open", may_send: true, .. }]), "{rows:?}");
    own[0].connection
}

/// By which worker of the second host each connection of the first's workers is moved.
fn pairs(world: &World) -> Vec<(u8, u8)> {
    let there = &world.hosts[1].port_driver.connections;
    let mut pairs: Vec<_> = standing(world, 0)
        .iter()
        .map(|row| {
            let own = world.hosts[0].port_driver.connections[&row.connection];
            assert_eq!(own.worker, row.worker, "whose it is at the device");
            let ends: Vec<_> = there.values().filter(|it| Some(it.qpn) == own.dest_qp).collect();
            assert_eq!((ends.len(), ends[0].dest_qp), (1, Some(own.qpn)), "both mean each other");
            (own.worker.0, ends[0].worker.0)
        })
        .collect();
    pairs.sort_unstable();
    assert_eq!(pairs.len(), standing(world, 1).len());
    pairs
}

fn dropped(world: &World, nth: usize, why: &str) -> u64 {
    let rows = world.hosts[nth].interface.drop_rows();
    rows.filter(|row| row.1 == why).map(|row| row.2).sum()
}

// req: cm-connection-record
#[test]
fn each_worker_has_a_connection_of_its_own_to_the_same_worker_there() {
    for (workers, asks) in [(2, 0), (4, 1)] {
        let mut world = world(u64::from(workers), [workers; 2]);
        assert_all_reach(&mut world, asks, workers, SECOND);
        let same: Vec<_> = (0..workers).map(|worker| (worker, worker)).collect();
        assert_eq!(pairs(&world), same);
        let before: Vec<_> = standing(&world, 0);
        assert_all_reach(&mut world, 1 - asks, workers, SECOND);
        world.pass(60 * SECOND);
        assert_eq!(standing(&world, 0), before, "the same serve the other direction");
    }
}

#[test]
fn a_worker_that_needs_no_connection_has_none() {
    let mut world = world(5, [4, 4]);
    let long = packet(v4(1), v4(2), &LONG);
    assert!(world.reaches_by(0, WorkerId(2), 1, &long, SECOND));
    assert!(world.reaches_by(0, WorkerId(2), 1, &long, SECOND));
    assert_eq!(pairs(&world), [(0, 0), (2, 2)], "its own, and worker 0's that was first");
}

#[test]
fn ends_with_other_numbers_of_workers_keep_all_their_connections() {
    for (workers, ends) in [
        ([2, 1], vec![(0, 0), (1, 0)]),
        ([1, 2], vec![(0, 0), (0, 1)]),
        ([4, 2], vec![(0, 0), (1, 1), (2, 0), (3, 1)]),
        ([3, 2], vec![(0, 0), (1, 1), (2, 0)]),
    ] {
        let mut world = world(6, workers);
        for _ in 0..3 {
            assert_all_reach(&mut world, 0, workers[0], SECOND);
            assert_all_reach(&mut world, 1, workers[1], SECOND);
        }
        assert_eq!(pairs(&world), ends, "{workers:?}");
        let before = standing(&world, 0);
        world.pass(20 * SECOND);
        assert_all_reach(&mut world, 1, workers[1], SECOND);
        assert_all_reach(&mut world, 0, workers[0], SECOND);
        assert_eq!(standing(&world, 0), before, "{workers:?}: none has replaced another");
    }
}

// req: cm-crossing-requests
#[test]
fn requests_that_cross_make_one_connection_of_each_worker() {
    let mut crossings = 0;
    for seed in 0..10 {
        let mut world = world(seed, [4, 4]);
        let is_lossless = seed % 2 == 0;
        // Worker 0's connection is the first, and its requests cross too.
        for is_first in [true, false] {
            let now = world.now;
            for (nth, worker) in (0..2).flat_map(|nth| all(4).map(move |worker| (nth, worker))) {
                let (own, other) = (nth as u8 + 1, 2 - nth as u8);
                let packet = packet(v4(own), v4(other), b"cross");
                world.hosts[nth].interface.handle_miss(now, worker, packet);
            }
            world.mads_lost = if is_lossless { 0 } else { 300_000 };
            world.settle();
            if is_first && is_lossless {
                assert_eq!(pairs(&world), [(0, 0)], "seed {seed}");
            }
            world.pass(3 * SECOND);
            world.mads_lost = 0;
            world.pass(60 * SECOND);
        }
        assert_all_reach(&mut world, 0, 4, 10 * SECOND);
        assert_all_reach(&mut world, 1, 4, 10 * SECOND);
        world.pass(30 * SECOND);
        assert_eq!(pairs(&world), [(0, 0), (1, 1), (2, 2), (3, 3)], "seed {seed}");
        let rows = [0, 1].map(|nth| standing(&world, nth));
        let [one, other] = [&rows[1][0].peer, &rows[0][0].peer].map(LinkAddress::comparison_form);
        let role = if one < other { Role::Passive } else { Role::Active };
        let is_as_it_should = rows[0].iter().all(|row| row.role == role);
        assert!(is_as_it_should || !is_lossless, "seed {seed}: {:?}", rows[0]);
        crossings += dropped(&world, 0, "crossing") + dropped(&world, 1, "crossing");
    }
    assert!(crossings >= 40, "{crossings} requests have crossed");
}

#[test]
fn one_workers_connection_fails_and_the_others_stay() {
    let mut world = world(7, [2, 2]);
    assert_all_reach(&mut world, 0, 2, SECOND);
    world.pass(10 * SECOND);
    for failing in all(2) {
        let staying = WorkerId(1 - failing.0);
        let before = [of(&world, 0, failing), of(&world, 0, staying)];
        world.hosts[0].port_driver.fail(before[0]);
        world.settle();
        assert_eq!(of(&world, 0, staying), before[1]);
        assert_all_reach(&mut world, 0, 2, SECOND);
        world.pass(10 * SECOND);
        assert_ne!(of(&world, 0, failing), before[0], "it has another one");
        assert_eq!(of(&world, 0, staying), before[1]);
        assert_eq!(pairs(&world), [(0, 0), (1, 1)]);
    }
}

/// What works with one worker works with two, if the peer gives one connection and no more.
#[test]
fn a_worker_that_is_refused_a_connection_sends_by_datagram_and_by_way_of_the_lead() {
    let mut world = adjusted(8, [2, 2], |mut config, nth| {
        config.peer.connections_per_port_max = if nth == 0 { 16 } else { 1 };
        // Of one worker; so the peer has but one.
        config.workers = if nth == 0 { 2 } else { 1 };
        config
    });
    for nth in 0..400u16 {
        let payload = if nth % 2 == 0 { &LONG[..] } else { b"short" };
        let payload = [payload, &nth.to_be_bytes()].concat();
        let packet = packet(v4(1), v4(2), &payload);
        for worker in all(2) {
            let within = Duration::from_millis(1);
            assert!(world.reaches_by(0, worker, 1, &packet, within), "{nth}: {worker:?}");
        }
        world.pass(SECOND / 4);
    }
    assert_eq!(pairs(&world), [(0, 0)]);
    let link = standing(&world, 0)[0].peer;
    assert!(world.hosts[0].interface.pause_of(&link, WorkerId(1)).is_some());
    assert_eq!(world.hosts[0].interface.pause_of(&link, WorkerId::PRIMARY), None);
    let refused = dropped(&world, 0, "refused");
    assert!((3..=8).contains(&refused), "{refused} attempts in 100 seconds");
    assert_eq!(dropped(&world, 0, "too_big"), 0, "nobody was told that it does not fit");
}

#[test]
fn without_connected_mode_every_worker_sends_by_datagram() {
    let mut world = adjusted(9, [3, 1], |mut config, _| {
        config.peer.policy = Policy::Ud;
        config
    });
    for worker in all(3) {
        let datagram = packet(v4(1), v4(2), &[worker.0; 20]);
        assert!(world.reaches_by(0, worker, 1, &datagram, SECOND), "{worker:?}");
    }
    let adjacencies: Vec<_> = world.hosts[0].port_driver.peers.values().collect();
    assert!(adjacencies.len() >= 6 && adjacencies.len() % 3 == 0, "{adjacencies:?}");
    assert!(
        adjacencies
            .chunks(3)
            .all(|of_peer| of_peer.iter().all(|adjacency| *adjacency == of_peer[0]))
    );
}

#[test]
fn connections_of_all_workers_end_with_their_interface_and_come_back() {
    let mut world = world(10, [4, 4]);
    assert_all_reach(&mut world, 0, 4, SECOND);
    let now = world.now;
    world.hosts[0].interface.set_open(now, false);
    world.settle();
    assert_eq!(pairs(&world), [], "the other side has heard of it");
    world.hosts[0].interface.set_open(now, true);
    world.pass(5 * SECOND);
    assert_all_reach(&mut world, 0, 4, 5 * SECOND);
    assert_eq!(pairs(&world), [(0, 0), (1, 1), (2, 2), (3, 3)]);
}

/// A peer that begins anew with the very numbers that it had, and asks for one of its workers: that
/// it has forgotten the connections of the others too is found out at once.
#[test]
fn an_unreliable_connection_of_another_worker_is_doubted_when_one_was_replaced() {
    let unreliable = |mut config: InterfaceConfig| {
        config.peer.policy = Policy::Uc;
        InterfaceConfig { workers: 2, ..config }
    };
    let mut world = adjusted(12, [2, 2], |config, _| unreliable(config));
    assert_all_reach(&mut world, 0, 2, SECOND);
    let qpn = world.hosts[1].qpn;
    world.restart_with(1, qpn, unreliable);
    world.hosts[1].port_driver.made = 5000;
    world.pass(5 * SECOND);
    assert!(world.reaches(1, 0, &packet(v4(2), v4(1), &LONG), 2 * SECOND));
    assert_all_reach(&mut world, 0, 2, SECOND);
    assert_eq!(pairs(&world), [(0, 0), (1, 1)]);
}

/// A peer that begins anew has forgotten all of them, and with fewer workers it asks for fewer.
#[test]
fn a_peer_that_began_anew_with_fewer_workers_is_reached_by_all() {
    let mut world = world(11, [4, 4]);
    assert_all_reach(&mut world, 0, 4, SECOND);
    let qpn = world.hosts[1].qpn;
    world.restart_with(1, qpn, |mut config| {
        config.peer.policy = Policy::Rc;
        InterfaceConfig { workers: 2, ..config }
    });
    world.hosts[1].port_driver.made = 5000;
    world.pass(5 * SECOND);
    assert_all_reach(&mut world, 1, 2, 10 * SECOND);
    assert_all_reach(&mut world, 0, 4, 10 * SECOND);
    world.pass(30 * SECOND);
    assert_all_reach(&mut world, 0, 4, SECOND);
    assert_eq!(pairs(&world), [(0, 0), (1, 1), (2, 0), (3, 1)]);
}
