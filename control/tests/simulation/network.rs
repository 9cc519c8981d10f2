//! How frames, messages of connections and management datagrams get from one node to another, and
//! what befalls them on the way.
//!
//! Datagrams and unreliable connections lose, double and delay. A reliable connection does not: it
//! tries again for so long, and if its other end is not there by then, it fails.

use crate::world::{World, node_of, owner_of};
use pollux_control::ipoib::{
    By, ConnectionKey, DatagramAdjacency, OutgoingPacket, PacketSource, QueuePairEvent,
    ReceivedPacket, WorkerId,
};
use pollux_control::mad::Envelope;
use pollux_fabric::subnet::Datagram;
use pollux_fabric::topology::End;
use pollux_verbs::{QpState, QpType};
use pollux_wire::address::Qpn;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::arp::ArpPacket;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::keys::QKey;
use pollux_wire::mad::MgmtClass;
use std::time::Duration;

/// How long anything takes at the least.
const WAY: Duration = Duration::from_micros(10);
/// How long a reliable connection tries: seven times 17 ms, and the first.
const RETRIES: Duration = Duration::from_millis(134);

/// Lost and duplicated packets in a million, and the longest delay.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub lost: u32,
    pub doubled: u32,
    pub late: Duration,
}

impl Weather {
    pub const CALM: Self = Self { lost: 0, doubled: 0, late: Duration::ZERO };
}

/// Packets and datagrams under way.
pub enum Event {
    ToSubnet { from: End, datagram: Box<Datagram> },
    ToNode { to: usize, envelope: Box<Envelope> },
    Frame(Flying),
    Message(Message),
}

/// A datagram with a frame.
#[derive(Clone)]
pub struct Flying {
    to: Vec<usize>,
    ether_type: EtherType,
    packet: Vec<u8>,
    from: PacketSource,
    adjacency: DatagramAdjacency,
    qkey: QKey,
}

/// A message of a connection.
pub struct Message {
    from: usize,
    life: u32,
    key: ConnectionKey,
    ether_type: EtherType,
    packet: Vec<u8>,
    is_last_try: bool,
}

impl World {
    fn put(&mut self, after: Duration, event: Event) {
        self.number += 1;
        self.events.insert((self.now + after, self.number), event);
    }

    /// The times of arrival of a packet's copies, under these faults.
    fn arrivals(&mut self, weather: Weather) -> impl Iterator<Item = Duration> + use<> {
        let copies = 1 + u32::from(self.rng.happens(weather.doubled));
        let rng = &mut self.rng;
        let times: Vec<_> = (0..copies)
            .filter_map(|_| {
                let late = rng.duration(weather.late);
                (!rng.happens(weather.lost)).then_some(WAY + late)
            })
            .collect();
        times.into_iter()
    }

    /// Sends a management datagram.
    pub fn put_mad(&mut self, event: Event) {
        let weather = self.mad_weather;
        for after in self.arrivals(weather) {
            let copy = match &event {
                Event::ToSubnet { from, datagram } => {
                    Event::ToSubnet { from: *from, datagram: datagram.clone() }
                }
                Event::ToNode { to, envelope } => {
                    Event::ToNode { to: *to, envelope: envelope.clone() }
                }
                _ => unreachable!("frames go another way"),
            };
            self.put(after, copy);
        }
    }

    pub fn send_mad(&mut self, nth: usize, envelope: &Envelope) {
        let is_of_sa = envelope.mad[1] == MgmtClass::SUBN_ADM.0;
        self.mads += 1;
        self.questions += u64::from(is_of_sa);
        if is_of_sa && self.is_sa_silent {
            return;
        }
        let (src_qp, dest_qp, dlid) = (Qpn::GSI, envelope.peer.qpn, envelope.peer.lid);
        let (slid, p_key, mad) = (self.view(nth).lid, envelope.peer.p_key, envelope.mad);
        let datagram = Box::new(Datagram { slid, dlid, src_qp, dest_qp, p_key, mad });
        self.put_mad(Event::ToSubnet { from: self.nodes[nth].at, datagram });
    }

    /// A frame leaves a node, by one of its workers.
    pub fn fly(&mut self, nth: usize, worker: WorkerId, outgoing: OutgoingPacket) {
        let port_driver = &self.nodes[nth].port_driver;
        match (port_driver.connection(worker, &outgoing), port_driver.adjacency(worker, &outgoing))
        {
            (Some(key), _) => self.fly_connected(nth, key, outgoing),
            (None, Some(adjacency)) => self.fly_datagram(nth, adjacency, outgoing),
            (None, None) => {}
        }
    }

