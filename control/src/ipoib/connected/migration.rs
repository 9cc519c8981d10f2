//! Automatic path migration: a connection has an alternate path, which its queue pairs use when the
//! first path fails (IBA 12.8, 17.2.8).
//!
//! ```text
//!   None --due--> Queried --the SA knows one--> Offered --LAP accepted--> loaded
//!    ^               | none, or no answer          | refused
//!    +-- later, with backoff --------------------- +
//! ```
//!
//! The side that requested a connection searches for the path and offers it in a LAP. The other
//! side loads a valid path at once. After a migration, the alternate path is the only path, and the
//! search for another one starts. Linux ignores LAPs, so it gets none. Only a reliable queue pair
//! detects that its path failed.
//!
//! An alternate path has other LIDs at both ends, so it exists only where ports have several LIDs
//! (LMC). The subnet manager decides which links the two paths share. Paths through another port
//! are not used, because the queue pair of the connection is at this port.
//!
//! A loaded path protects the connection only after the adapters have armed it, which takes packets
//! in both directions (IBA 17.2.8.1). So an idle connection is not protected yet. CM messages use
//! the first path only; while that path fails, no third path can be offered.

use super::Connections;
use super::connection::{Connection, Offer};
use crate::bounded::Backoff;
use crate::cm::{Role, as_requested, vector};
use crate::effects::ConnectionKey;
use pollux_verbs::qp::Migration;
use pollux_verbs::time::Time;
use pollux_verbs::{AddressVector, QpAttributes, QpType};
use pollux_wire::address::{Gid, Lid};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::ipoib::Dialect;
use pollux_wire::mad::cm::{ApStatus, Apr, Lap, ReqPath};
use pollux_wire::mad::sa::PathRecord;
use std::time::Duration;

/// The shortest time between two alternate paths that a peer makes us load: each stalls the worker.
const LOADED_FOR: Duration = Duration::from_secs(1);

impl Connections {
    /// Schedules the search for an alternate path of an open connection, if we requested it.
    pub(super) fn plan_alternate(&mut self, now: Time, key: ConnectionKey) {
        let has_several = self.local.as_ref().is_some_and(|local| local.port.lmc > 0);
        let offers = |it: &Connection| {
            it.role == Role::Active && it.qp_type == QpType::Rc && it.dialect == Dialect::Rfc
        };
        if self.config.migrates && has_several && self.all.get(&key).is_some_and(offers) {
            self.query_later(now, key);
        }
    }

    /// Schedules the next search with backoff, and with jitter, because many connections may have
    /// started at once.
    fn query_later(&mut self, now: Time, key: ConnectionKey) {
        let config = &self.config;
        let Some(connection) = self.all.get_mut(&key) else { return };
        let known = &mut connection.paths;
        let backoff = Backoff { min: config.alternate_after, max: config.alternate_pause_max };
        let pause = backoff.pause(known.failures.saturating_add(1));
        let due = now + pause + self.rng.duration(pause / 8);
        if let Some(before) = known.due.replace(due) {
            self.alternates_due.remove(&(before, key));
        }
        known.offer = Offer::None;
        known.failures = known.failures.saturating_add(1);
        self.alternates_due.insert((due, key));
    }

    pub(super) fn query_alternates(&mut self, now: Time) {
        while let Some(&(due, key)) = self.alternates_due.first().filter(|(due, _)| *due <= now) {
            self.alternates_due.remove(&(due, key));
            let Some(connection) = self.all.get_mut(&key) else { continue };
            connection.paths.due = None;
            if connection.is_open() && connection.paths.alternate.is_none() {
                connection.paths.offer = Offer::Queried;
                self.path_queries.push_back(LinkAddress::parse(&connection.peer).gid);
            }
        }
    }

    /// The next port to which all paths are to be queried from the SA.
    pub fn poll_path_query(&mut self) -> Option<Gid> {
        self.path_queries.pop_front()
    }

    /// Handles the SA's paths to a port: offers the first path that shares no LID with the path in
    /// use. If there is none, the SA is queried again later.
    pub fn handle_paths(&mut self, now: Time, gid: Gid, paths: &[PathRecord]) {
        let is_queried = |it: &Connection| {
            it.paths.offer == Offer::Queried && LinkAddress::parse(&it.peer).gid == gid
        };
        let meant = self.all.iter().filter(|(_, known)| is_queried(known));
        for key in meant.map(|(key, _)| key).collect::<Vec<_>>() {
            if !self.offer_one_of(now, key, paths) {
                self.query_later(now, key);
            }
        }
    }

    fn offer_one_of(&mut self, now: Time, key: ConnectionKey, paths: &[PathRecord]) -> bool {
        let Some((connection, local)) = self.all.get_mut(&key).zip(self.local.as_ref()) else {
            return false;
        };
        let is_open = connection.is_open();
        let Some(mtu) = connection.paths.mtu.filter(|_| is_open) else { return false };
        let used = connection.paths.path;
        // The path MTU of the queue pair is fixed, and an offer cannot change it.
        let fits = |it: &&PathRecord| it.hop_limit == 0 && it.reversible && it.mtu >= mtu;
        let mut vectors = paths.iter().filter(fits).map(|path| {
            let mut path = as_requested(path, self.config.ca_ack_delay);
            path.local_ack_timeout = self.config.ack_timeout;
            (path, vector(&path, true, &local.port, path.hop_limit))
        });
        let found =
            vectors.find(|(_, it)| it.dlid != used.dlid && it.src_path_bits != used.src_path_bits);
        let Some((path, alternate)) = found else { return false };
        connection.paths.offer = Offer::Offered(alternate);
        let remote_cm_response_timeout = self.config.cm_response_timeout;
        let lap = Lap { remote_cm_response_timeout, ..Lap::of_path(&path) };
        self.cm.offer_path(now, key, lap).is_ok()
    }

