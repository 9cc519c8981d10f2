//! The state of a node as subnet management sees it: identity, ports, forwarding tables (IBA
//! 14.2.5).
//!
//! Agents write this state ([`crate::sma`], [`crate::pma`]), and forwarding reads it. A forwarding
//! decision takes a few loads, whatever the size of the tables. The fields are the attributes of
//! the specification, so an agent answers with the real state.

mod counters;
mod drops;
mod forwarding;
mod p_keys;
mod port;
mod port_set;
mod traps;

pub use counters::{Counter, Counters};
pub use drops::{NodeDrop, NodeDrops};
pub use forwarding::Forwarding;
pub use p_keys::{P_KEYS, PKeys};
pub use port::{GUIDS, NodePort};
pub use port_set::PortSet;
pub use traps::{TRAPS_MAX, Traps};

use crate::topology::{LinkRate, PlannedNode};
use pollux_hca::violation::KeyViolation;
use pollux_wire::address::{Gid, Lid};
use pollux_wire::keys::PKey;
use pollux_wire::mad::notice::{
    CapabilityTrap, LinkStateTrap, Notice, NoticeType, ProducerType, TrapDetails, TrapNumber,
};
use pollux_wire::mad::smp::{
    CapabilityMask, NodeDescription, NodeInfo, NodeType, PortInfo, PortPhysState, PortState, VlCap,
};
use pollux_wire::units::Mtu;

#[derive(Clone, Debug)]
pub struct SubnetNode {
    /// NodeInfo. The agent sets the two fields about the receiving port in each answer.
    pub identity: NodeInfo,
    pub description: NodeDescription,
    /// The ports, by number. Port 0 is the management port of a switch, and unused at other nodes.
    pub ports: Vec<NodePort>,
    pub forwarding: Option<Box<Forwarding>>,
    pub traps: Traps,
    pub drops: NodeDrops,
}

impl SubnetNode {
    /// A node after power-on: links down, tables empty.
    pub fn new(plan: &PlannedNode) -> Self {
        let is_switch = plan.kind == NodeType::SWITCH;
        let port = |(number, planned)| NodePort::new(number, planned, is_switch);
        let identity = NodeInfo {
            base_version: 1,
            class_version: 1,
            node_type: plan.kind,
            num_ports: plan.num_ports(),
            system_image_guid: plan.system_image_guid,
            node_guid: plan.guid,
            partition_cap: P_KEYS as u16,
            device_id: plan.device_id,
            vendor_id: plan.vendor_id,
            ..NodeInfo::default()
        };
        Self {
            identity,
            description: NodeDescription::new(&plan.name),
            ports: (0..).zip(&plan.ports).map(port).collect(),
            forwarding: is_switch.then(|| Box::new(Forwarding::new(plan.num_ports()))),
            traps: Traps::default(),
            drops: NodeDrops::default(),
        }
    }

    pub fn is_switch(&self) -> bool {
        self.identity.node_type == NodeType::SWITCH
    }

    /// The port that has the LID, GUIDs and P_Keys for `port`: port 0 at a switch, and `port`
    /// itself at other nodes.
    pub fn managed_port(&self, port: u8) -> u8 {
        if self.is_switch() { 0 } else { port }
    }

    pub fn lid(&self, port: u8) -> Lid {
        self.ports[usize::from(self.managed_port(port))].info.lid
    }

    pub fn gid(&self, port: u8) -> Gid {
        let port = &self.ports[usize::from(self.managed_port(port))];
        Gid::new(port.info.gid_prefix, port.guids[0])
    }

    /// The P_Key that a port sends in the partition of `p_key`: the entry of its own table. Without
    /// such an entry, the key stays unchanged.
    pub fn own_p_key(&self, port: u8, p_key: PKey) -> PKey {
        let keys = &self.ports[usize::from(self.managed_port(port))].p_keys;
        keys.matching(p_key.full()).map_or(p_key, |at| keys.entries()[usize::from(at)])
    }

    /// The P_Key for a program that gives none: the first valid key of the port's table, as in
    /// Linux (`umad_set_pkey`).
    pub fn first_p_key(&self, port: u8) -> PKey {
        let keys = self.ports[usize::from(self.managed_port(port))].p_keys.entries();
        keys.iter().find(|key| key.is_valid()).copied().unwrap_or(PKey::DEFAULT)
    }

    /// Whether a port accepts general services datagrams with this key: it is in the partition, and
    /// the port or the sender is a full member.
    pub fn takes_p_key(&self, port: u8, p_key: PKey) -> bool {
        self.ports[usize::from(self.managed_port(port))].p_keys.matching(p_key).is_some()
    }

