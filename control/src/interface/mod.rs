//! An interface of IP over InfiniBand: its slow protocols tied together (RFC 4391, RFC 4755).
//!
//! ```text
//!   the port --> life: joined to the broadcast group, or why not
//!   misses   --> routes --> neighbors <--> ARP, neighbor discovery     --> frames
//!                               |
//!                             peers: a link address, however many IP addresses lead to it
//!                               |
//!                             paths, groups <--> the subnet administrator --> datagrams
//!                               |
//!                             actions: ways of peers, for whoever moves packets
//! ```
//!
//! There is no I/O here, and no clock. Whoever owns one calls a `handle_*`, then takes all that
//! `poll_*` has, actions first: a frame may go by a peer that an action makes. The queue of actions
//! has no limit of its own; one call makes a few for each peer and group at the most, and these
//! have limits.
//!
//! `life` says how an interface comes up and goes down, `resolution` how a packet finds its peer,
//! `groups` who hears what, `connect` when peers are connected to, `requests` whose requests for
//! connections are believed, `size` what becomes of packets that are too long, `lease` what a DHCP
//! server has to do with it; `questions` are those to the administrator, and `rows` shows it all.

mod action;
mod config;
mod connect;
mod groups;
mod inbound;
mod lease;
mod own;
mod paths;
mod peers;
mod requests;
mod resolution;
mod rows;
mod sa_queries;
mod size;
mod snapshot;
mod state;

pub use action::{
    Action, Adjacency, By, ConnectionKey, DatagramAdjacency, Delivery, From, Link, Outgoing,
    PeerKey, PortView, QueuePairEvent, Received, Worker,
};
pub use config::{GroupTerms, InterfaceConfig};
pub use lease::LeaseRow;
pub use rows::{GroupRow, InterfaceRow, Load, PathRow, PeerRow};
pub use snapshot::InterfaceSnapshot;
pub use state::InterfaceState;

use crate::address::{Addresses, NextHop, Routes};
use crate::arp::{Arp, ArpConfig};
use crate::bounded::Queue;
use crate::dhcp::{Dhcp, Lease};
use crate::drops::{Drops, reasons};
use crate::icmp::Icmp;
use crate::mad::{Envelope, MadAddress};
use crate::membership::Membership;
use crate::nd::{Nd, NdConfig};
use crate::neighbor::{NeighborConfig, Neighbors};
use crate::peer::Connections;
use crate::sa::SaClient;
use groups::Group;
use paths::Paths;
use peers::Peers;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::address::Gid;
use pollux_wire::ip::ipoib::EtherType;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::mgid::GroupId;
use pollux_wire::keys::PKey;
use pollux_wire::mad::notice::TrapNumber;
use pollux_wire::mad::{MadHeader, MgmtClass};
use requests::Requests;
use sa_queries::{Purpose, SaQueries};
use state::PortBinding;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

reasons! {
    /// Why a packet was dropped, or something not done.
    pub enum InterfaceDrop {
        /// The interface is not up.
        Down = "down",
        /// It is no whole packet of its type.
        Malformed = "malformed",
        /// It is for somebody else, and nothing is forwarded here.
        Transit = "transit",
        /// Nobody knows the way.
        NoRoute = "no_route",
        /// The next hop does not answer, or there is no path to it.
        Unreachable = "unreachable",
        /// It is longer than what the way takes.
        TooBig = "too_big",
        /// It made room for a later one that waits for the same path or group.
        PendingFull = "pending_full",
        /// Its peer was forgotten while it waited.
        PeerGone = "peer_gone",
        /// Nobody is in the group, and there is no group of all routers to send it to.
        NoGroup = "no_group",
        /// The group could not be joined.
        GroupRefused = "group_refused",
        /// There are too many groups.
        GroupsFull = "groups_full",
        /// There is no address of ours to ask from.
        NoSource = "no_source",
        /// Too many questions to the subnet administrator wait.
        QueriesFull = "queries_full",
        /// An address of ours beyond what resolution has room for.
        AddressesFull = "addresses_full",
        /// Another node says that it has an address of ours.
        AddressContested = "address_contested",
        /// Somebody says where an address is that is not on the link, or that is everyone's.
        ClaimOffLink = "claim_off_link",
        /// It claims to be from an interface or a port that it does not come from, as far as known.
        Imposter = "imposter",
        /// A request for a connection whose port is not known yet: too many of these wait, from
        /// its LID or in all. It will come again.
        RequestPutOff = "request_put_off",
        /// A request for a connection, and the administrator did not say where its port is.
        RequestUnverified = "request_unverified",
        /// A path that no peer of ours goes by had no room.
        PathsFull = "paths_full",
        /// A datagram of a class that nobody here speaks.
        UnknownClass = "unknown_class",
    }
}

