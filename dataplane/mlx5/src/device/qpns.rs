//! Queue pairs by the QPN that a completion queue entry has.

use pollux_verbs::Qp;
use pollux_wire::address::Qpn;

#[derive(Default)]
pub(super) struct Qpns {
    /// Handles by the upper and then the lower bits of the QPN.
    pages: Vec<Option<Box<QpnPage>>>,
}

type QpnPage = [Qp; 1 << QPN_PAGE_BITS];

const QPN_PAGE_BITS: u32 = 12;
/// A handle that no queue pair has.
pub(super) const NO_QP: Qp = Qp(0);

impl Qpns {
    const fn place(qpn: Qpn) -> (usize, usize) {
        let qpn = qpn.0 as usize;
        (qpn >> QPN_PAGE_BITS, qpn & ((1 << QPN_PAGE_BITS) - 1))
    }

    pub(super) fn set(&mut self, qpn: Qpn, qp: Qp) {
        let (page, at) = Self::place(qpn);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new([NO_QP; 1 << QPN_PAGE_BITS]));
        page[at] = qp;
    }

    #[inline]
    pub(super) fn get(&self, qpn: Qpn) -> Qp {
        let (page, at) = Self::place(qpn);
        match self.pages.get(page) {
            Some(Some(page)) => page[at],
            _ => NO_QP,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_is_found_by_its_number() {
        let mut qpns = Qpns::default();
        assert_eq!(qpns.get(Qpn(0xff_ffff)), NO_QP);
        qpns.set(Qpn(0x1045), Qp(7));
        qpns.set(Qpn(0x45), Qp(8));
        assert_eq!((qpns.get(Qpn(0x1045)), qpns.get(Qpn(0x45))), (Qp(7), Qp(8)));
        qpns.set(Qpn(0x45), NO_QP);
        assert_eq!((qpns.get(Qpn(0x1045)), qpns.get(Qpn(0x45))), (Qp(7), NO_QP));
    }
}
