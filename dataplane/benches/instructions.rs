//! The instructions that a packet costs in this crate, counted by callgrind. A bench fails if they
//! reach its limit.
//!
//! ```text
//! cargo bench -p pollux-dataplane --bench instructions
//! ```
//!
//! The adapter discards requests, so the counts are those of the netdev: encapsulation, the choice
//! of the queue pair, the queues, and the allocation and release of buffers. The instructions of an
//! adapter are counted in its own bench. The counts are for the release profile on x86-64 without
//! further CPU features, by rustc 1.95. They include about forty instructions of each bench itself.
//!
//! | bench | IPv4 | IPv6 | group | unknown | must be below |
//! |---|---|---|---|---|---|
//! | `route` | 106 | 99 | 142 | 82 | 150 |
//!
//! | bench | TCP | TCP, IPv6 | UDP | must be below |
//! |---|---|---|---|---|
//! | `parse` | 129 | 108 | | 150 |
//! | `steer` | 119 | 142 | 97 | 150 |
//!
//! | bench | RC | UD | RC, 1,500 bytes | must be below |
//! |---|---|---|---|---|
//! | `send_one` | 433 | 404 | 448 | 460 |
//! | `send_32` | 6,833 | 6,675 | 7,121 | 7,500 |
//! | `finish_32` | | | 1,602 | 1,680 |
//! | `receive_one` | 555 | 567 | | 590 |
//! | `receive_32` | 12,939 | 13,320 | | 13,800 |
//! | `poll_nothing` | 220 | | | 230 |
//!
//! | bench | IPv4 | the same, ACL of ten rules | the same, strict sources | IPv6 | must be below |
//! |---|---|---|---|---|---|
//! | `forward_32` | 18,429 | 29,373 | 25,117 | 39,185 | 40,000 |
//!
//! The routes are host routes, so an IPv6 look-up passes 20 nodes. The look-ups of a batch take
//! about 100 instructions more each to proceed level by level. In large tables this saves the time
//! of several hundred instructions.
//!
//! In batches of 32, a packet of 64 bytes takes 212 instructions to send by RC, and 398 to receive,
//! including the post of the next receive. Of these, 183 parse its headers and decide its verdict,
//! once for all later steps. Packets have 64 bytes unless the table gives another length.
#![expect(unused_qualifications, reason = "and name types in full")]

mod forwarding;
mod sink;

use forwarding::{Router, With};
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pollux_dataplane::flow::FlowSteering;
use pollux_dataplane::headers::PacketHeaders;
use pollux_dataplane::ipoib::*;
use pollux_dataplane::neighbor::*;
use pollux_dataplane::packet_memory::PacketMemory;
use pollux_dataplane::verdict::Destinations;
use pollux_mem::snapshot::Snapshot;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn, Scope};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::keys::{PKey, QKey};
use sink::Sink;
use std::hint::black_box;
use std::net::IpAddr;

fn below(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions - 1)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

/// The length of the receives of connections. It is less than the maximum, so that the setup is
/// quick.
const RECEIVE_MTU: u32 = 9000;
/// The length of the receives of datagrams, including the GRH.
const DATAGRAM_BYTES: u32 = 40 + 2048;

struct Bench {
    device: Sink,
    netdev: Netdev,
    _small: PacketMemory,
    connection: ConnectionId,
    batch: Vec<Outgoing>,
    refused: Vec<Refused>,
    received: Vec<Received>,
    _large: PacketMemory,
    _table: RouteTable,
    routes: Snapshot<Routes>,
    own: Destinations,
}

