//! Packets through a subnet: over links, through switches and routers, to the adapters at its ends.
//!
//! A [`Net`] is a state machine without I/O: the caller passes the time and takes arrived frames.
//! The nodes of its [`Subnet`] forward packets by their tables and count them. When subnet
//! management changes a table, the change applies from the next hop on. Packets have the bytes of
//! the wire, with a VCRC per hop. Messages that bypass packets take the same path by the same
//! tables, but no node on it reads their payload.
//!
//! ```text
//!   adapter --Net::send--> transmit: arbitration, faults, latency --> event --advance--> arrive
//!                            ^                                                           |    |
//!                            +---- relay: forwarded by the switch's tables <-------------+    v
//!                                                           take: the adapter at the end <----+
//! ```
//!
//! In a running fabric, [`crate::Fabric::step`] calls `advance`. In the simulated world of the
//! tests, the poll of a receiver calls it.
//!
//! Management datagrams for a node go to its agents. A datagram reaches the node either through
//! [`Subnet::send`], which takes no time, or as a packet; `management` converts between the two
//! forms. Datagrams that no agent handles wait in [`Net::poll_delivery`] for managers and programs
//! at that port. The caller passes the rest to the adapter there ([`Net::deliver_to_adapter`]).
//!
//! [`foreign`] has the ports to other fabrics, and [`shared_port`] the adapters at the ports.

pub mod agent_mad;
mod arbiter;
pub mod bypass;
mod egress;
mod flight;
pub mod foreign;
mod management;
mod router;
pub mod shared_port;
mod transmit;

use crate::link::Wire;
use crate::link::fault::SeededRng;
use crate::node::{NodeDrop, SubnetNode};
use crate::subnet::{Datagram, Departure, PacketLinks, Subnet};
use crate::switch;
use crate::time::Time;
use crate::topology::End;
use egress::Egress;
use flight::{Flight, HeldCredits};
use foreign::Foreign;
pub(crate) use management::{packet_of, start_return_path};
use pollux_hca::Frame;
use pollux_hca::port::{DropCounts, LinkLayer, Port};
use pollux_hca::violation::KeyViolation;
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::mad::Method;
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::Lrh;
use pollux_wire::psn::Psn;
use shared_port::{PortContext, SharedPort};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Callback for every packet on a link: its time, the end that sent it, and its bytes, LRH to VCRC.
pub type Tap = Box<dyn FnMut(Time, End, &[u8]) + Send>;

/// Datagrams that may wait in [`Net::poll_delivery`]. Further ones are dropped.
const DELIVERED_MAX: usize = 4096;
/// Links that a frame may cross. The limit ends routing loops.
const HOPS_MAX: u8 = 64;

/// A subnet that carries data.
pub struct Net {
    subnet: Subnet,
    rng: SeededRng,
    wire: Wire,
    /// The links whose properties differ from `wire`, by link number.
    wires: BTreeMap<u32, Wire>,
    tap: Option<Tap>,
    /// Events by time, and then in the order of scheduling.
    events: BTreeMap<(Time, u64), Event>,
    scheduled: u64,
    /// The last PSN of management packets.
    datagrams: u64,
    /// Whether links have a rate; otherwise, sending takes no time.
    is_paced: bool,
    egress: BTreeMap<End, Egress>,
    egresses_created: u64,
    /// The credits of frames that were lost with a cable. `advance` returns them, because that
    /// needs the time.
    unreleased: Vec<Arc<HeldCredits>>,
    /// The latest arrival time at each end of a link, without delays by faults. Later frames arrive
    /// at this time or after it.
    latest: BTreeMap<End, Time>,
    adapters: BTreeMap<End, SharedPort>,
    /// Ports whose processes and wires may manage the subnet.
    managing: BTreeSet<End>,
    foreign: BTreeMap<End, Foreign>,
    /// Whether a node is a router. Messages then do not bypass packets, because a message has no
    /// headers that a router could change.
    has_routers: bool,
    delivered: VecDeque<MadDelivery>,
    /// The number of arrived frames that no adapter has taken.
    waiting: usize,
    /// Counts changes that may affect ports or the message bypass.
    epoch: u64,
}

enum Event {
    /// A frame arrives at the end of a link.
    Arrive(Flight),
    /// A port may have something to send.
    Pump(End),
}

/// A management datagram that has arrived at a port and that no agent there answers.
#[derive(Clone, Debug)]
pub struct MadDelivery {
    pub at: End,
    pub datagram: Datagram,
    /// The frame that carried it, if any, with its sender.
    frame: Option<(PortContext, Frame)>,
}

