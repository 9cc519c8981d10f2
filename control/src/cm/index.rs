//! The index of connections: by timer, by the peer's ID and queue pair, and by source.
//!
//! `Cm::change` derives [`Keys`] from a connection before and after every change, and enters the
//! difference here, so that no change can leave an index out of date.

use crate::effects::ConnectionKey;
use crate::mad::MadAddress;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::mad::cm::CommId;
use std::collections::{BTreeMap, BTreeSet};

const OLDEST: ConnectionKey = ConnectionKey(0);
const NEWEST: ConnectionKey = ConnectionKey(u64::MAX);

/// The sender of a REQ: its LID, or its GID beyond a router. A port that poses as a router can
/// forge the GID, so connections through one router LID have a limit too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Near(Lid),
    BeyondRouter(Gid),
}

impl Source {
    pub(super) fn of(peer: &MadAddress) -> Self {
        peer.global.map_or(Self::Near(peer.lid), |global| Self::BeyondRouter(global.remote_gid))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) due: Option<Time>,
    /// The peer's communication ID, and the GID of the peer's port.
    pub(super) remote_id: Option<(CommId, Gid)>,
    /// The peer's queue pair, except in TIME-WAIT.
    pub(super) remote_qp: Option<(Gid, Qpn)>,
    /// The sender of the REQ, until the connection is established, and while its rejection is
    /// remembered.
    pub(super) pending_from: Option<Source>,
    /// The LID of the router, if a port of another subnet sent the REQ.
    pub(super) router: Option<Lid>,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    due: BTreeSet<(Time, ConnectionKey)>,
    remote_ids: BTreeSet<(CommId, Gid, ConnectionKey)>,
    remote_qps: BTreeSet<(Gid, Qpn, ConnectionKey)>,
    pending: BTreeMap<Source, usize>,
    pending_count: usize,
    /// Connections requested through a router.
    by_router: BTreeMap<Lid, usize>,
}

impl Index {
    pub(super) fn replace(&mut self, key: ConnectionKey, before: &Keys, after: &Keys) {
        if before == after {
            return;
        }
        self.remove(key, before);
        if let Some(due) = after.due {
            self.due.insert((due, key));
        }
        if let Some((remote_id, gid)) = after.remote_id {
            self.remote_ids.insert((remote_id, gid, key));
        }
        if let Some((gid, qpn)) = after.remote_qp {
            self.remote_qps.insert((gid, qpn, key));
        }
        if let Some(source) = after.pending_from {
            *self.pending.entry(source).or_default() += 1;
            self.pending_count += 1;
        }
        if let Some(router) = after.router {
            *self.by_router.entry(router).or_default() += 1;
        }
    }

    fn remove(&mut self, key: ConnectionKey, keys: &Keys) {
        if let Some(due) = keys.due {
            self.due.remove(&(due, key));
        }
        if let Some((remote_id, gid)) = keys.remote_id {
            self.remote_ids.remove(&(remote_id, gid, key));
        }
        if let Some((gid, qpn)) = keys.remote_qp {
            self.remote_qps.remove(&(gid, qpn, key));
        }
        if let Some(source) = keys.pending_from
            && let Some(count) = self.pending.get_mut(&source)
        {
            *count -= 1;
            if *count == 0 {
                self.pending.remove(&source);
            }
            self.pending_count -= 1;
        }
        if let Some(router) = keys.router
            && let Some(count) = self.by_router.get_mut(&router)
        {
            *count -= 1;
            if *count == 0 {
                self.by_router.remove(&router);
            }
        }
    }

    pub(super) fn next_due(&self) -> Option<(Time, ConnectionKey)> {
        self.due.first().copied()
    }

    /// Connections with this communication ID of the peer, at the peer's port `gid`.
    pub(super) fn by_remote_id(
        &self,
        remote_id: CommId,
        gid: Gid,
    ) -> impl Iterator<Item = ConnectionKey> {
        let range = (remote_id, gid, OLDEST)..=(remote_id, gid, NEWEST);
        self.remote_ids.range(range).map(|(.., key)| *key)
    }

    /// Connections with this communication ID of the peer, at any port.
    pub(super) fn by_remote_id_of_any(
        &self,
        remote_id: CommId,
    ) -> impl Iterator<Item = ConnectionKey> {
        let least = (remote_id, Gid::NONE, OLDEST);
        let range = least..=(remote_id, Gid([0xff; 16]), NEWEST);
        self.remote_ids.range(range).map(|(.., key)| *key)
    }

    pub(super) fn by_remote_qp(&self, gid: Gid, qpn: Qpn) -> impl Iterator<Item = ConnectionKey> {
        let range = (gid, qpn, OLDEST)..=(gid, qpn, NEWEST);
        self.remote_qps.range(range).map(|(.., key)| *key)
    }

    /// The number of pending requests of one source, and of all sources.
    pub(super) fn pending(&self, source: Source) -> (usize, usize) {
        (self.pending.get(&source).copied().unwrap_or(0), self.pending_count)
    }

    /// The number of connections that ports of other subnets requested through this router LID.
    pub(super) fn by_router(&self, router: Lid) -> usize {
        self.by_router.get(&router).copied().unwrap_or(0)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
            && self.remote_ids.is_empty()
            && self.remote_qps.is_empty()
            && self.pending.is_empty()
            && self.pending_count == 0
            && self.by_router.is_empty()
    }
}
