//! The subnet as its manager has discovered it: nodes, ports, links, LIDs, and the tables that were
//! written.
//!
//! A heavy sweep makes a new view. It inherits the written tables from the old view, so that only
//! differences are written. The administrator answers from the last complete view.

use crate::node::PortSet;
use pollux_wire::address::{Gid, Guid, Lid};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::{
    DirectedSmp, LinearForwardingTable, NodeDescription, NodeInfo, NodeType, PortInfo, PortState,
    SwitchInfo,
};
use std::collections::BTreeMap;

/// A directed route from the manager's port: the output port of each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) len: u8,
    pub(crate) ports: [u8; DirectedSmp::HOPS_MAX as usize],
}

impl Path {
    /// The manager's own node.
    pub(crate) const HERE: Self = Self { len: 0, ports: [0; DirectedSmp::HOPS_MAX as usize] };

    /// One hop further; `None` beyond [`DirectedSmp::HOPS_MAX`].
    pub(crate) fn extended_by(mut self, port: u8) -> Option<Self> {
        *self.ports.get_mut(usize::from(self.len))? = port;
        self.len += 1;
        Some(self)
    }
}

/// A port by its node's index in the view, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortRef {
    pub(crate) node: u32,
    pub(crate) port: u8,
}

#[derive(Default)]
pub(crate) struct View {
    pub(crate) nodes: Vec<SeenNode>,
    by_guid: BTreeMap<Guid, u32>,
    by_port_guid: BTreeMap<Guid, PortRef>,
    by_lid: Vec<Option<PortRef>>,
}

pub(crate) struct SeenNode {
    /// NodeInfo, as read at the port that was discovered first.
    pub(crate) info: NodeInfo,
    pub(crate) description: NodeDescription,
    pub(crate) ports: Vec<SeenPort>,
    pub(crate) switch: Option<Box<SeenSwitch>>,
}

/// A port. External ports of switches have no GUID.
#[derive(Clone)]
pub(crate) struct SeenPort {
    pub(crate) guid: Guid,
    /// The path to the port. For ports of a switch, the path of port 0 is used.
    pub(crate) path: Path,
    /// `None` until it is read.
    pub(crate) info: Option<PortInfo>,
    pub(crate) peer: Option<PortRef>,
    /// The assigned LID: the first of 2^lmc.
    pub(crate) lid: Lid,
    pub(crate) lmc: u8,
    /// The P_Key table as last written.
    pub(crate) p_keys: Option<Vec<PKey>>,
}

#[derive(Clone, Default)]
pub(crate) struct SeenSwitch {
    pub(crate) info: SwitchInfo,
    /// The computed unicast table; `written` has the blocks that were sent.
    pub(crate) wanted: Vec<u8>,
    pub(crate) written: BTreeMap<u16, [u8; 64]>,
    pub(crate) groups_wanted: BTreeMap<Lid, PortSet>,
    pub(crate) groups_written: BTreeMap<Lid, PortSet>,
}

impl SeenPort {
    fn new(path: Path) -> Self {
        Self { guid: Guid(0), path, info: None, peer: None, lid: Lid::NONE, lmc: 0, p_keys: None }
    }

    /// Whether its link was up when it was read.
    pub(crate) fn is_up(&self) -> bool {
        self.info.is_some_and(|info| info.port_state > PortState::DOWN)
    }

    /// Whether the port accepts packets with this key, by the written table.
    pub(crate) fn shares(&self, p_key: PKey) -> bool {
        self.p_keys.iter().flatten().any(|own| own.matches(p_key))
    }

    pub(crate) fn lid_count(&self) -> u16 {
        1 << self.lmc
    }
}

impl SeenNode {
    pub(crate) fn is_switch(&self) -> bool {
        self.info.node_type == NodeType::SWITCH
    }

    pub(crate) fn managed_ports(&self) -> std::ops::RangeInclusive<u8> {
        if self.is_switch() { 0..=0 } else { 1..=self.info.num_ports }
    }

    /// The port that has the LID and P_Keys for `port`: port 0 at a switch, and `port` itself at
    /// other nodes.
    pub(crate) fn managed_port(&self, port: u8) -> u8 {
        if self.is_switch() { 0 } else { port }
    }

    pub(crate) fn path(&self, port: u8) -> Path {
        self.ports[usize::from(self.managed_port(port))].path
    }
}

impl SeenSwitch {
    pub(crate) fn wanted_block(&self, block: u16) -> [u8; 64] {
        let first = usize::from(block) * 64;
        let unreachable = LinearForwardingTable::UNREACHABLE;
        std::array::from_fn(|i| self.wanted.get(first + i).copied().unwrap_or(unreachable))
    }

    pub(crate) fn port_of(&self, lid: Lid) -> Option<u8> {
        let port = *self.wanted.get(usize::from(lid.0))?;
        (port != LinearForwardingTable::UNREACHABLE).then_some(port)
    }
}