/// A packet on its way to a peer or a group.
#[derive(Clone, Debug)]
struct PendingPacket {
    ether_type: EtherType,
    packet: Vec<u8>,
    /// It goes by datagram whatever connections there are: it is resolution's (RFC 4755 3).
    by_datagram: bool,
    /// Who had no way for it.
    worker: Worker,
}

/// An interface.
pub struct Interface {
    config: InterfaceConfig,
    port: Option<PortView>,
    binding: Option<PortBinding>,
    state: InterfaceState,
    since: Time,
    sa: SaClient,
    sa_queries: SaQueries,
    /// When to subscribe again to notices that the administrator did not want to give.
    subscriptions: BTreeMap<TrapNumber, Time>,
    addresses: Addresses,
    routes: Routes,
    /// Addresses that the mover knows as ours, with the lengths of their prefixes.
    owned: BTreeMap<IpAddr, u8>,
    /// Addresses that nobody is asked about before we hear their groups.
    undetected: BTreeSet<Ipv6Addr>,
    neighbors: Neighbors<PendingPacket>,
    arp: Arp,
    nd: Nd,
    membership: Membership,
    icmp: Icmp,
    /// Names the next packet that goes in parts.
    part_id: u16,
    /// Who asks for an address, if one is to be asked for, once the port is known.
    dhcp: Option<Dhcp>,
    dhcp_seed: u64,
    /// What routes have because of a server.
    lease: Option<Lease>,
    groups: BTreeMap<GroupId, Group>,
    paths: Paths,
    requests: Requests,
    peers: Peers,
    connections: Connections,
    keys: u64,
    actions: VecDeque<Action>,
    frames: Queue<Outgoing>,
    deliveries: Queue<Delivery>,
    drops: Drops<InterfaceDrop>,
}

impl Interface {
    /// An interface at a port of which nothing is known yet.
    pub fn new(now: Time, config: InterfaceConfig, seed: u64) -> Self {
        let mut rng = SeededRng::secret(seed);
        let link = LinkAddress { qpn: config.qpn, ..LinkAddress::default() };
        let arp = ArpConfig { link, cedes: config.cedes };
        let nd = NdConfig {
            link,
            is_router: config.is_router,
            detections: config.detections,
            retry_after: config.neighbor.retry_after,
        };
        let neighbor = NeighborConfig { connected_mode: config.peer.is_on(), ..config.neighbor };
        let mut interface = Self {
            port: None,
            binding: None,
            state: InterfaceState::NoPort,
            since: now,
            sa: SaClient::new(config.sa, rng.split()),
            sa_queries: SaQueries::default(),
            subscriptions: BTreeMap::new(),
            addresses: Addresses::new(),
            routes: Routes::new(),
            owned: BTreeMap::new(),
            undetected: BTreeSet::new(),
            neighbors: Neighbors::new(neighbor, rng.next_u64()),
            arp: Arp::new(arp, rng.next_u64()),
            nd: Nd::new(nd, rng.next_u64()),
            membership: Membership::new(rng.next_u64()),
            icmp: Icmp::new(&config.icmp),
            part_id: rng.next_u64() as u16,
            dhcp: None,
            dhcp_seed: rng.next_u64(),
            lease: None,
            groups: BTreeMap::new(),
            paths: Paths::default(),
            requests: Requests::default(),
            peers: Peers::default(),
            connections: Connections::new(config.peer.clone(), config.workers, rng.next_u64()),
            keys: 0,
            actions: VecDeque::new(),
            // One turn may ask every neighbor something.
            frames: Queue::new(config.packets_max + config.neighbor.entries_max),
            deliveries: Queue::new(config.packets_max),
            drops: Drops::default(),
            config,
        };
        interface.configure(now);
        interface
    }

