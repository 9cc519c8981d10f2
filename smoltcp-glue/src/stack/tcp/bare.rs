//! Segments without data, as we write them ourselves.

use crate::stack::HOP_LIMIT;
use crate::stack::outbox::Packet;
use crate::stack::packet::IpPacket;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::tcp::{TcpHeader, TcpOption, fill_checksum};
use std::net::{IpAddr, SocketAddr};

/// What such a segment says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bare {
    pub(super) sequence_number: u32,
    pub(super) acknowledgment_number: u32,
    pub(super) window: u16,
    pub(super) ack: bool,
    pub(super) syn: bool,
    pub(super) fin: bool,
}

impl Default for Bare {
    /// An acknowledgment, as all but the first segment of a connection are.
    fn default() -> Self {
        Self {
            sequence_number: 0,
            acknowledgment_number: 0,
            window: 0,
            ack: true,
            syn: false,
            fin: false,
        }
    }
}

/// Emits the segment into a packet.
pub(super) fn write_bare(
    packet: &mut Packet,
    ends: (SocketAddr, SocketAddr),
    bare: Bare,
) -> Option<()> {
    write_segment(packet, ends, bare, &[])
}

/// The same with options.
pub(super) fn write_segment(
    packet: &mut Packet,
    (from, to): (SocketAddr, SocketAddr),
    bare: Bare,
    options: &[TcpOption<'_>],
) -> Option<()> {
    let tcp = TcpHeader {
        source_port: from.port(),
        destination_port: to.port(),
        sequence_number: bare.sequence_number,
        acknowledgment_number: bare.acknowledgment_number,
        window: bare.window,
        ack: bare.ack,
        syn: bare.syn,
        fin: bare.fin,
        ..TcpHeader::default()
    };
    let mut bytes = [0; TcpHeader::LEN_MAX];
    tcp.write_segment(options, 0, &mut bytes).ok()?;
    let protocol = IpProtocol::TCP;
    let len = 4 * usize::from(TcpHeader::read(&bytes).ok()?.0.data_offset);
    let (segment, pseudo) = match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = Ipv4Header {
                dont_fragment: true,
                ttl: HOP_LIMIT,
                protocol,
                source,
                destination,
                ..Ipv4Header::default()
            };
            let buffer = packet.buffer(Ipv4Header::LEN + len);
            (header.write_packet(&[], len, buffer).ok()?, header.pseudo_header())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = Ipv6Header {
                next_header: protocol,
                hop_limit: HOP_LIMIT,
                source,
                destination,
                ..Ipv6Header::default()
            };
            let buffer = packet.buffer(Ipv6Header::LEN + len);
            (header.write_packet(len, buffer).ok()?, header.pseudo_header())
        }
        _ => return None,
    };
    segment.copy_from_slice(&bytes[..len]);
    fill_checksum(segment, &pseudo).ok()
}

/// Moves a segment to another place of its stream. Its checksum is not right after that.
pub(super) fn set_sequence_number(bytes: &mut [u8], to: u32) {
    set(bytes, 4, to.to_be_bytes());
}

/// Lets a segment acknowledge something else. Its checksum is not right after that.
pub(super) fn set_acknowledgment(bytes: &mut [u8], number: u32, window: u16) {
    set(bytes, 8, number.to_be_bytes());
    set(bytes, 14, window.to_be_bytes());
}

/// Writes into the header of a segment, at an offset.
fn set<const N: usize>(bytes: &mut [u8], offset: usize, to: [u8; N]) {
    let Ok(IpPacket { payload, .. }) = IpPacket::parse(bytes) else { return };
    let at = bytes.len() - payload.len() + offset;
    if let Some(place) = bytes.get_mut(at..at + N) {
        place.copy_from_slice(&to);
    }
}
