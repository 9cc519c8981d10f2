//! Paths to ports, as the subnet administrator knows them (RFC 4391 9.1).
//!
//! A path is asked for when something is to be sent to its port, and kept until the place of our
//! own port changes. A new subnet manager, or one that forgot, may have other paths: then all are
//! asked for again, and packets go by the old ones until the answers are there. One that was not
//! answered is asked for again after a pause, when something is to be sent.

use super::{Interface, InterfaceDrop, Parcel, PeerKey, Purpose};
use crate::sa::{Answer, Question, SaError};
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Qpn};
use pollux_wire::mad::sa::PathRecord;
use std::collections::{BTreeSet, VecDeque};

/// What is known of the way to a port.
#[derive(Default)]
pub(super) struct Path {
    pub(super) record: Option<Box<PathRecord>>,
    pub(super) is_asked: bool,
    pub(super) failure: Option<Failure>,
    pub(super) since: Time,
    used: Time,
    /// Datagrams to queue pairs there that are no peers of ours: answers to who asked.
    waiting: VecDeque<(Qpn, Parcel)>,
    /// Peers there.
    peers: BTreeSet<PeerKey>,
}

/// Why a path is not known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) error: SaError,
    pub(super) failures: u32,
    pub(super) until: Time,
}

impl Interface {
    /// The way to a port, as far as it is known; asks for it otherwise. `None` while it is asked
    /// for.
    pub(super) fn path_to(
        &mut self,
        now: Time,
        gid: Gid,
        for_peer: Option<PeerKey>,
    ) -> Option<Result<PathRecord, SaError>> {
        if !self.paths.contains_key(&gid) {
            self.make_room_for_path();
            self.paths.insert(gid, Path { since: now, ..Path::default() });
        }
        let path = self.paths.get_mut(&gid)?;
        self.paths_by_use.remove(&(path.used, gid));
        path.used = now;
        self.paths_by_use.insert((now, gid));
        path.peers.extend(for_peer);
        let known = path.record.as_deref().copied();
        let failure = path.failure.filter(|failure| now < failure.until);
        // One that is known is asked for again if the last answer to that was none.
        let is_to_ask = failure.is_none() && (known.is_none() || path.failure.is_some());
        if is_to_ask {
            self.ask_path(now, gid);
        }
        known.map(Ok).or(failure.map(|failure| Err(failure.error)))
    }

    /// A datagram waits for a path, at the cost of the one that waits for longest.
    pub(super) fn wait_for_path(&mut self, gid: Gid, qpn: Qpn, parcel: Parcel) {
        let limit = self.config.pending_per_way_max;
        let Some(path) = self.paths.get_mut(&gid) else { return };
        if path.waiting.len() >= limit {
            path.waiting.pop_front();
            self.drops.count(InterfaceDrop::PendingPerWay);
        }
        path.waiting.push_back((qpn, parcel));
    }

    pub(super) fn path_answered(&mut self, now: Time, gid: Gid, result: Result<Answer, SaError>) {
        let pause = |interface: &Self, failures| now + interface.pause_after(failures);
        let before = self.paths.get(&gid).and_then(|path| path.failure);
        let failures = before.map_or(1, |before| before.failures.saturating_add(1));
        let until = pause(self, failures);
        let Some(path) = self.paths.get_mut(&gid) else { return };
        path.is_asked = false;
        path.since = now;
        match result {
            Ok(Answer::Path(record)) => {
                (path.record, path.failure) = (Some(Box::new(record)), None);
            }
            other => {
                let error = other.err().unwrap_or(SaError::BadAnswer);
                // A way that was good is kept while nobody says that there is none.
                if !error.is_passing() {
                    path.record = None;
                }
                path.failure = Some(Failure { error, failures, until });
            }
        }
        let waiting = std::mem::take(&mut path.waiting);
        let peers = path.peers.clone();
        for (qpn, parcel) in waiting {
            self.send_to_link(now, gid, qpn, parcel);
        }
        for peer in peers {
            self.set_way_of_peer(now, peer);
        }
    }

    /// All paths to a port are asked for: a connection may want a second one.
    pub(super) fn ask_paths(&mut self, now: Time, gid: Gid) {
        let sgid = self.standing.map_or(Gid::NONE, |standing| standing.gid);
        if !self.is_asked(Purpose::Paths(gid)) {
            let question = Question::paths(sgid, gid, self.config.p_key.full());
            self.ask(now, Purpose::Paths(gid), question);
        }
    }

    pub(super) fn paths_answered(&mut self, now: Time, gid: Gid, result: Result<Answer, SaError>) {
        let paths = match result {
            Ok(Answer::Paths(paths)) => paths,
            _ => Vec::new(),
        };
        self.connections.handle_paths(now, gid, &paths);
    }

    /// A port may have another address by now: its path is asked for again, if it was not just now.
    pub(super) fn doubt_path(&mut self, now: Time, gid: Gid) {
        let path = self.paths.get(&gid);
        if path.is_some_and(|path| now >= path.since + self.config.pause_min) {
            self.ask_path(now, gid);
        }
    }

    /// All paths are asked for again.
    pub(super) fn renew_paths(&mut self, now: Time) {
        for gid in self.paths.keys().copied().collect::<Vec<_>>() {
            self.ask_path(now, gid);
        }
    }

    pub(super) fn forget_path_of(&mut self, peer: PeerKey, gid: Gid) {
        if let Some(path) = self.paths.get_mut(&gid) {
            path.peers.remove(&peer);
        }
    }

    pub(super) fn forget_paths(&mut self) {
        self.paths.clear();
        self.paths_by_use.clear();
    }

    /// Datagrams that wait for a path.
    pub(super) fn pending_for_paths(&self) -> usize {
        self.paths.values().map(|path| path.waiting.len()).sum()
    }

    fn ask_path(&mut self, now: Time, gid: Gid) {
        let sgid = self.standing.map_or(Gid::NONE, |standing| standing.gid);
        let p_key = self.config.p_key.full();
        let class = self.traffic_class();
        let Some(path) = self.paths.get_mut(&gid).filter(|path| !path.is_asked) else { return };
        path.is_asked = true;
        self.ask(now, Purpose::Path(gid), Question::path(sgid, gid, p_key, class));
    }

    /// Forgets the path that nobody used for longest. Peers that go by it know it by heart.
    fn make_room_for_path(&mut self) {
        while self.paths.len() >= self.config.paths_max.max(1) {
            let Some((_, gid)) = self.paths_by_use.pop_first() else { return };
            if let Some(path) = self.paths.remove(&gid) {
                let lost = path.waiting.len();
                (0..lost).for_each(|_| self.drops.count(InterfaceDrop::PendingPerWay));
                path.peers.into_iter().for_each(|peer| self.give_up_waiting(peer));
            }
        }
    }
}
