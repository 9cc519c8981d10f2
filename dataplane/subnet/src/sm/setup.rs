//! Sets of the manager: partitions, routes, groups, VLs, LIDs and states of ports (IBA 14.4.4).
//! Only changes are written.
//!
//! Tables are written before ports are armed, so that a port becomes active only after the routes
//! and partitions of its packets are written.

use super::discovery::port_modifier;
use super::requests::Request;
use super::{Purpose, SubnetManager};
use crate::node::PortSet;
use crate::partitions::Candidate;
use crate::view::{PortRef, SeenNode, View};
use pollux_wire::address::{Guid, Lid};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::{
    CapabilityMask, LinearForwardingTable, MKey, MKeyProtection, MulticastForwardingTable,
    MulticastForwardingTableModifier, PKeyTable, PKeyTableModifier, PortInfo, PortPhysState,
    PortState, SwitchInfo, VlCap,
};
use pollux_wire::units::{Mtu, TimeCode};
use std::collections::{BTreeMap, BTreeSet};

/// The head-of-queue lifetime: about 1 s towards switches, and about 0.25 s towards hosts, so that
/// a host that does not receive does not block other packets for long.
const HOQ_LIFE_TO_SWITCHES: TimeCode = TimeCode(18);
const HOQ_LIFE_TO_HOSTS: TimeCode = TimeCode(16);
const STALL_COUNT: u8 = 7;

impl SubnetManager {
    /// Writes partitions, routes and groups.
    pub(super) fn write_tables(&mut self, before: &View) {
        self.sa.handle_changes(before, &self.view);
        for node in 0..self.view.nodes.len() as u32 {
            self.write_switch(node);
            let ports: Vec<u8> = self.view.node(node).managed_ports().collect();
            for at in ports.into_iter().map(|port| PortRef { node, port }) {
                self.write_partitions(at);
            }
        }
        self.write_all_groups();
    }

    fn write_switch(&mut self, node: u32) {
        let path = self.view.node(node).path(0);
        let lid_last = self.view.lid_last();
        let life_time = self.config.packet_life_time;
        let Some(switch) = self.view.switch_mut(node) else { return };
        let new = SwitchInfo { linear_fdb_top: lid_last, life_time, ..switch.info };
        if new != switch.info || new.port_state_change {
            let purpose = match new.port_state_change {
                true => Purpose::ClearChange(node),
                false => Purpose::SetSwitchInfo(node),
            };
            self.requests.ask(Request::set(path, 0, new, purpose));
        }
        for block in 0..=lid_last.0 / 64 {
            let ports = switch.wanted_block(block);
            if switch.written.insert(block, ports) != Some(ports) {
                let purpose = Purpose::SetLinearBlock(node, block);
                let table = LinearForwardingTable { ports };
                self.requests.ask(Request::set(path, block.into(), table, purpose));
            }
        }
    }

    /// Writes the P_Keys of a port, and the same keys at the switch port at the other end.
    fn write_partitions(&mut self, at: PortRef) {
        let (node, port) = (self.view.node(at.node), self.view.port(at));
        if port.guid == Guid(0) || port.info.is_none() {
            return;
        }
        let (guid, peer, kind) = (port.guid, port.peer, node.info.node_type);
        let candidate = Candidate { guid, kind, is_manager: guid == self.guid };
        let keys = self.config.partitions.keys(&candidate);
        let (is_switch, cap) = (node.is_switch(), node.info.partition_cap);
        self.write_p_keys(at, &keys, cap);
        let Some(peer) = peer.filter(|_| !is_switch && self.config.switches_enforce_partitions)
        else {
            return;
        };
        if let Some(switch) = &self.view.node(peer.node).switch {
            let cap = switch.info.partition_enforcement_cap;
            self.write_p_keys(peer, &keys, cap);
        }
    }

