//! The simplest data path of an interface, which panics at invalid actions.

use pollux_control::ipoib::{
    Action, Adjacency, By, ConnectionKey, DatagramAdjacency, LinkProperties, OutgoingPacket,
    PeerKey, QueuePairEvent, WorkerId,
};
use pollux_verbs::{QpState, QpType, transition};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::psn::Psn;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The device's and the tables' side of an interface.
#[derive(Default)]
pub struct PortDriver {
    pub link: Option<LinkProperties>,
    pub attached: BTreeMap<Gid, Lid>,
    pub own: BTreeSet<IpAddr>,
    /// Workers beside worker 0. An action without a worker is for all of them.
    pub secondary_workers: u8,
    pub peers: BTreeMap<(PeerKey, WorkerId), Adjacency>,
    pub bound: BTreeMap<IpAddr, PeerKey>,
    pub groups: BTreeMap<Gid, PeerKey>,
    pub connections: BTreeMap<ConnectionKey, QueuePair>,
    /// Events for control.
    pub events: Vec<(ConnectionKey, QueuePairEvent)>,
    /// Queue pairs made so far, by which the next has its number.
    pub made: u32,
    /// Queue pairs cannot be made.
    pub is_out_of_queue_pairs: bool,
}

/// A connection's queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePair {
    pub worker: WorkerId,
    pub qpn: Qpn,
    pub qp_type: QpType,
    pub state: QpState,
    pub dest_qp: Option<Qpn>,
    /// The first PSNs to receive and to send.
    pub rq_psn: Option<Psn>,
    pub sq_psn: Option<Psn>,
    pub rnr_retry: Option<u8>,
}

impl PortDriver {
    /// Does what control wants; panics where that makes no sense.
    pub fn act(&mut self, action: Action) {
        match action {
            Action::Start(link) => self.link = Some(link),
            Action::Stop => {
                assert!(self.link.take().is_some(), "stopped though not started");
                assert!(self.attached.is_empty(), "attached: {:?}", self.attached);
                assert!(self.peers.is_empty(), "peers: {:?}", self.peers);
                assert!(self.own.is_empty(), "own: {:?}", self.own);
            }
            Action::Attach { mgid, mlid } => {
                assert!(self.link.is_some(), "attached before it is started");
                assert_eq!(self.attached.insert(mgid, mlid), None, "attached twice");
            }
            Action::Detach { mgid, mlid } => {
                assert_eq!(self.attached.remove(&mgid), Some(mlid), "detached, not attached");
            }
            Action::AddOwn(ip) => assert!(self.own.insert(ip), "{ip} twice"),
            Action::RemoveOwn(ip) => assert!(self.own.remove(&ip), "{ip} is not ours"),
            Action::SetPeer { worker, peer, adjacency } => self.set_peer(worker, peer, adjacency),
            Action::RemovePeer { peer } => {
                let bound: Vec<_> = self.bound.iter().filter(|(_, to)| **to == peer).collect();
                assert!(bound.is_empty(), "still bound: {bound:?}");
                assert!(self.groups.values().all(|to| *to != peer), "a group is still bound");
                self.assert_known_to_all(peer);
                self.peers.retain(|(known, _), _| *known != peer);
            }
            Action::Bind { ip, peer } => {
                self.assert_known_to_all(peer);
                self.bound.insert(ip, peer);
            }
            Action::Unbind { ip } => assert!(self.bound.remove(&ip).is_some(), "{ip} not bound"),
            Action::BindGroup { mgid, peer } => {
                self.assert_known_to_all(peer);
                self.groups.insert(mgid, peer);
            }
            Action::UnbindGroup { mgid } => {
                assert!(self.groups.remove(&mgid).is_some(), "the group is not bound");
            }
            Action::Connect { worker, connection, qp_type, .. } => {
                self.connect(worker, connection, qp_type);
            }
            Action::Modify { connection, attributes, .. } => {
                // One whose queue pair failed meanwhile is not changed any more.
                let Some(qp) = self.connections.get_mut(&connection) else { return };
                if qp.state != QpState::Err {
                    qp.state = transition::check(qp.qp_type, qp.state, &attributes).unwrap();
                    qp.dest_qp = attributes.dest_qp.or(qp.dest_qp);
                    qp.rq_psn = attributes.rq_psn.or(qp.rq_psn);
                    qp.sq_psn = attributes.sq_psn.or(qp.sq_psn);
                    qp.rnr_retry = attributes.rnr_retry.map(|it| it.get()).or(qp.rnr_retry);
                }
            }
            Action::Disconnect { connection, .. } => {
                if self.connections.remove(&connection).is_some() {
                    self.events.push((connection, QueuePairEvent::Ended));
                }
            }
        }
    }

