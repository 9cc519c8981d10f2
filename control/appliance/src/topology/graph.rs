//! The graph of a topology: nodes, the cables between them, and the level of each node.
//!
//! Hosts are level 0. A host belongs to a switch, its home, and is drawn beside it. Every other
//! node is at the level of its distance from the hosts: leaf switches are level 1. A host without a
//! switch, such as one of two hosts back to back, is level 1 as well.

use super::escape::printable;
use pollux_node::admin::rows::{CabledPort, NodeKind, TopologyNode};
use std::collections::VecDeque;

/// A switch is a leaf if at least one in this many of its cables leads to a host. So a single host
/// at a spine switch, such as that of a subnet manager, does not make the switch a leaf.
const CABLES_PER_HOST_MAX: usize = 8;
/// Part of the name of a host inside of a switch, which does not count for the switch's level.
const AGGREGATION_NODE: &str = "Aggregation Node";

pub(crate) struct Graph {
    /// The nodes of the fabric, then an external node for each wire.
    pub(crate) nodes: Vec<TopologyNode>,
    /// The number of nodes that are not external.
    pub(crate) own_nodes: usize,
    pub(crate) cables: Vec<Cable>,
    /// The level of each node.
    pub(crate) levels: Vec<usize>,
    /// The switch or router of each host.
    pub(crate) homes: Vec<Option<usize>>,
    /// Indexes of the cables of each node.
    at: Vec<Vec<usize>>,
}

pub(crate) struct Cable {
    pub(crate) ends: [CableEnd; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CableEnd {
    pub(crate) node: usize,
    /// The index in the cables of the node.
    pub(crate) index: usize,
}

/// The state of a cable, as a picture shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CableHealth {
    /// The fabric does not run.
    Unknown,
    Active,
    /// It waits for the subnet manager.
    Waiting,
    Down,
}

impl CableHealth {
    pub(crate) fn of(port: &CabledPort) -> Self {
        match port.state.as_deref() {
            None => Self::Unknown,
            Some("ACTIVE") => Self::Active,
            Some("DOWN") => Self::Down,
            Some(_) => Self::Waiting,
        }
    }
}

impl Graph {
    /// The graph of reported nodes. Their names become printable text on one line.
    pub(crate) fn new(mut nodes: Vec<TopologyNode>) -> Self {
        let own_nodes = nodes.len();
        for node in &mut nodes {
            node.node = printable(&node.node);
            node.cables.iter_mut().for_each(|cable| cable.peer = printable(&cable.peer));
        }
        add_external_nodes(&mut nodes);
        let cables = cables(&nodes);
        let mut at = vec![Vec::new(); nodes.len()];
        for (index, cable) in cables.iter().enumerate() {
            cable.ends.iter().for_each(|end| at[end.node].push(index));
        }
        let mut graph =
            Self { nodes, own_nodes, cables, levels: Vec::new(), homes: Vec::new(), at };
        graph.homes = (0..graph.nodes.len()).map(|node| graph.home(node)).collect();
        graph.levels = graph.levels();
        graph
    }

    pub(crate) fn port(&self, end: CableEnd) -> &CabledPort {
        &self.nodes[end.node].cables[end.index]
    }

    /// The indexes of the cables of a node.
    pub(crate) fn cables_at(&self, node: usize) -> &[usize] {
        &self.at[node]
    }

    /// The nodes at the other ends of the cables of a node.
    pub(crate) fn peers(&self, node: usize) -> impl Iterator<Item = usize> {
        self.at[node].iter().map(move |&cable| self.cables[cable].other(node))
    }

    pub(crate) fn is_external(&self, node: usize) -> bool {
        node >= self.own_nodes
    }

    /// The state of the worse of its ends.
    pub(crate) fn health(&self, cable: &Cable) -> CableHealth {
        let [a, b] = cable.ends.map(|end| CableHealth::of(self.port(end)));
        a.max(b)
    }

    fn is_host(&self, node: usize) -> bool {
        self.nodes[node].kind == NodeKind::Host
    }

    fn home(&self, node: usize) -> Option<usize> {
        let mut peers = self.peers(node).filter(|_| self.is_host(node));
        peers.find(|peer| !self.is_host(*peer))
    }