impl View {
    pub(crate) fn node(&self, index: u32) -> &SeenNode {
        &self.nodes[index as usize]
    }

    pub(crate) fn port(&self, at: PortRef) -> &SeenPort {
        &self.node(at.node).ports[usize::from(at.port)]
    }

    pub(crate) fn port_mut(&mut self, at: PortRef) -> &mut SeenPort {
        &mut self.nodes[at.node as usize].ports[usize::from(at.port)]
    }

    pub(crate) fn switch_mut(&mut self, node: u32) -> Option<&mut SeenSwitch> {
        self.nodes[node as usize].switch.as_deref_mut()
    }

    pub(crate) fn switches_mut(&mut self) -> impl Iterator<Item = &mut SeenSwitch> {
        self.nodes.iter_mut().filter_map(|node| node.switch.as_deref_mut())
    }

    pub(crate) fn by_guid(&self, guid: Guid) -> Option<u32> {
        self.by_guid.get(&guid).copied()
    }

    /// The port with a GUID; port 0 for the GUID of a switch.
    pub(crate) fn by_port_guid(&self, guid: Guid) -> Option<PortRef> {
        self.by_port_guid.get(&guid).copied()
    }

    pub(crate) fn by_lid(&self, lid: Lid) -> Option<PortRef> {
        *self.by_lid.get(usize::from(lid.0))?
    }

    pub(crate) fn lid_last(&self) -> Lid {
        Lid(self.by_lid.len().saturating_sub(1) as u16)
    }

    /// Adds a node with unread ports.
    pub(crate) fn add(&mut self, info: NodeInfo, path: Path) -> u32 {
        let index = self.nodes.len() as u32;
        let port = |_| SeenPort::new(path);
        let is_switch = info.node_type == NodeType::SWITCH;
        self.nodes.push(SeenNode {
            info,
            description: NodeDescription::default(),
            ports: (0..=info.num_ports).map(port).collect(),
            switch: is_switch.then(Box::default),
        });
        self.by_guid.insert(info.node_guid, index);
        index
    }

    /// Sets the GUID of a port; `false` if another port has it.
    pub(crate) fn set_guid(&mut self, at: PortRef, guid: Guid) -> bool {
        self.port_mut(at).guid = guid;
        *self.by_port_guid.entry(guid).or_insert(at) == at
    }

    pub(crate) fn assign_lid(&mut self, at: PortRef, lid: Lid, lmc: u8) {
        let port = self.port_mut(at);
        (port.lid, port.lmc) = (lid, lmc);
        let (first, count) = (usize::from(lid.0), usize::from(port.lid_count()));
        if self.by_lid.len() < first + count {
            self.by_lid.resize(first + count, None);
        }
        self.by_lid[first..first + count].fill(Some(at));
    }

    /// All ports that get a LID: external ports of switches do not.
    pub(crate) fn ports_with_lid(&self) -> impl Iterator<Item = (PortRef, &SeenPort)> {
        self.nodes.iter().zip(0..).flat_map(|(node, index)| {
            node.managed_ports()
                .map(move |port| (PortRef { node: index, port }, &node.ports[usize::from(port)]))
                .filter(|(_, port)| port.guid != Guid(0))
        })
    }

    pub(crate) fn switches(&self) -> impl Iterator<Item = (u32, &SeenNode, &SeenSwitch)> {
        let indexed = (0..).zip(&self.nodes);
        indexed.filter_map(|(index, node)| Some((index, node, node.switch.as_deref()?)))
    }

    pub(crate) fn by_gid(&self, prefix: u64, gid: Gid) -> Option<PortRef> {
        let is_ours = gid.prefix() == prefix || gid.is_link_local();
        self.by_port_guid(gid.guid()).filter(|_| is_ours)
    }

    /// Moves the written tables of `old` into this view, except those of restarted switches, and
    /// the P_Keys of ports that are down or not armed yet.
    pub(crate) fn inherit(&mut self, old: &mut Self) {
        for node in &mut self.nodes {
            let Some(before) = old.by_guid(node.info.node_guid) else { continue };
            let before = &mut old.nodes[before as usize];
            // A restarted switch has lost its tables, and so its LinearFDBTop differs.
            if let (Some(switch), Some(before)) = (&mut node.switch, &mut before.switch)
                && switch.info.linear_fdb_top == before.info.linear_fdb_top
            {
                switch.written = std::mem::take(&mut before.written);
                switch.groups_written = std::mem::take(&mut before.groups_written);
                switch.groups_wanted = std::mem::take(&mut before.groups_wanted);
            }
            for (port, before) in node.ports.iter_mut().zip(&mut before.ports) {
                let state = port.info.map(|info| info.port_state);
                if state.is_some_and(|state| state > PortState::INITIALIZE) {
                    port.p_keys = before.p_keys.take();
                }
            }
        }
    }
}