    /// Whether a packet to this LID that arrived at `port` is for the node itself.
    pub fn has_lid(&self, port: u8, dlid: Lid) -> bool {
        let info = &self.ports[usize::from(self.managed_port(port))].info;
        dlid == Lid::PERMISSIVE || info.lid != Lid::NONE && info.lid.covers(info.lmc, dlid)
    }

    /// Sets the link of a port to trained: subnet management packets can pass (IBA 7.2.7).
    ///
    /// Both ends get the MTU and VLs that a subnet manager would compute, so the manager need not
    /// retrain the link.
    pub fn link_up(&mut self, port: u8, peer: &PortInfo, rate: LinkRate) {
        let info = &mut self.ports[usize::from(port)].info;
        info.port_phys_state = PortPhysState::LINK_UP;
        info.port_state = PortState::INITIALIZE;
        info.neighbor_mtu = Mtu(info.mtu_cap.0.min(peer.mtu_cap.0));
        info.operational_vls = VlCap(info.vl_cap.0.min(peer.vl_cap.0));
        info.link_width_active = rate.width;
        info.link_speed_active = rate.speed;
        info.link_speed_ext_active = rate.speed_ext;
        self.report_link_change();
    }

    pub fn link_down(&mut self, port: u8, phys_state: PortPhysState) {
        let port = &mut self.ports[usize::from(port)];
        port.info.port_phys_state = phys_state;
        if port.info.port_state != PortState::DOWN {
            port.info.port_state = PortState::DOWN;
            port.counters.link_downed.add(1);
            self.report_link_change();
        }
    }

    /// At a switch, records that the state of a link has changed, and raises a trap.
    fn report_link_change(&mut self) {
        let lid = self.lid(0);
        let Some(forwarding) = &mut self.forwarding else { return };
        forwarding.info.port_state_change = true;
        let details = TrapDetails::LinkState(LinkStateTrap { lid });
        self.raise(0, TrapNumber::LINK_STATE_CHANGED, details);
    }

    /// Changes the capabilities of a port, and raises trap 144.
    pub fn set_capability(&mut self, port: u8, capability: CapabilityMask) {
        let port = self.managed_port(port);
        let info = &mut self.ports[usize::from(port)].info;
        if info.capability_mask == capability {
            return;
        }
        info.capability_mask = capability;
        let trap = CapabilityTrap {
            lid: info.lid,
            capability_mask: capability,
            ..CapabilityTrap::default()
        };
        self.raise(port, TrapNumber::CAPABILITY_CHANGED, TrapDetails::Capability(trap));
    }

    /// Counts a P_Key or Q_Key violation that the adapter at a port reports, and raises a trap (IBA
    /// 14.2.5.1).
    pub fn key_violation(&mut self, port: u8, violation: &KeyViolation) {
        let info = &mut self.ports[usize::from(port)].info;
        let count = match violation.trap_number {
            TrapNumber::BAD_Q_KEY => &mut info.q_key_violations,
            _ => &mut info.p_key_violations,
        };
        *count = count.saturating_add(1);
        self.raise(port, violation.trap_number, violation.details());
    }

    /// Raises a trap, if the port knows a subnet manager.
    pub fn raise(&mut self, port: u8, trap_number: TrapNumber, details: TrapDetails) {
        let port = self.managed_port(port);
        let info = &self.ports[usize::from(port)].info;
        if info.master_sm_lid == Lid::NONE {
            return;
        }
        let notice = Notice {
            is_generic: true,
            notice_type: notice_type(trap_number),
            producer: ProducerType(self.identity.node_type.0.into()),
            trap_number,
            issuer_lid: info.lid,
            data_details: details.emit(),
            ..Notice::default()
        };
        self.traps.raise(port, notice);
    }
}

/// The severity of each trap (IBA 14.2.5.1).
fn notice_type(trap: TrapNumber) -> NoticeType {
    match trap {
        TrapNumber::CAPABILITY_CHANGED | TrapNumber::SYSTEM_IMAGE_GUID_CHANGED => {
            NoticeType::INFORMATIONAL
        }
        TrapNumber::BAD_M_KEY
        | TrapNumber::BAD_P_KEY
        | TrapNumber::BAD_Q_KEY
        | TrapNumber::BAD_P_KEY_AT_SWITCH => NoticeType::SECURITY,
        _ => NoticeType::URGENT,
    }
}
