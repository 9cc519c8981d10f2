//! All attributes but PortInfo: node, switch and tables (IBA 14.2.5).

use super::MadArrival;
use crate::node::{Forwarding, Node, NodePort, P_KEYS, PKeys};
use pollux_wire::address::Guid;
use pollux_wire::mad::smp::{
    GuidInfo, LinearForwardingTable, MulticastForwardingTable, MulticastForwardingTableModifier,
    NodeInfo, PKeyTable, PKeyTableModifier, RandomForwardingTable, SlToVlMappingTable,
    SlToVlModifier, SwitchInfo, VlArbitrationModifier, VlArbitrationTable,
};
use pollux_wire::mad::{Attribute, MadStatus};

type Answer<A> = Result<A, MadStatus>;

fn there<A>(attribute: Option<A>) -> Answer<A> {
    attribute.ok_or(MadStatus::BAD_FIELD)
}

/// Attributes of switches only.
fn forwarding(node: &mut Node) -> Answer<&mut Forwarding> {
    node.forwarding.as_deref_mut().ok_or(MadStatus::BAD_METHOD_ATTRIBUTE)
}

/// The port of a modifier; at nodes other than switches, always the receiving port.
fn port(node: &mut Node, arrival: MadArrival, number: u16) -> Answer<&mut NodePort> {
    let number = if node.is_switch() { usize::from(number) } else { usize::from(arrival.port) };
    there(node.ports.get_mut(number))
}

pub(super) fn node_info(node: &Node, arrival: MadArrival) -> NodeInfo {
    let port = &node.ports[usize::from(node.managed_port(arrival.port))];
    NodeInfo { port_guid: port.guids[0], local_port_num: arrival.port, ..node.identity }
}

pub(super) fn switch_info(node: &mut Node, new: Option<&SwitchInfo>) -> Answer<SwitchInfo> {
    let info = &mut forwarding(node)?.info;
    if let Some(new) = new {
        info.linear_fdb_top = new.linear_fdb_top;
        info.default_port = new.default_port;
        info.default_multicast_primary_port = new.default_multicast_primary_port;
        info.default_multicast_not_primary_port = new.default_multicast_not_primary_port;
        info.life_time = new.life_time;
        // Writing 1 clears it.
        info.port_state_change &= !new.port_state_change;
    }
    Ok(*info)
}

pub(super) fn guid_info(
    node: &mut Node,
    arrival: MadArrival,
    block: u32,
    new: Option<&GuidInfo>,
) -> Answer<GuidInfo> {
    const LEN: usize = 8;
    let managed = node.managed_port(arrival.port);
    let guids = &mut node.ports[usize::from(managed)].guids;
    // A switch has one GUID: its block is not full.
    let first = block as usize * LEN;
    let guids = there(guids.get_mut(first..).filter(|guids| !guids.is_empty()))?;
    if let Some(new) = new {
        // The first GUID is the port's own, and read-only.
        let own = usize::from(block == 0);
        guids.iter_mut().zip(new.guids).skip(own).for_each(|(guid, new)| *guid = new);
    }
    let guids = std::array::from_fn(|i| guids.get(i).copied().unwrap_or(Guid(0)));
    Ok(GuidInfo { guids })
}

pub(super) fn p_key_table(
    node: &mut Node,
    arrival: MadArrival,
    modifier: u32,
    new: Option<&PKeyTable>,
) -> Answer<PKeyTable> {
    const { assert!(P_KEYS * 2 == PKeyTable::LEN, "the table is one block") };
    let modifier = PKeyTableModifier::parse(&modifier.to_be_bytes());
    let port = port(node, arrival, modifier.port)?;
    there((modifier.block == 0).then_some(()))?;
    if let Some(new) = new {
        port.p_keys = PKeys::new(new.p_keys);
    }
    Ok(PKeyTable { p_keys: *port.p_keys.entries() })
}

