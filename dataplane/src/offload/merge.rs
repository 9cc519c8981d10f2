//! Merges consecutive TCP packets of a flow into a unit of segments.
//!
//! Packets are merged only if segmentation of the unit restores exactly these packets. So the
//! receiver's kernel gets what the sender has sent. All header fields must be equal except for
//! those that [`super::segment`] sets, the checksums must be valid, and only the last packet may be
//! shorter or have PSH. Packets with other flags than ACK and PSH are not merged.

use super::segment::{pseudo_header, set_v4, set_v6_payload};
use crate::headers::{Form, PacketHeaders};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::checksum::PseudoHeader;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::tcp::{TcpHeader, TcpSegment};
use pollux_wire::ip::vnet_header::{PartialChecksum, SegmentKind, VnetHeader};

const UNIT_BYTES_MAX: usize = u16::MAX as usize;
/// Offsets in a TCP header.
const FLAGS_AT: usize = 13;
const CHECKSUM_AT: usize = 16;
const PSH: u8 = 0x08;
/// The reserved bits in byte 6 of an IPv4 header, and in byte 12 of a TCP header.
const RESERVED_V4: u8 = 0x80;
const RESERVED_TCP: u8 = 0x0f;

/// A packet that may become part of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part<'a> {
    ip: IpFields,
    tcp: TcpHeader,
    options: &'a [u8],
    pseudo: PseudoHeader,
    payload_bytes: usize,
}

/// The IP header, without its lengths and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IpFields {
    V4(Ipv4Header),
    V6(Ipv6Header),
}

#[derive(Clone, Debug)]
pub struct TcpRun {
    ip: IpFields,
    /// The TCP header that the next packet must have, except for its checksum and PSH.
    tcp: TcpHeader,
    options: [u8; TcpHeader::LEN_MAX - TcpHeader::LEN],
    option_bytes: usize,
    pseudo: PseudoHeader,
    segment_bytes: usize,
    /// The bytes and packets of the unit so far.
    unit_bytes: usize,
    count: u16,
    /// No other packet can follow.
    is_complete: bool,
}

impl TcpRun {
    /// `None` if the packet cannot be part of a unit.
    pub fn begin(packet: &[u8]) -> Option<Self> {
        let part = Part::parse(packet)?;
        if part.tcp.psh {
            return None;
        }
        let mut options = [0; TcpHeader::LEN_MAX - TcpHeader::LEN];
        options.get_mut(..part.options.len())?.copy_from_slice(part.options);
        Some(Self {
            ip: part.ip,
            tcp: TcpHeader {
                sequence_number: part.tcp.sequence_number.wrapping_add(part.payload_bytes as u32),
                ..part.tcp
            },
            options,
            option_bytes: part.options.len(),
            pseudo: part.pseudo,
            segment_bytes: part.payload_bytes,
            unit_bytes: packet.len(),
            count: 1,
            is_complete: false,
        })
    }

    /// The length of the headers of each packet.
    pub const fn header_bytes(&self) -> usize {
        self.ip_bytes() + TcpHeader::LEN + self.option_bytes
    }

    /// Appends a packet. Returns `false`, without a change, if the packet does not continue the
    /// unit.
    pub fn append(&mut self, packet: &[u8]) -> bool {
        let Some(part) = Part::parse(packet) else { return false };
        let next = TcpHeader { checksum: part.tcp.checksum, psh: part.tcp.psh, ..self.tcp };
        let continues = !self.is_complete
            && part.tcp == next
            && part.options == &self.options[..self.option_bytes]
            && self.ip.is_followed_by(&part.ip, self.count)
            && part.payload_bytes <= self.segment_bytes
            && self.unit_bytes + part.payload_bytes <= UNIT_BYTES_MAX;
        if continues {
            self.unit_bytes += part.payload_bytes;
            self.count += 1;
            let sequence_number = &mut self.tcp.sequence_number;
            *sequence_number = sequence_number.wrapping_add(part.payload_bytes as u32);
            self.tcp.psh = part.tcp.psh;
            self.is_complete = part.tcp.psh || part.payload_bytes < self.segment_bytes;
        }
        continues
    }