    fn fly_datagram(&mut self, nth: usize, adjacency: DatagramAdjacency, outgoing: OutgoingPacket) {
        let node = &mut self.nodes[nth];
        let Some(link) = node.port_driver.link else { return };
        if outgoing.packet.len() > adjacency.mtu as usize {
            // It was to go by a connection that is not there any more.
            assert!(matches!(outgoing.by, By::Peer(_)), "control sends what does not fit");
            if let Some(interface) = &mut node.interface {
                interface.handle_too_big(self.now, &outgoing.packet, adjacency.mtu);
            }
            return;
        }
        let group =
            adjacency.vector.grh.map(|grh| grh.dgid).filter(|_| adjacency.qpn == Qpn::MULTICAST);
        let gid = adjacency.vector.grh.map(|_| link.gid);
        let from = PacketSource::Datagram { qpn: node.config.qpn, lid: link.lid, gid, group };
        let to: Vec<usize> = match group {
            Some(group) => {
                let all = self.listeners.get(&(group, adjacency.vector.dlid)).into_iter().flatten();
                let asked = self.asked_by(&outgoing);
                let all: Vec<_> = all.copied().filter(|to| *to != nth).collect();
                let heard = |to: &usize| asked.is_none_or(|asked| asked == *to);
                let to: Vec<_> = all.iter().copied().filter(heard).collect();
                self.spared += (all.len() - to.len()) as u64;
                to
            }
            None => self.by_lid.get(&adjacency.vector.dlid).copied().into_iter().collect(),
        };
        let OutgoingPacket { ether_type, packet, .. } = outgoing;
        let flying =
            Flying { to: Vec::new(), ether_type, packet, from, adjacency, qkey: link.qkey };
        let mut in_time = Vec::new();
        let weather = self.weather;
        for to in to {
            for after in self.arrivals(weather) {
                match after {
                    WAY => in_time.push(to),
                    _ => self.put(after, Event::Frame(Flying { to: vec![to], ..flying.clone() })),
                }
            }
        }
        self.put(WAY, Event::Frame(Flying { to: in_time, ..flying }));
    }

    /// The target of an ARP request that only its target gets.
    fn asked_by(&self, outgoing: &OutgoingPacket) -> Option<usize> {
        let is_arp = outgoing.ether_type == EtherType::ARP && self.spares_bystanders;
        let packet = is_arp.then(|| ArpPacket::<LinkAddress>::parse(&outgoing.packet).ok());
        packet.flatten().map(|packet| node_of(packet.target_protocol))
    }

    /// A frame is there.
    pub fn land(&mut self, flying: &Flying) {
        for &to in &flying.to {
            let node = &self.nodes[to];
            let is_key_right = node.port_driver.link.is_some_and(|link| link.qkey == flying.qkey);
            if is_key_right && node.port_driver.hears(node.config.qpn, &flying.adjacency) {
                let Flying { ether_type, ref packet, from, .. } = *flying;
                self.give(to, ReceivedPacket { ether_type, packet, from });
            }
        }
    }

    fn fly_connected(&mut self, nth: usize, key: ConnectionKey, outgoing: OutgoingPacket) {
        let node = &mut self.nodes[nth];
        let Some(own) = node.port_driver.connections.get(&key) else { return };
        if own.state == QpState::Err {
            return;
        }
        assert_eq!(own.state, QpState::Rts, "a packet for what cannot send");
        let (qp_type, life) = (own.qp_type, node.life);
        node.port_driver.events.push((key, QueuePairEvent::Used { received: false }));
        let OutgoingPacket { ether_type, packet, .. } = outgoing;
        let weather = self.weather;
        let message =
            |packet| Message { from: nth, life, key, ether_type, packet, is_last_try: false };
        match qp_type {
            QpType::Uc => {
                for after in self.arrivals(Weather { doubled: 0, ..weather }) {
                    self.put(after, Event::Message(message(packet.clone())));
                }
            }
            // Late is what comes by a second try; order is kept by it, and by nobody here.
            _ => {
                let late = self.rng.duration(weather.late.min(RETRIES));
                self.put(WAY + late, Event::Message(message(packet)));
            }
        }
    }

    /// A message of a connection is at the other end, if there is one.
    pub fn arrive(&mut self, message: Message) {
        let Message { from, life, key, ether_type, ref packet, is_last_try } = message;
        let node = &mut self.nodes[from];
        let Some(own) =
            node.port_driver.connections.get(&key).copied().filter(|_| node.life == life)
        else {
            return;
        };
        if own.state == QpState::Err {
            return;
        }
        let to = own.dest_qp.map_or(from, owner_of);
        let ends = &self.nodes[to].port_driver.connections;
        let end = ends.iter().find(|(_, other)| {
            Some(other.qpn) == own.dest_qp
                && other.dest_qp == Some(own.qpn)
                && other.rq_psn == own.sq_psn
                && matches!(other.state, QpState::Rtr | QpState::Rts)
        });
        let is_reached = self.is_cabled(from) && self.is_cabled(to) && !self.busy.contains(&to);
        match end.map(|(there, _)| *there).filter(|_| is_reached) {
            Some(there) => {
                self.nodes[to].port_driver.events.push((there, QueuePairEvent::DataCame));
                let from = PacketSource::Connection(there);
                self.give(to, ReceivedPacket { ether_type, packet, from });
            }
            None if own.qp_type == QpType::Uc => {}
            None if is_last_try => {
                self.nodes[from].port_driver.fail(key);
                self.drain(from);
            }
            None => self.put(RETRIES, Event::Message(Message { is_last_try: true, ..message })),
        }
    }

    fn is_cabled(&self, nth: usize) -> bool {
        self.view(nth).state >= pollux_wire::mad::smp::PortState::ACTIVE
    }
}