impl Net {
    /// A subnet whose links all have the properties of `wire`.
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
            egresses_created: 0,
            unreleased: Vec::new(),
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

    pub fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    pub fn subnet_mut(&mut self) -> &mut Subnet {
        self.epoch += 1;
        &mut self.subnet
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn set_wire(&mut self, link: u32, wire: Wire) {
        self.wires.insert(link, wire);
        self.find_packet_links();
    }

    /// Sets the properties of all links.
    pub fn set_wires(&mut self, wire: Wire) {
        self.wire = wire;
        self.wires.clear();
        self.find_packet_links();
    }

    /// The properties of the link at a port.
    fn wire_at(&self, end: End) -> &Wire {
        let node = &self.subnet.topology().nodes()[end.node as usize];
        let link = node.ports[usize::from(end.port)].link;
        link.and_then(|link| self.wires.get(&link)).unwrap_or(&self.wire)
    }

    /// Calls `tap` for every packet on every link. Messages are then sent as packets.
    pub fn set_tap(&mut self, tap: Tap) {
        self.tap = Some(tap);
        self.find_packet_links();
    }

    /// Finds the links on which management datagrams must be packets: links with taps or faults,
    /// links that are set to packets only, and links to other fabrics.
    fn find_packet_links(&mut self) {
        self.epoch += 1;
        let links = self.wires.iter().filter(|(_, wire)| needs_packets(wire));
        let planned = self.subnet.topology().links();
        let links = links.filter_map(|(link, _)| planned.get(*link as usize));
        let mut ends: BTreeSet<End> = links.flat_map(|link| link.ends).collect();
        ends.extend(self.foreign.keys());
        let all = self.tap.is_some() || needs_packets(&self.wire);
        self.subnet.set_packet_links(PacketLinks { all, ends });
    }

    /// Switches the rate model of links on or off, for simulations in virtual time. The model has
    /// the rates of the ports, VLs, credits and arbitration. With it, messages are sent as packets.
    pub fn set_paced(&mut self, is_paced: bool) {
        self.is_paced = is_paced;
        self.epoch += 1;
    }

    /// Unplugs the cable of a port, or plugs it in. Unplugging loses the frames on that link.
    pub fn set_cable(&mut self, end: End, is_in: bool) {
        self.subnet_mut().set_cable(end, is_in);
        let peer = self.subnet.topology().peer(end).map(|(peer, _)| peer);
        if is_in {
            return;
        }
        self.events.retain(|_, event| match event {
            Event::Arrive(flight) => flight.to != end && Some(flight.to) != peer,
            Event::Pump(_) => true,
        });
        for end in [Some(end), peer].into_iter().flatten() {
            let Some(egress) = self.egress.remove(&end) else { continue };
            let lost = egress.into_flights();
            self.subnet.port_mut(end).counters.xmit_discards.add(lost.len() as u64);
            self.unreleased.extend(lost.into_iter().filter_map(|flight| flight.credits));
        }
    }

    /// The state of an adapter's port, as subnet management has set it.
    pub fn port(&self, end: End) -> Port {
        let port = self.subnet.port(end);
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
            drops: DropCounts::default(),
        }
    }

    /// Whether the message bypass is off.
    pub fn wants_packets(&self) -> bool {
        let is_watched =
            self.tap.is_some() || self.is_paced || self.has_routers || needs_packets(&self.wire);
        is_watched || !self.foreign.is_empty() || self.wires.values().any(needs_packets)
    }

    /// Records that the adapter at an end dropped a packet because of its P_Key or Q_Key.
    pub fn key_violation(&mut self, end: End, violation: &KeyViolation) {
        self.subnet.node_mut(end.node).key_violation(end.port, violation);
    }

    /// Counts a dropped frame or message at the node of a port.
    pub(crate) fn count_drop(&mut self, end: End, reason: NodeDrop) {
        self.subnet.node_mut(end.node).drops.count(reason);
    }

    /// Gives a port the management grant: its processes and wires may send SMPs of all methods.
    pub fn grant_management(&mut self, end: End) {
        self.managing.insert(end);
    }

    pub(crate) fn has_lid(&self, end: End, lid: Lid) -> bool {
        let info = &self.subnet.port(end).info;
        lid == info.lid || info.lid.covers(info.lmc, lid)
    }