    /// Changes the headers of the first packet to those of the unit, and returns the header for the
    /// kernel. The caller sends the payloads of the other packets after the first packet. A single
    /// packet is not changed.
    pub fn finish(&self, first: &mut [u8]) -> VnetHeader {
        match self.count > 1 && first.len() >= self.header_bytes() {
            true => self.write_unit(first).unwrap_or_default(),
            false => VnetHeader::default(),
        }
    }

    fn write_unit(&self, first: &mut [u8]) -> Option<VnetHeader> {
        let tcp_at = self.ip_bytes();
        let (ip, tcp) = first.split_at_mut_checked(tcp_at)?;
        let segmentation = match self.ip {
            IpFields::V4(header) => {
                set_v4(ip, self.unit_bytes as u16, header.identification)?;
                SegmentKind::TcpV4
            }
            IpFields::V6(_) => {
                set_v6_payload(ip, (self.unit_bytes - Ipv6Header::LEN) as u16)?;
                SegmentKind::TcpV6
            }
        };
        *tcp.get_mut(FLAGS_AT)? |= if self.tcp.psh { PSH } else { 0 };
        let sum = self.pseudo.sum(IpProtocol::TCP, self.unit_bytes - tcp_at);
        let partial = !sum.checksum();
        tcp.get_mut(CHECKSUM_AT..CHECKSUM_AT + 2)?.copy_from_slice(&partial.to_be_bytes());
        Some(VnetHeader {
            checksum: Some(PartialChecksum { start: tcp_at as u16, offset: CHECKSUM_AT as u16 }),
            segmentation,
            header_bytes: self.header_bytes() as u16,
            segment_bytes: self.segment_bytes as u16,
        })
    }

    const fn ip_bytes(&self) -> usize {
        match self.ip {
            IpFields::V4(_) => Ipv4Header::LEN,
            IpFields::V6(_) => Ipv6Header::LEN,
        }
    }
}

impl<'a> Part<'a> {
    /// `None` if the packet cannot be part of a unit.
    fn parse(packet: &'a [u8]) -> Option<Self> {
        let headers = PacketHeaders::parse_ip(packet).ok()?;
        let is_plain = headers.protocol == IpProtocol::TCP && headers.form == Form::Plain;
        if !is_plain || headers.packet_bytes() != packet.len() {
            return None;
        }
        let bytes = headers.payload(packet);
        let segment = TcpSegment::parse(bytes).ok()?;
        let tcp = segment.header();
        let has_other_flags = tcp.cwr || tcp.ece || tcp.urg || tcp.rst || tcp.syn || tcp.fin;
        let payload_bytes = segment.payload().len();
        let pseudo = pseudo_header(packet)?;
        let is_v4 = headers.ether_type == EtherType::IPV4;
        let is_reserved = is_v4 && packet[6] & RESERVED_V4 != 0 || bytes[12] & RESERVED_TCP != 0;
        let is_part = tcp.ack && !has_other_flags && !is_reserved && payload_bytes > 0;
        if !is_part || !segment.checksum_ok(&pseudo) {
            return None;
        }
        let options = &bytes[TcpHeader::LEN..bytes.len() - payload_bytes];
        Some(Self { ip: IpFields::parse(packet)?, tcp, options, pseudo, payload_bytes })
    }
}

impl IpFields {
    fn parse(packet: &[u8]) -> Option<Self> {
        Some(match packet.first()? >> 4 {
            4 => Self::V4(Ipv4Header {
                total_length: 0,
                header_checksum: 0,
                ..Ipv4Header::parse(packet.first_chunk()?)
            }),
            _ => Self::V6(Ipv6Header {
                payload_length: 0,
                ..Ipv6Header::parse(packet.first_chunk()?)
            }),
        })
    }

    /// Whether `next` is the header after `count` packets. The IPv4 identification must increase by
    /// one per packet.
    fn is_followed_by(&self, next: &Self, count: u16) -> bool {
        match (self, next) {
            (Self::V4(first), Self::V4(next)) => {
                let identification = first.identification.wrapping_add(count);
                *next == Ipv4Header { identification, ..*first }
            }
            (Self::V6(first), Self::V6(next)) => first == next,
            _ => false,
        }
    }
}
