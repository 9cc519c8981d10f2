//! Data on its way through a subnet: over links, through switches, to the adapters at its ends.
//!
//! A [`Net`] is the state machine of that, without I/O: time is passed in, what has arrived is
//! taken out. The nodes of its [`Subnet`] decide by which ports things go on, and count them; what
//! subnet management changes holds from the next hop on. Packets go byte by byte as on a wire,
//! with a VCRC per hop; messages that take the shortcut go the same way by the same tables, only
//! that nothing looks at their bytes.
//!
//! Datagrams of management that come to a node go to its agents, however they came: through the
//! subnet without time, or as packets. What no agent takes waits in [`Net::poll_delivery`] for
//! managers and programs at that port, and what those leave is for the adapter there
//! ([`Net::give`]). `management` has the two forms, [`foreign`] the ports where our nodes end.
//!
//! [`seats`] are where adapters are. [`world`] runs a net with adapters in one thread, in virtual
//! time or on a clock.

mod arbiter;
mod crossing;
mod egress;
mod flight;
pub mod foreign;
mod management;
mod router;
pub mod seats;
pub mod ways;
pub mod world;

use crate::frame::Frame;
use crate::hca::port::{Drops, LinkLayer, Port};
use crate::hca::violation::KeyViolation;
use crate::link::fault::SeededRng;
use crate::link::world::Wire;
use crate::node::{Node, NodeDrop};
use crate::subnet::{Datagram, Departure, PacketLinks, Subnet};
use crate::switch;
use crate::time::Time;
use crate::topology::End;
use egress::Egress;
use flight::Flight;
pub(crate) use flight::size_of_message;
use foreign::Foreign;
use pollux_wire::address::Lid;
use pollux_wire::mad::Method;
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::Lrh;
use pollux_wire::psn::Psn;
use seats::{Seat, Seats};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Who is told of every packet on a link: when, from which end, and its bytes, LRH to VCRC.
pub type Tap = Box<dyn FnMut(Time, End, &[u8]) + Send>;

/// Datagrams that have come to somebody and were not taken.
const DELIVERED_MAX: usize = 4096;
/// Links that a frame may cross: a route that goes in circles ends.
const HOPS_MAX: u8 = 64;

/// A subnet that carries data.
pub struct Net {
    subnet: Subnet,
    rng: SeededRng,
    wire: Wire,
    /// Links that are not as all others, by number.
    wires: BTreeMap<u32, Wire>,
    tap: Option<Tap>,
    /// What will happen, in the order of time and then of being scheduled.
    events: BTreeMap<(Time, u64), Event>,
    scheduled: u64,
    /// Datagrams of management that became packets: their sequence numbers.
    datagrams: u64,
    /// Whether links have a rate; otherwise they are as quick as the machine.
    is_paced: bool,
    /// What waits at ports to leave by them.
    egress: BTreeMap<End, Egress>,
    /// When the last frame for each end of a link arrives, late ones left out.
    latest: BTreeMap<End, Time>,
    adapters: BTreeMap<End, Seats>,
    /// Ports whose processes and wires may manage the subnet.
    managing: BTreeSet<End>,
    foreign: BTreeMap<End, Foreign>,
    /// Whether subnets are joined: what goes by shortcut has no header that a router could read.
    has_routers: bool,
    delivered: VecDeque<Delivery>,
    /// Frames that have arrived and were not taken.
    waiting: usize,
    /// Counts what may have changed ports, or where packets are wanted.
    epoch: u64,
}

/// Something that will happen.
enum Event {
    /// A frame comes to the end of a link.
    Land(Flight),
    /// A port may have something to send.
    Pump(End),
}

/// A datagram of management that has come to a port, and that no agent there answers.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The port.
    pub at: End,
    /// The datagram.
    pub datagram: Datagram,
    /// The frame that it came in, if it did: what more an adapter wants to know.
    frame: Option<(Seat, Frame)>,
}

impl Net {
    /// A subnet with all links as `wire` says.
    pub fn new(subnet: Subnet, seed: u64, wire: Wire) -> Self {
        let mut net = Self {
            has_routers: subnet.nodes().iter().any(router::is_router),
            subnet,
            rng: SeededRng::new(seed),
            wire,
            wires: BTreeMap::new(),
            tap: None,
            events: BTreeMap::new(),
            scheduled: 0,
            datagrams: 0,
            is_paced: false,
            egress: BTreeMap::new(),
            latest: BTreeMap::new(),
            adapters: BTreeMap::new(),
            managing: BTreeSet::new(),
            foreign: BTreeMap::new(),
            delivered: VecDeque::new(),
            waiting: 0,
            epoch: 1,
        };
        net.find_packet_links();
        net
    }

