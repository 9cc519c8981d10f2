//! A second path for a connection, by which its queue pairs go on by themselves when the first one
//! fails (IBA 12.8, 17.2.8).
//!
//! ```text
//!   None --it is time--> Sought --the administrator knows one--> Offered --taken--> loaded
//!    ^                      | none, or no answer        refused |
//!    +---- and later, the more often it was in vain ------------+
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
use super::connection::{Cause, Connection, State};
use crate::cm::{ConnectionId, Role, as_requested, vector};
use crate::interface::{Action, ConnectionKey};
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
/// keeps who moves packets from it.
const LOADED_FOR: Duration = Duration::from_secs(1);

/// How far we are with a second path of our choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Offer {
    /// Nothing is under way.
    #[default]
    None,
    /// The administrator is asked.
    Sought,
    /// The peer is asked whether it takes this one.
    Offered(AddressVector),
}

/// The paths of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ways {
    /// The one in use.
    pub(super) path: AddressVector,
    /// The one that our queue pair was told to go on by, and since when.
    pub(super) alternate: Option<(AddressVector, Time)>,
    pub(super) offer: Offer,
    /// When a second one is looked for, if ever.
    pub(super) due: Option<Time>,
    /// How often that was in vain.
    vain: u32,
    /// How often the queue pair went on by its second path.
    pub(super) migrations: u64,
}

impl Connections {
    /// A connection stands: if it is ours to offer a second path, one is looked for once it has
    /// been good for a while.
    pub(super) fn plan_alternate(&mut self, now: Time, key: ConnectionKey) {
        let has_several = self.place.as_ref().is_some_and(|place| place.port.lmc > 0);
        let offers = |it: &Connection| {
            it.role() == Role::Active && it.qp_type == QpType::Rc && it.dialect == Dialect::Rfc
        };
        if self.config.migrates && has_several && self.all.get(&key).is_some_and(offers) {
            self.seek_later(now, key);
        }
    }

    /// What there is now does not do. The pauses between attempts become longer, and differ, since
    /// many connections may have begun at once.
    fn seek_later(&mut self, now: Time, key: ConnectionKey) {
        let config = &self.config;
        let Some(connection) = self.all.get_mut(&key) else { return };
        let ways = &mut connection.ways;
        let pause = config.alternate_after.saturating_mul(1 << ways.vain.min(16));
        let pause = pause.min(config.alternate_pause_max);
        let due = now + pause + self.rng.duration(pause / 8);
        if let Some(before) = ways.due.replace(due) {
            self.seeking.remove(&(before, key));
        }
        ways.offer = Offer::None;
        ways.vain = ways.vain.saturating_add(1);
        self.seeking.insert((due, key));
    }

    /// It is time to look for second paths.
    pub(super) fn seek_alternates(&mut self, now: Time) {
        while let Some(&(due, key)) = self.seeking.first().filter(|(due, _)| *due <= now) {
            self.seeking.remove(&(due, key));
            let Some(connection) = self.all.get_mut(&key) else { continue };
            connection.ways.due = None;
            if connection.state == State::Open && connection.ways.alternate.is_none() {
                connection.ways.offer = Offer::Sought;
                self.sought.push_back(LinkAddress::parse(&connection.peer).gid);
            }
        }
    }

    /// The next port to which all paths are to be found out.
    pub fn poll_sought(&mut self) -> Option<Gid> {
        self.sought.pop_front()
    }

    /// All paths to a port, as far as the administrator says: the first that shares no LID with the
    /// path in use is offered. Where there is none, there may be one later.
    pub fn handle_paths(&mut self, now: Time, gid: Gid, paths: &[PathRecord]) {
        let is_meant = |it: &Connection| {
            it.ways.offer == Offer::Sought && LinkAddress::parse(&it.peer).gid == gid
        };
        let meant = self.all.iter().filter(|(_, known)| is_meant(known));
        for key in meant.map(|(key, _)| key).collect::<Vec<_>>() {
            if !self.offer_one_of(now, key, paths) {
                self.seek_later(now, key);
            }
        }
    }

