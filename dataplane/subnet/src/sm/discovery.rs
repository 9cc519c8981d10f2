//! The heavy sweep: discovery from the manager's port over all links that are up (IBA 14.4.3).
//!
//! The NodeInfo of a node contains the port that received the request, and so identifies the link.
//! All ports of a switch are read, and discovery continues over those that are up. Other nodes do
//! not forward. Numbers in answers are checked before they index an array.

use super::requests::Request;
use super::routing::{self, Graph};
use super::trees::Trees;
use super::{Other, Purpose, SubnetManager, Sweep, lids};
use crate::time::Time;
use crate::topology::NODES_MAX;
use crate::view::{Path, PortRef, View};
use pollux_wire::address::Guid;
use pollux_wire::mad::Attribute;
use pollux_wire::mad::smp::{
    CapabilityMask, NodeDescription, NodeInfo, NodeType, PortInfo, PortInfoModifier, SmInfo,
    SwitchInfo,
};

pub(super) fn port_modifier(port: u8) -> u32 {
    let modifier = PortInfoModifier { knows_extended_speeds: true, port };
    u32::from_be_bytes(modifier.emit())
}

impl SubnetManager {
    pub(super) fn discover(&mut self) {
        self.sweep = Sweep::Discovering;
        self.found = View::default();
        self.others.clear();
        self.requests.clear();
        self.requests.ask(Request::get::<NodeInfo>(Path::HERE, 0, Purpose::NodeInfo(None)));
    }

    pub(super) fn read_switch_info(&mut self, switch: u32) {
        let path = self.view.node(switch).path(0);
        self.requests.ask(Request::get::<SwitchInfo>(path, 0, Purpose::Light(switch)));
    }

    /// Handles an answer that has no error status.
    pub(super) fn handle_answer(
        &mut self,
        now: Time,
        purpose: Purpose,
        path: Path,
        data: &[u8; 64],
    ) {
        match purpose {
            Purpose::NodeInfo(from) => self.handle_node_info(from, path, NodeInfo::from_data(data)),
            Purpose::NodeDescription(node) => {
                self.found.nodes[node as usize].description = NodeDescription::from_data(data);
            }
            Purpose::SwitchInfo(node) => {
                if let Some(switch) = self.found.switch_mut(node) {
                    switch.info = SwitchInfo::from_data(data);
                }
            }
            Purpose::PortInfo(at) => self.handle_port_info(at, PortInfo::from_data(data)),
            Purpose::SmInfo(at) => {
                self.others.push(Other { at, info: SmInfo::from_data(data) });
            }
            Purpose::Light(_) => {
                if SwitchInfo::from_data(data).port_state_change {
                    self.request_sweep();
                }
            }
            Purpose::SetPortInfo(at) => {
                self.view.port_mut(at).info = Some(PortInfo::from_data(data));
            }
            Purpose::SetSwitchInfo(node) | Purpose::ClearChange(node) => {
                if let Some(switch) = self.view.switch_mut(node) {
                    switch.info = SwitchInfo::from_data(data);
                }
                if purpose == Purpose::ClearChange(node) {
                    self.recheck_ports(node);
                }
            }
            Purpose::Recheck(at) => {
                let state = PortInfo::from_data(data).port_state;
                if self.view.port(at).info.is_none_or(|info| info.port_state != state) {
                    self.request_sweep();
                }
            }
            Purpose::HandOver => self.handle_handover_answer(now),
            Purpose::Poll => self.handle_poll_answer(&SmInfo::from_data(data)),
            Purpose::SetLinearBlock(..)
            | Purpose::SetGroups(_)
            | Purpose::SetPKeys(_)
            | Purpose::Control => {}
        }
    }

    /// Handles a failed request. A failed Set counts as not written.
    pub(super) fn handle_failure(&mut self, purpose: Purpose) {
        self.counters.failures += 1;
        match purpose {
            Purpose::Light(_) => return self.request_sweep(),
            // The election has its own timeouts.
            Purpose::Poll | Purpose::HandOver | Purpose::Control => return,
            Purpose::SetLinearBlock(node, block) => {
                if let Some(switch) = self.view.switch_mut(node) {
                    switch.written.remove(&block);
                }
            }
            Purpose::SetGroups(node) => {
                if let Some(switch) = self.view.switch_mut(node) {
                    switch.groups_written.clear();
                }
            }
            Purpose::SetPKeys(at) => self.view.port_mut(at).p_keys = None,
            _ => {}
        }
        self.failed += 1;
    }

