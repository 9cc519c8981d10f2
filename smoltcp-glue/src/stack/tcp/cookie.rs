//! SYN cookies (RFC 4987 3.6): half-open connections without state.
//!
//! ```text
//!   initial sequence number of the answer: 24 bits of a keyed hash | 8 bits of options
//!   hash of: addresses and ports, the peer's sequence number, the options, the epoch
//! ```
//!
//! A listener keeps a few half-open connections ([`super::listener`]). Further SYNs are answered
//! with a cookie as initial sequence number, which encodes their options. An acknowledgment of a
//! valid cookie creates the connection. So a SYN of a flood costs only an answer, and other clients
//! still connect. The MSS is rounded down to a value that a cookie can encode.
//!
//! smoltcp learns of such a connection only when it is established. Then a SYN that is rebuilt from
//! the cookie is passed to smoltcp, which answers with the cookie as initial sequence number. That
//! answer is discarded.

use super::isn::IsnSecret;
use super::segment::write_segment;
use crate::stack::outbox::Packet;
use pollux_verbs::time::Time;
use pollux_wire::ip::tcp::{TcpHeader, TcpOption, TcpSegment};
use std::net::SocketAddr;
use std::time::Duration;

/// The minimum validity of a cookie, and half of the maximum.
const EPOCH: Duration = Duration::from_secs(64);
const HASH_BITS: u32 = 24;
/// The MSS values that a cookie can encode: a lower bound, the default of RFC 9293 3.7.1, the IPv6
/// minimum, Ethernet, IPoIB datagrams (RFC 4391 9.1.2), jumbo frames, and IPoIB connections (RFC
/// 4755 5.1).
const LENGTHS: [u16; 8] = [216, 536, 1220, 1440, 1984, 2004, 8940, 65_460];
const NO_SCALE: u8 = 15;
/// The MSS of a SYN without the option (RFC 9293 3.7.1), and the maximum window scale (RFC 7323
/// 2.3).
pub(super) const MSS_DEFAULT: u16 = 536;
pub(super) const SCALE_MAX: u8 = 14;

/// The options of a SYN that a cookie encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) mss: u16,
    pub(super) scale: Option<u8>,
    pub(super) sack: bool,
}

impl Offer {
    /// The options of a SYN; `None` if the MSS is smaller than a cookie can encode.
    pub(super) fn of(syn: &TcpSegment<'_>) -> Option<Self> {
        let mut offer = Self { mss: MSS_DEFAULT, scale: None, sack: false };
        for option in syn.options().map_while(Result::ok) {
            match option {
                TcpOption::MaximumSegmentSize(bytes) if bytes > 0 => offer.mss = bytes,
                TcpOption::WindowScale(shift) => offer.scale = Some(shift.min(SCALE_MAX)),
                TcpOption::SackPermitted => offer.sack = true,
                _ => {}
            }
        }
        let rounded = LENGTHS.iter().rev().find(|bytes| **bytes <= offer.mss);
        rounded.map(|mss| Self { mss: *mss, ..offer })
    }

    fn bits(self) -> u8 {
        let length = LENGTHS.iter().position(|bytes| *bytes == self.mss).unwrap_or(0) as u8;
        length << 5 | self.scale.unwrap_or(NO_SCALE) << 1 | u8::from(self.sack)
    }

    fn of_bits(bits: u8) -> Self {
        let scale = bits >> 1 & 0xf;
        Self {
            mss: LENGTHS[usize::from(bits >> 5)],
            scale: (scale != NO_SCALE).then_some(scale),
            sack: bits & 1 == 1,
        }
    }

    pub(super) fn write(
        self,
        packet: &mut Packet,
        ends: (SocketAddr, SocketAddr),
        header: TcpHeader,
    ) -> Option<()> {
        let mss = TcpOption::MaximumSegmentSize(self.mss);
        match (self.scale.map(TcpOption::WindowScale), self.sack) {
            (None, false) => write_segment(packet, ends, header, &[mss]),
            (None, true) => write_segment(packet, ends, header, &[mss, TcpOption::SackPermitted]),
            (Some(scale), false) => write_segment(packet, ends, header, &[mss, scale]),
            (Some(scale), true) => {
                write_segment(packet, ends, header, &[mss, scale, TcpOption::SackPermitted])
            }
        }
    }
}

