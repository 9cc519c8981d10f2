//! What connections to a neighbor hear of its end, and of its restart.

use crate::world::{World, packet, v4};
use pollux_control::ipoib::NeighborChange;
use pollux_wire::address::Qpn;
use pollux_wire::mad::MadStatus;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// Of a dead peer: its three probes, and what the administrator needs.
const GONE_MAX: Duration = Duration::from_secs(5);

/// Host 0 watches its neighbors, and knows host 1, which has answered a packet.
fn watching() -> World {
    let mut world = World::new(11, 3);
    let now = world.now;
    world.hosts[0].interface.watch_neighbors(now);
    world.pass(5 * SECOND);
    world.assert_up();
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"hello"), SECOND));
    assert!(world.reaches(1, 0, &packet(v4(2), v4(1), b"hello"), SECOND));
    // They have announced themselves.
    changes(&mut world);
    world
}

fn changes(world: &mut World) -> Vec<NeighborChange> {
    std::iter::from_fn(|| world.hosts[0].interface.poll_neighbor_change()).collect()
}

fn set_cable(world: &mut World, is_in: bool) {
    let at = world.hosts[1].at;
    world.subnet.set_cable(at, is_in);
    // Host 1 sees it, too.
    world.pass(SECOND / 10);
}

#[test]
fn an_idle_neighbor_whose_port_leaves_the_subnet_is_gone() {
    for (idle, is_used) in [(SECOND, false), (60 * SECOND, false), (SECOND, true)] {
        let mut world = watching();
        world.pass(idle);
        set_cable(&mut world, false);
        let mut heard = Vec::new();
        let until = world.now + GONE_MAX;
        while world.now < until && heard.is_empty() {
            if is_used {
                world.send(0, packet(v4(1), v4(2), b"hello?"));
            }
            world.pass(SECOND / 10);
            heard = changes(&mut world);
        }
        assert_eq!(heard, [NeighborChange::Gone(v4(2))], "idle for {idle:?}, used: {is_used}");
        // Once, however long it is away.
        world.pass(60 * SECOND);
        assert_eq!(changes(&mut world), []);
    }
}

/// The administrator reports departures from after the subscription.
#[test]
fn a_neighbor_that_has_left_before_departures_are_reported_is_gone() {
    let mut world = World::up(11, 3);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"hello"), SECOND));
    assert!(world.reaches(1, 0, &packet(v4(2), v4(1), b"hello"), SECOND));
    set_cable(&mut world, false);
    let now = world.now;
    world.hosts[0].interface.watch_neighbors(now);
    world.pass(GONE_MAX);
    assert_eq!(changes(&mut world), [NeighborChange::Gone(v4(2))]);
}

/// Its process is stopped, or computes: it goes on later.
#[test]
fn a_neighbor_that_does_not_answer_is_not_gone_while_its_port_is_there() {
    let mut world = watching();
    world.weather.lost = 1_000_000;
    for _ in 0..60 {
        world.send(0, packet(v4(1), v4(2), b"hello?"));
        world.pass(SECOND);
    }
    assert_eq!(world.hosts[0].port_driver.bound.get(&v4(2)), None, "it is unreachable");
    assert_eq!(changes(&mut world), []);
    world.weather.lost = 0;
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"hello"), 120 * SECOND));
    assert_eq!(changes(&mut world), [NeighborChange::Moved(v4(2))], "it may have restarted");
}

/// Only that there is no path, or no such GID, says that the port has left.
#[test]
fn a_neighbor_that_does_not_answer_is_not_gone_because_the_administrator_refuses_a_path() {
    for status in [MadStatus::SA_DENIED, MadStatus::BAD_FIELD, MadStatus(0x0900)] {
        let mut world = watching();
        world.path_status = Some(status);
        world.weather.lost = 1_000_000;
        for _ in 0..60 {
            world.send(0, packet(v4(1), v4(2), b"hello?"));
            world.pass(SECOND);
        }
        assert_eq!(changes(&mut world), [], "{status}");
    }
}

/// The path was not there while the port was away; at the third probe it is there again.
#[test]
fn a_neighbor_that_does_not_answer_is_not_gone_if_its_port_is_back() {
    let mut world = watching();
    world.pass(10 * SECOND);
    set_cable(&mut world, false);
    world.weather.lost = 1_000_000;
    world.pass(SECOND);
    set_cable(&mut world, true);
    world.pass(60 * SECOND);
    assert_eq!(changes(&mut world), []);
}

#[test]
fn a_port_that_is_back_soon_is_the_same_neighbor() {
    let mut world = watching();
    set_cable(&mut world, false);
    world.pass(SECOND);
    set_cable(&mut world, true);
    world.pass(30 * SECOND);
    assert!(!changes(&mut world).contains(&NeighborChange::Gone(v4(2))));
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"hello"), SECOND));
}

#[test]
fn a_neighbor_that_begins_anew_may_be_another_one() {
    for qpn in [Qpn(0x99), Qpn(0x49)] {
        let mut world = watching();
        world.restart(1, qpn);
        world.pass(5 * SECOND);
        let heard = changes(&mut world);
        let is_moved = |change: &NeighborChange| matches!(change, NeighborChange::Moved(_));
        let has_moved = heard.contains(&NeighborChange::Moved(v4(2)));
        assert!(has_moved && heard.iter().all(is_moved), "{qpn:?}: {heard:?}");
    }
}

/// Its connections are retransmitted to all the while, so some path query has failed just before.
#[test]
fn a_neighbor_that_is_back_is_answered_at_once() {
    for away in 10..40 {
        let mut world = watching();
        set_cable(&mut world, false);
        for _ in 0..away {
            world.send(0, packet(v4(1), v4(2), b"hello?"));
            world.pass(SECOND / 10);
        }
        set_cable(&mut world, true);
        world.restart(1, Qpn(0x99));
        let mut turns = 0;
        while !world.hosts[1].port_driver.own.contains(&v4(2)) {
            world.send(0, packet(v4(1), v4(2), b"hello?"));
            world.pass(SECOND / 10);
            turns += 1;
            assert!(turns < 100, "host 1 is up");
        }
        world.pass(SECOND / 10);
        world.hosts.iter_mut().for_each(|host| host.got.clear());
        world.send(1, packet(v4(2), v4(1), b"hello"));
        world.pass(SECOND / 20);
        assert!(world.heard(0, &packet(v4(2), v4(1), b"hello")), "away for {away}");
        world.send(0, packet(v4(1), v4(2), b"hello to you"));
        world.pass(SECOND / 20);
        assert!(world.heard(1, &packet(v4(1), v4(2), b"hello to you")), "away for {away}");
    }
}

#[test]
fn nothing_is_reported_without_a_watch() {
    let mut world = watching();
    world.send(2, packet(v4(3), v4(2), b"hello"));
    set_cable(&mut world, false);
    world.pass(60 * SECOND);
    assert_eq!(world.hosts[2].interface.poll_neighbor_change(), None);
}
