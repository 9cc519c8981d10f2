//! TCP (RFC 9293 3.1; RFC 7323 for window scale and timestamps, RFC 2018 for SACK, RFC 3168 for
//! ECN).

use super::checksum::{self, PseudoHeader, Sum};
use super::list::{Item, Items};
use super::option::{self, RawOption};
use super::{IpProtocol, split_mut};
use crate::layout::{WireError, split_header};

layout! {
    /// The fixed part of the header (RFC 9293 3.1).
    pub struct TcpHeader: 20 bytes {
        0:0   16  source_port: u16,
        2:0   16  destination_port: u16,
        /// The sequence number of the SYN or of the first byte of payload.
        4:0   32  sequence_number: u32,
        8:0   32  acknowledgment_number: u32,
        /// Length of the header in 32-bit words, options included.
        12:0   4  data_offset: u8,
        13:0   1  cwr: bool,
        13:1   1  ece: bool,
        13:2   1  urg: bool,
        13:3   1  ack: bool,
        13:4   1  psh: bool,
        13:5   1  rst: bool,
        13:6   1  syn: bool,
        13:7   1  fin: bool,
        /// The receive window of the sender, before scaling.
        14:0  16  window: u16,
        /// Covers header, options, payload and pseudo-header.
        16:0  16  checksum: u16,
        /// End of urgent data, as an offset from the sequence number.
        18:0  16  urgent_pointer: u16,
    }
}

impl TcpHeader {
    pub const LEN_MAX: usize = 60;

    const CHECKSUM_AT: usize = 16;

    /// Writes the header of a segment with `options` and a payload of `payload_len` bytes; returns
    /// the space for that payload. This function sets the data offset, and a zero checksum for
    /// [`fill_checksum`] to compute.
    pub fn write_segment<'a>(
        &self,
        options: &[TcpOption<'_>],
        payload_len: usize,
        out: &'a mut [u8],
    ) -> Result<&'a mut [u8], WireError> {
        let header_len = Self::LEN + option::padded_len(options);
        if header_len > Self::LEN_MAX {
            return Err(WireError::BadLength { format: "TcpHeader" });
        }
        let (segment, _) = split_mut("TcpHeader", out, header_len + payload_len)?;
        let (head, payload) = segment.split_at_mut(header_len);
        let own = Self { data_offset: (header_len / 4) as u8, checksum: 0, ..*self };
        option::write_padded(options, own.write(head)?)?;
        Ok(payload)
    }
}

/// A view of a segment with valid header length. It parses the header on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSegment<'a> {
    fixed: &'a [u8; TcpHeader::LEN],
    options: &'a [u8],
    payload: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> TcpSegment<'a> {
    /// Parses the segment that fills `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, _) = split_header("TcpHeader", bytes)?;
        let header_len = usize::from(TcpHeader::parse(fixed).data_offset) * 4;
        let parts = bytes.split_at_checked(header_len);
        match parts.and_then(|(head, payload)| Some((head.split_first_chunk()?, payload))) {
            Some(((fixed, options), payload)) => Ok(Self { fixed, options, payload, bytes }),
            None => Err(WireError::BadLength { format: "TcpSegment" }),
        }
    }

    #[inline(always)]
    pub fn header(&self) -> TcpHeader {
        TcpHeader::parse(self.fixed)
    }

    /// The options; errors in them show during iteration.
    #[inline]
    pub fn options(&self) -> Items<'a, TcpOption<'a>> {
        Items::new(self.options)
    }

    #[inline(always)]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    pub fn checksum_ok(&self, pseudo: &PseudoHeader) -> bool {
        pseudo.sum(IpProtocol::TCP, self.bytes.len()).then(Sum::of(self.bytes)).is_ok()
    }
}

pub fn fill_checksum(bytes: &mut [u8], pseudo: &PseudoHeader) -> Result<(), WireError> {
    let before = pseudo.sum(IpProtocol::TCP, bytes.len());
    checksum::fill("TcpHeader", bytes, TcpHeader::CHECKSUM_AT, before).map(drop)
}

codes! {
    /// Option kinds (IANA).
    pub struct TcpOptionKind(u8) {
        END = 0,
        NO_OPERATION = 1,
        MAXIMUM_SEGMENT_SIZE = 2,
        WINDOW_SCALE = 3,
        SACK_PERMITTED = 4,
        SACK = 5,
        TIMESTAMPS = 8,
    }
}

