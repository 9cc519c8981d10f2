//! MCMemberRecord: a member of a multicast group, and the properties of the group (IBA 15.2.5.17).

use super::{Selector, record};
use crate::address::{Gid, Lid, Scope};
use crate::keys::{PKey, QKey};
use crate::units::{Mtu, Rate, TimeCode};

layout! {
    pub struct McMemberRecord: 52 bytes {
        0:0   128  mgid: Gid,
        16:0  128  port_gid: Gid,
        32:0   32  q_key: QKey,
        36:0   16  mlid: Lid,
        38:0    2  mtu_selector: Selector,
        38:2    6  mtu: Mtu,
        39:0    8  traffic_class: u8,
        40:0   16  p_key: PKey,
        42:0    2  rate_selector: Selector,
        42:2    6  rate: Rate,
        43:0    2  packet_life_time_selector: Selector,
        43:2    6  packet_life_time: TimeCode,
        44:0    4  sl: u8,
        44:4   20  flow_label: u32,
        47:0    8  hop_limit: u8,
        48:0    4  scope: Scope,
        48:4    4  join_state: JoinState,
        /// Whether another port joined on the member's behalf.
        49:0    1  proxy_join: bool,
    }
}

flags! {
    /// Join states of a port in a group. A port can have several states, and leave each of them
    /// separately.
    pub struct JoinState(u8) {
        /// Sends and receives, and keeps the group alive.
        FULL_MEMBER = 1,
        /// Sends and receives, but does not keep the group alive.
        NON_MEMBER = 2,
        /// Sends only, but does not keep the group alive.
        SEND_ONLY_NON_MEMBER = 4,
        /// Sends only, and keeps the group alive; an optional capability of the SA.
        SEND_ONLY_FULL_MEMBER = 8,
    }
}

impl McMemberRecordMask {
    /// The component mask that Linux uses to leave a group.
    pub const LINUX_LEAVE: Self = Self::MGID.with(Self::PORT_GID).with(Self::JOIN_STATE);
    /// The component mask that Linux uses to join the broadcast group. It selects no properties of
    /// the group, so the group must already exist.
    pub const LINUX_JOIN_BROADCAST: Self = Self::LINUX_LEAVE.with(Self::P_KEY);
    /// The component mask that Linux uses to join other groups. It includes all components that are
    /// required to create a group.
    pub const LINUX_JOIN: Self = Self::LINUX_JOIN_BROADCAST
        .with(Self::Q_KEY)
        .with(Self::MTU_SELECTOR)
        .with(Self::MTU)
        .with(Self::TRAFFIC_CLASS)
        .with(Self::RATE_SELECTOR)
        .with(Self::RATE)
        .with(Self::SL)
        .with(Self::FLOW_LABEL)
        .with(Self::HOP_LIMIT);
}

record!(McMemberRecord = 0x0038, McMemberRecordMask {
    MGID = 1 << 0,
    PORT_GID = 1 << 1,
    Q_KEY = 1 << 2,
    MLID = 1 << 3,
    MTU_SELECTOR = 1 << 4,
    MTU = 1 << 5,
    TRAFFIC_CLASS = 1 << 6,
    P_KEY = 1 << 7,
    RATE_SELECTOR = 1 << 8,
    RATE = 1 << 9,
    PACKET_LIFE_TIME_SELECTOR = 1 << 10,
    PACKET_LIFE_TIME = 1 << 11,
    SL = 1 << 12,
    FLOW_LABEL = 1 << 13,
    HOP_LIMIT = 1 << 14,
    SCOPE = 1 << 15,
    JOIN_STATE = 1 << 16,
    PROXY_JOIN = 1 << 17,
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting, counting_gid};

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let record = McMemberRecord {
            mgid: counting_gid(0x10),
            port_gid: counting_gid(0x20),
            q_key: QKey(0x3132_3334),
            mlid: Lid(0xc123),
            mtu_selector: Selector::EXACTLY,
            mtu: Mtu::BYTES_2048,
            traffic_class: 0x41,
            p_key: PKey(0x8123),
            rate_selector: Selector::LESS_THAN,
            rate: Rate::GBPS_56,
            packet_life_time_selector: Selector::BEST,
            packet_life_time: TimeCode(18),
            sl: 9,
            flow_label: 0xf_edcb,
            hop_limit: 0x42,
            scope: Scope::SITE_LOCAL,
            join_state: JoinState::SEND_ONLY_FULL_MEMBER.with(JoinState::NON_MEMBER),
            proxy_join: true,
        };
        assert_bytes(
            &record,
            &[
                (0, &counting::<16>(0x10)),
                (16, &counting::<16>(0x20)),
                (32, &[0x31, 0x32, 0x33, 0x34, 0xc1, 0x23, 2 << 6 | 4, 0x41, 0x81, 0x23]),
                (42, &[1 << 6 | 12, 3 << 6 | 18, 0x9f, 0xed, 0xcb, 0x42, 0x5a, 0x80]),
            ],
        );
    }

    #[test]
    fn linux_joins_and_leaves_with_these_components() {
        assert_eq!(McMemberRecordMask::LINUX_JOIN_BROADCAST.0, 0x1_0083);
        assert_eq!(McMemberRecordMask::LINUX_JOIN.0, 0x1_73f7);
        assert_eq!(McMemberRecordMask::LINUX_LEAVE.0, 0x1_0003);
    }
}