    /// The port is like this now.
    pub fn handle_port(&mut self, now: Time, port: &PortView) {
        self.apply_port(now, port);
        self.pump(now);
    }

    /// The subnet manager has forgotten who joined what, or is another one: what it kept for us is
    /// asked for anew (IBA 15.4.1, 14.4.11).
    pub fn handle_reregister(&mut self, now: Time) {
        self.sa.handle_sm_change(now, self.administrator());
        self.renew(now);
        self.pump(now);
    }

    /// The interface is taken down, or up again, by whoever runs it.
    pub fn set_open(&mut self, now: Time, is_open: bool) {
        match is_open {
            true => self.open(now),
            false => self.close(now),
        }
        self.pump(now);
    }

    /// A management datagram came. Where several interfaces share a port, those of connection
    /// management are for the one of their partition; those of administration for whoever asked,
    /// which whoever moves them tells by the upper half of the transaction id.
    pub fn handle_mad(&mut self, now: Time, envelope: &Envelope) {
        let header = MadHeader::parse(envelope.mad.first_chunk().unwrap_or(&[0; MadHeader::LEN]));
        match header.mgmt_class {
            MgmtClass::SUBN_ADM => self.sa.handle_mad(now, envelope),
            MgmtClass::COMM_MGT => self.handle_cm_mad(now, envelope),
            _ => self.drops.count(InterfaceDrop::UnknownClass),
        }
        self.pump(now);
    }

    /// A packet of this host has no way yet from a worker: it is for the next hop that our own
    /// routes name.
    pub fn handle_miss(&mut self, now: Time, from: Worker, packet: Vec<u8>) {
        let worker = from.min(Worker(self.config.workers.saturating_sub(1)));
        self.route(now, PendingPacket { worker, ..PendingPacket::of(packet) });
        self.pump(now);
    }

    /// A packet has no way yet to a next hop that somebody else has chosen.
    pub fn handle_miss_to(&mut self, now: Time, next_hop: IpAddr, packet: Vec<u8>) {
        self.send_to(now, next_hop, PendingPacket::of(packet));
        self.pump(now);
    }

    /// A packet was longer than the way of its worker takes: if the lead's does not take it either,
    /// whoever sent it is told (RFC 4755 7.2).
    pub fn handle_too_big(&mut self, now: Time, packet: &[u8], mtu: u32) {
        self.too_big(now, packet, mtu);
        self.pump(now);
    }

    /// What became of a connection's queue pair.
    pub fn handle_connection(&mut self, now: Time, key: ConnectionKey, event: &QueuePairEvent) {
        self.handle_queue_pair_event(now, key, event);
        self.pump(now);
    }

    /// Packets went to a next hop without asking here.
    pub fn handle_use(&mut self, now: Time, next_hop: IpAddr) {
        self.neighbors.handle_use(now, next_hop);
        self.pump(now);
    }

    /// Something above heard from a neighbor what it only could have said after hearing us.
    pub fn handle_confirmation(&mut self, now: Time, next_hop: IpAddr) {
        self.neighbors.handle_confirmation(now, next_hop);
        self.pump(now);
    }

    /// Somebody here listens to a group. `false` if it is none, or there are too many.
    pub fn join(&mut self, now: Time, group: IpAddr) -> bool {
        let is_joined = self.membership.join(now, group);
        self.pump(now);
        is_joined
    }

