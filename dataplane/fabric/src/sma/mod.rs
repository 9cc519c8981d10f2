//! The subnet management agent: what a subnet manager reads of a node, and makes of it (IBA 14.3).
//!
//! A datagram in, a datagram out, and the node changed. No I/O and no clock: where a datagram came
//! in and when is said by whoever brings it ([`Arrival`]), and what the node's owner has to act on
//! is in the result ([`Changes`]).
//!
//! 1. [`directed`]: how packets find their way without any table;
//! 2. `m_key`: who may manage;
//! 3. `port_info`, `attributes`: what can be read and set;
//! 4. `traps`: what a node says without being asked.

mod attributes;
pub mod directed;
mod m_key;
mod port_info;
mod traps;

pub use traps::{TRAPS_MAX, Traps};

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

/// A management datagram.
pub type Mad = [u8; MAD_LEN];

/// How a datagram came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub now: Time,
    /// By which port of the node; 0 from the node itself, at a switch.
    pub port: u8,
    /// Where from, as its LRH says.
    pub slid: Lid,
}

/// What comes of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handled {
    /// This is the answer; and the node changed so.
    Answer(Box<Mad>, Changes),
    /// It is for the subnet manager at this port, or for whoever there asked.
    Manager,
    /// Nothing: it wanted no answer, or was dropped and counted.
    Nothing,
}

/// What of a port changed by a datagram that others act on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Its state.
    pub state: bool,
    /// Its addresses.
    pub lid: bool,
    /// Where the subnet manager is.
    pub sm: bool,
    /// Its prefix or its GUIDs.
    pub gids: bool,
    /// Its partitions.
    pub p_keys: bool,
    /// Whoever joined or subscribed anything there is to do so again.
    pub reregister: bool,
    /// The link of this port was taken down: the other end loses it too.
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

/// Time between two traps of a node, whatever the subnet manager says of timeouts.
const TRAP_INTERVAL_MIN: Duration = Duration::from_millis(10);

const LED_INFO: AttributeId = AttributeId(0x0031);

/// What devices of Mellanox say of link speeds of their own (FDR10), which subnet managers ask all
/// for that name this vendor. A dump of a real cluster has such nodes.
const MELLANOX_EXTENDED_PORT_INFO: AttributeId = AttributeId(0xff90);

/// Handles a datagram of subnet management that has arrived at its node. `port` of the arrival must
/// be one of the node's.
pub fn handle(node: &mut Node, arrival: Arrival, bytes: &Mad) -> Handled {
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
            // Managers send traps of their own.
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
    // The timeout of the first port: that of the others is the subnet manager's to keep equal.
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

/// Whether a subnet manager runs at a port.
fn is_manager(node: &Node, port: u8) -> bool {
    let port = &node.ports[usize::from(node.managed_port(port))];
    port.info.capability_mask.contains(CapabilityMask::SM)
}

/// The request with another header and attribute: paths and keys stay.
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

/// Does what is asked; `data` is the attribute of the request, and then that of the answer.
fn attend(
    node: &mut Node,
    arrival: Arrival,
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
            // The answer to the Set repeats this; nobody else sees it.
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