fn bench() -> Box<Bench> {
    let mut device = Sink::new();
    let small = PacketMemory::new(1024, 2044).expect("there is memory");
    let large = PacketMemory::new(256, RECEIVE_MTU - 4).expect("there is memory");
    let config = NetdevConfig {
        receive_mtu: RECEIVE_MTU,
        connected_receives: 64,
        ..NetdevConfig::default()
    };
    let netdev = Netdev::new(&mut device, Pd(0), config, &small, &large);
    let mut netdev = netdev.expect("the sink accepts all");
    let link = LinkAttributes {
        qkey: QKey(1),
        lid: Lid(1),
        gid: Gid([1; 16]),
        ..LinkAttributes::default()
    };
    netdev.start(&mut device, link).expect("the sink accepts all");
    let connection = netdev.connect(&mut device, 9, QpType::Rc).expect("there is space");
    let change = QpAttributes::default();
    netdev.modify_connection(&mut device, connection, &change).expect("the sink accepts all");
    let mut table = RouteTable::new(PKey::DEFAULT, Scope::LINK_LOCAL, 7);
    for nth in 0..1000u16 {
        let route = DatagramRoute { ah: Ah(0), qpn: Qpn(nth.into()), mtu: 2044 };
        let peer = table.add_peer(Route::Datagram(route)).expect("there is space");
        let [high, low] = nth.to_be_bytes();
        assert!(table.bind([10, 0, high, low].into(), peer));
        assert!(table.bind([0xfd00, 0, 0, 0, 0, 0, 0, nth].into(), peer));
        assert!(table.bind([239, 0, high, low].into(), peer));
    }
    table.publish();
    let mut routes = table.reader();
    routes.refresh();
    let mut own = Destinations::new();
    own.insert([10, 0, 0, 2].into());
    let batch = Vec::with_capacity(64);
    let (refused, received) = (Vec::with_capacity(64), Vec::with_capacity(64));
    Box::new(Bench {
        device,
        netdev,
        _small: small,
        connection,
        batch,
        refused,
        received,
        _large: large,
        _table: table,
        routes,
        own,
    })
}

impl Bench {
    /// Creates a batch of packets to be sent.
    fn make(&mut self, qp_type: QpType, bytes: usize, count: usize) {
        let route = DatagramRoute { ah: Ah(0), qpn: Qpn(9), mtu: 2044 };
        let route = match qp_type {
            QpType::Ud => Route::Datagram(route),
            _ => Route::Connected(Connected {
                connection: self.connection,
                mtu: RECEIVE_MTU - 4,
                fallback: Some(route),
            }),
        };
        for _ in 0..count {
            let mut packet = self.netdev.buffer(bytes).expect("there are enough");
            packet.push_back(bytes).expect("there is space").fill(0x45);
            self.batch.push(Outgoing { packet, ether_type: EtherType::IPV4, route });
        }
    }

    fn send(&mut self) {
        self.netdev.send(&mut self.device, black_box(&mut self.batch), &mut self.refused);
    }

    fn deliver(&mut self, qp_type: QpType, bytes: usize, count: usize) {
        let message = [&[8, 0, 0, 0], &ip_packet(IpProtocol::UDP, bytes)[..]].concat();
        let peering = self.netdev.peering(self.connection).expect("it is there");
        for _ in 0..count {
            match qp_type {
                QpType::Ud => self.device.deliver(DATAGRAM_BYTES, 40, &message, Qpn(1)),
                _ => self.device.deliver(RECEIVE_MTU, 0, &message, peering.qpn),
            }
        }
    }

    fn poll(&mut self) -> usize {
        let received = black_box(&mut self.received);
        self.netdev.poll(&mut self.device, &self.own, received).expect("it exists")
    }

    fn recycle(&mut self) {
        while let Some(received) = self.received.pop() {
            self.netdev.recycle(received.packet);
        }
    }
}

/// A bench with packets to be sent, after some earlier batches.
fn to_send(qp_type: QpType, bytes: usize, count: usize) -> Box<Bench> {
    let mut bench = bench();
    for _ in 0..4 {
        bench.make(qp_type, bytes, 32);
        bench.send();
        bench.device.finish_sends();
        bench.poll();
    }
    assert!(bench.refused.is_empty());
    bench.make(qp_type, bytes, count);
    bench
}

/// A bench with received packets, after some earlier batches.
fn to_receive(qp_type: QpType, bytes: usize, count: usize) -> Box<Bench> {
    let mut bench = bench();
    for _ in 0..4 {
        bench.deliver(qp_type, bytes, 32);
        bench.poll();
        bench.recycle();
    }
    bench.deliver(qp_type, bytes, count);
    bench
}

/// A bench with a batch that was sent.
fn sent(qp_type: QpType, bytes: usize, count: usize) -> Box<Bench> {
    let mut bench = to_send(qp_type, bytes, count);
    bench.send();
    bench.device.finish_sends();
    bench
}

#[library_benchmark(config = below(150))]
#[bench::v4(bench(), [10, 0, 1, 7].into())]
#[bench::v6(bench(), [0xfd00, 0, 0, 0, 0, 0, 0, 263].into())]
#[bench::group(bench(), [239, 0, 1, 7].into())]
#[bench::unknown(bench(), [10, 9, 9, 9].into())]
fn route(mut bench: Box<Bench>, to: IpAddr) -> Box<impl Sized> {
    black_box(bench.routes.refresh().route(black_box(to)));
    bench
}

