//! A plain interface: IP on a link other than InfiniBand.
//!
//! ```text
//!   packets to us, punted --> echo replies --+
//!   transit not forwarded  --> ICMP errors --+--> route --> fit the MTU --> frames, by this link
//!   packets of this node --------------------+      |
//!                                                   +--> other interfaces, sockets of the node
//! ```
//!
//! A packet in transit that is longer than the MTU already has its route, and begins at "fit the
//! MTU". Ethernet has ARP, neighbor discovery, duplicate address detection and group membership.
//! TUN has none of these: its other end is the kernel, and all packets go to the kernel. Addresses,
//! ICMP and fragmentation are the same for all links.
//!
//! The caller calls a `handle_*`, then drains all `poll_*`.

mod at_ethernet;
mod packet;
#[cfg(test)]
mod tests;

use crate::address::{AddressEvent, Addresses, Lifetimes, Origin, is_in};
use crate::beyond::{
    InterfaceTransfer, NodeRoute, NodeRoutes, NodeRouting, TransferKind, TransitHop,
};
use crate::bounded::BoundedQueue;
use crate::effects::Delivery;
use crate::ethernet::{EthernetConfig, EthernetNeighbors};
use crate::fragment::fragments;
use crate::frame::source;
use crate::icmp::{Icmp, IcmpConfig, IcmpCounters, IcmpError};
use crate::no_listener::Answer;
use crate::output::drop_rows;
use crate::thread_check::assert_no_worker_thread;
use packet::{Kind, classify, destination};
use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;
use pollux_verbs::time::Time;
use pollux_wire::ethernet::{EtherType, MacAddress};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

const PACKETS_MAX: usize = 1024;

reasons! {
    pub enum PlainDrop {
        Down = "down",
        Malformed = "malformed",
        /// A link protocol that this link does not use.
        LinkProtocol = "link_protocol",
        Transit = "transit",
        Multicast = "multicast",
        NoRoute = "no_route",
        Blackhole = "blackhole",
        TooBig = "too_big",
    }
}

#[derive(Clone, Debug)]
pub struct PlainConfig {
    /// Our addresses, with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// In bytes.
    pub mtu: u32,
    pub icmp: IcmpConfig,
    /// `None` on a link with one neighbor, which gets all packets.
    pub ethernet: Option<EthernetConfig>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainFrame {
    /// An IP packet, or on Ethernet also an ARP packet, without the header of the link.
    pub packet: Vec<u8>,
    pub to: FrameTo,
}

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameTo {
    /// On a link with one neighbor, which gets all packets.
    NextHop(IpAddr),
    Ethernet(MacAddress, EtherType),
}

/// The state of a plain interface that workers need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlainState {
    /// The addresses at which packets are accepted: those of all interfaces of the node.
    pub own: BTreeSet<IpAddr>,
    /// In bytes.
    pub mtu: u32,
}

pub struct PlainInterface {
    addresses: Addresses,
    /// Why the interface is down; `None` if it is up.
    down: Option<String>,
    /// When the interface went up or down.
    since: Time,
    mtu: u32,
    icmp: Icmp,
    /// The IPv4 identification of the next packet that is fragmented here and has none.
    fragment_id: u16,
    routing: NodeRouting,
    ethernet: Option<EthernetNeighbors>,
    frames: BoundedQueue<PlainFrame>,
    deliveries: BoundedQueue<Delivery>,
    /// The state has changed since workers last got it.
    has_changed: bool,
    drops: Drops<PlainDrop>,
}

impl PlainInterface {
    pub fn new(now: Time, config: &PlainConfig, down: String, seed: u64) -> Self {
        let mut interface = Self {
            addresses: Addresses::default(),
            down: Some(down),
            since: now,
            mtu: config.mtu,
            icmp: Icmp::new(&config.icmp),
            fragment_id: seed as u16,
            routing: NodeRouting::new(),
            ethernet: None,
            frames: BoundedQueue::new(PACKETS_MAX),
            deliveries: BoundedQueue::new(PACKETS_MAX),
            has_changed: true,
            drops: Drops::default(),
        };
        if let Some(ethernet) = &config.ethernet {
            if ethernet.ipv6 {
                let (ip, origin) = (ethernet.address.link_local().into(), Origin::LinkLocal);
                interface.addresses.add(now, ip, 64, origin, Lifetimes::default());
            }
            let neighbors = EthernetNeighbors::new(now, ethernet.clone(), seed);
            interface.ethernet = Some(neighbors);
        }
        for &(ip, prefix_len) in &config.addresses {
            interface.add_address(now, ip, prefix_len);
        }
        interface
    }

