//! Datagram services: a client requests the queue pair of a service ID (SIDR, IBA 12.11). There is
//! no connection: a request is repeated until its reply arrives, and each repetition is answered
//! again.

use super::abi::{ConnectionParameters, EventData, EventKind};
use super::commands::{nothing, padded};
use super::error::TIMED_OUT;
use super::id::{DATAGRAM_Q_KEY, IdState};
use super::requests::read_addresses;
use super::{CmId, RdmaCm, RdmaCmError};
use crate::cm::{as_requested, vector};
use crate::mad::{Envelope, MadAddress};
use pollux_verbs::time::Time;
use pollux_verbs::{AddressVector, QpType};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::cm::ip_service::{IpServiceHeader, PortSpace};
use pollux_wire::mad::cm::{CmMessage, CommId, SidrRep, SidrReq, SidrStatus};
use pollux_wire::mad::service_id::ServiceId;
use pollux_wire::units::TimeCode;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The number of repetitions of a request, and their interval.
const REPEATS_MAX: u8 = 15;
const REPEAT_AFTER: Duration = Duration::from_secs(1);
/// Queued messages, at most. Excess messages are lost, and repeated by their senders.
const MESSAGES_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Datagrams {
    outgoing: VecDeque<Envelope>,
    /// Our requests, by their request ID.
    sent: BTreeMap<u32, SentSidrReq>,
    /// Requests of peers, by the ID that was created for each.
    received: BTreeMap<u32, ReceivedSidrReq>,
}

#[derive(Debug)]
struct SentSidrReq {
    number: u32,
    message: Envelope,
    repeats_left: u8,
    due: Time,
}

#[derive(Debug)]
struct ReceivedSidrReq {
    from: MadAddress,
    transaction_id: u64,
    request_id: CommId,
    service_id: ServiceId,
    reply: Option<SidrRep>,
}

impl ReceivedSidrReq {
    fn envelope(&self, rep: &SidrRep) -> Envelope {
        let mad = CmMessage::SidrRep(*rep).emit_mad(self.transaction_id);
        Envelope { peer: self.from, mad }
    }
}

impl Datagrams {
    pub(super) fn poll_transmit(&mut self) -> Option<Envelope> {
        self.outgoing.pop_front()
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.sent.values().map(|sent| sent.due).min()
    }

    fn send(&mut self, message: Envelope) {
        if self.outgoing.len() < MESSAGES_MAX {
            self.outgoing.push_back(message);
        }
    }

    /// Forgets the requests of an ID.
    pub(super) fn forget(&mut self, number: u32) {
        self.sent.retain(|_, sent| sent.number != number);
        self.received.remove(&number);
    }
}

impl RdmaCm {
    /// Requests the queue pair of a service.
    pub(super) fn request_service(
        &mut self,
        now: Time,
        number: u32,
        (to, p_key): (MadAddress, PKey),
        service_id: ServiceId,
        private_data: [u8; 216],
    ) -> Result<(), RdmaCmError> {
        let request_id = self.rng.next_u64() as u32;
        let req = SidrReq { request_id: CommId(request_id), p_key, service_id, private_data };
        let mad = CmMessage::SidrReq(req).emit_mad(request_id.into());
        let message = Envelope { peer: to, mad };
        let due = now + REPEAT_AFTER;
        let sent = SentSidrReq { number, message, repeats_left: REPEATS_MAX, due };
        self.datagrams.sent.insert(request_id, sent);
        self.datagrams.send(message);
        self.ids.get_mut(&number).ok_or(RdmaCmError::NoId)?.state = IdState::RequestingService;
        Ok(())
    }

    pub(super) fn handle_datagram_timeouts(&mut self, now: Time) {
        let is_due = |_: &u32, sent: &mut SentSidrReq| sent.due <= now;
        let due: Vec<_> = self.datagrams.sent.extract_if(.., is_due).collect();
        for (request_id, sent) in due {
            if sent.repeats_left == 0 {
                self.end_service(sent.number, TIMED_OUT);
                continue;
            }
            self.datagrams.send(sent.message);
            let repeats_left = sent.repeats_left - 1;
            let next = SentSidrReq { repeats_left, due: now + REPEAT_AFTER, ..sent };
            self.datagrams.sent.insert(request_id, next);
        }
    }

    fn end_service(&mut self, number: u32, status: i32) {
        if let Some(id) = self.ids.get_mut(&number) {
            id.state = IdState::RouteResolved;
        }
        self.emit(number, EventKind::Unreachable, status, &nothing());
    }