    /// The nodes and their management.
    pub fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// The nodes, for whoever manages them.
    pub fn subnet_mut(&mut self) -> &mut Subnet {
        self.epoch += 1;
        &mut self.subnet
    }

    /// Counts what may have changed ports, or where packets are wanted.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Makes one link other than the rest.
    pub fn set_wire(&mut self, link: u32, wire: Wire) {
        self.wires.insert(link, wire);
        self.find_packet_links();
    }

    /// Makes all links alike.
    pub fn set_wires(&mut self, wire: Wire) {
        self.wire = wire;
        self.wires.clear();
        self.find_packet_links();
    }

    /// Shows every packet on every link to `tap`. Messages are then sent as packets.
    pub fn set_tap(&mut self, tap: Tap) {
        self.tap = Some(tap);
        self.find_packet_links();
    }

    /// On which links somebody looks at packets, so that datagrams of management have to be some.
    fn find_packet_links(&mut self) {
        self.epoch += 1;
        let links = self.wires.iter().filter(|(_, wire)| looks(wire));
        let planned = self.subnet.topology().links();
        let links = links.filter_map(|(link, _)| planned.get(*link as usize));
        let mut ends: BTreeSet<End> = links.flat_map(|link| link.ends).collect();
        ends.extend(self.foreign.keys());
        let all = self.tap.is_some() || looks(&self.wire);
        self.subnet.set_packet_links(PacketLinks { all, ends });
    }

    /// Gives links the rates that their ports say, with lanes, credits and arbitration; or takes
    /// them away again. Messages are then sent as packets.
    pub fn set_paced(&mut self, is_paced: bool) {
        self.is_paced = is_paced;
        self.epoch += 1;
    }

    /// Takes the cable out of a port, or puts it back. What is on that link is lost.
    pub fn set_cable(&mut self, end: End, is_in: bool) {
        self.subnet_mut().set_cable(end, is_in);
        let peer = self.subnet.topology().peer(end).map(|(peer, _)| peer);
        if is_in {
            return;
        }
        self.events.retain(|_, event| match event {
            Event::Land(flight) => flight.to != end && Some(flight.to) != peer,
            Event::Pump(_) => true,
        });
        for end in [Some(end), peer].into_iter().flatten() {
            let lost = self.egress.remove(&end).map_or(0, |mut egress| egress.clear());
            let port = &mut self.subnet.node_mut(end.node).ports[usize::from(end.port)];
            port.counters.xmit_discards.add(lost as u64);
        }
    }

    /// An adapter's port as subnet management has it.
    pub fn port(&self, end: End) -> Port {
        let node = &self.subnet.nodes()[end.node as usize];
        let port = &node.ports[usize::from(end.port)];
        let info = &port.info;
        Port {
            link_layer: LinkLayer::InfiniBand,
            state: info.port_state,
            lid: info.lid,
            lmc: info.lmc,
            sm_lid: info.master_sm_lid,
            sm_sl: info.master_sm_sl,
            mtu: info.neighbor_mtu,
            gids: port.gids().collect(),
            pkeys: port.p_keys.entries().to_vec(),
            reregistrations: port.reregistrations,
            drops: Drops::default(),
        }
    }

    /// Whether packets have to go where messages could.
    pub fn wants_packets(&self) -> bool {
        let is_watched =
            self.tap.is_some() || self.is_paced || self.has_routers || looks(&self.wire);
        is_watched || !self.foreign.is_empty() || self.wires.values().any(looks)
    }

    /// The adapter at an end has dropped something for its key.
    pub fn key_violation(&mut self, end: End, violation: &KeyViolation) {
        self.subnet.node_mut(end.node).key_violation(end.port, violation);
    }

    /// Counts what a process at a port did wrong. No port is changed by that.
    pub(crate) fn count_drop(&mut self, end: End, reason: NodeDrop) {
        self.subnet.node_mut(end.node).drops.count(reason);
    }

    /// From now on what comes by this port may manage the subnet.
    pub fn grant_management(&mut self, end: End) {
        self.managing.insert(end);
    }

