//! PathRecord: a path from one port to another (IBA 15.2.5.16).

use super::{Selector, record};
use crate::address::{Gid, Lid};
use crate::keys::PKey;
use crate::mad::service_id::ServiceId;
use crate::units::{Mtu, Rate, TimeCode};

layout! {
    pub struct PathRecord: 64 bytes {
        /// The service for which the path is used; selects its quality of service.
        0:0    64  service_id: ServiceId,
        8:0   128  dgid: Gid,
        24:0  128  sgid: Gid,
        40:0   16  dlid: Lid,
        /// One of the LIDs of the source port; selects the path.
        42:0   16  slid: Lid,
        44:0    1  raw_traffic: bool,
        44:4   20  flow_label: u32,
        /// Greater than 0 if packets need a GRH.
        47:0    8  hop_limit: u8,
        48:0    8  traffic_class: u8,
        49:0    1  reversible: bool,
        /// Maximum number of paths in the response.
        49:1    7  numb_path: u8,
        50:0   16  p_key: PKey,
        52:0   12  qos_class: u16,
        53:4    4  sl: u8,
        54:0    2  mtu_selector: Selector,
        54:2    6  mtu: Mtu,
        55:0    2  rate_selector: Selector,
        55:2    6  rate: Rate,
        56:0    2  packet_life_time_selector: Selector,
        56:2    6  packet_life_time: TimeCode,
        /// Order of preference among several paths; the lowest is preferred.
        57:0    8  preference: u8,
    }
}

impl PathRecordMask {
    /// The component mask of path queries by Linux IPoIB.
    pub const LINUX_QUERY: Self = Self::DGID
        .with(Self::SGID)
        .with(Self::TRAFFIC_CLASS)
        .with(Self::NUMB_PATH)
        .with(Self::P_KEY);
}

record!(PathRecord = 0x0035, PathRecordMask {
    SERVICE_ID_8_MSB = 1 << 0,
    SERVICE_ID_56_LSB = 1 << 1,
    DGID = 1 << 2,
    SGID = 1 << 3,
    DLID = 1 << 4,
    SLID = 1 << 5,
    RAW_TRAFFIC = 1 << 6,
    FLOW_LABEL = 1 << 8,
    HOP_LIMIT = 1 << 9,
    TRAFFIC_CLASS = 1 << 10,
    REVERSIBLE = 1 << 11,
    NUMB_PATH = 1 << 12,
    P_KEY = 1 << 13,
    QOS_CLASS = 1 << 14,
    SL = 1 << 15,
    MTU_SELECTOR = 1 << 16,
    MTU = 1 << 17,
    RATE_SELECTOR = 1 << 18,
    RATE = 1 << 19,
    PACKET_LIFE_TIME_SELECTOR = 1 << 20,
    PACKET_LIFE_TIME = 1 << 21,
    PREFERENCE = 1 << 22,
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting, counting_gid};

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let record = PathRecord {
            service_id: ServiceId(0x0102_0304_0506_0708),
            dgid: counting_gid(0x10),
            sgid: counting_gid(0x20),
            dlid: Lid(0x3132),
            slid: Lid(0x3334),
            raw_traffic: true,
            flow_label: 0xf_edcb,
            hop_limit: 0x35,
            traffic_class: 0x36,
            reversible: true,
            numb_path: 0x37,
            p_key: PKey(0x8123),
            qos_class: 0xabc,
            sl: 9,
            mtu_selector: Selector::EXACTLY,
            mtu: Mtu::BYTES_2048,
            rate_selector: Selector::LESS_THAN,
            rate: Rate::GBPS_56,
            packet_life_time_selector: Selector::BEST,
            packet_life_time: TimeCode(18),
            preference: 0x38,
        };
        assert_bytes(
            &record,
            &[
                (0, &counting::<8>(1)),
                (8, &counting::<16>(0x10)),
                (24, &counting::<16>(0x20)),
                (40, &[0x31, 0x32, 0x33, 0x34, 0x8f, 0xed, 0xcb, 0x35, 0x36, 0xb7]),
                (50, &[0x81, 0x23, 0xab, 0xc9]),
                (54, &[2 << 6 | 4, 1 << 6 | 12, 3 << 6 | 18, 0x38]),
            ],
        );
    }

    #[test]
    fn linux_path_queries_have_these_components() {
        assert_eq!(PathRecordMask::LINUX_QUERY.0, 0x340c);
    }
}
