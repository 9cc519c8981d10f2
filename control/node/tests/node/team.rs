//! Interfaces with several workers at the ports of a managed subnet, in virtual time, one thread
//! and from a seed.

use crate::device::{Illness, ail};
use crate::net_world::NetWorld;
use pollux_control::ipoib::WorkerId;
use pollux_control::ipoib::connected::ConnectionRow;
use pollux_dataplane::port::PacketPort;
use pollux_fabric::link::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::sm;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Adapter, SoftDevice};
use pollux_node::Opened;
use pollux_node::config::{InterfaceSettings, NodeConfig};
use pollux_node::interface::NotSent;
use pollux_node::interface::{InterfaceWorker, IpoibLink};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::mad::smp::NodeType;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than anything takes here, in a time that costs nothing.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// A worker looks at its control this long after it did, at the earliest.
const SETTLE: Duration = Duration::from_micros(20);
/// Turns at one moment after which time stands still.
const TURNS_AT_A_MOMENT_MAX: u32 = 100_000;
/// The protocol of test packets (RFC 3692 2.1).
const TEST: IpProtocol = IpProtocol(253);

/// An interface, and what its workers were sent.
pub struct Team {
    end: End,
    settings: InterfaceSettings,
    /// The interface and its workers, as long as they are there.
    pub interface: Option<IpoibLink>,
    pub workers: Vec<InterfaceWorker>,
    /// Of the control plane's device; those of workers are beside it.
    pub illness: Arc<Mutex<Illness>>,
    /// Until when all workers but the first do nothing. Packets for them would stop time.
    pub asleep_until: Option<Time>,
    /// Until when its process is stopped: it polls nothing while time passes.
    stopped_until: Option<Time>,
    /// Received payloads, and the worker of each.
    pub received: Vec<(WorkerId, Vec<u8>)>,
}

/// All teams, and what they are at.
pub struct World {
    pub net: NetWorld,
    pub teams: Vec<Team>,
    pub rng: SeededRng,
    settle: Option<Time>,
    turns: u32,
}

/// The address of a team.
pub fn ip(nth: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, nth as u8 + 1)
}

/// A packet that only a test takes.
pub fn packet(source: Ipv4Addr, destination: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let header =
        Ipv4Header { protocol: TEST, ttl: 64, source, destination, ..Ipv4Header::default() };
    let mut packet = vec![0; Ipv4Header::LEN + payload.len()];
    let room = header.write_packet(&[], payload.len(), &mut packet).expect("it fits");
    room.copy_from_slice(payload);
    packet
}

/// The payload of such a packet.
pub fn payload(packet: &[u8]) -> Option<&[u8]> {
    let is_ours = packet[0] >> 4 == 4 && packet[9] == TEST.0;
    is_ours.then(|| &packet[Ipv4Header::LEN..])
}

impl World {
    /// A switch with a manager, and a team for each of these keys of a configuration, all up.
    pub fn new(seed: u64, keys: &[&str], wire: Wire) -> Self {
        let topology = Topology::generate(&format!("single:{}", keys.len() + 1), 1);
        let topology = topology.expect("a topology");
        let nodes = (0..).zip(topology.nodes());
        let hosts = nodes.filter(|(_, node)| node.kind == NodeType::CHANNEL_ADAPTER);
        let ends: Vec<_> = hosts.map(|(node, _)| End { node, port: 1 }).collect();
        let mut rng = SeededRng::new(seed);
        let net = NetWorld::new(Net::new(Subnet::new(topology), rng.next_u64(), wire));
        net.start_manager(ends[0], sm::SmConfig::default());
        let team = |(nth, keys): (usize, &&str)| Team {
            end: ends[nth + 1],
            settings: settings(nth, keys),
            interface: None,
            workers: Vec::new(),
            illness: Arc::default(),
            asleep_until: None,
            stopped_until: None,
            received: Vec::new(),
        };
        let teams = keys.iter().enumerate().map(team).collect();
        let mut world = Self { net, teams, rng, settle: None, turns: 0 };
        (0..keys.len()).for_each(|nth| world.start(nth));
        world.until("all are up", |world| world.teams.iter().all(Team::is_up));
        world
    }

    pub fn now(&self) -> Time {
        self.net.now()
    }

    /// A team begins, at an adapter that knows nothing of any before.
    pub fn start(&mut self, nth: usize) {
        let (now, seed) = (self.now(), self.rng.next_u64());
        let team = &mut self.teams[nth];
        let adapter = Adapter::new(self.net.net().port(team.end));
        let device = Box::new(SoftDevice::new("soft", adapter, self.net.link(team.end)));
        let (opened, illness) = ail(Opened { device, port: 1, fabric: None, management: None });
        let opened = IpoibLink::new(now, opened, &team.settings, seed);
        let (interface, workers) = opened.expect("the adapter has all that it needs");
        (team.interface, team.workers, team.illness) = (Some(interface), workers, illness);
        self.settle = Some(now);
    }

    /// A team is gone at once, without a message.
    pub fn kill(&mut self, nth: usize) {
        let team = &mut self.teams[nth];
        team.interface = None;
        team.workers.clear();
    }

    pub fn set_cable(&mut self, nth: usize, is_in: bool) {
        self.net.net_mut().set_cable(self.teams[nth].end, is_in);
        self.settle = Some(self.now());
    }

    /// A team's process polls nothing for this long.
    pub fn stop(&mut self, nth: usize, time: Duration) {
        let team = &mut self.teams[nth];
        team.stopped_until = Some(self.net.now() + time);
        self.net.set_stopped(team.end, true);
    }

