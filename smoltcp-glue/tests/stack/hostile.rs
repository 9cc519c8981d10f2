//! A stack handles any received bytes, and keeps to its limits.

use crate::world::{LinkFaults, World, at, ip};
use pollux::stack::{StackConfig, TcpError};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::checksum::PseudoHeader;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::{icmpv4, icmpv6, tcp, udp};
use proptest::prelude::*;
use std::net::IpAddr;
use std::time::Duration;

/// A packet with a valid IP header from the first host to the second.
fn wrap(protocol: IpProtocol, is_v6: bool, payload: &[u8], is_summed: bool) -> Vec<u8> {
    let mut payload = payload.to_vec();
    let (source, destination) = (ip(0, is_v6), ip(1, is_v6));
    let (mut packet, pseudo): (Vec<u8>, PseudoHeader);
    let buffer = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header =
                Ipv4Header { ttl: 9, protocol, source, destination, ..Ipv4Header::default() };
            pseudo = header.pseudo_header();
            packet = vec![0; Ipv4Header::LEN + payload.len()];
            header.write_packet(&[], payload.len(), &mut packet).unwrap()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let next_header = protocol;
            let header = Ipv6Header { next_header, source, destination, ..Ipv6Header::default() };
            pseudo = header.pseudo_header();
            packet = vec![0; Ipv6Header::LEN + payload.len()];
            header.write_packet(payload.len(), &mut packet).unwrap()
        }
        _ => unreachable!("both have one family"),
    };
    if is_summed {
        // A payload too short for a checksum stays without one.
        let _ = match protocol {
            IpProtocol::TCP => tcp::fill_checksum(&mut payload, &pseudo),
            IpProtocol::UDP => udp::fill_checksum(&mut payload, &pseudo),
            IpProtocol::ICMPV4 => icmpv4::fill_checksum(&mut payload),
            _ => icmpv6::fill_checksum(&mut payload, &pseudo),
        };
    }
    buffer.copy_from_slice(&payload);
    packet
}

/// A segment or datagram to an open port; the rest of it is arbitrary.
fn to_open_port(protocol: IpProtocol, mut payload: Vec<u8>, client_port: u16) -> Vec<u8> {
    if let [a, b, c, d, ..] = &mut payload[..] {
        [*a, *b] = client_port.to_be_bytes();
        [*c, *d] = 80_u16.to_be_bytes();
    }
    if protocol == IpProtocol::TCP && payload.len() > 20 {
        // A header of five words or seven.
        payload[12] = 0x50 | payload[12] & 0x2f;
    }
    payload
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_leave_a_stack_within_its_limits(packets in proptest::collection::vec(
        proptest::collection::vec(any::<u8>(), 0..100), 1..20,
    )) {
        let mut world = World::new(1, &StackConfig::default(), LinkFaults::default());
        world.hosts[1].tcp_listen(at(1, 80), 4).expect("the port is free");
        for packet in packets {
            let now = world.now;
            world.hosts[1].handle_packet(now, &packet);
        }
        world.pass(Duration::from_secs(1));
        prop_assert!(world.hosts[1].tcp_len() <= 4);
    }

    #[test]
    fn any_transport_packets_leave_a_stack_within_its_limits(packets in proptest::collection::vec(
        (0..4_usize, any::<bool>(), proptest::collection::vec(any::<u8>(), 0..100), 0..8_u8),
        1..30,
    )) {
        let mut world = World::new(1, &StackConfig::default(), LinkFaults::default());
        let [client, server] = world.connected(80, false);
        let open = world.hosts[0].tcp_addresses(client).expect("it is open").0.port();
        for is_v6 in [false, true] {
            let local = std::net::SocketAddr::new(ip(1, is_v6), 80);
            world.hosts[1].tcp_listen(local, 4).expect("the port is free");
            world.hosts[1].udp_bind(local).expect("the port is free");
        }
        for (kind, is_v6, payload, odds) in packets {
            let protocols =
                [IpProtocol::TCP, IpProtocol::UDP, IpProtocol::ICMPV4, IpProtocol::ICMPV6];
            let protocol = protocols[kind];
            let payload = match odds & 1 {
                0 => to_open_port(protocol, payload, if odds & 2 == 0 { open } else { 1000 }),
                _ => payload,
            };
            let packet = wrap(protocol, is_v6, &payload, odds & 4 == 0);
            let now = world.now;
            world.hosts[1].handle_packet(now, &packet);
            world.drain();
        }
        world.pass(Duration::from_secs(1));
        prop_assert!(world.hosts[1].tcp_len() <= 9);
        let now = world.now;
        world.hosts[1].tcp_close(now, server);
        world.pass(Duration::from_secs(1));
    }
}

