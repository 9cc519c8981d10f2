//! Peers: the interfaces on the link that packets go to. A peer has one key, however many IP
//! addresses lead to it (RFC 4755 2.3).
//!
//! A peer exists while a neighbor has its link address. Link addresses that differ only in flags
//! are of one peer. Packets wait here until the adjacency of the peer is resolved.
//!
//! Each worker has its own adjacency to a peer, because each has its own connections. Control sends
//! with the adjacency of the primary worker.
//!
//! A packet to a peer that offers connected mode starts a connection of the worker that sends the
//! packet, if the policy wants one. Until the connection is open, datagrams carry the packets that
//! fit. Longer packets wait for a while, because an ICMP error (packet too big) would lower the
//! path MTU for minutes.

use super::{
    Action, Adjacency, By, ConnectionKey, DatagramAdjacency, InterfaceDrop, IpoibInterface,
    OutgoingPacket, PeerKey, PendingPacket, QueuePairEvent, WorkerId,
};
use crate::ipoib::connected::PeerState;
use crate::thread_check::assert_no_worker_thread;
use pollux_verbs::time::Time;
use pollux_verbs::{AddressVector, QpType};
use pollux_wire::address::{Gid, Qpn};
use pollux_wire::ip::ipoib::ip_mtu;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::sa::PathRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

pub(super) struct Peer {
    pub(super) link: LinkAddress,
    pub(super) ips: BTreeSet<IpAddr>,
    adjacencies: Vec<Adjacency>,
    pub(super) datagram: Option<DatagramAdjacency>,
    pub(super) since: Time,
    pub(super) pending: VecDeque<PendingPacket>,
}

impl Peer {
    /// The adjacency of the primary worker, which all packets of control use.
    pub(super) fn adjacency(&self) -> Adjacency {
        self.adjacency_of(WorkerId::PRIMARY)
    }

    fn adjacency_of(&self, worker: WorkerId) -> Adjacency {
        self.adjacencies.get(usize::from(worker.0)).copied().unwrap_or(Adjacency::Unknown)
    }
}

#[derive(Default)]
pub(super) struct Peers {
    pub(super) all: BTreeMap<PeerKey, Peer>,
    /// By [`LinkAddress::comparison_form`].
    by_link: BTreeMap<[u8; LinkAddress::LEN], PeerKey>,
}

impl Peers {
    pub(super) fn find(&self, link: &LinkAddress) -> Option<PeerKey> {
        self.by_link.get(&link.comparison_form()).copied()
    }

    fn insert(&mut self, key: PeerKey, peer: Peer) {
        self.by_link.insert(peer.link.comparison_form(), key);
        self.all.insert(key, peer);
    }

    fn remove(&mut self, key: PeerKey) -> Option<Peer> {
        let peer = self.all.remove(&key)?;
        self.by_link.remove(&peer.link.comparison_form());
        Some(peer)
    }
}

impl IpoibInterface {
    pub(super) fn bind(&mut self, now: Time, ip: IpAddr, link: LinkAddress) {
        let key = match self.peers.find(&link) {
            Some(key) => key,
            None => {
                let key = PeerKey(self.new_key());
                let peer = Peer {
                    link,
                    ips: BTreeSet::new(),
                    adjacencies: self.workers().map(|_| Adjacency::Pending).collect(),
                    datagram: None,
                    since: now,
                    pending: VecDeque::new(),
                };
                self.peers.insert(key, peer);
                self.publish_adjacency(key, Adjacency::Pending);
                key
            }
        };
        if let Some(peer) = self.peers.all.get_mut(&key) {
            peer.link = link;
            peer.ips.insert(ip);
        }
        self.actions.push_back(Action::Bind { ip, peer: key });
        self.connections.handle_neighbor(now, &link);
        self.update_adjacencies(now, key);
    }

    /// Unbinds an address. A peer without an address is removed.
    pub(super) fn unbind(&mut self, now: Time, ip: IpAddr, link: &LinkAddress) {
        let Some(key) = self.peers.find(link) else { return };
        let Some(peer) = self.peers.all.get_mut(&key) else { return };
        if !peer.ips.remove(&ip) {
            return;
        }
        let is_gone = peer.ips.is_empty();
        self.actions.push_back(Action::Unbind { ip });
        if is_gone && let Some(peer) = self.peers.remove(key) {
            peer.pending.iter().for_each(|_| self.drops.count(InterfaceDrop::PeerGone));
            self.forget_path_of(key, peer.link.gid);
            self.connections.forget(now, &peer.link);
            self.actions.push_back(Action::RemovePeer { peer: key });
        }
    }

