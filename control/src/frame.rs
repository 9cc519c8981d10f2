//! Outgoing packets of the control protocols, with their destination on the link.
//!
//! Address resolution and membership packets never use a connection (RFC 4755 3 and 7), so the
//! destination also decides the transport. Frames to a group, a link address or a neighbor use the
//! UD queue pair; only frames by route may use a connection.

use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmpv6::{self, Icmpv6Message};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Option};
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::ipv6_ext::{Extension, Ipv6Option, OptionsHeader};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::list::List;
use pollux_wire::ip::mgid::GroupId;
use std::net::{IpAddr, Ipv6Addr};

/// The precedence of control traffic, as a DSCP: CS6 (RFC 1812 4.3.2.5, RFC 3376 4, RFC 4594 3.2).
pub(crate) const CONTROL_DSCP: u8 = 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To<L = LinkAddress> {
    /// The members of this group, by UD.
    Group(GroupId),
    /// The interface with this link address, by UD even if it has a connection.
    Link(L),
    /// This neighbor, by UD, once its link address is known.
    Neighbor(IpAddr),
    /// The next hop of the packet's destination, by UD or a connection.
    Route,
}

impl<L> To<L> {
    /// The link's group for `destination`, or by route if `destination` is not a group.
    pub fn group_of(destination: IpAddr) -> Self {
        GroupId::of(destination).map_or(Self::Route, Self::Group)
    }
}

/// The link address type of protocols that use no link addresses. It has no values, so their frames
/// are never [`To::Link`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLink {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFrame<L = LinkAddress> {
    pub to: To<L>,
    pub ether_type: EtherType,
    /// Without the link header.
    pub packet: Vec<u8>,
}

impl LinkFrame<NoLink> {
    pub fn at_link<L>(self) -> LinkFrame<L> {
        let Self { to, ether_type, packet } = self;
        let to = match to {
            To::Group(id) => To::Group(id),
            To::Link(nobody) => match nobody {},
            To::Neighbor(ip) => To::Neighbor(ip),
            To::Route => To::Route,
        };
        LinkFrame { to, ether_type, packet }
    }
}

impl<L> LinkFrame<L> {
    /// `None` if the packet is too long for IPv4.
    pub(crate) fn ipv4(
        to: To<L>,
        header: &Ipv4Header,
        options: &[Ipv4Option<'_>],
        payload: &[u8],
    ) -> Option<Self> {
        let mut packet = vec![0; Ipv4Header::LEN_MAX + payload.len()];
        header.write_packet(options, payload.len(), &mut packet).ok()?.copy_from_slice(payload);
        let total_length = Ipv4Header::read(&packet).ok()?.0.total_length;
        packet.truncate(usize::from(total_length));
        Some(Self { to, ether_type: EtherType::IPV4, packet })
    }

    /// `None` if the message is too long for IPv6.
    pub(crate) fn icmpv6(to: To<L>, from: Sender, message: &Icmpv6Message<'_>) -> Option<Self> {
        let alert = Extension::HopByHop(OptionsHeader {
            next_header: IpProtocol::ICMPV6,
            options: List::of(&[Ipv6Option::ROUTER_ALERT_MLD]),
        });
        let (next_header, alert_len) = match from.router_alert {
            true => (IpProtocol::HOP_BY_HOP, alert.wire_len()),
            false => (IpProtocol::ICMPV6, 0),
        };
        let Sender { source, destination, hop_limit, .. } = from;
        // ICMP errors and echoes have no precedence; MLD and neighbor discovery have.
        let is_control = from.router_alert || hop_limit == u8::MAX;
        let dscp = if is_control { CONTROL_DSCP } else { 0 };
        let header = Ipv6Header {
            dscp,
            next_header,
            hop_limit,
            source,
            destination,
            ..Ipv6Header::default()
        };
        let payload_len = alert_len + message.wire_len();
        let mut packet = vec![0; Ipv6Header::LEN + payload_len];
        let mut payload = header.write_packet(payload_len, &mut packet).ok()?;
        if from.router_alert {
            payload = alert.write(payload).ok()?;
        }
        message.write(payload).ok()?;
        icmpv6::fill_checksum(payload, &header.pseudo_header()).ok()?;
        Some(Self { to, ether_type: EtherType::IPV6, packet })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) source: Ipv6Addr,
    pub(crate) destination: Ipv6Addr,
    pub(crate) hop_limit: u8,
    /// RFC 2711.
    pub(crate) router_alert: bool,
}

pub(crate) fn source(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(Ipv4Header::parse(packet.first_chunk()?).source.into()),
        6 => Some(Ipv6Header::parse(packet.first_chunk()?).source.into()),
        _ => None,
    }
}

pub(crate) fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(Ipv4Header::parse(packet.first_chunk()?).destination.into()),
        6 => Some(Ipv6Header::parse(packet.first_chunk()?).destination.into()),
        _ => None,
    }
}
