//! Many connections: what one costs does not depend on how many others there are.

use crate::world::{Weather, World, at, ip};
use pollux::stack::{StackConfig, TcpConfig, TcpId};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::tcp::{TcpHeader, fill_checksum};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Buffers of a few octets, for many connections.
fn small() -> StackConfig {
    let tcp = TcpConfig { receive_octets: 2048, send_octets: 2048, ..TcpConfig::default() };
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
    // With less room than there are connections, SYNs are sent again, and all get in.
    connect(&mut world, 81, 40, 8);
    assert!(world.hosts[1].counts().backlog_full > 0);
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

#[test]
fn a_flood_of_syns_takes_the_backlog_and_not_more() {
    let mut world = World::new(1, &small(), Weather::default());
    let listener = world.hosts[1].tcp_listen(at(1, 80), 16).expect("the port is free");
    for number in 0..10_000_u32 {
        let now = world.now;
        world.hosts[1].handle_packet(now, &syn(number));
        while world.hosts[1].poll_transmit(now).is_some() {}
    }
    assert_eq!(world.hosts[1].tcp_len(), 16);
    assert_eq!(world.hosts[1].counts().backlog_full, 10_000 - 16);
    assert_eq!(world.hosts[1].tcp_accept(listener), Ok(None));
    // Half-open connections are given up, and others get in.
    world.weather.lost = 1_000_000;
    world.pass(Duration::from_secs(180));
    world.weather.lost = 0;
    assert_eq!(world.hosts[1].tcp_len(), 0);
    world.hosts[1].tcp_unlisten(listener);
    connect(&mut world, 80, 1, 16);
}

/// A SYN from somewhere in 11.0.0.0/8.
fn syn(number: u32) -> Vec<u8> {
    let source = Ipv4Addr::from(0x0b00_0001 + number);
    let IpAddr::V4(destination) = ip(1, false) else { unreachable!("it is of IPv4") };
    let protocol = IpProtocol::TCP;
    let header = Ipv4Header { ttl: 64, protocol, source, destination, ..Ipv4Header::default() };
    let mut packet = vec![0; Ipv4Header::LEN + TcpHeader::LEN];
    let segment = header.write_packet(&[], TcpHeader::LEN, &mut packet).unwrap();
    let tcp = TcpHeader {
        source_port: 1000,
        destination_port: 80,
        sequence_number: number,
        syn: true,
        window: 1000,
        ..TcpHeader::default()
    };
    tcp.write_segment(&[], 0, segment).unwrap();
    fill_checksum(segment, &header.pseudo_header()).unwrap();
    packet
}