    /// Handles a SIDR message about a request or a service of this host. Returns `false` if it is
    /// any other message.
    pub(super) fn handle_datagram_mad(&mut self, envelope: &Envelope) -> bool {
        match CmMessage::parse_mad(&envelope.mad) {
            Ok((header, CmMessage::SidrReq(req))) => {
                self.handle_service_request(&envelope.peer, header.transaction_id, &req)
            }
            Ok((_, CmMessage::SidrRep(rep))) => self.handle_service_reply(&envelope.peer, &rep),
            _ => false,
        }
    }

    fn handle_service_reply(&mut self, from: &MadAddress, rep: &SidrRep) -> bool {
        let request_id = rep.request_id.0;
        let sent = self.datagrams.sent.get(&request_id);
        let Some(number) = sent.filter(|it| it.message.peer.is_same_port(from)).map(|it| it.number)
        else {
            return false;
        };
        self.datagrams.sent.remove(&request_id);
        if rep.status != SidrStatus::VALID {
            self.end_service(number, rep.status.0.into());
            return true;
        }
        let Some(id) = self.ids.get_mut(&number) else { return true };
        id.state = IdState::Found;
        let (Some(path), Some(host)) = (id.path, &self.host) else { return true };
        let along = as_requested(&path, TimeCode(0));
        let vector = vector(&along, true, &host.local(), path.hop_limit);
        let (qpn, q_key) = (rep.qpn, rep.q_key);
        let private_data = rep.private_data.to_vec();
        let data = EventData::Datagram { vector, qpn, q_key, private_data };
        self.emit(number, EventKind::Established, 0, &data);
        true
    }

    fn handle_service_request(
        &mut self,
        from: &MadAddress,
        transaction_id: u64,
        req: &SidrReq,
    ) -> bool {
        let is_same = |received: &&ReceivedSidrReq| {
            received.request_id == req.request_id && received.from.is_same_port(from)
        };
        if let Some(received) = self.datagrams.received.values().find(is_same) {
            if let Some(reply) = received.reply.map(|reply| received.envelope(&reply)) {
                self.datagrams.send(reply);
            }
            return true;
        }
        let Some((listener, id)) = self.requested_service(req) else { return false };
        let data = EventData::Datagram {
            vector: AddressVector::default(),
            qpn: Default::default(),
            q_key: QKey(0),
            private_data: req.private_data[IpServiceHeader::LEN..].to_vec(),
        };
        if let Some(number) = self.add_request(listener, id, &data) {
            let (request_id, service_id) = (req.request_id, req.service_id);
            let received = ReceivedSidrReq {
                from: *from,
                transaction_id,
                request_id,
                service_id,
                reply: None,
            };
            self.datagrams.received.insert(number, received);
        }
        true
    }

    /// The ID that listens, and a new ID for the request.
    fn requested_service(&self, req: &SidrReq) -> Option<(u32, CmId)> {
        let at = PortSpace::of_service(req.service_id)?;
        let (listener, mut id) = self.match_listener(at, read_addresses(&req.private_data)?)?;
        id.state = IdState::ServiceRequested;
        (id.qp_type == QpType::Ud).then_some((listener, id))
    }

    /// Accepts a request: replies with the queue pair of the service.
    pub(super) fn serve(
        &mut self,
        number: u32,
        parameters: &ConnectionParameters,
    ) -> Result<(), RdmaCmError> {
        let q_key = match parameters.q_key {
            QKey(0) => DATAGRAM_Q_KEY,
            q_key => q_key,
        };
        let rep = SidrRep {
            status: SidrStatus::VALID,
            qpn: parameters.qpn,
            q_key,
            private_data: padded(&parameters.private_data)?,
            ..SidrRep::default()
        };
        self.reply(number, rep, IdState::Served)
    }

    pub(super) fn refuse_service(
        &mut self,
        number: u32,
        private_data: &[u8],
    ) -> Result<(), RdmaCmError> {
        let private_data = padded(private_data)?;
        let rep = SidrRep { status: SidrStatus::REJECTED, private_data, ..SidrRep::default() };
        self.reply(number, rep, IdState::Served)
    }

    fn reply(&mut self, number: u32, rep: SidrRep, next: IdState) -> Result<(), RdmaCmError> {
        let received = self.datagrams.received.get_mut(&number).ok_or(RdmaCmError::Invalid)?;
        let ReceivedSidrReq { request_id, service_id, .. } = *received;
        let rep = SidrRep { request_id, service_id, ..rep };
        received.reply = Some(rep);
        let envelope = received.envelope(&rep);
        self.datagrams.send(envelope);
        self.ids.get_mut(&number).ok_or(RdmaCmError::NoId)?.state = next;
        Ok(())
    }
}