    /// Checks whether a process at a port may send a frame. The source must be a LID of its port,
    /// or the permissive LID in a directed route (IBA 14.2.2). Without the management grant, a
    /// process may send no SMPs other than Gets; responses and traps of the port come from its
    /// agent in the net.
    pub(crate) fn check_process(&self, end: End, frame: &Frame) -> Result<(), NodeDrop> {
        let method = smp_method(frame)?;
        let slid = frame.slid();
        let is_directed = slid == Lid::PERMISSIVE && frame.lane() == Lrh::VL_MANAGEMENT;
        if !self.has_lid(end, slid) && !is_directed {
            return Err(NodeDrop::SourceLid);
        }
        let is_allowed = |method| method == Method::GET || self.managing.contains(&end);
        method.is_none_or(is_allowed).then_some(()).ok_or(NodeDrop::NotManager)
    }

    /// Checks whether a frame from a wire may enter. Agents of the nodes behind the wire may
    /// respond and send traps. Set and TrapRepress need the management grant.
    fn check_foreign(&self, end: End, frame: &Frame) -> Result<(), NodeDrop> {
        let sets = |method| matches!(method, Method::SET | Method::TRAP_REPRESS);
        let is_allowed = !smp_method(frame)?.is_some_and(sets) || self.managing.contains(&end);
        is_allowed.then_some(()).ok_or(NodeDrop::NotManager)
    }

    pub fn send(&mut self, now: Time, from: impl Into<PortContext>, mut frame: Frame) {
        let origin = from.into();
        let from = origin.end;
        let node = self.subnet.node_mut(from.node);
        let port = &node.ports[usize::from(from.port)];
        let Some(transit) = flight::transit_of(&frame, 0) else { return };
        if transit.vl != Lrh::VL_MANAGEMENT {
            let is_up = port.sends_data();
            let Some(lane) = port.lane(transit.sl).filter(|_| is_up) else {
                node.drops.count(if is_up { NodeDrop::NoLane } else { NodeDrop::PortState });
                return;
            };
            frame.set_lane(lane);
        }
        if is_own(node, from, &frame) {
            return self.handle_management(now, origin, from, 0, frame);
        }
        if !self.loop_back(origin, &frame) {
            self.transmit(now, Flight::new(origin, 0, frame));
        }
    }

    /// Sends a management datagram from a port (0 at a switch), and handles the datagrams that
    /// follow from it at once.
    pub fn send_datagram(&mut self, now: Time, from: End, datagram: Datagram) {
        self.count_management(&datagram);
        self.subnet.send(now, from, datagram);
        self.handle_departures(now, None);
    }

    /// Increments the epoch for subnet management, which may change ports. Other classes do not
    /// change them, so a CM message does not make clients read their ports again.
    fn count_management(&mut self, datagram: &Datagram) {
        self.epoch += u64::from(datagram.dest_qp == Qpn::SMI);
    }

    /// The next datagram that no agent answers, for managers and programs.
    pub fn poll_delivery(&mut self) -> Option<MadDelivery> {
        self.delivered.pop_front()
    }

    /// Delivers a datagram to the adapter at its port, or counts a drop.
    pub fn deliver_to_adapter(&mut self, delivery: MadDelivery) {
        let MadDelivery { at, datagram, frame } = delivery;
        let (origin, frame) = frame.unwrap_or_else(|| (at.into(), self.packet(&datagram)));
        self.deliver(at, origin, frame);
    }

    /// Encodes a datagram with the next PSN.
    fn packet(&mut self, datagram: &Datagram) -> Frame {
        self.datagrams += 1;
        packet_of(datagram, Psn::new(self.datagrams as u32 & 0xff_ffff))
    }

    pub fn deadline(&self) -> Option<Time> {
        let is_due = self.subnet.has_departures() || !self.unreleased.is_empty();
        is_due.then_some(Time::START).or_else(|| self.events.keys().next().map(|&(at, _)| at))
    }

    pub fn advance(&mut self, now: Time) {
        self.handle_departures(now, None);
        for credits in std::mem::take(&mut self.unreleased) {
            self.release(now, Some(credits));
        }
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= now
        {
            let (at, _) = *entry.key();
            match entry.remove() {
                Event::Arrive(flight) => self.arrive(at, flight),
                Event::Pump(from) => self.pump(at, from),
            }
        }
    }

