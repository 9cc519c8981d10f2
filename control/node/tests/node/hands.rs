//! An interface that several workers move: each by connections of its own, and still one interface.

use crate::team::{PATIENCE, World, ip, packet};
use pollux_control::interface::Worker;
use pollux_fabric::link::world::Wire;
use pollux_node::interface::Side;
use pollux_node::interface::echo::Outcome;
use pollux_verbs::{AsyncEvent, VerbsError};
use std::net::Ipv4Addr;
use std::time::Duration;

const TWO: &str = "mode = 'rc'\nworkers = 2";
const ONE: &str = "mode = 'rc'";

/// Connections of a team that are open, by their workers.
fn workers(world: &World, nth: usize) -> Vec<u8> {
    world.teams[nth].connections().iter().map(|row| row.worker.0).collect()
}

/// What becomes of an echo request that a team asks.
fn ping(world: &mut World, from: usize, to: usize, octets: usize) -> Outcome {
    let now = world.now();
    let lead = world.teams[from].lead.as_mut().expect("it is there");
    let id = lead.ping(now, ip(to).into(), octets, Duration::from_secs(5)).expect("it is up");
    let mut outcome = None;
    world.until("an answer, or none", |world| {
        outcome = world.teams[from].lead.as_mut().and_then(|lead| lead.echo(id));
        outcome.is_some()
    });
    outcome.expect("waited for")
}

#[test]
fn workers_of_two_nodes_speak_each_by_a_connection_of_its_own() {
    let mut world = World::new(1, &[TWO, TWO], Wire::default());
    for worker in [0, 1] {
        for octets in [20, 2000, 60_000] {
            world.must_reach((0, worker), 1, octets);
        }
    }
    world.until("two connections", |world| workers(world, 0) == [0, 1]);
    assert_eq!(workers(&world, 1), [0, 1]);
    // Once they stand, what a worker sends comes to its like, and both ways.
    for (from, to) in [(0, 1), (1, 0)] {
        for worker in [0, 1] {
            assert_eq!(world.must_reach((from, worker), to, 3000), Worker(worker));
        }
    }
    // What is not a socket's is control's, whichever worker it comes to.
    let echo = matches!(ping(&mut world, 0, 1, 1000), Outcome::Answered { octets: 1008, .. });
    assert!(echo, "ping");
    world.pass(Duration::from_secs(1));
    for team in &world.teams {
        let tallies: Vec<_> = team.lead().tallies().map(|(_, tally)| tally).collect();
        assert_eq!(tallies.len(), 2);
        for tally in &tallies {
            let lost = (tally.refusals.total(), tally.counts.untold, tally.counts.no_room);
            assert_eq!(lost, (0, 0, 0), "{tally:?}");
            assert!(tally.traffic.connected_sent > 0 && tally.traffic.connected_received > 0);
        }
        let hands = &tallies[1].uses;
        let row = &team.connections()[1];
        assert!(hands[&row.connection].sent > 0, "{hands:?}");
    }
}

#[test]
fn a_hand_knows_what_it_has_to_of_the_interface() {
    let mut world = World::new(2, &[TWO, TWO], Wire::default());
    world.pass(Duration::from_secs(1));
    let now = world.now();
    let team = &mut world.teams[0];
    let (others, far) = (ip(1).into(), "192.0.2.1".parse().expect("an address"));
    let said = |side: &dyn Side| {
        let sources = [others, far].map(|to| side.source_for(to));
        let neighbours = [others, far, ip(254).into()].map(|to| side.is_on_link(now, to));
        (side.own(), sources, neighbours, side.datagram_mtu())
    };
    let lead = said(team.side(0));
    assert_eq!((&lead, lead.3), (&said(team.side(1)), Some(2044)));
    assert_eq!((lead.1, lead.2), ([Some(ip(0).into()); 2], [true, false, false]));
}

#[test]
fn two_workers_get_on_with_one() {
    for keys in [[TWO, ONE], [ONE, TWO]] {
        let mut world = World::new(3, &keys, Wire::default());
        let (two, one) = if keys[0] == TWO { (0, 1) } else { (1, 0) };
        for octets in [20, 60_000] {
            for worker in [0, 1] {
                assert_eq!(world.must_reach((two, worker), one, octets), Worker::LEAD);
            }
            world.must_reach((one, 0), two, octets);
        }
    }
}