    /// Whether an address is one of an adapter's port; none is that of a port without any.
    pub(crate) fn has_lid(&self, end: End, lid: Lid) -> bool {
        let info = &self.subnet.nodes()[end.node as usize].ports[usize::from(end.port)].info;
        lid == info.lid || info.lid.covers(info.lmc, lid)
    }

    /// Whether a process at a port may send a frame. It has to say where it comes from: one of the
    /// addresses of its port, or none on the way by directed routes (IBA 14.2.2). Of subnet
    /// management it may only read: it has no agent that would answer, and none that sends traps,
    /// since those of its port are here.
    pub(crate) fn check_process(&self, end: End, frame: &Frame) -> Result<(), NodeDrop> {
        let slid = frame.slid();
        let is_directed = slid == Lid::PERMISSIVE && frame.lane() == Lrh::VL_MANAGEMENT;
        if !self.has_lid(end, slid) && !is_directed {
            return Err(NodeDrop::SourceLid);
        }
        let is_allowed = |method| method == Method::GET || self.managing.contains(&end);
        frame.smp_method().is_none_or(is_allowed).then_some(()).ok_or(NodeDrop::NotManager)
    }

    /// Whether a frame that has come by a wire may come in. The agents of the nodes behind it
    /// answer and send traps; what would set anything needs the grant.
    fn check_foreign(&self, end: End, frame: &Frame) -> Result<(), NodeDrop> {
        let sets = |method| matches!(method, Method::SET | Method::TRAP_REPRESS);
        let is_allowed = self.managing.contains(&end) || !frame.smp_method().is_some_and(sets);
        is_allowed.then_some(()).ok_or(NodeDrop::NotManager)
    }

    /// Something leaves an adapter.
    pub fn send(&mut self, now: Time, from: impl Into<Seat>, mut frame: Frame) {
        let origin = from.into();
        let from = origin.end;
        let node = self.subnet.node_mut(from.node);
        let port = &node.ports[usize::from(from.port)];
        let Some(transit) = frame.transit(0) else { return };
        if transit.vl != Lrh::VL_MANAGEMENT {
            let is_up = port.sends_data();
            let Some(lane) = port.lane(transit.sl).filter(|_| is_up) else {
                node.drops.count(if is_up { NodeDrop::NoLane } else { NodeDrop::PortState });
                return;
            };
            frame.set_lane(lane);
        }
        if is_own(node, from, &frame) {
            return self.attend(now, origin, from, 0, frame);
        }
        if !self.turn_round(origin, &frame) {
            self.cross(now, Flight::new(origin, 0, frame));
        }
    }

    /// Sends a datagram of management from a port, 0 at a switch, and lets all happen that comes of
    /// it without time.
    pub fn send_datagram(&mut self, now: Time, from: End, datagram: Datagram) {
        self.epoch += 1;
        self.subnet.send(now, from, datagram);
        self.settle(now, None);
    }

