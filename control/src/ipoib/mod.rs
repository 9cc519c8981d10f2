//! An IPoIB interface: its control-plane protocols tied together (RFC 4391, RFC 4755).
//!
//! ```text
//!   port       --> state: joined to the broadcast group, or the reason why not
//!   punted     --> routes --> neighbors <--> ARP, neighbor discovery      --> frames
//!   packets                     |
//!                             peers: a link address, with all IP addresses that lead to it
//!                               |
//!                             paths, groups <--> subnet administrator     --> datagrams
//!                               |
//!                             actions: adjacencies of peers, for the data path
//! ```
//!
//! There is no I/O and no clock here. The caller calls a `handle_*`, then drains all `poll_*`,
//! actions first: a frame may need an adjacency that an action creates. The queue of actions has no
//! limit of its own. A call adds a few actions for each peer and group at most, and peers and
//! groups have limits.
//!
//! Modules in reading order: `config`, `state` (the interface comes up and goes down: P_Key change,
//! client reregister, broadcast join retry), `sa_queries`, `groups` (multicast groups of the link),
//! `group_users` (listeners and multicast routes), `paths`, `peers` (adjacencies and connections),
//! `resolution` (from a packet to its peer), `out_of_service` (neighbors that have left), `beyond`
//! (routes of the node), `inbound` (received packets), `size` (packets longer than the MTU), `own`
//! (our addresses), `lease` (DHCP), `requests` (verification of REQs), `reconfigure` (settings that
//! change), `rows` and `snapshot` (the state, for operators and for workers).

mod beyond;
mod config;
pub mod connected;
mod group_users;
mod groups;
mod inbound;
mod lease;
mod out_of_service;
mod own;
mod paths;
mod peers;
mod reconfigure;
mod requests;
mod resolution;
mod rows;
mod sa_queries;
mod size;
mod snapshot;
mod state;

pub use crate::effects::{
    Action, Adjacency, By, ConnectionKey, DatagramAdjacency, Delivery, LinkProperties,
    OutgoingPacket, PacketSource, PeerKey, PortView, QueuePairEvent, ReceivedPacket, WorkerId,
};
pub use config::{GroupTerms, InterfaceConfig};
pub use lease::LeaseRow;
pub use out_of_service::NeighborChange;
pub use rows::{GROUP_STATES, GroupRow, InterfaceRow, Load, PathRow, PeerRow};
pub use snapshot::InterfaceSnapshot;
pub use state::{InterfaceState, PortBinding};

use crate::address::{Addresses, HostRoutes, NextHop};
use crate::arp::Arp;
use crate::beyond::{NodeRouting, TransitHop};
use crate::bounded::BoundedQueue;
use crate::dhcp::{Dhcp, DhcpLease};
use crate::icmp::Icmp;
use crate::ipoib::connected::Connections;
use crate::mad::{Envelope, MadAddress};
use crate::membership::InterfaceGroups;
use crate::nd::{DETECTIONS, Nd, NdConfig};
use crate::neighbor::{NeighborConfig, Neighbors};
use crate::sa::SaClient;
use crate::thread_check::assert_no_worker_thread;
use group_users::GroupUsers;
use groups::Group;
use out_of_service::OutOfService;
use paths::Paths;
use peers::Peers;
use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::mgid::GroupId;
use pollux_wire::keys::PKey;
use pollux_wire::mad::notice::TrapNumber;
use pollux_wire::mad::{MadHeader, MgmtClass};
use requests::Requests;
use sa_queries::{Purpose, SaQueries};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

reasons! {
    pub enum InterfaceDrop {
        Down = "down",
        Malformed = "malformed",
        /// The destination is another host, and this interface does not forward.
        Transit = "transit",
        NoRoute = "no_route",
        /// A route of the node drops the packet silently.
        Blackhole = "blackhole",
        /// The next hop does not answer, or there is no path to it.
        Unreachable = "unreachable",
        /// The packet is longer than the MTU of its adjacency.
        TooBig = "too_big",
        /// A later packet for the same path or group replaced the packet in a full queue.
        PendingFull = "pending_full",
        PeerGone = "peer_gone",
        /// The group does not exist, and neither does the group of all routers.
        NoGroup = "no_group",
        GroupRefused = "group_refused",
        GroupsFull = "groups_full",
        NoSource = "no_source",
        QueriesFull = "queries_full",
        /// An address of ours exceeds the limit of ARP or neighbor discovery.
        AddressesFull = "addresses_full",
        AddressContested = "address_contested",
        /// An advertisement for an address that is off-link or a broadcast address.
        ClaimOffLink = "claim_off_link",
        /// The sender is not the interface or port that the message names.
        Imposter = "imposter",
        /// A REQ from an unverified port, beyond the limit of its LID or the total limit. The
        /// sender repeats the REQ.
        RequestPutOff = "request_put_off",
        /// A REQ from a port to which the SA returned no path.
        RequestUnverified = "request_unverified",
        /// The path table was full, and the new path was not for a peer.
        PathsFull = "paths_full",
        UnknownClass = "unknown_class",
    }
}

