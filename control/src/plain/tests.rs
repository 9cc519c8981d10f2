//! Tests of an interface between two others, with routes by the first byte of an address.

use super::*;
use crate::icmp::ErrorBudget;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmp::IcmpEcho;
use pollux_wire::ip::icmpv4::{self, Icmpv4Message, Icmpv4Unreachable};
use pollux_wire::ip::icmpv6::{self, Icmpv6Message};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};

const NOW: Time = Time::START;

struct Routes(ErrorBudget);

impl NodeRoutes for Routes {
    fn error_budget(&self) -> ErrorBudget {
        self.0.clone()
    }

    fn flow_of(&self, packet: &[u8]) -> u32 {
        packet.last().copied().unwrap_or(0).into()
    }

    fn route_to(&self, destination: IpAddr, flow: u32) -> NodeRoute {
        let first = match destination {
            IpAddr::V4(ip) => ip.octets()[0].into(),
            IpAddr::V6(ip) => ip.segments()[0],
        };
        let link = |interface, gateway: Option<&str>| NodeRoute::Link {
            interface,
            gateway: gateway.map(|ip| ip.parse().unwrap()),
        };
        match first {
            10 | 0xfd00 => link(3, None),
            20 => link(3, Some("10.0.0.9")),
            30 | 0xfd30 => link(4, Some("10.9.0.9")),
            40 => NodeRoute::Blackhole,
            60 => match flow % 3 {
                0 => link(3, Some("10.0.0.9")),
                1 => link(3, Some("10.0.0.8")),
                _ => link(4, Some("10.9.0.9")),
            },
            50 => NodeRoute::Rejected(IcmpError::Prohibited),
            _ => NodeRoute::NoRoute,
        }
    }
}

fn interface() -> PlainInterface {
    interface_of(&Arc::new(Routes(ErrorBudget::new(&IcmpConfig::default()))))
}

/// An interface of a node with these routes.
fn interface_of(routes: &Arc<Routes>) -> PlainInterface {
    let addresses = ["10.0.0.1/24", "fd00::1/64", "192.0.2.1/24"].map(|text| {
        let (ip, len) = text.split_once('/').unwrap();
        (ip.parse().unwrap(), len.parse().unwrap())
    });
    let (icmp, ethernet) = (IcmpConfig::default(), None);
    let config = PlainConfig { addresses: addresses.into(), mtu: 1500, icmp, ethernet };
    let mut interface = PlainInterface::new(NOW, &config, "it opens".into(), 7);
    interface.set_node_routes(3, Arc::<Routes>::clone(routes));
    interface.set_link(NOW, None);
    interface
}

fn v4(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let header = Ipv4Header {
        ttl: 9,
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol: IpProtocol::ICMPV4,
        ..Ipv4Header::default()
    };
    let mut packet = vec![0; Ipv4Header::LEN + payload.len()];
    header.write_packet(&[], payload.len(), &mut packet).unwrap().copy_from_slice(payload);
    packet
}

fn v6(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let header = Ipv6Header {
        hop_limit: 9,
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        next_header: IpProtocol::ICMPV6,
        ..Ipv6Header::default()
    };
    let mut packet = vec![0; Ipv6Header::LEN + payload.len()];
    header.write_packet(payload.len(), &mut packet).unwrap().copy_from_slice(payload);
    packet
}

fn echo(data: &[u8]) -> Vec<u8> {
    let message = Icmpv4Message::EchoRequest(IcmpEcho { identifier: 1, sequence: 2, data });
    let mut bytes = vec![0; message.wire_len()];
    message.write(&mut bytes).unwrap();
    icmpv4::fill_checksum(&mut bytes).unwrap();
    bytes
}

fn drops(interface: &PlainInterface, why: PlainDrop) -> u64 {
    interface.drops.of(why)
}

