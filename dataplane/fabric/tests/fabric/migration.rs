//! Connections with a path across each of two spines, while paths fail: both ends migrate to the
//! other path, and no message is lost or duplicated.
//!
//! A path fails in one direction or in both, with packets or messages on it, while both ends send.
//! When both have migrated it is repaired, and becomes the alternate path; so one connection
//! migrates many times.

use crate::net_world::{NetLink, NetWorld};
use crate::pair::{Connection, Pair, Side, connect_by, side, side_of};
use crate::pair_world::World;
use pollux_fabric::link::Wire;
use pollux_fabric::link::fault::{Faults, SeededRng};
use pollux_fabric::net::Net;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Adapter, DropReason, SoftDevice};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::Lid;
use pollux_wire::mad::smp::{LinearForwardingTable, PortState};
use pollux_wire::units::TimeCode;
use std::collections::VecDeque;

/// Nodes of `leaf-spine:2x2x1`. The host of a leaf is at its port 1, the spines at 2 and 3; a spine
/// has the leaves at 1 and 2.
const LEAVES: [u32; 2] = [2, 4];
const HOSTS: [End; 2] = [End { node: 3, port: 1 }, End { node: 5, port: 1 }];
const SPINES: [u32; 2] = [0, 1];
/// The first LID of each host; it has two.
const LIDS: [u16; 2] = [2, 4];

/// Failures of the path in use.
const DEATHS: u32 = 4;
/// Outstanding requests of one end, and slots for their data.
const OUTSTANDING_MAX: usize = 8;
const SLOTS: u64 = 16;
const SLOT: u64 = 4096;
/// The target of reads is after the slots of messages, receives and answers.
const RECEIVES_AT: u64 = SLOTS * SLOT;
const ANSWERS_AT: u64 = 2 * RECEIVES_AT;
const READ_AT: u64 = 3 * RECEIVES_AT;

/// The path of a host to the other one across a spine: each spine has its own LIDs.
fn path(host: usize, spine: usize) -> AddressVector {
    let dlid = Lid(LIDS[1 - host] + spine as u16);
    AddressVector { dlid, src_path_bits: spine as u8, port: 1, ..AddressVector::default() }
}

/// The attributes that load an alternate path.
fn rearm(path: AddressVector) -> QpAttributes {
    QpAttributes {
        alternate_path: Some(path),
        migration: Some(Migration::Rearm),
        ..QpAttributes::default()
    }
}

/// The output port of a node for each of these LIDs.
fn route(subnet: &mut Subnet, node: u32, ports: impl Fn(u16) -> u8) {
    let tables = subnet.node_mut(node).forwarding.as_mut().unwrap();
    let mut table = LinearForwardingTable::default();
    table.ports.fill(LinearForwardingTable::UNREACHABLE);
    for lid in LIDS[0]..LIDS[1] + 2 {
        table.ports[usize::from(lid)] = ports(lid);
    }
    tables.set_linear_block(0, &table);
    tables.info.linear_fdb_top = Lid(LIDS[1] + 1);
}

/// The host of a LID.
fn host_of(lid: u16) -> usize {
    usize::from(lid >= LIDS[1])
}

/// The table of a leaf: the LID selects the spine. A failed spine is not in it.
fn route_leaf(subnet: &mut Subnet, leaf: usize, dead: Option<usize>) {
    route(subnet, LEAVES[leaf], |lid| match usize::from(lid % 2) {
        _ if host_of(lid) == leaf => 1,
        spine if Some(spine) == dead => LinearForwardingTable::UNREACHABLE,
        spine => 2 + spine as u8,
    });
}

fn subnet(seed: u64) -> Subnet {
    let mut subnet = Subnet::new(Topology::generate("leaf-spine:2x2x1", seed).unwrap());
    for node in 0..6 {
        subnet.node_mut(node).ports.iter_mut().for_each(|port| {
            port.info.port_state = PortState::ACTIVE;
        });
    }
    for (host, lid) in HOSTS.into_iter().zip(LIDS) {
        let info = &mut subnet.node_mut(host.node).ports[1].info;
        (info.lid, info.lmc) = (Lid(lid), 1);
    }
    (0..2).for_each(|leaf| route_leaf(&mut subnet, leaf, None));
    for spine in SPINES {
        route(&mut subnet, spine, |lid| 1 + host_of(lid) as u8);
    }
    subnet
}

