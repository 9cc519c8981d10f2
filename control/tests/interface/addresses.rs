//! Own addresses and address resolution, on links that lose, duplicate and delay packets by seed;
//! and what tshark reads of the packets.

use crate::world::{Weather, World, packet, v4, v6};
use pollux_control::address::{AddressState, NextHop};
use pollux_control::dhcp::{Dhcp, client_id};
use pollux_control::frame::LinkFrame;
use pollux_control::icmp::{Icmp, IcmpConfig, IcmpError};
use pollux_control::ipoib::{By, OutgoingPacket};
use pollux_control::nd::ALL_NODES;
use pollux_control::neighbor::State;
use pollux_referee::frames::{ud, ud_multicast};
use pollux_referee::tshark::{self, judge};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::address::{Guid, Qpn};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmpv6;
use pollux_wire::ip::ipoib::IpoibHeader;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::list::List;
use pollux_wire::ip::nd::{NdBody, NdMessage, RouterAdvertisement};
use pollux_wire::ip::nd_option::{NdOption, PrefixInformation};
use pollux_wire::keys::PKey;
use std::net::IpAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Nodes with the addresses 5 and 6 do not exist.
const HOSTS: u64 = 4;

// req: cm-resolution-on-ud
#[test]
fn resolution_ends_for_every_neighbor_on_a_link_that_loses_packets() {
    for seed in 0..10 {
        let mut world = World::up(seed, HOSTS as usize);
        world.weather = Weather { lost: 300_000, doubled: 100_000, delayed: 500_000 };
        let mut rng = SeededRng::new(seed);
        for _ in 0..60 {
            let (from, to) = (rng.below(HOSTS), 1 + rng.below(HOSTS + 2));
            let datagram = match rng.happens(500_000) {
                true => packet(v4(from as u8 + 1), v4(to as u8), b"4"),
                false => packet(v6(from as u16 + 1), v6(to as u16), b"6"),
            };
            if to != from + 1 {
                world.send(from as usize, datagram);
            }
            world.pass(rng.duration(3 * SECOND));
        }
        world.pass(30 * SECOND);
        for host in &world.hosts {
            for row in host.interface.neighbor_rows() {
                let is_stuck = matches!(row.state, State::Incomplete { .. } | State::Probe { .. });
                assert!(!is_stuck && row.pending == 0, "seed {seed}: {row:?}");
            }
        }
        world.weather = Weather::default();
        let datagram = packet(v6(1), v6(2), b"the link is good again");
        assert!(world.reaches(0, 1, &datagram, 10 * SECOND), "seed {seed}");
    }
}

// req: ud-slaac
#[test]
fn no_two_interfaces_hold_one_address() {
    for seed in 0..30 {
        let mut world = World::up(seed, 2);
        world.weather.delayed = 500_000;
        let (ip, mut rng) = (v6(99), SeededRng::new(seed));
        // The second one starts before, during or after the detection of the first one.
        for nth in 0..2 {
            let now = world.now;
            assert!(world.hosts[nth].interface.add_address(now, ip, 64));
            world.settle();
            world.pass(rng.duration(4 * SECOND));
        }
        world.pass(8 * SECOND);
        let addresses = || world.hosts.iter().map(|host| host.interface.addresses());
        let holders = addresses().filter(|addresses| addresses.is_ours(ip)).count();
        let is_duplicate = |state| state == AddressState::Duplicate;
        let states = addresses().flat_map(|all| all.iter().filter(|one| one.ip == ip));
        let losers = states.filter(|one| is_duplicate(one.state)).count();
        assert_eq!((holders <= 1, holders + losers), (true, 2), "seed {seed}: {holders}");
    }
}

/// Whether a host uses an address at any time of the next seconds.
fn uses(world: &mut World, nth: usize, ip: IpAddr, seconds: u32) -> bool {
    let mut has_it = false;
    for _ in 0..50 * seconds {
        has_it |= world.hosts[nth].port_driver.own.contains(&ip);
        world.pass(SECOND / 50);
    }
    has_it
}

fn claim(world: &mut World, nth: usize, ip: IpAddr) {
    let len = if ip.is_ipv4() { 24 } else { 64 };
    assert!(world.hosts[nth].interface.add_address(world.now, ip, len));
    world.settle();
}