    /// Handles a frame at the end of a link.
    fn arrive(&mut self, now: Time, mut flight: Flight) {
        let to = flight.to;
        if !self.subnet.nodes()[to.node as usize].is_switch() {
            // An adapter receives at the rate of the link, so it returns the credits at once.
            let credits = flight.credits.take();
            self.release(now, credits);
        }
        if flight.leaves_fabric {
            return self.queue_for_wire(now, flight);
        }
        let Some(transit) = flight::transit_of(&flight.frame, to.port) else { return };
        let (packets, words) = flight.frame.size();
        let is_multicast = transit.dlid.is_multicast();
        self.subnet.port_mut(to).counters.received_many(packets, words, is_multicast);
        if self.has_routers && self.is_routed(to, &flight.frame) {
            return self.route(now, flight);
        }
        let node = self.subnet.node_mut(to.node);
        if is_own(node, to, &flight.frame) {
            self.release(now, flight.credits);
            return self.handle_management(now, flight.origin, to, flight.hops, flight.frame);
        }
        if node.is_switch() {
            return self.relay(now, flight, &transit);
        }
        let port = &mut node.ports[usize::from(to.port)];
        if transit.vl != Lrh::VL_MANAGEMENT {
            if !port.takes_data() {
                node.drops.count(NodeDrop::PortState);
                return;
            }
            // A data packet on an armed link shows that the other end is active (IBA 7.2.7).
            if port.info.port_state == PortState::ARMED {
                port.info.port_state = PortState::ACTIVE;
                self.epoch += 1;
            }
        }
        self.deliver(to, flight.origin, flight.frame);
    }

    /// Handles a management datagram that has arrived at its node as a frame.
    fn handle_management(
        &mut self,
        now: Time,
        origin: PortContext,
        at: End,
        hops: u8,
        frame: Frame,
    ) {
        let node = self.subnet.node_mut(at.node);
        let port = node.managed_port(at.port);
        match management::datagram_of(&frame, &node.ports[usize::from(port)].p_keys) {
            Ok(datagram) => {
                self.count_management(&datagram);
                self.subnet.receive(now, at, hops, datagram.clone());
                let delivery = MadDelivery { at, datagram, frame: Some((origin, frame)) };
                self.handle_departures(now, Some(delivery));
            }
            Err(reason) => {
                node.ports[usize::from(at.port)].counters.rcv_errors.add(1);
                node.drops.count(reason);
            }
        }
    }

    /// Takes two kinds of datagrams out of the subnet: those that leave as packets, and those that
    /// were delivered. `cause` is the datagram that caused them, if it arrived as a frame.
    fn handle_departures(&mut self, now: Time, mut cause: Option<MadDelivery>) {
        while let Some(Departure { from, hops, datagram }) = self.subnet.poll_departure() {
            let frame = self.packet(&datagram);
            self.transmit(now, Flight::new(from, hops, frame));
        }
        while let Some((at, datagram)) = self.subnet.poll_delivery() {
            if self.delivered.len() >= DELIVERED_MAX {
                self.count_drop(at, NodeDrop::Full);
                continue;
            }
            let same = cause.take_if(|cause| cause.at == at && cause.datagram == datagram);
            self.delivered.push_back(same.unwrap_or(MadDelivery { at, datagram, frame: None }));
        }
    }

    fn relay(&mut self, now: Time, flight: Flight, transit: &switch::Transit) {
        let mut hops = Vec::new();
        let state = self.subnet.port(flight.to).info.port_state;
        // The switch counts a packet without an output port.
        let node = self.subnet.node_mut(flight.to.node);
        let _ = switch::forward(node, transit, |hop| hops.push(hop));
        if self.subnet.port(flight.to).info.port_state != state {
            self.epoch += 1;
        }
        if hops.iter().any(|hop| hop.port == 0) {
            // Switches have no queue pairs for data, and `arrive` has handled management.
            self.count_drop(flight.to, NodeDrop::Unclaimed);
            hops.retain(|hop| hop.port > 0);
        }
        // The last copy is the frame itself.
        let Some(last) = hops.pop() else { return self.release(now, flight.credits) };
        for hop in hops {
            self.transmit(now, flight.clone().with_hop(hop));
        }
        self.transmit(now, flight.with_hop(last));
    }
}

/// Whether a link with these properties needs packets.
fn needs_packets(wire: &Wire) -> bool {
    wire.packets_only || !wire.faults.are_none()
}

/// The method of a frame from outside the net, if it is an SMP. VL 15 is for SMPs only (IBA 7.6):
/// it needs no active ports and no partitions.
fn smp_method(frame: &Frame) -> Result<Option<Method>, NodeDrop> {
    let method = frame.smp_method();
    let is_on_its_vl = (frame.lane() == Lrh::VL_MANAGEMENT) == method.is_some();
    is_on_its_vl.then_some(method).ok_or(NodeDrop::Malformed)
}

/// Whether a frame at a port is a management datagram for this node.
fn is_own(node: &SubnetNode, at: End, frame: &Frame) -> bool {
    node.has_lid(at.port, frame.dlid()) && frame.is_management()
}