    /// Sends by one of a team's workers.
    pub fn send(
        &mut self,
        (from, worker): (usize, u8),
        to: usize,
        payload: &[u8],
    ) -> Result<(), NotSent> {
        let now = self.now();
        self.settle = Some(now);
        let packet = packet(ip(from), ip(to), payload);
        let sent = self.teams[from].worker(worker).send(now, &packet);
        self.teams[from].worker(worker).flush();
        sent
    }

    /// Sends by one of a team's workers until a packet is received; returns the worker that
    /// received it. Packets by a path that is gone may be lost.
    pub fn must_reach(&mut self, from: (usize, u8), to: usize, bytes: usize) -> WorkerId {
        let payload: Vec<u8> = (0..bytes).map(|_| self.rng.next_u64() as u8).collect();
        let end = self.now() + TIMEOUT;
        loop {
            assert!(self.now() < end, "from {from:?} to {to}: {bytes} bytes never come");
            let _ = self.send(from, to, &payload);
            self.pass(Duration::from_millis(100));
            let received = &mut self.teams[to].received;
            if let Some(at) = received.iter().position(|(_, it)| *it == payload) {
                return received.swap_remove(at).0;
            }
        }
    }

    /// Lets so much time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now() + time;
        while self.step(end) {}
    }

    /// Goes on until something is so.
    pub fn until(&mut self, what: &str, mut is: impl FnMut(&mut Self) -> bool) {
        let end = self.now() + TIMEOUT;
        while !is(self) {
            assert!(self.step(end), "{what}: never");
        }
    }

    /// Steps all hosts and the time. Returns whether the deadline is not over.
    fn step(&mut self, end: Time) -> bool {
        let now = self.now();
        for team in &mut self.teams {
            if team.stopped_until.take_if(|until| *until <= now).is_some() {
                self.net.set_stopped(team.end, false);
            }
        }
        let is_busy = self.teams.iter_mut().fold(false, |busy, team| team.turn(now) | busy);
        if is_busy {
            self.settle.get_or_insert(now + SETTLE);
        }
        if now >= end {
            return false;
        }
        // A worker that has looked just now does not look again at once.
        let later = |due: Time| if due > now { due } else { now + SETTLE };
        let due = self.teams.iter().filter_map(Team::due).map(later);
        let next = due.chain(self.settle).chain([end]).min().unwrap_or(end);
        let has_happened = self.net.step_until(next.max(now));
        let then = self.now();
        self.settle.take_if(|moment| *moment <= then);
        if has_happened {
            self.settle.get_or_insert(then + SETTLE);
        }
        self.turns = if then > now { 0 } else { self.turns + 1 };
        assert!(self.turns < TURNS_AT_A_MOMENT_MAX, "time stands still at {now:?}");
        true
    }
}

impl Team {
    pub fn is_up(&self) -> bool {
        let control = self.interface.as_ref().map(IpoibLink::control);
        control.is_some_and(|it| it.is_up() && it.addresses().source_for(ip(9).into()).is_some())
    }

    pub fn interface(&self) -> &IpoibLink {
        self.interface.as_ref().expect("it is there")
    }

    pub fn interface_mut(&mut self) -> &mut IpoibLink {
        self.interface.as_mut().expect("it is there")
    }

    /// One of its workers.
    pub fn worker(&mut self, number: u8) -> &mut InterfaceWorker {
        &mut self.workers[usize::from(number)]
    }

    /// The faults of the device of one of its workers.
    pub fn illness_of(&self, worker: usize) -> Arc<Mutex<Illness>> {
        let illness = self.illness.lock().expect("no test has panicked");
        Arc::clone(&illness.beside[worker])
    }

    /// Connections that are open, in the order of their workers.
    pub fn connections(&self) -> Vec<ConnectionRow> {
        let rows = self.interface().control().connection_rows();
        let mut rows: Vec<_> = rows.filter(|row| row.state == "open").collect();
        rows.sort_by_key(|row| row.worker);
        rows
    }

    /// Steps once. Returns whether there was anything to do.
    fn turn(&mut self, now: Time) -> bool {
        if self.stopped_until.is_some() {
            return false;
        }
        let received = &mut self.received;
        let mut take = |worker, packet: &[u8]| {
            received.extend(payload(packet).map(|payload| (worker, payload.to_vec())));
            payload(packet).is_some()
        };
        let mut busy = false;
        self.asleep_until.take_if(|until| *until <= now);
        let is_asleep = self.asleep_until.is_some();
        for worker in self.workers.iter_mut() {
            let number = worker.number();
            if number == WorkerId::PRIMARY || !is_asleep {
                busy |= worker.breathe(now, &mut |_, packet| take(number, packet));
            }
        }
        // A failed worker is dropped, also when its interface has failed.
        self.workers.retain(|worker| worker.failed().is_none());
        busy |= self.interface.as_mut().is_some_and(|interface| interface.step(now));
        busy
    }

    fn due(&self) -> Option<Time> {
        if self.stopped_until.is_some() {
            return self.stopped_until;
        }
        let workers = self.workers.iter().filter_map(InterfaceWorker::poll_timeout);
        let interface = self.interface.as_ref().and_then(IpoibLink::poll_timeout);
        workers.chain(self.asleep_until).chain(interface).min()
    }
}

fn settings(nth: usize, keys: &str) -> InterfaceSettings {
    let address = format!("{}/24", ip(nth));
    let text = format!("[interface.ib0]\ndevice = 'soft:'\naddress = [{address:?}]\n{keys}\n");
    let mut config = NodeConfig::read("test", &text).expect("it is a configuration");
    config.interfaces.remove("ib0").expect("it is there")
}
