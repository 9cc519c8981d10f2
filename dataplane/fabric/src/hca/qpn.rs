//! Numbers of queue pairs: what the network calls them.
//!
//! ```text
//! bits 23..21  the seat of their adapter at its port
//!      20..16  how often the place was used before
//!      15..0   the place
//! ```
//!
//! So adapters that share a port share no number, and one comes back after 31 others of its place
//! at the earliest. Whoever ends a connection keeps its queue pair as long as packets may come.

use pollux_wire::address::Qpn;

/// Adapters that may share a port, each under its own seat.
pub const SEATS_MAX: u8 = 8;
/// Queue pairs of one adapter: places are fewer than their bits could name, so that no number is
/// the one of groups.
pub(super) const QPS_MAX: u32 = 65_000;
/// What is counted of how often a place was used.
pub(super) const GENERATION_BITS: u32 = SEAT_AT - PLACE_BITS;

const PLACE_BITS: u32 = 16;
const SEAT_AT: u32 = 21;
/// Numbers below are not given out: 0 and 1 are those of management.
const QPN_FIRST: u32 = 0x40;

/// The bits of a number that say which seat it is of.
pub(crate) const SEAT_BITS: u32 = 7 << SEAT_AT;

/// The network's name of the queue pair that its adapter knows by `number`.
pub(super) fn qpn_of(seat: u8, number: u32) -> Qpn {
    let (generation, place) = (number >> 24, number & 0xff_ffff);
    Qpn(u32::from(seat) << SEAT_AT | generation << PLACE_BITS | (place + QPN_FIRST))
}

/// What the adapter at its seat knows it by.
#[inline(always)]
pub(super) fn number_of(qpn: Qpn) -> Option<u32> {
    let place = (qpn.0 & ((1 << PLACE_BITS) - 1)).checked_sub(QPN_FIRST)?;
    Some((qpn.0 & !SEAT_BITS) >> PLACE_BITS << 24 | place)
}

/// The seat that a number is of. Those of management are the first's.
pub(crate) const fn seat_of(qpn: Qpn) -> u8 {
    ((qpn.0 & SEAT_BITS) >> SEAT_AT) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_number_says_its_seat_and_its_queue_pair() {
        let mut all = BTreeSet::new();
        for seat in 0..SEATS_MAX {
            for number in [1, 2, QPS_MAX, 1 << 24 | 1, 0x1f << 24 | QPS_MAX] {
                let qpn = qpn_of(seat, number);
                assert_eq!((seat_of(qpn), number_of(qpn)), (seat, Some(number)));
                assert!(qpn < Qpn::MULTICAST && qpn > Qpn::GSI && all.insert(qpn));
            }
        }
        assert_eq!([0, 1, QPN_FIRST - 1].map(|low| number_of(Qpn(low))), [None; 3]);
    }
}
