//! The nodes of a subnet, and management datagrams from node to node.
//!
//! Datagrams need no time: [`Subnet::send`] returns after a datagram and its answer have arrived. A
//! datagram that no agent answers waits in [`Subnet::poll_delivery`] for the managers and programs
//! at the port. The fabric moves data packets through the same nodes.
//!
//! On links with a tap or faults, and on links to other fabrics, a datagram becomes a packet: the
//! fabric takes the datagram from [`Subnet::poll_departure`], and passes it to
//! [`Subnet::receive`] at the other end of the link.

use crate::node::{Counters, NodeDrop, NodePort, SubnetNode};
use crate::pma;
use crate::sma::directed::{self, DirectedPosition, Step};
use crate::sma::{self, Handled, Mad, MadArrival};
use crate::switch::{self, Transit};
use crate::time::Time;
use crate::topology::{End, LinkRate, Topology};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::{DirectedSmp, PortPhysState};
use pollux_wire::mad::{MAD_LEN, MadHeader, MgmtClass};
use pollux_wire::packet::{Bth, Deth, Lrh};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Links that a datagram may cross. The limit ends routing loops.
const HOPS_MAX: u8 = DirectedSmp::HOPS_MAX;

/// Words of a packet with a management datagram, LRH to ICRC, as ports count them.
const DATAGRAM_WORDS: u64 = (Lrh::LEN + Bth::LEN + Deth::LEN + MAD_LEN + ICRC_LEN) as u64 / 4;
const ICRC_LEN: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    pub slid: Lid,
    /// The destination LID; permissive for a directed route.
    pub dlid: Lid,
    pub src_qp: Qpn,
    pub dest_qp: Qpn,
    /// The P_Key. Subnet management has no partition (IBA 10.9.8), and uses the default key.
    pub p_key: PKey,
    pub mad: Mad,
}

impl Datagram {
    pub fn smp(slid: Lid, dlid: Lid, mad: Mad) -> Self {
        Self { slid, dlid, src_qp: Qpn::SMI, dest_qp: Qpn::SMI, p_key: PKey::DEFAULT, mad }
    }

    pub(crate) fn reply(&self, slid: Lid, mad: Mad) -> Self {
        let Self { slid: dlid, src_qp: dest_qp, dest_qp: src_qp, p_key, .. } = *self;
        Self { slid, dlid, src_qp, dest_qp, p_key, mad }
    }
}

pub struct Subnet {
    topology: Topology,
    nodes: Vec<SubnetNode>,
    delivered: VecDeque<(End, Datagram)>,
    /// Nodes that have traps to send.
    trapping: BTreeSet<u32>,
    packet_links: PacketLinks,
    departed: VecDeque<Departure>,
    departures: u64,
    /// Ports with a link to another fabric, and whether the other end is connected.
    foreign: BTreeMap<End, bool>,
}

/// The links on which datagrams are packets.
#[derive(Clone, Debug, Default)]
pub struct PacketLinks {
    pub all: bool,
    pub ends: BTreeSet<End>,
}

#[derive(Clone, Debug)]
pub struct Departure {
    pub from: End,
    /// Links that it has crossed.
    pub hops: u8,
    pub datagram: Datagram,
}

const DELIVERED_MAX: usize = 4096;
const DEPARTED_MAX: usize = 4096;
/// Copies of a datagram in flight. Multicast tables with loops multiply the copies.
const IN_FLIGHT_MAX: usize = 4096;

struct InFlight {
    /// The input port, or the port from which the datagram is sent.
    at: End,
    starts: bool,
    hops: u8,
    /// Boxed, because it is moved at every hop.
    datagram: Box<Datagram>,
}

