//! A second path for a connection, by which its queue pairs go on by themselves when the first one
//! fails (IBA 12.8, 17.2.8).
//!
//! ```text
//!   Lacking --it is time--> Sought --the administrator knows one--> Offered --taken--> Loaded
//!      ^                      | none, or no answer        refused |                      |
//!      +----------------------+-----------------------------------+---- the first failed +
//! ```
//!
//! The side that asked for a connection looks for the path and offers it; the other side takes what
//! makes sense. Linux hears offers and says nothing, so it gets none. Only a reliable queue pair
//! notices that its path failed; an unreliable one follows its peer, or its owner.
//!
//! A second path is one with another LID at both ends, so there are some where ports have several
//! (LMC). What links the two have in common is up to the subnet manager. A way by another port is
//! not looked for: the connection's queue pair is at this one.

use super::{Connection, Connections, State};
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

/// What is known of a second path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Alternate {
    /// There is none, and none is under way.
    #[default]
    Lacking,
    /// The administrator is asked.
    Sought,
    /// The peer is asked whether it takes this one.
    Offered(AddressVector),
    /// Our queue pair has it.
    Loaded(AddressVector),
}

/// The paths of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ways {
    /// The one in use.
    pub(super) path: AddressVector,
    pub(super) alternate: Alternate,
    /// When a second one is looked for, if ever.
    pub(super) due: Option<Time>,
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

    fn seek_later(&mut self, now: Time, key: ConnectionKey) {
        let due = now + self.config.alternate_after;
        let Some(connection) = self.all.get_mut(&key) else { return };
        if let Some(before) = connection.ways.due.replace(due) {
            self.seeking.remove(&(before, key));
        }
        connection.ways.alternate = Alternate::Lacking;
        self.seeking.insert((due, key));
    }

    /// It is time to look for second paths.
    pub(super) fn seek_alternates(&mut self, now: Time) {
        while let Some(&(due, key)) = self.seeking.first().filter(|(due, _)| *due <= now) {
            self.seeking.remove(&(due, key));
            let Some(connection) = self.all.get_mut(&key) else { continue };
            connection.ways.due = None;
            if connection.state == State::Open && connection.ways.alternate == Alternate::Lacking {
                connection.ways.alternate = Alternate::Sought;
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
            it.ways.alternate == Alternate::Sought && LinkAddress::parse(&it.peer).gid == gid
        };
        let meant = self.all.iter().filter(|(_, known)| is_meant(known));
        for key in meant.map(|(&key, _)| key).collect::<Vec<_>>() {
            if !self.offer_one_of(now, key, paths) {
                self.seek_later(now, key);
            }
        }
    }

    fn offer_one_of(&mut self, now: Time, key: ConnectionKey, paths: &[PathRecord]) -> bool {
        let Some((connection, place)) = self.all.get_mut(&key).zip(self.place.as_ref()) else {
            return false;
        };
        let used = connection.ways.path;
        let ways = paths.iter().filter(|path| path.hop_limit == 0 && path.reversible).map(|path| {
            let mut path = as_requested(path, self.config.ca_ack_delay);
            path.local_ack_timeout = self.config.ack_timeout;
            (path, vector(&path, true, &place.port, path.hop_limit))
        });
        let found = ways
            .into_iter()
            .find(|(_, way)| way.dlid != used.dlid && way.src_path_bits != used.src_path_bits);
        let Some(((path, way), id)) = found.zip(connection.id) else { return false };
        connection.ways.alternate = Alternate::Offered(way);
        let remote_cm_response_timeout = self.config.cm_response_timeout;
        let lap = Lap { remote_cm_response_timeout, ..Lap::of_path(&path) };
        self.cm.offer_path(now, id, lap).is_ok()
    }

    /// What the peer thinks of the path that we offered; nothing if it did not say.
    pub(super) fn path_answered(&mut self, now: Time, id: ConnectionId, apr: Option<&Apr>) {
        let Some(&key) = self.by_id.get(&id) else { return };
        let Some(connection) = self.all.get(&key) else { return };
        let Alternate::Offered(way) = connection.ways.alternate else { return };
        match apr.map(|apr| apr.status) {
            Some(ApStatus::LOADED) => self.load_alternate(key, way),
            _ => self.seek_later(now, key),
        }
    }

    /// A peer offers a second path.
    pub(super) fn path_offered(&mut self, now: Time, id: ConnectionId, lap: &Lap) {
        let known = self.by_id.get(&id).and_then(|key| Some((*key, self.all.get(key)?)));
        let judged = known.ok_or(ApStatus::INVALID_COMM_ID);
        let judged = judged.and_then(|(key, known)| Ok((key, self.judge(known, &lap.path())?)));
        let status = match judged {
            Ok((key, way)) => {
                self.load_alternate(key, way);
                ApStatus::LOADED
            }
            Err(status) => status,
        };
        // It was there a moment ago.
        let _gone = self.cm.answer_path(now, id, Apr { status, ..Apr::default() });
    }

    /// The way that a peer's path means to us, if it makes sense: between the two ports of the
    /// connection, and not the one in use.
    fn judge(&self, connection: &Connection, path: &ReqPath) -> Result<AddressVector, ApStatus> {
        let place = self.place.as_ref().filter(|_| self.config.migrates);
        let place = place.ok_or(ApStatus::NOT_SUPPORTED)?;
        let (port, used) = (&place.port, connection.ways.path);
        let peer = LinkAddress::parse(&connection.peer).gid;
        if (path.local_gid, path.remote_gid) != (peer, place.link.gid) {
            return Err(ApStatus::INVALID_GID);
        }
        let is_port = |lid: Lid, known: Lid| lid.is_unicast() && known.covers(port.lmc, lid);
        if !is_port(path.remote_lid, port.lid) || !is_port(path.local_lid, used.dlid) {
            return Err(ApStatus::INVALID_LID);
        }
        let way = vector(path, false, port, path.hop_limit);
        if (way.dlid, way.src_path_bits) == (used.dlid, used.src_path_bits) {
            return Err(ApStatus::IS_CURRENT_PATH);
        }
        Ok(way)
    }

    /// A peer's request names a second path: says what became of it, as the reply has it (IBA
    /// 12.7.26).
    pub(super) fn take_alternate(&mut self, key: ConnectionKey, path: &ReqPath) -> u8 {
        const ACCEPTED: u8 = 0;
        const NOT_SUPPORTED: u8 = 1;
        const REJECTED: u8 = 2;
        match self.all.get(&key).map(|known| self.judge(known, path)) {
            Some(Ok(way)) => {
                self.load_alternate(key, way);
                ACCEPTED
            }
            Some(Err(ApStatus::NOT_SUPPORTED)) => NOT_SUPPORTED,
            _ => REJECTED,
        }
    }

    /// Our queue pair is to be ready to go on by another path.
    fn load_alternate(&mut self, key: ConnectionKey, way: AddressVector) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        connection.ways.alternate = Alternate::Loaded(way);
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
        if let Alternate::Loaded(way) = connection.ways.alternate {
            connection.ways.path = way;
            connection.ways.migrations += 1;
        }
        self.alternate_lost(now, key);
    }

    /// The queue pair has no second path any more.
    pub(super) fn alternate_lost(&mut self, now: Time, key: ConnectionKey) {
        if let Some(connection) = self.all.get_mut(&key) {
            connection.ways.alternate = Alternate::Lacking;
            self.plan_alternate(now, key);
        }
    }
}