#[test]
fn an_address_that_another_node_holds_is_not_used_for_a_moment() {
    for ip in [v4(99), v6(99)] {
        let mut world = World::up(41, 2);
        claim(&mut world, 0, ip);
        world.pass(5 * SECOND);
        claim(&mut world, 1, ip);
        assert!(!uses(&mut world, 1, ip, 10), "{ip}");
        assert!(world.hosts[0].interface.addresses().is_ours(ip));
    }
}

#[test]
fn an_address_whose_holder_answers_late_is_given_up() {
    for ip in [v4(99), v6(99)] {
        let mut world = World::up(42, 2);
        claim(&mut world, 0, ip);
        world.pass(5 * SECOND);
        world.late = Duration::from_millis(150);
        claim(&mut world, 1, ip);
        assert!(uses(&mut world, 1, ip, 1), "{ip}: there is no answer in time");
        assert!(!uses(&mut world, 1, ip, 10), "{ip}");
        assert!(world.hosts[0].interface.addresses().is_ours(ip));
    }
}

/// A process that was killed has left its address in the tables of neighbors, and its group
/// memberships with the subnet administrator.
#[test]
fn a_restarted_node_has_its_address_within_100_ms_of_coming_up() {
    let mut world = World::up(43, 2);
    for (source, to) in [(v4(2), v4(1)), (v6(2), v6(1))] {
        assert!(world.reaches(1, 0, &packet(source, to, b"before"), SECOND));
    }
    world.restart_with(0, Qpn(0x99), |config| config.address(v6(1), 64));
    while !world.hosts[0].interface.is_up() {
        world.pass(SECOND / 50);
    }
    world.pass(SECOND / 10);
    for (own, peer) in [(v4(1), v4(2)), (v6(1), v6(2))] {
        assert!(world.hosts[0].port_driver.own.contains(&own));
        let datagram = packet(peer, own, b"to the new queue pair");
        world.send(1, datagram.clone());
        assert!(world.heard(0, &datagram), "the neighbor knows the new queue pair");
    }
}

#[test]
fn the_second_node_with_an_address_does_not_use_it_and_knows_who_has_it() {
    let (ip, seen) = (v4(99), packet(v4(3), v4(99), b"for the one that has it"));
    for seed in 0..20 {
        let mut world = World::up(seed, 3);
        let duplicates = |world: &World, nth: usize| -> Vec<(IpAddr, Option<String>)> {
            let all = world.hosts[nth].interface.addresses().duplicates();
            all.map(|(ip, holder)| (ip, holder.map(String::from))).collect()
        };
        claim(&mut world, 0, ip);
        world.pass(5 * SECOND);
        claim(&mut world, 1, ip);
        world.pass(SECOND);
        let holder = world.hosts[0].interface.row().address.to_string();
        assert_eq!(duplicates(&world, 1), [(ip, Some(holder))], "seed {seed}");
        assert!(!world.hosts[1].interface.addresses().is_ours(ip));
        assert!(world.reaches(2, 0, &seen, SECOND), "seed {seed}: the holder is not disturbed");
        world.pass(120 * SECOND);
        assert_eq!((duplicates(&world, 0).len(), duplicates(&world, 1).len()), (0, 1));
        // When the holder gives it up, the other one gets it.
        world.hosts[0].interface.remove_address(world.now, ip);
        world.settle();
        world.pass(60 * SECOND);
        assert_eq!(duplicates(&world, 1), [], "seed {seed}");
        assert!(world.reaches(2, 1, &seen, 10 * SECOND), "seed {seed}: it has moved");
    }
}

#[test]
fn of_two_nodes_that_claim_an_address_together_one_gets_it_in_the_end() {
    for seed in 0..20 {
        let (mut world, ip) = (World::up(seed, 2), v4(99));
        for nth in 0..2 {
            assert!(world.hosts[nth].interface.add_address(world.now, ip, 24));
        }
        world.settle();
        world.pass(180 * SECOND);
        let holders = world.hosts.iter().filter(|host| host.interface.addresses().is_ours(ip));
        assert_eq!(holders.count(), 1, "seed {seed}");
    }
}