    pub(super) fn send_to_peer(&mut self, now: Time, link: &LinkAddress, pending: PendingPacket) {
        let Some(key) = self.peers.find(link) else {
            return self.drops.count(InterfaceDrop::PeerGone);
        };
        let Some(peer) = self.peers.all.get_mut(&key) else { return };
        let adjacencies =
            [WorkerId::PRIMARY, pending.worker].map(|worker| peer.adjacency_of(worker));
        if adjacencies
            .iter()
            .any(|adjacency| matches!(adjacency, Adjacency::Unknown | Adjacency::Pending))
        {
            // A path may exist now, or needs a query.
            self.update_adjacencies(now, key);
            if !pending.by_datagram {
                self.connect_to_peer(now, key, pending.worker);
            }
        }
        let waits_if_too_big = self.is_connecting(now, key);
        let Some(peer) = self.peers.all.get_mut(&key) else { return };
        match (peer.adjacency(), peer.datagram) {
            (_, Some(adjacency)) if pending.by_datagram => {
                self.send_datagram(now, pending, adjacency);
            }
            (Adjacency::Datagram(adjacency), _)
                if pending.packet.len() <= adjacency.mtu as usize =>
            {
                self.send_by_peer(now, key, pending, adjacency.mtu);
            }
            (Adjacency::Datagram(adjacency), _) if !waits_if_too_big => {
                self.send_by_peer(now, key, pending, adjacency.mtu);
            }
            (Adjacency::Unknown, Some(adjacency)) => self.send_datagram(now, pending, adjacency),
            // Address resolution never uses a connection (RFC 4755 3.1).
            (Adjacency::Connected { .. }, None) if pending.by_datagram => {
                self.send_to_link(now, link.gid, link.qpn, pending);
            }
            (Adjacency::Connected { mtu, .. }, _) => self.send_by_peer(now, key, pending, mtu),
            (Adjacency::Pending | Adjacency::Datagram(_), _) => {
                if peer.pending.len() >= self.config.pending_per_destination_max {
                    peer.pending.pop_front();
                    self.drops.count(InterfaceDrop::PendingFull);
                }
                peer.pending.push_back(pending);
            }
            (Adjacency::Unknown | Adjacency::Unreachable, _) => self.unreachable(now, &pending),
        }
    }

    /// Sends a reply by datagram, to a queue pair that need not be a peer. The datagram waits until
    /// the path is known (RFC 4755 3.1).
    pub(super) fn send_to_link(&mut self, now: Time, gid: Gid, qpn: Qpn, pending: PendingPacket) {
        match self.path_to(now, gid, None) {
            Some(Ok(record)) => {
                let adjacency = self.datagram_adjacency(&record, qpn);
                self.send_datagram(now, pending, adjacency);
            }
            Some(Err(_)) => self.unreachable(now, &pending),
            None => self.wait_for_path(gid, qpn, pending),
        }
    }

    /// Updates the adjacency of each worker, and sends pending packets.
    pub(super) fn update_adjacencies(&mut self, now: Time, key: PeerKey) {
        let Some(LinkAddress { gid, qpn, .. }) = self.peers.all.get(&key).map(|peer| peer.link)
        else {
            return;
        };
        let datagram = self.path_to(now, gid, Some(key));
        let datagram =
            datagram.map(|path| path.map(|record| self.datagram_adjacency(&record, qpn)));
        let fallback = datagram.and_then(Result::ok);
        let wants_connection = self.wants_connection(key).is_some();
        let adjacency_by = |standing| match (standing, datagram) {
            (PeerState::Open { connection, mtu }, _) => {
                Adjacency::Connected { connection, mtu, fallback }
            }
            // Control must see the next packet, because it starts a connection.
            (PeerState::Idle, Some(Ok(_))) if wants_connection => Adjacency::Unknown,
            (_, Some(Ok(adjacency))) => Adjacency::Datagram(adjacency),
            (_, Some(Err(_))) => Adjacency::Unknown,
            (_, None) => Adjacency::Pending,
        };
        let adjacencies =
            self.workers().map(|worker| (worker, adjacency_by(self.peer_state_of(key, worker))));
        let adjacencies: Vec<_> = adjacencies.collect();
        let Some(peer) = self.peers.all.get_mut(&key) else { return };
        peer.datagram = fallback;
        for (known, (worker, adjacency)) in peer.adjacencies.iter_mut().zip(adjacencies) {
            if *known != adjacency {
                (*known, peer.since) = (adjacency, now);
                self.actions.push_back(Action::SetPeer { worker, peer: key, adjacency });
            }
        }
        if peer.adjacency() != Adjacency::Pending {
            let link = peer.link;
            for pending in std::mem::take(&mut peer.pending) {
                self.send_to_peer(now, &link, pending);
            }
        }
    }

    /// Handles the eviction of the path that a peer may wait for: the next packet to the peer sends
    /// a query again.
    pub(super) fn give_up_waiting(&mut self, key: PeerKey) {
        let Some(peer) = self.peers.all.get_mut(&key) else { return };
        if peer.adjacency() == Adjacency::Pending {
            let lost = std::mem::take(&mut peer.pending).len();
            (0..lost).for_each(|_| self.drops.count(InterfaceDrop::PendingFull));
        }
        for (worker, adjacency) in (0..).map(WorkerId).zip(&mut peer.adjacencies) {
            if *adjacency == Adjacency::Pending {
                *adjacency = Adjacency::Unknown;
                self.actions.push_back(Action::SetPeer {
                    worker,
                    peer: key,
                    adjacency: *adjacency,
                });
            }
        }
    }

