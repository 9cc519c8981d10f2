//! Two adapters with a subnet between them, in virtual time.

use crate::group;
use crate::managed::{hosts, manage};
use crate::net_world::{NetLink, NetWorld};
use pollux_conformance::{Adapters, Factory, Group, Side, WaitDecision};
use pollux_fabric::link::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::node::PKeys;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Adapter, SoftDevice};
use pollux_verbs::{Device, VerbsError};
use pollux_wire::keys::PKey;

/// The most steps of a case: more than any case needs.
const TURNS_MAX: u32 = 1_000_000;

/// Makes pairs: the first and the last host of a topology.
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
        manage(&mut subnet, 0, None);
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

    fn turn(&mut self) -> WaitDecision {
        self.turns += 1;
        if self.turns < TURNS_MAX && self.world.step() {
            WaitDecision::GoOn
        } else {
            WaitDecision::GiveUp
        }
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

    fn memory_bytes_max(&self) -> u64 {
        8 << 20
    }
}
