//! A packet that came: who sent it to whom, and what it carries. Total on whatever comes.

use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::checksum::PseudoHeader;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use pollux_wire::ip::ipv6_ext::UpperLayer;
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
        match bytes.first().map(|first| first >> 4) {
            Some(4) => Self::parse_v4(bytes),
            Some(6) => Self::parse_v6(bytes),
            _ => Err(PacketError::Malformed),
        }
    }

    fn parse_v4(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let packet = Ipv4Packet::parse(bytes).map_err(|_| PacketError::Malformed)?;
        let header = packet.header();
        if !packet.checksum_ok() {
            return Err(PacketError::Malformed);
        }
        if header.is_fragment() {
            return Err(PacketError::Fragment);
        }
        Ok(Self {
            source: header.source.into(),
            destination: header.destination.into(),
            protocol: header.protocol,
            payload: packet.payload(),
            pseudo: header.pseudo_header(),
            is_plain: true,
        })
    }

    fn parse_v6(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let packet = Ipv6Packet::parse(bytes).map_err(|_| PacketError::Malformed)?;
        let header = packet.header();
        let upper = UpperLayer::find(header.next_header, packet.payload());
        let upper = upper.map_err(|_| PacketError::Malformed)?;
        if upper.fragment.is_some() {
            return Err(PacketError::Fragment);
        }
        Ok(Self {
            source: header.source.into(),
            destination: header.destination.into(),
            protocol: upper.protocol,
            payload: upper.payload,
            pseudo: header.pseudo_header(),
            is_plain: upper.protocol == header.next_header,
        })
    }
}

/// Whom a packet is for that carries UDP or TCP and is not a part of another; none of any other.
/// More is said by [`IpPacket::parse`].
pub(super) fn plain_destination(bytes: &[u8]) -> Option<IpAddr> {
    let (protocol, destination) = match bytes.first()? {
        0x45 => {
            let header = Ipv4Header::parse(bytes.first_chunk()?);
            let is_whole = !header.is_fragment();
            (header.protocol, is_whole.then_some(header.destination)?.into())
        }
        0x60..0x70 => {
            let header = Ipv6Header::parse(bytes.first_chunk()?);
            (header.next_header, header.destination.into())
        }
        _ => return None,
    };
    let is_plain = matches!(protocol, IpProtocol::UDP | IpProtocol::TCP);
    is_plain.then_some(destination)
}

/// Whose packet an error quotes, and whom it was for.
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
