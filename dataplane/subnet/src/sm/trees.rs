//! The spanning tree of each multicast group, from which MFTs are made (IBA 18.2.4.3).
//!
//! The roots are switches above all their neighbors in the order of [`super::routing`], so that
//! paths in a tree go up and then down like unicast paths. Groups are distributed over the roots by
//! their MLIDs.

use super::routing::Graph;
use crate::node::PortSet;
use crate::view::{PortRef, View};
use pollux_wire::address::Lid;
use std::collections::BTreeMap;

/// Trees over all switches. The tree of a root is computed when it is first needed, and pruned to
/// the members of a group.
pub(super) struct Trees {
    graph: Graph,
    roots: Vec<u32>,
    towards: BTreeMap<u32, Vec<Option<(u8, u32)>>>,
}

impl Trees {
    pub(super) fn new(graph: Graph) -> Self {
        Self { roots: graph.roots(), graph, towards: BTreeMap::new() }
    }

    /// The ports of each switch in the tree of a group. A member with `true` receives. A member
    /// that only sends gets a path to the tree.
    pub(super) fn tree(
        &mut self,
        view: &View,
        mlid: Lid,
        members: impl Iterator<Item = (PortRef, bool)>,
    ) -> BTreeMap<u32, PortSet> {
        let mut ports: BTreeMap<u32, PortSet> = BTreeMap::new();
        if self.roots.is_empty() {
            return ports;
        }
        let root = self.roots[usize::from(mlid.0 - Lid::MULTICAST_FIRST.0) % self.roots.len()];
        let graph = &self.graph;
        let towards = self.towards.entry(root).or_insert_with(|| graph.tree(root));
        for (member, receives) in members {
            let is_switch = view.node(member.node).is_switch();
            let Some(at) = (if is_switch { Some(member) } else { view.port(member).peer }) else {
                continue;
            };
            let Some(&switch) = graph.index.get(&at.node) else { continue };
            let mut switch = switch;
            let own = ports.entry(at.node).or_default();
            if receives {
                own.insert(at.port);
            }
            // Add the path up to the root, or up to a switch that is in the tree already.
            while let Some((up, above)) = towards[switch as usize] {
                let (node, node_above) =
                    (graph.nodes[switch as usize], graph.nodes[above as usize]);
                let own = ports.entry(node).or_default();
                if own.contains(up) {
                    break;
                }
                own.insert(up);
                let link = view.port(PortRef { node, port: up }).peer;
                if let Some(peer) = link {
                    ports.entry(node_above).or_default().insert(peer.port);
                }
                switch = above;
            }
        }
        ports
    }
}
