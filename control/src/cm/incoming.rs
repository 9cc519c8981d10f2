//! CM messages from peers (REQ, REP, RTU and the others). This module finds the connection of each
//! message or the listener of a REQ, and replies to messages without a connection (IBA 12.9.8).

use super::connection::{Connection, Phase};
use super::index::Source;
use super::outbox::Outbox;
use super::{Cm, CmDrop, Role};
use crate::effects::ConnectionKey;
use crate::mad::{Envelope, MadAddress};
use pollux_verbs::time::Time;
use pollux_wire::address::Guid;
use pollux_wire::mad::cm::{
    AnsweredMessage, ApStatus, Apr, CmMessage, CommId, Drep, Dreq, Lap, Mra, Rej, RejectReason,
    Rep, Req, SidrRep, SidrReq, SidrStatus,
};
use pollux_wire::mad::{Attribute, MadHeader, Method, MgmtClass};

/// A CM datagram, parsed once.
#[derive(Clone, Copy, Debug)]
pub struct CmDatagram {
    envelope: Envelope,
    /// The transaction ID and the message; `None` if it is no valid CM message.
    message: Option<(u64, CmMessage)>,
}

impl CmDatagram {
    pub fn parse(envelope: &Envelope) -> Self {
        let message = CmMessage::parse_mad(&envelope.mad).ok();
        let message = message.map(|(header, message)| (header.transaction_id, message));
        Self { envelope: *envelope, message }
    }

    pub const fn from(&self) -> &MadAddress {
        &self.envelope.peer
    }

    pub const fn req(&self) -> Option<&Req> {
        match &self.message {
            Some((_, CmMessage::Req(req))) => Some(req),
            _ => None,
        }
    }
}

impl Cm {
    pub fn handle_mad(&mut self, now: Time, datagram: &CmDatagram) {
        let CmDatagram { envelope, message: Some((id, message)) } = datagram else {
            return self.handle_unreadable(&datagram.envelope);
        };
        let (from, id) = (&envelope.peer, *id);
        match message {
            CmMessage::Req(req) => self.handle_req(now, from, id, req),
            CmMessage::Rep(rep) => self.handle_rep(now, from, id, rep),
            CmMessage::Rtu(rtu) => {
                let ids = (rtu.remote_comm_id, Some(rtu.local_comm_id));
                self.dispatch(now, from, ids, |it, out| it.handle_rtu(out));
            }
            CmMessage::Mra(mra) => self.handle_mra(now, from, mra),
            CmMessage::Rej(rej) => self.handle_rej(now, from, rej),
            CmMessage::Dreq(dreq) => self.handle_dreq(now, from, id, dreq),
            CmMessage::Drep(drep) => {
                let ids = (drep.remote_comm_id, Some(drep.local_comm_id));
                self.dispatch(now, from, ids, |it, out| it.handle_drep(now, out));
            }
            CmMessage::Lap(lap) => self.handle_lap(now, from, id, lap),
            CmMessage::Apr(apr) => {
                let ids = (apr.remote_comm_id, Some(apr.local_comm_id));
                self.dispatch(now, from, ids, |it, out| it.handle_apr(out, id, apr));
            }
            CmMessage::SidrReq(req) => self.refuse_sidr(from, id, req),
            CmMessage::SidrRep(_) => self.out.count(CmDrop::Unknown),
        }
    }

    /// Rejects a REQ of another class version: its sender's communication ID is at the same offset
    /// as in ours.
    fn handle_unreadable(&mut self, envelope: &Envelope) {
        self.out.count(CmDrop::NotOurs);
        let Ok((header, rest)) = MadHeader::read(&envelope.mad) else { return };
        let is_req = header.mgmt_class == MgmtClass::COMM_MGT
            && header.method == Method::SEND
            && header.attribute_id == Req::ID
            && header.class_version != MgmtClass::COMM_MGT.version();
        if let (true, Ok((req, _))) = (is_req, Req::read(rest)) {
            let reason = RejectReason::UNSUPPORTED_CLASS_VERSION;
            self.refuse(&envelope.peer, header.transaction_id, &req, reason);
        }
    }

