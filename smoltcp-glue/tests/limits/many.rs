//! Many connections: thousands of short ones, half-open ones of a SYN flood, idle ones beside a
//! busy one.

use crate::traffic::{Client, Plan, STREAMS, Server, Shared};
use crate::world::{World, at, ip};
use pollux::Mode;
use pollux::stack::{StackConfig, TcpConfig, TcpId};
use pollux_fabric::link::Wire;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::tcp::{TcpHeader, fill_checksum};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
/// The default number of short connections.
const SHORT: usize = 3_000;
/// Concurrent short connections.
const AT_A_TIME: usize = 50;
/// The maximum number of connections, including TIME-WAIT.
const CONNECTIONS_MAX: usize = 12_000;

#[expect(clippy::disallowed_methods, reason = "the number of connections is set by hand")]
fn short() -> usize {
    std::env::var("POLLUX_CONNECTIONS").ok().and_then(|it| it.parse().ok()).unwrap_or(SHORT)
}

/// Two hosts with small buffers, for many connections.
fn world() -> World {
    let tcp = TcpConfig {
        receive_bytes: 2048,
        send_bytes: 2048,
        connections_max: CONNECTIONS_MAX,
        ..TcpConfig::default()
    };
    let config = StackConfig { tcp, ..StackConfig::default() };
    let wire = Wire { latency: Duration::from_micros(2), ..Wire::default() };
    World::new(1, &[Mode::Rc; 2], wire, &config)
}

#[test]
fn short_connections_leave_no_state_behind() {
    let (mut world, counters) = (world(), Shared::default());
    world.run(1, Server::new(&counters));
    let served = world.programs();
    let (mut begun, mut most, mut full) = (0, 0, 0);
    while begun < short() {
        for _ in 0..AT_A_TIME.min(short() - begun) {
            begun += 1;
            world.run(0, Client::new(Plan::new(begun as u64, at(1, STREAMS), 100, 100), &counters));
        }
        world.until("a batch", 60 * SECOND, |world| world.programs() == served);
        most = most.max(world.slots[0].host().stack.tcp_len());
        // Ended connections stay in TIME-WAIT for ten seconds, and count.
        if most + AT_A_TIME > CONNECTIONS_MAX {
            full += 1;
            world.pass(10 * SECOND);
            most = world.slots[0].host().stack.tcp_len();
        }
    }
    println!("{begun} connections in {:?}, {full} times at the limit", world.now());
    assert_eq!(
        (counters.borrow().done, &counters.borrow().failed),
        (begun as u64, &Default::default())
    );
    world.pass(30 * SECOND);
    for slot in &mut world.slots {
        assert_eq!(slot.host().stack.tcp_len(), 0);
        assert_eq!(slot.host().node().worker.driver().netdev().buffers_in_use(), 0);
    }
}

#[test]
fn clients_connect_during_a_syn_flood() {
    let (mut world, counters) = (world(), Shared::default());
    world.run(1, Server::new(&counters));
    let listener = world.slots[1].host().stack.tcp_listen(at(1, 81), 16).expect("it is free");
    let served = world.programs();
    let flood = |world: &mut World, first: u32| {
        let now = world.now();
        for number in first..first + 1000 {
            world.slots[1].host().stack.handle_packet(now, &syn(number));
        }
    };
    for stream in 0..50 {
        world.run(0, Client::new(Plan::new(stream, at(1, STREAMS), 5_000, 5_000), &counters));
        flood(&mut world, stream as u32 * 1000);
        world.until("another stream", SECOND, |world| world.programs() == served);
    }
    assert_eq!(counters.borrow().done, 50);
    let stack = &world.slots[1].host().stack;
    assert!(stack.tcp_len() <= 16 + 50, "{} connections", stack.tcp_len());
    assert_eq!(stack.counts().syn_cookies, 50_000 - 16);
    // Also to the flooded port, by the first SYN.
    for round in 50..60 {
        flood(&mut world, round * 1000);
        let now = world.now();
        let host = world.slots[0].host();
        host.stack.tcp_connect(now, at(0, 0), at(1, 81)).expect("a port is free");
        host.transmit(now);
        world.until("it is accepted", SECOND / 10, |world| {
            world.slots[1].host().stack.tcp_accept(listener).expect("it listens").is_some()
        });
    }
}

