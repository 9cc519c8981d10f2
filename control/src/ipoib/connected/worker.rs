//! Workers and connections: how packets of each of our workers go to a peer, whether the worker
//! asks for a connection, and which worker gets a connection that the peer asks for.
//!
//! A connection belongs to its *asking worker*: the index of the worker that sent the REQ, among
//! the workers of that side. The private data of the REQ carries that index where there are
//! several workers ([`AskingWorker`]); a REQ without it counts as worker 0. So both ends agree,
//! however many workers each has, which two requests cross and which connection replaces another:
//! those with the same asking worker.
//!
//! Where both ends have the same number of workers, the asking worker has the same index at either
//! end. Where the peer has more, its index modulo our number of workers is ours, so that the flows
//! of both are the same as far as one number divides the other. A connection from Linux only
//! brings packets, of any flow: the worker with the fewest connections gets it.
//!
//! The primary worker's connection is asked for first, whichever worker has a packet: it carries
//! what other workers cannot send, because the primary worker sends the packets of control. So a
//! peer that accepts only one connection is still reached by all workers: their packets go by
//! datagram, and those too long for one by way of control and the primary worker's connection,
//! which is slower, so that short packets may overtake them.

use super::pause::Attempt;
use super::{Address, Connections, PeerState};
use crate::effects::WorkerId;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::Req;
use pollux_wire::mad::cm::ipoib::{AskingWorker, Dialect};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempts {
    pub(super) attempt: Attempt,
    /// Failed ones in a row, and how many of them were refusals.
    pub(super) failures: u32,
    pub(super) refusals: u32,
    /// The peer refused the service ID of the other dialect in this round of attempts.
    pub(super) has_refused_one: bool,
}

impl Connections {
    /// The state of a peer for a worker. A worker without a connection has the state of the primary
    /// worker while that has none either.
    pub fn peer_state(&self, peer: &LinkAddress, worker: WorkerId) -> PeerState {
        let of = |worker| self.peer_state_of(peer.comparison_form(), worker);
        match (of(worker), of(WorkerId::PRIMARY)) {
            (PeerState::Idle, PeerState::Open { .. }) => PeerState::Idle,
            (PeerState::Idle, primary) => primary,
            (own, _) => own,
        }
    }

    fn peer_state_of(&self, peer: Address, worker: WorkerId) -> PeerState {
        // The newest one: older ones may not exist at the other end any more.
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
            // A connection that the peer has requested serves as well.
            Attempt::Idle | Attempt::UnderWay(_) => serving
                .find(|(_, it)| it.is_under_way())
                .map_or(PeerState::Idle, |(_, it)| PeerState::UnderWay(it.since)),
        }
    }

    /// The worker to request a connection for when a worker has a packet, if any.
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

    /// The worker extension of a request; none with a single worker.
    pub(super) fn asking(&self, worker: WorkerId) -> Option<AskingWorker> {
        (self.workers > 1).then_some(AskingWorker::new(worker.0, self.workers))
    }

    /// The local worker of a request.
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

/// Which of its workers a peer asks for.
pub(super) fn asking_worker(req: &Req) -> u8 {
    AskingWorker::of(&req.private_data).map_or(0, |asking| asking.worker)
}
