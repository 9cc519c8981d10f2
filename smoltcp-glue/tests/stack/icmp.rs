//! ICMP errors about packets of ours: which are believed (RFC 5927).

use crate::segment::{header_of, segment};
use crate::world::{Weather, World, at, ip};
use pollux::stack::{StackConfig, UdpId};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmpv4::{self, Icmpv4Message, Icmpv4Unreachable};
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::tcp::TcpHeader;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const MTU: u32 = 65_520;

fn world() -> World {
    World::new(1, &StackConfig { mtu: MTU, ..StackConfig::default() }, Weather::default())
}

/// What a router says to the first host of a packet that is too long, of which it quotes the least
/// that it has to (RFC 792).
fn too_big(mtu: u16, original: &[u8]) -> Vec<u8> {
    let message = Icmpv4Message::DestinationUnreachable {
        code: Icmpv4Unreachable::FRAGMENTATION_NEEDED,
        next_hop_mtu: mtu,
        original: &original[..28],
    };
    let IpAddr::V4(destination) = ip(0, false) else { unreachable!("it is of IPv4") };
    let (source, protocol) = (Ipv4Addr::new(99, 9, 9, 9), IpProtocol::ICMPV4);
    let header = Ipv4Header { ttl: 64, protocol, source, destination, ..Ipv4Header::default() };
    let mut packet = vec![0; Ipv4Header::LEN + message.wire_len()];
    let payload = header.write_packet(&[], message.wire_len(), &mut packet).expect("it fits");
    message.write(payload).expect("it fits");
    icmpv4::fill_checksum(payload).expect("it is a message");
    packet
}

/// The first host is told that a packet is too long; the MTU towards the second after that, and how
/// many ICMP errors quoted a packet that was never sent.
fn told(world: &mut World, mtu: u16, original: &[u8]) -> (u32, u64) {
    let now = world.now;
    world.hosts[0].handle_packet(now, &too_big(mtu, original));
    let strange = world.hosts[0].counts().icmp_errors_unmatched;
    (world.hosts[0].path_mtu(now, ip(1, false)), strange)
}

/// RFC 5927 4.1: a quoted segment is believed to be ours if its number is on its way.
#[test]
fn a_quoted_segment_has_to_be_on_its_way() {
    let mut world = world();
    let [client, _] = world.connected(80, false);
    let ends = world.hosts[0].tcp_addresses(client).expect("it is open");
    world.hosts[0].tcp_send(client, &[7; 2000]).expect("it is open");
    let now = world.now;
    let original = world.hosts[0].poll_transmit(now).expect("it sends").to_vec();
    let header = header_of(&original);
    let forged = |offset: u32| {
        let sequence_number = header.sequence_number.wrapping_add(offset);
        segment(ends, TcpHeader { sequence_number, ..header }, &[], &[7; 2000])
    };
    for (nth, offset) in [2000, 5000, 1 << 31, 0_u32.wrapping_sub(1)].into_iter().enumerate() {
        let strange = nth as u64 + 1;
        assert_eq!(told(&mut world, 1000, &forged(offset)), (MTU, strange), "offset {offset}");
    }
    assert_eq!(told(&mut world, 1000, &original), (1000, 4));
    // What was acknowledged has arrived.
    world.hosts[1].handle_packet(now, &original);
    world.pass(Duration::from_secs(1));
    assert_eq!(told(&mut world, 700, &original), (1000, 5));
}

/// A SYN is on its way, too.
#[test]
fn a_quoted_syn_has_to_be_the_one_that_was_sent() {
    let mut world = world();
    let now = world.now;
    world.hosts[0].tcp_connect(now, at(0, 5000), at(1, 80)).expect("the port is free");
    let syn = world.hosts[0].poll_transmit(now).expect("a SYN").to_vec();
    let header = header_of(&syn);
    let sequence_number = header.sequence_number.wrapping_add(1);
    let other =
        segment((at(0, 5000), at(1, 80)), TcpHeader { sequence_number, ..header }, &[], &[]);
    assert_eq!(told(&mut world, 0, &other), (MTU, 1));
    assert_eq!(told(&mut world, 0, &syn), (576, 1));
}

/// A datagram of the first host's to a port of the second.
fn datagram(world: &mut World, socket: UdpId, to: u16, len: usize) -> Vec<u8> {
    let now = world.now;
    world.hosts[0].udp_send(now, socket, (None, at(1, to)), &vec![7; len]).expect("there is room");
    world.hosts[0].poll_transmit(now).expect("it sends").to_vec()
}

/// The same packet from another port of the sender's, or to another of the receiver's.
fn with_port(packet: &[u8], at: usize, port: u16) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[Ipv4Header::LEN + at..][..2].copy_from_slice(&port.to_be_bytes());
    packet
}

#[test]
fn a_quoted_datagram_has_to_be_one_that_a_socket_has_sent() {
    let mut world = world();
    let socket = world.hosts[0].udp_bind(at(0, 6000)).expect("the port is free");
    let original = datagram(&mut world, socket, 9, 2000);
    let strange = [with_port(&original, 0, 6001), with_port(&original, 2, 10)];
    for (nth, one) in strange.iter().enumerate() {
        assert_eq!(told(&mut world, 1000, one), (MTU, nth as u64 + 1));
    }
    assert_eq!(told(&mut world, 1000, &original), (1000, 2));
}

/// A socket that talks to many at a time: each of them may be told of.
#[test]
fn a_quoted_datagram_may_be_one_of_many_that_were_sent() {
    let mut world = world();
    let socket = world.hosts[0].udp_bind(at(0, 6000)).expect("the port is free");
    let all: Vec<_> = (1..100).map(|to| datagram(&mut world, socket, to, 2000)).collect();
    for (nth, one) in (0..).zip(&all) {
        let mtu = 1900 - nth;
        assert_eq!(told(&mut world, mtu, one), (mtu.into(), 0));
    }
}

/// RFC 5927 7.2: what fits is not too long.
#[test]
fn a_quoted_packet_has_to_be_longer_than_what_is_said_to_fit() {
    let mut world = world();
    let socket = world.hosts[0].udp_bind(at(0, 6000)).expect("the port is free");
    let original = datagram(&mut world, socket, 9, 972);
    assert_eq!(original.len(), 1000);
    assert_eq!(told(&mut world, 1000, &original), (MTU, 1));
    assert_eq!(told(&mut world, 999, &original), (999, 1));
}