    /// Whether a switch has hosts, and whether at least one in [`CABLES_PER_HOST_MAX`] of its
    /// cables leads to one.
    fn hosts_of(&self, node: usize) -> (bool, bool) {
        let is_counted = |peer: &usize| {
            self.homes[*peer] == Some(node) && !self.nodes[*peer].node.contains(AGGREGATION_NODE)
        };
        let count = self.peers(node).filter(is_counted).count();
        (count > 0, count * CABLES_PER_HOST_MAX >= self.at[node].len().max(1))
    }

    fn levels(&self) -> Vec<usize> {
        let nodes = 0..self.nodes.len();
        let hosts: Vec<_> = nodes.clone().map(|node| self.hosts_of(node)).collect();
        let is_leaf = |node: &usize| match hosts[*node] {
            (has_hosts, true) => has_hosts,
            (has_hosts, false) => has_hosts && self.peers(*node).all(|peer| !hosts[peer].1),
        };
        let mut levels: Vec<Option<usize>> = nodes
            .clone()
            .map(|node| match self.homes[node] {
                Some(_) => Some(0),
                None if self.is_host(node) => Some(1),
                None => is_leaf(&node).then_some(1),
            })
            .collect();
        let mut next: VecDeque<_> = nodes.filter(|node| levels[*node] == Some(1)).collect();
        while let Some(node) = next.pop_front() {
            let above = levels[node].map(|level| level + 1);
            for peer in self.peers(node) {
                if levels[peer].is_none() {
                    levels[peer] = above;
                    next.push_back(peer);
                }
            }
        }
        // Switches that no host can reach are at level 1.
        levels.into_iter().map(|level| level.unwrap_or(1)).collect()
    }
}

impl Cable {
    pub(crate) fn other(&self, node: usize) -> usize {
        let [a, b] = self.ends;
        if a.node == node { b.node } else { a.node }
    }

