//! TCP segmentation: splits a unit of TCP segments into the packets that it stands for.
//!
//! Each packet has the headers of the unit. The fields that differ between packets are set as the
//! sender would have set them (RFC 9293 3.1, RFC 791 3.1): lengths, identification, sequence number
//! and checksums. Only the last packet has PSH and FIN of the unit, and only the first has CWR (RFC
//! 3168 6.1.2).

use crate::headers::{Form, PacketHeaders};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::checksum::{PseudoHeader, Sum};
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::tcp::{self, TcpSegment};

/// Offsets in a TCP header of the fields that differ between segments.
const SEQUENCE_AT: usize = 4;
const FLAGS_AT: usize = 13;
const CWR: u8 = 0x80;
const PSH: u8 = 0x08;
const FIN: u8 = 0x01;

/// A unit of TCP segments: the values of its headers from which its packets are made.
#[derive(Clone, Copy, Debug)]
pub struct TcpUnit {
    is_v4: bool,
    /// The offset of the TCP header.
    tcp_at: usize,
    header_bytes: usize,
    unit_bytes: usize,
    segment_bytes: usize,
    identification: u16,
    sequence_number: u32,
    pseudo: PseudoHeader,
}

impl TcpUnit {
    /// Parses the headers of a unit whose segments have `segment_bytes` of payload. `None` if it is
    /// not TCP.
    pub fn parse(unit: &[u8], segment_bytes: u16) -> Option<Self> {
        let headers = PacketHeaders::parse_ip(unit).ok()?;
        let is_whole = matches!(headers.form, Form::Plain | Form::Extended);
        if headers.protocol != IpProtocol::TCP || !is_whole || segment_bytes == 0 {
            return None;
        }
        let segment = TcpSegment::parse(headers.payload(unit)).ok()?;
        let unit_bytes = headers.packet_bytes();
        let is_v4 = headers.ether_type == EtherType::IPV4;
        let pseudo = pseudo_header(unit)?;
        Some(Self {
            is_v4,
            tcp_at: unit_bytes - headers.payload(unit).len(),
            header_bytes: unit_bytes - segment.payload().len(),
            unit_bytes,
            segment_bytes: segment_bytes.into(),
            identification: match is_v4 {
                true => Ipv4Header::parse(unit.first_chunk()?).identification,
                false => 0,
            },
            sequence_number: segment.header().sequence_number,
            pseudo,
        })
    }

    pub const fn count(&self) -> usize {
        let payload = (self.unit_bytes - self.header_bytes).div_ceil(self.segment_bytes);
        if payload == 0 { 1 } else { payload }
    }

    pub fn packet_bytes(&self, nth: usize) -> usize {
        let payload = self.unit_bytes - self.header_bytes;
        self.header_bytes + payload.saturating_sub(nth * self.segment_bytes).min(self.segment_bytes)
    }

    /// Writes the nth packet to `packet`, which must have its length. `None` if `unit` is not the
    /// parsed unit.
    pub fn write(&self, unit: &[u8], nth: usize, packet: &mut [u8]) -> Option<()> {
        let before = nth * self.segment_bytes;
        let payload_at = self.header_bytes + before;
        let (header, payload) = packet.split_at_mut_checked(self.header_bytes)?;
        header.copy_from_slice(unit.get(..self.header_bytes)?);
        payload.copy_from_slice(unit.get(payload_at..payload_at + payload.len())?);
        let is_last = payload_at + payload.len() == self.unit_bytes;
        let (ip, tcp) = header.split_at_mut_checked(self.tcp_at)?;
        let sequence_number = self.sequence_number.wrapping_add(before as u32);
        tcp.get_mut(SEQUENCE_AT..SEQUENCE_AT + 4)?.copy_from_slice(&sequence_number.to_be_bytes());
        let flags = tcp.get_mut(FLAGS_AT)?;
        *flags &= !(if is_last { 0 } else { PSH | FIN } | if nth == 0 { 0 } else { CWR });
        let total = self.header_bytes + payload.len();
        match self.is_v4 {
            true => {
                let identification = self.identification.wrapping_add(nth as u16);
                set_v4(ip, total as u16, identification)?;
            }
            false => set_v6_payload(ip, (total - Ipv6Header::LEN) as u16)?,
        }
        tcp::fill_checksum(packet.get_mut(self.tcp_at..)?, &self.pseudo).ok()
    }
}

/// The pseudo header of a packet without a routing header.
pub(super) fn pseudo_header(packet: &[u8]) -> Option<PseudoHeader> {
    Some(match packet.first()? >> 4 {
        4 => {
            let Ipv4Header { source, destination, .. } = Ipv4Header::parse(packet.first_chunk()?);
            PseudoHeader::V4 { source, destination }
        }
        _ => {
            let Ipv6Header { source, destination, .. } = Ipv6Header::parse(packet.first_chunk()?);
            PseudoHeader::V6 { source, destination }
        }
    })
}

/// Sets the fields that differ between packets, in an IPv4 header with its options.
pub(super) fn set_v4(header: &mut [u8], total_length: u16, identification: u16) -> Option<()> {
    header.get_mut(2..4)?.copy_from_slice(&total_length.to_be_bytes());
    header.get_mut(4..6)?.copy_from_slice(&identification.to_be_bytes());
    header.get_mut(10..12)?.fill(0);
    let checksum = Sum::of(header).checksum();
    header.get_mut(10..12)?.copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

pub(super) fn set_v6_payload(header: &mut [u8], payload_length: u16) -> Option<()> {
    header.get_mut(4..6)?.copy_from_slice(&payload_length.to_be_bytes());
    Some(())
}
