//! InformInfo: subscriptions to notices (IBA 13.4.8.3), and their records (IBA 15.2.5.12).

use super::{Record, record};
use crate::address::{Gid, Lid, Qpn};
use crate::mad::attributes;
use crate::mad::notice::{ProducerType, TrapNumber};
use crate::units::TimeCode;

layout! {
    /// InformInfo: a subscription to notices (IBA 13.4.8.3).
    pub struct InformInfo: 36 bytes {
        /// The GID of the issuer; 0 to select issuers by LID range.
        0:0   128  gid: Gid,
        /// The first LID of the issuers; permissive for all issuers.
        16:0   16  lid_range_begin: Lid,
        18:0   16  lid_range_end: Lid,
        /// 1 for notices that the specification defines, 0 for vendor notices.
        22:0    8  is_generic: u8,
        /// 1 to subscribe, 0 to unsubscribe.
        23:0    8  subscribe: u8,
        /// The type of notices; 0xffff for all types.
        24:0   16  notice_type: u16,
        /// The trap number, or for vendor notices the device ID; 0xffff for all.
        26:0   16  trap_number: TrapNumber,
        28:0   24  qpn: Qpn,
        /// How soon the subscriber acknowledges a report.
        31:3    5  resp_time_value: TimeCode,
        /// The node type of the producer, or for vendor notices the vendor ID; 0xffffff for all.
        33:0   24  producer: ProducerType,
    }
}

layout! {
    /// The record of a subscription (IBA 15.2.5.12).
    pub struct InformInfoRecord: 60 bytes {
        0:0   128  subscriber_gid: Gid,
        /// The number of the subscription among those of the port.
        16:0   16  inform_info_enum: u16,
        24:0  288  inform_info: InformInfo,
    }
}

attributes!(InformInfo = 0x0003);

/// InformInfo has no components, so its mask has no named bits.
impl Record for InformInfo {
    type Mask = u64;
}

record!(InformInfoRecord = 0x00f3, InformInfoRecordMask {
    SUBSCRIBER_GID = 1 << 0,
    INFORM_INFO_ENUM = 1 << 1,
    GID = 1 << 3,
    LID_RANGE_BEGIN = 1 << 4,
    LID_RANGE_END = 1 << 5,
    IS_GENERIC = 1 << 7,
    SUBSCRIBE = 1 << 8,
    NOTICE_TYPE = 1 << 9,
    TRAP_NUMBER = 1 << 10,
    QPN = 1 << 11,
    RESP_TIME_VALUE = 1 << 13,
    PRODUCER = 1 << 15,
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting, counting_gid};

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let inform_info = InformInfo {
            gid: counting_gid(0x10),
            lid_range_begin: Lid(0x2122),
            lid_range_end: Lid(0x2324),
            is_generic: 0x25,
            subscribe: 0x26,
            notice_type: 0x2728,
            trap_number: TrapNumber(0x292a),
            qpn: Qpn(0x2b_2c2d),
            resp_time_value: TimeCode(0x1e),
            producer: ProducerType(0x2f_3031),
        };
        let bytes: [(usize, &[u8]); 4] = [
            (0, &counting::<16>(0x10)),
            (16, &counting::<4>(0x21)),
            (22, &[0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x1e]),
            (33, &[0x2f, 0x30, 0x31]),
        ];
        assert_bytes(&inform_info, &bytes);

        let record = InformInfoRecord {
            subscriber_gid: counting_gid(0x40),
            inform_info_enum: 0x5152,
            inform_info,
        };
        let head: [(usize, &[u8]); 2] = [(0, &counting::<16>(0x40)), (16, &[0x51, 0x52])];
        let tail = bytes.map(|(offset, part)| (24 + offset, part));
        assert_bytes(&record, &[&head[..], &tail[..]].concat());
    }
}
