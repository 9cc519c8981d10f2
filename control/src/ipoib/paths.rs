//! Paths to ports, each from an SA query (RFC 4391 9.1).
//!
//! A path is queried when a packet needs it, and kept until the LID or GID of our port changes.
//! After a client reregister, or with a new subnet manager, all paths are queried again, and
//! packets use the old paths until the replies arrive. After a failed query and a pause, the next
//! packet that needs the path repeats the query.
//!
//! When the table is full, the least recently used path that serves no peer is evicted. A path of a
//! peer is evicted only for the path of another peer, because control does not see the packets of
//! the fast path and so does not know when such a path was last used.

use super::{InterfaceDrop, IpoibInterface, PeerKey, PendingPacket, Purpose};
use crate::sa::{SaError, SaQuery, SaReply};
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Qpn};
use pollux_wire::mad::sa::PathRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Default)]
pub(super) struct Path {
    pub(super) record: Option<Box<PathRecord>>,
    pub(super) failure: Option<Failure>,
    pub(super) since: Time,
    used: Time,
    /// Replies to queue pairs at that port that are not peers.
    waiting: VecDeque<(Qpn, PendingPacket)>,
    peers: BTreeSet<PeerKey>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) error: SaError,
    pub(super) failures: u32,
    pub(super) until: Time,
    /// When the query was last repeated early, by a packet from the port.
    retried: Option<Time>,
}

impl Path {
    /// Whether the last query failed, and the pause after it is not over.
    pub(super) fn has_failed(&self, now: Time) -> bool {
        self.failure.is_some_and(|failure| now < failure.until)
    }

    /// The key of the eviction order; the path with the least is evicted first.
    fn rank(&self) -> (bool, Time) {
        (!self.peers.is_empty(), self.used)
    }
}

#[derive(Default)]
pub(super) struct Paths {
    all: BTreeMap<Gid, Path>,
    by_rank: BTreeSet<((bool, Time), Gid)>,
}