/// The fault of a path.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// The cable between a leaf and the spine is out.
    Cable { leaf: usize },
    /// A leaf has no route across it: it has failed in one direction.
    Entry { leaf: usize },
    /// All packets between a leaf and the spine are lost.
    Loss { leaf: usize },
}

/// One end of the connection, and its requests.
struct Host {
    side: Side<NetLink>,
    /// Outstanding requests: whether each is a read.
    outstanding: VecDeque<bool>,
    posted: u64,
    sent: u64,
    received: u64,
    migrations: u32,
}

/// The `nth` message of a host; half of them are short.
fn message(host: usize, nth: u64) -> Vec<u8> {
    let bytes = if nth.is_multiple_of(2) { 3000 } else { 100 };
    nth.to_be_bytes().into_iter().map(|byte| byte ^ host as u8).cycle().take(bytes).collect()
}

impl Host {
    fn new(world: &NetWorld, nth: usize, connection: &Connection) -> Self {
        let adapter = Adapter::new(world.net().port(HOSTS[nth]));
        let device = SoftDevice::new("soft", adapter, world.link(HOSTS[nth]));
        let side = side_of(device, Memory::private(1 << 18).unwrap(), connection);
        assert!(side.memory.write(READ_AT as usize, &message(nth, 0)));
        let (outstanding, posted) = (VecDeque::new(), 0);
        Self { side, outstanding, posted, sent: 0, received: 0, migrations: 0 }
    }

    fn post_recv(&mut self, id: u64) {
        let sges = [self.side.sge(RECEIVES_AT + id % SLOTS * SLOT, SLOT as u32)];
        self.side.device.post_recv(self.side.qp, &[RecvRequest { id, sges: &sges }]).unwrap();
    }

    /// Posts a message, or a read of the peer's memory.
    fn post(&mut self, nth: usize, read: Option<Remote>) {
        if self.outstanding.len() >= OUTSTANDING_MAX {
            return;
        }
        let (side, slot) = (&mut self.side, self.posted % SLOTS * SLOT);
        let (op, sge) = match read {
            Some(remote) => {
                let bytes = message(1 - nth, 0).len() as u32;
                (SendOp::Read(remote), side.sge(ANSWERS_AT + slot, bytes))
            }
            None => {
                let bytes = message(nth, self.sent);
                assert!(side.memory.write(slot as usize, &bytes));
                self.sent += 1;
                (SendOp::Send, side.sge(slot, bytes.len() as u32))
            }
        };
        let (sges, flags) = ([sge], SendFlags::SIGNALED);
        let request = SendRequest { id: self.posted, op, data: Data::Sges(&sges), flags };
        side.device.post_send(side.qp, &[request]).unwrap();
        self.outstanding.push_back(read.is_some());
        self.posted += 1;
    }

    /// Checks the completions: each once, in order, and with the right content.
    fn take_completions(&mut self, nth: usize) {
        while let Some(found) = self.side.poll() {
            assert_eq!(found.status, CompletionStatus::Success, "{found:?}");
            let (id, bytes) = if found.kind.is_recv() {
                self.received += 1;
                (self.received - 1, message(1 - nth, self.received - 1))
            } else {
                let id = self.posted - self.outstanding.len() as u64;
                let is_read = self.outstanding.pop_front().expect("one that was posted");
                (id, if is_read { message(1 - nth, 0) } else { Vec::new() })
            };
            assert_eq!(found.id, id, "in order, once");
            let area = if found.kind.is_recv() { RECEIVES_AT } else { ANSWERS_AT };
            let mut came = vec![0; bytes.len()];
            assert!(self.side.memory.read((area + id % SLOTS * SLOT) as usize, &mut came));
            assert!(came == bytes, "the bytes of {found:?}");
            if found.kind.is_recv() {
                self.post_recv(id + SLOTS);
            }
        }
    }

    fn attributes(&self) -> QpAttributes {
        self.side.device.query_qp(self.side.qp).unwrap().1
    }