    /// A datagram that has come to a port and that no agent answers: for managers and programs.
    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        self.delivered.pop_front()
    }

    /// Nobody else takes it: it is for the adapter at its port, or a counted drop.
    pub fn give(&mut self, delivery: Delivery) {
        let Delivery { at, datagram, frame } = delivery;
        let (origin, frame) = frame.unwrap_or_else(|| (at.into(), self.packet(&datagram)));
        self.hand_over(at, origin, frame);
    }

    /// The packet of a datagram.
    fn packet(&mut self, datagram: &Datagram) -> Frame {
        self.datagrams += 1;
        Frame::of_datagram(datagram, Psn::new(self.datagrams as u32 & 0xff_ffff))
    }

    /// When something happens next.
    pub fn deadline(&self) -> Option<Time> {
        let departs = self.subnet.has_departures().then_some(Time::START);
        departs.or_else(|| self.events.keys().next().map(|&(at, _)| at))
    }

    /// Lets everything happen that is due.
    pub fn advance(&mut self, now: Time) {
        self.settle(now, None);
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= now
        {
            let (at, _) = *entry.key();
            match entry.remove() {
                Event::Land(flight) => self.land(at, flight),
                Event::Pump(from) => self.pump(at, from),
            }
        }
    }

    /// A frame has come to the end of a link.
    fn land(&mut self, now: Time, mut flight: Flight) {
        let to = flight.to;
        if !self.subnet.nodes()[to.node as usize].is_switch() {
            // An adapter takes what comes as fast as it comes.
            let hold = flight.hold.take();
            self.release(now, hold);
        }
        if flight.leaves {
            return self.leave(now, flight);
        }
        let Some(transit) = flight.frame.transit(to.port) else { return };
        let (packets, words) = flight.frame.size();
        let is_multicast = transit.dlid.is_multicast();
        let node = self.subnet.node_mut(to.node);
        let is_switch = node.is_switch();
        let port = &mut node.ports[usize::from(to.port)];
        port.counters.received_many(packets, words, is_multicast);
        if self.has_routers && self.is_routed(to, &flight.frame) {
            return self.route(now, flight);
        }
        let node = self.subnet.node_mut(to.node);
        if is_own(node, to, &flight.frame) {
            self.release(now, flight.hold);
            return self.attend(now, flight.origin, to, flight.hops, flight.frame);
        }
        if is_switch {
            return self.relay(now, flight, &transit);
        }
        let port = &mut node.ports[usize::from(to.port)];
        if transit.vl != Lrh::VL_MANAGEMENT && !port.takes_data() {
            node.drops.count(NodeDrop::PortState);
            return;
        }
        if transit.vl != Lrh::VL_MANAGEMENT {
            // Data on an armed link say that its other end is active (IBA 7.2.7).
            if port.info.port_state == PortState::ARMED {
                port.info.port_state = PortState::ACTIVE;
                self.epoch += 1;
            }
        }
        self.hand_over(to, flight.origin, flight.frame);
    }

    /// A datagram of management has come to its node as a frame.
    fn attend(&mut self, now: Time, origin: Seat, at: End, hops: u8, frame: Frame) {
        let node = self.subnet.node_mut(at.node);
        let port = node.managed_port(at.port);
        match frame.datagram(&node.ports[usize::from(port)].p_keys) {
            Ok(datagram) => {
                self.epoch += 1;
                self.subnet.receive(now, at, hops, datagram.clone());
                self.settle(now, Some(Delivery { at, datagram, frame: Some((origin, frame)) }));
            }
            Err(reason) => {
                node.ports[usize::from(at.port)].counters.rcv_errors.add(1);
                node.drops.count(reason);
            }
        }
    }

    /// Sees to what the subnet leaves to be done: datagrams that go on as packets, and those that
    /// have come to somebody; `came` is what all of it came of, if that was a frame.
    fn settle(&mut self, now: Time, mut came: Option<Delivery>) {
        while let Some(Departure { from, hops, datagram }) = self.subnet.poll_departure() {
            let frame = self.packet(&datagram);
            self.cross(now, Flight::new(from, hops, frame));
        }
        while let Some((at, datagram)) = self.subnet.poll_delivery() {
            if self.delivered.len() >= DELIVERED_MAX {
                self.subnet.node_mut(at.node).drops.count(NodeDrop::Full);
                continue;
            }
            let same = came.take_if(|came| came.at == at && came.datagram == datagram);
            self.delivered.push_back(same.unwrap_or(Delivery { at, datagram, frame: None }));
        }
    }

    /// Through a switch.
    fn relay(&mut self, now: Time, flight: Flight, transit: &switch::Transit) {
        let mut hops = Vec::new();
        let node = self.subnet.node_mut(flight.to.node);
        let states = node.ports[usize::from(flight.to.port)].info.port_state;
        // What goes nowhere is counted there.
        let _ = switch::forward(node, transit, |hop| hops.push(hop));
        if node.ports[usize::from(flight.to.port)].info.port_state != states {
            self.epoch += 1;
        }
        if hops.iter().any(|hop| hop.port == 0) {
            // Switches have no queue pairs for data, and management was seen to.
            self.count_drop(flight.to, NodeDrop::Unclaimed);
            hops.retain(|hop| hop.port > 0);
        }
        // The last copy is the frame itself.
        let Some(last) = hops.pop() else { return self.release(now, flight.hold) };
        for hop in hops {
            self.cross(now, flight.clone().by(hop));
        }
        self.cross(now, flight.by(last));
    }
}

/// Whether somebody looks at packets on a link that is so.
fn looks(wire: &Wire) -> bool {
    wire.packets_only || !wire.faults.are_none()
}

/// Whether a frame at a port is a datagram of management for that very node.
fn is_own(node: &Node, at: End, frame: &Frame) -> bool {
    node.has_lid(at.port, frame.dlid()) && frame.is_management()
}
