//! LAP and APR, which load a new alternate path into an established connection (IBA 12.8.1,
//! 12.8.2).

use super::{CommId, ReqPath};
use crate::address::{Gid, Lid, Qpn};
use crate::units::{Rate, TimeCode};

connection_message! {
    /// LAP: requests to load an alternate path (IBA 12.8.1). It has the fields of a [`ReqPath`] in
    /// a different order.
    pub struct Lap: 232 bytes {
        12:0    24  remote_qpn: Qpn,
        /// How soon the sender expects a response.
        15:0     5  remote_cm_response_timeout: TimeCode,
        20:0    16  alternate_local_lid: Lid,
        22:0    16  alternate_remote_lid: Lid,
        24:0   128  alternate_local_gid: Gid,
        40:0   128  alternate_remote_gid: Gid,
        56:0    20  alternate_flow_label: u32,
        59:0     8  alternate_traffic_class: u8,
        60:0     8  alternate_hop_limit: u8,
        61:2     6  alternate_packet_rate: Rate,
        62:0     4  alternate_sl: u8,
        62:4     1  alternate_subnet_local: bool,
        63:0     5  alternate_local_ack_timeout: TimeCode,
        64:0  1344  private_data: [u8; 168],
    }
}

impl Lap {
    /// Makes a LAP with this path.
    pub fn of_path(path: &ReqPath) -> Self {
        Self {
            alternate_local_lid: path.local_lid,
            alternate_remote_lid: path.remote_lid,
            alternate_local_gid: path.local_gid,
            alternate_remote_gid: path.remote_gid,
            alternate_flow_label: path.flow_label,
            alternate_traffic_class: path.traffic_class,
            alternate_hop_limit: path.hop_limit,
            alternate_packet_rate: path.packet_rate,
            alternate_sl: path.sl,
            alternate_subnet_local: path.subnet_local,
            alternate_local_ack_timeout: path.local_ack_timeout,
            ..Self::default()
        }
    }

    /// The alternate path, in the form of a REQ.
    pub const fn path(&self) -> ReqPath {
        ReqPath {
            local_lid: self.alternate_local_lid,
            remote_lid: self.alternate_remote_lid,
            local_gid: self.alternate_local_gid,
            remote_gid: self.alternate_remote_gid,
            flow_label: self.alternate_flow_label,
            traffic_class: self.alternate_traffic_class,
            hop_limit: self.alternate_hop_limit,
            packet_rate: self.alternate_packet_rate,
            sl: self.alternate_sl,
            subnet_local: self.alternate_subnet_local,
            local_ack_timeout: self.alternate_local_ack_timeout,
            sap_supported: false,
        }
    }
}

connection_message! {
    /// APR: the response to a LAP (IBA 12.8.2).
    pub struct Apr: 232 bytes {
        /// Number of valid bytes in [`Apr::additional_info`].
        8:0      8  additional_info_len: u8,
        9:0      8  status: ApStatus,
        /// The format depends on the status.
        12:0   576  additional_info: [u8; 72],
        84:0  1184  private_data: [u8; 148],
    }
}

codes! {
    /// The status of an alternate path (IBA 12.8.2).
    pub struct ApStatus(u8) {
        LOADED = 0,
        INVALID_COMM_ID = 1,
        NOT_SUPPORTED = 2,
        REJECTED = 3,
        REDIRECT = 4,
        IS_CURRENT_PATH = 5,
        INVALID_QPN = 6,
        INVALID_LID = 7,
        INVALID_GID = 8,
        INVALID_FLOW_LABEL = 9,
        INVALID_TRAFFIC_CLASS = 10,
        INVALID_HOP_LIMIT = 11,
        INVALID_PACKET_RATE = 12,
        INVALID_SL = 13,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting, counting_gid};
    use std::format;

    #[test]
    fn every_field_of_the_offer_is_where_the_specification_has_it() {
        let lap = Lap {
            local_comm_id: CommId(0x0102_0304),
            remote_comm_id: CommId(0x0506_0708),
            remote_qpn: Qpn(0x11_1213),
            remote_cm_response_timeout: TimeCode(20),
            alternate_local_lid: Lid(0x2122),
            alternate_remote_lid: Lid(0x3132),
            alternate_local_gid: counting_gid(0x40),
            alternate_remote_gid: counting_gid(0x60),
            alternate_flow_label: 0xf_edcb,
            alternate_traffic_class: 0x71,
            alternate_hop_limit: 0x72,
            alternate_packet_rate: Rate(0x2a),
            alternate_sl: 9,
            alternate_subnet_local: true,
            alternate_local_ack_timeout: TimeCode(19),
            private_data: counting(0x81),
        };
        let path = lap.path();
        assert_eq!((path.local_lid, path.remote_lid), (Lid(0x2122), Lid(0x3132)));
        assert_eq!((path.local_gid, path.hop_limit), (counting_gid(0x40), 0x72));
        assert_eq!(Lap::of_path(&path).path(), path);
        assert_bytes(
            &lap,
            &[
                (0, &[1, 2, 3, 4, 5, 6, 7, 8]),
                (12, &[0x11, 0x12, 0x13, 20 << 3]),
                (20, &[0x21, 0x22, 0x31, 0x32]),
                (24, &counting::<16>(0x40)),
                (40, &counting::<16>(0x60)),
                (56, &[0xfe, 0xdc, 0xb0, 0x71, 0x72, 0x2a, 9 << 4 | 1 << 3, 19 << 3]),
                (64, &counting::<168>(0x81)),
            ],
        );
    }

    #[test]
    fn every_field_of_the_answer_is_where_the_specification_has_it() {
        let apr = Apr {
            local_comm_id: CommId(0x0102_0304),
            remote_comm_id: CommId(0x0506_0708),
            additional_info_len: 0x11,
            status: ApStatus::INVALID_SL,
            additional_info: counting(0x20),
            private_data: counting(0x81),
        };
        assert_bytes(
            &apr,
            &[
                (0, &[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 13]),
                (12, &counting::<72>(0x20)),
                (84, &counting::<148>(0x81)),
            ],
        );
        assert_eq!(format!("{}", apr.status), "INVALID_SL");
    }
}
