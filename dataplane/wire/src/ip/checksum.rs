//! The Internet checksum: sums, pseudo-headers, and incremental updates (RFC 1071, RFC 1624; RFC
//! 8200 8.1).
//!
//! A ones' complement sum does not depend on the order or the byte order of the words (RFC 1071 2).
//! So this module sums words in native byte order, as two 32-bit halves of each 64-bit word, and
//! converts the sum to network order once at the end. Parts of a message can be summed separately:
//! the sum of a part that begins at an odd offset is byte-swapped.

use super::IpProtocol;
use crate::layout::WireError;
use core::net::{Ipv4Addr, Ipv6Addr};

/// The sum of a byte string, which [`Sum::then`] can extend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    folded: u16,
    /// Whether the number of bytes so far is odd, so that the next byte is the low half of a word.
    odd: bool,
}

impl Sum {
    /// Sums `bytes`. If their number is odd, they are padded with a zero byte.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        Self { folded: u16::from_be(fold(native_sum(bytes))), odd: !bytes.len().is_multiple_of(2) }
    }

    /// The sum of these bytes followed by the bytes of `next`.
    #[inline]
    #[must_use]
    pub const fn then(self, next: Self) -> Self {
        let next_folded = if self.odd { next.folded.swap_bytes() } else { next.folded };
        Self { folded: fold(self.folded as u64 + next_folded as u64), odd: self.odd != next.odd }
    }

    /// The value for the checksum field, which must have been zero in this sum.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.folded
    }

    /// Whether the checksum matches, if the bytes include the checksum field.
    #[inline]
    pub const fn is_ok(self) -> bool {
        self.folded == u16::MAX
    }
}

/// The pseudo-header of transport checksums (RFC 768, RFC 9293 3.1, RFC 8200 8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PseudoHeader {
    V4 {
        source: Ipv4Addr,
        destination: Ipv4Addr,
    },
    V6 {
        source: Ipv6Addr,
        /// The final destination, even if there is a routing header.
        destination: Ipv6Addr,
    },
}

impl PseudoHeader {
    /// The sum of the pseudo-header for `len` bytes of `protocol`.
    ///
    /// The IPv4 and IPv6 forms differ in the order and padding of protocol and length, which does
    /// not change the sum.
    #[inline]
    pub fn sum(&self, protocol: IpProtocol, len: usize) -> Sum {
        let addresses = match self {
            Self::V4 { source, destination } => {
                Sum::of(&source.octets()).then(Sum::of(&destination.octets()))
            }
            Self::V6 { source, destination } => {
                Sum::of(&source.octets()).then(Sum::of(&destination.octets()))
            }
        };
        let rest = u64::from(protocol.0) + len as u64;
        addresses.then(Sum { folded: fold(rest), odd: false })
    }
}

/// The checksum after a covered 16-bit field changes from `old` to `new` (RFC 1624 3, equation 3).
#[inline]
pub const fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(!checksum as u64 + !old as u64 + new as u64)
}

/// Computes the checksum of `bytes` and stores it at offset `at`. `before` is the sum of other
/// covered bytes, such as a pseudo-header.
pub(super) fn fill(
    format: &'static str,
    bytes: &mut [u8],
    at: usize,
    before: Sum,
) -> Result<u16, WireError> {
    let have = bytes.len();
    let truncated = WireError::Truncated { format, needed: at + 2, have };
    *bytes[at.min(have)..].first_chunk_mut().ok_or(truncated)? = [0; 2];
    let checksum = before.then(Sum::of(bytes)).checksum();
    bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    Ok(checksum)
}

