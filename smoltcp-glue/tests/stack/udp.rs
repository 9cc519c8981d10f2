//! Datagrams between two stacks.

use crate::world::{LinkFaults, World, at, ip};
use pollux::stack::{BindError, Stack, StackConfig, UdpError, UdpId, UdpOptions};
use pollux_dataplane::headers::PacketHeaders;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmpv4::{self, Icmpv4Message, Icmpv4Unreachable};
use pollux_wire::ip::icmpv6::{self, Icmpv6Message};
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::udp;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn world(config: &StackConfig) -> World {
    World::new(1, config, LinkFaults::default())
}

#[test]
fn datagrams_of_every_length_are_echoed() {
    for is_v6 in [false, true] {
        let mut world = world(&StackConfig { mtu: 2044, ..StackConfig::default() });
        let [client, server] = [0, 1].map(|host| {
            let local = SocketAddr::new(ip(host, is_v6), 7000 + host as u16);
            world.hosts[host].udp_bind(local).expect("the port is free")
        });
        let headers = if is_v6 { 48 } else { 28 };
        let (unfragmented, longest) = (2044 - headers, 65_535 - headers);
        let to = SocketAddr::new(ip(1, is_v6), 7001);
        let mut buffer = vec![0; 65_536];
        for len in [0, 1, 2, 511, unfragmented, unfragmented + 1, 20_000, longest] {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let now = world.now;
            world.hosts[0].udp_send(now, client, (None, to), &payload).expect("there is space");
            world.until("there", SECOND, |world| world.hosts[1].udp_is_readable(server));
            let received =
                world.hosts[1].udp_recv(server, &mut buffer).unwrap().expect("a datagram");
            assert_eq!(
                (received.len, received.to, received.from.port()),
                (len, ip(1, is_v6), 7000)
            );
            let now = world.now;
            world.hosts[1].udp_send(now, server, (None, received.from), &buffer[..len]).unwrap();
            world.until("back", SECOND, |world| world.hosts[0].udp_is_readable(client));
            let back = world.hosts[0].udp_recv(client, &mut buffer).unwrap().expect("a datagram");
            assert_eq!((&buffer[..back.len], back.from), (&payload[..], to));
            assert!(world.longest <= 2044);
        }
        let now = world.now;
        let refused = world.hosts[0].udp_send(now, client, (None, to), &vec![0; longest + 1]);
        assert_eq!(refused, Err(UdpError::TooBig(longest)));
    }
}

/// Fragments are lost, late, doubled and reordered: what arrives is whole.
#[test]
fn datagrams_in_fragments_arrive_whole_or_not_at_all() {
    let faults = LinkFaults {
        lost: 10_000,
        late: 100_000,
        duplicated: 50_000,
        reordered: 50_000,
        len_max: 0,
    };
    for (is_v6, seed) in [(false, 3), (true, 4)] {
        let config = StackConfig { mtu: 1500, ..StackConfig::default() };
        let mut world = World::new(seed, &config, faults);
        let [client, server] = [0, 1].map(|host| {
            world.hosts[host].udp_bind(SocketAddr::new(ip(host, is_v6), 7000)).unwrap()
        });
        let mut buffer = vec![0; 65_536];
        let mut arrived = 0;
        for number in 0..200_usize {
            let (now, len) = (world.now, 1000 + number * 97);
            let payload = vec![number as u8; len];
            let to = SocketAddr::new(ip(1, is_v6), 7000);
            world.hosts[0].udp_send(now, client, (None, to), &payload).unwrap();
            world.pass(SECOND);
            while let Some(received) = world.hosts[1].udp_recv(server, &mut buffer).unwrap() {
                // A doubled one may come in between.
                assert!(buffer[..received.len].iter().all(|byte| *byte == buffer[0]));
                assert_eq!(received.len, 1000 + usize::from(buffer[0]) * 97);
                arrived += 1;
            }
        }
        // One of a hundred packets is lost, and a datagram has up to 14.
        assert!((150..=250).contains(&arrived), "{arrived} arrived");
        assert!(world.hosts[1].counts().reassemblies_failed > 0);
        assert_eq!(world.hosts[1].counts().malformed, 0);
    }
}

