//! Offloads: work that a kernel leaves to its network device, and that ports do here. It consists
//! of checksums and the segmentation of TCP.
//!
//! 1. [`complete_checksum`]: completes a checksum for which the sender has summed only the pseudo
//!    header;
//! 2. [`segment`]: splits a unit of TCP segments, which passes the kernel as one packet, into the
//!    packets that it stands for (TSO);
//! 3. [`merge`]: merges consecutive packets of a flow into a unit (GRO).
//!
//! Why a unit is segmented even if it would fit the link as one packet: it stands for packets that
//! fit the path MTU of its sender. A router with a smaller MTU would refuse the one packet, and the
//! sender could not react, because its packets are smaller already. A sender with a large path MTU
//! sends large packets, which are no units.

pub mod merge;
pub mod segment;
#[cfg(test)]
mod tests;

use pollux_wire::ip::checksum::Sum;
use pollux_wire::ip::vnet_header::PartialChecksum;

/// Completes a partial checksum. Returns `false` if the checksum field is not within the packet.
pub fn complete_checksum(packet: &mut [u8], partial: PartialChecksum) -> bool {
    let (start, offset) = (usize::from(partial.start), usize::from(partial.offset));
    let Some(covered) = packet.get_mut(start..) else { return false };
    // The sum includes the field, which has the sum of the pseudo header.
    let checksum = Sum::of(covered).checksum();
    let Some(field) = covered.get_mut(offset..).and_then(|rest| rest.first_chunk_mut::<2>()) else {
        return false;
    };
    // 0 means that UDP has no checksum, and 0xffff is equal to it in a sum (RFC 768).
    *field = if checksum == 0 { u16::MAX } else { checksum }.to_be_bytes();
    true
}
