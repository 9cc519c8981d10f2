//! Topologies from a specification: `single:3`, `fat-tree:4`, `torus:4x4`.
//!
//! Hosts are named `host1`, `host2` and so on, so that a test can name the third host of any
//! fabric. Switches use their ports from 1 on, first for hosts and then for other switches.

use super::guid_of;
use super::{End, LinkRate, NODES_MAX, PORTS_MAX, PlannedNode, Problem, Topology, TopologyError};
use pollux_wire::mad::smp::NodeType;

impl Topology {
    /// The topology of a specification, with GUIDs that are derived from `seed`:
    ///
    /// - `single:N`: one switch with N hosts;
    /// - `ring:N`: N switches in a ring, with one host each;
    /// - `torus:XxY`: X rows of Y switches, each linked to its four neighbors, with one host each;
    /// - `fat-tree:K`: switches with K ports, in K pods, and K/2 hosts at each edge switch;
    /// - `leaf-spine:LxSxH`: L leaves with H hosts each, all linked to each of S spines;
    /// - `routed:NxM`: a switch with N hosts, a switch with M hosts, and a router between them.
    pub fn generate(spec: &str, seed: u64) -> Result<Self, TopologyError> {
        let (kind, parameters) = spec.split_once(':').unwrap_or((spec, ""));
        let plan = Plan { spec, seed, topology: Self::default() };
        let ports = u32::from(PORTS_MAX);
        match kind {
            "single" => {
                plan.numbers(parameters, "single:N", [(1, ports)]).map(|[n]| plan.single(n))
            }
            "ring" => plan.numbers(parameters, "ring:N", [(2, LARGE)]).and_then(|[n]| plan.ring(n)),
            "torus" => plan
                .numbers(parameters, "torus:XxY", [(3, LARGE), (3, LARGE)])
                .and_then(|[x, y]| plan.torus(x, y)),
            "fat-tree" => plan
                .numbers(parameters, "fat-tree:K", [(2, ports)])
                .and_then(|[k]| plan.fat_tree(k)),
            "leaf-spine" => plan
                .numbers(parameters, "leaf-spine:LxSxH", [(1, ports), (1, ports), (1, ports)])
                .and_then(|[l, s, h]| plan.leaf_spine(l, s, h)),
            "routed" => plan
                .numbers(parameters, "routed:NxM", [(1, ports - 1), (1, ports - 1)])
                .map(|[n, m]| plan.routed(n, m)),
            _ => Err(plan.wrong(kind, Problem::UnknownKind)),
        }
    }
}

/// The limit of parameters that only the number of nodes limits.
const LARGE: u32 = NODES_MAX as u32;

struct Plan<'a> {
    spec: &'a str,
    seed: u64,
    topology: Topology,
}

