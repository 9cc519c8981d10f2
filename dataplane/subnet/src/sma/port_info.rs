//! PortInfo: Get, Set, and the transitions of the port state (IBA 14.2.5.6, 7.2.7).
//!
//! ```text
//!               training          Set Armed        Set Active
//!      Down ---------------> Initialize ------> Armed ------> Active
//!       ^                        |                |              |
//!       +------- link lost, or Set Down, or a physical state ----+
//! ```
//!
//! A Set is applied completely or not at all. Read-only fields of a Set are ignored, because subnet
//! managers send back all fields that they have read.

use super::MadArrival;
use super::m_key::Access;
use crate::node::{NodePort, SubnetNode};
use pollux_wire::address::Lid;
use pollux_wire::mad::MadStatus;
use pollux_wire::mad::smp::{
    LinkSpeed, LinkSpeedExt, LinkWidth, MKey, PortInfo, PortInfoModifier, PortPhysState, PortState,
};

/// The port number in an attribute modifier; an error if the node does not have this port.
fn port_number(node: &SubnetNode, arrival: MadArrival, modifier: u32) -> Result<u8, MadStatus> {
    let port = PortInfoModifier::parse(&modifier.to_be_bytes()).port;
    let port = if port == 0 && !node.is_switch() { arrival.port } else { port };
    let is_there = usize::from(port) < node.ports.len();
    is_there.then_some(port).ok_or(MadStatus::BAD_FIELD)
}

/// Applies a Set, if there is one. Returns the port whose link went down, and the PortInfo of the
/// answer.
pub(super) fn access(
    node: &mut SubnetNode,
    arrival: MadArrival,
    modifier: u32,
    set: Option<PortInfo>,
    access: Access,
) -> Result<(Option<u8>, PortInfo), MadStatus> {
    let number = port_number(node, arrival, modifier)?;
    let has_addresses = number == node.managed_port(number);
    let link_down = match &set {
        Some(new) => apply(node, number, new)?,
        None => None,
    };
    let mut info = node.ports[usize::from(number)].info;
    info.local_port_num = arrival.port;
    if access == Access::KeyHidden {
        info.m_key = MKey::default();
    }
    // ClientReregister is set only in the answer to the Set that has it.
    info.client_reregister = has_addresses && set.is_some_and(|new| new.client_reregister);
    Ok((link_down, info))
}

fn apply(node: &mut SubnetNode, number: u8, new: &PortInfo) -> Result<Option<u8>, MadStatus> {
    let has_addresses = number == node.managed_port(number);
    let has_link = number > 0;
    let port = &mut node.ports[usize::from(number)];
    let now = &port.info;
    let fits = is_within_capabilities(now, new)
        && (!has_addresses || has_valid_addresses(now, new))
        && (!has_link || is_reachable(now.port_state, new.port_state))
        && new.port_phys_state.0 <= PortPhysState::DISABLED.0
        && new.link_down_default_state.0 <= PortPhysState::POLLING.0;
    if !fits {
        return Err(MadStatus::BAD_FIELD);
    }
    if has_addresses {
        set_addresses(port, new);
    }
    if !has_link {
        return Ok(None);
    }
    set_link(&mut port.info, new);
    let is_down = set_state(node, number, new);
    Ok(is_down.then_some(number))
}

fn is_within_capabilities(now: &PortInfo, new: &PortInfo) -> bool {
    let (width, speed) = (new.link_width_enabled, new.link_speed_enabled);
    let ext = new.link_speed_ext_enabled;
    new.neighbor_mtu <= now.mtu_cap
        && new.operational_vls <= now.vl_cap
        && (width == LinkWidth::ALL_SUPPORTED || now.link_width_supported.contains(width))
        && (speed == LinkSpeed::ALL_SUPPORTED || now.link_speed_supported.contains(speed))
        && (is_all_or_none(ext) || now.link_speed_ext_supported.contains(ext))
}

/// Whether the field has one of its two special values (IBA 14.2.5.6): 31 for all supported
/// speeds, 30 for none.
fn is_all_or_none(ext: LinkSpeedExt) -> bool {
    matches!(ext.0, 30 | 31)
}