fn epoch(now: Time) -> u64 {
    now.nanos() / EPOCH.as_nanos() as u64
}

impl IsnSecret {
    /// The initial sequence number of the answer to a SYN.
    pub(super) fn cookie(
        &self,
        now: Time,
        ends: (SocketAddr, SocketAddr),
        peer_number: u32,
        offer: Offer,
    ) -> u32 {
        self.cookie_of(epoch(now), ends, peer_number, offer.bits())
    }

    /// The options of the SYN, if `cookie` is valid and recent.
    pub(super) fn offer(
        &self,
        now: Time,
        ends: (SocketAddr, SocketAddr),
        peer_number: u32,
        cookie: u32,
    ) -> Option<Offer> {
        let (now, bits) = (epoch(now), cookie as u8);
        let is_of = |epoch| self.cookie_of(epoch, ends, peer_number, bits) == cookie;
        let is_right = is_of(now) || now.checked_sub(1).is_some_and(is_of);
        is_right.then(|| Offer::of_bits(bits))
    }

    fn cookie_of(
        &self,
        epoch: u64,
        ends: (SocketAddr, SocketAddr),
        peer_number: u32,
        bits: u8,
    ) -> u32 {
        // The first word is never 0, unlike in the hash of an initial sequence number without a
        // cookie.
        let words = [epoch + 1, u64::from(peer_number) << 8 | u64::from(bits)];
        let hash = self.hash(ends, words) >> (u64::BITS - HASH_BITS);
        (hash as u32) << 8 | u32::from(bits)
    }
}

/// Until when the acknowledgment of a cookie sent at `now` is valid.
pub(super) fn good_until(now: Time) -> Time {
    now + 2 * EPOCH
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_verbs::rng::SeededRng;

    const NOW: Time = Time::START;

    fn ends() -> (SocketAddr, SocketAddr) {
        (SocketAddr::from(([10, 0, 0, 1], 80)), SocketAddr::from(([10, 0, 0, 2], 5000)))
    }

    #[test]
    fn a_cookie_encodes_the_options_of_a_syn() {
        let secret = IsnSecret::new(&mut SeededRng::secret(7));
        for mss in LENGTHS {
            for scale in (0..=SCALE_MAX).map(Some).chain([None]) {
                for sack in [false, true] {
                    let offer = Offer { mss, scale, sack };
                    let cookie = secret.cookie(NOW, ends(), 4711, offer);
                    assert_eq!(secret.offer(NOW, ends(), 4711, cookie), Some(offer));
                }
            }
        }
    }

    #[test]
    fn a_cookie_is_valid_for_its_addresses_number_and_epochs() {
        let secret = IsnSecret::new(&mut SeededRng::secret(7));
        let offer = Offer { mss: 2004, scale: Some(4), sack: true };
        let cookie = secret.cookie(NOW, ends(), 4711, offer);
        let is_good = |now, ends, number, cookie| secret.offer(now, ends, number, cookie).is_some();
        assert!(is_good(NOW + EPOCH, ends(), 4711, cookie));
        assert!(!is_good(NOW + 2 * EPOCH, ends(), 4711, cookie));
        assert!(!is_good(NOW, (ends().1, ends().0), 4711, cookie));
        assert!(!is_good(NOW, ends(), 4712, cookie));
        assert!((0..32).all(|bit| !is_good(NOW, ends(), 4711, cookie ^ 1 << bit)));
        let other = IsnSecret::new(&mut SeededRng::secret(8));
        assert_eq!(other.offer(NOW, ends(), 4711, cookie), None);
    }

    #[test]
    fn a_guessed_cookie_is_rarely_valid() {
        let secret = IsnSecret::new(&mut SeededRng::secret(7));
        let right =
            (0..1 << 20).filter(|guess| secret.offer(NOW, ends(), 4711, *guess * 4093).is_some());
        // A guess is valid for either of two epochs, with a probability of 2^-24 each: about one
        // run in eight has a valid guess.
        assert!(right.count() <= 2);
    }
}