impl Plan<'_> {
    fn wrong(&self, word: &str, problem: Problem) -> TopologyError {
        TopologyError::new(&format!("topology {}", self.spec), word, problem)
    }

    /// Parses numbers with an `x` between them, and checks the limits of each.
    fn numbers<const N: usize>(
        &self,
        parameters: &str,
        form: &'static str,
        limits: [(u32, u32); N],
    ) -> Result<[u32; N], TopologyError> {
        let words: Vec<_> = parameters.split('x').collect();
        let words = <[&str; N]>::try_from(words).ok().filter(|_| !parameters.is_empty());
        let words = words.ok_or_else(|| self.wrong(parameters, Problem::Parameters(form)))?;
        let mut numbers = [0; N];
        for ((number, word), (min, max)) in numbers.iter_mut().zip(words).zip(limits) {
            let parsed = word.parse().ok().filter(|n| (min..=max).contains(n));
            *number = parsed.ok_or_else(|| self.wrong(word, Problem::Number { min, max }))?;
        }
        Ok(numbers)
    }

    fn check_nodes(&self, nodes: u64) -> Result<(), TopologyError> {
        let fits = nodes <= NODES_MAX as u64;
        fits.then_some(()).ok_or_else(|| self.wrong(self.spec, Problem::TooManyNodes))
    }

    fn add(&mut self, kind: NodeType, name: String, num_ports: u32) -> u32 {
        let index = self.topology.nodes.len();
        let guid = guid_of(self.seed, index);
        self.topology.nodes.push(PlannedNode::new(kind, name, guid, num_ports as u8));
        index as u32
    }

    fn switch(&mut self, name: String, num_ports: u32) -> u32 {
        self.add(NodeType::SWITCH, name, num_ports)
    }

    fn join(&mut self, one: (u32, u32), other: (u32, u32)) {
        let ends = [one, other].map(|(node, port)| End { node, port: port as u8 });
        self.topology.join(ends, LinkRate::default());
    }

    /// Adds hosts with one port each at the first ports of a switch, after `before` other hosts.
    fn hosts(&mut self, switch: u32, before: u32, count: u32) {
        for port in 1..=count {
            let host = self.add(NodeType::CHANNEL_ADAPTER, format!("host{}", before + port), 1);
            self.join((switch, port), (host, 1));
        }
    }

    fn single(mut self, hosts: u32) -> Topology {
        let switch = self.switch("switch1".into(), hosts);
        self.hosts(switch, 0, hosts);
        self.topology
    }

    fn ring(mut self, count: u32) -> Result<Topology, TopologyError> {
        self.check_nodes(2 * u64::from(count))?;
        for i in 0..count {
            self.switch(format!("switch{}", i + 1), 3);
        }
        for i in 0..count {
            self.hosts(i, i, 1);
            self.join((i, 2), ((i + 1) % count, 3));
        }
        Ok(self.topology)
    }

    fn torus(mut self, rows: u32, columns: u32) -> Result<Topology, TopologyError> {
        self.check_nodes(2 * u64::from(rows) * u64::from(columns))?;
        let at = |row, column| row % rows * columns + column % columns;
        for i in 0..rows * columns {
            self.switch(format!("switch{}-{}", i / columns + 1, i % columns + 1), 5);
        }
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
            let here = at(row, column);
            self.hosts(here, here, 1);
            self.join((here, 2), (at(row, column + 1), 3));
            self.join((here, 4), (at(row + 1, column), 5));
        }
        Ok(self.topology)
    }

    fn fat_tree(mut self, radix: u32) -> Result<Topology, TopologyError> {
        if !radix.is_multiple_of(2) {
            return Err(self.wrong(&radix.to_string(), Problem::Odd));
        }
        let half = radix / 2;
        let cores = u64::from(half * half);
        self.check_nodes(cores + u64::from(radix * radix) + cores * u64::from(radix))?;
        for i in 0..half * half {
            self.switch(format!("core{}", i + 1), radix);
        }
        for pod in 0..radix {
            let aggregation = self.topology.nodes.len() as u32;
            for i in 0..half {
                let here = self.switch(format!("pod{}-aggregation{}", pod + 1, i + 1), radix);
                for up in 0..half {
                    self.join((here, half + 1 + up), (i * half + up, pod + 1));
                }
            }
            for i in 0..half {
                let here = self.switch(format!("pod{}-edge{}", pod + 1, i + 1), radix);
                for up in 0..half {
                    self.join((here, half + 1 + up), (aggregation + up, i + 1));
                }
                self.hosts(here, (pod * half + i) * half, half);
            }
        }
        Ok(self.topology)
    }

    fn leaf_spine(
        mut self,
        leaves: u32,
        spines: u32,
        hosts: u32,
    ) -> Result<Topology, TopologyError> {
        if hosts + spines > u32::from(PORTS_MAX) {
            return Err(self.wrong(self.spec, Problem::TooManyPorts));
        }
        self.check_nodes(u64::from(leaves) * (1 + u64::from(hosts)) + u64::from(spines))?;
        for i in 0..spines {
            self.switch(format!("spine{}", i + 1), leaves);
        }
        for leaf in 0..leaves {
            let here = self.switch(format!("leaf{}", leaf + 1), hosts + spines);
            for spine in 0..spines {
                self.join((here, hosts + 1 + spine), (spine, leaf + 1));
            }
            self.hosts(here, leaf * hosts, hosts);
        }
        Ok(self.topology)
    }

    fn routed(mut self, first: u32, second: u32) -> Topology {
        let router = self.add(NodeType::ROUTER, "router1".into(), 2);
        for (i, (before, count)) in [(0, first), (first, second)].into_iter().enumerate() {
            let i = i as u32 + 1;
            let switch = self.switch(format!("switch{i}"), count + 1);
            self.hosts(switch, before, count);
            self.join((switch, count + 1), (router, i));
        }
        self.topology
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn counts(spec: &str) -> (usize, usize, usize) {
        let topology = Topology::generate(spec, 1).unwrap();
        let of = |kind| topology.nodes.iter().filter(|node| node.kind == kind).count();
        (of(NodeType::CHANNEL_ADAPTER), of(NodeType::SWITCH), topology.links.len())
    }

    #[test]
    fn each_kind_has_its_hosts_switches_and_links() {
        assert_eq!(counts("single:3"), (3, 1, 3));
        assert_eq!(counts("ring:5"), (5, 5, 10));
        assert_eq!(counts("ring:2"), (2, 2, 4));
        assert_eq!(counts("torus:3x4"), (12, 12, 36));
        assert_eq!(counts("fat-tree:4"), (16, 20, 48));
        assert_eq!(counts("leaf-spine:63x16x16"), (1008, 79, 63 * 32));
        assert_eq!(counts("leaf-spine:100x20x100"), (10_000, 120, 12_000));
        assert_eq!(counts("routed:2x3"), (5, 2, 7));
    }

    /// Every node can be reached from the first, and every link is known at both of its ports.
    #[test]
    fn generated_fabrics_are_connected() {
        for spec in
            ["single:254", "ring:2", "torus:3x3", "fat-tree:6", "leaf-spine:3x2x4", "routed:1x1"]
        {
            let topology = Topology::generate(spec, 7).unwrap();
            let (mut reached, mut next) = (BTreeSet::from([0]), vec![0]);
            while let Some(node) = next.pop() {
                for port in 0..topology.nodes[node as usize].ports.len() {
                    let end = End { node, port: port as u8 };
                    let Some((peer, _)) = topology.peer(end) else { continue };
                    assert_eq!(topology.peer(peer).unwrap().0, end, "{spec}");
                    if reached.insert(peer.node) {
                        next.push(peer.node);
                    }
                }
            }
            assert_eq!(reached.len(), topology.nodes.len(), "{spec}");
        }
    }

    #[test]
    fn guids_follow_from_the_seed_and_are_unique() {
        let topology = Topology::generate("fat-tree:4", 1).unwrap();
        let ports = topology.nodes.iter().flat_map(|node| &node.ports);
        let guids: Vec<_> = ports.map(|port| port.guid).filter(|guid| guid.0 != 0).collect();
        assert_eq!(guids.iter().collect::<BTreeSet<_>>().len(), guids.len());
        assert_eq!(topology, Topology::generate("fat-tree:4", 1).unwrap());
        assert_ne!(topology, Topology::generate("fat-tree:4", 2).unwrap());
        let host = topology.nodes.iter().find(|node| node.name == "host1").unwrap();
        assert_eq!(host.ports[1].guid.0, host.guid.0 + 1);
    }

    #[test]
    fn wrong_specifications_say_what_to_write() {
        let message = |spec| Topology::generate(spec, 0).unwrap_err().to_string();
        assert!(message("mesh:3").contains("`mesh`: no such topology; take single:N"));
        assert!(message("single").contains("write it as single:N"));
        assert!(message("single:255").contains("`255`: give a number from 1 to 254"));
        assert!(message("torus:3xq").contains("`q`: give a number from 3 to"));
        assert!(message("fat-tree:5").contains("give an even number"));
        assert!(message("fat-tree:254").contains("make it smaller"));
        assert!(message("torus:40000x40000").contains("make it smaller"));
        assert!(message("leaf-spine:2x200x100").contains("at most 254 ports"));
    }
}
