//! The subnet management agent: Gets and Sets of a node's attributes (IBA 14.3).
//!
//! [`handle`] takes a datagram, changes the node, and returns the answer. There is no I/O and no
//! clock: the caller passes the input port and the time ([`MadArrival`]).
//!
//! 1. [`directed`]: directed routes;
//! 2. `m_key`: access control;
//! 3. `port_info`, `attributes`: attributes;
//! 4. [`poll_trap`]: traps of the node ([`Traps`](crate::node::Traps)).

mod attributes;
pub mod directed;
mod m_key;
mod port_info;

use crate::node::{NodeDrop, SubnetNode};
use crate::time::Time;
use attributes::Instance;
use m_key::Access;
use pollux_wire::address::Lid;
use pollux_wire::mad::smp::{
    CapabilityMask, GuidInfo, LidSmp, LinearForwardingTable, MulticastForwardingTable,
    NodeDescription, NodeInfo, PKeyTable, PortInfo, RandomForwardingTable, SlToVlMappingTable,
    SmInfo, SwitchInfo, VlArbitrationTable,
};
use pollux_wire::mad::{Attribute, AttributeId, MAD_LEN, MadHeader, MadStatus, Method, MgmtClass};
use std::time::Duration;

pub type Mad = [u8; MAD_LEN];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadArrival {
    pub now: Time,
    /// The input port; 0 for a datagram that a switch sends to itself.
    pub port: u8,
    pub slid: Lid,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The answer, and the port whose link the request took down. The caller must take down the
    /// other end of that link, too.
    Answer(Box<Mad>, Option<u8>),
    /// The datagram is for the subnet manager or for a requester at this port.
    Manager,
    /// There is no answer: none is needed, or the datagram was dropped and counted.
    Nothing,
}

/// The minimum interval between two traps of a node, whatever its SubnetTimeout.
const TRAP_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The IEEE OUI of Mellanox.
const MELLANOX: u32 = 0x02_c9;

const LED_INFO: AttributeId = AttributeId(0x0031);

/// Mellanox's attribute of vendor link speeds (FDR10). Subnet managers query it at all nodes of
/// this vendor, and dumps of real clusters have such nodes.
const MELLANOX_EXTENDED_PORT_INFO: AttributeId = AttributeId(0xff90);

/// Handles a datagram of subnet management that has arrived at its node. The node must have the
/// port of the arrival.
pub fn handle(node: &mut SubnetNode, arrival: MadArrival, bytes: &Mad) -> Handled {
    let smp = LidSmp::parse(bytes);
    let header = smp.header;
    let has_manager = is_manager(node, arrival.port);
    match header.method {
        Method::GET | Method::SET | Method::TRAP_REPRESS => {}
        Method::TRAP if has_manager => return Handled::Manager,
        Method::TRAP => return unclaimed(node),
        method if method.is_response() => return Handled::Manager,
        _ => return answer(bytes, header, MadStatus::BAD_METHOD, &smp.data, None),
    }
    if header.base_version != 1 || header.class_version != 1 {
        return answer(bytes, header, MadStatus::BAD_VERSION, &smp.data, None);
    }
    if header.attribute_id == SmInfo::ID && has_manager && header.method != Method::TRAP_REPRESS {
        return Handled::Manager;
    }
    let access = m_key::check(node, arrival, &smp, bytes);
    if access == Access::Refused {
        node.drops.count(NodeDrop::MKey);
        return Handled::Nothing;
    }
    if header.method == Method::TRAP_REPRESS {
        let is_ours = node.traps.repress(header.transaction_id);
        return match (is_ours, has_manager) {
            (true, _) => Handled::Nothing,
            // The manager at this port may have sent the trap.
            (false, true) => Handled::Manager,
            (false, false) => unclaimed(node),
        };
    }
    let mut data = smp.data;
    match execute(node, arrival, &header, access, &mut data) {
        Ok(link_down) => answer(bytes, header, MadStatus::OK, &data, link_down),
        Err(status) => answer(bytes, header, status, &smp.data, None),
    }
}

