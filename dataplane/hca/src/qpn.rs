//! Queue pair numbers (QPNs).
//!
//! ```text
//! bits 23..19  the context of its adapter at a shared port (vHCA index)
//!      18..16  the generation of the slot: how often it was used before
//!      15..0   the slot
//! ```
//!
//! So adapters that share a port never use the same QPN, and a slot uses 7 other QPNs before it
//! reuses one. After the end of a connection, its consumer keeps the queue pair in TIME-WAIT, as
//! long as old packets may arrive.

use pollux_wire::address::Qpn;

/// The maximum number of adapters that share a port, each in its own context.
pub const PORT_CONTEXTS_MAX: u8 = 32;
/// The maximum number of queue pairs of an adapter. It is less than 2^16, so that no QPN is the
/// multicast QPN.
pub(super) const QPS_MAX: u32 = 65_000;
/// The number of bits of a slot's generation.
pub(super) const GENERATION_BITS: u32 = CONTEXT_AT - INDEX_BITS;

const INDEX_BITS: u32 = 16;
const CONTEXT_AT: u32 = 19;
/// The first QPN that is assigned. 0 and 1 are QP0 and QP1.
const QPN_FIRST: u32 = 0x40;

/// The bits of a QPN that hold its context.
pub(crate) const CONTEXT_BITS: u32 = (PORT_CONTEXTS_MAX as u32 - 1) << CONTEXT_AT;

pub(super) fn qpn_of(context: u8, number: u32) -> Qpn {
    let (generation, index) = (number >> 24, number & 0xff_ffff);
    Qpn(u32::from(context) << CONTEXT_AT | generation << INDEX_BITS | (index + QPN_FIRST))
}

#[inline(always)]
pub(super) fn number_of(qpn: Qpn) -> Option<u32> {
    let index = (qpn.0 & ((1 << INDEX_BITS) - 1)).checked_sub(QPN_FIRST)?;
    Some((qpn.0 & !CONTEXT_BITS) >> INDEX_BITS << 24 | index)
}

/// The shared-port context that a QPN belongs to; 0 for QP0 and QP1.
pub const fn context_of(qpn: Qpn) -> u8 {
    ((qpn.0 & CONTEXT_BITS) >> CONTEXT_AT) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_qpn_contains_its_context_and_its_index() {
        let mut all = BTreeSet::new();
        for context in 0..PORT_CONTEXTS_MAX {
            for number in [1, 2, QPS_MAX, 1 << 24 | 1, 7 << 24 | QPS_MAX] {
                let qpn = qpn_of(context, number);
                assert_eq!((context_of(qpn), number_of(qpn)), (context, Some(number)));
                assert!(qpn < Qpn::MULTICAST && qpn > Qpn::GSI && all.insert(qpn));
            }
        }
        assert_eq!([0, 1, QPN_FIRST - 1].map(|low| number_of(Qpn(low))), [None; 3]);
    }
}
