//! DREQ and DREP, which end an established connection (IBA 12.6.10, 12.6.11).

use super::CommId;
use crate::address::Qpn;

connection_message! {
    /// DREQ: requests to disconnect (IBA 12.6.10).
    pub struct Dreq: 232 bytes {
        /// The receiver's queue pair. The receiver checks it, so that a late DREQ does not end
        /// another connection.
        8:0     24  remote_qpn: Qpn,
        12:0  1760  private_data: [u8; 220],
    }
}

connection_message! {
    /// DREP: the receiver disconnected, or does not know the connection (IBA 12.6.11).
    pub struct Drep: 232 bytes {
        8:0  1792  private_data: [u8; 224],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting};

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let dreq = Dreq {
            local_comm_id: CommId(0x0102_0304),
            remote_comm_id: CommId(0x0506_0708),
            remote_qpn: Qpn(0x11_1213),
            private_data: counting(0x21),
        };
        assert_bytes(
            &dreq,
            &[(0, &[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0]), (12, &counting::<220>(0x21))],
        );
        let drep = Drep {
            local_comm_id: CommId(0x0102_0304),
            remote_comm_id: CommId(0x0506_0708),
            private_data: counting(0x41),
        };
        assert_bytes(&drep, &[(0, &[1, 2, 3, 4, 5, 6, 7, 8]), (8, &counting::<224>(0x41))]);
    }
}
