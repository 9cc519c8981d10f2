//! The subnet management agent: Gets and Sets of a node's attributes (IBA 14.3).
//!
//! A datagram in, a datagram out, and a changed node. No I/O and no clock: the caller passes the
//! input port and the time ([`MadArrival`]), and the result has the changes that the caller must
//! act on ([`Changes`]).
//!
//! 1. [`directed`]: directed routes;
//! 2. `m_key`: access control;
//! 3. `port_info`, `attributes`: attributes;
//! 4. `traps`: unsolicited notices.

mod attributes;
pub mod directed;
mod m_key;
mod port_info;

pub use crate::node::{TRAPS_MAX, Traps};

use crate::node::{Node, NodeDrop};
use crate::time::Time;
use attributes::{Led, written};
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
    /// The input port; 0 from the node itself, at a switch.
    pub port: u8,
    pub slid: Lid,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The answer, and the changes of the node.
    Answer(Box<Mad>, Changes),
    /// The datagram is for the subnet manager or for a requester at this port.
    Manager,
    /// No answer: none was needed, or the datagram was dropped and counted.
    Nothing,
}

/// Changes of a port that others must act on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Its logical link state.
    pub state: bool,
    /// Its addresses.
    pub lid: bool,
    /// The subnet manager's LID or SL.
    pub sm: bool,
    /// Its prefix or its GUIDs.
    pub gids: bool,
    /// Its partitions.
    pub p_keys: bool,
    /// Client reregister.
    pub reregister: bool,
    /// The link of this port was taken down, so the other end goes down too.
    pub link: Option<u8>,
}

impl Changes {
    fn with(self, other: Self) -> Self {
        Self {
            state: self.state || other.state,
            lid: self.lid || other.lid,
            sm: self.sm || other.sm,
            gids: self.gids || other.gids,
            p_keys: self.p_keys || other.p_keys,
            reregister: self.reregister || other.reregister,
            link: self.link.or(other.link),
        }
    }
}

/// The least interval of two traps of a node, for any SubnetTimeout.
const TRAP_INTERVAL_MIN: Duration = Duration::from_millis(10);

const LED_INFO: AttributeId = AttributeId(0x0031);

/// Mellanox's attribute of vendor link speeds (FDR10). Subnet managers query it at all nodes of
/// this vendor, and a dump of a real cluster has such nodes.
const MELLANOX_EXTENDED_PORT_INFO: AttributeId = AttributeId(0xff90);

/// Handles a datagram of subnet management that has arrived at its node. `port` of the arrival must
/// be one of the node's.
pub fn handle(node: &mut Node, arrival: MadArrival, bytes: &Mad) -> Handled {
    let smp = LidSmp::parse(bytes);
    let header = smp.header;
    let has_manager = is_manager(node, arrival.port);
    match header.method {
        Method::GET | Method::SET | Method::TRAP_REPRESS => {}
        Method::TRAP if has_manager => return Handled::Manager,
        Method::TRAP => return unclaimed(node),
        method if method.is_response() => return Handled::Manager,
        _ => return answer(bytes, header, MadStatus::BAD_METHOD, &smp.data, Changes::default()),
    }
    if header.base_version != 1 || header.class_version != 1 {
        return answer(bytes, header, MadStatus::BAD_VERSION, &smp.data, Changes::default());
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
            // Traps are for managers.
            (false, true) => Handled::Manager,
            (false, false) => unclaimed(node),
        };
    }
    let mut data = smp.data;
    match attend(node, arrival, &header, access, &mut data) {
        Ok(changes) => answer(bytes, header, MadStatus::OK, &data, changes),
        Err(status) => answer(bytes, header, status, &smp.data, Changes::default()),
    }
}

/// A trap of the node that is due: the port it leaves by, where to, and the datagram.
pub fn poll_trap(node: &mut Node, now: Time) -> Option<(u8, Lid, Mad)> {
    node.traps.due().filter(|due| *due <= now)?;
    // The timeout of the first port; the subnet manager sets all ports to the same value.
    let port = &node.ports.get(usize::from(!node.is_switch()))?.info;
    let interval = Duration::from_nanos(port.subnet_timeout.nanoseconds()).max(TRAP_INTERVAL_MIN);
    let (port, smp) = node.traps.poll(now, interval)?;
    let info = &node.ports[usize::from(port)].info;
    Some((port, info.master_sm_lid, smp.emit()))
}