    /// Somebody who listened does so no more.
    pub fn leave(&mut self, now: Time, group: IpAddr) {
        self.membership.leave(now, group);
        self.pump(now);
    }

    /// Where packets to a destination go next.
    pub fn next_hop(&self, now: Time, destination: IpAddr) -> Option<NextHop> {
        if matches!(destination, IpAddr::V4(ip) if self.addresses.is_broadcast(ip)) {
            return Some(NextHop::Group(destination));
        }
        self.routes.next_hop(now, destination, |ip| self.neighbors.may_be_reachable(ip))
    }

    /// Our addresses.
    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Does what is due by now.
    pub fn handle_timeout(&mut self, now: Time) {
        self.sa.handle_timeout(now);
        self.requests.handle_timeout(now);
        self.handle_state_timeout(now);
        self.retry_groups(now);
        self.retry_subscriptions(now);
        self.addresses.handle_timeout(now);
        self.routes.handle_timeout(now);
        self.connections.handle_timeout(now);
        if let Some(dhcp) = &mut self.dhcp {
            dhcp.handle_timeout(now);
        }
        if self.is_up() {
            self.neighbors.handle_timeout(now);
            self.arp.handle_timeout(now);
            self.nd.handle_timeout(now);
            self.membership.handle_timeout(now);
        }
        self.pump(now);
    }

    /// When something is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let always = [
            self.sa.poll_timeout(),
            self.state.due(),
            self.addresses.poll_timeout(),
            self.routes.poll_timeout(),
            self.connections.poll_timeout(),
            self.dhcp.as_ref().and_then(Dhcp::poll_timeout),
        ];
        let when_up = [
            self.groups.values().filter_map(Group::due).min(),
            self.subscriptions.values().min().copied(),
            self.neighbors.poll_timeout(),
            self.arp.poll_timeout(),
            self.nd.poll_timeout(),
            self.membership.poll_timeout(),
        ];
        let when_up = when_up.into_iter().filter(|_| self.is_up());
        always.into_iter().chain(when_up).flatten().min()
    }

    /// The next thing to do at the device and in the tables.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next management datagram to send.
    pub fn poll_mad(&mut self) -> Option<Envelope> {
        self.sa.poll_transmit().or_else(|| self.connections.poll_mad())
    }

    /// The next packet to send.
    pub fn poll_frame(&mut self) -> Option<Outgoing> {
        self.frames.pop()
    }

    /// The next packet for local sockets.
    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop()
    }

    /// Takes from each protocol what it has to say, and tells the others, until all are silent.
    fn pump(&mut self, now: Time) {
        loop {
            let has_progress = self.handle_sa_events(now)
                | self.handle_address_events(now)
                | self.handle_resolution_events(now)
                | self.handle_membership_events(now)
                | self.handle_dhcp_events(now)
                | self.handle_connection_events(now);
            if !has_progress {
                return;
            }
        }
    }

    fn administrator(&self) -> Option<MadAddress> {
        let port = self.port.as_ref().filter(|port| port.sm_lid.is_unicast())?;
        Some(MadAddress::gsi(port.sm_lid, port.sm_sl, PKey::DEFAULT))
    }

    /// Where we are on the link.
    fn link_address(&self) -> LinkAddress {
        let gid = self.binding.map_or(Gid::NONE, |binding| binding.gid);
        let (rc, uc) = self.config.peer.offers();
        LinkAddress { rc, uc, qpn: self.config.qpn, gid }
    }

    fn new_key(&mut self) -> u64 {
        self.keys += 1;
        self.keys
    }
}

impl PendingPacket {
    /// An IP packet that goes as packets do.
    fn of(packet: Vec<u8>) -> Self {
        let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
        let ether_type = if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 };
        Self { ether_type, packet, by_datagram: false, worker: Worker::LEAD }
    }
}