    /// Its end at a node.
    pub(crate) fn end_at(&self, node: usize) -> CableEnd {
        self.ends[usize::from(self.ends[0].node != node)]
    }
}

/// Adds an external node for each wire, at its other end.
fn add_external_nodes(nodes: &mut Vec<TopologyNode>) {
    for node in 0..nodes.len() {
        for index in 0..nodes[node].cables.len() {
            let external = nodes.len() as u32;
            let name = nodes[node].node.clone();
            let cable = &mut nodes[node].cables[index];
            if cable.peer_node.is_some() {
                continue;
            }
            (cable.peer_node, cable.peer_port) = (Some(external), Some(1));
            let back = CabledPort {
                port: 1,
                state: cable.state.clone(),
                peer: format!("{name}:{}", cable.port),
                peer_node: Some(node as u32),
                peer_port: Some(cable.port),
                ..CabledPort::default()
            };
            let name = cable.peer.clone();
            nodes.push(TopologyNode {
                node: name,
                kind: NodeKind::Host,
                guid: String::new(),
                lid: None,
                ports: 1,
                cables: vec![back],
            });
        }
    }
}

/// Lists each cable once, from its first end.
fn cables(nodes: &[TopologyNode]) -> Vec<Cable> {
    let mut cables = Vec::new();
    for (node, row) in nodes.iter().enumerate() {
        for (index, cable) in row.cables.iter().enumerate() {
            let (Some(peer), Some(port)) = (cable.peer_node, cable.peer_port) else { continue };
            let peer = peer as usize;
            let far = nodes.get(peer).map_or(&[][..], |far| &far.cables);
            let Some(far) = far.iter().position(|far| far.port == port) else { continue };
            if (node, cable.port) < (peer, port) {
                let ends = [CableEnd { node, index }, CableEnd { node: peer, index: far }];
                cables.push(Cable { ends });
            }
        }
    }
    cables
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use pollux_node::fabric::{config, planned};

    /// The graph of a specification or a file.
    pub(crate) fn graph(spec: &str) -> Graph {
        Graph::new(planned(&config::topology(spec, 1, |_| {}).unwrap()))
    }

    fn levels(spec: &str) -> Vec<usize> {
        let graph = graph(spec);
        let count = |level| graph.levels.iter().filter(|one| **one == level).count();
        (0..=*graph.levels.iter().max().unwrap()).map(count).collect()
    }

    #[test]
    fn levels_are_distances_from_the_hosts() {
        assert_eq!(levels("single:3"), [3, 1]);
        assert_eq!(levels("ring:5"), [5, 5]);
        assert_eq!(levels("torus:3x4"), [12, 12]);
        assert_eq!(levels("fat-tree:4"), [16, 8, 8, 4]);
        assert_eq!(levels("leaf-spine:63x16x16"), [1008, 63, 16]);
        assert_eq!(levels("routed:2x3"), [5, 2, 1]);
    }

    /// A node without a state, with cables (port, peer, port of the peer).
    pub(crate) fn node(name: &str, kind: NodeKind, cables: &[(u8, u32, u8)]) -> TopologyNode {
        let cable = |&(port, peer, peer_port): &(u8, u32, u8)| CabledPort {
            port,
            peer: format!("{peer}:{peer_port}"),
            peer_node: Some(peer),
            peer_port: Some(peer_port),
            ..CabledPort::default()
        };
        let cables: Vec<_> = cables.iter().map(cable).collect();
        let (node, guid) = (name.into(), format!("{name}'s"));
        TopologyNode { node, kind, guid, lid: None, ports: 200, cables }
    }

    #[test]
    fn hosts_back_to_back_are_their_own_homes() {
        let hosts =
            [(1, "a"), (0, "b")].map(|(peer, name)| node(name, NodeKind::Host, &[(1, peer, 1)]));
        let graph = Graph::new(hosts.to_vec());
        assert_eq!((graph.levels, graph.homes), (vec![1, 1], vec![None, None]));
        assert_eq!(graph.cables.len(), 1);
    }

    /// Leaves 0 and 1 with hosts, and a spine 2 with ten cables to them and its own host.
    #[test]
    fn one_host_at_a_spine_does_not_make_it_a_leaf() {
        use NodeKind::{Host, Switch};
        let leaf = |first: u8, host| {
            let up = (0..5).map(|nth| (10 + nth, 2, first + nth));
            up.chain([(1, host, 1)]).collect::<Vec<_>>()
        };
        let down = (1..=5).map(|nth| (nth, 0, 9 + nth));
        let down = down.chain((6..=10).map(|nth| (nth, 1, 4 + nth))).chain([(11, 5, 1)]);
        let nodes = vec![
            node("leaf1", Switch, &leaf(1, 3)),
            node("leaf2", Switch, &leaf(6, 4)),
            node("spine", Switch, &down.collect::<Vec<_>>()),
            node("a", Host, &[(1, 0, 1)]),
            node("b", Host, &[(1, 1, 1)]),
            node("sm", Host, &[(1, 2, 11)]),
        ];
        assert_eq!(Graph::new(nodes).levels, [1, 1, 2, 0, 0, 0]);
    }

    #[test]
    fn the_host_inside_of_a_switch_does_not_make_it_a_leaf() {
        use NodeKind::{Host, Switch};
        let nodes = vec![
            node("leaf", Switch, &[(1, 2, 1), (2, 1, 1)]),
            node("spine", Switch, &[(1, 0, 2), (2, 3, 1)]),
            node("a", Host, &[(1, 0, 1)]),
            node("Mellanox Technologies Aggregation Node", Host, &[(1, 1, 2)]),
        ];
        assert_eq!(Graph::new(nodes).levels, [1, 2, 0, 0]);
    }

    #[test]
    fn names_are_on_one_line() {
        let graph = Graph::new(vec![node("a\nhost1: ACTIVE", NodeKind::Switch, &[])]);
        assert_eq!(graph.nodes[0].node, "a\u{fffd}host1: ACTIVE");
    }

    #[test]
    fn a_wire_leads_to_an_external_node() {
        let mut switch = node("switch", NodeKind::Switch, &[]);
        let wire = CabledPort { port: 9, peer: "wire (up)".into(), ..CabledPort::default() };
        switch.cables.push(wire);
        let graph = Graph::new(vec![switch]);
        assert_eq!((graph.own_nodes, graph.cables.len()), (1, 1));
        assert!(graph.is_external(1) && !graph.is_external(0));
        assert_eq!((graph.nodes[1].node.as_str(), graph.homes[1]), ("wire (up)", Some(0)));
    }
}
