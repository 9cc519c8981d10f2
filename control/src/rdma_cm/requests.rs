//! Requests of peers for listeners, and the events of connections (IBA 12.9).

use super::RdmaCm;
use super::abi::{ConnectionParameters, EventData, EventKind};
use super::commands::nothing;
use super::error::TIMED_OUT;
use super::id::{CmId, IdState};
use crate::cm::{CmEvent, ConnectionEnd};
use crate::effects::ConnectionKey;
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::address::Lid;
use pollux_wire::mad::cm::ip_service::{IpServiceHeader, PortSpace};
use pollux_wire::mad::cm::{Rej, RejectReason, Rep, Req, TransportService};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::psn::Psn;
use pollux_wire::units::TimeCode;
use std::net::{IpAddr, SocketAddr};

/// Why a request creates no ID.
enum Refusal {
    Rejected(RejectReason),
    /// Dropped as if it was lost: the sender repeats it.
    PutOff,
}

impl RdmaCm {
    /// Handles the events of connections.
    pub(super) fn pump(&mut self, now: Time) {
        while let Some(event) = self.cm.poll_event() {
            match event {
                CmEvent::Request { key, req } => self.handle_request(now, key, &req),
                CmEvent::Reply { key, rep } => self.handle_reply(key, &rep),
                CmEvent::Established { key } => self.handle_established(key),
                CmEvent::Ended { key, end } => self.handle_end(key, &end),
                CmEvent::Closed { key } => self.handle_closed(key),
                // Alternate paths are not supported. An offer gets no answer, and the peer gives up
                // after its retries.
                CmEvent::Remembered { .. }
                | CmEvent::PathOffered { .. }
                | CmEvent::PathAnswered { .. } => {}
            }
        }
    }

    fn handle_request(&mut self, now: Time, key: ConnectionKey, req: &Req) {
        match self.request(key, req) {
            Ok(()) => {}
            Err(Refusal::PutOff) => self.cm.ignore(now, key),
            Err(Refusal::Rejected(reason)) => {
                let _ = self.cm.reject(now, key, reason, &[], [0; 148]);
            }
        }
    }

    /// Creates an ID for a request, and an event for its listener.
    fn request(&mut self, key: ConnectionKey, req: &Req) -> Result<(), Refusal> {
        let unknown = || Refusal::Rejected(RejectReason::INVALID_SERVICE_ID);
        let (space, port) = PortSpace::of_service(req.service_id).ok_or_else(unknown)?;
        let addresses = read_addresses(&req.private_data).ok_or_else(unknown)?;
        let starting_psn = Psn::new(self.rng.next_u64() as u32);
        let (listener, mut id) =
            self.match_listener((space, port), addresses).ok_or_else(unknown)?;
        let is_service = match id.qp_type {
            QpType::Uc => req.transport_service == TransportService::UC,
            _ => req.transport_service == TransportService::RC,
        };
        if id.qp_type == QpType::Ud || !is_service {
            return Err(Refusal::Rejected(RejectReason::INVALID_TRANSPORT_SERVICE_TYPE));
        }
        id.state = IdState::Requested(key);
        (id.path, id.starting_psn) = (Some(path_back(req)), starting_psn);
        id.peer_gid = Some(req.primary.local_gid);
        id.responder_resources = req.initiator_depth;
        let consumer_data = &req.private_data[IpServiceHeader::LEN..];
        let data = ConnectionParameters {
            qpn: req.local_qpn,
            private_data: consumer_data.to_vec(),
            srq: req.srq,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.end_to_end_flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            ..ConnectionParameters::default()
        };
        let number = self.add_request(listener, id, &EventData::Connection(data));
        self.connections.insert(key, number.ok_or(Refusal::PutOff)?);
        Ok(())
    }

    /// The ID that listens at our address, and a new ID for a request from `from`.
    pub(super) fn match_listener(
        &self,
        (space, port): (PortSpace, u16),
        (from, to): (SocketAddr, IpAddr),
    ) -> Option<(u32, CmId)> {
        let number = self.ports.listener(space, port, to)?;
        let listener = self.ids.get(&number)?;
        let mut id = CmId::new(listener.file, 0, space, listener.qp_type);
        id.source = Some(SocketAddr::new(to, port));
        id.destination = Some(from);
        Some((number, id))
    }