    /// The connection of a message, by our communication ID `own` and the peer's ID `others`.
    /// Without `others`, the peer's ID is not checked.
    fn find(
        &self,
        from: &MadAddress,
        own: CommId,
        others: Option<CommId>,
    ) -> Result<ConnectionKey, CmDrop> {
        let connection = self.connections.get(&own).ok_or(CmDrop::Unknown)?;
        if others.is_some() && connection.remote_id != others {
            return Err(CmDrop::Unknown);
        }
        if !connection.peer.is_same_port(from) {
            return Err(CmDrop::Stranger);
        }
        Ok(connection.key)
    }

    /// Passes a message to the connection with these IDs (ours, the peer's). If there is none,
    /// counts a drop and returns its reason.
    fn dispatch(
        &mut self,
        now: Time,
        from: &MadAddress,
        (own, others): (CommId, Option<CommId>),
        change: impl FnOnce(&mut Connection, &mut Outbox),
    ) -> Option<CmDrop> {
        match self.find(from, own, others) {
            Ok(key) => {
                self.dispatch_to(now, key, change);
                None
            }
            Err(reason) => {
                self.out.count(reason);
                Some(reason)
            }
        }
    }

    fn dispatch_to(
        &mut self,
        now: Time,
        key: ConnectionKey,
        change: impl FnOnce(&mut Connection, &mut Outbox),
    ) {
        if self.change(now, key, change).is_err() {
            self.out.count(CmDrop::Unknown);
        }
    }

    fn handle_req(&mut self, now: Time, from: &MadAddress, transaction_id: u64, req: &Req) {
        if self.is_known(now, from, req) {
            return;
        }
        let same_qp = self.index.by_remote_qp(req.primary.local_gid, req.local_qpn);
        let stale: Vec<_> = same_qp.filter(|key| self.is_of(*key, from)).collect();
        if !self.end_stale(now, &stale) {
            self.out.count(CmDrop::Stale);
            let reason = RejectReason::STALE_CONNECTION;
            return self.refuse(from, transaction_id, req, reason);
        }
        if let Err((drop, answer)) = self.admit(from, req) {
            self.out.count(drop);
            if let Some(reason) = answer {
                self.refuse(from, transaction_id, req, reason);
            }
            return;
        }
        let key = self.new_key();
        let listener_data = self.listeners.get(&req.service_id).cloned();
        let asked = (*from, transaction_id, req);
        let connection = Connection::passive(now, key, asked, listener_data, &mut self.out);
        self.enter(connection);
    }

    fn is_of(&self, key: ConnectionKey, from: &MadAddress) -> bool {
        self.get(key).is_some_and(|connection| connection.peer.is_same_port(from))
    }

    /// Whether a connection of the port that sent a REQ has the communication ID of the REQ.
    pub(crate) fn is_of_peer(&self, from: &MadAddress, req: &Req) -> bool {
        let mut named = self.index.by_remote_id(req.local_comm_id, req.primary.local_gid);
        named.any(|key| self.is_of(key, from))
    }

    /// Answers a repeated REQ again, and returns whether it is one. If a peer reuses a
    /// communication ID for another request, it has restarted and lost the connection with that ID,
    /// which ends as stale.
    fn is_known(&mut self, now: Time, from: &MadAddress, req: &Req) -> bool {
        let named = self.index.by_remote_id(req.local_comm_id, req.primary.local_gid);
        let named: Vec<_> = named.filter(|key| self.is_of(*key, from)).collect();
        for key in named {
            let Some(connection) = self.get(key) else { continue };
            if connection.role == Role::Passive && *connection.req == *req {
                self.dispatch_to(now, key, |connection, out| connection.handle_req_again(out));
                return true;
            }
            self.handle_stale(now, key);
        }
        false
    }

    fn handle_stale(&mut self, now: Time, key: ConnectionKey) {
        let dreq_id = self.transaction_id();
        self.dispatch_to(now, key, |connection, out| connection.handle_stale(now, out, dreq_id));
    }

    /// Ends stale connections. Returns whether each of them waited for a DREP already, so that a
    /// new connection may have their queue pair.
    fn end_stale(&mut self, now: Time, stale: &[ConnectionKey]) -> bool {
        let mut is_free = true;
        for key in stale {
            let is_ending = self.get(*key).is_some_and(|it| it.state.phase() == Phase::DreqSent);
            is_free &= is_ending;
            self.handle_stale(now, *key);
        }
        is_free
    }

