//! The neighbors of an Ethernet interface: address resolution, and duplicate detection of our
//! addresses (RFC 826, RFC 5227, RFC 4861, RFC 4862).
//!
//! ```text
//!   packets --> neighbor cache --> frames with the address of the neighbor
//!                  |    ^
//!        questions v    | answers
//!               ARP, neighbor discovery --> our addresses are assigned, or are duplicates
//! ```
//!
//! The protocols are the same as on InfiniBand. An IP group maps to an Ethernet group address,
//! which every switch delivers without a join. IGMP and MLD report groups to multicast routers and
//! snooping switches.
//!
//! Router advertisements are ignored, because an interface of a router has its addresses from the
//! configuration (RFC 4861 6.2.7).

mod events;
#[cfg(test)]
mod tests;

use crate::address::Addresses;
use crate::arp::{Arp, Probes};
use crate::bounded::BoundedQueue;
use crate::membership::{ALL_SYSTEMS, InterfaceGroups};
use crate::nd::{ALL_NODES, DETECTIONS, Nd, NdConfig, solicited_node};
use crate::neighbor::{NeighborConfig, NeighborRow, Neighbors, Resolution};
use crate::output::drop_rows;
use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ethernet::{EtherType, MacAddress};
use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Queued frames, at most, in addition to a solicitation of each neighbor.
const FRAMES_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub struct EthernetConfig {
    pub address: MacAddress,
    pub ipv6: bool,
    /// Static neighbors.
    pub neighbors: Vec<(IpAddr, MacAddress)>,
    pub cache: NeighborConfig,
}