    pub fn set_link(&mut self, now: Time, down: Option<String>) {
        assert_no_worker_thread();
        if self.down.is_some() != down.is_some() {
            self.since = now;
        }
        self.down = down;
        let is_up = self.down.is_none();
        self.with_link(now, |link, ours| link.set_up(now, is_up, ours));
    }

    pub fn set_mtu(&mut self, mtu: u32) {
        assert_no_worker_thread();
        self.has_changed |= self.mtu != mtu;
        self.mtu = mtu;
    }

    /// Adds an address. Returns `false` if there are too many.
    pub fn add_address(&mut self, now: Time, ip: IpAddr, prefix_len: u8) -> bool {
        let (origin, lifetimes) = (Origin::Configured, Lifetimes::default());
        let is_added = self.addresses.add(now, ip, prefix_len, origin, lifetimes);
        self.handle_address_events(now);
        is_added
    }

    pub fn remove_address(&mut self, now: Time, ip: IpAddr) {
        self.addresses.remove(ip);
        self.handle_address_events(now);
    }

    /// Handles changes of addresses. On Ethernet, a new address is probed before it is used
    /// (duplicate address detection).
    fn handle_address_events(&mut self, now: Time) {
        assert_no_worker_thread();
        while let Some(event) = self.addresses.poll_event() {
            let Self { ethernet, addresses, .. } = self;
            match (event, ethernet) {
                (AddressEvent::Tentative(ip), Some(ethernet)) => ethernet.claim(now, ip),
                (AddressEvent::Tentative(ip), None) => addresses.handle_assigned(now, ip),
                (AddressEvent::Duplicate(ip), Some(ethernet)) => {
                    ethernet.cede(now, ip, addresses);
                }
                (AddressEvent::Removed(ip), Some(ethernet)) => {
                    ethernet.disown(now, ip, addresses);
                }
                _ => {}
            }
            self.has_changed = true;
        }
    }

    /// Sets the addresses of all interfaces of the node. Returns whether they have changed.
    pub fn set_node_addresses(&mut self, all: &Arc<BTreeSet<IpAddr>>) -> bool {
        let is_new = !Arc::ptr_eq(self.addresses.of_node(), all);
        if is_new {
            self.addresses.set_of_node(Arc::clone(all));
            self.has_changed = true;
        }
        is_new
    }

    /// Sets the routes of the node, and the number of this interface in them.
    pub fn set_node_routes(&mut self, number: u16, routes: Arc<dyn NodeRoutes>) {
        self.icmp.share(routes.error_budget());
        (self.routing.number, self.routing.routes) = (number, Some(routes));
    }

    /// Handles a packet for this node, or of a link protocol.
    pub fn handle_packet(&mut self, now: Time, packet: &[u8]) {
        assert_no_worker_thread();
        if self.down.is_some() {
            return self.drops.count(PlainDrop::Down);
        }
        let Some((ether_type, destination, kind)) = classify(packet) else {
            return self.drops.count(PlainDrop::Malformed);
        };
        let is_group = self.ethernet.as_ref().is_some_and(|link| link.has_listener(destination));
        let is_ours = is_group
            || self.addresses.is_of_node(destination)
            || matches!(destination, IpAddr::V4(ip) if self.addresses.is_broadcast(ip));
        match kind {
            Kind::Discovery | Kind::Membership if self.ethernet.is_none() => {
                self.drops.count(PlainDrop::LinkProtocol);
            }
            Kind::Discovery => {
                self.with_link(now, |link, ours| link.handle_discovery(now, packet, ours));
            }
            Kind::Membership => {
                self.with_link(now, |link, _| link.handle_membership(now, ether_type, packet));
            }
            _ if !is_ours => self.drops.count(PlainDrop::Transit),
            Kind::EchoRequest => {
                if let Some(frame) = self.icmp.handle_echo(now, packet, &self.addresses) {
                    self.send_packet(now, frame.packet);
                }
            }
            Kind::Other => self.deliveries.push(Delivery { ether_type, packet: packet.to_vec() }),
        }
    }