/// RFC 8201: the next datagrams are in smaller fragments.
#[test]
fn a_router_with_a_smaller_mtu_lowers_that_of_fragments() {
    let mut world = world(&StackConfig { mtu: 2044, ..StackConfig::default() });
    let client = world.hosts[0].udp_bind(SocketAddr::new(ip(0, true), 7000)).unwrap();
    let to = SocketAddr::new(ip(1, true), 7001);
    for mtu in [2044, 1500] {
        let now = world.now;
        world.hosts[0].udp_send(now, client, (None, to), &[7; 5000]).unwrap();
        let first = world.hosts[0].poll_transmit(now).expect("a fragment").to_vec();
        assert!((mtu - 8..=mtu).contains(&first.len()));
        while world.hosts[0].poll_transmit(now).is_some() {}
        let error = too_big(&first, 1500);
        world.hosts[0].handle_packet(now, &error);
    }
}

/// The ICMPv6 packet too big for a packet.
fn too_big(packet: &[u8], mtu: u32) -> Vec<u8> {
    let message = Icmpv6Message::PacketTooBig { mtu, original: &packet[..1000] };
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (ip(1, true), ip(0, true)) else {
        unreachable!("the addresses are IPv6");
    };
    let next_header = IpProtocol::ICMPV6;
    let header =
        Ipv6Header { next_header, hop_limit: 64, source, destination, ..Ipv6Header::default() };
    let mut packet = vec![0; Ipv6Header::LEN + message.wire_len()];
    let payload = header.write_packet(message.wire_len(), &mut packet).unwrap();
    message.write(payload).unwrap();
    icmpv6::fill_checksum(payload, &header.pseudo_header()).unwrap();
    packet
}

#[test]
fn a_full_receive_queue_drops_and_counts_the_newest_datagrams() {
    let config = StackConfig { udp_queue_bytes_max: 10_000, ..StackConfig::default() };
    let mut world = world(&config);
    let client = world.hosts[0].udp_bind(at(0, 0)).expect("a port is free");
    let server = world.hosts[1].udp_bind(at(1, 9)).expect("the port is free");
    for number in 0..20_u8 {
        let now = world.now;
        world.hosts[0].udp_send(now, client, (None, at(1, 9)), &[number; 1000]).unwrap();
    }
    world.pass(SECOND);
    let mut buffer = [0; 10];
    for number in 0..9 {
        let received =
            world.hosts[1].udp_recv(server, &mut buffer).unwrap().expect("there was space");
        assert_eq!((buffer[0], received.len, received.payload_len), (number, 10, 1000));
    }
    assert_eq!(world.hosts[1].udp_recv(server, &mut buffer), Ok(None));
    assert_eq!(world.hosts[1].counts().udp_queue_full, 11);
}

#[test]
fn a_full_outbox_refuses_datagrams_until_it_is_drained() {
    let mut world = world(&StackConfig { packets_max: 4, ..StackConfig::default() });
    let client = world.hosts[0].udp_bind(at(0, 0)).expect("a port is free");
    let now = world.now;
    let send = |world: &mut World| world.hosts[0].udp_send(now, client, (None, at(1, 9)), b"");
    assert!((0..4).all(|_| send(&mut world).is_ok()));
    assert_eq!(send(&mut world), Err(UdpError::Full));
    world.drain();
    assert_eq!(send(&mut world), Ok(()));
}

#[test]
fn datagrams_to_a_group_reach_its_members_only() {
    let mut world = world(&StackConfig::default());
    let client = world.hosts[0].udp_bind(at(0, 0)).expect("a port is free");
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    let any = SocketAddr::from(([0, 0, 0, 0], 5000));
    let member = world.hosts[1].udp_bind(any).expect("the port is free");
    let other = world.hosts[1].udp_bind(at(1, 5000)).expect("another address");
    assert_eq!(world.hosts[1].udp_join(member, group), Ok(true));
    assert_eq!(world.hosts[1].udp_join(member, group), Ok(false));
    assert_eq!(world.hosts[1].udp_join(member, ip(1, false)), Err(UdpError::BadAddress));
    let to = SocketAddr::new(group, 5000);
    for _ in 0..2 {
        let now = world.now;
        world.hosts[0].udp_send(now, client, (None, to), b"all").unwrap();
        world.pass(SECOND);
    }
    let mut buffer = [0; 10];
    for _ in 0..2 {
        let received =
            world.hosts[1].udp_recv(member, &mut buffer).unwrap().expect("it is a member");
        assert_eq!((received.to, &buffer[..received.len]), (group, &b"all"[..]));
    }
    assert_eq!(world.hosts[1].udp_recv(other, &mut buffer), Ok(None));
    assert!(world.hosts[1].udp_leave(member, group));
    let now = world.now;
    world.hosts[0].udp_send(now, client, (None, to), b"all").unwrap();
    world.pass(SECOND);
    assert_eq!(world.hosts[1].udp_recv(member, &mut buffer), Ok(None));
}

