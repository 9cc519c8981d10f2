//! IPv6 (RFC 8200).
//!
//! Here, the payload is everything behind the fixed header, including extension headers;
//! [`super::ipv6_ext`] finds the upper layer in it. Jumbograms (RFC 2675) are not supported,
//! because no link of Pollux carries them.

use super::IpProtocol;
use super::checksum::PseudoHeader;
use super::{split, split_mut};
use crate::layout::{WireError, split_header};
use core::net::Ipv6Addr;

/// The minimum MTU of a link for IPv6, in bytes (RFC 8200 5).
pub const IPV6_MTU_MIN: u32 = 1280;

layout! {
    /// The fixed header (RFC 8200 3).
    pub struct Ipv6Header: 40 bytes {
        0:0    4  version: u8,
        0:4    6  dscp: u8,
        1:2    2  ecn: u8,
        /// Packets with the same label and addresses belong to one flow (RFC 6437).
        1:4   20  flow_label: u32,
        /// Number of bytes behind this header.
        4:0   16  payload_length: u16,
        6:0    8  next_header: IpProtocol,
        7:0    8  hop_limit: u8,
        8:0  128  source: Ipv6Addr,
        /// The final destination; with a routing header, the next destination.
        24:0 128  destination: Ipv6Addr,
    }
}

impl Ipv6Header {
    const HOP_LIMIT_AT: usize = 7;

    /// The pseudo-header of transport checksums, for a packet without routing header.
    #[inline]
    pub const fn pseudo_header(&self) -> PseudoHeader {
        PseudoHeader::V6 { source: self.source, destination: self.destination }
    }

    /// Writes the header of a packet with a payload of `payload_len` bytes; returns the space for
    /// that payload. This function sets version and length.
    pub fn write_packet<'a>(
        &self,
        payload_len: usize,
        out: &'a mut [u8],
    ) -> Result<&'a mut [u8], WireError> {
        let payload_length = u16::try_from(payload_len)
            .map_err(|_| WireError::BadLength { format: "Ipv6Header" })?;
        let (packet, _) = split_mut("Ipv6Header", out, Self::LEN + payload_len)?;
        Self { version: 6, payload_length, ..*self }.write(packet)
    }

    /// Decrements the hop limit of a header in place; returns the new value. A forwarder first
    /// checks that the hop limit is greater than 1.
    #[inline]
    pub fn decrement_hop_limit(header: &mut [u8; Self::LEN]) -> u8 {
        header[Self::HOP_LIMIT_AT] = header[Self::HOP_LIMIT_AT].saturating_sub(1);
        header[Self::HOP_LIMIT_AT]
    }
}

/// A view of a packet with valid version and length. It parses the header on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Packet<'a> {
    fixed: &'a [u8; Ipv6Header::LEN],
    payload: &'a [u8],
}

impl<'a> Ipv6Packet<'a> {
    /// Parses the packet at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, rest) = split_header("Ipv6Header", bytes)?;
        let header = Ipv6Header::parse(fixed);
        if header.version != 6 {
            return Err(WireError::BadValue { format: "Ipv6Packet", field: "version" });
        }
        let (payload, _) = split("Ipv6Packet", rest, usize::from(header.payload_length))?;
        Ok(Self { fixed, payload })
    }

    #[inline(always)]
    pub fn header(&self) -> Ipv6Header {
        Ipv6Header::parse(self.fixed)
    }

    /// Extension headers and payload, without link padding.
    #[inline(always)]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn packet() -> Vec<u8> {
        let mut bytes = std::vec![0x6a, 0xb1, 0x23, 0x45, 0, 4, 58, 255];
        bytes.extend("fe80::1".parse::<Ipv6Addr>().unwrap().octets());
        bytes.extend("ff02::2".parse::<Ipv6Addr>().unwrap().octets());
        bytes.extend([1, 2, 3, 4]);
        bytes
    }

    #[test]
    fn fields_are_where_the_figure_has_them() {
        let mut bytes = packet();
        bytes.push(0xee);
        let header = Ipv6Header {
            version: 6,
            dscp: 0x2a,
            ecn: 3,
            flow_label: 0x12345,
            payload_length: 4,
            next_header: IpProtocol::ICMPV6,
            hop_limit: 255,
            source: "fe80::1".parse().unwrap(),
            destination: "ff02::2".parse().unwrap(),
        };
        let parsed = Ipv6Packet::parse(&bytes).unwrap();
        assert_eq!((parsed.header(), parsed.payload()), (header, &[1, 2, 3, 4][..]));

        let mut out = [0; 50];
        header.write_packet(4, &mut out).unwrap().copy_from_slice(parsed.payload());
        assert_eq!(out[..44], packet());
        assert_eq!(Ipv6Header::decrement_hop_limit(out.first_chunk_mut().unwrap()), 254);
        assert_eq!(out[7], 254);
    }

    #[test]
    fn lengths_and_versions_that_do_not_fit_are_refused() {
        let bytes = packet();
        for len in 0..bytes.len() {
            assert!(Ipv6Packet::parse(&bytes[..len]).is_err());
        }
        let mut other = bytes;
        other[0] = 0x45;
        assert!(Ipv6Packet::parse(&other).is_err());
        let header = Ipv6Header::default();
        assert!(header.write_packet(65_536, &mut std::vec![0; 65_576]).is_err());
        assert!(header.write_packet(1, &mut [0; 40]).is_err());
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Ipv6Packet::parse(&bytes);
        }
    }
}