/// A forged answer of the second host to a segment of the first.
fn spoof(to: &tcp::TcpHeader, acknowledgment_number: u32, options: &[u8]) -> Vec<u8> {
    let header = tcp::TcpHeader {
        source_port: to.destination_port,
        destination_port: to.source_port,
        sequence_number: to.acknowledgment_number,
        acknowledgment_number,
        window: 4000,
        ack: true,
        ..tcp::TcpHeader::default()
    };
    let mut segment = vec![0; tcp::TcpHeader::LEN];
    header.write_segment(&[], 0, &mut segment).expect("there is space");
    segment.extend(options);
    segment[12] = (segment.len() as u8 / 4) << 4;
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (ip(1, false), ip(0, false)) else {
        unreachable!("the addresses are IPv4");
    };
    let protocol = IpProtocol::TCP;
    let ip = Ipv4Header { ttl: 9, protocol, source, destination, ..Ipv4Header::default() };
    tcp::fill_checksum(&mut segment, &ip.pseudo_header()).expect("it is a segment");
    let mut packet = vec![0; Ipv4Header::LEN + segment.len()];
    let buffer = ip.write_packet(&[], segment.len(), &mut packet).expect("there is space");
    buffer.copy_from_slice(&segment);
    packet
}

/// The header of the next segment that a host sends.
fn next_header(world: &mut World, host: usize) -> tcp::TcpHeader {
    let packet = world.hosts[host].poll_transmit(world.now).expect("it has something to send");
    tcp::TcpSegment::parse(&packet[Ipv4Header::LEN..]).expect("it is a segment").header()
}

#[test]
fn acknowledgments_of_unsent_data_are_ignored() {
    let mut world = World::new(1, &StackConfig::default(), LinkFaults::default());
    let [client, server] = world.connected(80, false);
    // All segments are lost, and more data wait than were sent.
    world.faults.lost = 1_000_000;
    let sent = world.hosts[0].tcp_send(client, &vec![7; 500_000]).expect("it is open");
    let sent = sent.expect("there is space");
    let header = next_header(&mut world, 0);
    world.drain();
    for far in [90_000, 200_000, 400_000] {
        for with_block in [false, true] {
            let to = header.sequence_number.wrapping_add(far);
            let mut options = vec![1, 1, 5, 10];
            options.extend([to, to.wrapping_add(10)].iter().flat_map(|edge| edge.to_be_bytes()));
            let packet = spoof(&header, to, if with_block { &options } else { &[] });
            let now = world.now;
            world.hosts[0].handle_packet(now, &packet);
            world.drain();
        }
    }
    world.faults.lost = 0;
    let (mut received, mut buffer) = (0, vec![0; 100_000]);
    world.until("all is received", Duration::from_secs(1), |world| {
        let taken = world.hosts[1].tcp_recv(server, &mut buffer).expect("it is open");
        received += taken.unwrap_or(0);
        received == sent
    });
}

#[test]
fn old_acknowledgments_do_not_postpone_the_user_timeout() {
    let mut world = World::new(1, &StackConfig::default(), LinkFaults::default());
    let [client, _] = world.connected(80, false);
    world.faults.lost = 1_000_000;
    world.hosts[0].tcp_send(client, b"hello?").expect("it is open");
    let header = next_header(&mut world, 0);
    let user_timeout = StackConfig::default().tcp.user_timeout.as_secs() as u32;
    for nth in 0..user_timeout / 5 + 1 {
        let to = header.sequence_number.wrapping_sub(nth % 3 * 1000);
        let (now, packet) = (world.now, spoof(&header, to, &[]));
        world.hosts[0].handle_packet(now, &packet);
        world.pass(Duration::from_secs(5));
    }
    assert_eq!(world.end_of(0, client), Some(TcpError::TimedOut));
}

#[test]
fn a_reset_has_the_number_after_all_sent_data() {
    let mut world = World::new(1, &StackConfig::default(), LinkFaults::default());
    let [client, _] = world.connected(80, false);
    world.faults.lost = 1_000_000;
    world.hosts[0].tcp_send(client, &vec![7; 60_000]).expect("it is open");
    let first = next_header(&mut world, 0).sequence_number;
    world.pass(Duration::from_secs(2));
    // The retransmission has begun.
    let due = world.hosts[0].poll_timeout().expect("it waits for an answer");
    world.hosts[0].handle_timeout(due);
    world.now = due;
    assert_eq!(next_header(&mut world, 0).sequence_number, first);
    world.hosts[0].tcp_abort(due, client);
    let reset = next_header(&mut world, 0);
    assert!(reset.rst);
    assert_eq!(reset.sequence_number.wrapping_sub(first), 60_000);
}
