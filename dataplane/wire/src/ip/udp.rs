//! UDP (RFC 768; RFC 8200 8.1 for the checksum over IPv6).

use super::checksum::{self, PseudoHeader, Sum};
use super::{IpProtocol, split, split_mut};
use crate::layout::{WireError, split_header};

layout! {
    pub struct UdpHeader: 8 bytes {
        0:0   16  source_port: u16,
        2:0   16  destination_port: u16,
        /// Length of header and payload in bytes.
        4:0   16  length: u16,
        /// Zero if the sender computed no checksum.
        6:0   16  checksum: u16,
    }
}

impl UdpHeader {
    const CHECKSUM_AT: usize = 6;

    /// Writes the header of a datagram with a payload of `payload_len` bytes; returns the space for
    /// that payload. This function sets the length, and a zero checksum for [`fill_checksum`] to
    /// compute.
    pub fn write_datagram<'a>(
        &self,
        payload_len: usize,
        out: &'a mut [u8],
    ) -> Result<&'a mut [u8], WireError> {
        let length = u16::try_from(Self::LEN + payload_len)
            .map_err(|_| WireError::BadLength { format: "UdpHeader" })?;
        let (datagram, _) = split_mut("UdpHeader", out, usize::from(length))?;
        Self { length, checksum: 0, ..*self }.write(datagram)
    }
}

/// A view of a datagram with valid length. It parses the header on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpDatagram<'a> {
    fixed: &'a [u8; UdpHeader::LEN],
    payload: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> UdpDatagram<'a> {
    /// Parses the datagram at the front of `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, _) = split_header("UdpHeader", bytes)?;
        let length = usize::from(UdpHeader::parse(fixed).length);
        let (bytes, _) = split("UdpDatagram", bytes, length)?;
        match bytes.get(UdpHeader::LEN..) {
            Some(payload) => Ok(Self { fixed, payload, bytes }),
            None => Err(WireError::BadLength { format: "UdpDatagram" }),
        }
    }

    #[inline(always)]
    pub fn header(&self) -> UdpHeader {
        UdpHeader::parse(self.fixed)
    }

    #[inline(always)]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Whether the checksum matches. Over IPv4, a zero checksum is valid, because the sender need
    /// not compute one.
    pub fn checksum_ok(&self, pseudo: &PseudoHeader) -> bool {
        match (self.header().checksum, pseudo) {
            (0, PseudoHeader::V4 { .. }) => true,
            (0, PseudoHeader::V6 { .. }) => false,
            _ => {
                let before = pseudo.sum(IpProtocol::UDP, self.bytes.len());
                before.then(Sum::of(self.bytes)).is_ok()
            }
        }
    }
}

pub fn fill_checksum(bytes: &mut [u8], pseudo: &PseudoHeader) -> Result<(), WireError> {
    let before = pseudo.sum(IpProtocol::UDP, bytes.len());
    if checksum::fill("UdpHeader", bytes, UdpHeader::CHECKSUM_AT, before)? == 0 {
        // Zero would mean no checksum. All ones is the same value in ones' complement.
        bytes[UdpHeader::CHECKSUM_AT..UdpHeader::LEN].fill(0xff);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    const V4: PseudoHeader = PseudoHeader::V4 {
        source: Ipv4Addr::new(10, 0, 0, 1),
        destination: Ipv4Addr::new(10, 0, 0, 2),
    };
    const V6: PseudoHeader =
        PseudoHeader::V6 { source: Ipv6Addr::LOCALHOST, destination: Ipv6Addr::LOCALHOST };

    fn datagram(data: [u8; 2]) -> [u8; 10] {
        let header =
            UdpHeader { source_port: 0x1000, destination_port: 0x2000, ..UdpHeader::default() };
        let mut out = [0xff; 10];
        header.write_datagram(2, &mut out).unwrap().copy_from_slice(&data);
        fill_checksum(&mut out, &V4).unwrap();
        out
    }

    #[test]
    fn datagram_matches_bytes_made_by_hand() {
        let bytes = datagram(*b"hi");
        // 0a00 + 1 + 0a00 + 2 + 11 + a + 1000 + 2000 + a + 6869 = ac91; the checksum is the
        // complement.
        assert_eq!(bytes, [0x10, 0, 0x20, 0, 0, 10, 0x53, 0x6e, b'h', b'i']);
        let longer = [&bytes[..], &[0xee]].concat();
        let parsed = UdpDatagram::parse(&longer).unwrap();
        assert_eq!((parsed.payload(), parsed.header().length), (&b"hi"[..], 10));
        assert!(parsed.checksum_ok(&V4) && !parsed.checksum_ok(&V6));
    }

    #[test]
    fn a_sum_of_zero_is_sent_as_ones_and_zero_is_none() {
        // This payload brings the sum of the example above to ffff.
        let mut bytes = datagram([0xbb, 0xd7]);
        assert_eq!(bytes[6..8], [0xff, 0xff]);
        assert!(UdpDatagram::parse(&bytes).unwrap().checksum_ok(&V4));
        bytes[6..8].fill(0);
        let none = UdpDatagram::parse(&bytes).unwrap();
        assert!(none.checksum_ok(&V4) && !none.checksum_ok(&V6));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let bytes = datagram(*b"hi");
        for length in [0, 7, 11] {
            let mut other = bytes;
            other[5] = length;
            assert!(UdpDatagram::parse(&other).is_err());
        }
        assert!(UdpDatagram::parse(&bytes[..7]).is_err());
        assert!(UdpHeader::default().write_datagram(65_528, &mut std::vec![0; 65_536]).is_err());
        assert!(fill_checksum(&mut [0; 7], &V4).is_err());
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_never_panics(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..40),
            short: bool,
        ) {
            if let (true, [_, _, _, _, high, ..]) = (short, &mut bytes[..]) {
                *high = 0;
            }
            if let Ok(datagram) = UdpDatagram::parse(&bytes) {
                datagram.checksum_ok(&V4);
                let length = usize::from(datagram.header().length);
                prop_assert_eq!(datagram.payload().len() + UdpHeader::LEN, length);
            }
        }
    }
}