impl Subnet {
    /// The nodes of a topology, with all links trained.
    pub fn new(topology: Topology) -> Self {
        let nodes = topology.nodes().iter().map(SubnetNode::new).collect();
        let mut subnet = Self {
            nodes,
            topology,
            delivered: VecDeque::new(),
            trapping: BTreeSet::new(),
            packet_links: PacketLinks::default(),
            departed: VecDeque::new(),
            departures: 0,
            foreign: BTreeMap::new(),
        };
        for index in 0..subnet.topology.links().len() {
            let link = subnet.topology.links()[index];
            for end in link.ends {
                subnet.nodes[end.node as usize].ports[usize::from(end.port)].set_rate(link.rate);
            }
            subnet.train(link.ends[0]);
        }
        subnet
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    pub fn nodes(&self) -> &[SubnetNode] {
        &self.nodes
    }

    pub fn node_mut(&mut self, index: u32) -> &mut SubnetNode {
        self.trapping.insert(index);
        &mut self.nodes[index as usize]
    }

    pub fn port(&self, end: End) -> &NodePort {
        &self.nodes[end.node as usize].ports[usize::from(end.port)]
    }

    pub fn port_mut(&mut self, end: End) -> &mut NodePort {
        &mut self.node_mut(end.node).ports[usize::from(end.port)]
    }

    /// Sends a datagram from a port (0 at a switch), and handles all datagrams that follow from it.
    ///
    /// The P_Key is replaced by the port's own entry for that partition, as with any queue pair:
    /// the answer of a full member to a limited member has the full key. The key of a partition
    /// that the port is not in stays unchanged; the first switch that enforces partitions drops the
    /// datagram.
    pub fn send(&mut self, now: Time, from: End, mut datagram: Datagram) {
        datagram.p_key = self.nodes[from.node as usize].own_p_key(from.port, datagram.p_key);
        let datagram = Box::new(datagram);
        self.propagate(now, InFlight { at: from, starts: true, hops: 0, datagram });
    }

    /// Receives a datagram that has arrived at a port as a packet, over `hops` links.
    pub fn receive(&mut self, now: Time, to: End, hops: u8, datagram: Datagram) {
        let datagram = Box::new(datagram);
        self.propagate(now, InFlight { at: to, starts: false, hops, datagram });
    }

    fn propagate(&mut self, now: Time, first: InFlight) {
        let mut in_flight = VecDeque::from([first]);
        while let Some(next) = in_flight.pop_front() {
            let node = next.at.node;
            if next.hops > HOPS_MAX {
                self.count(node, NodeDrop::NoRoute);
                continue;
            }
            self.process(now, next, &mut in_flight);
            if self.nodes[node as usize].traps.due().is_some() {
                self.trapping.insert(node);
            }
        }
    }

    /// The next datagram that has arrived at a port and that no agent answers.
    pub fn poll_delivery(&mut self) -> Option<(End, Datagram)> {
        self.delivered.pop_front()
    }

    pub fn poll_departure(&mut self) -> Option<Departure> {
        self.departed.pop_front()
    }

    pub fn has_departures(&self) -> bool {
        !self.departed.is_empty()
    }

    /// The number of departures so far. Answers to datagrams that depart come later, if at all.
    pub fn departures(&self) -> u64 {
        self.departures
    }

    pub fn set_packet_links(&mut self, links: PacketLinks) {
        self.packet_links = links;
    }

    /// Makes the link of a port without a peer a link to another fabric. `is_there` is whether the
    /// other end is connected.
    pub fn set_foreign(&mut self, end: End, is_there: bool) {
        self.foreign.insert(end, is_there);
        if is_there {
            return self.train(end);
        }
        self.nodes[end.node as usize].link_down(end.port, PortPhysState::POLLING);
        self.trapping.insert(end.node);
    }

    pub fn send_traps(&mut self, now: Time) {
        for index in std::mem::take(&mut self.trapping) {
            let node = &mut self.nodes[index as usize];
            if let Some((port, dlid, mad)) = sma::poll_trap(node, now) {
                let datagram = Datagram::smp(node.lid(port), dlid, mad);
                self.send(now, End { node: index, port }, datagram);
            }
            if self.nodes[index as usize].traps.due().is_some() {
                self.trapping.insert(index);
            }
        }
    }

    pub fn traps_due(&self) -> Option<Time> {
        let due = |index: &u32| self.nodes[*index as usize].traps.due();
        self.trapping.iter().filter_map(due).min()
    }

    /// Unplugs the cable of a port, which takes its link down, or plugs it in.
    pub fn set_cable(&mut self, end: End, is_in: bool) {
        if is_in {
            return self.train(end);
        }
        let peer = self.topology.peer(end).map(|(peer, _)| peer);
        for end in [Some(end), peer].into_iter().flatten() {
            self.nodes[end.node as usize].link_down(end.port, PortPhysState::POLLING);
            self.trapping.insert(end.node);
        }
    }

    /// Brings up the link at a port, if both ends are polling.
    fn train(&mut self, end: End) {
        let Some((peer, link)) = self.topology.peer(end) else { return self.train_foreign(end) };
        let (rate, ends) = (link.rate, [end, peer]);
        let info = ends.map(|end| self.port(end).info);
        if info.iter().any(|info| info.port_phys_state != PortPhysState::POLLING) {
            return;
        }
        for (end, peer) in ends.into_iter().zip([info[1], info[0]]) {
            self.nodes[end.node as usize].link_up(end.port, &peer, rate);
            self.trapping.insert(end.node);
        }
    }

    /// Brings up a link to another fabric. The other end is assumed to have the capabilities of
    /// this end, until a subnet manager has read them.
    fn train_foreign(&mut self, end: End) {
        let node = &mut self.nodes[end.node as usize];
        let info = node.ports[usize::from(end.port)].info;
        let is_there = self.foreign.get(&end).copied().unwrap_or(false);
        if is_there && info.port_phys_state == PortPhysState::POLLING {
            node.link_up(end.port, &info, LinkRate::default());
            self.trapping.insert(end.node);
        }
    }

    fn counters(&mut self, end: End) -> &mut Counters {
        &mut self.nodes[end.node as usize].ports[usize::from(end.port)].counters
    }

    fn count(&mut self, node: u32, drop: NodeDrop) {
        self.nodes[node as usize].drops.count(drop);
    }

    /// Moves a datagram by one step: to an agent of the node, or out of the node by its ports.
    fn process(&mut self, now: Time, mut in_flight: InFlight, next: &mut VecDeque<InFlight>) {
        let (at, class) = (in_flight.at, MgmtClass(in_flight.datagram.mad[1]));
        let node = &self.nodes[at.node as usize];
        let is_here = node.has_lid(at.port, in_flight.datagram.dlid);
        if class != MgmtClass::SUBN_DIRECTED_ROUTE || !is_here {
            return self.process_by_lid(now, in_flight, is_here, next);
        }
        let position = DirectedPosition {
            in_port: (!in_flight.starts).then_some(at.port),
            is_switch: node.is_switch(),
            num_ports: node.identity.num_ports,
        };
        match directed::step(position, &mut in_flight.datagram.mad) {
            Step::Agent => self.deliver_to_agent(now, in_flight, next),
            Step::Sender => self.deliver(in_flight),
            Step::Port(port) => self.cross(in_flight, port, next),
            Step::Lid(lid) => {
                in_flight.datagram.dlid = lid;
                self.process_by_lid(now, in_flight, false, next);
            }
            Step::Drop => self.count(at.node, NodeDrop::DirectedRoute),
        }
    }

    fn process_by_lid(
        &mut self,
        now: Time,
        in_flight: InFlight,
        is_here: bool,
        next: &mut VecDeque<InFlight>,
    ) {
        let InFlight { at, starts, .. } = in_flight;
        let is_smi = MgmtClass(in_flight.datagram.mad[1]).is_smi();
        let node = &self.nodes[at.node as usize];
        if node.is_switch() && !(starts && is_here) {
            return self.forward(now, in_flight, is_smi, next);
        }
        let port = &node.ports[usize::from(at.port)];
        let is_up = match (starts, is_here) {
            (true, true) => true,
            (true, false) => is_smi || port.sends_data(),
            (false, _) => is_smi || port.takes_data(),
        };
        if !is_up {
            self.count(at.node, NodeDrop::PortState);
        } else if is_here {
            self.deliver_to_agent(now, in_flight, next);
        } else if starts {
            self.cross(in_flight, at.port, next);
        } else {
            self.count(at.node, NodeDrop::Unclaimed);
        }
    }

    /// Forwards a datagram through a switch, or delivers it to the switch itself.
    fn forward(
        &mut self,
        now: Time,
        in_flight: InFlight,
        is_smi: bool,
        next: &mut VecDeque<InFlight>,
    ) {
        let InFlight { at, starts, ref datagram, .. } = in_flight;
        let packet = Transit {
            in_port: if starts { 0 } else { at.port },
            slid: datagram.slid,
            dlid: datagram.dlid,
            sl: 0,
            vl: if is_smi { Lrh::VL_MANAGEMENT } else { 0 },
            p_key: (!is_smi).then_some(datagram.p_key),
        };
        let mut ports = Vec::new();
        // The switch counts a datagram without an output port.
        let _ =
            switch::forward(&mut self.nodes[at.node as usize], &packet, |hop| ports.push(hop.port));
        let Some(last) = ports.pop() else { return };
        for port in ports {
            let copy = InFlight { datagram: in_flight.datagram.clone(), ..in_flight };
            self.leave(now, copy, port, next);
        }
        self.leave(now, in_flight, last, next);
    }

    /// Sends a datagram out of a switch by a port; port 0 is the switch itself.
    fn leave(&mut self, now: Time, at: InFlight, port: u8, next: &mut VecDeque<InFlight>) {
        if port == 0 { self.deliver_to_agent(now, at, next) } else { self.cross(at, port, next) }
    }

    fn cross(&mut self, in_flight: InFlight, port: u8, next: &mut VecDeque<InFlight>) {
        let InFlight { at, hops, datagram, .. } = in_flight;
        let from = End { port, ..at };
        let is_up = self.port(from).is_linked();
        if next.len() >= IN_FLIGHT_MAX {
            return self.count(at.node, NodeDrop::Full);
        }
        if is_up && (self.packet_links.all || self.packet_links.ends.contains(&from)) {
            if self.departed.len() >= DEPARTED_MAX {
                return self.count(at.node, NodeDrop::Full);
            }
            self.departures += 1;
            return self.departed.push_back(Departure { from, hops, datagram: *datagram });
        }
        let Some((peer, _)) = self.topology.peer(from).filter(|_| is_up) else {
            return self.count(at.node, NodeDrop::PortState);
        };
        self.counters(from).sent_many(1, DATAGRAM_WORDS, false);
        self.counters(peer).received_many(1, DATAGRAM_WORDS, false);
        next.push_back(InFlight { at: peer, starts: false, hops: hops + 1, datagram });
    }

    fn deliver_to_agent(&mut self, now: Time, in_flight: InFlight, next: &mut VecDeque<InFlight>) {
        let InFlight { at, starts, ref datagram, .. } = in_flight;
        let class = MgmtClass(datagram.mad[1]);
        let node = &mut self.nodes[at.node as usize];
        if !starts && !class.is_smi() && !node.takes_p_key(at.port, datagram.p_key) {
            return node.drops.count(NodeDrop::Key);
        }
        let at = End { port: if starts { node.managed_port(at.port) } else { at.port }, ..at };
        let arrival = MadArrival { now, port: at.port, slid: datagram.slid };
        let answer = match class {
            class if class.is_smi() => match sma::handle(node, arrival, &datagram.mad) {
                Handled::Answer(answer, link_down) => {
                    if let Some(port) = link_down {
                        self.retrain(End { port, ..at });
                    }
                    *answer
                }
                Handled::Manager => return self.deliver(in_flight),
                Handled::Nothing => return,
            },
            MgmtClass::PERF if !is_response(&datagram.mad) => {
                let Some(answer) = pma::handle(node, &datagram.mad) else { return };
                answer
            }
            _ => return self.deliver(in_flight),
        };
        let node = &self.nodes[at.node as usize];
        let is_directed = datagram.dlid == Lid::PERMISSIVE;
        let slid = if is_directed { Lid::PERMISSIVE } else { node.lid(at.port) };
        let p_key = node.own_p_key(at.port, datagram.p_key);
        let mut datagram = in_flight.datagram;
        *datagram = Datagram { p_key, ..datagram.reply(slid, answer) };
        next.push_back(InFlight { at, starts: true, hops: 0, datagram });
    }

    fn deliver(&mut self, InFlight { at, datagram, .. }: InFlight) {
        if self.delivered.len() >= DELIVERED_MAX {
            return self.count(at.node, NodeDrop::Full);
        }
        let port = self.nodes[at.node as usize].managed_port(at.port);
        self.delivered.push_back((End { port, ..at }, *datagram));
    }

    /// Retrains the link at a port, which an agent has taken down. It comes up again if both ends
    /// are polling.
    fn retrain(&mut self, end: End) {
        if let Some((peer, _)) = self.topology.peer(end) {
            self.nodes[peer.node as usize].link_down(peer.port, PortPhysState::POLLING);
            self.trapping.insert(peer.node);
        }
        self.train(end);
    }
}

fn is_response(mad: &Mad) -> bool {
    MadHeader::read(mad).is_ok_and(|(header, _)| header.method.is_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::mad::class_port_info::ClassPortInfo;
    use pollux_wire::mad::smp::{
        CapabilityMask, LidSmp, MulticastForwardingTable, MulticastForwardingTableModifier,
        NodeInfo, NodeType, PortInfo, PortState,
    };
    use pollux_wire::mad::{Attribute, MadStatus, Method};

    fn subnet(spec: &str) -> Subnet {
        Subnet::new(Topology::generate(spec, 1).unwrap())
    }

    /// Sends an SMP by directed route from the first host; returns the attribute of the answer.
    fn directed<A: Attribute>(subnet: &mut Subnet, path: &[u8], method: Method, a: A) -> Option<A> {
        let header = MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, method, 5, A::ID);
        let (dr_slid, dr_dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
        let mut smp = DirectedSmp { header, dr_slid, dr_dlid, ..DirectedSmp::default() };
        smp.data = a.to_data();
        smp.set_hops(0, path.len() as u8);
        smp.initial_path[1..=path.len()].copy_from_slice(path);
        let (_, datagram) = send(subnet, Lid::PERMISSIVE, smp.emit())?;
        let smp = DirectedSmp::parse(&datagram.mad);
        assert_eq!((smp.header.status, smp.hop_pointer()), (MadStatus::OK.returning(), 0));
        Some(A::from_data(&smp.data))
    }

    fn send(subnet: &mut Subnet, dlid: Lid, mad: Mad) -> Option<(End, Datagram)> {
        let from = End { node: 1, port: 1 };
        let slid = if dlid == Lid::PERMISSIVE { dlid } else { subnet.nodes()[1].lid(1) };
        subnet.send(Time::START, from, Datagram::smp(slid, dlid, mad));
        let arrived = subnet.poll_delivery();
        assert!(subnet.poll_delivery().is_none(), "one answer at most");
        arrived
    }

    fn node_info(subnet: &mut Subnet, path: &[u8]) -> Option<NodeInfo> {
        directed(subnet, path, Method::GET, NodeInfo::default())
    }

    #[test]
    fn directed_routes_reach_every_node_and_come_back() {
        let mut subnet = subnet("single:3");
        assert_eq!(
            node_info(&mut subnet, &[]).unwrap().node_guid,
            subnet.nodes()[1].identity.node_guid
        );
        let switch = node_info(&mut subnet, &[1]).unwrap();
        assert_eq!((switch.node_type, switch.local_port_num), (NodeType::SWITCH, 1));
        let counted = &subnet.nodes()[1].ports[1].counters;
        assert_eq!((counted.xmit_packets.long(), counted.rcv_data.long()), (1, 72));
        let third = node_info(&mut subnet, &[1, 3]).unwrap();
        assert_eq!(third.node_guid, subnet.nodes()[3].identity.node_guid);
        assert_eq!(
            node_info(&mut subnet, &[1, 1]).unwrap().node_guid,
            subnet.nodes()[1].identity.node_guid
        );
        assert_eq!(node_info(&mut subnet, &[1, 9]), None);
        assert_eq!(node_info(&mut subnet, &[1, 3, 1]), None, "adapters do not forward");
        assert_eq!(subnet.nodes()[3].drops.of(NodeDrop::DirectedRoute), 1);
    }

    // req: iba-links
    #[test]
    fn a_link_that_is_taken_down_comes_back_unless_it_is_disabled() {
        let mut subnet = subnet("single:2");
        let mut set = |path: &[u8], port_state, port_phys_state| {
            let info = directed(&mut subnet, path, Method::GET, PortInfo::default())?;
            let new = PortInfo { port_state, port_phys_state, ..info };
            directed(&mut subnet, path, Method::SET, new)
        };
        use PortPhysState as P;
        let armed = set(&[1, 2], PortState::ARMED, P::NO_CHANGE).unwrap();
        assert_eq!(armed.port_state, PortState::ARMED);
        assert_eq!(
            set(&[1, 2], PortState::DOWN, P::NO_CHANGE).unwrap().port_state,
            PortState::DOWN
        );
        let back = set(&[1, 2], PortState::NO_CHANGE, P::NO_CHANGE).unwrap();
        assert_eq!(back.port_state, PortState::INITIALIZE);
        assert_eq!(set(&[1, 2], PortState::NO_CHANGE, P::DISABLED), None, "no way back");
        assert_eq!(set(&[1, 2], PortState::NO_CHANGE, P::NO_CHANGE), None);
        assert!(!subnet.nodes()[0].ports[2].is_linked());
    }

    #[test]
    fn datagrams_go_by_lid_where_tables_lead() {
        let mut subnet = subnet("single:2");
        for (node, lid) in [(1, 4), (2, 5)] {
            subnet.node_mut(node).ports[1].info.lid = Lid(lid);
        }
        let tables = subnet.node_mut(0).forwarding.as_mut().unwrap();
        let mut block = tables.linear_block(0).unwrap();
        (block.ports[4], block.ports[5], block.ports[6]) = (1, 2, 0);
        tables.set_linear_block(0, &block);
        tables.info.linear_fdb_top = Lid(6);
        subnet.node_mut(0).ports[0].info.lid = Lid(6);
        let class = MgmtClass::SUBN_LID_ROUTED;
        let header = MadHeader::new(class, Method::GET, 8, NodeInfo::ID);
        let mad = LidSmp { header, ..LidSmp::default() }.emit();
        for (lid, node) in [(5, 2), (6, 0), (4, 1)] {
            let (at, answer) = send(&mut subnet, Lid(lid), mad).unwrap();
            assert_eq!(
                (at, answer.slid, answer.dlid),
                (End { node: 1, port: 1 }, Lid(lid), Lid(4))
            );
            let info = NodeInfo::from_data(&LidSmp::parse(&answer.mad).data);
            assert_eq!(info.node_guid, subnet.nodes()[node].identity.node_guid);
        }
        assert_eq!(send(&mut subnet, Lid(7), mad), None);
        let perf = MadHeader::new(MgmtClass::PERF, Method::GET, 8, ClassPortInfo::ID).emit();
        let mut mad = [0; 256];
        mad[..24].copy_from_slice(&perf);
        assert_eq!(send(&mut subnet, Lid(5), mad), None, "general services need active ports");
        for node in 0..3 {
            let ports = &mut subnet.node_mut(node).ports;
            ports.iter_mut().for_each(|port| port.info.port_state = PortState::ACTIVE);
        }
        assert!(send(&mut subnet, Lid(5), mad).is_some());
    }

    #[test]
    fn routes_in_circles_end() {
        let mut subnet = subnet("ring:3");
        for node in 0..3 {
            let tables = subnet.node_mut(node).forwarding.as_mut().unwrap();
            let mut block = tables.linear_block(0).unwrap();
            block.ports[9] = 2;
            tables.set_linear_block(0, &block);
            tables.info.linear_fdb_top = Lid(9);
        }
        let header = MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::GET, 8, NodeInfo::ID);
        let mad = LidSmp { header, ..LidSmp::default() }.emit();
        let datagram = Datagram::smp(Lid(1), Lid(9), mad);
        subnet.send(Time::START, End { node: 0, port: 0 }, datagram);
        assert_eq!(subnet.poll_delivery(), None);
        let dropped = subnet.nodes().iter().map(|node| node.drops.of(NodeDrop::NoRoute));
        assert_eq!(dropped.sum::<u64>(), 1);
    }

    #[test]
    fn groups_that_run_in_circles_do_not_multiply_without_limit() {
        let mut subnet = subnet("torus:3x3");
        let which = MulticastForwardingTableModifier::default();
        let table = MulticastForwardingTable { port_masks: [0b11_1110; 32] };
        for node in 0..18 {
            let node = subnet.node_mut(node);
            let ports = node.ports.iter_mut();
            ports.for_each(|port| port.info.port_state = PortState::ACTIVE);
            if let Some(tables) = &mut node.forwarding {
                tables.set_multicast_block(which, &table);
            }
        }
        let header = MadHeader::new(MgmtClass::COMM_MGT, Method::SEND, 8, NodeInfo::ID);
        let datagram = Datagram {
            slid: Lid(1),
            dlid: Lid::MULTICAST_FIRST,
            src_qp: Qpn::GSI,
            dest_qp: Qpn::GSI,
            p_key: PKey::DEFAULT,
            mad: LidSmp { header, ..LidSmp::default() }.emit(),
        };
        subnet.send(Time::START, End { node: 9, port: 1 }, datagram);
        let dropped = subnet.nodes().iter().map(|node| node.drops.of(NodeDrop::Full));
        // Copies are forwarded up to the hop limit; those beyond the space for copies are dropped.
        assert_eq!(dropped.sum::<u64>(), 229_432);
    }

    #[test]
    fn a_pulled_cable_is_trapped_to_the_manager() {
        let mut subnet = subnet("single:2");
        subnet.node_mut(0).ports[0].info.master_sm_lid = Lid(4);
        subnet.node_mut(0).ports[0].info.lid = Lid(6);
        subnet.node_mut(1).ports[1].info.lid = Lid(4);
        let host = subnet.node_mut(1);
        host.set_capability(1, host.ports[1].info.capability_mask.with(CapabilityMask::SM));
        let tables = subnet.node_mut(0).forwarding.as_mut().unwrap();
        let mut block = tables.linear_block(0).unwrap();
        block.ports[4] = 1;
        tables.set_linear_block(0, &block);
        tables.info.linear_fdb_top = Lid(6);
        subnet.set_cable(End { node: 2, port: 1 }, false);
        assert_eq!(subnet.traps_due(), Some(Time::START));
        subnet.send_traps(Time::START);
        let (at, trap) = subnet.poll_delivery().unwrap();
        assert_eq!((at, trap.mad[3]), (End { node: 1, port: 1 }, Method::TRAP.0));
        subnet.set_cable(End { node: 2, port: 1 }, true);
        assert!(subnet.nodes()[0].ports[2].is_linked());
    }
}
