//! The headers of a received packet, parsed once and kept with its buffer.
//!
//! The netdev parses a packet as it arrives and checks what every receiver has to check: lengths
//! and the IPv4 checksum (RFC 1122 3.2.1, RFC 1812 5.2.2). The verdict, flow steering, sockets and
//! forwarding use the result and do not parse again.
//!
//! IPv6 extension headers concern only the destination (RFC 8200 4). So a chain that cannot be
//! parsed is no reason to drop a packet in transit: the packet gets [`Form::Opaque`].

use crate::reason::PacketDrop;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::checksum::Sum;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use pollux_wire::ip::ipv6_ext::UpperLayer;
use std::net::IpAddr;

/// What is between the fixed IP header of a packet and its upper layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    Extended,
    Fragment,
    Opaque,
    NotIp,
}

/// The parsed headers of a packet. They are valid until the packet is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeaders {
    pub ether_type: EtherType,
    /// The upper-layer protocol. In an opaque packet, the type of its first extension header.
    pub protocol: IpProtocol,
    pub form: Form,
    payload_at: u16,
    /// The end of the packet, without link-layer padding.
    end: u16,
}

/// The length of an ARP packet before its addresses (RFC 826).
const ARP_BYTES_MIN: usize = 8;

impl PacketHeaders {
    pub const NONE: Self = Self {
        ether_type: EtherType(0),
        protocol: IpProtocol(0),
        form: Form::NotIp,
        payload_at: 0,
        end: 0,
    };

    /// Parses the headers of a packet of this EtherType. An error is the reason to drop the packet.
    #[inline]
    pub fn parse(ether_type: EtherType, packet: &[u8]) -> Result<Self, PacketDrop> {
        match ether_type {
            EtherType::IPV4 => Self::parse_v4(packet),
            EtherType::IPV6 => Self::parse_v6(packet),
            _ => Self::parse_other(ether_type, packet),
        }
    }