impl EthernetConfig {
    pub fn new(address: MacAddress) -> Self {
        let cache = NeighborConfig { connected_mode: false, ..NeighborConfig::default() };
        Self { address, ipv6: true, neighbors: Vec::new(), cache }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingFrame {
    pub to: MacAddress,
    pub ether_type: EtherType,
    /// The packet, without the header of the link.
    pub packet: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EthernetEvent {
    Assigned(IpAddr),
    /// Another node has this address, at this link address if it is known.
    Duplicate(IpAddr, Option<MacAddress>),
    Unreachable(Vec<u8>),
}

reasons! {
    pub enum EthernetDrop {
        Unreachable = "unreachable",
        NeighborGone = "neighbor_gone",
        NoSource = "no_source",
        /// A claim about an address that is off-link or a broadcast address.
        ClaimOffLink = "claim_off_link",
        AddressContested = "address_contested",
        /// An address of ours exceeds the limit of ARP or neighbor discovery.
        AddressesFull = "addresses_full",
    }
}

pub struct EthernetNeighbors {
    config: EthernetConfig,
    is_up: bool,
    neighbors: Neighbors<Vec<u8>, MacAddress>,
    arp: Arp<MacAddress>,
    nd: Nd<MacAddress>,
    membership: InterfaceGroups,
    solicited: BTreeSet<Ipv6Addr>,
    frames: BoundedQueue<OutgoingFrame>,
    events: VecDeque<EthernetEvent>,
    changes: VecDeque<(IpAddr, Option<MacAddress>)>,
    drops: Drops<EthernetDrop>,
}

impl EthernetNeighbors {
    pub fn new(now: Time, config: EthernetConfig, seed: u64) -> Self {
        let mut rng = SeededRng::secret(seed);
        let (link, cache) = (config.address, config.cache.clone());
        let nd = NdConfig { link, detections: DETECTIONS, retry_after: cache.retry_after };
        let mut membership = InterfaceGroups::new(rng.next_u64());
        membership.join(now, ALL_SYSTEMS.into());
        if config.ipv6 {
            membership.join(now, ALL_NODES.into());
        }
        Self {
            is_up: false,
            // One call may solicit every neighbor.
            frames: BoundedQueue::new(FRAMES_MAX + cache.entries_max),
            neighbors: Neighbors::new(cache, rng.next_u64()),
            arp: Arp::new(link, rng.next_u64()),
            nd: Nd::new(nd, rng.next_u64()),
            membership,
            solicited: BTreeSet::new(),
            events: VecDeque::new(),
            changes: VecDeque::new(),
            drops: Drops::default(),
            config,
        }
    }

    pub const fn address(&self) -> MacAddress {
        self.config.address
    }

    /// Handles a change of the link. When it comes up, our addresses are claimed. When it goes
    /// down, all neighbors are removed, because the link may come back with other nodes.
    pub fn set_up(&mut self, now: Time, is_up: bool, ours: &Addresses) {
        if self.is_up == is_up {
            return;
        }
        self.is_up = is_up;
        if is_up {
            for (ip, address) in self.config.neighbors.clone() {
                self.neighbors.set_permanent(now, ip, address);
            }
            ours.iter().for_each(|one| self.claim(now, one.ip));
        } else {
            ours.iter().for_each(|one| self.stop_claiming(one.ip));
            self.neighbors.flush();
            for (ip, _) in self.config.neighbors.clone() {
                self.neighbors.remove(ip);
            }
        }
        self.pump(now, ours);
    }

    /// Starts duplicate address detection for an address.
    pub fn claim(&mut self, now: Time, ip: IpAddr) {
        if !self.is_up {
            return;
        }
        let is_claimed = match ip {
            IpAddr::V4(ip) => self.arp.add(now, ip, Probes::Full),
            IpAddr::V6(ip) => {
                let group = solicited_node(ip);
                if self.config.ipv6 && self.solicited.insert(group) {
                    self.membership.join(now, group.into());
                }
                self.config.ipv6 && self.nd.add(now, ip, false)
            }
        };
        if !is_claimed {
            self.drops.count(EthernetDrop::AddressesFull);
        }
    }

    pub fn disown(&mut self, now: Time, ip: IpAddr, ours: &Addresses) {
        self.stop_claiming(ip);
        let IpAddr::V6(ip) = ip else { return };
        let group = solicited_node(ip);
        let is_shared = ours.iter().any(|one| match one.ip {
            IpAddr::V6(other) => other != ip && solicited_node(other) == group,
            IpAddr::V4(_) => false,
        });
        if !is_shared && self.solicited.remove(&group) {
            self.membership.leave(now, group.into());
        }
    }

    /// Handles a conflict: another node has the address. An IPv4 address is probed again later, an
    /// IPv6 address stays unused (RFC 4862 5.4.5).
    pub fn cede(&mut self, now: Time, ip: IpAddr, ours: &Addresses) {
        self.disown(now, ip, ours);
        if let IpAddr::V4(ip) = ip {
            self.arp.retry(now, ip);
        }
    }

    fn stop_claiming(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.arp.remove(ip),
            IpAddr::V6(ip) => self.nd.remove(ip),
        }
    }

    pub fn send(&mut self, now: Time, next_hop: IpAddr, packet: Vec<u8>, ours: &Addresses) {
        self.resolve(now, next_hop, packet, ours);
        self.pump(now, ours);
    }

    /// Handles a report that workers sent packets to a next hop.
    pub fn handle_use(&mut self, now: Time, next_hop: IpAddr, ours: &Addresses) {
        self.neighbors.handle_use(now, next_hop);
        self.pump(now, ours);
    }

    pub fn handle_arp(&mut self, now: Time, packet: &[u8], ours: &Addresses) {
        self.arp.handle_packet(now, packet);
        self.pump(now, ours);
    }

    pub fn handle_discovery(&mut self, now: Time, packet: &[u8], ours: &Addresses) {
        if self.config.ipv6 {
            self.nd.handle_packet(packet);
            self.pump(now, ours);
        }
    }

    pub fn handle_membership(&mut self, now: Time, ether_type: EtherType, packet: &[u8]) {
        match ether_type {
            EtherType::IPV4 => self.membership.handle_igmp(now, packet),
            _ => self.membership.handle_mld(now, packet),
        }
    }

    pub fn has_listener(&self, group: IpAddr) -> bool {
        self.membership.has_listener(group)
    }

    /// Sets a static neighbor. Returns `false` if the table is full.
    pub fn set_neighbor(
        &mut self,
        now: Time,
        ip: IpAddr,
        address: MacAddress,
        ours: &Addresses,
    ) -> bool {
        self.config.neighbors.retain(|(other, _)| *other != ip);
        self.config.neighbors.push((ip, address));
        let is_set = !self.is_up || self.neighbors.set_permanent(now, ip, address);
        self.pump(now, ours);
        is_set
    }

    /// Removes a static neighbor. The next packet to it starts address resolution.
    pub fn remove_neighbor(&mut self, now: Time, ip: IpAddr, ours: &Addresses) {
        self.config.neighbors.retain(|(other, _)| *other != ip);
        self.neighbors.remove(ip);
        self.pump(now, ours);
    }

    pub fn handle_timeout(&mut self, now: Time, ours: &Addresses) {
        if self.is_up {
            self.neighbors.handle_timeout(now);
            self.arp.handle_timeout(now);
            self.nd.handle_timeout(now);
            self.membership.handle_timeout(now);
            self.pump(now, ours);
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let all = [
            self.neighbors.poll_timeout(),
            self.arp.poll_timeout(),
            self.nd.poll_timeout(),
            self.membership.poll_timeout(),
        ];
        all.into_iter().flatten().min().filter(|_| self.is_up)
    }

    pub fn poll_frame(&mut self) -> Option<OutgoingFrame> {
        self.frames.pop()
    }

    pub fn poll_event(&mut self) -> Option<EthernetEvent> {
        self.events.pop_front()
    }

    /// The next change for workers: a next hop with its link address, or `None` if the address is
    /// no longer known.
    pub fn poll_change(&mut self) -> Option<(IpAddr, Option<MacAddress>)> {
        self.changes.pop_front()
    }

    pub fn rows_after(&self, ip: Option<IpAddr>) -> impl Iterator<Item = NeighborRow<MacAddress>> {
        self.neighbors.rows_after(ip)
    }

    pub fn pending(&self) -> usize {
        self.neighbors.load().1
    }

    /// All drop counters: protocol, reason and count.
    pub fn drop_rows(&self) -> Vec<(&'static str, &'static str, u64)> {
        let own =
            drop_rows("ethernet", &self.drops).chain(drop_rows("neighbor", self.neighbors.drops()));
        let protocols = drop_rows("arp", self.arp.drops()).chain(drop_rows("nd", self.nd.drops()));
        let lost = [
            ("ethernet", "frames_full", self.frames.lost()),
            ("arp", "queue_full", self.arp.lost()),
            ("nd", "queue_full", self.nd.lost()),
        ];
        let membership = drop_rows("membership", self.membership.drops());
        own.chain(protocols).chain(membership).chain(lost).collect()
    }
}

impl EthernetNeighbors {
    fn resolve(&mut self, now: Time, next_hop: IpAddr, packet: Vec<u8>, ours: &Addresses) {
        let is_broadcast = matches!(next_hop, IpAddr::V4(ip) if ours.is_broadcast(ip));
        let group = MacAddress::of_ip_group(next_hop);
        if let Some(to) = group.or(is_broadcast.then_some(MacAddress::BROADCAST)) {
            return self.push(to, packet);
        }
        match self.neighbors.resolve(now, next_hop, packet) {
            Resolution::Known(to, packet) => self.push(to, packet),
            Resolution::Waits => {}
            Resolution::Unreachable(packet) => self.unreachable(packet),
        }
    }

    fn push(&mut self, to: MacAddress, packet: Vec<u8>) {
        let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
        let ether_type = if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 };
        self.frames.push(OutgoingFrame { to, ether_type, packet });
    }

    fn unreachable(&mut self, packet: Vec<u8>) {
        self.drops.count(EthernetDrop::Unreachable);
        self.events.push_back(EthernetEvent::Unreachable(packet));
    }

    /// Passes events between the protocols until there are none.
    fn pump(&mut self, now: Time, ours: &Addresses) {
        self.set_sources(ours);
        loop {
            let mut has_progress = false;
            while let Some(event) = self.neighbors.poll_event() {
                has_progress = true;
                self.handle_neighbor_event(event);
            }
            while let Some(question) = self.neighbors.poll_transmit() {
                has_progress = true;
                self.solicit(question, ours);
                // The queues of ARP and ND are shorter than that of solicitations, so their frames
                // are sent after each solicitation.
                self.send_frames(now, ours);
            }
            while let Some(event) = self.arp.poll_event() {
                has_progress = true;
                self.handle_arp_event(now, event, ours);
            }
            while let Some(event) = self.nd.poll_event() {
                has_progress = true;
                self.handle_nd_event(now, event, ours);
            }
            if !(self.send_frames(now, ours) | has_progress) {
                return;
            }
        }
    }
}
