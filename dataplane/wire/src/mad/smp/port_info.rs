//! PortInfo: state, capabilities and settings of a port (IBA 14.2.5.6).

use super::port_link::rate;
use super::{CapabilityMask, CapabilityMask2, LinkSpeed, LinkSpeedExt, LinkWidth, MKey};
use super::{PortPhysState, PortState};
use crate::address::Lid;
use crate::units::{Mtu, Rate, TimeCode};

layout! {
    /// State and capabilities of a port; in a Set, its settings (IBA 14.2.5.6).
    pub struct PortInfo: 64 bytes {
        0:0   64  m_key: MKey,
        8:0   64  gid_prefix: u64,
        /// The base LID of the port.
        16:0  16  lid: Lid,
        18:0  16  master_sm_lid: Lid,
        20:0  32  capability_mask: CapabilityMask,
        /// Vendor-specific diagnostic code; 0 is good.
        24:0  16  diag_code: u16,
        /// Seconds from an M_Key violation until the M_Key protection ends; 0 for never.
        26:0  16  m_key_lease_period: u16,
        /// Number of the port that received the request.
        28:0   8  local_port_num: u8,
        29:0   8  link_width_enabled: LinkWidth,
        30:0   8  link_width_supported: LinkWidth,
        31:0   8  link_width_active: LinkWidth,
        32:0   4  link_speed_supported: LinkSpeed,
        32:4   4  port_state: PortState,
        33:0   4  port_phys_state: PortPhysState,
        /// The physical state of the port while the link is down: sleep or polling.
        33:4   4  link_down_default_state: PortPhysState,
        34:0   2  m_key_protection: MKeyProtection,
        /// The port has 2^lmc LIDs.
        34:5   3  lmc: u8,
        /// The active speed, unless an extended speed is active.
        35:0   4  link_speed_active: LinkSpeed,
        35:4   4  link_speed_enabled: LinkSpeed,
        /// Largest payload that the neighbor port accepts.
        36:0   4  neighbor_mtu: Mtu,
        36:4   4  master_sm_sl: u8,
        37:0   4  vl_cap: VlCap,
        37:4   4  init_type: u8,
        /// How much the high-priority VLs may send before a low-priority VL, in units of 4096
        /// bytes.
        38:0   8  vl_high_limit: u8,
        39:0   8  vl_arbitration_high_cap: u8,
        40:0   8  vl_arbitration_low_cap: u8,
        41:0   4  init_type_reply: u8,
        41:4   4  mtu_cap: Mtu,
        /// Number of consecutive dropped packets after which a VL is stalled.
        42:0   3  vl_stall_count: u8,
        /// How long a packet can wait at the head of a queue; codes above 19 are no limit.
        42:3   5  hoq_life: TimeCode,
        43:0   4  operational_vls: VlCap,
        43:4   1  partition_enforcement_inbound: bool,
        43:5   1  partition_enforcement_outbound: bool,
        43:6   1  filter_raw_inbound: bool,
        43:7   1  filter_raw_outbound: bool,
        44:0  16  m_key_violations: u16,
        46:0  16  p_key_violations: u16,
        48:0  16  q_key_violations: u16,
        50:0   8  guid_cap: u8,
        /// Clients must reregister: join their multicast groups and subscribe to notices again.
        51:0   1  client_reregister: bool,
        /// Whether the port suppresses traps for multicast packets with a wrong P_Key.
        51:1   2  multicast_p_key_trap_suppression: u8,
        /// The maximum lifetime of a packet in the subnet.
        51:3   5  subnet_timeout: TimeCode,
        52:3   5  resp_time_value: TimeCode,
        /// Number of errors that raises a local link integrity error.
        53:0   4  local_phy_errors: u8,
        /// Number of consecutive buffer overruns that raises an excessive overrun error.
        53:4   4  overrun_errors: u8,
        54:0  16  max_credit_hint: u16,
        /// Round-trip time of the link, in units of 4 ns.
        57:0  24  link_round_trip_latency: u32,
        60:0  16  capability_mask2: CapabilityMask2,
        /// The active speed, if above 10 Gb/s per lane.
        62:0   4  link_speed_ext_active: LinkSpeedExt,
        62:4   4  link_speed_ext_supported: LinkSpeedExt,
        63:3   5  link_speed_ext_enabled: LinkSpeedExt,
    }
}

layout! {
    /// The attribute modifier of [`PortInfo`].
    pub struct PortInfoModifier: 4 bytes {
        0:0  1  knows_extended_speeds: bool,
        /// The port; for an adapter, 0 is the port that received the request.
        3:0  8  port: u8,
    }
}

codes! {
    /// The M_Key protection level: what a Get without the M_Key can read (IBA 14.2.4.1). A Set
    /// always needs the M_Key.
    pub struct MKeyProtection(u8) {
        /// Everything, including the M_Key.
        NONE = 0,
        /// Everything, but the M_Key reads as 0.
        KEY_HIDDEN = 1,
        /// Nothing; level 3 means the same.
        NO_READ = 2,
    }
}

