//! Interfaces on a subnet with a manager of ours, and time that jumps from one thing that happens
//! to the next.
//!
//! Nodes die and begin anew: what they had at their devices is gone then, and nobody is told.

use crate::network::{Event, Weather};
use crate::port_driver::PortDriver;
use pollux_control::ipoib::{
    Action, Adjacency, By, InterfaceConfig, IpoibInterface, OutgoingPacket, PortView,
    ReceivedPacket, WorkerId,
};
use pollux_control::mad::{Envelope, MadAddress};
use pollux_fabric::node::PKeys;
use pollux_fabric::sm::{Residents, SmConfig};
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::keys::PKey;
use pollux_wire::mad::MgmtClass;
use pollux_wire::mad::smp::{NodeType, PortInfo, PortState};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Steps at one moment that no honest exchange needs.
const STEPS_AT_A_MOMENT_MAX: u32 = 1_000_000;

/// A node with an interface.
pub struct Node {
    pub at: End,
    pub config: InterfaceConfig,
    /// None while the node is dead.
    pub interface: Option<IpoibInterface>,
    pub port_driver: PortDriver,
    /// How often it began.
    pub life: u32,
    /// Marks of packets that local sockets got, with how often.
    pub got: BTreeMap<u64, u32>,
    due: Option<Time>,
    /// The state of the port as the node knows it, and its reregistrations.
    told: Option<(PortInfo, PKeys, u32)>,
}

/// All there is.
pub struct World {
    pub subnet: Subnet,
    pub managers: Residents,
    pub manager: (End, SmConfig),
    pub nodes: Vec<Node>,
    pub now: Time,
    pub rng: SeededRng,
    /// What befalls frames.
    pub weather: Weather,
    /// What befalls management datagrams.
    pub mad_weather: Weather,
    /// The administrator is unreachable.
    pub is_sa_silent: bool,
    /// Nodes whose workers do not run: they acknowledge nothing, while their control runs.
    pub busy: BTreeSet<usize>,
    /// Management datagrams of interfaces, and those of them for the administrator.
    pub mads: u64,
    pub questions: u64,
    /// Frames that interfaces were given.
    pub frames: u64,
    /// Only targets get ARP requests; the number of requests that others did not get.
    pub spares_bystanders: bool,
    pub spared: u64,
    /// Nodes by LID, and members of groups.
    pub by_lid: BTreeMap<Lid, usize>,
    pub listeners: BTreeMap<(Gid, Lid), BTreeSet<usize>>,
    pub events: BTreeMap<(Time, u64), Event>,
    pub number: u64,
    by_port: BTreeMap<End, usize>,
    wakes: BTreeSet<(Time, usize)>,
    standstill: u32,
}

/// The address of a node.
pub fn ip(nth: usize) -> IpAddr {
    let [.., high, low] = (nth as u32 + 1).to_be_bytes();
    Ipv4Addr::new(10, 0, high, low).into()
}

/// The node with an address.
pub fn node_of(ip: Ipv4Addr) -> usize {
    let [.., high, low] = ip.octets();
    usize::from(u16::from_be_bytes([high, low])).wrapping_sub(1)
}

/// A packet from one node to another, with a mark.
pub fn packet(from: usize, to: usize, mark: u64, len: usize) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (ip(from), ip(to)) else { unreachable!() };
    let protocol = IpProtocol::UDP;
    // A long one is to wait for a connection, not to go in parts without one.
    let (ttl, dont_fragment) = (64, true);
    let header =
        Ipv4Header { protocol, source, destination, ttl, dont_fragment, ..Ipv4Header::default() };
    let mut packet = vec![0; len];
    let payload = header.write_packet(&[], len - Ipv4Header::LEN, &mut packet).expect("room");
    payload[..8].copy_from_slice(&mark.to_be_bytes());
    packet
}

