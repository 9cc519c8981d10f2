//! Subnets that are managed without a subnet manager.

use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::End;
use pollux_wire::address::Lid;
use pollux_wire::mad::smp::{LinearForwardingTable, MulticastForwardingTable};
use pollux_wire::mad::smp::{MulticastForwardingTableModifier, PortState};
use std::collections::VecDeque;
use std::ops::RangeInclusive;

pub fn hosts(subnet: &Subnet) -> impl Iterator<Item = u32> {
    (0u32..).zip(subnet.nodes()).filter(|(_, node)| !node.is_switch()).map(|(nth, _)| nth)
}

/// The work of a subnet manager: LIDs from `base` on, shortest paths, one tree for all groups,
/// active ports. Nodes behind a foreign port have these LIDs, and are in all groups.
pub fn manage(subnet: &mut Subnet, base: u16, foreign: Option<(End, RangeInclusive<u16>)>) {
    let nodes = subnet.nodes().len() as u32;
    for index in 0..nodes {
        let node = subnet.node_mut(index);
        let is_switch = node.is_switch();
        for (number, port) in node.ports.iter_mut().enumerate() {
            if is_switch == (number == 0) {
                port.info.lid = Lid(base + index as u16 + 1);
            }
            if port.is_linked() {
                port.info.port_state = PortState::ACTIVE;
            }
        }
    }
    for target in 0..nodes {
        add_route(subnet, target, Lid(base + target as u16 + 1), 0);
        for (node, port) in ways_to(subnet, target) {
            add_route(subnet, node, Lid(base + target as u16 + 1), port);
        }
    }
    let mut masks = vec![0u64; nodes as usize];
    if let Some((end, lids)) = foreign {
        masks[end.node as usize] |= 1 << end.port;
        for lid in lids.map(Lid) {
            add_route(subnet, end.node, lid, end.port);
            ways_to(subnet, end.node).into_iter().for_each(|(n, p)| add_route(subnet, n, lid, p));
        }
    }
    for (node, port) in ways_to(subnet, hosts(subnet).next().expect("there is a host")) {
        masks[node as usize] |= 1 << port;
        let (peer, _) = subnet.topology().peer(End { node, port }).expect("the way leads there");
        masks[peer.node as usize] |= 1 << peer.port;
    }
    for (index, mask) in (0..nodes).zip(masks) {
        if let Some(tables) = &mut subnet.node_mut(index).forwarding {
            for position in 0..4 {
                let which = MulticastForwardingTableModifier { position, ..Default::default() };
                let mask = (mask >> (16 * position)) as u16;
                let table = MulticastForwardingTable { port_masks: [mask; 32] };
                tables.set_multicast_block(which, &table);
            }
        }
    }
}

/// From every node the port towards `target`, nearest nodes first.
fn ways_to(subnet: &Subnet, target: u32) -> Vec<(u32, u8)> {
    let (mut ways, mut waiting) = (Vec::new(), VecDeque::from([target]));
    let mut known = vec![false; subnet.nodes().len()];
    known[target as usize] = true;
    while let Some(node) = waiting.pop_front() {
        for port in 1..=subnet.nodes()[node as usize].identity.num_ports {
            let Some((peer, _)) = subnet.topology().peer(End { node, port }) else { continue };
            if !std::mem::replace(&mut known[peer.node as usize], true) {
                ways.push((peer.node, peer.port));
                if subnet.nodes()[peer.node as usize].is_switch() {
                    waiting.push_back(peer.node);
                }
            }
        }
    }
    ways
}

fn add_route(subnet: &mut Subnet, node: u32, lid: Lid, port: u8) {
    let Some(tables) = &mut subnet.node_mut(node).forwarding else { return };
    let (block, at) = (u32::from(lid.0) / 64, usize::from(lid.0) % 64);
    let mut table = tables.linear_block(block).unwrap_or(LinearForwardingTable::default());
    table.ports[at] = port;
    tables.set_linear_block(block, &table);
    tables.info.linear_fdb_top = Lid(tables.info.linear_fdb_top.0.max(lid.0));
}
