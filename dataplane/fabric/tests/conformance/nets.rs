//! Two adapters with a subnet between them, in virtual time.

use crate::group;
use pollux_fabric::link::world::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::net::world::{NetLink, NetWorld};
use pollux_fabric::node::PKeys;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Adapter, SoftDevice};
use pollux_verbs::conformance::{Adapters, Factory, Group, Side, Turn};
use pollux_verbs::{Device, VerbsError};
use pollux_wire::address::Lid;
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::{LinearForwardingTable, MulticastForwardingTable};
use pollux_wire::mad::smp::{MulticastForwardingTableModifier, PortState};
use std::collections::VecDeque;

/// More than any case that goes well needs.
const TURNS_MAX: u32 = 1_000_000;

/// Where such pairs come from: the first and the last host of a topology.
pub struct Nets {
    pub topology: &'static str,
    pub wire: Wire,
    pub seed: u64,
}

impl Factory for Nets {
    fn name(&self) -> String {
        format!("{} (seed {})", self.topology, self.seed)
    }

    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError> {
        let topology = Topology::generate(self.topology, self.seed).expect("the topology is one");
        let mut subnet = Subnet::new(topology);
        manage(&mut subnet);
        let hosts: Vec<u32> = hosts(&subnet).collect();
        let ends = [hosts[0], hosts[hosts.len() - 1]].map(|node| End { node, port: 1 });
        let world = NetWorld::new(Net::new(subnet, self.seed, self.wire));
        let devices = ends.map(|end| {
            let port = world.net().port(end);
            SoftDevice::new(format!("soft{}", end.node), Adapter::new(port), world.link(end))
        });
        Ok(Box::new(Virtual { world, ends, devices, turns: 0 }))
    }

    fn is_lossy(&self) -> bool {
        !self.wire.faults.are_none()
    }
}

fn hosts(subnet: &Subnet) -> impl Iterator<Item = u32> {
    (0u32..).zip(subnet.nodes()).filter(|(_, node)| !node.is_switch()).map(|(nth, _)| nth)
}

/// What a subnet manager would do: LIDs, shortest ways, one tree for all groups, ports active.
fn manage(subnet: &mut Subnet) {
    let nodes = subnet.nodes().len() as u32;
    for index in 0..nodes {
        let node = subnet.node_mut(index);
        let is_switch = node.is_switch();
        for (number, port) in node.ports.iter_mut().enumerate() {
            if is_switch == (number == 0) {
                port.info.lid = Lid(index as u16 + 1);
            }
            if port.is_linked() {
                port.info.port_state = PortState::ACTIVE;
            }
        }
    }
    for target in 0..nodes {
        for (node, port) in ways_to(subnet, target) {
            add_route(subnet, node, Lid(target as u16 + 1), port);
        }
    }
    let mut masks = vec![0u64; nodes as usize];
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

struct Virtual {
    world: NetWorld,
    ends: [End; 2],
    devices: [SoftDevice<NetLink>; 2],
    turns: u32,
}

impl Adapters for Virtual {
    fn device(&mut self, side: Side) -> &mut dyn Device {
        &mut self.devices[side as usize]
    }

    fn port(&self, _: Side) -> u8 {
        1
    }

    fn turn(&mut self) -> Turn {
        self.turns += 1;
        if self.turns < TURNS_MAX && self.world.step() { Turn::GoOn } else { Turn::GiveUp }
    }

    fn group(&mut self, nth: u8) -> Option<Group> {
        Some(group(nth))
    }

    fn set_pkeys(&mut self, side: Side, pkeys: &[PKey]) -> bool {
        let end = self.ends[side as usize];
        let mut entries = [PKey::INVALID; 32];
        entries[..pkeys.len()].copy_from_slice(pkeys);
        let mut net = self.world.net_mut();
        let node = net.subnet_mut().node_mut(end.node);
        node.ports[usize::from(end.port)].p_keys = PKeys::new(entries);
        drop(net);
        self.devices[side as usize].progress();
        true
    }

    fn memory_octets_max(&self) -> u64 {
        8 << 20
    }
}