/// An option that is not padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// The longest segment payload that the sender accepts, in bytes (RFC 9293 3.7.1).
    MaximumSegmentSize(u16),
    /// Left shift of the sender's windows, in bits (RFC 7323 2).
    WindowScale(u8),
    /// The sender understands SACK (RFC 2018 2).
    SackPermitted,
    /// Blocks received beyond the acknowledgment number.
    Sack(SackBlocks),
    /// Timestamps of sender and receiver (RFC 7323 3).
    Timestamps {
        value: u32,
        /// The most recent timestamp that the sender received.
        echo_reply: u32,
    },
    /// Other kinds, and the above kinds with a wrong length.
    Unknown { kind: TcpOptionKind, data: &'a [u8] },
}

layout! {
    /// A block of bytes that arrived beyond a gap (RFC 2018 3).
    pub struct SackBlock: 8 bytes {
        0:0   32  left_edge: u32,
        /// The sequence number after the last byte.
        4:0   32  right_edge: u32,
    }
}

/// The blocks of a SACK option: one to four, because a header has no space for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [SackBlock; Self::COUNT_MAX],
    count: usize,
}

impl SackBlocks {
    pub const COUNT_MAX: usize = 4;

    /// Makes an option of these blocks; `None` if there are no blocks or too many.
    pub fn new(of: &[SackBlock]) -> Option<Self> {
        let mut blocks = [SackBlock::default(); Self::COUNT_MAX];
        blocks.get_mut(..of.len()).filter(|blocks| !blocks.is_empty())?.copy_from_slice(of);
        Some(Self { blocks, count: of.len() })
    }

    /// The blocks, with the most recently received block first.
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..self.count]
    }

    fn parse(data: &[u8]) -> Option<Self> {
        let (bytes, []) = data.as_chunks::<{ SackBlock::LEN }>() else { return None };
        let mut blocks = [SackBlock::default(); Self::COUNT_MAX];
        for (block, bytes) in blocks.get_mut(..bytes.len())?.iter_mut().zip(bytes) {
            *block = SackBlock::parse(bytes);
        }
        (!bytes.is_empty()).then_some(Self { blocks, count: bytes.len() })
    }
}

