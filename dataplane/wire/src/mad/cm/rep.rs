//! REP, by which the passive side accepts a connection request (IBA 12.6.8), and RTU (ready to
//! use), by which the active side confirms the connection (IBA 12.6.9).

use super::CommId;
use crate::address::{Guid, Qpn};
use crate::keys::QKey;
use crate::psn::Psn;
use crate::units::TimeCode;

connection_message! {
    /// REP: accepts a connection request (IBA 12.6.8).
    pub struct Rep: 232 bytes {
        /// The Q_Key of the sender's queue pair, for RD.
        8:0     32  local_q_key: QKey,
        12:0    24  local_qpn: Qpn,
        15:0     8  vendor_id_23_16: u8,
        /// The sender's end-to-end context, for RD.
        16:0    24  local_eecn: u32,
        19:0     8  vendor_id_15_8: u8,
        /// The PSN of the first packet that the sender expects to receive.
        20:0    24  starting_psn: Psn,
        23:0     8  vendor_id_7_0: u8,
        /// Number of RDMA READs and atomics that the sender accepts at the same time.
        24:0     8  responder_resources: u8,
        /// Number of RDMA READs and atomics that the sender wants to issue at the same time.
        25:0     8  initiator_depth: u8,
        /// How long the sender takes to acknowledge a packet.
        26:0     5  target_ack_delay: TimeCode,
        /// The status of the alternate path: 0 accepted, 1 not supported, 2 rejected.
        26:5     2  failover_accepted: u8,
        26:7     1  end_to_end_flow_control: bool,
        /// How often the receiver retries after an RNR NAK; 7 for no limit.
        27:0     3  rnr_retry_count: u8,
        27:3     1  srq: bool,
        28:0    64  local_ca_guid: Guid,
        36:0  1568  private_data: [u8; 196],
    }
}

connection_message! {
    /// RTU: the third and last message of connection establishment (IBA 12.6.9).
    pub struct Rtu: 232 bytes {
        8:0  1792  private_data: [u8; 224],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting};

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let rep = Rep {
            local_comm_id: CommId(0x0102_0304),
            remote_comm_id: CommId(0x0506_0708),
            local_q_key: QKey(0x1112_1314),
            local_qpn: Qpn(0x21_2223),
            vendor_id_23_16: 0xf1,
            local_eecn: 0x31_3233,
            vendor_id_15_8: 0xf2,
            starting_psn: Psn::new(0x41_4243),
            vendor_id_7_0: 0xf3,
            responder_resources: 4,
            initiator_depth: 5,
            target_ack_delay: TimeCode(15),
            failover_accepted: 2,
            end_to_end_flow_control: true,
            rnr_retry_count: 7,
            srq: true,
            local_ca_guid: Guid(0x0002_c903_0000_1000),
            private_data: counting(0xb0),
        };
        assert_bytes(
            &rep,
            &[
                (0, &[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14]),
                (12, &[0x21, 0x22, 0x23, 0xf1, 0x31, 0x32, 0x33, 0xf2, 0x41, 0x42, 0x43, 0xf3]),
                (24, &[4, 5, 15 << 3 | 2 << 1 | 1, 7 << 5 | 1 << 4]),
                (28, &[0, 2, 0xc9, 3, 0, 0, 0x10, 0]),
                (36, &counting::<196>(0xb0)),
            ],
        );
    }

    #[test]
    fn every_field_of_the_confirmation_is_where_the_specification_has_it() {
        let rtu = Rtu {
            local_comm_id: CommId(0x0102_0304),
            remote_comm_id: CommId(0x0506_0708),
            private_data: counting(0x41),
        };
        assert_bytes(&rtu, &[(0, &[1, 2, 3, 4, 5, 6, 7, 8]), (8, &counting::<224>(0x41))]);
    }
}
