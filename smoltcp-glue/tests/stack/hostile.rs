//! Whatever comes: a stack takes it, and keeps to its limits.

use crate::world::{Weather, World, at, ip};
use pollux::stack::StackConfig;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::checksum::PseudoHeader;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::{icmpv4, icmpv6, tcp, udp};
use proptest::prelude::*;
use std::net::IpAddr;
use std::time::Duration;

/// A packet whose headers of IP are right, from one of two hosts to the second.
fn wrap(protocol: IpProtocol, is_v6: bool, payload: &[u8], is_summed: bool) -> Vec<u8> {
    let mut payload = payload.to_vec();
    let (source, destination) = (ip(0, is_v6), ip(1, is_v6));
    let (mut packet, pseudo): (Vec<u8>, PseudoHeader);
    let room = match (source, destination) {
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
        _ => unreachable!("they are of one family"),
    };
    if is_summed {
        // What is too short for a checksum goes without.
        let _ = match protocol {
            IpProtocol::TCP => tcp::fill_checksum(&mut payload, &pseudo),
            IpProtocol::UDP => udp::fill_checksum(&mut payload, &pseudo),
            IpProtocol::ICMPV4 => icmpv4::fill_checksum(&mut payload),
            _ => icmpv6::fill_checksum(&mut payload, &pseudo),
        };
    }
    room.copy_from_slice(&payload);
    packet
}

/// A segment or datagram for a port where somebody is, the rest of which is anything.
fn for_somebody(protocol: IpProtocol, mut payload: Vec<u8>, client_port: u16) -> Vec<u8> {
    if let [a, b, c, d, ..] = &mut payload[..] {
        [*a, *b] = client_port.to_be_bytes();
        [*c, *d] = 80_u16.to_be_bytes();
    }
    if protocol == IpProtocol::TCP && payload.len() > 20 {
        // Five words of header, or a few more.
        payload[12] = 0x50 | payload[12] & 0x2f;
    }
    payload
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_octets_are_taken(packets in proptest::collection::vec(
        proptest::collection::vec(any::<u8>(), 0..100), 1..20,
    )) {
        let mut world = World::new(1, &StackConfig::default(), Weather::default());
        world.hosts[1].tcp_listen(at(1, 80), 4).expect("the port is free");
        for packet in packets {
            let now = world.now;
            world.hosts[1].handle_packet(now, &packet);
        }
        world.pass(Duration::from_secs(1));
        prop_assert!(world.hosts[1].tcp_len() <= 4);
    }

    #[test]
    fn any_segments_and_datagrams_are_taken(packets in proptest::collection::vec(
        (0..4_usize, any::<bool>(), proptest::collection::vec(any::<u8>(), 0..100), 0..8_u8),
        1..30,
    )) {
        let mut world = World::new(1, &StackConfig::default(), Weather::default());
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
                0 => for_somebody(protocol, payload, if odds & 2 == 0 { open } else { 1000 }),
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
