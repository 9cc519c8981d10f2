//! Many connections: what one costs does not depend on how many others there are.

use crate::segment::segment;
use crate::tcp::bulk;
use crate::world::{Weather, World, at};
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
fn a_listener_loses_no_connection_that_its_backlog_has_room_for() {
    let mut world = World::new(1, &small(), Weather::default());
    connect(&mut world, 80, 1000, 1000);
    assert_eq!(world.hosts[1].counts().backlog_full, 0);
    // And none of more that begin at once than it has room for, if they are accepted.
    connect(&mut world, 81, 40, 8);
    assert!(world.hosts[1].counts().syn_cookies > 0);
}

/// Whose SYN is dropped sends it again, until somebody is accepted.
#[test]
fn a_listener_whose_connections_nobody_accepts_drops_syns() {
    let mut world = World::new(1, &small(), Weather::default());
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

/// A connection that began with a cookie knows what its SYN said: windows are scaled, and what is
/// lost is said selectively.
#[test]
fn a_connection_of_a_cookie_is_as_good_as_any() {
    for mtu in [65_520, 2044] {
        let config = StackConfig { mtu, ..StackConfig::default() };
        let mut world = World::new(1, &config, Weather::default());
        let listener = world.hosts[1].tcp_listen(at(1, 80), 1).expect("the port is free");
        let now = world.now;
        world.hosts[1].handle_packet(now, &syn(0));
        let client = world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80)).expect("a port is free");
        world.pass(Duration::from_millis(1));
        assert_eq!(world.hosts[1].counts().syn_cookies_accepted, 1);
        let server = world.hosts[1].tcp_accept(listener).expect("it listens").expect("it is open");
        // More than a window without a scale is on its way at once.
        let start = world.now;
        bulk(&mut world, [client, server], 4_000_000);
        let took = world.now.since_start() - start.since_start();
        assert!(took < 100 * world.delay, "{took:?} at MTU {mtu}");
        world.weather.lost = 20_000;
        let bytes = world.bytes;
        bulk(&mut world, [client, server], 1_000_000);
        let sent = world.bytes - bytes;
        assert!(sent < 2_400_000, "{sent} bytes for two million at MTU {mtu}");
    }
}

/// The acknowledgment of a cookie may be lost, if data follows.
#[test]
fn a_cookie_is_acknowledged_by_data_too() {
    let mut world = World::new(1, &small(), Weather::default());
    let listener = world.hosts[1].tcp_listen(at(1, 80), 1).expect("the port is free");
    let now = world.now;
    world.hosts[1].handle_packet(now, &syn(0));
    let client = world.hosts[0].tcp_connect(now, at(0, 0), at(1, 80)).expect("a port is free");
    while world.hosts[0].tcp_is_open(client) == Ok(false) {
        assert!(world.step(), "it will never be open");
    }
    world.weather.lost = 1_000_000;
    world.drain();
    world.weather.lost = 0;
    world.pass(Duration::from_millis(100));
    assert_eq!(world.hosts[1].tcp_accept(listener), Ok(None));
    assert_eq!(world.hosts[0].tcp_send(client, b"hello"), Ok(Some(5)));
    world.pass(Duration::from_millis(100));
    let server = world.hosts[1].tcp_accept(listener).expect("it listens").expect("it is open");
    assert_eq!(world.hosts[1].tcp_recv(server, &mut [0; 9]), Ok(Some(5)));
}

#[test]
fn ten_thousand_idle_connections_cost_a_busy_one_nothing() {
    let mut polls = Vec::new();
    for idle in [0, 10_000] {
        let mut world = World::new(1, &small(), Weather::default());
        connect(&mut world, 80, idle, 4096);
        // Delayed acknowledgments, and whatever else comes late.
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

/// Half-open connections that have buffers, at the most, whatever a backlog allows.
const HALF_OPEN_MAX: usize = 64;

/// However many SYNs of nobody come, and how quickly: who is there gets in by the first SYN.
#[test]
fn a_flood_of_syns_keeps_nobody_out() {
    for backlog in [1, 16, 4096] {
        let mut world = World::new(1, &small(), Weather::default());
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
            world.until("it gets in", Duration::from_secs(1), |world| {
                server = server.or(world.hosts[1].tcp_accept(listener).expect("it listens"));
                server.is_some()
            });
            // SYN, its answer, and the acknowledgment of that.
            let took = world.now.since_start() - start.since_start();
            assert_eq!(took, 3 * world.delay, "backlog {backlog}, after {number} SYNs");
            // And the connection works.
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
        assert_eq!(world.hosts[1].tcp_len(), half_open, "nobody else costs a buffer");
        let counts = world.hosts[1].counts();
        assert_eq!(counts.backlog_full, 0);
    }
}

/// 100 SYNs a second of nobody, for five minutes.
#[test]
fn a_trickle_of_syns_keeps_nobody_out() {
    let mut world = World::new(1, &small(), Weather::default());
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

/// A SYN from somewhere in 11.0.0.0/8.
fn syn(number: u32) -> Vec<u8> {
    let source = SocketAddr::new(Ipv4Addr::from(0x0b00_0001 + number).into(), 1000);
    let header =
        TcpHeader { syn: true, sequence_number: number, window: 1000, ..TcpHeader::default() };
    segment((source, at(1, 80)), header, &[], &[])
}
