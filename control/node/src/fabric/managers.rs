//! The embedded subnet managers of a fabric: one in each subnet, at its first switch, or at its
//! first adapter if it has no switch.

use super::FabricStartError;
use pollux_fabric::sm::{Partitions, SmConfig};
use pollux_fabric::topology::{End, Topology};
use pollux_wire::address::Gid;
use pollux_wire::mad::smp::NodeType;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

/// The port and configuration of the manager of each subnet. Routers separate subnets.
pub(super) fn managers(topology: &Topology, config: &SmConfig) -> Vec<(End, SmConfig)> {
    let mut seen = BTreeSet::new();
    let mut subnets = Vec::new();
    for kind in [NodeType::SWITCH, NodeType::CHANNEL_ADAPTER] {
        for (node, index) in topology.nodes().iter().zip(0..) {
            if node.kind == kind && !seen.contains(&index) {
                explore(topology, index, &mut seen);
                subnets.push(End { node: index, port: u8::from(kind != NodeType::SWITCH) });
            }
        }
    }
    let config = |prefix| SmConfig { prefix, ..config.clone() };
    subnets.into_iter().zip((Gid::DEFAULT_PREFIX..).map(config)).collect()
}

/// The configured key, or a random one.
pub(super) fn key(given: Option<u64>) -> u64 {
    // The keys of the standard hasher are random. 0 means no key.
    given.unwrap_or_else(|| RandomState::new().hash_one(()).max(1))
}

/// Adds to `seen` all nodes in the subnet of a node.
fn explore(topology: &Topology, from: u32, seen: &mut BTreeSet<u32>) {
    let mut ahead = vec![from];
    while let Some(node) = ahead.pop() {
        let planned = &topology.nodes()[node as usize];
        if planned.kind == NodeType::ROUTER || !seen.insert(node) {
            continue;
        }
        let ports = (1..=planned.num_ports()).map(|port| End { node, port });
        ahead.extend(ports.filter_map(|end| topology.peer(end)).map(|(peer, _)| peer.node));
    }
}

/// The partitions of a file in the syntax of OpenSM's `partitions.conf`.
pub fn partitions(path: &Path) -> Result<Partitions, FabricStartError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path);
    let text = text.map_err(FabricStartError::of(format!("cannot read the partitions {name}")));
    Partitions::read(&name, &text?).map_err(|error| FabricStartError::new(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_given_or_random() {
        assert_eq!([key(Some(7)), key(Some(0))], [7, 0]);
        let all: BTreeSet<u64> = (0..100).map(|_| key(None)).collect();
        assert!(all.len() == 100 && !all.contains(&0));
    }

    #[test]
    fn each_subnet_has_one_with_a_prefix_of_its_own() {
        let plan = Topology::generate("routed:2x3", 1).unwrap();
        let all = managers(&plan, &SmConfig::default());
        let prefixes: Vec<_> = all.iter().map(|(_, config)| config.prefix).collect();
        assert_eq!(prefixes, [Gid::DEFAULT_PREFIX, Gid::DEFAULT_PREFIX + 1]);
        let is_switch = |end: &End| plan.nodes()[end.node as usize].kind == NodeType::SWITCH;
        assert!(all.iter().all(|(end, _)| end.port == 0 && is_switch(end)));
        let tree = Topology::generate("fat-tree:4", 1).unwrap();
        assert_eq!(managers(&tree, &SmConfig::default()).len(), 1);
    }
}
