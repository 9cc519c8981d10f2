//! Receivers that pause: an adapter in software acknowledges nothing while its process computes.
//! Two nodes in virtual time, one of which is stopped.

use crate::team::World;
use pollux_control::ipoib::ConnectionKey;
use pollux_control::ipoib::connected::ConnectionRow;
use pollux_fabric::link::Wire;
use std::time::Duration;

const RC: &str = "mode = 'rc'\nworkers = 2";
const UC: &str = "mode = 'uc'\nworkers = 2";
/// More than a datagram carries.
const BYTES: usize = 9000;

fn rows(world: &World, nth: usize) -> Vec<ConnectionRow> {
    world.teams[nth].interface().control().connection_rows().collect()
}

/// The connections of both nodes, those that end included.
fn keys(world: &World) -> Vec<ConnectionKey> {
    [0, 1].iter().flat_map(|nth| rows(world, *nth)).map(|row| row.connection).collect()
}

/// Connections that a node ended or did not make, by reason.
fn peer_drops(world: &World, nth: usize) -> Vec<(&'static str, u64)> {
    let drops = world.teams[nth].interface().control().drop_rows();
    drops
        .filter(|(of, _, times)| *of == "connection" && *times > 0)
        .map(|(_, why, times)| (why, times))
        .collect()
}

/// Two nodes of a mode, each of whose workers has a connection that has stood for long.
fn connected(mode: &str) -> World {
    let mut world = World::new(6, &[mode, mode], Wire::default());
    let workers = world.teams[0].workers.len();
    for worker in 0..workers {
        world.must_reach((0, worker as u8), 1, BYTES);
    }
    world.until("a connection for each worker", |world| {
        [0, 1].iter().all(|nth| world.teams[*nth].connections().len() == workers)
    });
    world.pass(Duration::from_secs(10));
    world.teams.iter_mut().for_each(|team| team.received.clear());
    world
}

/// Node 1 stops for `pause`, again and again, while both have messages in flight.
fn pause(mode: &str, pause: Duration) {
    let mut world = connected(mode);
    let (before, drops) = (keys(&world), [0, 1].map(|nth| peer_drops(&world, nth)));
    let mut sent = [Vec::new(), Vec::new()];
    for round in 0..10 {
        for (worker, number) in [(0, 0), (1, 100)] {
            let payload = [number + round; BYTES];
            world.send((1, worker), 0, &payload).expect("there is space");
            sent[1].push(number + round);
        }
        world.stop(1, pause);
        for number in 0..10 {
            for (worker, base) in [(0, 0), (1, 100)] {
                let number = base + round * 10 + number;
                world.send((0, worker), 1, &[number; BYTES]).expect("there is space");
                sent[0].push(number);
            }
            world.pass(pause / 20);
        }
        world.pass(pause);
    }
    world.pass(Duration::from_secs(5));
    for (from, to) in [(0, 1), (1, 0)] {
        let received = |is: fn(u8) -> bool| -> Vec<u8> {
            let received = world.teams[to].received.iter().map(|(_, payload)| payload[0]);
            received.filter(|number| is(*number)).collect()
        };
        for is in [(|number| number < 100) as fn(u8) -> bool, |number| number >= 100] {
            let sent: Vec<_> = sent[from].iter().copied().filter(|it| is(*it)).collect();
            assert_eq!(received(is), sent, "{mode}, {pause:?}, from {from}: each once, in order");
        }
    }
    assert_eq!(keys(&world), before, "{mode}, {pause:?}: by the connections that there were");
    let open = [0, 1].iter().flat_map(|nth| rows(&world, *nth)).all(|row| row.state == "open");
    assert!(open, "{mode}, {pause:?}: they stand");
    assert_eq!([0, 1].map(|nth| peer_drops(&world, nth)), drops, "{mode}, {pause:?}: none ended");
}

#[test]
fn connections_survive_a_receiver_that_does_not_poll_for_900_ms() {
    for milliseconds in [200, 500, 900] {
        for mode in [RC, UC] {
            pause(mode, Duration::from_millis(milliseconds));
        }
    }
}

#[test]
fn a_reliable_connection_ends_for_a_reason_when_its_receiver_pauses_for_longer() {
    let mut world = connected(RC);
    let before = keys(&world);
    world.stop(1, Duration::from_secs(10));
    world.send((0, 0), 1, &[1; BYTES]).expect("there is space");
    world.pass(Duration::from_millis(1000));
    assert_eq!((keys(&world), peer_drops(&world, 0)), (before.clone(), vec![]), "not yet");
    world.until("its end", |world| !peer_drops(world, 0).is_empty());
    let ending = rows(&world, 0).into_iter().find(|row| row.state == "ending");
    assert_eq!(ending.map(|row| (row.connection, row.why)), Some((before[0], "queue_pair")));
    assert_eq!(peer_drops(&world, 0), [("queue_pair", 1)]);
    // And when the receiver is back, there is a new one.
    world.pass(Duration::from_secs(10));
    world.must_reach((0, 0), 1, BYTES);
    let after: Vec<_> = rows(&world, 0).iter().map(|row| row.connection).collect();
    assert!(!after.contains(&before[0]), "{after:?}");
}

/// Node 0 sends until its queues are full to a node that has run out of receives, which has some
/// again after `pause`.
fn starve(pause: Duration) -> (World, Vec<u8>, Vec<ConnectionKey>) {
    let mut world = connected("mode = 'rc'");
    let before = keys(&world);
    let set = |world: &World, lacks| {
        let illness = world.teams[1].illness_of(0);
        illness.lock().expect("no test has panicked").lacks_receives = lacks;
    };
    set(&world, true);
    let mut sent = Vec::new();
    for number in (0..=255).cycle() {
        assert!(sent.len() < 10_000, "it never waits");
        if world.send((0, 0), 1, &[number; BYTES]).is_err() {
            break;
        }
        sent.push(number);
        world.pass(Duration::from_micros(10));
    }
    world.pass(pause);
    set(&world, false);
    (world, sent, before)
}

#[test]
fn a_reliable_connection_survives_a_receiver_that_posts_no_receives_for_900_ms() {
    for milliseconds in [10, 200, 500, 900] {
        let (mut world, sent, before) = starve(Duration::from_millis(milliseconds));
        assert!(sent.len() > 300, "more than it had receives for: {}", sent.len());
        let received = world.teams[1].received.len();
        assert!(received < sent.len(), "some wait: {received} of {}", sent.len());
        world.pass(Duration::from_secs(5));
        let received: Vec<_> =
            world.teams[1].received.iter().map(|(_, payload)| payload[0]).collect();
        assert_eq!(received, sent, "{milliseconds} ms: each once, in order");
        assert_eq!(keys(&world), before, "{milliseconds} ms: by the connection that there was");
        assert_eq!(peer_drops(&world, 0), [], "{milliseconds} ms: it did not end");
    }
}

#[test]
fn a_reliable_connection_ends_for_a_reason_when_its_receiver_posts_no_receives_for_longer() {
    let (world, _, before) = starve(Duration::from_millis(1900));
    assert_eq!((keys(&world), peer_drops(&world, 0)), (before, vec![]), "not yet");
    let (mut world, _, before) = starve(Duration::from_millis(3500));
    assert_eq!(peer_drops(&world, 0), [("queue_pair", 1)]);
    world.must_reach((0, 0), 1, BYTES);
    let after: Vec<_> = rows(&world, 0).iter().map(|row| row.connection).collect();
    assert!(!after.contains(&before[0]), "{after:?}");
}