#[derive(Clone, Debug)]
struct PendingPacket {
    ether_type: EtherType,
    packet: Vec<u8>,
    /// It is an ARP or ND packet: it goes by datagram, even to a connected peer (RFC 4755 3).
    by_datagram: bool,
    /// The worker that punted the packet.
    worker: WorkerId,
    /// The interface where the packet arrived, if it is in transit.
    from: Option<u16>,
}

pub struct IpoibInterface {
    config: InterfaceConfig,
    port: Option<PortView>,
    state: InterfaceState,
    since: Time,
    sa: SaClient,
    sa_queries: SaQueries,
    /// When to retry subscriptions that the SA refused.
    subscriptions: BTreeMap<TrapNumber, Time>,
    addresses: Addresses,
    routes: HostRoutes,
    /// Addresses that the data path accepts as ours, with their prefix lengths.
    owned: BTreeMap<IpAddr, u8>,
    /// Addresses that must join their groups before duplicate address detection starts.
    undetected: BTreeSet<Ipv6Addr>,
    neighbors: Neighbors<PendingPacket>,
    arp: Arp,
    nd: Nd,
    membership: InterfaceGroups,
    group_users: GroupUsers,
    icmp: Icmp,
    /// The identification of the next packet that we fragment.
    part_id: u16,
    /// The DHCP client, if configured, once the port is known.
    dhcp: Option<Dhcp>,
    dhcp_seed: u64,
    /// The DHCP lease in use, for our address and routers.
    lease: Option<DhcpLease>,
    groups: BTreeMap<GroupId, Group>,
    paths: Paths,
    requests: Requests,
    peers: Peers,
    connections: Connections,
    out_of_service: OutOfService,
    keys: u64,
    actions: VecDeque<Action>,
    frames: BoundedQueue<OutgoingPacket>,
    deliveries: BoundedQueue<Delivery>,
    routing: NodeRouting,
    drops: Drops<InterfaceDrop>,
}

impl IpoibInterface {
    pub fn new(now: Time, config: InterfaceConfig, seed: u64) -> Self {
        let mut rng = SeededRng::secret(seed);
        let link = LinkAddress { qpn: config.qpn, ..LinkAddress::default() };
        let nd =
            NdConfig { link, detections: DETECTIONS, retry_after: config.neighbor.retry_after };
        let neighbor = NeighborConfig { connected_mode: config.peer.is_on(), ..config.neighbor };
        let mut interface = Self {
            port: None,
            state: InterfaceState::NoPort,
            since: now,
            sa: SaClient::new(config.sa, rng.split()),
            sa_queries: SaQueries::default(),
            subscriptions: BTreeMap::new(),
            addresses: Addresses::default(),
            routes: HostRoutes::default(),
            owned: BTreeMap::new(),
            undetected: BTreeSet::new(),
            neighbors: Neighbors::new(neighbor, rng.next_u64()),
            arp: Arp::new(link, rng.next_u64()),
            nd: Nd::new(nd, rng.next_u64()),
            membership: InterfaceGroups::new(rng.next_u64()),
            group_users: GroupUsers::default(),
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
            out_of_service: OutOfService::default(),
            keys: 0,
            actions: VecDeque::new(),
            // One call may solicit every neighbor.
            frames: BoundedQueue::new(config.packets_max + config.neighbor.entries_max),
            deliveries: BoundedQueue::new(config.packets_max),
            routing: NodeRouting::new(),
            drops: Drops::default(),
            config,
        };
        interface.configure(now);
        interface
    }

    /// Handles a change of the port: state, LID, GIDs, P_Key table or subnet manager.
    pub fn handle_port(&mut self, now: Time, port: &PortView) {
        assert_no_worker_thread();
        self.apply_port(now, port);
        self.pump(now);
    }

    /// Handles a client reregister: the subnet manager lost its records or is another one, so
    /// groups and subscriptions are requested again (IBA 15.4.1, 14.4.11).
    pub fn handle_reregister(&mut self, now: Time) {
        assert_no_worker_thread();
        self.sa.handle_sm_change(now, self.administrator());
        self.renew(now);
        self.pump(now);
    }

    pub fn set_open(&mut self, now: Time, is_open: bool) {
        assert_no_worker_thread();
        match is_open {
            true => self.open(now),
            false => self.close(now),
        }
        self.pump(now);
    }

