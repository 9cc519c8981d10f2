//! What the slow protocols send: a packet, and whom on the link it is for.
//!
//! Resolution and its kin never leave by a connection (RFC 4755 3 and 7), so whom a frame is for
//! also says how it goes: to a group, a link address or a neighbor by the UD queue pair, and only
//! what is an ordinary packet of ours in any way that packets go.

use pollux_wire::address::{Gid, Qpn};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmpv6::{self, Icmpv6Message};
use pollux_wire::ip::ipoib::{EtherType, IpoibHeader};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Option};
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::ipv6_ext::{Extension, Ipv6Option, OptionsHeader};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::list::List;
use pollux_wire::ip::mgid::GroupId;
use std::net::{IpAddr, Ipv6Addr};

/// Frames that wait in one machine to be sent, at most.
pub(crate) const FRAMES_MAX: usize = 256;

/// The precedence of control traffic, as a DSCP: CS6 (RFC 3376 4, RFC 4594 3.2).
const CONTROL_DSCP: u8 = 48;

/// Whom a frame is for, and so how it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Whoever joined the group, by UD.
    Group(GroupId),
    /// This interface, by UD whatever connections there are.
    Link(LinkAddress),
    /// This neighbor, by UD, once its link address is known.
    Neighbor(IpAddr),
    /// Whoever is next on the way to the packet's destination, as for any packet of ours.
    Route,
}

impl To {
    /// To the group that packets for `destination` go to; by route if it is none.
    pub fn group_of(destination: IpAddr) -> Self {
        GroupId::of(destination).map_or(Self::Route, Self::Group)
    }
}

/// A packet to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Whom it is for.
    pub to: To,
    /// What the packet is.
    pub ether_type: EtherType,
    /// The packet, which follows the header of the link.
    pub packet: Vec<u8>,
}

impl Frame {
    /// What a datagram or a message carries: the header of the link, then the packet.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = IpoibHeader { ether_type: self.ether_type }.emit().to_vec();
        bytes.extend_from_slice(&self.packet);
        bytes
    }

    /// A packet of IPv4, or none if it would be longer than one can be.
    pub(crate) fn ipv4(
        to: To,
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

    /// A message of ICMPv6, or none if it would be longer than one can be.
    pub(crate) fn icmpv6(to: To, from: Sender, message: &Icmpv6Message<'_>) -> Option<Self> {
        let alert = Extension::HopByHop(OptionsHeader {
            next_header: IpProtocol::ICMPV6,
            options: List::of(&[Ipv6Option::ROUTER_ALERT_MLD]),
        });
        let (next_header, alert_len) = match from.router_alert {
            true => (IpProtocol::HOP_BY_HOP, alert.wire_len()),
            false => (IpProtocol::ICMPV6, 0),
        };
        let Sender { source, destination, hop_limit, .. } = from;
        let header = Ipv6Header { next_header, hop_limit, source, destination, ..from.class() };
        let payload_len = alert_len + message.wire_len();
        let mut packet = vec![0; Ipv6Header::LEN + payload_len];
        let mut room = header.write_packet(payload_len, &mut packet).ok()?;
        if from.router_alert {
            room = alert.write(room).ok()?;
        }
        message.write(room).ok()?;
        icmpv6::fill_checksum(room, &header.pseudo_header()).ok()?;
        Some(Self { to, ether_type: EtherType::IPV6, packet })
    }
}

/// Who sends a message of ICMPv6 to whom, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) source: Ipv6Addr,
    pub(crate) destination: Ipv6Addr,
    pub(crate) hop_limit: u8,
    /// Every router is to look at it (RFC 2711).
    pub(crate) router_alert: bool,
}

impl Sender {
    /// Control traffic goes before other; errors and echoes have the class of none.
    fn class(&self) -> Ipv6Header {
        let is_control = self.router_alert || self.hop_limit == u8::MAX;
        Ipv6Header { dscp: if is_control { CONTROL_DSCP } else { 0 }, ..Ipv6Header::default() }
    }
}

/// Whether an interface can have this link address: its queue pair is none for management, and it
/// is neither nowhere nor a group.
pub(crate) fn is_interface(address: &LinkAddress) -> bool {
    let is_datagram_qp = !matches!(address.qpn, Qpn::SMI | Qpn::GSI | Qpn::MULTICAST);
    is_datagram_qp && !address.gid.is_multicast() && address.gid != Gid::NONE
}