    /// Handles a packet in transit that cannot be forwarded: sends an ICMP error to its sender.
    pub fn handle_rejected(&mut self, now: Time, packet: &[u8], error: IcmpError) {
        assert_no_worker_thread();
        self.send_icmp_error(now, packet, error);
    }

    /// Handles a packet to a port without a listener: answers with a TCP reset or an ICMP error.
    pub fn handle_no_listener(&mut self, now: Time, packet: &[u8]) {
        assert_no_worker_thread();
        match Answer::to(packet, &self.addresses) {
            Answer::Reset(reset) => self.send_packet(now, reset),
            Answer::NoPort => self.send_icmp_error(now, packet, IcmpError::NoPort),
            Answer::Nothing => {}
        }
    }

    /// Handles a packet in transit that is longer than the MTU: fragments it, or sends an ICMP
    /// error to its sender.
    pub fn handle_too_big(&mut self, now: Time, packet: Vec<u8>, hop: TransitHop) {
        assert_no_worker_thread();
        self.send_by_link(now, hop.next_hop, packet, Some(hop.from));
    }

    /// Handles a packet that another interface passes on: either to send here, or to send an ICMP
    /// error about it to its sender.
    pub fn handle_transfer(&mut self, now: Time, packet: Vec<u8>, kind: TransferKind) {
        assert_no_worker_thread();
        match kind {
            TransferKind::Forward(next_hop) => self.send_to(now, next_hop, packet),
            TransferKind::IcmpError(error) => self.send_icmp_error(now, &packet, error),
        }
    }

    pub fn send_packet(&mut self, now: Time, packet: Vec<u8>) {
        assert_no_worker_thread();
        let flow = self.routing.flow_of(&packet);
        self.route_by(now, packet, flow);
    }

    pub fn poll_frame(&mut self) -> Option<PlainFrame> {
        self.frames.pop()
    }

    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop()
    }

    pub fn poll_transfer(&mut self) -> Option<InterfaceTransfer> {
        self.routing.transfers.pop()
    }

    /// The state for workers, if it has changed since the last call.
    pub fn poll_state(&mut self) -> Option<PlainState> {
        if !std::mem::take(&mut self.has_changed) {
            return None;
        }
        let others = self.addresses.of_node().iter().copied();
        let own = self.addresses.iter().filter(|one| one.state.may_be_source()).map(|one| one.ip);
        Some(PlainState { own: own.chain(others).collect(), mtu: self.mtu })
    }

    /// Routes a packet by a flow hash. For an ICMP error, this is the hash of the packet that the
    /// error is about.
    fn route_by(&mut self, now: Time, packet: Vec<u8>, flow: u32) {
        let Some((ether_type, destination)) = destination(&packet) else {
            return self.drops.count(PlainDrop::Malformed);
        };
        if self.addresses.is_of_node(destination) {
            return self.deliveries.push(Delivery { ether_type, packet });
        }
        if destination.is_multicast() {
            return self.drops.count(PlainDrop::Multicast);
        }
        let routes = self.routing.routes.as_ref();
        match routes.map_or(NodeRoute::NoRoute, |routes| routes.route_to(destination, flow)) {
            NodeRoute::Link { interface, gateway } if interface == self.routing.number => {
                self.send_to(now, gateway.unwrap_or(destination), packet);
            }
            NodeRoute::Link { interface, gateway } => {
                let kind = TransferKind::Forward(gateway.unwrap_or(destination));
                self.routing.transfers.push(InterfaceTransfer { interface, packet, kind });
            }
            NodeRoute::Blackhole => self.drops.count(PlainDrop::Blackhole),
            NodeRoute::Rejected(error) => self.reject(now, &packet, error),
            NodeRoute::NoRoute if self.is_on_link(destination) => {
                self.send_to(now, destination, packet);
            }
            NodeRoute::NoRoute => self.reject(now, &packet, IcmpError::NoRoute),
        }
    }

    fn reject(&mut self, now: Time, packet: &[u8], error: IcmpError) {
        self.drops.count(PlainDrop::NoRoute);
        self.send_icmp_error(now, packet, error);
    }

    fn send_to(&mut self, now: Time, next_hop: IpAddr, packet: Vec<u8>) {
        self.send_by_link(now, next_hop, packet, None);
    }

    /// `from` is the interface where a packet in transit arrived.
    fn send_by_link(&mut self, now: Time, next_hop: IpAddr, packet: Vec<u8>, from: Option<u16>) {
        if self.down.is_some() {
            return self.drops.count(PlainDrop::Down);
        }
        for packet in self.fit(now, packet, from) {
            let Self { ethernet, addresses, .. } = self;
            match ethernet {
                None => self.frames.push(PlainFrame { packet, to: FrameTo::NextHop(next_hop) }),
                Some(ethernet) => ethernet.send(now, next_hop, packet, addresses),
            }
        }
        self.poll_link(now);
    }

    /// Fits a packet to the MTU. Returns the packet itself or its fragments, or nothing after an
    /// ICMP error to its sender.
    fn fit(&mut self, now: Time, packet: Vec<u8>, from: Option<u16>) -> Vec<Vec<u8>> {
        if packet.len() <= self.mtu as usize {
            return vec![packet];
        }
        let id = self.fragment_id;
        self.fragment_id = id.wrapping_add(1);
        fragments(&packet, self.mtu as usize, id).unwrap_or_else(|| {
            self.drops.count(PlainDrop::TooBig);
            let error = IcmpError::TooBig(self.mtu);
            if !from.is_some_and(|from| self.routing.transfer_error(from, &packet, error)) {
                self.send_icmp_error(now, &packet, error);
            }
            Vec::new()
        })
    }

    /// Sends an ICMP error about `packet` by the interface that leads to its sender.
    ///
    /// Why by the flow of `packet`: all interfaces of the node then select the same next hop, and
    /// the error has an address of the interface by which it leaves.
    fn send_icmp_error(&mut self, now: Time, packet: &[u8], error: IcmpError) {
        let Some(sender) = source(packet) else { return };
        let flow = self.routing.flow_of(packet);
        if let Some(interface) = self.routing.interface_to(sender, flow) {
            let (packet, kind) = (packet.to_vec(), TransferKind::IcmpError(error));
            return self.routing.transfers.push(InterfaceTransfer { interface, packet, kind });
        }
        let frame = self.icmp.error_about(now, packet, false, error, &self.addresses);
        if let Some(frame) = frame {
            self.route_by(now, frame.packet, flow);
        }
    }
}