    /// Checks a REQ against listeners and limits. If it is refused, returns the drop reason, and
    /// the reject reason if a REJ is sent.
    ///
    /// Beyond a limit no REJ is sent: a sender without an answer repeats its REQ after a timeout,
    /// while Linux sends a new REQ at once after a REJ.
    fn admit(&self, from: &MadAddress, req: &Req) -> Result<(), (CmDrop, Option<RejectReason>)> {
        if !self.listeners.contains_key(&req.service_id) {
            return Err((CmDrop::NoListener, Some(RejectReason::INVALID_SERVICE_ID)));
        }
        let gids = &self.port.gids;
        if !gids.is_empty() && !gids.contains(&req.primary.remote_gid) {
            return Err((CmDrop::WrongGid, Some(RejectReason::INVALID_PRIMARY_REMOTE_GID)));
        }
        let (of_peer, of_all) = self.index.pending(Source::of(from));
        let config = &self.out.config;
        let is_too_far = from.is_beyond_router()
            && self.index.by_router(from.lid) >= config.connections_per_router_max;
        if of_peer >= config.requests_pending_per_peer_max
            || of_all >= config.requests_pending_max
            || is_too_far
        {
            return Err((CmDrop::TooManyRequests, None));
        }
        if self.is_full() {
            return Err((CmDrop::TableFull, None));
        }
        Ok(())
    }

    /// Rejects a REQ that has no connection, and therefore no communication ID of ours.
    fn refuse(&mut self, to: &MadAddress, transaction_id: u64, req: &Req, reason: RejectReason) {
        let mut rej = Rej {
            remote_comm_id: req.local_comm_id,
            message_rejected: AnsweredMessage::REQ,
            reason,
            private_data: self
                .listeners
                .get(&req.service_id)
                .map_or([0; 148], |listener_data| **listener_data),
            ..Rej::default()
        };
        if let (RejectReason::INVALID_PRIMARY_REMOTE_GID, Some(own)) =
            (reason, self.port.gids.first())
        {
            rej = rej.with_info(&own.0);
        }
        self.out.send(to, transaction_id, &CmMessage::Rej(rej));
    }

    fn handle_rep(&mut self, now: Time, from: &MadAddress, transaction_id: u64, rep: &Rep) {
        let key = match self.find(from, rep.remote_comm_id, None) {
            Ok(key) if self.matches_remote_id(key, rep.local_comm_id) => key,
            Err(CmDrop::Stranger) => return self.out.count(CmDrop::Stranger),
            known => {
                known.into_iter().for_each(|key| self.handle_forgotten_by_peer(now, key));
                return self.refuse_rep(from, transaction_id, rep);
            }
        };
        let Some(connection) = self.get(key) else { return };
        let is_first = connection.awaits_rep();
        let same_qp = self.index.by_remote_qp(connection.peer_gid, rep.local_qpn);
        let stale: Vec<_> =
            same_qp.filter(|other| *other != key && self.is_of(*other, from)).collect();
        if is_first && !self.end_stale(now, &stale) {
            self.out.count(CmDrop::Stale);
            return self.dispatch_to(now, key, |connection, out| {
                connection.refuse_stale_rep(now, out, rep);
            });
        }
        self.dispatch_to(now, key, |connection, out| connection.handle_rep(now, out, rep));
    }

    /// Handles a REP with a new ID to our probing REQ: the peer took the REQ for a new request, so
    /// it no longer has the connection, which ends as stale.
    fn handle_forgotten_by_peer(&mut self, now: Time, key: ConnectionKey) {
        let connection = self.get(key);
        let is_open =
            |it: &&Connection| it.role == Role::Active && it.state.phase() == Phase::Established;
        if connection.filter(is_open).is_some() {
            self.handle_stale(now, key);
        }
    }

    /// Whether a REP with the peer's communication ID `remote_id` is for this connection of the
    /// active side: the peer has sent this ID before, or none yet.
    fn matches_remote_id(&self, key: ConnectionKey, remote_id: CommId) -> bool {
        let connection = self.get(key);
        connection.is_some_and(|connection| {
            connection.role == Role::Active
                && connection.remote_id.is_none_or(|known| known == remote_id)
        })
    }