/// Whether the LIDs of a Set are valid. An unchanged LID is always valid, even 0.
fn has_valid_addresses(now: &PortInfo, new: &PortInfo) -> bool {
    let is_valid = |now: Lid, new: Lid| now == new || new.is_unicast();
    is_valid(now.lid, new.lid) && is_valid(now.master_sm_lid, new.master_sm_lid)
}

/// Whether a Set can bring a port from one state to another. A port can also be set to Armed or
/// Active when it already has that state.
fn is_reachable(from: PortState, to: PortState) -> bool {
    match to {
        PortState::NO_CHANGE | PortState::DOWN => true,
        PortState::ARMED => matches!(from, PortState::INITIALIZE | PortState::ARMED),
        PortState::ACTIVE => matches!(from, PortState::ARMED | PortState::ACTIVE),
        _ => false,
    }
}

fn set_addresses(port: &mut NodePort, new: &PortInfo) {
    let info = &mut port.info;
    port.reregistrations = port.reregistrations.wrapping_add(new.client_reregister.into());
    (info.lid, info.lmc) = (new.lid, new.lmc);
    (info.master_sm_lid, info.master_sm_sl) = (new.master_sm_lid, new.master_sm_sl);
    info.gid_prefix = new.gid_prefix;
    info.m_key = new.m_key;
    info.m_key_protection = new.m_key_protection;
    info.m_key_lease_period = new.m_key_lease_period;
    info.subnet_timeout = new.subnet_timeout;
    info.init_type_reply = new.init_type_reply;
    info.multicast_p_key_trap_suppression = new.multicast_p_key_trap_suppression;
    // Counters of violations can only be set to 0 (IBA 14.2.5.6).
    for (counter, new) in [
        (&mut info.m_key_violations, new.m_key_violations),
        (&mut info.p_key_violations, new.p_key_violations),
        (&mut info.q_key_violations, new.q_key_violations),
    ] {
        *counter = if new == 0 { 0 } else { *counter };
    }
    port.lease_end = None;
}

/// Applies the link settings of a Set. In MTU, VLs, widths and speeds, zero means no change.
fn set_link(info: &mut PortInfo, new: &PortInfo) {
    if new.neighbor_mtu.0 != 0 {
        info.neighbor_mtu = new.neighbor_mtu;
    }
    if new.operational_vls.0 != 0 {
        info.operational_vls = new.operational_vls;
    }
    info.link_width_enabled = match new.link_width_enabled {
        LinkWidth::NONE => info.link_width_enabled,
        LinkWidth::ALL_SUPPORTED => info.link_width_supported,
        width => width,
    };
    info.link_speed_enabled = match new.link_speed_enabled {
        LinkSpeed::NONE => info.link_speed_enabled,
        LinkSpeed::ALL_SUPPORTED => info.link_speed_supported,
        speed => speed,
    };
    info.link_speed_ext_enabled = match new.link_speed_ext_enabled {
        LinkSpeedExt(0) => info.link_speed_ext_enabled,
        LinkSpeedExt(30) => LinkSpeedExt::NONE,
        LinkSpeedExt(31) => info.link_speed_ext_supported,
        ext => ext,
    };
    if new.link_down_default_state != PortPhysState::NO_CHANGE {
        info.link_down_default_state = new.link_down_default_state;
    }
    info.vl_high_limit = new.vl_high_limit;
    info.vl_stall_count = new.vl_stall_count;
    info.hoq_life = new.hoq_life;
    info.local_phy_errors = new.local_phy_errors;
    info.overrun_errors = new.overrun_errors;
    info.partition_enforcement_inbound = new.partition_enforcement_inbound;
    info.partition_enforcement_outbound = new.partition_enforcement_outbound;
    info.filter_raw_inbound = new.filter_raw_inbound;
    info.filter_raw_outbound = new.filter_raw_outbound;
}

/// Sets the state of a port; returns whether its link went down.
fn set_state(node: &mut SubnetNode, number: u8, new: &PortInfo) -> bool {
    let info = &mut node.ports[usize::from(number)].info;
    let phys_state = match (new.port_phys_state, new.port_state) {
        (PortPhysState::NO_CHANGE, PortState::DOWN) => info.link_down_default_state,
        (PortPhysState::NO_CHANGE, PortState::NO_CHANGE) => return false,
        (PortPhysState::NO_CHANGE, state) => {
            info.port_state = state;
            return false;
        }
        (phys_state, _) => phys_state,
    };
    node.link_down(number, phys_state);
    true
}