impl PlainInterface {
    pub const fn is_up(&self) -> bool {
        self.down.is_none()
    }

    /// Why the interface is down; `None` if it is up.
    pub fn why_down(&self) -> Option<&str> {
        self.down.as_deref()
    }

    pub const fn since(&self) -> Time {
        self.since
    }

    /// In bytes.
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Our addresses at which the other interfaces of the node also accept packets.
    pub fn addresses_for_node(&self) -> impl Iterator<Item = IpAddr> {
        let all = self.addresses.iter().filter(|one| one.state.may_be_source());
        all.filter(|one| one.origin != Origin::LinkLocal).map(|one| one.ip)
    }

    pub const fn icmp_counters(&self) -> &IcmpCounters {
        self.icmp.counters()
    }

    pub const fn ethernet(&self) -> Option<&EthernetNeighbors> {
        self.ethernet.as_ref()
    }

    pub fn subnets(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let all = self.addresses.iter().filter(|one| one.origin != Origin::LinkLocal);
        all.map(|one| (one.ip, one.prefix_len))
    }

    pub fn leads_to(&self, destination: IpAddr) -> bool {
        self.is_on_link(destination) || self.routing.gateway(destination, 0).is_some()
    }

    fn is_on_link(&self, destination: IpAddr) -> bool {
        let is_link_local = matches!(destination, IpAddr::V6(ip) if ip.is_unicast_link_local());
        is_link_local && self.ethernet.is_some()
            || self.subnets().any(|subnet| is_in(destination, subnet))
    }

    /// All drop counters: protocol, reason and count.
    pub fn drop_rows(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let lost = [
            ("interface", "frames_full", self.frames.lost()),
            ("interface", "deliveries_full", self.deliveries.lost()),
            ("interface", "transfers_full", self.routing.transfers.lost()),
        ];
        let own = drop_rows("interface", &self.drops).chain(lost);
        let link = self.ethernet.iter().flat_map(EthernetNeighbors::drop_rows);
        own.chain(drop_rows("address", self.addresses.drops()))
            .chain(drop_rows("icmp", self.icmp.drops()))
            .chain(link)
    }
}