    fn handle_node_info(&mut self, from: Option<PortRef>, path: Path, info: NodeInfo) {
        let is_switch = info.node_type == NodeType::SWITCH;
        let port = info.local_port_num;
        let is_valid = info.node_guid != Guid(0)
            && info.port_guid != Guid(0)
            && port <= info.num_ports
            && (1..=u8::MAX - 1).contains(&info.num_ports)
            && (port > 0 || is_switch && from.is_none());
        if !is_valid {
            self.failed += 1;
            return;
        }
        let known = self.found.by_guid(info.node_guid);
        let same = |node: u32| {
            let known = &self.found.node(node).info;
            known.num_ports == info.num_ports && known.node_type == info.node_type
        };
        let node = match known {
            Some(node) if same(node) => node,
            None if self.found.nodes.len() < NODES_MAX => self.add_node(info, path),
            _ => {
                self.failed += 1;
                return;
            }
        };
        let here = PortRef { node, port };
        if let Some(from) = from {
            self.join(from, here);
        }
        let is_new_port = !is_switch && self.found.port(here).guid == Guid(0);
        if is_new_port {
            self.found.port_mut(here).path = path;
            self.name(here, info.port_guid);
            self.ask_port(here);
        }
    }

    fn add_node(&mut self, info: NodeInfo, path: Path) -> u32 {
        let node = self.found.add(info, path);
        let description = Purpose::NodeDescription(node);
        self.requests.ask(Request::get::<NodeDescription>(path, 0, description));
        if info.node_type == NodeType::SWITCH {
            self.name(PortRef { node, port: 0 }, info.port_guid);
            self.requests.ask(Request::get::<SwitchInfo>(path, 0, Purpose::SwitchInfo(node)));
            (0..=info.num_ports).for_each(|port| self.ask_port(PortRef { node, port }));
        }
        node
    }

    /// Sets the GUID of a port. If another port has the same GUID, this one gets neither a GUID nor
    /// a LID, and the sweep counts as failed.
    fn name(&mut self, at: PortRef, guid: Guid) {
        if !self.found.set_guid(at, guid) {
            self.found.port_mut(at).guid = Guid(0);
            self.failed += 1;
        }
    }

    fn recheck_ports(&mut self, node: u32) {
        for port in 1..=self.view.node(node).info.num_ports {
            let at = PortRef { node, port };
            let path = self.view.node(node).path(port);
            let purpose = Purpose::Recheck(at);
            self.requests.ask(Request::get::<PortInfo>(path, port_modifier(port), purpose));
        }
    }

    fn ask_port(&mut self, at: PortRef) {
        let path = self.found.node(at.node).path(at.port);
        let modifier = port_modifier(at.port);
        self.requests.ask(Request::get::<PortInfo>(path, modifier, Purpose::PortInfo(at)));
    }

    /// Records a link between two ports. If a port has another link already, an answer was wrong or
    /// a cable was moved during the sweep, so the sweep counts as failed.
    fn join(&mut self, one: PortRef, other: PortRef) {
        let is_free = |port: PortRef, peer: PortRef| {
            self.found.port(port).peer.is_none_or(|known| known == peer)
        };
        if one == other || !is_free(one, other) || !is_free(other, one) {
            self.failed += 1;
            return;
        }
        self.found.port_mut(one).peer = Some(other);
        self.found.port_mut(other).peer = Some(one);
    }

    /// Handles the PortInfo of a port. If its link is up, discovery continues over the link.
    fn handle_port_info(&mut self, at: PortRef, info: PortInfo) {
        let guid = self.guid;
        let port = self.found.port_mut(at);
        port.info = Some(info);
        let is_own = port.guid == guid;
        let leads_on = port.is_up() && port.peer.is_none() && at.port > 0;
        let node = self.found.node(at.node);
        let path = node.path(at.port);
        let is_managed = node.managed_port(at.port) == at.port;
        if is_managed && !is_own && info.capability_mask.contains(CapabilityMask::SM) {
            self.requests.ask(Request::get::<SmInfo>(path, 0, Purpose::SmInfo(at)));
        }
        if leads_on && (node.is_switch() || is_own) {
            match path.extended_by(at.port) {
                Some(path) => {
                    let purpose = Purpose::NodeInfo(Some(at));
                    self.requests.ask(Request::get::<NodeInfo>(path, 0, purpose));
                }
                None => self.failed += 1,
            }
        }
    }

    pub(super) fn finish_discovery(&mut self, now: Time) {
        let mut view = std::mem::take(&mut self.found);
        view.inherit(&mut self.view);
        if view.nodes.is_empty() {
            // The manager's own node has not answered.
            return self.schedule_sweep(now);
        }
        // Even a manager that will be a standby assigns LIDs in its view, because `own_lid` reads
        // them.
        let without = lids::assign(&mut view, &self.config, &mut self.lids);
        self.failed += without as u64;
        let before = std::mem::replace(&mut self.view, view);
        if !self.elect(now) {
            if self.state.sweeps() {
                self.schedule_sweep(now);
            }
            return;
        }
        self.acknowledge();
        let others = self.others.iter().map(|other| other.info);
        self.sa.set_managers([self.own_info()].into_iter().chain(others).collect());
        let graph = Graph::new(&self.view);
        routing::route(&mut self.view, &graph);
        self.trees = Some(Trees::new(graph));
        self.sweep = Sweep::Tables;
        self.write_tables(&before);
    }
}