    fn workers(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (0..self.config.workers.max(1)).map(WorkerId)
    }

    /// Sets the same adjacency for all workers.
    pub(super) fn publish_adjacency(&mut self, peer: PeerKey, adjacency: Adjacency) {
        let updates = self.workers().map(|worker| Action::SetPeer { worker, peer, adjacency });
        self.actions.extend(updates);
    }

    fn send_by_peer(&mut self, now: Time, key: PeerKey, pending: PendingPacket, mtu: u32) {
        let PendingPacket { ether_type, packet, from, .. } = pending;
        for packet in self.fit(now, packet, from, mtu) {
            self.frames.push(OutgoingPacket { ether_type, packet, by: By::Peer(key) });
        }
    }

    /// The adjacency of datagrams along a path, with a GRH if the path has hops (IBA 15.2.5.16).
    /// The MTU is that of the link, which the broadcast group sets (RFC 4391 5), or of the path if
    /// that is less.
    fn datagram_adjacency(&self, record: &PathRecord, qpn: Qpn) -> DatagramAdjacency {
        let link_mtu = self.link().map_or(0, |link| link.mtu);
        let path_mtu = ip_mtu(record.mtu.bytes().unwrap_or(0) as u32);
        let (port, lmc) =
            self.state.binding().map_or((1, 0), |binding| (binding.port, binding.lmc));
        let vector = AddressVector::along(record, port, lmc);
        DatagramAdjacency { vector, qpn, mtu: link_mtu.min(path_mtu) }
    }
}

/// Connections to peers.
impl IpoibInterface {
    /// Handles actions and changes of connections; returns whether there were any.
    pub(super) fn handle_connection_events(&mut self, now: Time) -> bool {
        let mut has_progress = false;
        loop {
            while let Some(action) = self.connections.poll_action() {
                has_progress = true;
                self.actions.push_back(action);
            }
            while let Some(gid) = self.connections.poll_path_query() {
                has_progress = true;
                self.ask_paths(now, gid);
            }
            while let Some(link) = self.connections.poll_suspected() {
                has_progress = true;
                let key = self.peers.find(&link);
                let peer = key.and_then(|key| self.peers.all.get(&key));
                for ip in peer.into_iter().flat_map(|peer| &peer.ips) {
                    self.neighbors.handle_stale_hint(now, *ip);
                }
            }
            let Some(link) = self.connections.poll_changed() else { return has_progress };
            has_progress = true;
            if let Some(key) = self.peers.find(&link) {
                self.update_adjacencies(now, key);
            }
        }
    }

    pub fn handle_connection(&mut self, now: Time, key: ConnectionKey, event: &QueuePairEvent) {
        assert_no_worker_thread();
        let link = self.connections.peer_of(key);
        let key_of_peer = link.and_then(|link| self.peers.find(&link));
        let peer = key_of_peer.and_then(|peer| self.peers.all.get(&peer));
        let ips: Vec<_> = peer.into_iter().flat_map(|peer| peer.ips.iter().copied()).collect();
        self.connections.handle_event(now, key, event);
        if let (QueuePairEvent::Failed | QueuePairEvent::Migrated, Some(link)) = (event, link) {
            self.refresh_path(now, link.gid);
        }
        for ip in ips {
            match event {
                QueuePairEvent::Used { .. } => self.neighbors.handle_use(now, ip),
                // The peer's link address may have changed (RFC 4391 9.4).
                QueuePairEvent::Failed => self.neighbors.handle_stale_hint(now, ip),
                _ => {}
            }
        }
        self.pump(now);
    }

    /// The type of connection that a peer offers and our policy for the peer wants.
    pub(super) fn wants_connection(&self, key: PeerKey) -> Option<QpType> {
        let peer = self.peers.all.get(&key).filter(|_| self.config.peer.is_on())?;
        let own = peer.ips.iter().find_map(|ip| self.config.policies.get(ip));
        own.unwrap_or(&self.config.peer.policy).wants(&peer.link)
    }

    /// Connects to a peer for which a worker has a packet, if the policy wants a connection.
    fn connect_to_peer(&mut self, now: Time, key: PeerKey, worker: WorkerId) {
        let Some(qp_type) = self.wants_connection(key) else { return };
        let Some(link) = self.peers.all.get(&key).map(|peer| peer.link) else { return };
        if let Some(Ok(path)) = self.path_to(now, link.gid, Some(key)) {
            self.connections.connect(now, &link, worker, qp_type, &path);
            self.handle_connection_events(now);
        }
    }

    /// Whether a packet that is too long for a datagram may soon be sent by the connection of the
    /// primary worker.
    pub(super) fn is_connecting(&self, now: Time, key: PeerKey) -> bool {
        match self.peer_state_of(key, WorkerId::PRIMARY) {
            PeerState::UnderWay(since) => now < since + self.config.peer.long_packet_timeout,
            _ => false,
        }
    }

    fn peer_state_of(&self, key: PeerKey, worker: WorkerId) -> PeerState {
        let link = self.peers.all.get(&key).map(|peer| peer.link);
        link.map_or(PeerState::Idle, |link| self.connections.peer_state(&link, worker))
    }
}