/// An IPv4 packet with this protocol.
fn ip_packet(protocol: IpProtocol, bytes: usize) -> Vec<u8> {
    let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let header = Ipv4Header { ttl: 64, protocol, source, destination, ..Ipv4Header::default() };
    let mut packet = vec![9; bytes];
    let len = bytes - Ipv4Header::LEN;
    header.write_packet(&[], len, &mut packet).expect("there is space");
    packet
}

/// An IPv6 packet with this protocol.
fn ip6_packet(next_header: IpProtocol, bytes: usize) -> Vec<u8> {
    let ip = |last| [0xfd00, 0, 0, 0, 0, 0, 0, last].into();
    let (source, destination) = (ip(1), ip(2));
    let header =
        Ipv6Header { hop_limit: 64, next_header, source, destination, ..Default::default() };
    let mut packet = vec![9; bytes];
    header.write_packet(bytes - Ipv6Header::LEN, &mut packet).expect("there is space");
    packet
}

#[library_benchmark(config = below(150))]
#[bench::tcp(ip_packet(IpProtocol::TCP, 64))]
#[bench::tcp_v6(ip6_packet(IpProtocol::TCP, 64))]
fn parse(packet: Vec<u8>) -> Vec<u8> {
    black_box(PacketHeaders::parse_ip(black_box(&packet))).expect("it is one");
    packet
}

fn parsed(packet: Vec<u8>) -> (PacketHeaders, Vec<u8>) {
    (PacketHeaders::parse_ip(&packet).expect("it is one"), packet)
}

#[library_benchmark(config = below(150))]
#[bench::tcp(parsed(ip_packet(IpProtocol::TCP, 64)))]
#[bench::udp(parsed(ip_packet(IpProtocol::UDP, 64)))]
#[bench::tcp_v6(parsed(ip6_packet(IpProtocol::TCP, 64)))]
fn steer((headers, packet): (PacketHeaders, Vec<u8>)) -> Vec<u8> {
    let steering = FlowSteering::among(black_box(4));
    black_box(steering.received(black_box(&headers), black_box(&packet)));
    packet
}

#[library_benchmark(config = below(460))]
#[bench::rc(to_send(QpType::Rc, 64, 1))]
#[bench::ud(to_send(QpType::Ud, 64, 1))]
#[bench::rc_1500(to_send(QpType::Rc, 1500, 1))]
fn send_one(mut bench: Box<Bench>) -> Box<impl Sized> {
    bench.send();
    bench
}

#[library_benchmark(config = below(7500))]
#[bench::rc(to_send(QpType::Rc, 64, 32))]
#[bench::ud(to_send(QpType::Ud, 64, 32))]
#[bench::rc_1500(to_send(QpType::Rc, 1500, 32))]
fn send_32(mut bench: Box<Bench>) -> Box<impl Sized> {
    bench.send();
    bench
}

#[library_benchmark(config = below(1680))]
#[bench::rc_1500(sent(QpType::Rc, 1500, 32))]
fn finish_32(mut bench: Box<Bench>) -> Box<impl Sized> {
    assert_eq!(bench.poll(), 1);
    bench
}

#[library_benchmark(config = below(590))]
#[bench::rc(to_receive(QpType::Rc, 64, 1))]
#[bench::ud(to_receive(QpType::Ud, 64, 1))]
fn receive_one(mut bench: Box<Bench>) -> Box<impl Sized> {
    assert_eq!(bench.poll(), 1);
    bench
}

#[library_benchmark(config = below(13_800))]
#[bench::rc(to_receive(QpType::Rc, 64, 32))]
#[bench::ud(to_receive(QpType::Ud, 64, 32))]
fn receive_32(mut bench: Box<Bench>) -> Box<impl Sized> {
    assert_eq!(bench.poll(), 32);
    bench
}

#[library_benchmark(config = below(230))]
#[bench::any(bench())]
fn poll_nothing(mut bench: Box<Bench>) -> Box<impl Sized> {
    assert_eq!(bench.poll(), 0);
    bench
}

#[library_benchmark(config = below(40_000))]
#[bench::v4(Router::new(true, With::Routes))]
#[bench::v6(Router::new(false, With::Routes))]
#[bench::acl(Router::new(true, With::Acl))]
#[bench::rpf(Router::new(true, With::ReversePath))]
fn forward_32(mut router: Box<Router>) -> Box<impl Sized> {
    router.forward();
    router
}

library_benchmark_group!(
    name = packet,
    benchmarks = [
        route,
        parse,
        steer,
        send_one,
        send_32,
        finish_32,
        receive_one,
        receive_32,
        poll_nothing,
        forward_32
    ]
);
main!(library_benchmark_groups = packet);