    fn write_p_keys(&mut self, at: PortRef, keys: &[PKey], cap: u16) {
        if cap == 0 {
            return;
        }
        let (node, port) = (self.view.node(at.node), self.view.port(at));
        // If a port has no space for all its keys, the sweep counts as failed.
        let fitting = &keys[..keys.len().min(cap.into())];
        self.failed += u64::from(fitting.len() < keys.len());
        let keys = fitting;
        if port.p_keys.as_deref() == Some(keys) {
            return;
        }
        let (path, is_switch) = (node.path(at.port), node.is_switch());
        let blocks = keys.len().max(port.p_keys.as_ref().map_or(0, Vec::len)).div_ceil(32).max(1);
        self.view.port_mut(at).p_keys = Some(keys.to_vec());
        for block in 0..blocks {
            let key = |i: usize| keys.get(block * 32 + i).copied().unwrap_or(PKey::INVALID);
            let table = PKeyTable { p_keys: std::array::from_fn(key) };
            let port = if is_switch { at.port.into() } else { 0 };
            let modifier = PKeyTableModifier { port, block: block as u16 };
            let modifier = u32::from_be_bytes(modifier.emit());
            self.requests.ask(Request::set(path, modifier, table, Purpose::SetPKeys(at)));
        }
    }

    /// Writes all groups, because links may have changed.
    fn write_all_groups(&mut self) {
        self.sa.take_changed_groups();
        self.view.switches_mut().for_each(|switch| switch.groups_wanted.clear());
        self.write_groups_of(self.sa.mlids().collect());
    }

    /// Whether changes of groups can be written now. Earlier changes must be written, and no
    /// discovery may be active, because all groups are written after it.
    pub(super) const fn writes_groups(&self) -> bool {
        let is_discovering = matches!(self.sweep, super::Sweep::Discovering);
        self.state.is_in_charge() && !is_discovering && !self.requests.has_groups()
    }

    pub(super) fn write_changed_groups(&mut self) {
        if !self.writes_groups() {
            return;
        }
        let changed = self.sa.take_changed_groups();
        if !changed.is_empty() {
            for switch in self.view.switches_mut() {
                switch.groups_wanted.retain(|mlid, _| !changed.contains(mlid));
            }
            self.write_groups_of(changed);
        }
    }

    fn write_groups_of(&mut self, mlids: BTreeSet<Lid>) {
        let Some(trees) = &mut self.trees else { return };
        for mlid in mlids {
            let members = self.sa.members(mlid, &self.view);
            for (node, ports) in trees.tree(&self.view, mlid, members.into_iter()) {
                if let Some(switch) = self.view.switch_mut(node)
                    && !ports.is_empty()
                {
                    switch.groups_wanted.insert(mlid, ports);
                }
            }
        }
        (0..self.view.nodes.len() as u32).for_each(|node| self.write_groups(node));
    }

    /// Writes the blocks of a multicast table that differ from the written table.
    fn write_groups(&mut self, node: u32) {
        let path = self.view.node(node).path(0);
        let positions = self.view.node(node).info.num_ports / 16 + 1;
        let Some(switch) = self.view.switch_mut(node) else { return };
        if switch.groups_wanted == switch.groups_written {
            return;
        }
        let (wanted, written) = (&switch.groups_wanted, &switch.groups_written);
        let ports = |groups: &BTreeMap<Lid, PortSet>, mlid: Lid| {
            groups.get(&mlid).copied().unwrap_or(PortSet::EMPTY)
        };
        let mut blocks = BTreeSet::new();
        for &mlid in wanted.keys().chain(written.keys()) {
            let (new, old) = (ports(wanted, mlid), ports(written, mlid));
            let Some((block, _)) = MulticastForwardingTable::locate(mlid) else { continue };
            let differs = |position: &u8| new.sixteen(*position) != old.sixteen(*position);
            blocks.extend((0..positions).filter(differs).map(|position| (block, position)));
        }
        for (block, position) in blocks {
            let first = Lid::MULTICAST_FIRST.0 + block * 32;
            let mask = |i: usize| ports(wanted, Lid(first + i as u16)).sixteen(position);
            let table = MulticastForwardingTable { port_masks: std::array::from_fn(mask) };
            let modifier = MulticastForwardingTableModifier { position, block };
            let modifier = u32::from_be_bytes(modifier.emit());
            self.requests.ask(Request::set(path, modifier, table, Purpose::SetGroups(node)));
        }
        switch.groups_written = switch.groups_wanted.clone();
    }

    /// Sets the LIDs and settings of all ports, and arms new ports.
    pub(super) fn arm(&mut self) {
        for at in self.all_ports() {
            let Some((now, new)) = self.wanted(at) else { continue };
            let is_new = now.port_state == PortState::INITIALIZE;
            let target = if is_new { PortState::ARMED } else { PortState::NO_CHANGE };
            // Members must register again even without other changes, because a manager that takes
            // over has no list of members.
            let client_reregister = self.shall_reregister(&now, &new, at);
            if is_new || client_reregister || new != now {
                let new = PortInfo { port_state: target, client_reregister, ..new };
                self.set_port(at, new);
            }
        }
    }