    /// Parses the headers of an IP packet, whose version is in its first byte.
    #[inline]
    pub fn parse_ip(packet: &[u8]) -> Result<Self, PacketDrop> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => Self::parse_v4(packet),
            Some(6) => Self::parse_v6(packet),
            Some(_) => Err(PacketDrop::Version),
            None => Err(PacketDrop::Truncated),
        }
    }

    /// As [`Self::parse_ip`], in place.
    ///
    /// Why not by return value: a function returns these small fields packed into one integer. The
    /// processor then reads them from memory before the separate stores have completed, and this
    /// stall takes as long as the parsing.
    #[inline]
    pub fn set_ip(&mut self, packet: &[u8]) -> Result<(), PacketDrop> {
        match packet.split_first_chunk() {
            Some((fixed, rest)) if fixed[0] >> 4 == 4 => {
                let header = Ipv4Header::parse(fixed);
                *self = Self::of_v4(&header, Self::check_v4(&header, fixed, rest)?);
            }
            _ => *self = Self::parse_ip(packet)?,
        }
        Ok(())
    }

    #[inline]
    fn parse_v4(packet: &[u8]) -> Result<Self, PacketDrop> {
        let (fixed, rest) = packet.split_first_chunk().ok_or(PacketDrop::Truncated)?;
        let header = Ipv4Header::parse(fixed);
        let form = Self::check_v4(&header, fixed, rest)?;
        Ok(Self::of_v4(&header, form))
    }

    #[inline]
    fn check_v4(
        header: &Ipv4Header,
        fixed: &[u8; Ipv4Header::LEN],
        rest: &[u8],
    ) -> Result<Form, PacketDrop> {
        if header.version != 4 {
            return Err(PacketDrop::Version);
        }
        let (head, end) = (header.header_len(), usize::from(header.total_length));
        let options = rest.get(..head.wrapping_sub(Ipv4Header::LEN));
        let options = options.filter(|_| head <= end && end <= fixed.len() + rest.len());
        let sum = match options.ok_or(PacketDrop::BadLength)? {
            // Most headers have no options, and a sum over a constant length needs no loop.
            [] => Sum::of(fixed),
            options => Sum::of(fixed).then(Sum::of(options)),
        };
        if !sum.is_ok() {
            return Err(PacketDrop::Checksum);
        }
        Ok(match (header.is_fragment(), head) {
            (true, _) => Form::Fragment,
            (_, Ipv4Header::LEN) => Form::Plain,
            _ => Form::Extended,
        })
    }

    #[inline]
    const fn of_v4(header: &Ipv4Header, form: Form) -> Self {
        Self {
            ether_type: EtherType::IPV4,
            protocol: header.protocol,
            form,
            payload_at: header.header_len() as u16,
            end: header.total_length,
        }
    }

    #[inline]
    fn parse_v6(packet: &[u8]) -> Result<Self, PacketDrop> {
        let first = packet.first_chunk::<{ Ipv6Header::LEN }>().ok_or(PacketDrop::Truncated)?;
        if first[0] >> 4 != 6 {
            return Err(PacketDrop::Version);
        }
        let parsed = Ipv6Packet::parse(packet).map_err(|_| PacketDrop::BadLength)?;
        let (next_header, payload) = (parsed.header().next_header, parsed.payload());
        let end = Ipv6Header::LEN + payload.len();
        let (protocol, form, left) = match UpperLayer::find(next_header, payload) {
            Ok(upper) if upper.fragment.is_some() => {
                (upper.protocol, Form::Fragment, upper.payload.len())
            }
            Ok(upper) if upper.payload.len() == payload.len() => {
                (upper.protocol, Form::Plain, payload.len())
            }
            Ok(upper) => (upper.protocol, Form::Extended, upper.payload.len()),
            Err(_) => (next_header, Form::Opaque, payload.len()),
        };
        // A payload of 65,535 bytes is longer than any MTU of IPoIB.
        let end = u16::try_from(end).map_err(|_| PacketDrop::BadLength)?;
        Ok(Self { ether_type: EtherType::IPV6, protocol, form, payload_at: end - left as u16, end })
    }

    #[cold]
    fn parse_other(ether_type: EtherType, packet: &[u8]) -> Result<Self, PacketDrop> {
        if matches!(ether_type, EtherType::ARP | EtherType::RARP) && packet.len() < ARP_BYTES_MIN {
            return Err(PacketDrop::Truncated);
        }
        Ok(Self {
            ether_type,
            protocol: IpProtocol::default(),
            form: Form::NotIp,
            payload_at: 0,
            end: packet.len() as u16,
        })
    }

    /// The upper-layer payload. `packet` must be the parsed packet.
    #[inline]
    pub fn payload<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        packet.get(self.payload_at.into()..self.end.into()).unwrap_or_default()
    }

    /// The length of the packet, without link-layer padding.
    pub const fn packet_bytes(&self) -> usize {
        self.end as usize
    }

    #[inline]
    pub fn source(&self, packet: &[u8]) -> Option<IpAddr> {
        match self.ether_type {
            EtherType::IPV4 => Some(Ipv4Header::parse(packet.first_chunk()?).source.into()),
            EtherType::IPV6 => Some(Ipv6Header::parse(packet.first_chunk()?).source.into()),
            _ => None,
        }
    }

    #[inline]
    pub fn destination(&self, packet: &[u8]) -> Option<IpAddr> {
        match self.ether_type {
            EtherType::IPV4 => Some(Ipv4Header::parse(packet.first_chunk()?).destination.into()),
            EtherType::IPV6 => Some(Ipv6Header::parse(packet.first_chunk()?).destination.into()),
            _ => None,
        }
    }

    /// Whether this is an unfragmented UDP or TCP packet without IP options or extension headers.
    #[inline]
    pub fn is_plain_transport(&self) -> bool {
        self.form == Form::Plain && matches!(self.protocol, IpProtocol::UDP | IpProtocol::TCP)
    }
}
