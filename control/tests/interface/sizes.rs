//! Packets longer than the MTU of their path: each destination has its own.

use crate::world::{World, packet, v4, v6};
use pollux_control::ipoib::connected::Policy;
use pollux_fabric::sm::SmConfig;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmpv4::{Icmpv4Message, Icmpv4Unreachable};
use pollux_wire::ip::icmpv6::Icmpv6Message;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::Ipv6Packet;
use std::net::IpAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Three hosts, of which the last takes datagrams alone.
fn world(seed: u64) -> World {
    let mut world = World::with(seed, 3, SmConfig::default(), |mut config, nth| {
        config.peer.policy = if nth == 2 { Policy::Ud } else { Policy::Rc };
        config
    });
    world.pass(5 * SECOND);
    world.assert_up();
    world
}

/// A packet that may not be parted.
fn whole(source: IpAddr, destination: IpAddr, bytes: usize) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (source, destination) else {
        return packet(source, destination, &vec![6; bytes - 40]);
    };
    let mut whole = vec![4; bytes];
    let (protocol, dont_fragment) = (IpProtocol::UDP, true);
    let header = Ipv4Header {
        protocol,
        dont_fragment,
        source,
        destination,
        ttl: 64,
        ..Ipv4Header::default()
    };
    header.write_packet(&[], bytes - Ipv4Header::LEN, &mut whole).unwrap();
    whole
}

/// The ICMP errors that a host got: sender and MTU.
fn icmp_errors(world: &World, nth: usize) -> Vec<(IpAddr, u32)> {
    let read = |bytes: &Vec<u8>| match bytes[0] >> 4 {
        4 => {
            let packet = Ipv4Packet::parse(bytes).unwrap();
            match Icmpv4Message::parse(packet.payload()).ok()? {
                Icmpv4Message::DestinationUnreachable {
                    code: Icmpv4Unreachable::FRAGMENTATION_NEEDED,
                    next_hop_mtu,
                    ..
                } => Some((packet.header().source.into(), next_hop_mtu.into())),
                _ => None,
            }
        }
        _ => {
            let packet = Ipv6Packet::parse(bytes).unwrap();
            match Icmpv6Message::parse(packet.payload()).ok()? {
                Icmpv6Message::PacketTooBig { mtu, .. } => {
                    Some((packet.header().source.into(), mtu))
                }
                _ => None,
            }
        }
    };
    world.hosts[nth].got.iter().filter_map(read).collect()
}

// req: cm-per-destination-mtu
#[test]
fn each_destination_has_a_length_of_its_own_and_senders_learn_it() {
    let mut world = world(31);
    assert!(world.reaches(0, 1, &whole(v4(1), v4(2), 65_520), SECOND), "by a connection");
    assert!(world.reaches(0, 2, &whole(v4(1), v4(3), 2044), SECOND), "by a datagram");
    assert!(world.reaches(0, 2, &whole(v6(1), v6(3), 2044), SECOND));
    assert_eq!(icmp_errors(&world, 0), []);
    for (to, mtu) in [(v4(2), 65_520), (v4(3), 2044), (v6(2), 65_520), (v6(3), 2044)] {
        let own = if to.is_ipv4() { v4(1) } else { v6(1) };
        // A packet of IPv4 cannot be much longer than what a connection takes.
        let longer = if mtu == 2044 { 2045 } else { 65_521 };
        world.hosts[0].got.clear();
        world.send(0, whole(own, to, longer));
        assert_eq!(icmp_errors(&world, 0), [(own, mtu)], "{to}");
    }
    let told = world.hosts[0].interface.drop_rows().find(|row| row.1 == "too_big");
    assert_eq!(told.map(|row| row.2), Some(4));
}

/// The sender of a forwarded packet gets the ICMP error, not the router.
// req: cm-per-destination-mtu
#[test]
fn the_sender_of_a_forwarded_packet_learns_the_mtu() {
    let mut world = world(32);
    assert!(world.reaches(0, 2, &whole(v4(1), v4(3), 100), SECOND));
    assert!(world.reaches(0, 1, &whole(v4(1), v4(2), 100), SECOND));
    world.hosts[1].got.clear();
    world.send(0, whole(v4(2), v4(3), 3000));
    world.pass(SECOND);
    assert_eq!(icmp_errors(&world, 1), [(v4(1), 2044)]);
    assert_eq!(icmp_errors(&world, 0), []);
}

// req: cm-per-destination-mtu
#[test]
fn a_packet_of_ipv4_that_may_be_parted_is() {
    let mut world = world(33);
    assert!(world.reaches(0, 2, &whole(v4(1), v4(3), 100), SECOND));
    let payload: Vec<u8> = (0..5000).map(|at| at as u8).collect();
    for _ in 0..2 {
        world.hosts[2].got.clear();
        world.send(0, packet(v4(1), v4(3), &payload));
        let parts = &world.hosts[2].got;
        assert_eq!(parts.len(), 3);
        let mut came = vec![0; 5000];
        for bytes in parts {
            let part = Ipv4Packet::parse(bytes).unwrap();
            assert!(bytes.len() <= 2044 && part.checksum_ok());
            let at = usize::from(part.header().fragment_offset) * 8;
            came[at..at + part.payload().len()].copy_from_slice(part.payload());
        }
        assert_eq!(came, payload);
    }
    let ids = world.hosts[2].seen.iter().filter_map(|bytes| Ipv4Packet::parse(bytes).ok());
    let ids = ids.filter(|part| part.header().is_fragment());
    let ids: std::collections::BTreeSet<_> = ids.map(|it| it.header().identification).collect();
    assert_eq!(ids.len(), 2, "each packet's parts have a name of their own");
    assert_eq!(icmp_errors(&world, 0), []);
}

#[test]
fn an_interface_sends_nothing_longer_than_it_was_told_to() {
    let mut world = World::with(34, 2, SmConfig::default(), |mut config, nth| {
        config.mtu_max = if nth == 0 { 1500 } else { u32::MAX };
        config
    });
    world.pass(5 * SECOND);
    world.assert_up();
    assert_eq!(world.hosts[0].interface.link().unwrap().mtu, 1500);
    assert!(world.reaches(0, 1, &whole(v4(1), v4(2), 1500), SECOND));
    world.send(0, whole(v4(1), v4(2), 1501));
    assert_eq!(icmp_errors(&world, 0), [(v4(1), 1500)]);
    assert!(world.reaches(1, 0, &whole(v4(2), v4(1), 2044), SECOND), "it takes what comes");
}
