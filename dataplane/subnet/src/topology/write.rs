//! Topologies written in the format of `ibnetdiscover`.

use super::{End, PlannedNode, Topology};
use pollux_wire::mad::smp::NodeType;
use std::fmt::{self, Display};

impl Display for Topology {
    /// Writes the topology as `ibnetdiscover` prints it. [`Topology::read`] can read it back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "#\n# Topology file: of a software fabric\n#")?;
        self.nodes.iter().zip(0..).try_for_each(|(node, index)| self.record(f, index, node))
    }
}

impl Topology {
    fn record(&self, f: &mut fmt::Formatter<'_>, index: u32, node: &PlannedNode) -> fmt::Result {
        writeln!(f, "\nvendid={:#x}\ndevid={:#x}", node.vendor_id, node.device_id)?;
        writeln!(f, "sysimgguid={:#x}", node.system_image_guid.0)?;
        let (own, count, name) = (&node.ports[0], node.num_ports(), quotable(&node.name));
        let (id, guid) = (Id(node), node.guid.0);
        match node.kind {
            NodeType::SWITCH => writeln!(
                f,
                "switchguid={guid:#x}({:x})\nSwitch\t{count} {id}\t\t# \"{name}\" base port 0 \
                 lid {} lmc {}",
                own.guid.0, own.lid.0, own.lmc
            )?,
            NodeType::ROUTER => writeln!(f, "rtguid={guid:#x}\nRt\t{count} {id}\t\t# \"{name}\"")?,
            _ => writeln!(f, "caguid={guid:#x}\nCa\t{count} {id}\t\t# \"{name}\"")?,
        }
        (1..=count).try_for_each(|port| self.port(f, End { node: index, port }))
    }

    fn port(&self, f: &mut fmt::Formatter<'_>, end: End) -> fmt::Result {
        let Some((peer, link)) = self.peer(end) else { return Ok(()) };
        let (node, other) = (&self.nodes[end.node as usize], &self.nodes[peer.node as usize]);
        let (own, far) = (node.ports[usize::from(end.port)], other.ports[usize::from(peer.port)]);
        write!(f, "[{}]", end.port)?;
        if node.kind != NodeType::SWITCH {
            write!(f, "({:x}) ", own.guid.0)?;
        }
        write!(f, "\t{}[{}]", Id(other), peer.port)?;
        if other.kind != NodeType::SWITCH {
            write!(f, "({:x}) ", far.guid.0)?;
        }
        write!(f, "\t\t# ")?;
        if node.kind != NodeType::SWITCH {
            write!(f, "lid {} lmc {} ", own.lid.0, own.lmc)?;
        }
        let far_lid = if other.kind == NodeType::SWITCH { other.ports[0].lid } else { far.lid };
        writeln!(f, "\"{}\" lid {} {}", quotable(&other.name), far_lid.0, link.rate)
    }
}

/// The identifier of a node in the format: its kind and GUID.
struct Id<'a>(&'a PlannedNode);

impl Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0.kind {
            NodeType::SWITCH => 'S',
            NodeType::ROUTER => 'R',
            _ => 'H',
        };
        write!(f, "\"{kind}-{:016x}\"", self.0.guid.0)
    }
}

/// Replaces quotes and ends of lines, because the format cannot escape them.
fn quotable(name: &str) -> String {
    name.replace(['"', '\n', '\r'], "'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::address::Lid;

    #[test]
    fn a_written_topology_is_read_back_unchanged() {
        for spec in
            ["single:3", "ring:4", "torus:3x3", "fat-tree:4", "leaf-spine:3x2x2", "routed:2x3"]
        {
            let mut topology = Topology::generate(spec, 9).unwrap();
            for (node, lid) in topology.nodes.iter_mut().zip((8..).step_by(4)) {
                let port = usize::from(node.kind != NodeType::SWITCH);
                (node.ports[port].lid, node.ports[port].lmc) = (Lid(lid), 2);
                (node.vendor_id, node.device_id) = (0x1405, lid);
            }
            topology.links[0].rate = "12xSDR".parse().unwrap();
            let mut read = Topology::read(spec, &topology.to_string(), 0).unwrap();
            // A file has links in the order of their first ends. A generator may use another order.
            for topology in [&mut topology, &mut read] {
                topology.links.iter_mut().for_each(|link| link.ends.sort());
                topology.links.sort_by_key(|link| link.ends);
                let ports = topology.nodes.iter_mut().flat_map(|node| &mut node.ports);
                ports.for_each(|port| port.link = port.link.map(|_| 0));
            }
            assert_eq!(read, topology, "{spec}");
        }
    }

    #[test]
    fn quotes_in_names_do_no_harm() {
        let mut topology = Topology::generate("single:1", 0).unwrap();
        topology.nodes[0].name = "a \"b\"\nSwitch".into();
        let read = Topology::read("written", &topology.to_string(), 0).unwrap();
        assert_eq!(read.nodes[0].name, "a 'b''Switch");
    }
}