    /// Adds the ID of a request, and queues the event for the program. Returns `None` beyond a
    /// limit.
    pub(super) fn add_request(&mut self, listener: u32, id: CmId, data: &EventData) -> Option<u32> {
        let IdState::Listening { backlog, waiting } = self.ids.get(&listener)?.state else {
            return None;
        };
        let number = if waiting < backlog { self.add_id(id)? } else { return None };
        if self.emit_request(listener, number, data) {
            return Some(number);
        }
        self.remove_id(number);
        None
    }

    fn handle_reply(&mut self, key: ConnectionKey, rep: &Rep) {
        let Some(number) = self.of_connection(key, IdState::Replied(key)) else { return };
        let data = ConnectionParameters {
            qpn: rep.local_qpn,
            private_data: rep.private_data.to_vec(),
            srq: rep.srq,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.end_to_end_flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            ..ConnectionParameters::default()
        };
        self.emit(number, EventKind::ConnectResponse, 0, &EventData::Connection(data));
    }

    fn handle_established(&mut self, key: ConnectionKey) {
        if let Some(number) = self.of_connection(key, IdState::Connected(key)) {
            self.emit(number, EventKind::Established, 0, &nothing());
        }
    }

    fn handle_end(&mut self, key: ConnectionKey, end: &ConnectionEnd) {
        let number = self.connections.get(&key);
        let before = number.and_then(|number| self.ids.get(number)).map(|id| id.state);
        let Some(number) = self.of_connection(key, IdState::Ended(key)) else { return };
        let status = if *end == ConnectionEnd::TimedOut { TIMED_OUT } else { 0 };
        match (before, end) {
            (Some(IdState::Ended(_)), _) => {}
            (Some(IdState::Connected(_)), _) | (_, ConnectionEnd::Asked) => {
                self.emit(number, EventKind::Disconnected, status, &nothing());
            }
            (_, ConnectionEnd::Rejected(rej)) => {
                let Rej { reason, private_data, .. } = **rej;
                let private_data = private_data.to_vec();
                let data = ConnectionParameters { private_data, ..ConnectionParameters::default() };
                let data = EventData::Connection(data);
                self.emit(number, EventKind::Rejected, reason.0.into(), &data);
            }
            _ => self.emit(number, EventKind::Unreachable, TIMED_OUT, &nothing()),
        }
    }

    /// Handles the end of time-wait: the program may reuse the QPN.
    fn handle_closed(&mut self, key: ConnectionKey) {
        let Some(number) = self.connections.remove(&key) else { return };
        if self.ids.get(&number).is_some_and(|id| id.was_connected) {
            self.emit(number, EventKind::TimeWaitExit, 0, &nothing());
        }
    }

    /// Moves the ID of a connection to its next state, and returns it; `None` if the program has
    /// destroyed it.
    fn of_connection(&mut self, key: ConnectionKey, next: IdState) -> Option<u32> {
        let number = *self.connections.get(&key)?;
        let id = self.ids.get_mut(&number)?;
        id.was_connected |= next == IdState::Connected(key);
        id.state = next;
        Some(number)
    }
}

/// The address of the peer and our address, from the private data of a request.
pub(super) fn read_addresses(private_data: &[u8]) -> Option<(SocketAddr, IpAddr)> {
    IpServiceHeader::read(private_data).ok()?.0.addresses()
}

/// The path of a request, from our end.
fn path_back(req: &Req) -> PathRecord {
    let ours = &req.primary;
    let near = |lid: Lid| if lid.is_unicast() { lid } else { Lid::NONE };
    PathRecord {
        sgid: ours.remote_gid,
        dgid: ours.local_gid,
        slid: near(ours.remote_lid),
        dlid: near(ours.local_lid),
        flow_label: ours.flow_label,
        hop_limit: ours.hop_limit,
        traffic_class: ours.traffic_class,
        p_key: req.p_key,
        sl: ours.sl,
        mtu: req.path_mtu,
        rate: ours.packet_rate,
        packet_life_time: TimeCode(ours.local_ack_timeout.0.saturating_sub(1)),
        ..PathRecord::default()
    }
}