    /// Loads the path across a spine as the alternate path.
    fn load(&mut self, nth: usize, spine: usize) {
        self.side.device.modify_qp(self.side.qp, &rearm(path(nth, spine))).unwrap();
    }
}

struct Scenario {
    world: NetWorld,
    wire: Wire,
    hosts: [Host; 2],
    rng: SeededRng,
    /// The spine of the present path.
    spine: usize,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut rng = SeededRng::new(seed);
        let wire = Wire { packets_only: rng.below(2) == 0, ..Wire::default() };
        let world = NetWorld::new(Net::new(subnet(seed), seed, wire));
        let connection =
            Connection { timeout: TimeCode(6), memory_bytes: 1 << 18, ..Connection::default() };
        let mut hosts = [0, 1].map(|nth| Host::new(&world, nth, &connection));
        let qpns = [0, 1].map(|nth| hosts[nth].side.device.qpn(hosts[nth].side.qp).unwrap());
        for (nth, host) in hosts.iter_mut().enumerate() {
            connect_by(&mut host.side, qpns[1 - nth], path(nth, 0), &connection);
            (0..SLOTS).for_each(|id| host.post_recv(id));
        }
        Self { world, wire, hosts, rng, spine: 0 }
    }

    /// One turn of both ends; returns whether any event is left.
    fn turn(&mut self, posts: bool) -> bool {
        for nth in [0, 1] {
            let remote = self.hosts[1 - nth].side.remote(READ_AT);
            let host = &mut self.hosts[nth];
            if posts && self.rng.below(2) == 0 {
                host.post(nth, (self.rng.below(4) == 0).then_some(remote));
            }
            host.side.device.progress();
            host.take_completions(nth);
            while let Some(event) = host.side.device.async_event() {
                assert_eq!(event, AsyncEvent::PathMigrated(host.side.qp));
                host.migrations += 1;
            }
        }
        self.world.step()
    }

    /// Lets both ends exchange messages for a number of turns.
    fn go_on(&mut self) {
        for _ in 0..self.rng.below(20) {
            self.turn(true);
        }
    }

    /// Lets both ends exchange messages until a condition holds.
    fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if holds(self) {
                return;
            }
            self.turn(true);
        }
        panic!("{what}");
    }

    /// The path in use fails, or a failed one is repaired.
    fn set_dead(&mut self, death: Death, is_dead: bool) {
        let spine = self.spine;
        let mut net = self.world.net_mut();
        match death {
            Death::Cable { leaf } => {
                let end = End { node: LEAVES[leaf], port: 2 + spine as u8 };
                net.set_cable(end, !is_dead);
                let (peer, _) = net.subnet().topology().peer(end).unwrap();
                for End { node, port } in [end, peer].into_iter().filter(|_| !is_dead) {
                    let ports = &mut net.subnet_mut().node_mut(node).ports;
                    ports[usize::from(port)].info.port_state = PortState::ACTIVE;
                }
            }
            Death::Entry { leaf } => {
                route_leaf(net.subnet_mut(), leaf, is_dead.then_some(spine));
            }
            Death::Loss { leaf } => {
                let end = End { node: LEAVES[leaf], port: 2 + spine as u8 };
                let links = net.subnet().topology().links();
                let link = links.iter().position(|link| link.ends.contains(&end)).unwrap();
                let loss = if is_dead { 1_000_000 } else { 0 };
                let faults = Faults { loss, ..Faults::default() };
                net.set_wire(link as u32, Wire { faults, ..self.wire });
            }
        }
    }

    fn run(mut self) {
        for death in 1..=DEATHS {
            let other = 1 - self.spine;
            self.hosts[0].load(0, other);
            // The other end may migrate at any later time.
            self.go_on();
            self.hosts[1].load(1, other);
            let is_armed = |host: &Host| host.attributes().migration == Some(Migration::Armed);
            self.until("both are armed", |run| run.hosts.iter().all(is_armed));
            self.go_on();
            let leaf = self.rng.below(2) as usize;
            let deaths = [Death::Cable { leaf }, Death::Entry { leaf }, Death::Loss { leaf }];
            let kind = deaths[self.rng.below(3) as usize];
            self.set_dead(kind, true);
            let migrated = |host: &Host| host.migrations == death;
            self.until("both have migrated", |run| run.hosts.iter().all(migrated));
            self.set_dead(kind, false);
            self.spine = other;
            for (nth, host) in self.hosts.iter().enumerate() {
                let QpAttributes { path: found, alternate_path, migration, .. } = host.attributes();
                assert_eq!((found, alternate_path), (Some(path(nth, other)), None));
                assert_eq!(migration, Some(Migration::Migrated));
            }
        }
        while self.turn(false) {}
        for (host, peer) in [(0, 1), (1, 0)] {
            assert!(self.hosts[host].outstanding.is_empty(), "all has completed");
            assert_eq!(self.hosts[host].sent, self.hosts[peer].received);
            assert_eq!(self.hosts[host].side.state(), QpState::Rts);
        }
    }
}

