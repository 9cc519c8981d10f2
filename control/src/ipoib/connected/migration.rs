//! A second path for a connection, by which its queue pairs go on by themselves when the first one
//! fails (IBA 12.8, 17.2.8).
//!
//! ```text
//!   None --it is time--> Queried --the SA knows one--> Offered --taken--> loaded
//!    ^                       | none, or no answer    refused |
//!    +---- and later, the more attempts failed --------------+
//! ```
//!
//! The side that asked for a connection looks for the path and offers it; the other side loads what
//! makes sense as soon as it is offered. When the first path fails, the second is the only one, and
//! another one is looked for. Linux hears offers and says nothing, so it gets none. Only a reliable
//! queue pair notices that its path failed; an unreliable one follows its peer, or its owner.
//!
//! A second path is one with another LID at both ends, so there are some where ports have several
//! (LMC). What links the two have in common is up to the subnet manager. A way by another port is
//! not looked for: the connection's queue pair is at this one.
//!
//! What is loaded counts once both ends have said so by packets (IBA 17.2.8.1), which the adapters
//! see to: an idle connection is not protected yet. Messages of connection management keep to the
//! first path; while that is dead, a third one cannot be offered.

use super::Connections;
use super::connection::{Connection, Offer, State};
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

/// How soon a peer may have another path loaded than the one that it had loaded before: to load one
/// stalls the worker.
const LOADED_FOR: Duration = Duration::from_secs(1);

impl Connections {
    /// A connection stands: if it is ours to offer a second path, one is looked for once it has
    /// been good for a while.
    pub(super) fn plan_alternate(&mut self, now: Time, key: ConnectionKey) {
        let has_several = self.place.as_ref().is_some_and(|place| place.port.lmc > 0);
        let offers = |it: &Connection| {
            it.role == Role::Active && it.qp_type == QpType::Rc && it.dialect == Dialect::Rfc
        };
        if self.config.migrates && has_several && self.all.get(&key).is_some_and(offers) {
            self.query_later(now, key);
        }
    }

    /// There is no suitable path now. The pauses between attempts grow, and have jitter, because
    /// many connections may have started at once.
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

    /// Starts due searches for alternate paths.
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

    /// The next port for which the SA is asked for all paths.
    pub fn poll_path_query(&mut self) -> Option<Gid> {
        self.path_queries.pop_front()
    }

    /// All paths to a port, as far as the administrator says: the first that shares no LID with the
    /// path in use is offered. Where there is none, there may be one later.
    pub fn handle_paths(&mut self, now: Time, gid: Gid, paths: &[PathRecord]) {
        let is_meant = |it: &Connection| {
            it.paths.offer == Offer::Queried && LinkAddress::parse(&it.peer).gid == gid
        };
        let meant = self.all.iter().filter(|(_, known)| is_meant(known));
        for key in meant.map(|(key, _)| key).collect::<Vec<_>>() {
            if !self.offer_one_of(now, key, paths) {
                self.query_later(now, key);
            }
        }
    }

    fn offer_one_of(&mut self, now: Time, key: ConnectionKey, paths: &[PathRecord]) -> bool {
        let Some((connection, place)) = self.all.get_mut(&key).zip(self.place.as_ref()) else {
            return false;
        };
        let (State::Open { .. }, Some(mtu)) = (&connection.state, connection.paths.mtu) else {
            return false;
        };
        let used = connection.paths.path;
        // The path MTU of the queue pair is fixed, and an offer cannot change it.
        let fits = |it: &&PathRecord| it.hop_limit == 0 && it.reversible && it.mtu >= mtu;
        let mut vectors = paths.iter().filter(fits).map(|path| {
            let mut path = as_requested(path, self.config.ca_ack_delay);
            path.local_ack_timeout = self.config.ack_timeout;
            (path, vector(&path, true, &place.port, path.hop_limit))
        });
        let found = vectors
            .find(|(_, way)| way.dlid != used.dlid && way.src_path_bits != used.src_path_bits);
        let Some((path, way)) = found else { return false };
        connection.paths.offer = Offer::Offered(way);
        let remote_cm_response_timeout = self.config.cm_response_timeout;
        let lap = Lap { remote_cm_response_timeout, ..Lap::of_path(&path) };
        self.cm.offer_path(now, key, lap).is_ok()
    }