#[test]
fn a_connection_of_a_hand_that_fails_is_made_again_and_the_others_stay() {
    let mut world = World::new(4, &[TWO, TWO], Wire::default());
    for worker in [0, 1] {
        world.must_reach((0, worker), 1, 3000);
    }
    world.until("two connections", |world| workers(world, 0) == [0, 1]);
    let [lead, hand] = &world.teams[0].connections()[..] else { panic!("there are two") };
    let (lead, hand) = (lead.connection, hand.connection);
    {
        let illness = world.teams[0].illness.lock().expect("no test has panicked");
        let mut illness = illness.beside[0].lock().expect("no test has panicked");
        let last = *illness.qps.last().expect("it has one");
        illness.events.push_back(AsyncEvent::QpAccessError(last));
    }
    let is_there =
        |world: &World, key| world.teams[0].connections().iter().any(|row| row.connection == key);
    world.until("it is gone", |world| !is_there(world, hand));
    assert_eq!(world.must_reach((0, 0), 1, 3000), Worker::LEAD);
    // Its packets go by the lead's until there is another, which is not asked for at once.
    let end = world.now() + PATIENCE;
    while world.must_reach((0, 1), 1, 3000) == Worker::LEAD {
        assert!(world.now() < end, "there is no other");
    }
    assert_eq!((workers(&world, 0), workers(&world, 1)), (vec![0, 1], vec![0, 1]));
    assert!(is_there(&world, lead), "the lead's stays");
}

#[test]
fn an_interface_whose_hand_has_lost_its_device_fails_as_one_whose_lead_did() {
    let mut world = World::new(5, &[TWO, TWO], Wire::default());
    world.must_reach((0, 1), 1, 3000);
    {
        let illness = world.teams[0].illness.lock().expect("no test has panicked");
        let mut illness = illness.beside[0].lock().expect("no test has panicked");
        illness.events.push_back(AsyncEvent::DeviceFatal);
    }
    world.until("it fails", |world| world.teams[0].lead().failed().is_some());
    let failed = world.teams[0].lead().failed();
    assert!(matches!(failed, Some(VerbsError::Lost { what: "adapter", .. })), "{failed:?}");
    // And so does a hand whose lead is gone, or an interface whose hand is.
    world.kill(0);
    world.start(0);
    world.teams[0].hands.clear();
    world.until("it fails again", |world| world.teams[0].lead().failed().is_some());
    let failed = world.teams[0].lead().failed();
    assert!(matches!(failed, Some(VerbsError::Lost { what: "worker", .. })), "{failed:?}");
    world.kill(0);
    world.teams[1].lead = None;
    world.until("the hand goes", |world| world.teams[1].hands.is_empty());
    (0..2).for_each(|nth| world.kill(nth));
    (0..2).for_each(|nth| world.start(nth));
    world.must_reach((0, 1), 1, 3000);
}

#[test]
fn an_interface_leaves_with_all_its_hands() {
    let mut world = World::new(6, &[TWO, TWO], Wire::default());
    for worker in [0, 1] {
        world.must_reach((0, worker), 1, 3000);
    }
    world.until("two connections", |world| workers(world, 1) == [0, 1]);
    let now = world.now();
    // What was accepted goes first.
    assert_eq!(world.send((0, 1), 1, &[7; 5000]), Ok(()));
    let drained = |world: &World| world.teams[0].lead().is_drained(world.now());
    world.until("drained", |world| drained(world));
    world.teams[0].lead.as_mut().expect("it is there").leave(now);
    world.until("left", |world| world.teams[0].lead().has_left());
    assert!(world.teams[0].hands.is_empty(), "nothing of it is at the device");
    world.until("told", |world| world.teams[1].connections().is_empty());
    assert!(world.teams[1].came.iter().any(|(_, payload)| payload == &[7; 5000]));
    let ended = world.teams[1].lead().control().drop_rows().find(|row| row.1 == "peer_ended");
    assert_eq!(ended.map(|(_, _, count)| count), Some(2));
}

#[test]
fn what_comes_of_our_own_by_a_group_is_nobody_elses() {
    let ud = "mode = 'ud'\nworkers = 3";
    let mut world = World::new(7, &[ud, ud], Wire::default());
    let now = world.now();
    let group = Ipv4Addr::new(239, 1, 2, 3);
    for team in &mut world.teams {
        assert!(team.lead.as_mut().expect("it is there").join_group(now, group.into()));
    }
    world.pass(Duration::from_secs(5));
    let to_group = packet(ip(0), group, b"all");
    for worker in [2, 1, 0, 1, 2] {
        let now = world.now();
        let _ = world.teams[0].side(worker).send(now, &to_group);
        world.pass(Duration::from_secs(1));
    }
    assert!(world.teams[0].came.is_empty(), "{:?}", world.teams[0].came);
    assert!(world.teams[1].came.len() >= 3, "{:?}", world.teams[1].came);
    assert!(world.teams[1].came.iter().all(|(worker, _)| *worker == Worker::LEAD));
}