impl<'a> Item<'a> for TcpOption<'a> {
    fn read(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, WireError> {
        let Some((RawOption { kind, data }, rest)) = RawOption::read("TcpOption", bytes)? else {
            return Ok(None);
        };
        let kind = TcpOptionKind(kind);
        let option = match (kind, data) {
            (TcpOptionKind::MAXIMUM_SEGMENT_SIZE, &[high, low]) => {
                Self::MaximumSegmentSize(u16::from_be_bytes([high, low]))
            }
            (TcpOptionKind::WINDOW_SCALE, &[shift]) => Self::WindowScale(shift),
            (TcpOptionKind::SACK_PERMITTED, []) => Self::SackPermitted,
            (TcpOptionKind::TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => Self::Timestamps {
                value: u32::from_be_bytes([a, b, c, d]),
                echo_reply: u32::from_be_bytes([e, f, g, h]),
            },
            (TcpOptionKind::SACK, data) => {
                SackBlocks::parse(data).map_or(Self::Unknown { kind, data }, Self::Sack)
            }
            _ => Self::Unknown { kind, data },
        };
        Ok(Some((option, rest)))
    }

    fn wire_len(&self) -> usize {
        RawOption::PREFIX_LEN
            + match self {
                Self::MaximumSegmentSize(_) => 2,
                Self::WindowScale(_) => 1,
                Self::SackPermitted => 0,
                Self::Sack(blocks) => blocks.count * SackBlock::LEN,
                Self::Timestamps { .. } => 8,
                Self::Unknown { data, .. } => data.len(),
            }
    }

    fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let option = |TcpOptionKind(kind), data: &[u8], out| {
            RawOption { kind, data }.write("TcpOption", out)
        };
        match self {
            Self::MaximumSegmentSize(size) => {
                option(TcpOptionKind::MAXIMUM_SEGMENT_SIZE, &size.to_be_bytes(), out)
            }
            Self::WindowScale(shift) => option(TcpOptionKind::WINDOW_SCALE, &[*shift], out),
            Self::SackPermitted => option(TcpOptionKind::SACK_PERMITTED, &[], out),
            Self::Sack(SackBlocks { blocks, count }) => {
                let bytes = blocks.map(|block| block.emit());
                option(TcpOptionKind::SACK, bytes[..*count].as_flattened(), out)
            }
            Self::Timestamps { value, echo_reply } => {
                let bytes = (u64::from(*value) << 32 | u64::from(*echo_reply)).to_be_bytes();
                option(TcpOptionKind::TIMESTAMPS, &bytes, out)
            }
            Self::Unknown { kind, data } => option(*kind, data, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;
    use std::vec::Vec;

    const PSEUDO: PseudoHeader = PseudoHeader::V4 {
        source: Ipv4Addr::new(10, 0, 0, 1),
        destination: Ipv4Addr::new(10, 0, 0, 2),
    };

    #[test]
    fn syn_with_the_usual_options() {
        let header = TcpHeader {
            source_port: 40_000,
            destination_port: 5201,
            sequence_number: 0x0102_0304,
            syn: true,
            window: 65_535,
            ..TcpHeader::default()
        };
        let options = [
            TcpOption::MaximumSegmentSize(2004),
            TcpOption::SackPermitted,
            TcpOption::Timestamps { value: 0x0a0b_0c0d, echo_reply: 0 },
            TcpOption::WindowScale(7),
        ];
        let mut out = [0xff; 40];
        assert_eq!(header.write_segment(&options, 0, &mut out).unwrap().len(), 0);
        assert_eq!(out[..14], [0x9c, 0x40, 0x14, 0x51, 1, 2, 3, 4, 0, 0, 0, 0, 0xa0, 0x02]);
        assert_eq!(out[20..26], [2, 4, 0x07, 0xd4, 4, 2]);
        assert_eq!(out[26..], [8, 10, 0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0, 0, 3, 3, 7, 0]);

        fill_checksum(&mut out, &PSEUDO).unwrap();
        let parsed = TcpSegment::parse(&out).unwrap();
        assert!(parsed.checksum_ok(&PSEUDO) && parsed.options().eq(options.map(Ok)));
        let TcpHeader { checksum, .. } = parsed.header();
        assert_eq!(parsed.header(), TcpHeader { data_offset: 10, checksum, ..header });
        out[39] ^= 1;
        assert!(!TcpSegment::parse(&out).unwrap().checksum_ok(&PSEUDO));
    }

    #[test]
    fn flags_are_where_the_figure_has_them() {
        let with = |flags: u8| {
            let mut bytes = [0; 20];
            (bytes[12], bytes[13]) = (0x5f, flags);
            TcpHeader::parse(&bytes)
        };
        let of = |h: TcpHeader| [h.cwr, h.ece, h.urg, h.ack, h.psh, h.rst, h.syn, h.fin];
        for bit in 0..8 {
            assert_eq!(of(with(0x80 >> bit)), core::array::from_fn(|i| i == bit));
        }
    }

    #[test]
    fn sack_blocks_round_trip_and_wrong_lengths_are_unknown() {
        let block = SackBlock { left_edge: 1, right_edge: 0x0203_0405 };
        let sack = TcpOption::Sack(SackBlocks::new(&[block, block]).unwrap());
        let mut out = [0; 18];
        sack.write(&mut out).unwrap();
        assert_eq!(out[..10], [5, 18, 0, 0, 0, 1, 2, 3, 4, 5]);
        assert_eq!(TcpOption::read(&out), Ok(Some((sack, &[][..]))));
        assert!(SackBlocks::new(&[]).is_none() && SackBlocks::new(&[block; 5]).is_none());

        for bytes in [&[5, 2][..], &[5, 3, 0], &[2, 3, 0], &[3, 2], &[4, 3, 0], &[8, 2]] {
            let (option, _) = TcpOption::read(bytes).unwrap().unwrap();
            assert!(matches!(option, TcpOption::Unknown { .. }), "{bytes:?}");
        }
    }

    #[test]
    fn headers_that_do_not_fit_are_refused() {
        let mut bytes = [0; 24];
        for (offset, fits) in [(4, false), (5, true), (6, true), (7, false), (15, false)] {
            bytes[12] = offset << 4;
            assert_eq!(TcpSegment::parse(&bytes).is_ok(), fits, "offset {offset}");
        }
        let long = [TcpOption::Unknown { kind: TcpOptionKind(99), data: &[0; 39] }];
        assert!(TcpHeader::default().write_segment(&long, 0, &mut [0; 99]).is_err());
        assert!(TcpHeader::default().write_segment(&[], 5, &mut [0; 24]).is_err());
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_never_panics(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0u8..11], 0..70),
        ) {
            if let Ok(segment) = TcpSegment::parse(&bytes) {
                segment.checksum_ok(&PSEUDO);
                for option in segment.options().flatten() {
                    let mut out = std::vec![0; option.wire_len()];
                    option.write(&mut out).unwrap();
                    prop_assert_eq!(TcpOption::read(&out), Ok(Some((option, &[][..]))));
                }
            }
            let walk: Vec<_> = Items::<TcpOption<'_>>::new(&bytes).collect();
            prop_assert!(walk.len() <= bytes.len() / 2 + 1);
        }
    }
}
