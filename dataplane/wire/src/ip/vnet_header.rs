//! The header before each packet of a TUN device with offloads: `struct virtio_net_hdr`
//! (VIRTIO 1.2 5.1.6, `linux/virtio_net.h`).
//!
//! The header tells that the checksum of a packet is partial, and that a packet is to be segmented
//! into several TCP segments. Its fields are in native byte order, because the header never leaves
//! the machine.

use crate::layout::WireError;

/// How a packet is to be segmented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentKind {
    #[default]
    Unsegmented,
    TcpV4,
    TcpV6,
}

/// A partial checksum: the checksum field contains the sum of the pseudo-header only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Offset of the first covered byte; the checksum covers the packet from there to its end.
    pub start: u16,
    /// Offset of the checksum field from `start`.
    pub offset: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    pub checksum: Option<PartialChecksum>,
    pub segmentation: SegmentKind,
    /// Length of all headers of a packet to be segmented, in bytes; only a hint.
    pub header_bytes: u16,
    /// Payload of each segment in bytes; the last segment can be shorter.
    pub segment_bytes: u16,
}

const NEEDS_CHECKSUM: u8 = 1;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
/// A flag in the kind: the first segment has the CWR flag (RFC 3168).
const WITH_ECN: u8 = 0x80;

impl VnetHeader {
    /// Length in bytes, without the field `num_buffers`, which TUN devices do not use.
    pub const LEN: usize = 10;

    /// Parses the header. Segmentation kinds other than TCP are an error, because Pollux does not
    /// enable them on the TUN device.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let [flags, kind, ..] = *bytes;
        let number = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let segmentation = match kind & !WITH_ECN {
            0 => SegmentKind::Unsegmented,
            TCP_V4 => SegmentKind::TcpV4,
            TCP_V6 => SegmentKind::TcpV6,
            _ => return Err(WireError::BadValue { format: "VnetHeader", field: "segmentation" }),
        };
        let partial = PartialChecksum { start: number(6), offset: number(8) };
        Ok(Self {
            checksum: (flags & NEEDS_CHECKSUM != 0).then_some(partial),
            segmentation,
            header_bytes: number(2),
            segment_bytes: number(4),
        })
    }

    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[1] = match self.segmentation {
            SegmentKind::Unsegmented => 0,
            SegmentKind::TcpV4 => TCP_V4,
            SegmentKind::TcpV6 => TCP_V6,
        };
        let partial = self.checksum.inspect(|_| bytes[0] = NEEDS_CHECKSUM);
        let partial = partial.unwrap_or(PartialChecksum { start: 0, offset: 0 });
        let numbers = [self.header_bytes, self.segment_bytes, partial.start, partial.offset];
        for (nth, number) in numbers.iter().enumerate() {
            bytes[2 + 2 * nth..][..2].copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = VnetHeader {
            checksum: Some(PartialChecksum { start: 20, offset: 16 }),
            segmentation: SegmentKind::TcpV4,
            header_bytes: 52,
            segment_bytes: 1448,
        };
        let bytes = header.emit();
        assert_eq!(bytes[..2], [1, 1]);
        assert_eq!(VnetHeader::parse(&bytes), Ok(header));
        let v6 = VnetHeader { segmentation: SegmentKind::TcpV6, ..header };
        assert_eq!(VnetHeader::parse(&v6.emit()), Ok(v6));
        assert_eq!(VnetHeader::default().emit(), [0; 10]);
        assert_eq!(VnetHeader::parse(&[0; 10]), Ok(VnetHeader::default()));
        // The ECN flag is not kept, because segmentation finds CWR in the TCP header.
        let mut with_ecn = bytes;
        with_ecn[1] |= 0x80;
        assert_eq!(VnetHeader::parse(&with_ecn), Ok(header));
        let mut of_udp = bytes;
        of_udp[1] = 5;
        assert!(VnetHeader::parse(&of_udp).is_err());
    }
}
