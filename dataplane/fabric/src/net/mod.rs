//! Data on its way through a subnet: over links, through switches, to the adapters at its ends.
//!
//! A [`Net`] is the state machine of that, without I/O: time is passed in, what has arrived is taken
//! out. The nodes of its [`Subnet`] decide by which ports things go on, and count them; what subnet
//! management changes holds from the next hop on. Packets go octet by octet as on a wire, with a
//! VCRC per hop; messages that take the shortcut go the same way by the same tables, only that
//! nothing looks at their octets.
//!
//! [`world`] runs a net with adapters in one thread and virtual time.

mod flight;
pub mod ways;
pub mod world;

use crate::frame::Frame;
use crate::hca::port::{Drops, Port};
use crate::lend::Lender;
use crate::link::fault::Dice;
use crate::link::world::Wire;
use crate::node::NodeDrop;
use crate::subnet::Subnet;
use crate::switch;
use crate::time::Time;
use crate::topology::End;
use flight::Flight;
pub(crate) use flight::size_of_message;
use pollux_wire::mad::smp::PortState;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Who is told of every packet on a link: when, from which end, and its octets, LRH to VCRC.
pub type Tap = Box<dyn FnMut(Time, End, &[u8])>;

/// What a link of an end holds of frames that its adapter has not taken. More are dropped, as by
/// an adapter that is too slow for its link.
const ARRIVED_MAX: usize = 1 << 16;
/// Links that a frame may cross: a route that goes in circles ends.
const HOPS_MAX: u8 = 64;

/// A subnet that carries data.
pub struct Net {
    subnet: Subnet,
    dice: Dice,
    wire: Wire,
    /// Links that are not as all others, by number.
    wires: BTreeMap<u32, Wire>,
    tap: Option<Tap>,
    /// On their way, by arrival and then by the order of their sending.
    travelling: BTreeMap<(Time, u64), Flight>,
    sent: u64,
    /// When the last frame for each end of a link arrives, late ones left out.
    latest: BTreeMap<End, Time>,
    adapters: BTreeMap<End, Attached>,
    /// Frames that have arrived and were not taken.
    waiting: usize,
    /// Counts what may have changed ports.
    epoch: u64,
}

/// An adapter at an end.
#[derive(Default)]
struct Attached {
    /// What has come, each with the end that it comes from.
    arrived: VecDeque<(End, Frame)>,
    lender: Option<Arc<Lender>>,
}

