//! Classification of packets for an interface.

use crate::frame;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmp::Icmpv6Type;
use pollux_wire::ip::icmpv4::Icmpv4Type;
use pollux_wire::ip::ipv4::Ipv4Packet;
use pollux_wire::ip::ipv6::Ipv6Packet;
use pollux_wire::ip::ipv6_ext::UpperLayer;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Discovery,
    Membership,
    EchoRequest,
    Other,
}

pub(super) fn classify(packet: &[u8]) -> Option<(EtherType, IpAddr, Kind)> {
    let (ether_type, destination) = destination(packet)?;
    let kind = match ether_type {
        EtherType::IPV4 => {
            let packet = Ipv4Packet::parse(packet).ok()?;
            let (header, first) = (packet.header(), packet.payload().first().copied());
            match (header.protocol, first.map(Icmpv4Type)) {
                (IpProtocol::IGMP, _) => Kind::Membership,
                (IpProtocol::ICMPV4, Some(Icmpv4Type::ECHO_REQUEST)) if !header.is_fragment() => {
                    Kind::EchoRequest
                }
                _ => Kind::Other,
            }
        }
        _ => {
            let packet = Ipv6Packet::parse(packet).ok()?;
            let upper = UpperLayer::find(packet.header().next_header, packet.payload()).ok()?;
            let is_icmp = upper.protocol == IpProtocol::ICMPV6 && upper.fragment.is_none();
            match upper.payload.first().copied().filter(|_| is_icmp) {
                Some(133..=137) => Kind::Discovery,
                Some(130..=132 | 143) => Kind::Membership,
                Some(kind) if Icmpv6Type(kind) == Icmpv6Type::ECHO_REQUEST => Kind::EchoRequest,
                _ => Kind::Other,
            }
        }
    };
    Some((ether_type, destination, kind))
}

pub(super) fn destination(packet: &[u8]) -> Option<(EtherType, IpAddr)> {
    let destination = frame::destination(packet)?;
    let ether_type = if destination.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    Some((ether_type, destination))
}
