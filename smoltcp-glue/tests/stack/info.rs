//! What a connection says about itself is what its link carried.

use crate::loss::stream;
use crate::tcp::config;
use crate::world::{LinkFaults, World};
use pollux::TcpState;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const BYTES: usize = 1_000_000;

#[test]
fn counters_of_a_connection_are_those_of_its_link() {
    for (mtu, lost) in [(2044, 0), (2044, 20_000), (65_520, 0), (65_520, 100_000)] {
        let mut world = World::new(1, &config(mtu), LinkFaults::default());
        let ids = world.connected(80, false);
        world.faults.lost = lost;
        stream(&mut world, ids, BYTES);
        world.until("it is acknowledged", MINUTE, |world| {
            world.hosts[0].tcp_unacknowledged(ids[0]) == 0
        });
        let info = |host: usize| world.hosts[host].tcp_info(world.now, ids[host]).expect("open");
        let (from, to) = (info(0), info(1));
        assert_eq!((from.state, to.state), (TcpState::Established, TcpState::Established));
        assert_eq!((from.bytes_acknowledged, to.bytes_received), (BYTES as u64, BYTES as u64));
        assert_eq!((from.bytes_sent, to.bytes_sent), (world.payload, 0));
        assert_eq!(from.bytes_retransmitted, world.payload - BYTES as u64);
        assert_eq!(from.retransmissions > 0, lost > 0, "{from:?}");
        assert_eq!(from.bytes_retransmitted > 0, lost > 0);
        assert_eq!(world.hosts[0].counts().tcp_retransmissions, from.retransmissions);
        assert_eq!(from.congestion_window.is_some(), lost > 0);
        assert_eq!((from.path_mtu, from.bytes_in_flight, from.send_queue), (mtu, 0, 0));
        assert!(from.mss <= mtu as usize - 40 && (lost > 0 || from.mss == mtu as usize - 40));
        // Those of packets in both directions, and at most the delay of an acknowledgment.
        let rtt = from.rtt.expect("the handshake was timed");
        assert!(rtt >= 2 * world.delay && rtt < Duration::from_millis(5), "{rtt:?}");
        assert!(from.rto > rtt);
    }
}

#[test]
fn queues_and_windows_of_a_connection_are_those_of_its_buffers() {
    let mut world = World::new(1, &config(2044), LinkFaults::default());
    let ids = world.connected(80, false);
    let all = world.hosts[1].tcp_info(world.now, ids[1]).expect("open").receive_window;
    assert_eq!(world.hosts[0].tcp_send(ids[0], &[7; 2000]), Ok(Some(2000)));
    let info = world.hosts[0].tcp_info(world.now, ids[0]).expect("open");
    assert_eq!((info.send_queue, info.bytes_in_flight, info.bytes_sent), (2000, 0, 0));
    world.drain();
    let info = world.hosts[0].tcp_info(world.now, ids[0]).expect("open");
    assert_eq!((info.send_queue, info.bytes_in_flight, info.bytes_sent), (2000, 2000, 2000));
    world.until("it is acknowledged", MINUTE, |world| {
        world.hosts[0].tcp_unacknowledged(ids[0]) == 0
    });
    let info = world.hosts[1].tcp_info(world.now, ids[1]).expect("open");
    assert_eq!((info.receive_queue, info.receive_window), (2000, all - 2000));
    let info = world.hosts[0].tcp_info(world.now, ids[0]).expect("open");
    assert!(info.send_window <= all && info.send_window >= all - 2000 - (1 << 8), "{info:?}");
}

#[test]
fn retransmitted_syns_and_fins_count_without_bytes() {
    let mut world = World::new(1, &config(2044), LinkFaults::default());
    let listener = world.hosts[1].tcp_listen(crate::world::at(1, 80), 1).expect("it is free");
    let (local, remote) = (crate::world::at(0, 0), crate::world::at(1, 80));
    world.faults.lost = 1_000_000;
    let id = world.hosts[0].tcp_connect(world.now, local, remote).expect("it begins");
    world.drain();
    world.faults.lost = 0;
    world.until("it is open", MINUTE, |world| world.hosts[0].tcp_is_open(id) == Ok(true));
    let info = world.hosts[0].tcp_info(world.now, id).expect("open");
    assert_eq!((info.retransmissions, info.bytes_sent, info.rtt), (1, 0, None));
    world.until("it waits", MINUTE, |world| world.hosts[1].tcp_is_waited_for(listener));
    let peer = world.hosts[1].tcp_accept(listener).expect("it listens").expect("a connection");
    world.faults.lost = 1_000_000;
    world.hosts[0].tcp_shut_down(world.now, id).expect("it is open");
    world.drain();
    world.faults.lost = 0;
    world.until("it is shut down", MINUTE, |world| world.hosts[1].tcp_is_readable(peer));
    let info = world.hosts[0].tcp_info(world.now, id).expect("open");
    assert!(info.retransmissions > 1 && info.bytes_retransmitted == 0, "{info:?}");
}