fn unclaimed(node: &mut Node) -> Handled {
    node.drops.count(NodeDrop::Unclaimed);
    Handled::Nothing
}

fn is_manager(node: &Node, port: u8) -> bool {
    let port = &node.ports[usize::from(node.managed_port(port))];
    port.info.capability_mask.contains(CapabilityMask::SM)
}

/// The answer: the request with a new header and attribute; path and key stay.
fn answer(
    bytes: &Mad,
    header: MadHeader,
    status: MadStatus,
    data: &[u8; 64],
    changes: Changes,
) -> Handled {
    let is_directed = header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE;
    let status = if is_directed { status.returning() } else { status };
    let header = MadHeader { method: header.method.response(), status, ..header };
    let mut answer = Box::new(*bytes);
    answer[..MadHeader::LEN].copy_from_slice(&header.emit());
    answer[64..128].copy_from_slice(data);
    Handled::Answer(answer, changes)
}

/// Executes a request; `data` is the attribute of the request, and then that of the answer.
fn attend(
    node: &mut Node,
    arrival: MadArrival,
    header: &MadHeader,
    access: Access,
    data: &mut [u8; 64],
) -> Result<Changes, MadStatus> {
    let (is_set, modifier) = (header.method == Method::SET, header.attribute_modifier);
    let mut changes = Changes::default();
    *data = match header.attribute_id {
        NodeDescription::ID if !is_set => node.description.to_data(),
        NodeInfo::ID if !is_set => attributes::node_info(node, arrival).to_data(),
        SwitchInfo::ID => attributes::switch_info(node, written(is_set, data).as_ref())?.to_data(),
        GuidInfo::ID => {
            changes.gids = is_set;
            attributes::guid_info(node, arrival, modifier, written(is_set, data).as_ref())?
                .to_data()
        }
        PortInfo::ID => {
            let request = PortInfo::from_data(data);
            if is_set {
                changes = port_info::set(node, arrival, modifier, &request)?;
            }
            let mut info = port_info::get(node, arrival, modifier, access == Access::KeyHidden)?;
            // Only the answer to the Set has this value.
            info.client_reregister = changes.reregister;
            info.to_data()
        }
        PKeyTable::ID => {
            changes.p_keys = is_set;
            attributes::p_key_table(node, arrival, modifier, written(is_set, data).as_ref())?
                .to_data()
        }
        SlToVlMappingTable::ID => {
            attributes::sl_to_vl(node, arrival, modifier, written(is_set, data).as_ref())?.to_data()
        }
        VlArbitrationTable::ID => {
            attributes::vl_arbitration(node, arrival, modifier, written(is_set, data).as_ref())?
                .to_data()
        }
        LinearForwardingTable::ID => {
            attributes::linear_table(node, modifier, written(is_set, data).as_ref())?.to_data()
        }
        RandomForwardingTable::ID => {
            attributes::random_table(node, modifier, written(is_set, data).as_ref())?.to_data()
        }
        MulticastForwardingTable::ID => {
            attributes::multicast_table(node, modifier, written(is_set, data).as_ref())?.to_data()
        }
        LED_INFO => {
            let new = is_set.then(|| Led(data[0] & 0x80 != 0));
            let Led(is_on) = attributes::led(node, arrival, modifier, new)?;
            let mut data = [0; 64];
            data[0] = u8::from(is_on) << 7;
            data
        }
        MELLANOX_EXTENDED_PORT_INFO if node.identity.vendor_id == attributes::MELLANOX => {
            attributes::mellanox_extended_port_info(
                node,
                arrival,
                modifier,
                is_set.then_some(&*data),
            )?
        }
        _ => return Err(MadStatus::BAD_METHOD_ATTRIBUTE),
    };
    Ok(changes)
}

#[cfg(test)]
mod tests;