impl Paths {
    pub(super) fn get(&self, gid: Gid) -> Option<&Path> {
        self.all.get(&gid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Gid, &Path)> {
        self.all.iter().map(|(&gid, path)| (gid, path))
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Changes a path, and updates the eviction order.
    fn change<R>(&mut self, gid: Gid, change: impl FnOnce(&mut Path) -> R) -> Option<R> {
        let path = self.all.get_mut(&gid)?;
        let before = path.rank();
        let result = change(path);
        let after = path.rank();
        if before != after {
            self.by_rank.remove(&(before, gid));
            self.by_rank.insert((after, gid));
        }
        Some(result)
    }

    fn insert(&mut self, gid: Gid, path: Path) {
        self.by_rank.insert((path.rank(), gid));
        self.all.insert(gid, path);
    }

    fn evict(&mut self, for_peer: bool) -> Option<Path> {
        let &((is_of_peer, used), gid) = self.by_rank.first()?;
        if is_of_peer && !for_peer {
            return None;
        }
        self.by_rank.remove(&((is_of_peer, used), gid));
        self.all.remove(&gid)
    }
}

impl IpoibInterface {
    /// The path to a port. If it is not known, sends an SA query, and returns `None` while the
    /// query is outstanding.
    pub(super) fn path_to(
        &mut self,
        now: Time,
        gid: Gid,
        for_peer: Option<PeerKey>,
    ) -> Option<Result<PathRecord, SaError>> {
        if self.paths.get(gid).is_none() {
            if !self.make_space_for_path(for_peer.is_some()) {
                self.drops.count(InterfaceDrop::PathsFull);
                return Some(Err(SaError::NoResources));
            }
            self.paths.insert(gid, Path { since: now, ..Path::default() });
        }
        self.paths.change(gid, |path| {
            path.used = now;
            path.peers.extend(for_peer);
        });
        let path = self.paths.get(gid)?;
        let known = path.record.as_deref().copied();
        let failure = path.failure.filter(|failure| now < failure.until);
        // After the pause, a known path is queried again if its last query failed.
        let is_to_ask = failure.is_none() && (known.is_none() || path.failure.is_some());
        if is_to_ask {
            self.ask_path(now, gid);
        }
        known.map(Ok).or(failure.map(|failure| Err(failure.error)))
    }

    /// Queues a datagram until the path is known; drops the oldest one if the queue is full.
    pub(super) fn wait_for_path(&mut self, gid: Gid, qpn: Qpn, pending: PendingPacket) {
        let limit = self.config.pending_per_destination_max;
        let Some(path) = self.paths.all.get_mut(&gid) else { return };
        if path.waiting.len() >= limit {
            path.waiting.pop_front();
            self.drops.count(InterfaceDrop::PendingFull);
        }
        path.waiting.push_back((qpn, pending));
    }

    pub(super) fn handle_path_reply(
        &mut self,
        now: Time,
        gid: Gid,
        result: Result<SaReply, SaError>,
    ) {
        let pause = |interface: &Self, failures| now + interface.pause_after(failures);
        let before = self.paths.get(gid).and_then(|path| path.failure);
        let failures = before.map_or(1, |before| before.failures.saturating_add(1));
        let until = pause(self, failures);
        let Some(path) = self.paths.all.get_mut(&gid) else {
            return self.handle_requester_reply(now, gid, result);
        };
        path.since = now;
        match result {
            Ok(SaReply::Path(record)) => {
                (path.record, path.failure) = (Some(Box::new(record)), None);
            }
            other => {
                let error = other.err().unwrap_or(SaError::BadAnswer);
                // A known path is kept unless the SA replies that there is none.
                if !error.is_passing() {
                    path.record = None;
                }
                if matches!(error, SaError::NoRecords | SaError::InvalidGid) {
                    self.out_of_service.handle_departure(gid);
                }
                let retried = before.and_then(|before| before.retried);
                path.failure = Some(Failure { error, failures, until, retried });
            }
        }
        let waiting = std::mem::take(&mut path.waiting);
        let peers = path.peers.clone();
        let record = path.record.as_deref().copied();
        for (qpn, pending) in waiting {
            self.send_to_link(now, gid, qpn, pending);
        }
        for peer in peers {
            self.update_adjacencies(now, peer);
        }
        self.verify_requests(now, gid, record.as_ref());
    }

    /// Queries all paths to a port, for the alternate path of a connection.
    pub(super) fn ask_paths(&mut self, now: Time, gid: Gid) {
        if !self.is_asked(Purpose::Paths(gid)) {
            let query = SaQuery::paths(self.port_gid(), gid, self.config.p_key.full());
            self.ask(now, Purpose::Paths(gid), query);
        }
    }

    pub(super) fn handle_paths_reply(
        &mut self,
        now: Time,
        gid: Gid,
        result: Result<SaReply, SaError>,
    ) {
        let paths = match result {
            Ok(SaReply::Paths(paths)) => paths,
            _ => Vec::new(),
        };
        self.connections.handle_paths(now, gid, &paths);
    }

    /// Queries a path again, because the port may have another LID. Within `pause_min` of the last
    /// reply it does nothing.
    pub(super) fn refresh_path(&mut self, now: Time, gid: Gid) {
        let path = self.paths.get(gid);
        if path.is_some_and(|path| now >= path.since + self.config.pause_min) {
            self.ask_path(now, gid);
        }
    }

    /// Lets the next packet repeat a failed query early, after a packet from that port arrived.
    /// Early retries of a path are at least `pause_min` apart, because anyone on the link can forge
    /// such packets.
    ///
    /// Why the pause does not start at the failure: connections to an absent port repeat the query,
    /// so the last failure may be very recent, and the first packet of the port would get no
    /// answer.
    pub(super) fn retry_path_early(&mut self, now: Time, gid: Gid) {
        let pause = self.config.pause_min;
        let path = self.paths.all.get_mut(&gid);
        let Some(failure) = path.and_then(|path| path.failure.as_mut()) else { return };
        let early = failure.retried.map_or(now, |retried| now.max(retried + pause));
        if early < failure.until {
            (failure.until, failure.retried) = (early, Some(early));
        }
    }

    pub(super) fn renew_paths(&mut self, now: Time) {
        for gid in self.paths.all.keys().copied().collect::<Vec<_>>() {
            self.ask_path(now, gid);
        }
    }

    pub(super) fn forget_path_of(&mut self, peer: PeerKey, gid: Gid) {
        self.paths.change(gid, |path| path.peers.remove(&peer));
    }

    pub(super) fn pending_for_paths(&self) -> usize {
        self.paths.iter().map(|(_, path)| path.waiting.len()).sum()
    }

    pub(super) fn ask_path(&mut self, now: Time, gid: Gid) {
        if self.paths.get(gid).is_some() && !self.is_asked(Purpose::Path(gid)) {
            let query = self.path_query(gid);
            self.ask(now, Purpose::Path(gid), query);
        }
    }

    /// Ensures space for one more path. Returns `false` if the table stays full.
    fn make_space_for_path(&mut self, for_peer: bool) -> bool {
        while self.paths.len() >= self.config.paths_max.max(1) {
            let Some(path) = self.paths.evict(for_peer) else { return false };
            let lost = path.waiting.len();
            (0..lost).for_each(|_| self.drops.count(InterfaceDrop::PendingFull));
            // Adjacencies in use have a copy of the path.
            path.peers.into_iter().for_each(|peer| self.give_up_waiting(peer));
        }
        true
    }
}
