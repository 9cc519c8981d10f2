//! IPv4 (RFC 791; RFC 2474 and 3168 for the second byte, RFC 6864 for the identification).
//!
//! The forwarding path parses every packet as an [`Ipv4Packet`], which checks only the version and
//! the lengths. Bytes behind the total length are link padding.

use super::IpProtocol;
use super::checksum::{PseudoHeader, Sum, update_u16};
use super::list::{Item, Items};
use super::option::{self, RawOption};
use super::{split, split_mut};
use crate::layout::{WireError, split_header};
use core::net::Ipv4Addr;

/// The minimum MTU of a link for IPv4, in bytes (RFC 791 3.2).
pub const IPV4_MTU_MIN: u32 = 68;

layout! {
    /// The fixed part of the header (RFC 791 3.1).
    pub struct Ipv4Header: 20 bytes {
        0:0    4  version: u8,
        /// Length of the header in 32-bit words, options included.
        0:4    4  ihl: u8,
        1:0    6  dscp: u8,
        1:6    2  ecn: u8,
        /// Length of the packet in bytes.
        2:0   16  total_length: u16,
        4:0   16  identification: u16,
        6:1    1  dont_fragment: bool,
        6:2    1  more_fragments: bool,
        /// Offset of this fragment's payload, in units of 8 bytes.
        6:3   13  fragment_offset: u16,
        8:0    8  ttl: u8,
        9:0    8  protocol: IpProtocol,
        /// Covers the header and its options.
        10:0  16  header_checksum: u16,
        12:0  32  source: Ipv4Addr,
        16:0  32  destination: Ipv4Addr,
    }
}

impl Ipv4Header {
    pub const LEN_MAX: usize = 60;

    const TTL_AT: usize = 8;
    const CHECKSUM_AT: usize = 10;

    /// Length of the header with its options, in bytes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.ihl as usize * 4
    }

    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    #[inline]
    pub const fn pseudo_header(&self) -> PseudoHeader {
        PseudoHeader::V4 { source: self.source, destination: self.destination }
    }

    /// Writes the header of a packet with `options` and a payload of `payload_len` bytes; returns
    /// the space for that payload. This function sets version, lengths and checksum.
    pub fn write_packet<'a>(
        &self,
        options: &[Ipv4Option<'_>],
        payload_len: usize,
        out: &'a mut [u8],
    ) -> Result<&'a mut [u8], WireError> {
        let header_len = Self::LEN + option::padded_len(options);
        let total_length = u16::try_from(header_len + payload_len);
        let (Ok(total_length), true) = (total_length, header_len <= Self::LEN_MAX) else {
            return Err(WireError::BadLength { format: "Ipv4Header" });
        };
        let (packet, _) = split_mut("Ipv4Header", out, header_len + payload_len)?;
        let (head, payload) = packet.split_at_mut(header_len);
        let ihl = (header_len / 4) as u8;
        let own = Self { version: 4, ihl, total_length, header_checksum: 0, ..*self };
        option::write_padded(options, own.write(head)?)?;
        let checksum = Sum::of(head).checksum();
        head[Self::CHECKSUM_AT..Self::CHECKSUM_AT + 2].copy_from_slice(&checksum.to_be_bytes());
        Ok(payload)
    }

    /// Decrements the TTL of a header in place and updates its checksum; returns the new TTL. A
    /// forwarder first checks that the TTL is greater than 1.
    #[inline]
    pub fn decrement_ttl(header: &mut [u8; Self::LEN]) -> u8 {
        let Self { ttl: old, protocol, header_checksum, .. } = Self::parse(header);
        let ttl = old.saturating_sub(1);
        // The checksum covers 16-bit words; the TTL shares a word with the protocol.
        let word = |ttl| u16::from_be_bytes([ttl, protocol.0]);
        let checksum = update_u16(header_checksum, word(old), word(ttl));
        header[Self::TTL_AT] = ttl;
        header[Self::CHECKSUM_AT..Self::CHECKSUM_AT + 2].copy_from_slice(&checksum.to_be_bytes());
        ttl
    }
}