/// An advertisement of host 2 for this prefix, and as default router for some seconds.
fn advertisement(world: &World, lifetime: u16) -> Vec<u8> {
    let prefix = PrefixInformation {
        prefix_length: 64,
        on_link: true,
        autonomous: true,
        valid_lifetime_seconds: 600,
        preferred_lifetime_seconds: 300,
        prefix: "2001:db8::".parse().unwrap(),
    };
    let body =
        RouterAdvertisement { router_lifetime_seconds: lifetime, ..RouterAdvertisement::default() };
    let link: LinkAddress = world.hosts[1].interface.row().address;
    let options = [NdOption::Source(link.into()), NdOption::Prefix(prefix)];
    let message =
        NdMessage { body: NdBody::RouterAdvertisement(body), options: List::of(&options) };
    let header = Ipv6Header {
        next_header: IpProtocol::ICMPV6,
        hop_limit: 255,
        source: router(world),
        destination: ALL_NODES,
        ..Ipv6Header::default()
    };
    let mut packet = vec![0; Ipv6Header::LEN + message.wire_len()];
    let room = header.write_packet(message.wire_len(), &mut packet).unwrap();
    message.write(room).unwrap();
    icmpv6::fill_checksum(room, &header.pseudo_header()).unwrap();
    packet
}

/// The link-local address of host 2.
fn router(world: &World) -> std::net::Ipv6Addr {
    let own = world.hosts[1].interface.addresses().iter().map(|one| one.ip);
    let mut local = own.filter_map(|ip| match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
        _ => None,
    });
    local.next().expect("it has a link-local address")
}

// req: ud-slaac
#[test]
fn a_router_gives_an_address_and_a_default_route_and_withdraws_both() {
    let mut world = World::up(3, 2);
    let bytes = advertisement(&world, 400);
    world.inject(0, EtherType::IPV6, &bytes);
    world.pass(5 * SECOND);
    let far: IpAddr = "2a00::1".parse().unwrap();
    let of_prefix = |world: &World| {
        let mut all = world.hosts[0].interface.addresses().iter();
        all.find(|one| one.ip.to_string().starts_with("2001:db8:")).copied()
    };
    let own = of_prefix(&world).expect("the prefix is autonomous");
    assert_eq!(own.state, AddressState::Preferred);
    assert_eq!(world.hosts[0].interface.addresses().source_for(far), Some(own.ip));
    let hop = |world: &World| world.hosts[0].interface.next_hop(world.now, far);
    assert_eq!(hop(&world), Some(NextHop::Via(router(&world).into())));
    let datagram = packet(own.ip, far, b"to the router");
    world.send(0, datagram.clone());
    world.pass(SECOND);
    assert!(world.heard(1, &datagram), "the advertisement has the router's link address");
    world.pass(295 * SECOND);
    assert_eq!(of_prefix(&world).map(|one| one.state), Some(AddressState::Deprecated));
    world.pass(100 * SECOND);
    assert_eq!(hop(&world), None, "the lifetime of the router is over");
    world.pass(200 * SECOND);
    assert_eq!(of_prefix(&world), None);
}

/// A frame as tshark has to read it. `what` names it in failures.
fn judged(what: &str, outgoing: &OutgoingPacket) -> tshark::DissectedFrame {
    let mut bytes = IpoibHeader { ether_type: outgoing.ether_type }.emit().to_vec();
    bytes.extend_from_slice(&outgoing.packet);
    let group = match outgoing.by {
        By::Datagram(adjacency) => adjacency.vector.grh.map(|grh| grh.dgid),
        By::Peer(_) => None,
    };
    let bytes = match group.filter(|dgid| dgid.is_multicast()) {
        Some(mgid) => ud_multicast(mgid, &bytes),
        None => ud(&bytes),
    };
    let judged = tshark::DissectedFrame::new(format!("{what}: {:02x?}", outgoing.packet), bytes);
    match outgoing.ether_type {
        EtherType::ARP => judged.expect("arp.hw.size", 20),
        EtherType::IPV6 => judged.expect("icmpv6.checksum.status", 1),
        _ => {
            let protocol = Ipv4Packet::parse(&outgoing.packet).map(|it| it.header().protocol);
            match protocol.expect("it is an IPv4 packet") {
                IpProtocol::IGMP => judged.expect("igmp.checksum.status", 1),
                IpProtocol::UDP => judged.expect("udp.checksum.status", 1),
                _ => judged.expect("icmp.checksum.status", 1),
            }
        }
    }
}

