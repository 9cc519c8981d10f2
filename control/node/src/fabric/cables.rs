//! The rows of `pollux show topology`: those of a planned topology, and those of a running fabric,
//! which have states and counters, too.

use crate::admin::rows::{CableCounters, CabledPort, NodeKind, TopologyNode};
use pollux_fabric::Fabric;
use pollux_fabric::topology::{End, LinkRate, PlannedNode, Topology};
use pollux_wire::address::Lid;
use pollux_wire::mad::smp::{NodeType, PortInfo};
use pollux_wire::units::Rate;

/// Data counters count units of this many bytes (IBA 16.1.3.5).
const DATA_UNIT: u64 = 4;

/// The rows of a planned topology, such as one from the dump of a cluster.
pub fn planned(topology: &Topology) -> Vec<TopologyNode> {
    let row = |(index, node): (u32, &PlannedNode)| {
        let cables = (1..=node.num_ports()).map(|port| End { node: index, port });
        let lids = match node.kind {
            NodeType::SWITCH => &node.ports[..1],
            _ => &node.ports[1..],
        };
        TopologyNode {
            node: node.name.clone(),
            kind: kind(node),
            guid: node.guid.to_string(),
            lid: lids.iter().find_map(|port| assigned(port.lid)),
            ports: node.num_ports(),
            cables: cables.filter_map(|end| cable(topology, end)).collect(),
        }
    };
    (0..).zip(topology.nodes()).map(row).collect()
}

pub(super) fn kind(node: &PlannedNode) -> NodeKind {
    match node.kind {
        NodeType::SWITCH => NodeKind::Switch,
        NodeType::ROUTER => NodeKind::Router,
        _ => NodeKind::Host,
    }
}

fn assigned(lid: Lid) -> Option<u16> {
    lid.is_unicast().then_some(lid.0)
}

fn cable(topology: &Topology, end: End) -> Option<CabledPort> {
    let (peer, link) = topology.peer(end)?;
    let node = &topology.nodes()[end.node as usize];
    let lid = assigned(node.ports[usize::from(end.port)].lid);
    Some(CabledPort {
        port: end.port,
        lid: lid.filter(|_| node.kind != NodeType::SWITCH),
        rate: Some(link.rate.to_string()),
        megabits: megabits(link.rate),
        peer: format!("{}:{}", topology.nodes()[peer.node as usize].name, peer.port),
        peer_node: Some(peer.node),
        peer_port: Some(peer.port),
        ..CabledPort::default()
    })
}

fn megabits(rate: LinkRate) -> Option<u32> {
    let info = PortInfo {
        link_width_active: rate.width,
        link_speed_active: rate.speed,
        link_speed_ext_active: rate.speed_ext,
        ..PortInfo::default()
    };
    info.rate().and_then(Rate::megabits)
}

/// The rows of a running fabric, all taken at the same time.
pub(super) fn running(fabric: &Fabric) -> Vec<TopologyNode> {
    let subnet = fabric.net.subnet();
    let mut rows = planned(subnet.topology());
    for wire in &fabric.wires {
        let (end, state) = (wire.end(), if wire.is_up() { "up" } else { "down" });
        let cables = &mut rows[end.node as usize].cables;
        let peer = format!("wire ({state})");
        cables.push(CabledPort { port: end.port, peer, ..CabledPort::default() });
        cables.sort_by_key(|cable| cable.port);
    }
    for (index, (row, node)) in (0..).zip(rows.iter_mut().zip(subnet.nodes())) {
        let ports = if node.is_switch() { 0..=0 } else { 1..=row.ports };
        row.lid = ports.into_iter().find_map(|port| assigned(node.lid(port)));
        for cable in &mut row.cables {
            fill(fabric, End { node: index, port: cable.port }, cable, node.is_switch());
        }
    }
    rows
}

fn fill(fabric: &Fabric, end: End, cable: &mut CabledPort, is_switch: bool) {
    let port = fabric.net.subnet().port(end);
    let counters = &port.counters;
    cable.lid = assigned(port.info.lid).filter(|_| !is_switch);
    cable.state = Some(port.info.port_state.to_string());
    cable.process = fabric.processes.as_ref().and_then(|processes| processes.process_at(end));
    cable.counters = Some(CableCounters {
        sent: counters.xmit_packets.long(),
        received: counters.rcv_packets.long(),
        bytes_sent: counters.xmit_data.long() * DATA_UNIT,
        bytes_received: counters.rcv_data.long() * DATA_UNIT,
        errors: counters.rcv_errors.long(),
        discards: counters.xmit_discards.long(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_is_at_both_of_its_ends() {
        let rows = planned(&Topology::generate("routed:1x2", 1).unwrap());
        let ends = (0u32..).zip(&rows).flat_map(|(index, row)| {
            row.cables.iter().map(move |cable| (index, cable.port, cable))
        });
        let mut count = 0;
        for (node, port, cable) in ends {
            let far = &rows[cable.peer_node.unwrap() as usize];
            assert_eq!(cable.peer, format!("{}:{}", far.node, cable.peer_port.unwrap()));
            let back = far.cables.iter().find(|far| Some(far.port) == cable.peer_port).unwrap();
            assert_eq!((back.peer_node, back.peer_port), (Some(node), Some(port)));
            assert_eq!((cable.megabits, &cable.state), (Some(100_000), &None));
            count += 1;
        }
        assert_eq!(count, 2 * 5);
        assert_eq!(rows[0].kind, NodeKind::Router);
    }

    #[test]
    fn lids_and_rates_of_a_dump_are_kept() {
        let dump = "Switch 8 \"S-1\" # \"leaf\" base port 0 lid 2 lmc 0\n\
            [3] \"H-1\"[1] # \"host\" lid 7 12xFDR\nCa 1 \"H-1\" # \"host\"\n\
            [1](1) \"S-1\"[3] # lid 7 lmc 0 \"leaf\" lid 2 12xFDR\n";
        let rows = planned(&Topology::read("dump", dump, 0).unwrap());
        assert_eq!((rows[0].lid, rows[1].lid), (Some(2), Some(7)));
        let [cable] = &rows[1].cables[..] else { panic!("one cable") };
        assert_eq!((cable.lid, cable.rate.as_deref()), (Some(7), Some("12xFDR")));
        assert_eq!((cable.peer.as_str(), cable.counters), ("leaf:3", None));
    }
}