    /// Handles a management datagram. Where several interfaces share a port, the caller passes CM
    /// datagrams to the interface of their partition, and SA replies to the interface that the
    /// upper half of the transaction ID names.
    pub fn handle_mad(&mut self, now: Time, envelope: &Envelope) {
        assert_no_worker_thread();
        let header = MadHeader::parse(envelope.mad.first_chunk().unwrap_or(&[0; MadHeader::LEN]));
        match header.mgmt_class {
            MgmtClass::SUBN_ADM => self.sa.handle_mad(now, envelope),
            MgmtClass::COMM_MGT => self.handle_cm_mad(now, envelope),
            _ => self.drops.count(InterfaceDrop::UnknownClass),
        }
        self.pump(now);
    }

    /// Handles a packet of this host that a worker punts without an adjacency. Our routes choose
    /// the next hop.
    pub fn handle_miss(&mut self, now: Time, from: WorkerId, packet: Vec<u8>) {
        assert_no_worker_thread();
        let worker = from.min(WorkerId(self.config.workers.saturating_sub(1)));
        self.route(now, PendingPacket { worker, ..PendingPacket::of(packet) });
        self.pump(now);
    }

    /// Handles a packet in transit that a worker punts: the next hop has no adjacency, or the
    /// packet is longer than `mtu`. The worker has chosen the next hop by the flow.
    pub fn handle_transit(
        &mut self,
        now: Time,
        worker: WorkerId,
        packet: Vec<u8>,
        hop: TransitHop,
        mtu: Option<u32>,
    ) {
        assert_no_worker_thread();
        let worker = worker.min(WorkerId(self.config.workers.saturating_sub(1)));
        let from = Some(hop.from);
        let pending = PendingPacket { worker, from, ..PendingPacket::of(packet) };
        match mtu {
            None => self.send_to(now, hop.next_hop, pending),
            Some(mtu) => self.too_big(now, pending, Some(hop.next_hop), mtu),
        }
        self.pump(now);
    }

    /// Handles a packet longer than the MTU of its worker's adjacency. If the packet does not fit
    /// the adjacency of the primary worker either, its sender gets an ICMP error (RFC 4755 7.2).
    pub fn handle_too_big(&mut self, now: Time, packet: &[u8], mtu: u32) {
        assert_no_worker_thread();
        self.too_big(now, PendingPacket::of(packet.to_vec()), None, mtu);
        self.pump(now);
    }

    /// Handles a report that the fast path sent packets to a next hop.
    pub fn handle_use(&mut self, now: Time, next_hop: IpAddr) {
        assert_no_worker_thread();
        self.neighbors.handle_use(now, next_hop);
        self.pump(now);
    }

    /// Handles progress of TCP with a destination: its next hop is reachable (RFC 4861 7.3.1).
    pub fn handle_progress(&mut self, now: Time, destination: IpAddr) {
        assert_no_worker_thread();
        if let Some(NextHop::OnLink(ip) | NextHop::Via(ip)) = self.next_hop(now, destination) {
            self.neighbors.handle_confirmation(now, ip);
            self.pump(now);
        }
    }

    /// The next hop of a destination, or the first of several.
    pub fn next_hop(&self, now: Time, destination: IpAddr) -> Option<NextHop> {
        self.next_hop_of(now, destination, 0)
    }

    fn next_hop_of(&self, now: Time, destination: IpAddr, flow: u32) -> Option<NextHop> {
        if matches!(destination, IpAddr::V4(ip) if self.addresses.is_broadcast(ip)) {
            return Some(NextHop::Group(destination));
        }
        let is_group = destination.is_multicast();
        if let Some(gateway) = self.routing.gateway(destination, flow).filter(|_| !is_group) {
            return Some(gateway.map_or(NextHop::OnLink(destination), NextHop::Via));
        }
        self.routes.next_hop(now, destination, |ip| self.neighbors.may_be_reachable(ip))
    }

    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub fn handle_timeout(&mut self, now: Time) {
        assert_no_worker_thread();
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

    pub fn poll_action(&mut self) -> Option<Action> {
        assert_no_worker_thread();
        self.actions.pop_front()
    }

    pub fn poll_mad(&mut self) -> Option<Envelope> {
        self.sa.poll_transmit().or_else(|| self.connections.poll_mad())
    }

    pub fn poll_frame(&mut self) -> Option<OutgoingPacket> {
        self.frames.pop()
    }

    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop()
    }

    /// Passes events between the protocols until none is left.
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

    fn link_address(&self) -> LinkAddress {
        let (rc, uc) = self.config.peer.offers();
        LinkAddress { rc, uc, qpn: self.config.qpn, gid: self.port_gid() }
    }

    fn new_key(&mut self) -> u64 {
        self.keys += 1;
        self.keys
    }
}

impl PendingPacket {
    /// An IP packet for the adjacency of the primary worker.
    fn of(packet: Vec<u8>) -> Self {
        let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
        let ether_type = if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 };
        let worker = WorkerId::PRIMARY;
        Self { ether_type, packet, by_datagram: false, worker, from: None }
    }
}