#[test]
fn echo_requests_to_the_node_are_answered_where_its_routes_lead() {
    let mut interface = interface();
    interface.handle_packet(NOW, &v4("20.0.0.1", "10.0.0.1", &echo(b"data")));
    let frame = interface.poll_frame().expect("a reply");
    assert_eq!(frame.to, FrameTo::NextHop("10.0.0.9".parse().unwrap()));
    let reply = Ipv4Packet::parse(&frame.packet).unwrap();
    assert_eq!(reply.header().destination.octets(), [20, 0, 0, 1]);
    assert!(matches!(Icmpv4Message::parse(reply.payload()), Ok(Icmpv4Message::EchoReply(_))));
    // To an address of another interface, from a host that is reached by that interface.
    interface.set_node_addresses(&Arc::new(["30.0.0.1".parse().unwrap()].into()));
    interface.handle_packet(NOW, &v4("30.0.0.5", "30.0.0.1", &echo(b"data")));
    assert_eq!(interface.poll_frame(), None);
    assert_eq!(interface.poll_transfer().expect("a reply").interface, 4);
    interface.handle_packet(NOW, &v4("20.0.0.1", "10.0.0.7", &echo(b"data")));
    assert_eq!(drops(&interface, PlainDrop::Transit), 1);
}

#[test]
fn errors_leave_by_the_interface_that_the_sender_is_beyond() {
    let mut interface = interface();
    let packet = v4("20.0.0.1", "99.0.0.1", &echo(b"data"));
    interface.handle_rejected(NOW, &packet, IcmpError::TimeExceeded);
    let frame = interface.poll_frame().expect("an error");
    let error = Ipv4Packet::parse(&frame.packet).unwrap();
    assert_eq!(error.header().source.octets(), [10, 0, 0, 1]);
    assert!(matches!(
        Icmpv4Message::parse(error.payload()),
        Ok(Icmpv4Message::TimeExceeded { original, .. }) if original == packet
    ));
    let packet = v4("30.0.0.1", "99.0.0.1", &echo(b"data"));
    interface.handle_rejected(NOW, &packet, IcmpError::NoRoute);
    let kind = TransferKind::IcmpError(IcmpError::NoRoute);
    assert_eq!(interface.poll_transfer(), Some(InterfaceTransfer { interface: 4, packet, kind }));
    assert_eq!(interface.poll_frame(), None);
}

#[test]
fn packets_longer_than_the_mtu_leave_in_fragments_or_not_at_all() {
    let mut interface = interface();
    let long = v4("30.0.0.1", "10.0.0.5", &echo(&[7; 4000]));
    let hop = TransitHop { from: 3, next_hop: "10.0.0.5".parse().unwrap() };
    interface.handle_too_big(NOW, long.clone(), hop);
    let parts: Vec<_> = std::iter::from_fn(|| interface.poll_frame()).collect();
    assert_eq!(parts.len(), 3);
    assert!(parts.iter().all(|part| part.packet.len() <= 1500));
    let mut whole = long;
    whole[6] |= 0x40;
    whole[10..12].fill(0);
    let checksum = pollux_wire::ip::checksum::Sum::of(&whole[..20]).checksum();
    whole[10..12].copy_from_slice(&checksum.to_be_bytes());
    let kind = TransferKind::IcmpError(IcmpError::TooBig(1500));
    interface.handle_too_big(NOW, whole.clone(), hop);
    let expected = InterfaceTransfer { interface: 4, packet: whole, kind };
    assert_eq!(interface.poll_transfer(), Some(expected));
    let six = v6("fd00::5", "fd00::6", &[128; 3000]);
    interface.handle_transfer(NOW, six, TransferKind::Forward("fd00::6".parse().unwrap()));
    let error = interface.poll_frame().expect("an error to its sender").packet;
    let error = Ipv6Packet::parse(&error).unwrap();
    let pseudo = error.header().pseudo_header();
    assert!(icmpv6::checksum_ok(error.payload(), &pseudo));
    assert!(matches!(
        Icmpv6Message::parse(error.payload()),
        Ok(Icmpv6Message::PacketTooBig { mtu: 1500, .. })
    ));
    assert_eq!(drops(&interface, PlainDrop::TooBig), 2);
    interface.set_mtu(9000);
    interface.handle_too_big(NOW, v4("30.0.0.1", "10.0.0.5", &[7; 4000]), hop);
    assert_eq!(interface.poll_frame().map(|frame| frame.packet.len()), Some(4020));
}