/// A view of a packet with valid version and lengths. It parses the header on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Packet<'a> {
    fixed: &'a [u8; Ipv4Header::LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4Packet<'a> {
    /// Parses the packet at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, _) = split_header("Ipv4Header", bytes)?;
        let header = Ipv4Header::parse(fixed);
        if header.version != 4 {
            return Err(WireError::BadValue { format: "Ipv4Packet", field: "version" });
        }
        let (packet, _) = split("Ipv4Packet", bytes, usize::from(header.total_length))?;
        let parts = packet.split_at_checked(header.header_len());
        match parts.and_then(|(head, payload)| Some((head.split_first_chunk()?, payload))) {
            Some(((fixed, options), payload)) => Ok(Self { fixed, options, payload }),
            None => Err(WireError::BadLength { format: "Ipv4Packet" }),
        }
    }

    #[inline(always)]
    pub fn header(&self) -> Ipv4Header {
        Ipv4Header::parse(self.fixed)
    }

    /// The options; errors in them show during iteration.
    #[inline]
    pub fn options(&self) -> Items<'a, Ipv4Option<'a>> {
        Items::new(self.options)
    }

    /// The payload, without link padding.
    #[inline(always)]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    #[inline]
    pub fn checksum_ok(&self) -> bool {
        // Most headers have no options, and the sum over a constant length needs no loop.
        let sum = Sum::of(self.fixed);
        match self.options {
            [] => sum.is_ok(),
            options => sum.then(Sum::of(options)).is_ok(),
        }
    }
}

codes! {
    /// Option kinds (IANA). An option whose kind has the top bit set is copied to all fragments.
    pub struct Ipv4OptionKind(u8) {
        END = 0,
        NO_OPERATION = 1,
        RECORD_ROUTE = 7,
        TIMESTAMP = 68,
        LOOSE_SOURCE_ROUTE = 131,
        STRICT_SOURCE_ROUTE = 137,
        ROUTER_ALERT = 148,
    }
}

/// An option that is not padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Option<'a> {
    pub kind: Ipv4OptionKind,
    /// The value, without kind and length.
    pub data: &'a [u8],
}

impl Ipv4Option<'_> {
    /// Asks every router to examine the packet (RFC 2113). IGMP messages have it.
    pub const ROUTER_ALERT: Self = Self { kind: Ipv4OptionKind::ROUTER_ALERT, data: &[0, 0] };
}

