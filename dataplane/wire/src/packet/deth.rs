//! Datagram extended transport header: Q_Key and source queue pair (IBA 9.3.2).

use crate::{address::Qpn, keys::QKey};

layout! {
    /// In every packet of UD, and in the requests of RD (IBA 9.3.2).
    pub struct Deth: 8 bytes {
        /// Must be that of the receiving queue pair.
        0:0   32  qkey: QKey,
        5:0   24  src_qp: Qpn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_four_is_reserved() {
        let deth = Deth { qkey: QKey(0x0b1b), src_qp: Qpn(0x48) };
        assert_eq!(Deth::parse(&[0, 0, 0x0b, 0x1b, 0xff, 0, 0, 0x48]), deth);
        assert_eq!(deth.emit(), [0, 0, 0x0b, 0x1b, 0, 0, 0, 0x48]);
    }
}
