//! Many connections: the cost of one does not depend on the number of others.

use crate::segment::segment;
use crate::tcp::bulk;
use crate::world::{LinkFaults, World, at};
use pollux::stack::{StackConfig, TcpConfig, TcpId};
use pollux_wire::ip::tcp::TcpHeader;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Buffers of a few bytes, for many connections.
fn small() -> StackConfig {
    let tcp = TcpConfig { receive_bytes: 2048, send_bytes: 2048, ..TcpConfig::default() };
    StackConfig { tcp, ..StackConfig::default() }
}

fn connect(world: &mut World, port: u16, count: usize, backlog: usize) -> Vec<[TcpId; 2]> {
    let listener = world.hosts[1].tcp_listen(at(1, port), backlog).expect("the port is free");
    let now = world.now;
    let clients: Vec<_> = (0..count)
        .map(|_| world.hosts[0].tcp_connect(now, at(0, 0), at(1, port)).expect("a port is free"))
        .collect();
    let mut servers = Vec::new();
    world.until("all are open", Duration::from_secs(600), |world| {
        while let Some(id) = world.hosts[1].tcp_accept(listener).expect("it listens") {
            servers.push(id);
        }
        servers.len() == count
    });
    let open = |world: &World, id| world.hosts[0].tcp_is_open(id) == Ok(true);
    assert!(clients.iter().all(|id| open(world, *id)));
    let addresses = |host: usize, id| world.hosts[host].tcp_addresses(id).expect("it is open");
    let servers: BTreeMap<_, _> = servers.iter().map(|id| (addresses(1, *id).1, *id)).collect();
    clients.iter().map(|id| [*id, servers[&addresses(0, *id).0]]).collect()
}

#[test]
fn a_listener_drops_no_connection_within_its_backlog() {
    let mut world = World::new(1, &small(), LinkFaults::default());
    connect(&mut world, 80, 1000, 1000);
    assert_eq!(world.hosts[1].counts().backlog_full, 0);
    // Beyond the backlog connections begin by SYN cookies. None is dropped if all are accepted.
    connect(&mut world, 81, 40, 8);
    assert!(world.hosts[1].counts().syn_cookies > 0);
}

/// A client retransmits a dropped SYN until connections are accepted.
#[test]
fn a_listener_with_a_full_accept_queue_drops_syns() {
    let mut world = World::new(1, &small(), LinkFaults::default());
    let listener = world.hosts[1].tcp_listen(at(1, 80), 8).expect("the port is free");
    let ids = [(); 12].map(|()| {
        let now = world.now;
        let id = world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80)).expect("a port is free");
        world.pass(Duration::from_millis(1));
        id
    });
    assert_eq!((world.hosts[1].tcp_len(), world.hosts[1].counts().backlog_full), (8, 4));
    let accepted = std::iter::from_fn(|| world.hosts[1].tcp_accept(listener).expect("it listens"));
    assert_eq!(accepted.count(), 8);
    world.pass(Duration::from_millis(200));
    assert!(ids.iter().all(|id| world.hosts[0].tcp_is_open(*id) == Ok(true)));
}

/// A connection that began with a cookie has the options of its SYN: window scale and SACK.
#[test]
fn a_connection_opened_by_a_syn_cookie_has_the_options_of_its_syn() {
    for mtu in [65_520, 2044] {
        let config = StackConfig { mtu, ..StackConfig::default() };
        let mut world = World::new(1, &config, LinkFaults::default());
        let listener = world.hosts[1].tcp_listen(at(1, 80), 1).expect("the port is free");
        let now = world.now;
        world.hosts[1].handle_packet(now, &syn(0));
        let client = world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80)).expect("a port is free");
        world.pass(Duration::from_millis(1));
        assert_eq!(world.hosts[1].counts().syn_cookies_accepted, 1);
        let server = world.hosts[1].tcp_accept(listener).expect("it listens").expect("it is open");
        // More than an unscaled window is in flight at a time.
        let start = world.now;
        bulk(&mut world, [client, server], 4_000_000);
        let took = world.now.since_start() - start.since_start();
        assert!(took < 100 * world.delay, "{took:?} at MTU {mtu}");
        world.faults.lost = 20_000;
        let bytes = world.bytes;
        bulk(&mut world, [client, server], 1_000_000);
        let sent = world.bytes - bytes;
        assert!(sent < 2_400_000, "{sent} bytes for two million at MTU {mtu}");
    }
}

/// The acknowledgment of a cookie may be lost, if data follows.
#[test]
fn data_also_acknowledge_a_syn_cookie() {
    let mut world = World::new(1, &small(), LinkFaults::default());
    let listener = world.hosts[1].tcp_listen(at(1, 80), 1).expect("the port is free");
    let now = world.now;
    world.hosts[1].handle_packet(now, &syn(0));
    let client = world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80)).expect("a port is free");
    while world.hosts[0].tcp_is_open(client) == Ok(false) {
        assert!(world.step(), "it does not open");
    }
    world.faults.lost = 1_000_000;
    world.drain();
    world.faults.lost = 0;
    world.pass(Duration::from_millis(100));
    assert_eq!(world.hosts[1].tcp_accept(listener), Ok(None));
    assert_eq!(world.hosts[0].tcp_send(client, b"hello"), Ok(Some(5)));
    world.pass(Duration::from_millis(100));
    let server = world.hosts[1].tcp_accept(listener).expect("it listens").expect("it is open");
    assert_eq!(world.hosts[1].tcp_recv(server, &mut [0; 9]), Ok(Some(5)));
}

