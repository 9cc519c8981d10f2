//! Parses ICMP errors about packets of this host (RFC 792, RFC 4443 3). RFC 5927 says which errors
//! to trust.

use super::packet::{IpPacket, Quoted};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmpv4::{self, Icmpv4Message, Icmpv4Unreachable};
use pollux_wire::ip::icmpv6::{self, Icmpv6Message, Icmpv6Unreachable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IcmpError {
    /// Port or protocol unreachable.
    Refused,
    Unreachable,
    /// The packet was too big; the MTU of the next hop.
    TooBig(u32),
}

pub(super) fn icmp_error(packet: &IpPacket<'_>) -> Option<(IcmpError, Quoted)> {
    let (error, original) = match packet.protocol {
        IpProtocol::ICMPV4 if icmpv4::checksum_ok(packet.payload) => {
            icmp_error_v4(&Icmpv4Message::parse(packet.payload).ok()?)?
        }
        IpProtocol::ICMPV6 if icmpv6::checksum_ok(packet.payload, &packet.pseudo) => {
            icmp_error_v6(&Icmpv6Message::parse(packet.payload).ok()?)?
        }
        _ => return None,
    };
    Some((error, Quoted::parse(original)?))
}

fn icmp_error_v4<'a>(message: &Icmpv4Message<'a>) -> Option<(IcmpError, &'a [u8])> {
    let Icmpv4Message::DestinationUnreachable { code, next_hop_mtu, original } = *message else {
        return None;
    };
    let error = match code {
        Icmpv4Unreachable::PORT | Icmpv4Unreachable::PROTOCOL => IcmpError::Refused,
        // Routers older than RFC 1191 report an MTU of 0.
        Icmpv4Unreachable::FRAGMENTATION_NEEDED => IcmpError::TooBig(next_hop_mtu.into()),
        _ => IcmpError::Unreachable,
    };
    Some((error, original))
}

fn icmp_error_v6<'a>(message: &Icmpv6Message<'a>) -> Option<(IcmpError, &'a [u8])> {
    match *message {
        Icmpv6Message::PacketTooBig { mtu, original } => Some((IcmpError::TooBig(mtu), original)),
        Icmpv6Message::DestinationUnreachable { code: Icmpv6Unreachable::PORT, original } => {
            Some((IcmpError::Refused, original))
        }
        Icmpv6Message::DestinationUnreachable { original, .. } => {
            Some((IcmpError::Unreachable, original))
        }
        _ => None,
    }
}