    /// Rejects an unexpected REP. Without a REJ, its sender would wait for an RTU until its retries
    /// are used up.
    fn refuse_rep(&mut self, to: &MadAddress, transaction_id: u64, rep: &Rep) {
        self.out.count(CmDrop::Unknown);
        let rej = Rej {
            local_comm_id: rep.remote_comm_id,
            remote_comm_id: rep.local_comm_id,
            message_rejected: AnsweredMessage::REP,
            reason: RejectReason::INVALID_COMM_ID,
            ..Rej::default()
        };
        self.out.send(to, transaction_id, &CmMessage::Rej(rej));
    }

    fn handle_mra(&mut self, now: Time, from: &MadAddress, mra: &Mra) {
        // The peer's ID is not known before the REP.
        let is_early = mra.message_mraed == AnsweredMessage::REQ;
        let others = (!is_early).then_some(mra.local_comm_id);
        let ids = (mra.remote_comm_id, others);
        self.dispatch(now, from, ids, |connection, out| connection.handle_mra(now, out, mra));
    }

    fn handle_rej(&mut self, now: Time, from: &MadAddress, rej: &Rej) {
        let timed_out = rej.timed_out_ca().and_then(|guid| self.find_timed_out(from, guid, rej));
        match timed_out.map_or_else(|| self.find_rejected(from, rej), Ok) {
            Ok(key) => {
                self.dispatch_to(now, key, |connection, out| connection.handle_rej(now, out, rej));
            }
            Err(reason) => self.out.count(reason),
        }
    }

    /// The connection that a REJ is for. A peer that rejects a REQ may have no ID for the
    /// connection, or a new one.
    fn find_rejected(&self, from: &MadAddress, rej: &Rej) -> Result<ConnectionKey, CmDrop> {
        let key = self.find(from, rej.remote_comm_id, None)?;
        let connection = self.get(key).ok_or(CmDrop::Unknown)?;
        match connection.remote_id {
            Some(known) if known != rej.local_comm_id => Err(CmDrop::Unknown),
            _ => Ok(key),
        }
    }

    /// The connection of a REJ because of a timeout. Its sender may have received no message with
    /// our communication ID, so the sender's own ID and CA GUID identify the connection.
    fn find_timed_out(&self, from: &MadAddress, guid: Guid, rej: &Rej) -> Option<ConnectionKey> {
        let is_meant = |key: &ConnectionKey| {
            let connection = self.get(*key);
            connection.is_some_and(|connection| connection.remote_ca_guid() == Some(guid))
        };
        let named = self.index.by_remote_id_of_any(rej.local_comm_id);
        named.filter(is_meant).find(|key| self.is_of(*key, from))
    }

    fn handle_dreq(&mut self, now: Time, from: &MadAddress, transaction_id: u64, dreq: &Dreq) {
        let (own, others) = (dreq.remote_comm_id, dreq.local_comm_id);
        let drop = self.dispatch(now, from, (own, Some(others)), |connection, out| {
            connection.handle_dreq(now, out, transaction_id, dreq);
        });
        if drop == Some(CmDrop::Unknown) {
            let drep = Drep { local_comm_id: own, remote_comm_id: others, private_data: [0; 224] };
            self.out.send(from, transaction_id, &CmMessage::Drep(drep));
        }
    }

    fn handle_lap(&mut self, now: Time, from: &MadAddress, transaction_id: u64, lap: &Lap) {
        let (own, others) = (lap.remote_comm_id, lap.local_comm_id);
        let drop = self.dispatch(now, from, (own, Some(others)), |connection, out| {
            connection.handle_lap(out, transaction_id, lap);
        });
        if drop == Some(CmDrop::Unknown) {
            let apr = Apr {
                local_comm_id: own,
                remote_comm_id: others,
                status: ApStatus::INVALID_COMM_ID,
                ..Apr::default()
            };
            self.out.send(from, transaction_id, &CmMessage::Apr(apr));
        }
    }

    /// Rejects a request for a datagram service: our service IDs are for connections only.
    fn refuse_sidr(&mut self, to: &MadAddress, transaction_id: u64, req: &SidrReq) {
        self.out.count(CmDrop::NoListener);
        let rep = SidrRep {
            request_id: req.request_id,
            status: SidrStatus::UNSUPPORTED_SERVICE_ID,
            service_id: req.service_id,
            ..SidrRep::default()
        };
        self.out.send(to, transaction_id, &CmMessage::SidrRep(rep));
    }
}
