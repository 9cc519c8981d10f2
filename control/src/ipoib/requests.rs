//! Verifies that a REQ comes from the port that it names.
//!
//! A REQ names its sender's port by GID, and may have a GRH with the GID too. The sender can forge
//! both, but not its LID, and the SA knows the LID of each GID. So a REQ is accepted if the path to
//! the named port leads to the LID that sent the REQ.
//!
//! ```text
//!   REQ --of a known connection of the sender------> connection manager
//!    +--path known --leads there-------------------> connection manager
//!    |           \--leads elsewhere-------------------> dropped; the port may have moved, so the
//!    |                                               path is queried again
//!    +--path query failed a moment ago--------------> dropped
//!    +--path unknown--> held, SA query --leads there--> connection manager
//!                                      \--else--------> dropped
//! ```
//!
//! A port that only sends REQs gets no entry in the table of paths. The number of held REQs is
//! limited, and so is the rate at which each LID adds to them. So one port can exhaust neither our
//! SA queries nor the space for held REQs.
//!
//! Beyond a router the LID proves nothing. A REQ from a GID of another subnet is accepted if the SA
//! knows a router to it; the connection manager limits the connections of each router LID.

use super::{InterfaceDrop, IpoibInterface, Purpose};
use crate::cm::CmDatagram;
use crate::mad::{Envelope, MadAddress};
use crate::sa::{SaError, SaQuery, SaReply};
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Lid};
use pollux_wire::mad::cm::ipoib::Dialect;
use pollux_wire::mad::cm::{CommId, Req};
use pollux_wire::mad::sa::PathRecord;
use std::collections::BTreeMap;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// REQs of unverified ports, by the GID that they name, the sender's LID and its communication ID.
/// Of a repeated REQ, the last copy is held.
#[derive(Default)]
pub(super) struct Requests {
    /// Boxed, because a map node has space for eleven values even when it holds fewer.
    held: BTreeMap<(Gid, Lid, CommId), Box<CmDatagram>>,
    /// For each LID, the number of unverified REQs that may have caused an SA query, in the second
    /// from `since` on. There are at most 2^16 LIDs.
    looked_for: BTreeMap<Lid, u32>,
    since: Time,
}

impl Requests {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        if now >= self.since + SECOND {
            self.looked_for.clear();
            self.since = now;
        }
    }

    fn take(&mut self, gid: Gid) -> Vec<CmDatagram> {
        let first = (gid, Lid(0), CommId(0));
        let last = (gid, Lid(u16::MAX), CommId(u32::MAX));
        let keys: Vec<_> = self.held.range(first..=last).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.held.remove(key)).map(|held| *held).collect()
    }
}

impl IpoibInterface {
    pub(super) fn handle_cm_mad(&mut self, now: Time, envelope: &Envelope) {
        let datagram = CmDatagram::parse(envelope);
        match datagram.req() {
            Some(req) if self.is_to_us(req) => self.handle_req(now, &datagram, req),
            _ => self.connections.handle_mad(now, &datagram),
        }
    }

    fn is_to_us(&self, req: &Req) -> bool {
        let is_ours = Dialect::of(req.service_id).is_some_and(|(_, qpn)| qpn == self.config.qpn);
        self.is_up() && self.config.peer.is_on() && is_ours
    }

    fn handle_req(&mut self, now: Time, datagram: &CmDatagram, req: &Req) {
        let (from, gid) = (datagram.from(), req.primary.local_gid);
        if from.global.is_some_and(|global| global.remote_gid != gid) {
            return self.drops.count(InterfaceDrop::Imposter);
        }
        if self.connections.is_of_peer(from, req) {
            return self.connections.handle_mad(now, datagram);
        }
        let path = self.paths.get(gid);
        let record = path.and_then(|path| path.record.as_deref());
        let has_failed = path.is_some_and(|path| path.has_failed(now));
        let is_failed = has_failed && !self.is_asked(Purpose::Path(gid));
        match record {
            Some(record) if self.leads_to(record, from) => {
                self.connections.handle_mad(now, datagram);
            }
            Some(_) => {
                self.drops.count(InterfaceDrop::Imposter);
                if self.may_look_for(now, from.lid) {
                    self.refresh_path(now, gid);
                }
            }
            None if is_failed => self.drops.count(InterfaceDrop::RequestUnverified),
            None => self.hold_request(now, datagram, req),
        }
    }

    /// Holds a REQ until the SA answers the query for its port.
    fn hold_request(&mut self, now: Time, datagram: &CmDatagram, req: &Req) {
        let (lid, gid) = (datagram.from().lid, req.primary.local_gid);
        let key = (gid, lid, req.local_comm_id);
        let is_new = !self.requests.held.contains_key(&key);
        let is_full = self.requests.held.len() >= self.config.requests_held_max;
        if is_new && (is_full || !self.may_look_for(now, lid)) {
            return self.drops.count(InterfaceDrop::RequestPutOff);
        }
        self.requests.held.insert(key, Box::new(*datagram));
        // An outstanding query for the path serves as well.
        let purposes = [Purpose::Path(gid), Purpose::Requester(gid)];
        if !purposes.into_iter().any(|purpose| self.is_asked(purpose)) {
            let query = self.path_query(gid);
            self.ask(now, Purpose::Requester(gid), query);
        }
    }

    pub(super) fn handle_requester_reply(
        &mut self,
        now: Time,
        gid: Gid,
        result: Result<SaReply, SaError>,
    ) {
        let record = match result {
            Ok(SaReply::Path(record)) => Some(record),
            _ => None,
        };
        self.verify_requests(now, gid, record.as_ref());
    }

    /// Handles the held REQs that name a port, after the query for its path has ended. `record` is
    /// the path, if the query got one.
    pub(super) fn verify_requests(&mut self, now: Time, gid: Gid, record: Option<&PathRecord>) {
        for datagram in self.requests.take(gid) {
            match record {
                Some(record) if self.leads_to(record, datagram.from()) => {
                    self.connections.handle_mad(now, &datagram);
                }
                Some(_) => self.drops.count(InterfaceDrop::Imposter),
                None => self.drops.count(InterfaceDrop::RequestUnverified),
            }
        }
    }

    pub(super) fn path_query(&self, gid: Gid) -> SaQuery {
        SaQuery::path(self.port_gid(), gid, self.config.p_key.full(), self.traffic_class())
    }

    /// Whether a path leads to the sender of a datagram. The low bits of a LID only select among
    /// paths to one port.
    fn leads_to(&self, record: &PathRecord, from: &MadAddress) -> bool {
        if from.is_beyond_router() {
            return record.hop_limit > 0;
        }
        let lmc = self.lmc();
        record.dlid.0 >> lmc == from.lid.0 >> lmc
    }

    /// Whether an unverified REQ of this LID may cause an SA query. Counts the REQ.
    fn may_look_for(&mut self, now: Time, lid: Lid) -> bool {
        let lmc = self.lmc();
        let base = Lid(lid.0 >> lmc << lmc);
        self.requests.handle_timeout(now);
        let count = self.requests.looked_for.entry(base).or_default();
        let may = *count < self.config.unverified_per_lid_per_second_max;
        *count += u32::from(may);
        may
    }
}
