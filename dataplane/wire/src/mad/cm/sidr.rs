//! SIDR_REQ and SIDR_REP, which resolve a service ID to a datagram queue pair (IBA 12.11).

use super::CommId;
use crate::address::Qpn;
use crate::keys::{PKey, QKey};
use crate::mad::service_id::ServiceId;

layout! {
    /// SIDR_REQ: requests the queue pair of a service ID (IBA 12.11.1).
    pub struct SidrReq: 232 bytes {
        0:0     32  request_id: CommId,
        4:0     16  p_key: PKey,
        8:0     64  service_id: ServiceId,
        16:0  1728  private_data: [u8; 216],
    }
}

layout! {
    /// SIDR_REP: the queue pair of a service ID (IBA 12.11.2).
    pub struct SidrRep: 232 bytes {
        0:0     32  request_id: CommId,
        4:0      8  status: SidrStatus,
        /// Number of valid bytes in [`SidrRep::additional_info`].
        5:0      8  additional_info_len: u8,
        6:0     16  vendor_id_23_8: u16,
        8:0     24  qpn: Qpn,
        11:0     8  vendor_id_7_0: u8,
        12:0    64  service_id: ServiceId,
        20:0    32  q_key: QKey,
        /// The format depends on the status.
        24:0   576  additional_info: [u8; 72],
        96:0  1088  private_data: [u8; 136],
    }
}

codes! {
    /// Whether a service ID was resolved (IBA 12.11.2).
    pub struct SidrStatus(u8) {
        VALID = 0,
        UNSUPPORTED_SERVICE_ID = 1,
        REJECTED = 2,
        NO_QP = 3,
        REDIRECT = 4,
        UNSUPPORTED_VERSION = 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting};

    #[test]
    fn every_field_of_the_question_is_where_the_specification_has_it() {
        let req = SidrReq {
            request_id: CommId(0x0102_0304),
            p_key: PKey(0x8123),
            service_id: ServiceId(0x1112_1314_1516_1718),
            private_data: counting(0x21),
        };
        assert_bytes(
            &req,
            &[
                (0, &[1, 2, 3, 4, 0x81, 0x23]),
                (8, &counting::<8>(0x11)),
                (16, &counting::<216>(0x21)),
            ],
        );
    }

    #[test]
    fn every_field_of_the_answer_is_where_the_specification_has_it() {
        let rep = SidrRep {
            request_id: CommId(0x0102_0304),
            status: SidrStatus::UNSUPPORTED_VERSION,
            additional_info_len: 0x11,
            vendor_id_23_8: 0xf1f2,
            qpn: Qpn(0x21_2223),
            vendor_id_7_0: 0xf3,
            service_id: ServiceId(0x3132_3334_3536_3738),
            q_key: QKey(0x4142_4344),
            additional_info: counting(0x51),
            private_data: counting(0xa1),
        };
        assert_bytes(
            &rep,
            &[
                (0, &[1, 2, 3, 4, 5, 0x11, 0xf1, 0xf2, 0x21, 0x22, 0x23, 0xf3]),
                (12, &counting::<8>(0x31)),
                (20, &[0x41, 0x42, 0x43, 0x44]),
                (24, &counting::<72>(0x51)),
                (96, &counting::<136>(0xa1)),
            ],
        );
    }
}
