//! A parsed received packet: addresses and payload. Parsing is total.

use pollux_dataplane::headers::{Form, PacketHeaders};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::checksum::PseudoHeader;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use std::net::{IpAddr, SocketAddr};

/// A whole packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct IpPacket<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: IpProtocol,
    pub(super) payload: &'a [u8],
    pub(super) pseudo: PseudoHeader,
    /// Whether its payload follows the fixed header at once.
    pub(super) is_plain: bool,
}

/// Why bytes are no whole packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketError {
    Malformed,
    Fragment,
}

impl<'a> IpPacket<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let headers = PacketHeaders::parse_ip(bytes).map_err(|_| PacketError::Malformed)?;
        Self::of(&headers, bytes)
    }

    /// The packet with these headers.
    #[inline]
    pub(super) fn of(headers: &PacketHeaders, bytes: &'a [u8]) -> Result<Self, PacketError> {
        match headers.form {
            Form::Plain | Form::Extended => {}
            Form::Fragment => return Err(PacketError::Fragment),
            Form::Opaque | Form::NotIp => return Err(PacketError::Malformed),
        }
        let is_v4 = headers.ether_type == EtherType::IPV4;
        let (source, destination, pseudo): (IpAddr, IpAddr, _) = if is_v4 {
            let fixed = bytes.first_chunk().ok_or(PacketError::Malformed)?;
            let header = Ipv4Header::parse(fixed);
            (header.source.into(), header.destination.into(), header.pseudo_header())
        } else {
            let fixed = bytes.first_chunk().ok_or(PacketError::Malformed)?;
            let header = Ipv6Header::parse(fixed);
            (header.source.into(), header.destination.into(), header.pseudo_header())
        };
        Ok(Self {
            source,
            destination,
            protocol: headers.protocol,
            payload: headers.payload(bytes),
            pseudo,
            is_plain: is_v4 || headers.form == Form::Plain,
        })
    }
}

/// The addresses of the packet that an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quoted {
    pub(super) protocol: IpProtocol,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// Of a segment.
    pub(super) sequence_number: u32,
    /// How long the packet was.
    pub(super) len: u32,
}

impl Quoted {
    /// What the front of a packet says: headers of IP, and the 8 bytes after them that every error
    /// quotes (RFC 792).
    pub(super) fn parse(front: &[u8]) -> Option<Self> {
        let (protocol, addresses, len, rest): (_, [IpAddr; 2], _, _) = match front.first()? >> 4 {
            4 => {
                let (header, _) = Ipv4Header::read(front).ok()?;
                let rest = front.get(header.header_len()..)?;
                let rest = (header.fragment_offset == 0).then_some(rest)?;
                let addresses = [header.source.into(), header.destination.into()];
                (header.protocol, addresses, u32::from(header.total_length), rest)
            }
            6 => {
                let (header, rest) = Ipv6Header::read(front).ok()?;
                let addresses = [header.source.into(), header.destination.into()];
                let len = Ipv6Header::LEN as u32 + u32::from(header.payload_length);
                (header.next_header, addresses, len, rest)
            }
            _ => return None,
        };
        let (&[a, b, c, d, ref number @ ..], _) = rest.split_first_chunk::<8>()?;
        let [source, destination] = addresses;
        Some(Self {
            protocol,
            source: SocketAddr::new(source, u16::from_be_bytes([a, b])),
            destination: SocketAddr::new(destination, u16::from_be_bytes([c, d])),
            sequence_number: u32::from_be_bytes(*number),
            len,
        })
    }
}