/// In the other routing domain, the source address of the packet may be another host's.
#[test]
fn an_error_goes_back_by_the_interface_where_its_packet_came_from_another_domain() {
    let mut interface = interface();
    let six = v6("fd00::5", "fd00::6", &[128; 3000]);
    let hop = TransitHop { from: 9, next_hop: "fd00::77".parse().unwrap() };
    interface.handle_too_big(NOW, six.clone(), hop);
    let kind = TransferKind::IcmpError(IcmpError::TooBig(1500));
    assert_eq!(
        interface.poll_transfer(),
        Some(InterfaceTransfer { interface: 9, packet: six, kind })
    );
    assert_eq!(interface.poll_frame(), None);
    // Fragments go to the next hop of that domain's routes.
    let hop = TransitHop { from: 9, next_hop: "10.0.0.77".parse().unwrap() };
    interface.handle_too_big(NOW, v4("30.0.0.1", "99.0.0.1", &[7; 3000]), hop);
    let frames: Vec<_> = std::iter::from_fn(|| interface.poll_frame()).collect();
    assert!(
        frames.len() == 3 && frames.iter().all(|frame| frame.to == FrameTo::NextHop(hop.next_hop))
    );
}

#[test]
fn all_interfaces_of_a_node_have_one_budget_of_errors_for_each_family() {
    let routes = Arc::new(Routes(ErrorBudget::new(&IcmpConfig::default())));
    let mut interfaces = [(); 3].map(|()| interface_of(&routes));
    let v4 = v4("10.0.0.9", "99.0.0.1", &echo(b"data"));
    let v6 = v6("fd00::9", "fd99::1", &[128, 0, 0, 0, 0, 0, 0, 0]);
    let mut sent = |now, packet: &[u8]| {
        for interface in &mut interfaces {
            (0..1000).for_each(|_| interface.handle_rejected(now, packet, IcmpError::NoRoute));
        }
        let frames = |one: &mut PlainInterface| std::iter::from_fn(|| one.poll_frame()).count();
        interfaces.iter_mut().map(frames).sum::<usize>()
    };
    let burst = IcmpConfig::default().errors_burst_max as usize;
    assert_eq!([sent(NOW, &v4), sent(NOW, &v6), sent(NOW, &v4)], [burst, burst, 0]);
    let later = NOW + std::time::Duration::from_millis(10);
    assert_eq!(sent(later, &v4), 10, "a thousand a second");
    let suppressed = interfaces.iter().flat_map(PlainInterface::drop_rows);
    let suppressed = suppressed.filter(|(of, why, _)| (*of, *why) == ("icmp", "rate"));
    let suppressed: u64 = suppressed.map(|(_, _, count)| count).sum();
    assert_eq!(suppressed, 12_000 - 2 * burst as u64 - 10);
}

#[test]
fn packets_of_this_node_follow_its_routes() {
    let mut interface = interface();
    let mut send = |to: &str| {
        interface.send_packet(NOW, v4("10.0.0.1", to, &echo(b"data")));
        let next_hop = |frame: PlainFrame| match frame.to {
            FrameTo::NextHop(ip) => ip.to_string(),
            FrameTo::Ethernet(..) => panic!("{frame:?}"),
        };
        let frame = interface.poll_frame().map(next_hop);
        (frame, interface.poll_transfer().map(|one| one.kind))
    };
    assert_eq!(send("10.0.0.5"), (Some("10.0.0.5".into()), None));
    assert_eq!(send("20.0.0.5"), (Some("10.0.0.9".into()), None));
    let gateway = TransferKind::Forward("10.9.0.9".parse().unwrap());
    assert_eq!(send("30.0.0.5"), (None, Some(gateway)));
    // A destination on the link is its own next hop when the node has no route to it.
    assert_eq!(send("192.0.2.9"), (Some("192.0.2.9".into()), None));
    assert_eq!(send("40.0.0.5"), (None, None));
    assert_eq!(send("224.0.0.9"), (None, None));
    assert_eq!(send("50.0.0.5"), (None, None), "the error is for this node");
    assert_eq!(send("70.0.0.5"), (None, None));
    let errors =
        std::iter::from_fn(|| interface.poll_delivery()).map(
            |delivery| match Icmpv4Message::parse(
                Ipv4Packet::parse(&delivery.packet).unwrap().payload(),
            ) {
                Ok(Icmpv4Message::DestinationUnreachable { code, .. }) => code,
                other => panic!("{other:?}"),
            },
        );
    let expected = [Icmpv4Unreachable::COMMUNICATION_PROHIBITED, Icmpv4Unreachable::NET];
    assert_eq!(errors.collect::<Vec<_>>(), expected);
    assert_eq!(drops(&interface, PlainDrop::Blackhole), 1);
    assert_eq!(drops(&interface, PlainDrop::Multicast), 1);
    assert_eq!(drops(&interface, PlainDrop::NoRoute), 2);
}