/// A trap of the node that is due: its port, the LID of the manager, and the datagram.
pub fn poll_trap(node: &mut SubnetNode, now: Time) -> Option<(u8, Lid, Mad)> {
    node.traps.due().filter(|due| *due <= now)?;
    // The timeout of the first port; the subnet manager sets all ports to the same value.
    let port = &node.ports.get(usize::from(!node.is_switch()))?.info;
    let interval = Duration::from_nanos(port.subnet_timeout.nanoseconds()).max(TRAP_INTERVAL_MIN);
    let (port, smp) = node.traps.poll(now, interval)?;
    let info = &node.ports[usize::from(port)].info;
    Some((port, info.master_sm_lid, smp.emit()))
}

fn unclaimed(node: &mut SubnetNode) -> Handled {
    node.drops.count(NodeDrop::Unclaimed);
    Handled::Nothing
}

fn is_manager(node: &SubnetNode, port: u8) -> bool {
    let port = &node.ports[usize::from(node.managed_port(port))];
    port.info.capability_mask.contains(CapabilityMask::SM)
}

/// The answer: the request with a new header and attribute. Path and M_Key stay.
fn answer(
    bytes: &Mad,
    header: MadHeader,
    status: MadStatus,
    data: &[u8; 64],
    link_down: Option<u8>,
) -> Handled {
    let is_directed = header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE;
    let status = if is_directed { status.returning() } else { status };
    let header = MadHeader { method: header.method.response(), status, ..header };
    let mut answer = Box::new(*bytes);
    answer[..MadHeader::LEN].copy_from_slice(&header.emit());
    answer[64..128].copy_from_slice(data);
    Handled::Answer(answer, link_down)
}

/// Executes a request. `data` has the attribute of the request, and then that of the answer.
/// Returns the port whose link went down, if any.
fn execute(
    node: &mut SubnetNode,
    arrival: MadArrival,
    header: &MadHeader,
    access: Access,
    data: &mut [u8; 64],
) -> Result<Option<u8>, MadStatus> {
    let (is_set, modifier) = (header.method == Method::SET, header.attribute_modifier);
    if header.attribute_id == PortInfo::ID {
        let set = is_set.then(|| PortInfo::from_data(data));
        let (link_down, info) = port_info::access(node, arrival, modifier, set, access)?;
        *data = info.to_data();
        return Ok(link_down);
    }
    let request = *data;
    let set = is_set.then_some(&request);
    let is_mellanox = node.identity.vendor_id == MELLANOX;
    let mut at = Instance { node, arrival_port: arrival.port, modifier };
    *data = match header.attribute_id {
        NodeDescription::ID if !is_set => at.node.description.to_data(),
        NodeInfo::ID if !is_set => at.node_info().to_data(),
        SwitchInfo::ID => at.switch_info(parse(set))?.to_data(),
        GuidInfo::ID => at.guid_info(parse(set))?.to_data(),
        PKeyTable::ID => at.p_key_table(parse(set))?.to_data(),
        SlToVlMappingTable::ID => at.sl_to_vl(parse(set))?.to_data(),
        VlArbitrationTable::ID => at.vl_arbitration(parse(set))?.to_data(),
        LinearForwardingTable::ID => at.linear_table(parse(set))?.to_data(),
        RandomForwardingTable::ID => at.random_table(parse(set))?.to_data(),
        MulticastForwardingTable::ID => at.multicast_table(parse(set))?.to_data(),
        LED_INFO => at.led(set)?,
        MELLANOX_EXTENDED_PORT_INFO if is_mellanox => at.mellanox_extended_port_info(set)?,
        _ => return Err(MadStatus::BAD_METHOD_ATTRIBUTE),
    };
    Ok(None)
}

fn parse<A: Attribute>(data: Option<&[u8; 64]>) -> Option<A> {
    data.map(A::from_data)
}

#[cfg(test)]
mod tests;
