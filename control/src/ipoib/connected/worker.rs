//! Workers and connections: how packets of each worker of ours go to a peer, whether the worker
//! requests a connection, and which worker gets a connection that the peer requests.
//!
//! A connection has an *asking worker*: the worker that sent the REQ, by its index at that side.
//! The private data of the REQ carry the index where there are several workers ([`AskingWorker`]);
//! a REQ without it counts as worker 0. By the asking worker both ends agree, however many workers
//! each has, which two REQs cross and which connection replaces another.
//!
//! Where both ends have the same number of workers, the asking worker has the same index at either
//! end. Where the peer has more, its index modulo our number of workers selects ours. If one number
//! divides the other, a worker pair then carries the same flows in both directions. A connection
//! that Linux requests only receives, and packets of any flow, so the worker with the fewest
//! connections gets it.
//!
//! The connection of the primary worker is requested first, whichever worker has a packet. Control
//! sends by the primary worker, so its connection can carry the packets that other workers cannot
//! send. So all workers reach even a peer that accepts only one connection: their packets go by
//! datagram if they fit. Longer packets go through control and the primary worker's connection,
//! which is slower, so short packets may overtake them.

use super::pause::Attempt;
use super::{Address, Connections, PeerState};
use crate::effects::WorkerId;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::Req;
use pollux_wire::mad::cm::ipoib::{AskingWorker, Dialect};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempts {
    pub(super) attempt: Attempt,
    /// Failed attempts in a row.
    pub(super) failures: u32,
    /// How many of these were refusals.
    pub(super) refusals: u32,
    /// The peer rejected the service ID of the other convention in this round of attempts.
    pub(super) has_refused_one: bool,
}

impl Connections {
    /// The state of a peer for a worker. For an idle worker it is the state of the primary worker,
    /// unless that has an open connection.
    pub fn peer_state(&self, peer: &LinkAddress, worker: WorkerId) -> PeerState {
        let of = |worker| self.peer_state_of(peer.comparison_form(), worker);
        match (of(worker), of(WorkerId::PRIMARY)) {
            (PeerState::Idle, PeerState::Open { .. }) => PeerState::Idle,
            (PeerState::Idle, primary) => primary,
            (own, _) => own,
        }
    }

    fn peer_state_of(&self, peer: Address, worker: WorkerId) -> PeerState {
        // The newest first: older ones may have ended at the peer.
        let all = self.all.of_peer(peer).rev();
        let mut serving = all.filter(|(_, it)| it.worker == worker && it.serves_us());
        if let Some((connection, it)) = serving.clone().find(|(_, it)| self.may_send(it)) {
            return PeerState::Open { connection, mtu: it.mtu };
        }
        if serving.clone().any(|(_, it)| it.is_open()) {
            return PeerState::Paused;
        }
        match self.attempt(peer, worker) {
            Attempt::Paused(_) => PeerState::Paused,
            // A connection that the peer requested serves as well.
            Attempt::Idle | Attempt::UnderWay(_) => serving
                .find(|(_, it)| it.is_under_way())
                .map_or(PeerState::Idle, |(_, it)| PeerState::UnderWay(it.since)),
        }
    }

    /// The worker for which to request a connection, when `worker` has a packet; `None` if nothing
    /// is to be requested.
    pub(super) fn first_to_ask(&self, peer: &LinkAddress, worker: WorkerId) -> Option<WorkerId> {
        if self.peer_state(peer, worker) != PeerState::Idle {
            return None;
        }
        let primary = self.peer_state_of(peer.comparison_form(), WorkerId::PRIMARY);
        Some(if primary == PeerState::Idle { WorkerId::PRIMARY } else { worker })
    }

    pub(super) fn attempt(&self, peer: Address, worker: WorkerId) -> Attempt {
        let all = self.peers.get(&peer).map(|peer| &peer.attempts);
        let own = all.and_then(|all| all.get(usize::from(worker.0)));
        own.map_or(Attempt::Idle, |own| own.attempt)
    }

    pub(super) fn set_attempt(&mut self, address: Address, worker: WorkerId, attempt: Attempt) {
        let Some(attempts) = self.attempts_mut(address, worker) else { return };
        let before = std::mem::replace(&mut attempts.attempt, attempt);
        if let Some(due) = before.due() {
            self.due.remove(&(due, address, worker));
        }
        if let Some(due) = attempt.due() {
            self.due.insert((due, address, worker));
        }
        self.changed.push_back(LinkAddress::parse(&address));
    }

    pub(super) fn attempts_mut(
        &mut self,
        peer: Address,
        worker: WorkerId,
    ) -> Option<&mut Attempts> {
        self.peers.get_mut(&peer)?.attempts.get_mut(usize::from(worker.0))
    }

    pub(super) fn workers(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (0..self.workers).map(WorkerId)
    }

    /// The worker extension of a REQ's private data; none with a single worker.
    pub(super) fn asking(&self, worker: WorkerId) -> Option<AskingWorker> {
        (self.workers > 1).then_some(AskingWorker::new(worker.0, self.workers))
    }

    /// The worker of ours that gets a requested connection.
    pub(super) fn worker_for(&self, req: &Req) -> WorkerId {
        if !matches!(Dialect::of(req.service_id), Some((Dialect::Linux, _))) {
            return WorkerId(asking_worker(req) % self.workers);
        }
        let live = |worker: &WorkerId| (self.all.of_worker(*worker).live, *worker);
        self.workers().min_by_key(live).unwrap_or(WorkerId::PRIMARY)
    }

    pub(super) fn is_full(&self, worker: WorkerId) -> bool {
        self.all.of_worker(worker).total() >= self.config.connections_max
    }
}

/// The index of the peer's worker that sent a REQ.
pub(super) fn asking_worker(req: &Req) -> u8 {
    AskingWorker::of(&req.private_data).map_or(0, |asking| asking.worker)
}