    /// Handles the peer's answer to our offer; `None` without an answer.
    pub(super) fn path_answered(&mut self, now: Time, key: ConnectionKey, apr: Option<&Apr>) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        let Offer::Offered(way) = std::mem::take(&mut connection.paths.offer) else { return };
        match apr.map(|apr| apr.status) {
            Some(ApStatus::LOADED) => self.load_alternate(now, key, way),
            Some(ApStatus::NOT_SUPPORTED) => {
                connection.paths.failures = u32::MAX;
                self.query_later(now, key);
            }
            _ => self.query_later(now, key),
        }
    }

    /// A peer offers a second path.
    pub(super) fn path_offered(&mut self, now: Time, key: ConnectionKey, lap: &Lap) {
        let known = self.all.get(&key).ok_or(ApStatus::INVALID_COMM_ID);
        let status = match known.and_then(|known| self.judge(now, known, &lap.path())) {
            Ok(way) => {
                self.load_alternate(now, key, way);
                ApStatus::LOADED
            }
            Err(status) => status,
        };
        // It was there a moment ago.
        let _gone = self.cm.answer_path(now, key, Apr { status, ..Apr::default() });
    }

    /// The address vector of a peer's path, if it is valid: between the two ports of the
    /// connection, not the one in use, and neither too soon after another one nor while that is
    /// asked about a path of ours.
    fn judge(
        &self,
        now: Time,
        connection: &Connection,
        path: &ReqPath,
    ) -> Result<AddressVector, ApStatus> {
        let place = self.place.as_ref().filter(|_| self.config.migrates);
        let place = place.ok_or(ApStatus::NOT_SUPPORTED)?;
        let (port, known) = (&place.port, &connection.paths);
        let peer = LinkAddress::parse(&connection.peer).gid;
        if (path.local_gid, path.remote_gid) != (peer, place.link.gid) {
            return Err(ApStatus::INVALID_GID);
        }
        let is_port = |lid: Lid, known: Lid| lid.is_unicast() && known.covers(port.lmc, lid);
        if !is_port(path.remote_lid, port.lid) || !is_port(path.local_lid, known.path.dlid) {
            return Err(ApStatus::INVALID_LID);
        }
        let way = vector(path, false, port, path.hop_limit);
        if (way.dlid, way.src_path_bits) == (known.path.dlid, known.path.src_path_bits) {
            return Err(ApStatus::IS_CURRENT_PATH);
        }
        let is_too_soon =
            known.alternate.is_some_and(|(other, since)| other != way && now < since + LOADED_FOR);
        if is_too_soon || matches!(known.offer, Offer::Offered(_)) {
            return Err(ApStatus::REJECTED);
        }
        Ok(way)
    }

    /// Handles the alternate path of a peer's REQ; returns its status for the REP (IBA 12.7.26).
    pub(super) fn take_alternate(&mut self, now: Time, key: ConnectionKey, path: &ReqPath) -> u8 {
        const ACCEPTED: u8 = 0;
        const NOT_SUPPORTED: u8 = 1;
        const REJECTED: u8 = 2;
        match self.all.get(&key).map(|known| self.judge(now, known, path)) {
            Some(Ok(way)) => {
                self.load_alternate(now, key, way);
                ACCEPTED
            }
            Some(Err(ApStatus::NOT_SUPPORTED)) => NOT_SUPPORTED,
            _ => REJECTED,
        }
    }

    /// Our queue pair is to be ready to go on by another path. One that it has already stays as it
    /// is, armed perhaps.
    fn load_alternate(&mut self, now: Time, key: ConnectionKey, way: AddressVector) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        if connection.paths.alternate.is_some_and(|(known, _)| known == way) {
            return;
        }
        connection.paths.alternate = Some((way, now));
        let attributes = QpAttributes {
            alternate_path: Some(way),
            migration: Some(Migration::Rearm),
            ..QpAttributes::default()
        };
        self.modify(key, attributes);
    }

    /// The queue pair has migrated to its alternate path, which is its only one now.
    pub(super) fn migrated(&mut self, now: Time, key: ConnectionKey) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        if let Some((way, _)) = connection.paths.alternate.take() {
            connection.paths.path = way;
            connection.paths.migrations += 1;
        }
        connection.paths.failures = 0;
        self.plan_alternate(now, key);
    }

    /// The queue pair refused its alternate path. Others are not offered soon.
    pub(super) fn alternate_refused(&mut self, now: Time, key: ConnectionKey) {
        if let Some(connection) = self.all.get_mut(&key) {
            (connection.paths.alternate, connection.paths.failures) = (None, u32::MAX);
            self.plan_alternate(now, key);
        }
    }
}