    fn set_peer(&mut self, worker: WorkerId, peer: PeerKey, adjacency: Adjacency) {
        assert!(worker.0 <= self.secondary_workers, "{worker:?} is not there");
        if let Adjacency::Connected { connection, .. } = adjacency
            && let Some(own) = self.connections.get(&connection)
        {
            assert_eq!(own.worker, worker, "by a connection of another worker");
        }
        self.peers.insert((peer, worker), adjacency);
    }

    fn assert_known_to_all(&self, peer: PeerKey) {
        for worker in (0..=self.secondary_workers).map(WorkerId) {
            assert!(self.peers.contains_key(&(peer, worker)), "{worker:?} does not know {peer:?}");
        }
    }

    fn connect(&mut self, worker: WorkerId, key: ConnectionKey, qp_type: QpType) {
        assert!(worker.0 <= self.secondary_workers, "{worker:?} is not there");
        if self.is_out_of_queue_pairs {
            return self.events.push((key, QueuePairEvent::Failed));
        }
        self.made += 1;
        let qpn = Qpn(self.made);
        let queue_pair = QueuePair {
            worker,
            qpn,
            qp_type,
            state: QpState::Init,
            dest_qp: None,
            rq_psn: None,
            sq_psn: None,
            rnr_retry: None,
        };
        self.connections.insert(key, queue_pair);
        self.events.push((key, QueuePairEvent::Made { qpn }));
    }

    /// The queue pair failed.
    pub fn fail(&mut self, key: ConnectionKey) {
        if let Some(qp) = self.connections.get_mut(&key) {
            qp.state = QpState::Err;
            self.events.push((key, QueuePairEvent::Failed));
        }
    }

    /// The datagram adjacency of a worker's packet.
    pub fn adjacency(
        &self,
        worker: WorkerId,
        outgoing: &OutgoingPacket,
    ) -> Option<DatagramAdjacency> {
        match outgoing.by {
            By::Datagram(adjacency) => Some(adjacency),
            By::Peer(peer) => match self.peers.get(&(peer, worker))? {
                Adjacency::Datagram(adjacency) => Some(*adjacency),
                _ => None,
            },
        }
    }

    /// The connection of a worker's packet.
    pub fn connection(&self, worker: WorkerId, outgoing: &OutgoingPacket) -> Option<ConnectionKey> {
        let By::Peer(peer) = outgoing.by else { return None };
        match self.peers.get(&(peer, worker))? {
            Adjacency::Connected { connection, .. } => Some(*connection),
            _ => None,
        }
    }

    /// Whether the UD queue pair receives packets to a LID and a queue pair, or to a group.
    pub fn hears(&self, qpn: Qpn, adjacency: &DatagramAdjacency) -> bool {
        let Some(link) = &self.link else { return false };
        match (adjacency.qpn, adjacency.vector.grh) {
            (Qpn::MULTICAST, Some(grh)) => {
                self.attached.get(&grh.dgid) == Some(&adjacency.vector.dlid)
            }
            _ => adjacency.qpn == qpn && link.lid.covers(link.lmc, adjacency.vector.dlid),
        }
    }
}