    pub(super) fn activate(&mut self) {
        for at in self.all_ports() {
            let info = self.view.port(at).info;
            if let Some(info) = info.filter(|info| info.port_state == PortState::ARMED) {
                self.set_port(at, PortInfo { port_state: PortState::ACTIVE, ..info });
            }
        }
    }

    fn set_port(&mut self, at: PortRef, new: PortInfo) {
        let node = self.view.node(at.node);
        let path = node.path(at.port);
        let new = PortInfo { port_phys_state: PortPhysState::NO_CHANGE, ..new };
        let purpose = Purpose::SetPortInfo(at);
        let request = Request::set(path, port_modifier(at.port), new, purpose);
        // Another manager's M_Key becomes readable after its lease. The Set must have that key, and
        // replaces it.
        let managed = PortRef { port: node.managed_port(at.port), ..at };
        let shown = self.view.port(managed).info.map(|info| info.m_key);
        self.requests.ask_with(shown.filter(|key| *key != MKey(0)), request);
    }

    fn all_ports(&self) -> Vec<PortRef> {
        let of = |(node, seen): (u32, &SeenNode)| {
            (0..seen.ports.len() as u8).map(move |port| PortRef { node, port })
        };
        (0..).zip(&self.view.nodes).flat_map(of).collect()
    }

    /// The current and the wanted PortInfo of a port; the state is unchanged. `None` if the manager
    /// has nothing to set at this port.
    fn wanted(&self, at: PortRef) -> Option<(PortInfo, PortInfo)> {
        let (node, port) = (self.view.node(at.node), self.view.port(at));
        let now = port.info?;
        let mut new = now;
        let is_managed = port.guid != Guid(0) && port.lid.is_unicast();
        if is_managed {
            new.m_key = self.config.m_key;
            let is_protected = self.config.m_key.0 != 0;
            new.m_key_protection = MKeyProtection(u8::from(is_protected));
            new.m_key_lease_period = if is_protected { self.config.m_key_lease_seconds } else { 0 };
            new.gid_prefix = self.config.prefix;
            (new.lid, new.lmc) = (port.lid, port.lmc);
            (new.master_sm_lid, new.master_sm_sl) = (self.own_lid(), 0);
            new.subnet_timeout = self.config.subnet_timeout;
        }
        if at.port == 0 {
            return is_managed.then_some((now, new));
        }
        let peer = port.peer.filter(|_| port.is_up())?;
        let there = self.view.port(peer).info?;
        new.neighbor_mtu = Mtu(now.mtu_cap.0.min(there.mtu_cap.0));
        new.operational_vls = VlCap(now.vl_cap.0.min(there.vl_cap.0));
        new.link_down_default_state = PortPhysState::POLLING;
        (new.local_phy_errors, new.overrun_errors) = (8, 8);
        if let Some(switch) = &node.switch {
            let is_host = !self.view.node(peer.node).is_switch();
            new.hoq_life = if is_host { HOQ_LIFE_TO_HOSTS } else { HOQ_LIFE_TO_SWITCHES };
            new.vl_stall_count = STALL_COUNT;
            let enforces = is_host && self.config.switches_enforce_partitions;
            let (info, has_keys) = (&switch.info, port.p_keys.is_some());
            new.partition_enforcement_inbound =
                enforces && has_keys && info.inbound_enforcement_cap;
            new.partition_enforcement_outbound =
                enforces && has_keys && info.outbound_enforcement_cap;
        } else if !is_managed {
            return None;
        }
        Some((now, new))
    }

    fn shall_reregister(&self, now: &PortInfo, new: &PortInfo, at: PortRef) -> bool {
        let is_able = now.capability_mask.contains(CapabilityMask::CLIENT_REREGISTRATION);
        let is_managed = self.view.port(at).guid != Guid(0);
        let is_new = now.port_state == PortState::INITIALIZE;
        let has_moved = now.master_sm_lid != new.master_sm_lid || now.lid != new.lid;
        is_able && is_managed && (is_new || has_moved || !self.state.is_in_charge())
    }
}