pub(super) fn sl_to_vl(
    node: &mut Node,
    arrival: MadArrival,
    modifier: u32,
    new: Option<&SlToVlMappingTable>,
) -> Answer<SlToVlMappingTable> {
    let which = SlToVlModifier::parse(&modifier.to_be_bytes());
    if !node.is_switch() {
        let lanes = &mut port(node, arrival, 0)?.sl_to_vl;
        if let Some(new) = new {
            *lanes = new.lanes;
        }
        return Ok(SlToVlMappingTable { lanes: *lanes });
    }
    let (input, output) = (which.input_port, which.output_port);
    let is_there = |port: u8| usize::from(port) < node.ports.len();
    // SwitchInfo says that Sets to all ports at once are not supported.
    let is_one = !which.all_input_ports && !which.all_output_ports;
    there((is_one && is_there(input) && is_there(output)).then_some(()))?;
    let vls = node.ports[usize::from(output)].info.operational_vls;
    let forwarding = forwarding(node)?;
    if let Some(new) = new {
        forwarding.set_lanes(input, output, new.lanes);
    }
    let lanes = std::array::from_fn(|sl| forwarding.lane(input, output, sl as u8, vls));
    Ok(SlToVlMappingTable { lanes })
}

pub(super) fn vl_arbitration(
    node: &mut Node,
    arrival: MadArrival,
    modifier: u32,
    new: Option<&VlArbitrationTable>,
) -> Answer<VlArbitrationTable> {
    let which = VlArbitrationModifier::parse(&modifier.to_be_bytes());
    let part = usize::from(which.part.0.wrapping_sub(1));
    let port = port(node, arrival, which.port)?;
    there((part < 4).then_some(()))?;
    if let Some(new) = new {
        port.arbitration.get_or_insert_default()[part] = *new;
    }
    Ok(port.arbitration.as_ref().map_or_else(VlArbitrationTable::default, |parts| parts[part]))
}

pub(super) fn linear_table(
    node: &mut Node,
    block: u32,
    new: Option<&LinearForwardingTable>,
) -> Answer<LinearForwardingTable> {
    let forwarding = forwarding(node)?;
    let is_done = new.is_none_or(|new| forwarding.set_linear_block(block, new));
    there(forwarding.linear_block(block).filter(|_| is_done))
}

pub(super) fn random_table(
    node: &mut Node,
    block: u32,
    new: Option<&RandomForwardingTable>,
) -> Answer<RandomForwardingTable> {
    let forwarding = forwarding(node)?;
    let is_done = new.is_none_or(|new| forwarding.set_random_block(block, new));
    there(forwarding.random_block(block).filter(|_| is_done))
}

pub(super) fn multicast_table(
    node: &mut Node,
    modifier: u32,
    new: Option<&MulticastForwardingTable>,
) -> Answer<MulticastForwardingTable> {
    let which = MulticastForwardingTableModifier::parse(&modifier.to_be_bytes());
    let forwarding = forwarding(node)?;
    let is_done = new.is_none_or(|new| forwarding.set_multicast_block(which, new));
    there(forwarding.multicast_block(which).filter(|_| is_done))
}

/// The LED of a port: the first bit of the attribute (IBA 14.2.5.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Led(pub bool);

pub(super) fn led(
    node: &mut Node,
    arrival: MadArrival,
    modifier: u32,
    new: Option<Led>,
) -> Answer<Led> {
    let port = port(node, arrival, modifier as u16)?;
    if let Some(new) = new {
        port.led = new.0;
    }
    Ok(Led(port.led))
}

pub(super) const MELLANOX: u32 = 0x02_c9;

/// A port's speeds beside those of the specification: none is supported, none active, and none can
/// be enabled. Bytes 7, 11 and 15 are the three, and byte 3 asks for traps of them.
pub(super) fn mellanox_extended_port_info(
    node: &mut Node,
    arrival: MadArrival,
    modifier: u32,
    new: Option<&[u8; 64]>,
) -> Answer<[u8; 64]> {
    const ENABLED: usize = 11;
    port(node, arrival, modifier as u16)?;
    there(new.is_none_or(|new| new[ENABLED] == 0).then_some([0; 64]))
}

/// Takes the attribute out of a Set, and none out of a Get.
pub(super) fn written<A: Attribute>(is_set: bool, data: &[u8; 64]) -> Option<A> {
    is_set.then(|| A::from_data(data))
}
