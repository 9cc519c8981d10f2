//! Connection setup on demand, and packets that wait for a connection.
//!
//! A packet to a peer that offers connected mode starts a connection of the worker that has the
//! packet, if the policy wants one. Until the connection is open, datagrams carry packets that fit;
//! longer packets wait for a while, because an ICMP error (packet too big) lowers the path MTU for
//! minutes.

use super::{ConnectionKey, IpoibInterface, PeerKey, PortView, QueuePairEvent, WorkerId};
use crate::cm::LocalPort;
use crate::ipoib::connected::{ConnectionRow, LocalEnd, Pause, PeerState};
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;

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

    pub(super) fn handle_queue_pair_event(
        &mut self,
        now: Time,
        key: ConnectionKey,
        event: &QueuePairEvent,
    ) {
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
                // Its address may have changed (RFC 4391 9.4).
                QueuePairEvent::Failed => self.neighbors.handle_stale_hint(now, ip),
                _ => {}
            }
        }
    }

    pub(super) fn local_end(&self) -> Option<LocalEnd> {
        let (link, port) = self.link().zip(self.port.as_ref())?;
        let PortView { number, lid, lmc, .. } = *port;
        let port = LocalPort { number, lid, lmc, gids: port.gids.clone() };
        let (p_key, pkey_index) = (self.config.p_key, link.pkey_index);
        let datagram_mtu = link.mtu;
        Some(LocalEnd { link: self.link_address(), p_key, pkey_index, port, datagram_mtu })
    }

    pub(super) fn peer_state_of(&self, key: PeerKey, worker: WorkerId) -> PeerState {
        let link = self.peers.all.get(&key).map(|peer| peer.link);
        link.map_or(PeerState::Idle, |link| self.connections.peer_state(&link, worker))
    }

    /// The kind of connection that a peer offers and that our policy for it wants.
    pub(super) fn wants_connection(&self, key: PeerKey) -> Option<QpType> {
        let peer = self.peers.all.get(&key).filter(|_| self.config.peer.is_on())?;
        let own = peer.ips.iter().find_map(|ip| self.config.policies.get(ip));
        own.unwrap_or(&self.config.peer.policy).wants(&peer.link)
    }

    /// Connects to a peer for which a worker has a packet, if the policy wants a connection.
    pub(super) fn connect_to_peer(&mut self, now: Time, key: PeerKey, worker: WorkerId) {
        let Some(qp_type) = self.wants_connection(key) else { return };
        let Some(link) = self.peers.all.get(&key).map(|peer| peer.link) else { return };
        if let Some(Ok(path)) = self.path_to(now, link.gid, Some(key)) {
            self.connections.connect(now, &link, worker, qp_type, &path);
            self.handle_connection_events(now);
        }
    }

    /// Whether a packet too long for a datagram may soon go by the connection of the primary
    /// worker.
    pub(super) fn is_connecting(&self, now: Time, key: PeerKey) -> bool {
        match self.peer_state_of(key, WorkerId::PRIMARY) {
            PeerState::UnderWay(since) => now < since + self.config.peer.long_packet_timeout,
            _ => false,
        }
    }

    pub fn connection_rows(&self) -> impl Iterator<Item = ConnectionRow> {
        self.connections.rows()
    }

    pub fn pause_of(&self, peer: &LinkAddress, worker: WorkerId) -> Option<Pause> {
        self.connections.pause_of(peer, worker)
    }
}