    fn offer_one_of(&mut self, now: Time, key: ConnectionKey, paths: &[PathRecord]) -> bool {
        let Some((connection, place)) = self.all.get_mut(&key).zip(self.place.as_ref()) else {
            return false;
        };
        let Cause::Ours { path: first } = &connection.cause else { return false };
        let used = connection.ways.path;
        // The queue pair's packets have one length, and no offer says another one.
        let fits = |it: &&PathRecord| it.hop_limit == 0 && it.reversible && it.mtu >= first.mtu;
        let mut ways = paths.iter().filter(fits).map(|path| {
            let mut path = as_requested(path, self.config.ca_ack_delay);
            path.local_ack_timeout = self.config.ack_timeout;
            (path, vector(&path, true, &place.port, path.hop_limit))
        });
        let found =
            ways.find(|(_, way)| way.dlid != used.dlid && way.src_path_bits != used.src_path_bits);
        let Some(((path, way), id)) = found.zip(connection.id) else { return false };
        connection.ways.offer = Offer::Offered(way);
        let remote_cm_response_timeout = self.config.cm_response_timeout;
        let lap = Lap { remote_cm_response_timeout, ..Lap::of_path(&path) };
        self.cm.offer_path(now, id, lap).is_ok()
    }

    /// What the peer thinks of the path that we offered; nothing if it did not say.
    pub(super) fn path_answered(&mut self, now: Time, id: ConnectionId, apr: Option<&Apr>) {
        let Some(&key) = self.by_id.get(&id) else { return };
        let Some(connection) = self.all.get_mut(&key) else { return };
        let Offer::Offered(way) = std::mem::take(&mut connection.ways.offer) else { return };
        match apr.map(|apr| apr.status) {
            Some(ApStatus::LOADED) => self.load_alternate(now, key, way),
            Some(ApStatus::NOT_SUPPORTED) => {
                connection.ways.vain = u32::MAX;
                self.seek_later(now, key);
            }
            _ => self.seek_later(now, key),
        }
    }

    /// A peer offers a second path.
    pub(super) fn path_offered(&mut self, now: Time, id: ConnectionId, lap: &Lap) {
        let known = self.by_id.get(&id).and_then(|key| Some((*key, self.all.get(key)?)));
        let judged = known.ok_or(ApStatus::INVALID_COMM_ID);
        let judged =
            judged.and_then(|(key, known)| Ok((key, self.judge(now, known, &lap.path())?)));
        let status = match judged {
            Ok((key, way)) => {
                self.load_alternate(now, key, way);
                ApStatus::LOADED
            }
            Err(status) => status,
        };
        // It was there a moment ago.
        let _gone = self.cm.answer_path(now, id, Apr { status, ..Apr::default() });
    }

    /// The way that a peer's path means to us, if it makes sense: between the two ports of the
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
        let (port, ways) = (&place.port, &connection.ways);
        let peer = LinkAddress::parse(&connection.peer).gid;
        if (path.local_gid, path.remote_gid) != (peer, place.link.gid) {
            return Err(ApStatus::INVALID_GID);
        }
        let is_port = |lid: Lid, known: Lid| lid.is_unicast() && known.covers(port.lmc, lid);
        if !is_port(path.remote_lid, port.lid) || !is_port(path.local_lid, ways.path.dlid) {
            return Err(ApStatus::INVALID_LID);
        }
        let way = vector(path, false, port, path.hop_limit);
        if (way.dlid, way.src_path_bits) == (ways.path.dlid, ways.path.src_path_bits) {
            return Err(ApStatus::IS_CURRENT_PATH);
        }
        let is_too_soon =
            ways.alternate.is_some_and(|(other, since)| other != way && now < since + LOADED_FOR);
        if is_too_soon || matches!(ways.offer, Offer::Offered(_)) {
            return Err(ApStatus::REJECTED);
        }
        Ok(way)
    }

    /// A peer's request names a second path: says what became of it, as the reply has it (IBA
    /// 12.7.26).
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
        if connection.ways.alternate.is_some_and(|(known, _)| known == way) {
            return;
        }
        connection.ways.alternate = Some((way, now));
        let attributes = Box::new(QpAttributes {
            alternate_path: Some(way),
            migration: Some(Migration::Rearm),
            ..QpAttributes::default()
        });
        self.actions.push_back(Action::Modify { connection: key, attributes });
    }

    /// The queue pair goes on by its second path, which is its only one now.
    pub(super) fn migrated(&mut self, now: Time, key: ConnectionKey) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        if let Some((way, _)) = connection.ways.alternate.take() {
            connection.ways.path = way;
            connection.ways.migrations += 1;
        }
        connection.ways.vain = 0;
        self.plan_alternate(now, key);
    }

    /// The queue pair did not take its second path. There is no sense in offering it others soon.
    pub(super) fn alternate_refused(&mut self, now: Time, key: ConnectionKey) {
        if let Some(connection) = self.all.get_mut(&key) {
            (connection.ways.alternate, connection.ways.vain) = (None, u32::MAX);
            self.plan_alternate(now, key);
        }
    }
}
