//! MultiPathRecord: a query for independent paths between several ports (IBA 15.2.5.20).
//!
//! The query has lists of GIDs behind a fixed part. The specification allows lists that span
//! several datagrams; this layout supports lists that fit in one datagram only.

use super::{Selector, record};
use crate::address::Gid;
use crate::keys::PKey;
use crate::units::{Mtu, Rate, TimeCode};

layout! {
    /// A query for paths from any of the source ports to any of the destination ports (IBA
    /// 15.2.5.20). The response is a table of path records.
    pub struct MultiPathRecord: 200 bytes {
        0:0      1  raw_traffic: bool,
        0:4     20  flow_label: u32,
        3:0      8  hop_limit: u8,
        4:0      8  traffic_class: u8,
        5:0      1  reversible: bool,
        /// Maximum number of paths in the response for each pair of ports.
        5:1      7  numb_path: u8,
        6:0     16  p_key: PKey,
        8:0     12  qos_class: u16,
        9:4      4  sl: u8,
        10:0     2  mtu_selector: Selector,
        10:2     6  mtu: Mtu,
        11:0     2  rate_selector: Selector,
        11:2     6  rate: Rate,
        12:0     2  packet_life_time_selector: Selector,
        12:2     6  packet_life_time: TimeCode,
        13:0     8  service_id_8_msb: u8,
        /// 1 if the paths should share as few components as possible.
        14:0     2  independence_selector: u8,
        /// Number of sources in `gids`.
        15:0     8  sgid_count: u8,
        /// Number of destinations in `gids`, behind the sources.
        16:0     8  dgid_count: u8,
        17:0    56  service_id_56_lsb: u64,
        /// Sources, then destinations.
        24:0  1408  gids: [Gid; 11],
    }
}

record!(MultiPathRecord = 0x003a, MultiPathRecordMask {
    RAW_TRAFFIC = 1 << 0,
    FLOW_LABEL = 1 << 2,
    HOP_LIMIT = 1 << 3,
    TRAFFIC_CLASS = 1 << 4,
    REVERSIBLE = 1 << 5,
    NUMB_PATH = 1 << 6,
    P_KEY = 1 << 7,
    QOS_CLASS = 1 << 8,
    SL = 1 << 9,
    MTU_SELECTOR = 1 << 10,
    MTU = 1 << 11,
    RATE_SELECTOR = 1 << 12,
    RATE = 1 << 13,
    PACKET_LIFE_TIME_SELECTOR = 1 << 14,
    PACKET_LIFE_TIME = 1 << 15,
    SERVICE_ID_8_MSB = 1 << 16,
    INDEPENDENCE_SELECTOR = 1 << 17,
    SGID_COUNT = 1 << 19,
    DGID_COUNT = 1 << 20,
    SERVICE_ID_56_LSB = 1 << 21,
});

impl MultiPathRecord {
    /// Sources and destinations; `None` if the counts exceed one datagram.
    pub fn ends(&self) -> Option<(&[Gid], &[Gid])> {
        let sgid_count = usize::from(self.sgid_count);
        let used = self.gids.get(..sgid_count + usize::from(self.dgid_count))?;
        used.split_at_checked(sgid_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting, counting_gid};

    fn record() -> MultiPathRecord {
        MultiPathRecord {
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
            service_id_8_msb: 0x41,
            independence_selector: 1,
            sgid_count: 2,
            dgid_count: 3,
            service_id_56_lsb: 0x42_4344_4546_4748,
            gids: core::array::from_fn(|i| counting_gid(i as u8 * 16)),
        }
    }

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        assert_bytes(
            &record(),
            &[
                (0, &[0x8f, 0xed, 0xcb, 0x35, 0x36, 0xb7, 0x81, 0x23, 0xab, 0xc9]),
                (10, &[2 << 6 | 4, 1 << 6 | 12, 3 << 6 | 18, 0x41, 1 << 6, 2, 3]),
                (17, &counting::<7>(0x42)),
                (24, &counting::<176>(0)),
            ],
        );
    }

    #[test]
    fn ends_are_sources_then_destinations() {
        let record = record();
        let (from, to) = record.ends().unwrap();
        assert_eq!((from, to), (&record.gids[..2], &record.gids[2..5]));
        let too_many = MultiPathRecord { sgid_count: 9, ..record };
        assert_eq!(too_many.ends(), None);
        let far_too_many = MultiPathRecord { sgid_count: 255, dgid_count: 255, ..record };
        assert_eq!(far_too_many.ends(), None);
    }
}
