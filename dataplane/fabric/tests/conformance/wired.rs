//! The suite across a wire between two nets, by the machine's clock: each knows the other's nodes
//! only by the wire.

use crate::managed::{hosts, manage};
use crate::net_world::{NetLink, NetWorld};
use crate::{group, judge};
use pollux_conformance::{Adapters, Factory, Group, Side, WaitDecision};
use pollux_fabric::link::Wire;
use pollux_fabric::link::threads::Clock;
use pollux_fabric::net::Net;
use pollux_fabric::node::{P_KEYS, PKeys};
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::wire_io::{ForeignWire, WireAddress};
use pollux_fabric::{Adapter, SoftDevice, Time};
use pollux_verbs::{Device, VerbsError};
use pollux_wire::keys::PKey;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A case that still waits after this time has failed; far above the need on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The port of the wire: of a switch, after its host's.
const WIRE: End = End { node: 0, port: 2 };
const HOST: End = End { node: 1, port: 1 };

/// The LIDs of a net begin after this one.
const BASES: [u16; 2] = [0, 0x40];

struct Wired {
    name: &'static str,
    address: WireAddress,
}

impl Factory for Wired {
    fn name(&self) -> String {
        self.name.into()
    }

    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError> {
        let start = Instant::now();
        let clock: Clock = Arc::new(move || Time::START + start.elapsed());
        let mut sides = [0, 1].map(|side| Joined::new(side, &self.address, &clock));
        while !sides.iter().all(|side| side.wire.is_up()) {
            assert!(start.elapsed() < WAIT_MAX, "the wire does not come up");
            sides.iter_mut().for_each(Joined::pump);
        }
        for (side, base) in sides.iter_mut().zip(BASES) {
            let others = BASES[usize::from(base == BASES[0])];
            let foreign = Some((WIRE, others + 1..=others + 2));
            manage(side.world.net_mut().subnet_mut(), base, foreign);
            side.device.progress();
        }
        Ok(Box::new(Pair { sides, start }))
    }
}

/// A net with one host, and its end of the wire.
struct Joined {
    world: NetWorld,
    wire: ForeignWire,
    device: SoftDevice<NetLink>,
}

impl Joined {
    fn new(side: u64, address: &WireAddress, clock: &Clock) -> Self {
        let mut topology = Topology::generate("single:1", side + 1).expect("a topology");
        topology.add_ports(WIRE);
        let subnet = Subnet::new(topology);
        assert_eq!(hosts(&subnet).next(), Some(HOST.node));
        let mut net = Net::new(subnet, side, Wire::default());
        net.add_foreign(WIRE).expect("a free port");
        let port = net.port(HOST);
        let world = NetWorld::on_clock(net, clock.clone());
        let link = world.link(HOST);
        let device = SoftDevice::new(format!("soft{side}"), Adapter::new(port), link);
        let wire = ForeignWire::open(WIRE, address).expect("a wire");
        Self { world, wire, device }
    }

    /// Moves frames and packets.
    fn pump(&mut self) {
        self.device.progress();
        self.world.step();
        let now = self.world.now();
        let mut net = self.world.net_mut();
        self.wire.receive(now, &mut net);
        self.wire.send(now, &mut net);
    }
}

struct Pair {
    sides: [Joined; 2],
    start: Instant,
}

impl Adapters for Pair {
    fn device(&mut self, side: Side) -> &mut dyn Device {
        &mut self.sides[side as usize].device
    }

    fn port(&self, _: Side) -> u8 {
        1
    }

    fn turn(&mut self) -> WaitDecision {
        self.sides.iter_mut().for_each(Joined::pump);
        if self.start.elapsed() < WAIT_MAX { WaitDecision::GoOn } else { WaitDecision::GiveUp }
    }

    fn group(&mut self, nth: u8) -> Option<Group> {
        Some(group(nth))
    }

    fn set_pkeys(&mut self, side: Side, pkeys: &[PKey]) -> bool {
        let side = &mut self.sides[side as usize];
        let mut entries = [PKey::INVALID; P_KEYS];
        entries[..pkeys.len()].copy_from_slice(pkeys);
        let mut net = side.world.net_mut();
        net.subnet_mut().node_mut(HOST.node).ports[1].p_keys = PKeys::new(entries);
        drop(net);
        side.device.progress();
        true
    }

    fn memory_bytes_max(&self) -> u64 {
        8 << 20
    }
}

fn judge_wired(name: &'static str, address: &str) {
    let address = address.parse().expect("an address");
    let failures = judge(&mut Wired { name, address });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn across_a_stream() {
    let name = format!("pollux-{}-stream", std::process::id());
    let path = std::env::temp_dir().join(name);
    judge_wired("stream wire", &format!("stream:{}", path.display()));
    assert!(!path.exists(), "who listened has taken the name away");
}

#[test]
fn across_udp() {
    // A loopback address of this process, so no other process takes the port.
    let process = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, process[2] | 1, process[3], 4);
    let free = UdpSocket::bind((address, 0)).and_then(|socket| socket.local_addr());
    judge_wired("UDP wire", &format!("udp:{}", free.expect("a free port")));
}