codes! {
    /// Number of data VLs (IBA 14.2.5.6).
    pub struct VlCap(u8) {
        VL0 = 1,
        VL0_1 = 2,
        VL0_3 = 3,
        VL0_7 = 4,
        VL0_14 = 5,
    }
}

impl VlCap {
    /// Number of data VLs; `None` for an undefined code.
    pub const fn lanes(self) -> Option<u8> {
        match self {
            Self::VL0 => Some(1),
            Self::VL0_1 => Some(2),
            Self::VL0_3 => Some(4),
            Self::VL0_7 => Some(8),
            Self::VL0_14 => Some(15),
            _ => None,
        }
    }
}

impl PortInfo {
    /// The active rate of the link; `None` if the active width or speed is not a single known
    /// value.
    pub fn rate(&self) -> Option<Rate> {
        rate(self.link_width_active, self.link_speed_active, self.link_speed_ext_active)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neighboring fields have different values, so that a test detects a wrong offset.
    fn distinct() -> PortInfo {
        PortInfo {
            m_key: MKey(0x0102_0304_0506_0708),
            gid_prefix: 0x1112_1314_1516_1718,
            lid: Lid(0x2122),
            master_sm_lid: Lid(0x3132),
            capability_mask: CapabilityMask(0x4142_4344),
            diag_code: 0x5152,
            m_key_lease_period: 0x6162,
            local_port_num: 0x71,
            link_width_enabled: LinkWidth(0x72),
            link_width_supported: LinkWidth(0x73),
            link_width_active: LinkWidth::X4,
            link_speed_supported: LinkSpeed(0xd),
            port_state: PortState::INITIALIZE,
            port_phys_state: PortPhysState::LINK_UP,
            link_down_default_state: PortPhysState::SLEEP,
            m_key_protection: MKeyProtection::NO_READ,
            lmc: 5,
            link_speed_active: LinkSpeed::QDR,
            link_speed_enabled: LinkSpeed(0xb),
            neighbor_mtu: Mtu::BYTES_2048,
            master_sm_sl: 9,
            vl_cap: VlCap::VL0_3,
            init_type: 0xa,
            vl_high_limit: 0x81,
            vl_arbitration_high_cap: 0x82,
            vl_arbitration_low_cap: 0x83,
            init_type_reply: 0xc,
            mtu_cap: Mtu::BYTES_4096,
            vl_stall_count: 6,
            hoq_life: TimeCode(0x13),
            operational_vls: VlCap::VL0_1,
            partition_enforcement_inbound: true,
            partition_enforcement_outbound: false,
            filter_raw_inbound: false,
            filter_raw_outbound: true,
            m_key_violations: 0x9192,
            p_key_violations: 0x9394,
            q_key_violations: 0x9596,
            guid_cap: 0xa1,
            client_reregister: true,
            multicast_p_key_trap_suppression: 1,
            subnet_timeout: TimeCode(0x12),
            resp_time_value: TimeCode(0x15),
            local_phy_errors: 7,
            overrun_errors: 8,
            max_credit_hint: 0xb1b2,
            link_round_trip_latency: 0xc1_c2c3,
            capability_mask2: CapabilityMask2(0xd1d2),
            link_speed_ext_active: LinkSpeedExt::EDR,
            link_speed_ext_supported: LinkSpeedExt(0xe),
            link_speed_ext_enabled: LinkSpeedExt(0x1b),
        }
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let bytes = [
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
            0x17, 0x18, 0x21, 0x22, 0x31, 0x32, 0x41, 0x42, 0x43, 0x44, 0x51, 0x52, 0x61, 0x62,
            0x71, 0x72, 0x73, 0x02, 0xd2, 0x51, 0x85, 0x4b, 0x49, 0x3a, 0x81, 0x82, 0x83, 0xc5,
            0xd3, 0x29, 0x91, 0x92, 0x93, 0x94, 0x95, 0x96, 0xa1, 0xb2, 0x15, 0x78, 0xb1, 0xb2,
            0x00, 0xc1, 0xc2, 0xc3, 0xd1, 0xd2, 0x2e, 0x1b,
        ];
        assert_eq!(distinct().emit(), bytes);
        assert_eq!(PortInfo::parse(&bytes), distinct());
    }

    #[test]
    fn rate_is_of_the_link_and_not_of_the_port() {
        assert_eq!(distinct().rate(), Some(Rate::GBPS_100));
        assert_eq!(PortInfo::default().rate(), None);
    }

    #[test]
    fn lanes_of_each_code() {
        let lanes = VlCap::ALL.iter().map(|cap| cap.lanes().unwrap());
        assert!(lanes.eq([1, 2, 4, 8, 15]));
        assert_eq!(VlCap(0).lanes(), None);
    }

    #[test]
    fn modifier_has_the_port_last() {
        let modifier = PortInfoModifier { knows_extended_speeds: true, port: 36 };
        assert_eq!(modifier.emit(), [0x80, 0, 0, 36]);
    }
}
