//! Writes segments without data, and changes header fields of segments.

use crate::stack::outbox::{Packet, PacketSink};
use crate::stack::packet::{HOP_LIMIT, IpPacket, header_len, write_header};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::tcp::{TcpHeader, TcpOption, fill_checksum};
use std::net::SocketAddr;

/// The local and the remote address.
pub(super) type Ends = (SocketAddr, SocketAddr);

/// Writes a segment; its ports are those of the addresses.
pub(super) fn write_segment(
    packet: &mut Packet,
    (from, to): Ends,
    header: TcpHeader,
    options: &[TcpOption<'_>],
) -> Option<()> {
    let header = TcpHeader { source_port: from.port(), destination_port: to.port(), ..header };
    let mut bytes = [0; TcpHeader::LEN_MAX];
    header.write_segment(options, 0, &mut bytes).ok()?;
    let len = 4 * usize::from(TcpHeader::read(&bytes).ok()?.0.data_offset);
    let buffer = packet.buffer(header_len(to.ip()) + len);
    let ends = (from.ip(), to.ip());
    let (segment, pseudo) = write_header(IpProtocol::TCP, ends, HOP_LIMIT, len, buffer)?;
    segment.copy_from_slice(&bytes[..len]);
    fill_checksum(segment, &pseudo).ok()
}

/// Sets the sequence number. The caller has to fill the checksum again.
pub(super) fn set_sequence_number(bytes: &mut [u8], to: u32) {
    set(bytes, 4, to.to_be_bytes());
}

/// Sets acknowledgment number and window. The checksum is wrong afterwards.
pub(super) fn set_acknowledgment(bytes: &mut [u8], number: u32, window: u16) {
    set(bytes, 8, number.to_be_bytes());
    set(bytes, 14, window.to_be_bytes());
}

fn set<const N: usize>(bytes: &mut [u8], offset: usize, to: [u8; N]) {
    let Ok(IpPacket { payload, .. }) = IpPacket::parse(bytes) else { return };
    let at = bytes.len() - payload.len() + offset;
    if let Some(field) = bytes.get_mut(at..at + N) {
        field.copy_from_slice(&to);
    }
}