/// A frame of a protocol as a datagram to its peer.
fn outgoing<L>(world: &World, frame: LinkFrame<L>) -> OutgoingPacket {
    let datagrams = world.hosts[0].sent.iter().map(|outgoing| outgoing.by);
    let mut unicast = datagrams.filter(|by| {
        matches!(by, By::Datagram(to) if to.vector.grh.is_none_or(|grh| !grh.dgid.is_multicast()))
    });
    let by = unicast.next().expect("it has answered a neighbor");
    OutgoingPacket { ether_type: frame.ether_type, packet: frame.packet, by }
}

/// Whether a packet is one of the tests' own, which only look like UDP.
fn is_from_a_test(outgoing: &OutgoingPacket) -> bool {
    match outgoing.ether_type {
        EtherType::IPV4 => Ipv4Packet::parse(&outgoing.packet)
            .is_ok_and(|packet| packet.header().protocol == IpProtocol::UDP),
        EtherType::IPV6 => Ipv6Packet::parse(&outgoing.packet)
            .is_ok_and(|packet| packet.header().next_header == IpProtocol::UDP),
        _ => false,
    }
}

#[test]
fn tshark_reads_all_packets_of_an_interface() {
    let mut world = World::up(1, 2);
    // Reports go to these groups only if they exist.
    for routers in ["224.0.0.22", "ff02::16"] {
        let now = world.now;
        assert!(world.hosts[1].interface.join(now, routers.parse().unwrap()));
    }
    world.pass(5 * SECOND);
    let bytes = advertisement(&world, 400);
    world.inject(0, EtherType::IPV6, &bytes);
    let groups = ["239.1.2.3", "ff05::7"].map(|group| group.parse::<IpAddr>().unwrap());
    for group in groups {
        let now = world.now;
        assert!(world.hosts[0].interface.join(now, group));
    }
    for to in [2, 77] {
        world.send(0, packet(v4(1), v4(to), b"4"));
        world.send(0, packet(v6(1), v6(to.into()), b"6"));
        world.send(1, packet(v4(2), v4(1), b"4"));
    }
    world.pass(60 * SECOND);
    for group in groups {
        let now = world.now;
        world.hosts[0].interface.leave(now, group);
    }
    world.pass(60 * SECOND);
    let sent = world.hosts.iter().flat_map(|host| &host.sent).filter(|one| !is_from_a_test(one));
    let sent: Vec<_> = sent.cloned().collect();
    let kinds = |ether_type| sent.iter().any(|outgoing| outgoing.ether_type == ether_type);
    assert!([EtherType::ARP, EtherType::IPV4, EtherType::IPV6].map(kinds) == [true; 3]);
    let mut frames: Vec<_> = sent.iter().map(|frame| judged("link", frame)).collect();

    let mut client = Dhcp::new(&client_id(Guid(0x0002_c903_0000_1001), PKey::DEFAULT), 1);
    client.start(Time::START);
    client.handle_timeout(client.poll_timeout().expect("it begins"));
    let discover = client.poll_transmit().expect("it sends a DISCOVER");
    let discover = judged("discover", &outgoing(&world, discover));
    frames.push(discover.expect("dhcp.option.dhcp", 1).expect("dhcp.hw.type", "0x20"));

    let header = Ipv4Header {
        ttl: 1,
        protocol: IpProtocol(253),
        source: "10.0.0.2".parse().unwrap(),
        destination: "10.9.9.9".parse().unwrap(),
        ..Ipv4Header::default()
    };
    let mut long = vec![7; 100];
    header.write_packet(&[], 80, &mut long).expect("it fits");
    let mut icmp = Icmp::new(&IcmpConfig::default());
    for error in [IcmpError::NoRoute, IcmpError::TooBig(1000), IcmpError::TimeExceeded] {
        let addresses = world.hosts[0].interface.addresses();
        let error = icmp.error_about(world.now, &long, false, error, addresses);
        frames.push(judged("error", &outgoing(&world, error.expect("an ICMP error"))));
    }
    judge("tshark_reads_all_packets_of_an_interface", &frames);
}