// req: iba-migration
#[test]
fn both_ends_migrate_from_a_failed_path() {
    for seed in 0..200 {
        let outcome = std::panic::catch_unwind(|| Scenario::new(seed).run());
        assert!(outcome.is_ok(), "seed {seed} fails: Scenario::new({seed}).run() replays it");
    }
}

/// An unreliable connection at one link, of ports with two LIDs each, with receives at both ends.
fn unreliable(wire: Wire) -> Pair {
    let connection = Connection { qp_type: QpType::Uc, ..Connection::default() };
    let (world, [link_a, link_b]) = World::new(1, wire);
    let mut sides = [side(link_a, LIDS[0], &connection), side(link_b, LIDS[1], &connection)];
    let qpns = [0, 1].map(|nth| sides[nth].device.qpn(sides[nth].qp).unwrap());
    for (nth, side) in sides.iter_mut().enumerate() {
        side.device.adapter.port_mut().lmc = 1;
        connect_by(side, qpns[1 - nth], path(nth, 0), &connection);
        for id in 0..SLOTS {
            side.device.post_recv(side.qp, &[RecvRequest { id, sges: &[] }]).unwrap();
        }
    }
    Pair { world, sides }
}

/// Sends an empty message; returns whether it arrives.
fn is_heard(pair: &mut Pair, from: usize) -> bool {
    let side = &mut pair.sides[from];
    let (op, data, flags) = (SendOp::Send, Data::EMPTY, SendFlags::NONE);
    side.device.post_send(side.qp, &[SendRequest { id: 0, op, data, flags }]).unwrap();
    while pair.step() {}
    pair.poll(1 - from).is_some()
}

/// A packet counts as on the alternate path only if all its addresses match, also the LID of the
/// receiver.
// req: iba-migration
#[test]
fn a_migration_causes_one_event_for_each_arming() {
    for packets_only in [false, true] {
        let mut pair = unreliable(Wire { packets_only, ..Wire::default() });
        let change = |pair: &mut Pair, nth: usize, change: QpAttributes| {
            let side: &mut Side<_> = &mut pair.sides[nth];
            side.device.modify_qp(side.qp, &change).unwrap();
        };
        let none = QpAttributes::default();
        for dropped in [3, 6] {
            change(&mut pair, 0, rearm(AddressVector { dlid: Lid(LIDS[1]), ..path(0, 1) }));
            change(&mut pair, 1, rearm(path(1, 1)));
            assert!(is_heard(&mut pair, 0) && is_heard(&mut pair, 1));
            change(&mut pair, 0, QpAttributes { migration: Some(Migration::Migrated), ..none });
            assert!((0..3).all(|_| !is_heard(&mut pair, 0)));
            let [_, deaf] = &mut pair.sides;
            let told = AsyncEvent::PathMigrationError(deaf.qp);
            assert_eq!(deaf.device.async_event(), Some(told));
            assert_eq!(deaf.device.async_event(), None);
            assert_eq!(deaf.device.adapter.port().drops.of(DropReason::Migration), dropped);
            // A packet on the first path is accepted, but its MigReq is no migration.
            let (sqd, rts) = (Some(QpState::Sqd), Some(QpState::Rts));
            change(&mut pair, 0, QpAttributes { state: sqd, ..none });
            change(&mut pair, 0, QpAttributes { path: Some(path(0, 0)), ..none });
            change(&mut pair, 0, QpAttributes { state: rts, ..none });
        }
    }
}