impl Net {
    /// A subnet with all links as `wire` says.
    pub fn new(subnet: Subnet, seed: u64, wire: Wire) -> Self {
        Self {
            subnet,
            dice: Dice::new(seed),
            wire,
            wires: BTreeMap::new(),
            tap: None,
            travelling: BTreeMap::new(),
            sent: 0,
            latest: BTreeMap::new(),
            adapters: BTreeMap::new(),
            waiting: 0,
            epoch: 1,
        }
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

    /// Counts what may have changed ports.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Makes one link other than the rest.
    pub fn set_wire(&mut self, link: u32, wire: Wire) {
        self.wires.insert(link, wire);
    }

    /// Shows every packet on every link to `tap`. Messages are then sent as packets.
    pub fn set_tap(&mut self, tap: Tap) {
        self.tap = Some(tap);
    }

    /// Takes the cable out of a port, or puts it back. What is on that link is lost.
    pub fn set_cable(&mut self, end: End, is_in: bool) {
        self.subnet_mut().set_cable(end, is_in);
        let peer = self.subnet.topology().peer(end).map(|(peer, _)| peer);
        if !is_in {
            self.travelling.retain(|_, flight| flight.to != end && Some(flight.to) != peer);
        }
    }

    /// Puts an adapter to a port.
    pub fn attach(&mut self, end: End, lender: &Arc<Lender>) {
        self.adapters.entry(end).or_default().lender = Some(lender.clone());
    }

    /// What the adapter at an end lends.
    pub fn lender(&self, end: End) -> Option<Arc<Lender>> {
        self.adapters.get(&end)?.lender.clone()
    }

    /// An adapter's port as subnet management has it.
    pub fn port(&self, end: End) -> Port {
        let node = &self.subnet.nodes()[end.node as usize];
        let port = &node.ports[usize::from(end.port)];
        let info = &port.info;
        let gids = port.guids.iter().filter(|guid| guid.0 != 0);
        Port {
            state: info.port_state,
            lid: info.lid,
            lmc: info.lmc,
            sm_lid: info.master_sm_lid,
            sm_sl: info.master_sm_sl,
            mtu: info.neighbor_mtu,
            gids: gids.map(|guid| pollux_wire::address::Gid::new(info.gid_prefix, *guid)).collect(),
            pkeys: port.p_keys.entries().to_vec(),
            drops: Drops::default(),
        }
    }

    /// Whether packets have to go where messages could.
    pub fn wants_packets(&self) -> bool {
        let looks = |wire: &Wire| wire.packets_only || !wire.faults.are_none();
        self.tap.is_some() || looks(&self.wire) || self.wires.values().any(looks)
    }

    /// Something leaves an adapter.
    pub fn send(&mut self, now: Time, from: End, frame: Frame) {
        let node = &mut self.subnet.node_mut(from.node);
        let is_management = frame.transit(0).is_some_and(|transit| transit.vl == 15);
        if !is_management && !node.ports[usize::from(from.port)].sends_data() {
            node.drops.count(NodeDrop::PortState);
            return;
        }
        self.cross(now, Flight { origin: from, to: from, hops: 0, frame });
    }

    /// When something happens next.
    pub fn deadline(&self) -> Option<Time> {
        self.travelling.keys().next().map(|&(at, _)| at)
    }

    /// Lets everything happen that is due.
    pub fn advance(&mut self, now: Time) {
        while let Some(entry) = self.travelling.first_entry()
            && entry.key().0 <= now
        {
            let flight = entry.remove();
            self.land(now, flight);
        }
    }

    /// The next thing that has come for an adapter, and where from.
    pub fn take(&mut self, end: End) -> Option<(End, Frame)> {
        let taken = self.adapters.get_mut(&end)?.arrived.pop_front();
        self.waiting -= usize::from(taken.is_some());
        taken
    }

    /// Whether something has arrived that no adapter has taken yet.
    pub fn is_waited_for(&self) -> bool {
        self.waiting > 0
    }

    /// A frame has come to the end of a link.
    fn land(&mut self, now: Time, flight: Flight) {
        let to = flight.to;
        let Some(transit) = flight.frame.transit(to.port) else { return };
        let (packets, words) = flight.frame.size();
        let is_multicast = transit.dlid.is_multicast();
        let node = self.subnet.node_mut(to.node);
        let is_switch = node.is_switch();
        let port = &mut node.ports[usize::from(to.port)];
        port.counters.received_many(packets, words, is_multicast);
        if is_switch {
            return self.relay(now, flight, &transit);
        }
        if transit.vl != 15 && !port.takes_data() {
            node.drops.count(NodeDrop::PortState);
            return;
        }
        if transit.vl != 15 {
            // Data on an armed link say that its other end is active (IBA 7.2.7).
            if port.info.port_state == PortState::ARMED {
                port.info.port_state = PortState::ACTIVE;
                self.epoch += 1;
            }
        }
        match self.adapters.get_mut(&to) {
            Some(adapter) if adapter.arrived.len() < ARRIVED_MAX => {
                adapter.arrived.push_back((flight.origin, flight.frame));
                self.waiting += 1;
            }
            Some(_) => self.subnet.node_mut(to.node).drops.count(NodeDrop::Full),
            None => self.subnet.node_mut(to.node).drops.count(NodeDrop::Unclaimed),
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
        for hop in hops {
            if hop.port == 0 {
                // Switches have no queue pairs for data.
                self.subnet.node_mut(flight.to.node).drops.count(NodeDrop::Unclaimed);
                continue;
            }
            let mut copy = flight.clone();
            copy.to.port = hop.port;
            copy.frame.set_lane(hop.vl);
            self.cross(now, copy);
        }
    }

    /// Over the link at the port where the frame is.
    fn cross(&mut self, now: Time, mut flight: Flight) {
        let from = flight.to;
        let node = self.subnet.node_mut(from.node);
        let is_up = node.ports[usize::from(from.port)].is_linked();
        if !is_up || flight.hops >= HOPS_MAX {
            node.drops.count(if is_up { NodeDrop::NoRoute } else { NodeDrop::PortState });
            return;
        }
        let (packets, words) = flight.frame.size();
        let is_multicast = flight.frame.dlid().is_multicast();
        node.ports[usize::from(from.port)].counters.sent_many(packets, words, is_multicast);
        let topology = self.subnet.topology();
        let Some((peer, _)) = topology.peer(from) else { return };
        let link = topology.nodes()[from.node as usize].ports[usize::from(from.port)].link;
        let wire = link.and_then(|link| self.wires.get(&link)).unwrap_or(&self.wire);
        let wire = *wire;
        flight.to = peer;
        flight.hops += 1;
        let Frame::Packet(octets) = &flight.frame else { return self.put(now, &wire, flight) };
        if let Some(tap) = &mut self.tap {
            tap(now, from, octets);
        }
        let fate = wire.faults.decide(&mut self.dice, octets.len());
        for delay in fate.delays {
            let mut copy = flight.clone();
            if let (Some(bit), Frame::Packet(octets)) = (fate.flipped_bit, &mut copy.frame) {
                octets[bit / 8] ^= 0x80 >> (bit % 8);
            }
            self.put_late(now, &wire, delay, copy);
        }
    }

    fn put(&mut self, now: Time, wire: &Wire, flight: Flight) {
        self.put_late(now, wire, std::time::Duration::ZERO, flight);
    }

    fn put_late(&mut self, now: Time, wire: &Wire, delay: std::time::Duration, flight: Flight) {
        let jitter = self.dice.duration(wire.jitter);
        let latest = self.latest.entry(flight.to).or_insert(Time::START);
        *latest = (*latest).max(now + wire.latency + jitter);
        self.sent += 1;
        self.travelling.insert((*latest + delay, self.sent), flight);
    }
}
