//! Links of a fat tree fail under a connection: the subnet manager finds other paths, and no
//! message is lost or duplicated.

use crate::net_world::{NetLink, NetWorld};
use crate::pair::{Connection, Side, connect, side_of};
use pollux_fabric::link::Wire;
use pollux_fabric::link::fault::SeededRng;
use pollux_fabric::net::Net;
use pollux_fabric::sm::SmConfig;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Adapter, SoftDevice};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::TimeCode;

const MESSAGES: u64 = 40;
const BYTES: u32 = 3_000;
const FAILURES: usize = 2;

/// A fat tree with a manager, and a connection from its first host to its last.
struct Tree {
    world: NetWorld,
    sides: [Side<NetLink>; 2],
    /// One end of each link between switches.
    trunks: Vec<End>,
}

impl Tree {
    fn new(seed: u64, wire: Wire) -> Self {
        let topology = Topology::generate("fat-tree:4", seed).unwrap();
        let is_host = |node: u32| topology.nodes()[node as usize].name.starts_with("host");
        let trunks =
            topology.links().iter().filter(|link| !link.ends.iter().any(|end| is_host(end.node)));
        let trunks: Vec<End> = trunks.map(|link| link.ends[0]).collect();
        let hosts = (0..topology.nodes().len() as u32).filter(|node| is_host(*node));
        let hosts: Vec<End> = hosts.map(|node| End { node, port: 1 }).collect();
        let world = NetWorld::new(Net::new(Subnet::new(topology), seed, wire));
        world.start_manager(hosts[3], SmConfig::default());
        while hosts.iter().any(|host| world.net().port(*host).state != PortState::ACTIVE) {
            assert!(world.step());
        }
        // Retries last longer than the ten seconds between light sweeps: if the paths of all traps
        // about a link have failed as well, only a light sweep finds it.
        let connection = Connection { timeout: TimeCode(19), ..Connection::default() };
        let ends = [hosts[0], hosts[hosts.len() - 1]];
        let mut sides = ends.map(|end| {
            let adapter = Adapter::new(world.net().port(end));
            let device = SoftDevice::new("soft", adapter, world.link(end));
            side_of(device, Memory::private(1 << 18).unwrap(), &connection)
        });
        let lids = ends.map(|end| world.net().port(end).lid.0);
        let qpns = [0, 1].map(|nth| sides[nth].device.qpn(sides[nth].qp).unwrap());
        for nth in [0, 1] {
            connect(&mut sides[nth], qpns[1 - nth], lids[1 - nth], &connection);
        }
        Self { world, sides, trunks }
    }

    /// Advances time.
    fn step(&mut self) -> bool {
        let goes_on = self.world.step();
        self.sides.iter_mut().for_each(|side| side.device.progress());
        goes_on
    }

    fn set_cable(&self, end: End, is_in: bool) {
        self.world.net_mut().set_cable(end, is_in);
    }

    /// The completed requests of a side, by number.
    fn completed(&mut self, nth: usize, ids: &mut Vec<u64>) {
        while let Some(completion) = self.sides[nth].poll() {
            assert_eq!(completion.status, CompletionStatus::Success, "{completion:?}");
            ids.push(completion.id);
        }
    }
}

/// The content of a message: its number, repeated.
fn message(number: u64) -> Vec<u8> {
    number.to_be_bytes().into_iter().cycle().take(BYTES as usize).collect()
}

/// Sends all messages while links fail and recover; returns the number of failures that affected
/// traffic.
fn run(seed: u64, wire: Wire) -> usize {
    let mut rng = SeededRng::new(seed);
    let mut tree = Tree::new(seed, wire);
    let [sender, receiver] = &mut tree.sides;
    for id in 0..MESSAGES {
        let sges = [receiver.sge(id * u64::from(BYTES), BYTES)];
        receiver.device.post_recv(receiver.qp, &[RecvRequest { id, sges: &sges }]).unwrap();
        assert!(sender.memory.write(id as usize * BYTES as usize, &message(id)));
        let sges = [sender.sge(id * u64::from(BYTES), BYTES)];
        let (op, data, flags) = (SendOp::Send, Data::Sges(&sges), SendFlags::SIGNALED);
        sender.device.post_send(sender.qp, &[SendRequest { id, op, data, flags }]).unwrap();
    }
    let mut failures: Vec<(u64, End)> = (0..FAILURES)
        .map(|_| (rng.below(12), tree.trunks[rng.below(tree.trunks.len() as u64) as usize]))
        .collect();
    failures.sort_unstable();
    let (mut sent, mut came, mut out, mut met) = (Vec::new(), Vec::new(), None, 0);
    let mut turns = 0;
    while sent.len() < MESSAGES as usize || came.len() < MESSAGES as usize {
        if failures.first().is_some_and(|(turn, _)| *turn <= turns) {
            let (_, end) = failures.remove(0);
            if let Some(end) = out.replace(end) {
                tree.set_cable(end, true);
            }
            tree.set_cable(end, false);
            met += 1;
        }
        assert!(
            tree.step() && turns < 100_000,
            "seed {seed}: {} sent, {} came",
            sent.len(),
            came.len()
        );
        tree.completed(0, &mut sent);
        tree.completed(1, &mut came);
        turns += 1;
    }
    let all: Vec<u64> = (0..MESSAGES).collect();
    assert_eq!((&sent, &came), (&all, &all), "seed {seed}: each once and in order");
    for id in all {
        let mut bytes = vec![0; BYTES as usize];
        assert!(tree.sides[1].memory.read(id as usize * BYTES as usize, &mut bytes));
        assert!(bytes == message(id), "seed {seed}: message {id}");
    }
    met
}

// req: iba-subnet-management, iba-links
#[test]
fn traffic_continues_when_links_fail() {
    let packets = Wire { packets_only: true, ..Wire::default() };
    let met: usize = (0..1000)
        .map(|seed| run(seed, if seed % 2 == 0 { packets } else { Wire::default() }))
        .sum();
    assert!(met > 1000, "failures that met traffic: {met}");
}