impl<'a> Item<'a> for Ipv4Option<'a> {
    fn read(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, WireError> {
        let option = RawOption::read("Ipv4Option", bytes)?;
        Ok(option
            .map(|(raw, rest)| (Self { kind: Ipv4OptionKind(raw.kind), data: raw.data }, rest)))
    }

    fn wire_len(&self) -> usize {
        2 + self.data.len()
    }

    fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        RawOption { kind: self.kind.0, data: self.data }.write("Ipv4Option", out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// The header of an echo request of 84 bytes, with a valid checksum.
    const HEADER: [u8; 20] = [
        0x45, 0x00, 0x00, 0x54, 0xa6, 0xf2, 0x40, 0x00, 0x40, 0x01, //
        0x7f, 0xb4, 10, 0, 0, 1, 10, 0, 0, 2,
    ];

    fn packet() -> Vec<u8> {
        let mut packet = HEADER.to_vec();
        packet.resize(84, 0xaa);
        packet
    }

    #[test]
    fn header_of_an_echo_request() {
        let mut bytes = packet();
        bytes.push(0xee);
        let parsed = Ipv4Packet::parse(&bytes).unwrap();
        let header = Ipv4Header {
            version: 4,
            ihl: 5,
            total_length: 84,
            identification: 0xa6f2,
            dont_fragment: true,
            ttl: 64,
            protocol: IpProtocol::ICMPV4,
            header_checksum: 0x7fb4,
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(10, 0, 0, 2),
            ..Ipv4Header::default()
        };
        assert_eq!(parsed.header(), header);
        assert_eq!(parsed.payload(), [0xaa; 64], "without what the link added");
        assert!(parsed.checksum_ok() && !header.is_fragment());
        assert_eq!(parsed.options().count(), 0);

        let mut out = [0; 90];
        header.write_packet(&[], 64, &mut out).unwrap().fill(0xaa);
        assert_eq!(out[..84], bytes[..84]);
    }

    #[test]
    fn options_are_padded_and_walked() {
        let route = [8, 10, 0, 0, 9, 0, 0, 0, 0];
        let record = Ipv4Option { kind: Ipv4OptionKind::RECORD_ROUTE, data: &route };
        let options = [Ipv4Option::ROUTER_ALERT, record];
        let mut out = [0xff; 60];
        let header = Ipv4Header::default();
        assert_eq!(header.write_packet(&options, 3, &mut out).unwrap().len(), 3);
        let parsed = Ipv4Packet::parse(&out).unwrap();
        assert_eq!((parsed.header().ihl, parsed.header().total_length), (9, 39));
        assert_eq!(out[20..36], [148, 4, 0, 0, 7, 11, 8, 10, 0, 0, 9, 0, 0, 0, 0, 0]);
        assert!(parsed.options().eq(options.map(Ok)) && parsed.checksum_ok());
    }

    #[test]
    fn options_end_at_the_end_or_at_the_first_bad_one() {
        let walk = |bytes| Items::<Ipv4Option<'_>>::new(bytes).collect::<Vec<_>>();
        assert_eq!(walk(&[1, 1, 1, 1]), []);
        assert_eq!(walk(&[0, 148, 4, 0]), []);
        assert_eq!(walk(&[1, 148, 4, 0, 0, 0]), [Ok(Ipv4Option::ROUTER_ALERT)]);
        for bad in [&[7][..], &[7, 0], &[7, 1, 7, 2], &[7, 3]] {
            assert!(matches!(walk(bad)[..], [Err(_)]), "{bad:?}");
        }
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        for (byte, value) in [(0, 0x44), (0, 0x65), (3, 19), (3, 85), (2, 0xff)] {
            let mut bytes = packet();
            bytes[byte] = value;
            assert!(Ipv4Packet::parse(&bytes).is_err(), "byte {byte} is {value}");
        }
        let header = Ipv4Header::default();
        let too_long = [Ipv4Option { kind: Ipv4OptionKind::TIMESTAMP, data: &[0; 39] }];
        let bad_length = Err(WireError::BadLength { format: "Ipv4Header" });
        assert_eq!(header.write_packet(&too_long, 0, &mut [0; 99]), bad_length);
        assert_eq!(header.write_packet(&[], 65_516, &mut [0; 99]), bad_length);
        assert!(header.write_packet(&[], 10, &mut [0; 29]).is_err());
    }

    #[test]
    fn a_hop_costs_one_and_keeps_the_checksum_right() {
        for ttl in 0..=255 {
            let header = Ipv4Header { ttl, protocol: IpProtocol::UDP, ..Ipv4Header::default() };
            let mut out = [0; 20];
            header.write_packet(&[], 0, &mut out).unwrap();
            assert_eq!(Ipv4Header::decrement_ttl(&mut out), ttl.saturating_sub(1));
            let parsed = Ipv4Packet::parse(&out).unwrap();
            assert!(parsed.checksum_ok() && parsed.header().ttl == ttl.saturating_sub(1));
        }
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_never_panics(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..100),
            like_ipv4: bool,
        ) {
            if let (true, [first, _, high, ..]) = (like_ipv4, &mut bytes[..]) {
                (*first, *high) = (0x40 | *first & 0x0f, 0);
            }
            if let Ok(packet) = Ipv4Packet::parse(&bytes) {
                prop_assert!(packet.options().count() <= 40);
                packet.checksum_ok();
            }
        }
    }
}
