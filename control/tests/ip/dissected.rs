//! What our machines send, as tshark reads it: nothing malformed, every checksum right.

use crate::world::{Faults, World};
use crate::{SETTLED, advertisement, v4, v6, world};
use pollux_control::dhcp::{Dhcp, client_id};
use pollux_control::frame::{Frame, To};
use pollux_control::icmp::IcmpError;
use pollux_referee::frames::{ud, ud_multicast};
use pollux_referee::tshark::{self, judge};
use pollux_verbs::time::Time;
use pollux_wire::address::{Guid, Scope};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipoib::EtherType;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::mgid::LinkGroup;
use pollux_wire::ip::nd_option::PrefixInformation;
use pollux_wire::keys::PKey;
use std::time::Duration;

/// A frame as tshark is to read it. `what` names it in failures.
fn judged(what: &str, frame: &Frame) -> tshark::Frame {
    let bytes = match frame.to {
        To::Group(id) => {
            let group = LinkGroup { id, p_key: PKey::DEFAULT, scope: Scope::LINK_LOCAL };
            ud_multicast(group.mgid(), &frame.bytes())
        }
        _ => ud(&frame.bytes()),
    };
    let judged = tshark::Frame::new(format!("{what}: {:02x?}", frame.packet), bytes);
    match frame.ether_type {
        EtherType::ARP | EtherType::RARP => judged.expect("arp.hw.size", 20),
        EtherType::IPV6 => judged.expect("icmpv6.checksum.status", 1),
        _ => {
            let protocol = Ipv4Packet::parse(&frame.packet).map(|it| it.header().protocol);
            match protocol.expect("it is a packet of IPv4") {
                IpProtocol::IGMP => judged.expect("igmp.checksum.status", 1),
                IpProtocol::UDP => judged.expect("udp.checksum.status", 1),
                _ => judged.expect("icmp.checksum.status", 1),
            }
        }
    }
}

/// A link on which everything is said that the machines say by themselves.
fn talkative() -> World {
    let mut world = world(2, 1, Faults::default());
    world.run_for(SETTLED);
    let now = world.now;
    let prefix = PrefixInformation {
        prefix_length: 64,
        on_link: true,
        autonomous: true,
        valid_lifetime_seconds: 600,
        preferred_lifetime_seconds: 300,
        prefix: "2001:db8::".parse().expect("an address"),
    };
    let node = &mut world.nodes[0];
    node.receive(now, EtherType::IPV6, &advertisement(400, prefix));
    for group in ["239.1.2.3", "ff05::7"] {
        node.membership.join(now, group.parse().expect("an address"));
    }
    for to in [v4(2), v6(2), v4(77), v6(77)] {
        node.ping(now, to);
    }
    let peer = crate::link(2, 0x42);
    assert!(node.arp.ask_inverse(now, peer) && node.arp.ask_reverse(now));
    world.run_for(Duration::from_secs(60));
    let now = world.now;
    for group in ["239.1.2.3", "ff05::7"] {
        world.nodes[0].membership.leave(now, group.parse().expect("an address"));
    }
    world.run_for(Duration::from_secs(60));
    world
}

#[test]
fn tshark_reads_what_the_machines_send() {
    let mut world = talkative();
    let mut frames: Vec<_> = world.frames.iter().map(|frame| judged("link", frame)).collect();
    let kinds = |ether_type| world.frames.iter().any(|frame| frame.ether_type == ether_type);
    assert!(
        [EtherType::ARP, EtherType::RARP, EtherType::IPV4, EtherType::IPV6].map(kinds) == [true; 4]
    );

    let mut client = Dhcp::new(&client_id(Guid(0x0002_c903_0000_1001), PKey::DEFAULT), 1);
    client.start(Time::START);
    client.handle_timeout(client.poll_timeout().expect("it begins"));
    let discover = client.poll_transmit().expect("it asks");
    let discover = judged("discover", &discover);
    frames.push(discover.expect("dhcp.option.dhcp", 1).expect("dhcp.hw.type", "0x20"));

    let header = Ipv4Header {
        ttl: 1,
        protocol: IpProtocol(253),
        source: "10.0.0.2".parse().expect("an address"),
        destination: "10.9.9.9".parse().expect("an address"),
        ..Ipv4Header::default()
    };
    let mut packet = vec![7; 100];
    header.write_packet(&[], 80, &mut packet).expect("it fits");
    let (now, node) = (world.now, &mut world.nodes[0]);
    for error in [IcmpError::NoRoute, IcmpError::TooBig(1000), IcmpError::TimeExceeded] {
        let error = node.icmp.error_about(now, &packet, false, error, &node.addresses);
        let error = error.expect("it is complained about");
        frames.push(judged("error", &error));
    }
    judge("tshark_reads_what_the_machines_send", &frames);
}
