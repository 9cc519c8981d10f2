//! IP packets: a total parser for received ones, and the headers of sent ones.

use pollux_dataplane::headers::{Form, PacketHeaders};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::checksum::PseudoHeader;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::ipv6_ext::FragmentHeader;
use std::net::{IpAddr, SocketAddr};

/// The default hop limit of unicast packets (RFC 1340).
pub(super) const HOP_LIMIT: u8 = 64;

#[derive(Clone, Copy, Debug)]
pub(super) struct IpPacket<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: IpProtocol,
    pub(super) payload: &'a [u8],
    pub(super) pseudo: PseudoHeader,
    /// Whether the payload follows the fixed header.
    pub(super) is_plain: bool,
}

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

pub(super) const fn header_len(to: IpAddr) -> usize {
    match to {
        IpAddr::V4(_) => Ipv4Header::LEN,
        IpAddr::V6(_) => Ipv6Header::LEN,
    }
}

/// Writes the IP header of a packet with `len` bytes of payload. Returns the buffer for the payload
/// and the pseudo-header; `None` if the addresses have different families.
#[inline(always)]
pub(super) fn write_header(
    protocol: IpProtocol,
    (source, destination): (IpAddr, IpAddr),
    hop_limit: u8,
    len: usize,
    buffer: &mut [u8],
) -> Option<(&mut [u8], PseudoHeader)> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = Ipv4Header {
                dont_fragment: true,
                ttl: hop_limit,
                protocol,
                source,
                destination,
                ..Ipv4Header::default()
            };
            Some((header.write_packet(&[], len, buffer).ok()?, header.pseudo_header()))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = Ipv6Header {
                next_header: protocol,
                hop_limit,
                source,
                destination,
                ..Ipv6Header::default()
            };
            Some((header.write_packet(len, buffer).ok()?, header.pseudo_header()))
        }
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quoted {
    pub(super) protocol: IpProtocol,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// Valid only for TCP.
    pub(super) sequence_number: u32,
    pub(super) len: u32,
}

impl Quoted {
    /// Parses the IP header and the 8 bytes after it, which every ICMP error quotes (RFC 792).
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
                match header.next_header {
                    IpProtocol::FRAGMENT => {
                        let (fragment, rest) = FragmentHeader::read(rest).ok()?;
                        let rest = (fragment.fragment_offset == 0).then_some(rest)?;
                        (fragment.next_header, addresses, len, rest)
                    }
                    protocol => (protocol, addresses, len, rest),
                }
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