#[test]
fn each_flow_of_this_node_has_a_next_hop_of_several() {
    let mut interface = interface();
    let transfer = |interface: &mut PlainInterface| {
        let next = interface.poll_transfer()?;
        Some((next.interface, next.kind))
    };
    let to = |interface: &mut PlainInterface| interface.poll_frame().map(|frame| frame.to);
    let gateway = |ip: &str| ip.parse::<IpAddr>().unwrap();
    let packet = |flow: u8| v4("10.0.0.1", "60.0.0.5", &echo(&[flow]));
    for (flow, expected) in [(0, "10.0.0.9"), (1, "10.0.0.8"), (3, "10.0.0.9")] {
        interface.send_packet(NOW, packet(flow));
        assert_eq!(to(&mut interface), Some(FrameTo::NextHop(gateway(expected))));
    }
    interface.send_packet(NOW, packet(2));
    let expected = (4, TransferKind::Forward(gateway("10.9.0.9")));
    assert_eq!(transfer(&mut interface), Some(expected));
    // The flow of the packet selects the next hop of the error.
    for (flow, expected) in [(0, "10.0.0.9"), (1, "10.0.0.8")] {
        let packet = v4("60.0.0.5", "10.0.0.7", &echo(&[flow]));
        interface.handle_rejected(NOW, &packet, IcmpError::NoRoute);
        assert_eq!(to(&mut interface), Some(FrameTo::NextHop(gateway(expected))));
    }
    interface.handle_rejected(NOW, &v4("60.0.0.5", "10.0.0.7", &echo(&[2])), IcmpError::NoRoute);
    let expected = (4, TransferKind::IcmpError(IcmpError::NoRoute));
    assert_eq!(transfer(&mut interface), Some(expected));
}

#[test]
fn protocols_of_links_are_dropped() {
    let mut interface = interface();
    interface.handle_packet(NOW, &v6("fe80::1", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0]));
    interface.handle_packet(NOW, &v6("fe80::1", "ff02::16", &[143, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(drops(&interface, PlainDrop::LinkProtocol), 2);
    interface.handle_packet(NOW, &[0x45; 3]);
    assert_eq!(drops(&interface, PlainDrop::Malformed), 1);
}

#[test]
fn nothing_leaves_while_the_link_is_down() {
    let mut interface = interface();
    interface.set_link(NOW, Some("it leaves".into()));
    assert_eq!((interface.is_up(), interface.why_down()), (false, Some("it leaves")));
    interface.send_packet(NOW, v4("10.0.0.1", "10.0.0.5", b"data"));
    interface.handle_packet(NOW, &v4("10.0.0.5", "10.0.0.1", &echo(b"data")));
    assert_eq!((interface.poll_frame(), drops(&interface, PlainDrop::Down)), (None, 2));
}

#[test]
fn workers_get_the_addresses_of_the_node_and_the_mtu_when_they_change() {
    let mut interface = interface();
    let own = |interface: &mut PlainInterface| {
        let state = interface.poll_state()?;
        Some((state.own.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "), state.mtu))
    };
    let first = "10.0.0.1 192.0.2.1 fd00::1".to_owned();
    assert_eq!(own(&mut interface), Some((first, 1500)));
    assert_eq!(own(&mut interface), None);
    interface.set_mtu(1500);
    assert_eq!(own(&mut interface), None);
    interface.remove_address(NOW, "192.0.2.1".parse().unwrap());
    interface.set_mtu(9000);
    let all = Arc::new(["10.0.0.1", "30.0.0.1"].map(|ip| ip.parse().unwrap()).into());
    assert!(interface.set_node_addresses(&all) && !interface.set_node_addresses(&all));
    assert_eq!(own(&mut interface), Some(("10.0.0.1 30.0.0.1 fd00::1".to_owned(), 9000)));
}
