//! The user timeout and keep-alive.

use crate::tcp::bulk;
use crate::world::{LinkFaults, World, at};
use pollux::stack::{Stack, StackConfig, TcpConfig, TcpError, TcpId};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const ALL: u32 = 1_000_000;
/// RFC 9293 3.8.3: the minimum time of retransmission of data, and of a SYN.
const DATA_MIN: Duration = Duration::from_secs(100);
const SYN_MIN: Duration = Duration::from_secs(180);

fn world() -> World {
    World::new(1, &StackConfig::default(), LinkFaults::default())
}

/// Waits until a connection has ended; returns the time and the error.
fn ends_after(world: &mut World, host: usize, id: TcpId) -> (Duration, TcpError) {
    let start = world.now;
    loop {
        if let Some(end) = world.end_of(host, id) {
            return (world.now.since_start() - start.since_start(), end);
        }
        assert!(world.step(), "it does not end");
    }
}

#[test]
fn a_silent_peer_times_out_after_the_user_timeout() {
    let user_timeout = StackConfig::default().tcp.user_timeout;
    assert!(user_timeout >= DATA_MIN.max(SYN_MIN), "{user_timeout:?}");
    let mut world = world();
    let [client, _] = world.connected(80, false);
    world.faults.lost = ALL;
    world.hosts[0].tcp_send(client, b"hello?").expect("it is open");
    assert_eq!(ends_after(&mut world, 0, client), (user_timeout, TcpError::TimedOut));
    let now = world.now;
    let opening = world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80)).expect("a port is free");
    assert_eq!(ends_after(&mut world, 0, opening), (user_timeout, TcpError::TimedOut));
}

/// The acknowledgments that arrive while a process is stopped count when it continues.
#[test]
fn a_stopped_sender_continues() {
    for stopped in [61, 200, 3600].map(Duration::from_secs) {
        for reads_first in [false, true] {
            let mut world = world();
            let ids = world.connected(80, false);
            world.hosts[0].tcp_send(ids[0], &vec![7; 100_000]).expect("it is open");
            let now = world.now;
            let mut answers = Vec::new();
            while let Some(packet) = world.hosts[0].poll_transmit(now) {
                let packet = packet.to_vec();
                world.hosts[1].handle_packet(now, &packet);
            }
            // The answers of the peer wait in the device.
            for at in [now, now + Duration::from_millis(5)] {
                world.hosts[1].handle_timeout(at);
                while let Some(packet) = world.hosts[1].poll_transmit(at) {
                    answers.push(packet.to_vec());
                }
            }
            assert!(!answers.is_empty());
            world.now = world.now + stopped;
            let now = world.now;
            if !reads_first {
                world.hosts[0].handle_timeout(now);
            }
            for packet in &answers {
                world.hosts[0].handle_packet(now, packet);
            }
            world.pass(SECOND);
            let ends = [0, 1].map(|host| world.end_of(host, ids[host]));
            assert_eq!(ends, [None; 2], "stopped for {stopped:?}");
            assert_eq!(world.hosts[0].tcp_unacknowledged(ids[0]), 0);
        }
    }
}

/// Only the time in which the sender was served counts.
#[test]
fn a_dead_peer_of_a_stopped_sender_times_out_after_the_user_timeout() {
    let user_timeout = StackConfig::default().tcp.user_timeout;
    let mut world = world();
    let [client, _] = world.connected(80, false);
    world.faults.lost = ALL;
    world.hosts[0].tcp_send(client, b"hello?").expect("it is open");
    world.pass(SECOND);
    world.now = world.now + 3600 * SECOND;
    let (after, end) = ends_after(&mut world, 0, client);
    assert_eq!(end, TcpError::TimedOut);
    assert!((user_timeout - 2 * SECOND..=user_timeout).contains(&after), "{after:?}");
}

#[test]
fn a_dead_peer_of_an_idle_connection_times_out_after_its_probes() {
    let default = StackConfig::default().tcp.keepalive.expect("it is on");
    // Probes have a rate limit: of five a second.
    for (set, idle, probes) in
        [(None, default, 10), (Some(SECOND), SECOND, 5), (Some(MINUTE), MINUTE, 10)]
    {
        let mut world = world();
        let [client, _] = world.connected(80, false);
        world.pass(SECOND / 10);
        if set.is_some() {
            world.hosts[0].tcp_set_keepalive(client, set).expect("it is open");
        }
        world.faults.lost = ALL;
        // Only the first host sends from now on.
        world.hosts[1] = Stack::new(StackConfig::default(), 7);
        let before = world.packets;
        world.pass(2 * idle - SECOND / 2);
        assert_eq!(world.end_of(0, client), None);
        world.pass(SECOND);
        assert_eq!(world.end_of(0, client), Some(TcpError::TimedOut));
        let timeouts = world.hosts[0].counts().keepalive_timeouts;
        assert_eq!((timeouts, world.packets - before), (1, probes + 1), "and a reset");
    }
}

/// On both sides, whichever has shut down its sending half.
#[test]
fn a_dead_peer_of_a_half_closed_connection_times_out() {
    let keepalive = StackConfig::default().tcp.keepalive.expect("it is on");
    for closes in [0, 1] {
        let mut world = world();
        let ids = world.connected(80, false);
        let now = world.now;
        world.hosts[closes].tcp_shut_down(now, ids[closes]).expect("it is open");
        world.pass(SECOND);
        world.faults.lost = ALL;
        world.pass(2 * keepalive);
        assert_eq!(world.end_of(0, ids[0]), Some(TcpError::TimedOut), "host {closes} closed");
        assert_eq!(world.end_of(1, ids[1]), Some(TcpError::TimedOut), "host {closes} closed");
    }
}

#[test]
fn keepalive_of_an_idle_connection_costs_two_packets_per_interval() {
    let keepalive = StackConfig::default().tcp.keepalive.expect("it is on");
    let mut world = world();
    let ids = world.connected(80, false);
    world.pass(SECOND);
    let before = world.packets;
    world.pass(keepalive * 20);
    let probes = world.packets - before;
    // A probe also shows to its receiver that the sender is alive.
    assert!((2 * 18..=2 * 21).contains(&probes), "{probes}");
    assert_eq!([0, 1].map(|host| world.end_of(host, ids[host])), [None; 2]);
    bulk(&mut world, ids, 1_000_000);
}

#[test]
fn an_idle_connection_without_keepalive_sends_nothing() {
    let mut world = world();
    let ids = world.connected(80, false);
    for (host, id) in world.hosts.iter_mut().zip(ids) {
        host.tcp_set_keepalive(id, None).expect("it is open");
    }
    world.pass(SECOND);
    let before = world.packets;
    world.pass(24 * 60 * MINUTE);
    assert_eq!((world.packets, world.end_of(0, ids[0])), (before, None));
}

#[test]
fn keepalive_probes_do_not_corrupt_streams() {
    for lost in [0, 20_000] {
        let faults = LinkFaults { lost, late: lost, ..LinkFaults::default() };
        let keepalive = Some(10 * SECOND);
        let tcp = TcpConfig { keepalive, ..TcpConfig::default() };
        let config = StackConfig { mtu: 2044, tcp, ..StackConfig::default() };
        let mut world = World::new(1, &config, faults);
        let ids = world.connected(80, false);
        for _ in 0..20 {
            bulk(&mut world, ids, 30_000);
            world.pass(15 * SECOND);
        }
    }
}