/// Sums words in native byte order. The sum cannot overflow below 2^34 bytes, more than any packet
/// has.
#[inline]
fn native_sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let (mut low, mut high) = (0, 0);
    for word in words {
        let word = u64::from_ne_bytes(*word);
        low += word & 0xffff_ffff;
        high += word >> 32;
    }
    // At most 4 + 2 + 1 bytes are left. No loop here, because the compiler would unroll it as if
    // for long inputs.
    let (four, rest) = rest
        .split_first_chunk()
        .map_or((0, rest), |(own, rest)| (u64::from(u32::from_ne_bytes(*own)), rest));
    let (two, rest) = rest
        .split_first_chunk()
        .map_or((0, rest), |(own, rest)| (u64::from(u16::from_ne_bytes(*own)), rest));
    let one = rest.first().map_or(0, |&byte| u64::from(u16::from_ne_bytes([byte, 0])));
    low + high + four + two + one
}

/// Adds the carries back until the sum fits in 16 bits.
#[inline]
const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    /// RFC 1071 word by word, in network order, with immediate carries.
    fn naive(bytes: &[u8]) -> u16 {
        bytes.chunks(2).fold(0, |sum: u16, pair| {
            let word = u16::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u16::from(low));
            let (sum, carry) = sum.overflowing_add(word);
            sum + u16::from(carry)
        })
    }

    #[test]
    fn example_of_rfc_1071() {
        let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!((sum.folded, sum.checksum()), (0xddf2, 0x220d));
        assert!(sum.then(Sum::of(&[0x22, 0x0d])).is_ok());
    }

    #[test]
    fn example_of_rfc_1624() {
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn no_carry_is_lost() {
        let bytes = vec![0xff; 65_535];
        assert_eq!(Sum::of(&bytes).folded, naive(&bytes));
    }

    #[test]
    fn pseudo_headers_are_the_sums_of_their_figures() {
        let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let v4 = PseudoHeader::V4 { source, destination }.sum(IpProtocol::UDP, 0xfff0);
        assert_eq!(v4.folded, naive(&[10, 0, 0, 1, 10, 0, 0, 2, 0, 17, 0xff, 0xf0]));

        let (source, destination) =
            (Ipv6Addr::LOCALHOST, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 9));
        let v6 = PseudoHeader::V6 { source, destination }.sum(IpProtocol::ICMPV6, 0x0001_2345);
        let figure =
            [&source.octets()[..], &destination.octets(), &[0, 1, 0x23, 0x45, 0, 0, 0, 58]];
        assert_eq!(v6.folded, naive(&figure.concat()));
    }

    proptest! {
        #[test]
        fn sums_agree_with_the_oracle_at_every_alignment(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            skip in 0usize..9,
        ) {
            let bytes = &bytes[skip.min(bytes.len())..];
            prop_assert_eq!(Sum::of(bytes).folded, naive(bytes));
        }

        #[test]
        fn parts_sum_to_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            mut cuts in proptest::collection::vec(0usize..100, 0..5),
        ) {
            cuts.retain(|&cut| cut <= bytes.len());
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|cut| Sum::of(&bytes[cut[0]..cut[1]]));
            prop_assert_eq!(parts.fold(Sum::default(), Sum::then), Sum::of(&bytes));
        }

        /// The bytes are not all zero, because ones' complement has two zeros, and RFC 1624 gives
        /// the other one. An IP header is never all zero.
        #[test]
        fn an_update_is_as_good_as_a_new_sum(
            mut bytes in proptest::collection::vec(any::<u8>(), 8..40),
            at in prop_oneof![Just(0usize), Just(2)],
            new: u16,
        ) {
            bytes.truncate(bytes.len() & !1);
            bytes[7] |= 1;
            let old = u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap());
            let before = Sum::of(&bytes).checksum();
            bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update_u16(before, old, new), Sum::of(&bytes).checksum());
        }

        #[test]
        fn a_filled_in_checksum_is_ok(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..60),
            at in 0usize..20,
        ) {
            let before = Sum::of(&[1, 2]);
            let at = at * 2;
            let filled = fill("test", &mut bytes, at, before);
            prop_assert_eq!(filled.is_ok(), at + 2 <= bytes.len());
            if filled.is_ok() {
                prop_assert!(before.then(Sum::of(&bytes)).is_ok());
            }
        }
    }
}
