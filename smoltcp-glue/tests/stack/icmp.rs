//! ICMP errors about sent packets: which are accepted (RFC 5927).

use crate::segment::{header_of, segment};
use crate::world::{LinkFaults, World, at, ip};
use pollux::stack::{StackConfig, UdpId};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmpv4::{self, Icmpv4Message, Icmpv4Unreachable};
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::tcp::TcpHeader;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const MTU: u32 = 65_520;

fn world() -> World {
    World::new(1, &StackConfig { mtu: MTU, ..StackConfig::default() }, LinkFaults::default())
}

/// A router's ICMP error to the first host about a packet that is too big. It quotes the minimum
/// (RFC 792).
fn too_big(mtu: u16, original: &[u8]) -> Vec<u8> {
    let message = Icmpv4Message::DestinationUnreachable {
        code: Icmpv4Unreachable::FRAGMENTATION_NEEDED,
        next_hop_mtu: mtu,
        original: &original[..28],
    };
    let IpAddr::V4(destination) = ip(0, false) else { unreachable!("the address is IPv4") };
    let (source, protocol) = (Ipv4Addr::new(99, 9, 9, 9), IpProtocol::ICMPV4);
    let header = Ipv4Header { ttl: 64, protocol, source, destination, ..Ipv4Header::default() };
    let mut packet = vec![0; Ipv4Header::LEN + message.wire_len()];
    let payload = header.write_packet(&[], message.wire_len(), &mut packet).expect("it fits");
    message.write(payload).expect("it fits");
    icmpv4::fill_checksum(payload).expect("it is a message");
    packet
}

/// Passes that error to the first host. Returns the path MTU to the second after that, and the
/// number of unmatched errors.
fn mtu_after_error(world: &mut World, mtu: u16, original: &[u8]) -> (u32, u64) {
    let now = world.now;
    world.hosts[0].handle_packet(now, &too_big(mtu, original));
    let unmatched = world.hosts[0].counts().icmp_errors_unmatched;
    (world.hosts[0].path_mtu(now, ip(1, false)), unmatched)
}

/// RFC 5927 4.1: the error is accepted if the quoted sequence number is in flight.
#[test]
fn an_error_is_accepted_if_its_quoted_segment_is_in_flight() {
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
        let unmatched = nth as u64 + 1;
        assert_eq!(
            mtu_after_error(&mut world, 1000, &forged(offset)),
            (MTU, unmatched),
            "offset {offset}"
        );
    }
    assert_eq!(mtu_after_error(&mut world, 1000, &original), (1000, 4));
    // An acknowledged segment is not in flight.
    world.hosts[1].handle_packet(now, &original);
    world.pass(Duration::from_secs(1));
    assert_eq!(mtu_after_error(&mut world, 700, &original), (1000, 5));
}

#[test]
fn an_error_is_accepted_if_its_quoted_syn_was_sent() {
    let mut world = world();
    let now = world.now;
    world.hosts[0].tcp_connect(now, at(0, 5000), at(1, 80)).expect("the port is free");
    let syn = world.hosts[0].poll_transmit(now).expect("a SYN").to_vec();
    let header = header_of(&syn);
    let sequence_number = header.sequence_number.wrapping_add(1);
    let other =
        segment((at(0, 5000), at(1, 80)), TcpHeader { sequence_number, ..header }, &[], &[]);
    assert_eq!(mtu_after_error(&mut world, 0, &other), (MTU, 1));
    assert_eq!(mtu_after_error(&mut world, 0, &syn), (576, 1));
}

/// A datagram from the first host to a port of the second.
fn datagram(world: &mut World, socket: UdpId, to: u16, len: usize) -> Vec<u8> {
    let now = world.now;
    world.hosts[0].udp_send(now, socket, (None, at(1, to)), &vec![7; len]).expect("there is space");
    world.hosts[0].poll_transmit(now).expect("it sends").to_vec()
}

/// The same packet with another port, at an offset of the UDP header.
fn with_port(packet: &[u8], at: usize, port: u16) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[Ipv4Header::LEN + at..][..2].copy_from_slice(&port.to_be_bytes());
    packet
}

#[test]
fn an_error_is_accepted_if_its_quoted_datagram_was_sent() {
    let mut world = world();
    let socket = world.hosts[0].udp_bind(at(0, 6000)).expect("the port is free");
    let original = datagram(&mut world, socket, 9, 2000);
    let unmatched = [with_port(&original, 0, 6001), with_port(&original, 2, 10)];
    for (nth, one) in unmatched.iter().enumerate() {
        assert_eq!(mtu_after_error(&mut world, 1000, one), (MTU, nth as u64 + 1));
    }
    assert_eq!(mtu_after_error(&mut world, 1000, &original), (1000, 2));
}

/// A socket that sends to many destinations: an error about each of them is accepted.
#[test]
fn errors_about_many_recent_datagrams_are_accepted() {
    let mut world = world();
    let socket = world.hosts[0].udp_bind(at(0, 6000)).expect("the port is free");
    let all: Vec<_> = (1..100).map(|to| datagram(&mut world, socket, to, 2000)).collect();
    for (nth, one) in (0..).zip(&all) {
        let mtu = 1900 - nth;
        assert_eq!(mtu_after_error(&mut world, mtu, one), (mtu.into(), 0));
    }
}

/// RFC 5927 7.2.
#[test]
fn an_error_about_a_packet_that_fits_its_mtu_is_ignored() {
    let mut world = world();
    let socket = world.hosts[0].udp_bind(at(0, 6000)).expect("the port is free");
    let original = datagram(&mut world, socket, 9, 972);
    assert_eq!(original.len(), 1000);
    assert_eq!(mtu_after_error(&mut world, 1000, &original), (MTU, 1));
    assert_eq!(mtu_after_error(&mut world, 999, &original), (999, 1));
}
