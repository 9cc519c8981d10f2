//! The state of a port (IBA 14.2.5.6).

use super::{Counters, PKeys};
use crate::time::Time;
use crate::topology::{LinkRate, PlannedPort};
use pollux_wire::address::{Gid, Guid};
use pollux_wire::mad::smp::{
    CapabilityMask, LinkSpeed, LinkSpeedExt, LinkWidth, PortInfo, PortPhysState, PortState,
    VlArbitrationTable, VlCap,
};
use pollux_wire::units::{Mtu, TimeCode};

pub const GUIDS: usize = 32;

/// The low-priority and the high-priority arbitration table of a port, each in two halves as in
/// the attribute.
type Arbitration = [VlArbitrationTable; 4];

#[derive(Clone, Debug)]
pub struct NodePort {
    pub info: PortInfo,
    /// Its GUIDs. The first one is fixed, and the subnet manager can assign the others.
    pub guids: Vec<Guid>,
    pub p_keys: PKeys,
    /// The VL of each service level, at nodes that are not switches.
    pub sl_to_vl: [u8; 16],
    /// The VL arbitration tables; `None` until they are set.
    pub arbitration: Option<Box<Arbitration>>,
    pub led: bool,
    pub reregistrations: u32,
    pub counters: Counters,
    /// The end of the M_Key lease, which a refused request has started.
    pub lease_end: Option<Time>,
}

/// Capabilities of all ports with a LID, both of adapters and of switches.
const CAPABILITIES: CapabilityMask = CapabilityMask::TRAP
    .with(CapabilityMask::SL_MAPPING)
    .with(CapabilityMask::LED_INFO)
    .with(CapabilityMask::SYSTEM_IMAGE_GUID)
    .with(CapabilityMask::EXTENDED_SPEEDS)
    .with(CapabilityMask::COMMUNICATION_MANAGEMENT)
    .with(CapabilityMask::CAPABILITY_MASK_NOTICE)
    .with(CapabilityMask::CLIENT_REREGISTRATION);

impl NodePort {
    /// A port after power-on. Port 0 of a switch has no link, and is always up.
    pub(super) fn new(number: u8, plan: &PlannedPort, is_switch: bool) -> Self {
        let is_own = is_switch && number == 0;
        let capability_mask = match (is_switch, number) {
            (true, 0) => CAPABILITIES.with(CapabilityMask::P_KEY_SWITCH_EXTERNAL_PORT_TRAP),
            (true, _) => CapabilityMask::NONE,
            _ => CAPABILITIES.with(CapabilityMask::AUTOMATIC_MIGRATION),
        };
        let mut info = PortInfo {
            gid_prefix: Gid::DEFAULT_PREFIX,
            lid: plan.lid,
            lmc: plan.lmc,
            capability_mask,
            local_port_num: number,
            port_state: if is_own { PortState::ACTIVE } else { PortState::DOWN },
            port_phys_state: PortPhysState::POLLING,
            link_down_default_state: PortPhysState::POLLING,
            neighbor_mtu: Mtu::BYTES_4096,
            mtu_cap: Mtu::BYTES_4096,
            vl_cap: VlCap::VL0_7,
            operational_vls: VlCap::VL0_7,
            vl_arbitration_high_cap: 64,
            vl_arbitration_low_cap: 64,
            guid_cap: if is_switch { 1 } else { GUIDS as u8 },
            // About 1 s for the longest path, and about 1 ms for an answer.
            subnet_timeout: TimeCode(18),
            resp_time_value: TimeCode(8),
            local_phy_errors: 8,
            overrun_errors: 8,
            ..PortInfo::default()
        };
        if is_own {
            info.port_phys_state = PortPhysState::LINK_UP;
        }
        let mut port = Self {
            info,
            guids: vec![Guid(0); usize::from(info.guid_cap)],
            p_keys: PKeys::default(),
            sl_to_vl: std::array::from_fn(|sl| default_lane(info.operational_vls, sl as u8)),
            arbitration: None,
            led: false,
            reregistrations: 0,
            counters: Counters::default(),
            lease_end: None,
        };
        port.guids[0] = plan.guid;
        port.set_rate(LinkRate::default());
        port
    }

    /// Sets the active rate of a port. The port then supports this rate and lower ones.
    pub fn set_rate(&mut self, rate: LinkRate) {
        let up_to = |bit: u8| bit | bit.saturating_sub(1);
        let info = &mut self.info;
        info.link_width_supported = LinkWidth::X1.with(rate.width);
        info.link_width_enabled = info.link_width_supported;
        info.link_width_active = rate.width;
        info.link_speed_supported = LinkSpeed(up_to(rate.speed.0));
        info.link_speed_enabled = info.link_speed_supported;
        info.link_speed_active = rate.speed;
        info.link_speed_ext_supported = LinkSpeedExt(up_to(rate.speed_ext.0));
        info.link_speed_ext_enabled = info.link_speed_ext_supported;
        info.link_speed_ext_active = rate.speed_ext;
    }

    /// Whether the port accepts arriving data packets: in the states Armed and Active (IBA 7.2.7).
    /// It accepts subnet management packets in other states, too.
    #[inline]
    pub fn takes_data(&self) -> bool {
        matches!(self.info.port_state, PortState::ARMED | PortState::ACTIVE)
    }

    #[inline]
    pub fn sends_data(&self) -> bool {
        self.info.port_state == PortState::ACTIVE
    }

    /// The VL of a service level at an adapter; `None` if the port does not have this VL.
    #[inline]
    pub fn lane(&self, sl: u8) -> Option<u8> {
        let lane = self.sl_to_vl[usize::from(sl & 15)];
        self.info.operational_vls.lanes().filter(|lanes| lane < *lanes).map(|_| lane)
    }

    pub fn gids(&self) -> impl Iterator<Item = Gid> {
        let guids = self.guids.iter().filter(|guid| guid.0 != 0);
        guids.map(|guid| Gid::new(self.info.gid_prefix, *guid))
    }

    /// Whether the port has a GID, with the prefix of the subnet or with the default prefix.
    pub fn has_gid(&self, gid: Gid) -> bool {
        let is_here = [self.info.gid_prefix, Gid::DEFAULT_PREFIX].contains(&gid.prefix());
        is_here && gid.guid() != Guid(0) && self.guids.contains(&gid.guid())
    }

    #[inline]
    pub fn is_linked(&self) -> bool {
        self.info.port_phys_state == PortPhysState::LINK_UP
    }
}

#[inline]
pub(super) fn default_lane(vls: VlCap, sl: u8) -> u8 {
    sl % vls.lanes().unwrap_or(1)
}
