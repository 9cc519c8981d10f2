//! What is a peer's of each of our workers: how its packets go there, whether it asks for a
//! connection, and which worker gets one that the peer asks for.
//!
//! A connection belongs to a *lane*: the worker that asked for it, as whoever asked counts its own.
//! Both ends know that number, for requests say it where there are several ([`AskingWorker`]); so
//! they agree, however many workers each has, which two requests cross and which connection takes
//! the place of another: those of one lane. Who says nothing has one worker.
//!
//! Where both have as many workers, a lane is one worker's at either end. Where the peer has more,
//! its lane is the worker's by whose number the flows of both are the same, as far as one number
//! divides the other. What Linux made only brings packets, whichever flow they are of: so the
//! worker that has fewest gets it.
//!
//! The lead's connection is the first that is asked for, whoever has a packet: it carries what
//! other workers cannot send, for whatever control sends is sent by the lead. So a peer that gives
//! one connection and no more is still reached by all: packets of the others go by datagram, and
//! those too long for one by way of control and the lead's connection, which is slower, so that
//! short ones may overtake them.

use super::pause::Pause;
use super::{Address, Connections, Standing, State};
use crate::interface::{ConnectionKey, Worker};
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::Req;
use pollux_wire::mad::cm::ipoib::{AskingWorker, Dialect};

/// Whether a peer is asked; see the table of the module above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Attempt {
    #[default]
    Idle,
    UnderWay(ConnectionKey),
    Paused(Pause),
}

impl Attempt {
    pub(super) const fn due(self) -> Option<Time> {
        match self {
            Self::Paused(pause) => Some(pause.until),
            Self::Idle | Self::UnderWay(_) => None,
        }
    }
}

/// A worker's attempts at a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    pub(super) attempt: Attempt,
    /// Failed ones in a row, and how many of them were refusals.
    pub(super) failures: u32,
    pub(super) refusals: u32,
    /// The peer refused the service ID of the other dialect in this round of attempts.
    pub(super) has_refused_one: bool,
}

impl Connections {
    /// How things are with a peer for a worker. One without a connection fares as the lead does, as
    /// long as that has none.
    pub fn standing(&self, peer: &LinkAddress, worker: Worker) -> Standing {
        let of = |worker| self.standing_of(peer.comparison_form(), worker);
        match (of(worker), of(Worker::LEAD)) {
            (Standing::Idle, Standing::Open { .. }) => Standing::Idle,
            (Standing::Idle, lead) => lead,
            (own, _) => own,
        }
    }

    fn standing_of(&self, peer: Address, worker: Worker) -> Standing {
        let Some(known) = self.peers.get(&peer) else { return Standing::Idle };
        // The newest: what was there before it may be gone at the other end.
        let all = known.connections.iter().rev().filter_map(|key| Some((*key, self.all.get(key)?)));
        let mut serving = all.filter(|(_, it)| it.worker == worker && it.serves_us());
        if let Some((connection, it)) = serving.clone().find(|(_, it)| self.may_send(it)) {
            return Standing::Open { connection, mtu: it.mtu };
        }
        if serving.clone().any(|(_, it)| it.state == State::Open) {
            return Standing::Paused;
        }
        match self.attempt(peer, worker) {
            Attempt::Paused(_) => Standing::Paused,
            // One that the peer asked for is as good as one of ours.
            Attempt::Idle | Attempt::UnderWay(_) => serving
                .find(|(_, it)| it.is_under_way())
                .map_or(Standing::Idle, |(_, it)| Standing::UnderWay(it.since)),
        }
    }

    /// For whom a peer is asked when a worker has a packet for it, if anybody is to be.
    pub(super) fn first_to_ask(&self, peer: &LinkAddress, worker: Worker) -> Option<Worker> {
        if self.standing(peer, worker) != Standing::Idle {
            return None;
        }
        let lead = self.standing_of(peer.comparison_form(), Worker::LEAD);
        Some(if lead == Standing::Idle { Worker::LEAD } else { worker })
    }

    pub(super) fn attempt(&self, peer: Address, worker: Worker) -> Attempt {
        let lanes = self.peers.get(&peer).map(|peer| &peer.lanes);
        let lane = lanes.and_then(|lanes| lanes.get(usize::from(worker.0)));
        lane.map_or(Attempt::Idle, |lane| lane.attempt)
    }

    pub(super) fn set_attempt(&mut self, address: Address, worker: Worker, attempt: Attempt) {
        let Some(lane) = self.lane_mut(address, worker) else { return };
        let before = std::mem::replace(&mut lane.attempt, attempt);
        if let Some(due) = before.due() {
            self.due.remove(&(due, address, worker));
        }
        if let Some(due) = attempt.due() {
            self.due.insert((due, address, worker));
        }
        self.changed.push_back(LinkAddress::parse(&address));
    }

    pub(super) fn lane_mut(&mut self, peer: Address, worker: Worker) -> Option<&mut Lane> {
        self.peers.get_mut(&peer)?.lanes.get_mut(usize::from(worker.0))
    }

    /// Every worker of ours.
    pub(super) fn workers(&self) -> impl Iterator<Item = Worker> + use<> {
        (0..self.workers).map(Worker)
    }

    /// What a request of a worker says of it; nothing where there is no other.
    pub(super) fn asking(&self, worker: Worker) -> Option<AskingWorker> {
        (self.workers > 1).then_some(AskingWorker::new(worker.0, self.workers))
    }

    /// The worker that moves what a request is for.
    pub(super) fn worker_for(&self, req: &Req) -> Worker {
        if !matches!(Dialect::of(req.service_id), Some((Dialect::Linux, _))) {
            return Worker(lane_of(req) % self.workers);
        }
        let live = |worker: &Worker| (self.all.of_worker(*worker).live, *worker);
        self.workers().min_by_key(live).unwrap_or(Worker::LEAD)
    }

    /// Whether a worker has as many connections as it may.
    pub(super) fn is_full(&self, worker: Worker) -> bool {
        self.all.of_worker(worker).total() >= self.config.connections_max
    }
}

/// Which of its workers a peer asks for.
pub(super) fn lane_of(req: &Req) -> u8 {
    AskingWorker::of(&req.private_data).map_or(0, |asking| asking.worker)
}