/// A SYN from an address in 11.0.0.0/8.
pub fn syn(number: u32) -> Vec<u8> {
    let source = Ipv4Addr::from(0x0b00_0001 + number);
    let IpAddr::V4(destination) = ip(1) else { unreachable!("the address is IPv4") };
    let protocol = IpProtocol::TCP;
    let header = Ipv4Header { ttl: 64, protocol, source, destination, ..Ipv4Header::default() };
    let mut packet = vec![0; Ipv4Header::LEN + TcpHeader::LEN];
    let segment = header.write_packet(&[], TcpHeader::LEN, &mut packet).expect("there is space");
    let tcp = TcpHeader {
        source_port: 1000,
        destination_port: 81,
        sequence_number: number,
        syn: true,
        window: 1000,
        ..TcpHeader::default()
    };
    tcp.write_segment(&[], 0, segment).expect("there is space");
    fill_checksum(segment, &header.pseudo_header()).expect("it is a segment");
    packet
}

/// Opens connections to a port; returns both ends of each.
fn connect(world: &mut World, port: u16, count: usize) -> Vec<[TcpId; 2]> {
    let listener = world.slots[1].host().stack.tcp_listen(at(1, port), 4096).expect("it is free");
    let mut all = Vec::new();
    for _ in 0..count {
        let now = world.now();
        let host = world.slots[0].host();
        let to: SocketAddr = at(1, port);
        let client = host.stack.tcp_connect(now, at(0, 0), to).expect("a port is free");
        host.transmit(now);
        let mut server = None;
        world.until("connected", 10 * SECOND, |world| {
            let stack = &mut world.slots[1].host().stack;
            server = server.or_else(|| stack.tcp_accept(listener).expect("it listens"));
            server.is_some() && world.slots[0].host().stack.tcp_is_open(client) == Ok(true)
        });
        all.push([client, server.expect("it was waited for")]);
    }
    all
}

/// The cost of a thousand requests and responses beside idle connections: steps of the world, polls
/// of connections, and the time, which is only printed.
#[expect(clippy::disallowed_methods, reason = "the time is only printed")]
fn busy_beside(idle: usize) -> (u64, u64, Duration) {
    let mut world = world();
    connect(&mut world, 82, idle);
    let [client, server] = connect(&mut world, 83, 1)[0];
    // For delayed acknowledgments and other timers. The end does not depend on the time of
    // connecting, so periodic work of the control plane takes place at the same times.
    world.pass(10 * SECOND - world.now().since_start());
    let polls = |world: &mut World| -> u64 {
        world.slots.iter_mut().map(|slot| slot.host().stack.counts().tcp_polls).sum()
    };
    let (before, began) = (polls(&mut world), Instant::now());
    let (mut turns, mut buffer) = (0, [0; 100]);
    for _ in 0..1000 {
        for (from, id, peer) in [(0, client, server), (1, server, client)] {
            let now = world.now();
            let host = world.slots[from].host();
            host.stack.tcp_send(id, &[1; 64]).expect("it is open");
            host.transmit(now);
            world.until("received", SECOND, |world| {
                turns += 1;
                let stack = &mut world.slots[1 - from].host().stack;
                stack.tcp_recv(peer, &mut buffer).expect("it is open").is_some()
            });
        }
    }
    (turns, polls(&mut world) - before, began.elapsed())
}

#[test]
fn ten_thousand_idle_connections_cost_a_busy_one_no_polls() {
    let [alone, beside] = [0, 10_000].map(busy_beside);
    let ratio = beside.2.as_secs_f64() / alone.2.as_secs_f64();
    println!("alone {alone:?}, beside 10,000 {beside:?}: {ratio:.2} times as long");
    // In virtual time a response takes as many steps, and each polls as many connections. A timer
    // of a neighbor, which depends on the time of connecting, may add a step.
    assert!(alone.0.abs_diff(beside.0) <= 2, "steps: {alone:?}, {beside:?}");
    assert_eq!(alone.1, beside.1, "polls");
}
