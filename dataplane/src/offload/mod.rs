//! Work that a kernel leaves to a device, and that its ports do here: checksums, and TCP segments
//! that pass the kernel as one packet.
//!
//! 1. [`complete_checksum`]: a checksum of which the sender has summed the pseudo header only;
//! 2. [`segment`]: a unit of TCP segments becomes the packets that it stands for (TSO);
//! 3. [`merge`]: consecutive packets of a flow become a unit again (GRO).
//!
//! Why units are segmented even where one would fit a link: a unit stands for packets that fit the
//! path MTU of its sender. A router with a smaller MTU would refuse it as one packet, and the
//! sender, whose packets are smaller already, could not react. A sender with a large path MTU makes
//! large packets, which are not segmented.

pub mod merge;
pub mod segment;
#[cfg(test)]
mod tests;

use pollux_wire::ip::checksum::Sum;
use pollux_wire::ip::vnet_header::PartialChecksum;

/// `false` if the checksum is not within the packet.
pub fn complete_checksum(packet: &mut [u8], partial: PartialChecksum) -> bool {
    let (start, offset) = (usize::from(partial.start), usize::from(partial.offset));
    let Some(covered) = packet.get_mut(start..) else { return false };
    // The field counts in the sum: it has that of the pseudo header.
    let checksum = Sum::of(covered).checksum();
    let Some(field) = covered.get_mut(offset..).and_then(|rest| rest.first_chunk_mut::<2>()) else {
        return false;
    };
    // 0 means that UDP has no checksum, and 0xffff is equal to it in a sum (RFC 768).
    *field = if checksum == 0 { u16::MAX } else { checksum }.to_be_bytes();
    true
}
