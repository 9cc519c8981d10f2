//! ACK extended transport header: the result of a request at the responder (IBA 9.3.5, 9.7.5.1.2).

use crate::{layout::Field, psn::Psn};
use core::time::Duration;

layout! {
    /// In acknowledgements, and in first, last and only responses to RDMA READ (IBA 9.3.5).
    pub struct Aeth: 4 bytes {
        0:0    8  syndrome: Syndrome,
        /// Number of messages that the responder has completed, modulo 2^24.
        1:0   24  msn: Psn,
    }
}

/// The syndrome of an acknowledgement: three bits of kind and five bits of value (IBA 9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All requests up to this PSN are complete; with the responder's end-to-end credits.
    Ack(Credits),
    /// No receive is posted; the requester must retry after this time.
    RnrNak(RnrTimer),
    Nak(NakCode),
    /// A syndrome of a reserved kind; receivers drop the packet.
    Reserved(u8),
}

impl Field for Syndrome {
    const WIDTH_MAX: usize = 8;

    #[inline(always)]
    fn load(bytes: &[u8], bit: usize, width: usize) -> Self {
        let byte = u8::load(bytes, bit, width);
        match byte >> 5 {
            0b000 => Self::Ack(Credits(byte & 31)),
            0b001 => Self::RnrNak(RnrTimer(byte & 31)),
            0b011 => Self::Nak(NakCode(byte & 31)),
            _ => Self::Reserved(byte),
        }
    }

    #[inline(always)]
    fn store(self, bytes: &mut [u8], bit: usize, width: usize) {
        let byte = match self {
            Self::Ack(Credits(code)) => code & 31,
            Self::RnrNak(RnrTimer(code)) => 0b001 << 5 | code & 31,
            Self::Nak(NakCode(code)) => 0b011 << 5 | code & 31,
            Self::Reserved(byte) => byte,
        };
        byte.store(bytes, bit, width);
    }
}

codes! {
    /// The reason for a NAK (IBA table 46).
    pub struct NakCode(u8) {
        PSN_SEQUENCE_ERROR = 0,
        INVALID_REQUEST = 1,
        REMOTE_ACCESS_ERROR = 2,
        REMOTE_OPERATIONAL_ERROR = 3,
        INVALID_RD_REQUEST = 4,
    }
}

/// End-to-end credits: receives posted at the responder, as a five-bit code (IBA table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits(pub u8);

/// Number of receives by code: 2^n and 1.5 * 2^n alternate.
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

impl Credits {
    /// The code for no credit limit, which a queue pair with a shared receive queue sends.
    pub const UNLIMITED: Self = Self(31);

    /// The number of receives; `None` if there is no credit limit.
    pub fn count(self) -> Option<u16> {
        CREDITS.get(usize::from(self.0)).copied()
    }

    /// The largest code for at most `receives` receives.
    pub fn promise(receives: usize) -> Self {
        let codes = CREDITS.iter().take_while(|&&count| usize::from(count) <= receives);
        // The count of code 0 is 0, so at least one code qualifies.
        Self(codes.count() as u8 - 1)
    }
}

/// How long a requester waits before it retries after an RNR NAK, as a five-bit code (IBA table
/// 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(pub u8);

/// Durations by code, in units of 10 us. Code 0 is the longest, not the shortest.
const RNR_TENS_OF_US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    pub fn duration(self) -> Duration {
        Duration::from_micros(u64::from(RNR_TENS_OF_US[usize::from(self.0 & 31)]) * 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn every_syndrome_round_trips() {
        for byte in 0..=255 {
            let aeth = Aeth::parse(&[byte, 1, 2, 3]);
            assert_eq!(aeth.emit(), [byte, 1, 2, 3], "{:?}", aeth.syndrome);
        }
    }

    #[test]
    fn kinds_are_in_the_top_bits() {
        let syndrome = |byte| Aeth::parse(&[byte, 0, 0, 0]).syndrome;
        assert_eq!(syndrome(0x1f), Syndrome::Ack(Credits::UNLIMITED));
        assert_eq!(syndrome(0x2e), Syndrome::RnrNak(RnrTimer(14)));
        assert_eq!(syndrome(0x60), Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR));
        assert_eq!(syndrome(0x64), Syndrome::Nak(NakCode::INVALID_RD_REQUEST));
        assert_eq!(syndrome(0x40), Syndrome::Reserved(0x40));
        assert_eq!(syndrome(0x80), Syndrome::Reserved(0x80));
    }

    #[test]
    fn rnr_code_zero_is_the_longest() {
        let times: Vec<_> = (0..32).map(|code| RnrTimer(code).duration().as_micros()).collect();
        assert_eq!(times[..4], [655_360, 10, 20, 30]);
        assert_eq!(times[12..16], [640, 960, 1280, 1920]);
        assert_eq!(times[28..], [163_840, 245_760, 327_680, 491_520]);
        assert!(times[1..].is_sorted());
    }

    #[test]
    fn credits_never_promise_too_much() {
        assert_eq!(Credits::UNLIMITED.count(), None);
        assert_eq!(Credits(0).count(), Some(0));
        assert_eq!(Credits(30).count(), Some(32768));
        for receives in 0..70_000 {
            let promised = Credits::promise(receives).count().unwrap();
            assert!(usize::from(promised) <= receives);
            assert!(receives < 2 || usize::from(promised) * 2 > receives || promised == 32768);
        }
    }
}