/// The payloads that wait at a socket.
fn heard(stack: &mut Stack, id: UdpId) -> Vec<Vec<u8>> {
    let mut buffer = [0; 100];
    let next = || {
        let received = stack.udp_recv(id, &mut buffer).expect("it is open")?;
        Some(buffer[..received.len].to_vec())
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn a_member_of_some_sources_hears_no_others() {
    let mut world = world(&StackConfig::default());
    let group: IpAddr = "232.1.2.3".parse().unwrap();
    let [wanted, other] =
        [6000, 6001].map(|port| world.hosts[0].udp_bind(at(0, port)).expect("a port is free"));
    world.hosts[0].set_addresses([ip(0, false), IpAddr::from([10, 0, 0, 77])]);
    let from = SocketAddr::from(([10, 0, 0, 77], 6002));
    let foreign = world.hosts[0].udp_bind(from).expect("the port is free");
    let host = &mut world.hosts[1];
    let any = SocketAddr::from(([0, 0, 0, 0], 5000));
    let member = host.udp_bind(any).expect("the port is free");
    assert_eq!(host.udp_join_source(member, group, group), Err(UdpError::BadAddress));
    assert_eq!(host.udp_join_source(member, group, ip(0, true)), Err(UdpError::BadAddress));
    assert_eq!(host.udp_join_source(member, group, ip(0, false)), Ok(true));
    let send = |world: &mut World, payload: &[u8]| {
        for id in [wanted, foreign, other] {
            let (now, to) = (world.now, SocketAddr::new(group, 5000));
            world.hosts[0].udp_send(now, id, (None, to), payload).unwrap();
        }
        world.pass(SECOND);
    };
    send(&mut world, b"one");
    assert_eq!(heard(&mut world.hosts[1], member), [b"one"; 2]);
    assert_eq!(world.hosts[1].udp_join_source(member, group, from.ip()), Ok(false));
    send(&mut world, b"two");
    assert_eq!(heard(&mut world.hosts[1], member), [b"two"; 3]);
    assert_eq!(world.hosts[1].udp_leave_source(member, group, ip(0, false)), Ok(false));
    send(&mut world, b"three");
    assert_eq!(heard(&mut world.hosts[1], member), [b"three"]);
    assert_eq!(world.hosts[1].udp_leave_source(member, group, from.ip()), Ok(true));
    send(&mut world, b"four");
    assert!(heard(&mut world.hosts[1], member).is_empty());
    assert!(world.hosts[1].udp_groups(member).is_empty());
}

#[test]
fn sockets_that_share_a_port_all_hear_a_group_and_the_last_one_hears_the_rest() {
    let mut world = world(&StackConfig::default());
    let groups: [IpAddr; 2] = ["239.1.2.3", "239.1.2.4"].map(|group| group.parse().unwrap());
    let client = world.hosts[0].udp_bind(at(0, 0)).expect("a port is free");
    let host = &mut world.hosts[1];
    let any = SocketAddr::from(([0, 0, 0, 0], 5000));
    let members = [any, any, SocketAddr::new(groups[0], 5000)]
        .map(|local| host.udp_bind_shared(local).expect("they share it"));
    assert_eq!(host.udp_bind(any), Err(BindError::InUse));
    for (member, group) in members.into_iter().flat_map(|one| groups.map(|group| (one, group))) {
        assert_eq!(host.udp_join(member, group), Ok(true));
    }
    let send = |world: &mut World, to: SocketAddr| {
        let now = world.now;
        world.hosts[0].udp_send(now, client, (None, to), b"!").unwrap();
        world.pass(SECOND);
        members.map(|member| match world.hosts[1].udp_local(member) {
            Some(_) => heard(&mut world.hosts[1], member).len(),
            None => 0,
        })
    };
    assert_eq!(send(&mut world, SocketAddr::new(groups[0], 5000)), [1, 1, 1]);
    assert_eq!(send(&mut world, SocketAddr::new(groups[1], 5000)), [1, 1, 0]);
    assert_eq!(send(&mut world, at(1, 5000)), [0, 1, 0]);
    world.hosts[1].udp_close(members[1]);
    assert_eq!(send(&mut world, at(1, 5000)), [1, 0, 0]);
    assert_eq!(send(&mut world, SocketAddr::new(groups[1], 5000)), [1, 0, 0]);
    world.hosts[1].udp_close(members[0]);
    let alone = world.hosts[1].udp_bind(any).expect("the port is free again");
    assert_eq!(world.hosts[1].udp_bind_shared(any), Err(BindError::InUse));
    world.hosts[1].udp_close(alone);
}

#[test]
fn a_group_is_reached_on_the_link_only_unless_the_sender_says_more() {
    let mut world = world(&StackConfig::default());
    for (client, group, at_hop_limit) in
        [(at(0, 0), "239.1.2.3", 8), (SocketAddr::new(ip(0, true), 0), "ff15::1", 7)]
    {
        let client = world.hosts[0].udp_bind(client).expect("a port is free");
        let group = SocketAddr::new(group.parse().unwrap(), 5000);
        let one = SocketAddr::new(ip(1, group.is_ipv6()), 5000);
        let mut hop_limit = |to| {
            let (host, now) = (&mut world.hosts[0], world.now);
            host.udp_send(now, client, (None, to), b"").unwrap();
            host.poll_transmit(now).expect("it is sent")[at_hop_limit]
        };
        assert_eq!([hop_limit(group), hop_limit(one)], [1, 64]);
        let change = |options: &mut UdpOptions| (options.ttl, options.multicast_ttl) = (9, 32);
        world.hosts[0].udp_set_options(client, change).unwrap();
        let mut hop_limit = |to| {
            let (host, now) = (&mut world.hosts[0], world.now);
            host.udp_send(now, client, (None, to), b"").unwrap();
            host.poll_transmit(now).expect("it is sent")[at_hop_limit]
        };
        assert_eq!([hop_limit(group), hop_limit(one)], [32, 9]);
    }
}

#[test]
fn a_port_belongs_to_one_socket_until_it_is_closed() {
    let mut world = world(&StackConfig { udp_sockets_max: 2, ..StackConfig::default() });
    let host = &mut world.hosts[0];
    let first = host.udp_bind(at(0, 7)).expect("the port is free");
    assert_eq!(host.udp_bind(at(0, 7)), Err(BindError::InUse));
    assert_eq!(host.udp_bind(at(1, 7)), Err(BindError::AddressNotAvailable));
    let second = host.udp_bind(at(0, 0)).expect("a port is free");
    assert!(host.udp_local(second).expect("it is there").port() >= 49_152);
    assert_eq!(host.udp_bind(at(0, 0)), Err(BindError::Full));
    host.udp_close(first);
    assert_eq!(host.udp_recv(first, &mut []), Err(UdpError::Closed));
    host.udp_bind(at(0, 7)).expect("the port is free again");
}

#[test]
fn an_icmp_error_reaches_the_socket_connected_to_that_peer() {
    let mut world = world(&StackConfig::default());
    let client = world.hosts[0].udp_bind(at(0, 6000)).expect("the port is free");
    world.hosts[0].udp_connect(client, at(1, 9)).expect("it is of the same family");
    let now = world.now;
    world.hosts[0].udp_send(now, client, (None, at(1, 9)), b"request").unwrap();
    world.pass(SECOND);
    assert_eq!(world.hosts[1].counts().udp_refused, 1);
    let packet = world.hosts[1].poll_port_unreachable().expect("the port is closed");
    world.hosts[0].handle_packet(now, &no_port(&packet));
    let mut buffer = [0; 10];
    assert_eq!(world.hosts[0].udp_recv(client, &mut buffer), Err(UdpError::Refused));
    assert_eq!(world.hosts[0].udp_recv(client, &mut buffer), Ok(None));
}

/// The ICMP port unreachable for a packet.
fn no_port(original: &[u8]) -> Vec<u8> {
    let message = Icmpv4Message::DestinationUnreachable {
        code: Icmpv4Unreachable::PORT,
        next_hop_mtu: 0,
        original,
    };
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (ip(1, false), ip(0, false)) else {
        unreachable!("the addresses are IPv4");
    };
    let protocol = IpProtocol::ICMPV4;
    let header = Ipv4Header { ttl: 64, protocol, source, destination, ..Ipv4Header::default() };
    let mut packet = vec![0; Ipv4Header::LEN + message.wire_len()];
    let payload = header.write_packet(&[], message.wire_len(), &mut packet).unwrap();
    message.write(payload).unwrap();
    icmpv4::fill_checksum(payload).unwrap();
    packet
}

/// RFC 768: a source port of 0 means that the sender expects no reply.
#[test]
fn a_datagram_without_a_source_port_is_delivered_with_port_0() {
    let mut world = world(&StackConfig::default());
    let client = world.hosts[0].udp_bind(at(0, 0)).expect("a port is free");
    let server = world.hosts[1].udp_bind(at(1, 9)).expect("the port is free");
    let now = world.now;
    world.hosts[0].udp_send(now, client, (None, at(1, 9)), b"notice").unwrap();
    let mut packet = world.hosts[0].poll_transmit(now).expect("it was sent").to_vec();
    let (ip_header, datagram) = packet.split_first_chunk_mut::<{ Ipv4Header::LEN }>().unwrap();
    datagram[..2].fill(0);
    udp::fill_checksum(datagram, &Ipv4Header::parse(ip_header).pseudo_header()).unwrap();
    world.hosts[1].handle_packet(now, &packet);
    let mut buffer = [0; 10];
    let received = world.hosts[1].udp_recv(server, &mut buffer).unwrap().expect("it was delivered");
    assert_eq!((received.from, &buffer[..received.len]), (at(0, 0), &b"notice"[..]));
    let reply = world.hosts[1].udp_send(now, server, (None, received.from), b"");
    assert_eq!(reply, Err(UdpError::BadAddress));
    assert_eq!(world.hosts[1].counts().malformed, 0);
}

/// Passes a packet to a stack if the stack wants it, as a netdev does; returns whether it does.
fn take(stack: &mut Stack, now: Time, packet: &[u8]) -> bool {
    let Ok(headers) = PacketHeaders::parse_ip(packet) else { return false };
    let is_wanted = stack.wants(&headers, packet);
    if is_wanted {
        stack.handle(now, &headers, packet);
    }
    is_wanted
}

#[test]
fn checksums_are_verified_unless_the_configuration_turns_that_off() {
    for verify_checksums in [true, false] {
        let mut world = world(&StackConfig { verify_checksums, ..StackConfig::default() });
        let client = world.hosts[0].udp_bind(at(0, 0)).expect("a port is free");
        let server = world.hosts[1].udp_bind(at(1, 9)).expect("the port is free");
        let now = world.now;
        world.hosts[0].udp_send(now, client, (None, at(1, 9)), b"corrupt").unwrap();
        let mut packet = world.hosts[0].poll_transmit(now).expect("it was sent").to_vec();
        *packet.last_mut().expect("it is not empty") ^= 1;
        assert!(take(&mut world.hosts[1], now, &packet), "it is for a socket");
        assert_eq!(world.hosts[1].udp_is_readable(server), !verify_checksums);
        assert_eq!(world.hosts[1].counts().malformed, u64::from(verify_checksums));
    }
}

#[test]
fn a_stack_wants_only_transport_packets_to_its_addresses_and_datagrams_to_groups() {
    let mut world = world(&StackConfig::default());
    let client = world.hosts[0].udp_bind(at(0, 0)).expect("a port is free");
    let now = world.now;
    for to in [at(1, 9), SocketAddr::from(([239, 1, 2, 3], 9)), at(7, 9)] {
        world.hosts[0].udp_send(now, client, (None, to), b"data").unwrap();
        let packet = world.hosts[0].poll_transmit(now).expect("it was sent").to_vec();
        assert_eq!(take(&mut world.hosts[1], now, &packet), to != at(7, 9), "{to}");
        let mut other = packet.clone();
        other[9] = IpProtocol::ICMPV4.0;
        assert!(!take(&mut world.hosts[1], now, &other), "{to}");
    }
    assert!(!take(&mut world.hosts[1], now, &[]) && !take(&mut world.hosts[1], now, &[0x45]));
}