#[test]
fn ten_thousand_idle_connections_cause_no_polls_of_a_busy_one() {
    let mut polls = Vec::new();
    for idle in [0, 10_000] {
        let mut world = World::new(1, &small(), LinkFaults::default());
        connect(&mut world, 80, idle, 4096);
        // For delayed acknowledgments and other timers.
        world.pass(Duration::from_secs(2));
        let [client, server] = connect(&mut world, 81, 1, 1)[0];
        world.pass(Duration::from_secs(2));
        let before: u64 = world.hosts.iter().map(|host| host.counts().tcp_polls).sum();
        let mut buffer = [0; 100];
        for _ in 0..100 {
            for (host, id, peer) in [(0, client, server), (1, server, client)] {
                world.hosts[host].tcp_send(id, &[1; 64]).expect("it is open");
                world.until("there", Duration::from_secs(1), |world| {
                    world.hosts[1 - host].tcp_recv(peer, &mut buffer).expect("open").is_some()
                });
            }
        }
        world.pass(Duration::from_secs(1));
        polls.push(world.hosts.iter().map(|host| host.counts().tcp_polls).sum::<u64>() - before);
    }
    assert_eq!(polls[0], polls[1], "polls without and with idle connections");
    assert!(polls[1] < 100 * 2 * 10, "{polls:?}");
}

/// The maximum number of half-open connections with buffers, for any backlog.
const HALF_OPEN_MAX: usize = 64;

/// Each client connects by its first SYN, for any number and rate of forged SYNs.
#[test]
fn clients_connect_during_a_syn_flood() {
    for backlog in [1, 16, 4096] {
        let mut world = World::new(1, &small(), LinkFaults::default());
        let listener = world.hosts[1].tcp_listen(at(1, 80), backlog).expect("the port is free");
        for number in 0..10_000_u32 {
            let now = world.now;
            world.hosts[1].handle_packet(now, &syn(number));
            while world.hosts[1].poll_transmit(now).is_some() {}
            if number % 100 != 0 {
                continue;
            }
            let start = world.now;
            let id = world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80)).expect("a port is free");
            let mut server = None;
            world.until("it is accepted", Duration::from_secs(1), |world| {
                server = server.or(world.hosts[1].tcp_accept(listener).expect("it listens"));
                server.is_some()
            });
            // SYN, its answer, and the acknowledgment of that.
            let took = world.now.since_start() - start.since_start();
            assert_eq!(took, 3 * world.delay, "backlog {backlog}, after {number} SYNs");
            // The connection works.
            let server = server.expect("it was waited for");
            assert_eq!(world.hosts[0].tcp_send(id, &[7; 2000]), Ok(Some(2000)));
            world.pass(Duration::from_millis(1));
            assert_eq!(world.hosts[1].tcp_recv(server, &mut [0; 4000]), Ok(Some(2000)));
            let now = world.now;
            world.hosts[1].tcp_abort(now, server);
            world.hosts[0].tcp_abort(now, id);
            world.drain();
        }
        let half_open = backlog.min(HALF_OPEN_MAX);
        assert_eq!(world.hosts[1].tcp_len(), half_open, "only half-open connections have buffers");
        let counts = world.hosts[1].counts();
        assert_eq!(counts.backlog_full, 0);
    }
}

/// 100 forged SYNs a second for five minutes.
#[test]
fn clients_connect_during_a_slow_syn_flood() {
    let mut world = World::new(1, &small(), LinkFaults::default());
    let listener = world.hosts[1].tcp_listen(at(1, 80), 128).expect("the port is free");
    for number in 0..30_000 {
        let now = world.now;
        world.hosts[1].handle_packet(now, &syn(number));
        if number % 1000 == 999 {
            let id = world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80)).expect("a port is free");
            world.pass(4 * world.delay);
            assert_eq!(world.hosts[0].tcp_is_open(id), Ok(true));
            let server = world.hosts[1].tcp_accept(listener).expect("it listens");
            assert!(server.is_some(), "after {number} SYNs");
        }
        world.pass(Duration::from_millis(10));
    }
}

/// A SYN from an address in 11.0.0.0/8.
fn syn(number: u32) -> Vec<u8> {
    let source = SocketAddr::new(Ipv4Addr::from(0x0b00_0001 + number).into(), 1000);
    let header =
        TcpHeader { syn: true, sequence_number: number, window: 1000, ..TcpHeader::default() };
    segment((source, at(1, 80)), header, &[], &[])
}