    /// Handles the APR to our LAP; `None` if no APR arrived.
    pub(super) fn handle_path_answer(&mut self, now: Time, key: ConnectionKey, apr: Option<&Apr>) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        let Offer::Offered(alternate) = std::mem::take(&mut connection.paths.offer) else { return };
        match apr.map(|apr| apr.status) {
            Some(ApStatus::LOADED) => self.load_alternate(now, key, alternate),
            Some(ApStatus::NOT_SUPPORTED) => {
                connection.paths.failures = u32::MAX;
                self.query_later(now, key);
            }
            _ => self.query_later(now, key),
        }
    }

    pub(super) fn handle_path_offer(&mut self, now: Time, key: ConnectionKey, lap: &Lap) {
        let known = self.all.get(&key).ok_or(ApStatus::INVALID_COMM_ID);
        let status = match known.and_then(|known| self.judge(now, known, &lap.path())) {
            Ok(alternate) => {
                self.load_alternate(now, key, alternate);
                ApStatus::LOADED
            }
            Err(status) => status,
        };
        // The connection may have ended at the CM.
        let _gone = self.cm.answer_path(now, key, Apr { status, ..Apr::default() });
    }

    /// The address vector of a path that the peer offers, if the path is valid: it connects the two
    /// ports of the connection, is not the path in use, is not offered too soon after another path,
    /// and no offer of ours is outstanding.
    fn judge(
        &self,
        now: Time,
        connection: &Connection,
        path: &ReqPath,
    ) -> Result<AddressVector, ApStatus> {
        let local = self.local.as_ref().filter(|_| self.config.migrates);
        let local = local.ok_or(ApStatus::NOT_SUPPORTED)?;
        let (port, known) = (&local.port, &connection.paths);
        let peer = LinkAddress::parse(&connection.peer).gid;
        if (path.local_gid, path.remote_gid) != (peer, local.link.gid) {
            return Err(ApStatus::INVALID_GID);
        }
        let is_port = |lid: Lid, known: Lid| lid.is_unicast() && known.covers(port.lmc, lid);
        if !is_port(path.remote_lid, port.lid) || !is_port(path.local_lid, known.path.dlid) {
            return Err(ApStatus::INVALID_LID);
        }
        let alternate = vector(path, false, port, path.hop_limit);
        if (alternate.dlid, alternate.src_path_bits) == (known.path.dlid, known.path.src_path_bits)
        {
            return Err(ApStatus::IS_CURRENT_PATH);
        }
        let is_too_soon = known
            .alternate
            .is_some_and(|(other, since)| other != alternate && now < since + LOADED_FOR);
        if is_too_soon || matches!(known.offer, Offer::Offered(_)) {
            return Err(ApStatus::REJECTED);
        }
        Ok(alternate)
    }

    /// Handles the alternate path of a peer's REQ; returns its status for the REP (IBA 12.7.26).
    pub(super) fn take_alternate(&mut self, now: Time, key: ConnectionKey, path: &ReqPath) -> u8 {
        const ACCEPTED: u8 = 0;
        const NOT_SUPPORTED: u8 = 1;
        const REJECTED: u8 = 2;
        match self.all.get(&key).map(|known| self.judge(now, known, path)) {
            Some(Ok(alternate)) => {
                self.load_alternate(now, key, alternate);
                ACCEPTED
            }
            Some(Err(ApStatus::NOT_SUPPORTED)) => NOT_SUPPORTED,
            _ => REJECTED,
        }
    }

    /// Loads an alternate path into our queue pair, unless it is loaded already, and perhaps armed.
    fn load_alternate(&mut self, now: Time, key: ConnectionKey, alternate: AddressVector) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        if connection.paths.alternate.is_some_and(|(known, _)| known == alternate) {
            return;
        }
        connection.paths.alternate = Some((alternate, now));
        let attributes = QpAttributes {
            alternate_path: Some(alternate),
            migration: Some(Migration::Rearm),
            ..QpAttributes::default()
        };
        self.modify(key, attributes);
    }

    /// Handles a migration: the alternate path becomes the path in use, and there is no alternate
    /// path.
    pub(super) fn handle_migrated(&mut self, now: Time, key: ConnectionKey) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        if let Some((alternate, _)) = connection.paths.alternate.take() {
            connection.paths.path = alternate;
            connection.paths.migrations += 1;
        }
        connection.paths.failures = 0;
        self.plan_alternate(now, key);
    }

    /// Handles an alternate path that the device refused. The next search follows after the longest
    /// pause.
    pub(super) fn handle_alternate_refused(&mut self, now: Time, key: ConnectionKey) {
        if let Some(connection) = self.all.get_mut(&key) {
            (connection.paths.alternate, connection.paths.failures) = (None, u32::MAX);
            self.plan_alternate(now, key);
        }
    }
}