fn mark(packet: &[u8]) -> Option<u64> {
    let (header, rest) = packet.split_at_checked(Ipv4Header::LEN)?;
    (header[9] == IpProtocol::UDP.0).then_some(())?;
    rest.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

impl World {
    /// A subnet whose first host has the manager, and the others a node each.
    pub fn new(
        seed: u64,
        topology: &str,
        manager: SmConfig,
        mut adjust: impl FnMut(InterfaceConfig, usize) -> InterfaceConfig,
    ) -> Self {
        let mut subnet = Subnet::new(Topology::generate(topology, 1).expect("a topology"));
        let nodes = (0..).zip(subnet.topology().nodes());
        let hosts = nodes.filter(|(_, node)| node.kind == NodeType::CHANNEL_ADAPTER);
        let mut ends = hosts.map(|(node, _)| End { node, port: 1 }).collect::<Vec<_>>().into_iter();
        let at_manager = ends.next().expect("a host");
        let mut managers = Residents::default();
        managers.start(&mut subnet, at_manager, manager.clone());
        let mut node = |(nth, at): (usize, End)| {
            let guid = subnet.nodes()[at.node as usize].gid(at.port).guid();
            let config = InterfaceConfig::new(guid, Qpn(0x48), PKey::DEFAULT).address(ip(nth), 16);
            let config = adjust(config, nth);
            let (made, secondary_workers) = (first_qpn(nth), config.workers - 1);
            let port_driver = PortDriver { made, secondary_workers, ..PortDriver::default() };
            let (interface, life, got, due, told) = (None, 0, BTreeMap::new(), None, None);
            Node { at, config, interface, port_driver, life, got, due, told }
        };
        let nodes: Vec<Node> = ends.enumerate().map(&mut node).collect();
        let by_port = nodes.iter().enumerate().map(|(nth, node)| (node.at, nth)).collect();
        let mut world = Self {
            subnet,
            managers,
            manager: (at_manager, manager),
            nodes,
            now: Time::START,
            rng: SeededRng::new(seed),
            weather: Weather::CALM,
            mad_weather: Weather::CALM,
            is_sa_silent: false,
            busy: BTreeSet::new(),
            mads: 0,
            questions: 0,
            frames: 0,
            spares_bystanders: false,
            spared: 0,
            by_lid: BTreeMap::new(),
            listeners: BTreeMap::new(),
            events: BTreeMap::new(),
            number: 0,
            by_port,
            wakes: BTreeSet::new(),
            standstill: 0,
        };
        world.settle_subnet();
        (0..world.nodes.len()).for_each(|nth| world.start(nth));
        world
    }

    /// A node begins, or begins anew.
    pub fn start(&mut self, nth: usize) {
        let seed = self.rng.next_u64();
        let node = &mut self.nodes[nth];
        node.life += 1;
        node.interface = Some(IpoibInterface::new(self.now, node.config.clone(), seed));
        self.tell_port(nth);
    }

    /// A node dies, and leaves nothing: `forgets_qpns` if its device gives out the same numbers
    /// of queue pairs again.
    pub fn kill(&mut self, nth: usize, forgets_qpns: bool) {
        let node = &mut self.nodes[nth];
        node.interface = None;
        let made = if forgets_qpns { first_qpn(nth) } else { node.port_driver.made };
        node.port_driver = PortDriver {
            made,
            secondary_workers: node.port_driver.secondary_workers,
            ..PortDriver::default()
        };
        self.listeners.values_mut().for_each(|all| _ = all.remove(&nth));
        self.note_wake(nth);
    }

    /// A subnet manager begins anew, without what it knew.
    pub fn restart_manager(&mut self) {
        let (at, config) = self.manager.clone();
        self.managers.start(&mut self.subnet, at, config);
        self.settle_subnet();
    }

    /// A node's cable is pulled, or put back.
    pub fn set_cable(&mut self, nth: usize, is_in: bool) {
        self.subnet.set_cable(self.nodes[nth].at, is_in);
        self.tell_port(nth);
        self.settle_subnet();
    }

    /// A node's queue pair fails.
    pub fn fail(&mut self, nth: usize, which: usize) {
        let port_driver = &mut self.nodes[nth].port_driver;
        if let Some(key) = port_driver.connections.keys().nth(which).copied() {
            port_driver.fail(key);
            self.drain(nth);
        }
    }

    /// Somebody takes a node's interface down, or up.
    pub fn set_open(&mut self, nth: usize, is_open: bool) {
        let now = self.now;
        if let Some(interface) = &mut self.nodes[nth].interface {
            interface.set_open(now, is_open);
        }
        self.drain(nth);
    }

    /// A node sends a packet, by any of its workers: as its tables say, else by asking
    /// control.
    pub fn send(&mut self, from: usize, to: usize, mark: u64, len: usize) {
        let (now, packet) = (self.now, packet(from, to, mark, len));
        let node = &mut self.nodes[from];
        let Some(interface) = &mut node.interface else { return };
        let turn = mark.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let worker = WorkerId((turn % u64::from(node.config.workers)) as u8);
        let peer = node.port_driver.bound.get(&ip(to)).copied();
        match peer.map(|peer| (peer, node.port_driver.peers[&(peer, worker)])) {
            Some((_, Adjacency::Datagram(adjacency))) if len > adjacency.mtu as usize => {
                interface.handle_too_big(now, &packet, adjacency.mtu);
            }
            Some((_, Adjacency::Connected { mtu, .. })) if len > mtu as usize => {
                interface.handle_too_big(now, &packet, mtu);
            }
            Some((peer, Adjacency::Datagram(_) | Adjacency::Connected { .. })) => {
                interface.handle_use(now, ip(to));
                let by = By::Peer(peer);
                self.fly(from, worker, OutgoingPacket { ether_type: EtherType::IPV4, packet, by });
            }
            _ => interface.handle_miss(now, worker, packet),
        }
        self.drain(from);
    }

    /// Advances the time.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
    }

    /// The next thing happens, if it is to happen by then.
    fn step(&mut self, until: Time) -> bool {
        let event = self.events.first_key_value().map(|(&(at, _), _)| at);
        let wake = self.wakes.first().map(|&(at, _)| at);
        let subnet = [self.managers.due(), self.subnet.traps_due()].into_iter().flatten().min();
        let Some(next) = [event, wake, subnet].into_iter().flatten().min() else { return false };
        if next > until {
            return false;
        }
        self.standstill = if next > self.now { 0 } else { self.standstill + 1 };
        assert!(self.standstill < STEPS_AT_A_MOMENT_MAX, "time stands still");
        self.now = self.now.max(next);
        if subnet.is_some_and(|due| due <= self.now) {
            self.settle_subnet();
        }
        if let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let event = entry.remove();
            self.happen(event);
        }
        if let Some(&(at, nth)) = self.wakes.first().filter(|(at, _)| *at <= self.now) {
            self.wakes.remove(&(at, nth));
            self.nodes[nth].due = None;
            if let Some(interface) = &mut self.nodes[nth].interface {
                interface.handle_timeout(self.now);
            }
            self.drain(nth);
        }
        true
    }

    /// Runs manager and subnet, and passes their results to nodes.
    pub fn settle_subnet(&mut self) {
        let mut arrived = Vec::new();
        self.managers.exchange(self.now, &mut self.subnet, |at, datagram| {
            arrived.push((at, datagram));
        });
        (0..self.nodes.len()).for_each(|nth| self.tell_changes(nth));
        for (at, datagram) in arrived {
            let Some(&to) = self.by_port.get(&at) else { continue };
            let is_of_sa = datagram.mad[1] == MgmtClass::SUBN_ADM.0;
            if datagram.dest_qp == Qpn::GSI && !(is_of_sa && self.is_sa_silent) {
                let peer = MadAddress::gsi(datagram.slid, 0, PKey::DEFAULT);
                let envelope = Envelope { peer, mad: datagram.mad };
                self.put_mad(Event::ToNode { to, envelope: Box::new(envelope) });
            }
        }
    }

    /// Tells a node of changes of its port, and whether it is to register again.
    fn tell_changes(&mut self, nth: usize) {
        let node = &mut self.nodes[nth];
        let port = &self.subnet.nodes()[node.at.node as usize].ports[usize::from(node.at.port)];
        let told = (port.info, port.p_keys.clone(), port.reregistrations);
        if node.told.as_ref() == Some(&told) {
            return;
        }
        let is_active = port.info.port_state == PortState::ACTIVE;
        let before = node.told.replace(told).map_or(0, |(.., before)| before);
        let reregisters = is_active && port.reregistrations != before;
        self.tell_port(nth);
        if let Some(interface) = self.nodes[nth].interface.as_mut().filter(|_| reregisters) {
            interface.handle_reregister(self.now);
            self.drain(nth);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToSubnet { from, datagram } => {
                self.subnet.send(self.now, from, *datagram);
                self.settle_subnet();
            }
            Event::ToNode { to, envelope } => {
                if let Some(interface) = &mut self.nodes[to].interface {
                    interface.handle_mad(self.now, &envelope);
                }
                self.drain(to);
            }
            Event::Frame(flying) => self.land(&flying),
            Event::Message(message) => self.arrive(message),
        }
    }

    /// A packet is given to a node.
    pub fn give(&mut self, to: usize, received: ReceivedPacket<'_>) {
        self.frames += 1;
        if let Some(interface) = &mut self.nodes[to].interface {
            interface.handle_packet(self.now, received);
        }
        self.drain(to);
    }

    /// Does all that a node wants to be done.
    pub fn drain(&mut self, nth: usize) {
        while self.carry_out(nth) {}
        let Node { interface, got, .. } = &mut self.nodes[nth];
        while let Some(delivery) = interface.as_mut().and_then(IpoibInterface::poll_delivery) {
            mark(&delivery.packet).into_iter().for_each(|it| *got.entry(it).or_default() += 1);
        }
        while let Some(envelope) =
            self.nodes[nth].interface.as_mut().and_then(IpoibInterface::poll_mad)
        {
            self.send_mad(nth, &envelope);
        }
        while let Some(outgoing) =
            self.nodes[nth].interface.as_mut().and_then(IpoibInterface::poll_frame)
        {
            self.fly(nth, WorkerId::PRIMARY, outgoing);
        }
        self.note_wake(nth);
        if !self.nodes[nth].port_driver.events.is_empty() {
            self.drain(nth);
        }
    }

    /// Carries out what an interface wants at its device. Says whether that was anything.
    fn carry_out(&mut self, nth: usize) -> bool {
        let now = self.now;
        let Node { interface: Some(interface), port_driver, .. } = &mut self.nodes[nth] else {
            return false;
        };
        let before = port_driver.attached.len();
        let mut has_groups = false;
        let mut has_acted = false;
        while let Some(action) = interface.poll_action() {
            has_acted = true;
            has_groups |= matches!(action, Action::Attach { .. } | Action::Detach { .. });
            port_driver.act(action);
        }
        for (key, events) in std::mem::take(&mut port_driver.events) {
            has_acted = true;
            interface.handle_connection(now, key, &events);
        }
        if has_groups || before != port_driver.attached.len() {
            let attached = port_driver.attached.clone();
            self.listeners.values_mut().for_each(|all| _ = all.remove(&nth));
            for group in attached {
                self.listeners.entry(group).or_default().insert(nth);
            }
        }
        has_acted
    }

    /// A node's port is looked at.
    fn tell_port(&mut self, nth: usize) {
        let view = self.view(nth);
        self.by_lid.retain(|_, who| *who != nth);
        self.by_lid.insert(view.lid, nth);
        if let Some(interface) = &mut self.nodes[nth].interface {
            interface.handle_port(self.now, &view);
        }
        self.drain(nth);
    }

    pub fn view(&self, nth: usize) -> PortView {
        let at = self.nodes[nth].at;
        let node = &self.subnet.nodes()[at.node as usize];
        let port = &node.ports[usize::from(at.port)];
        PortView {
            number: at.port,
            state: port.info.port_state,
            lid: port.info.lid,
            lmc: port.info.lmc,
            sm_lid: port.info.master_sm_lid,
            sm_sl: port.info.master_sm_sl,
            mtu: port.info.neighbor_mtu,
            gids: vec![node.gid(at.port)],
            pkeys: port.p_keys.entries().to_vec(),
        }
    }

    fn note_wake(&mut self, nth: usize) {
        let node = &mut self.nodes[nth];
        let due = node.interface.as_ref().and_then(IpoibInterface::poll_timeout);
        if node.due != due {
            node.due.into_iter().for_each(|before| _ = self.wakes.remove(&(before, nth)));
            due.into_iter().for_each(|after| _ = self.wakes.insert((after, nth)));
            node.due = due;
        }
    }
}

/// Numbers of queue pairs tell whose they are.
pub const fn first_qpn(nth: usize) -> u32 {
    (nth as u32 + 1) << 12
}

/// Whose a queue pair is.
pub const fn owner_of(qpn: Qpn) -> usize {
    (qpn.0 >> 12) as usize - 1
}
