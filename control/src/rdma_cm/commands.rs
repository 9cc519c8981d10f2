//! The commands of a program.

use super::abi::{
    Command, ConnectionParameters, EventData, EventKind, IdOption, emit_attributes, number,
};
use super::error::TIMED_OUT;
use super::id::{CmId, IdState};
use super::ports::Binding;
use super::{BACKLOG_MAX, CommandAnswer, FileId, RdmaCm, RdmaCmError, ResolvedAddress};
use crate::cm::{Connect, request_along};
use crate::mad::MadAddress;
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::mad::cm::ip_service::{IpServiceHeader, PortSpace};
use pollux_wire::mad::cm::{RejectReason, Rep, Req, TransportService};
use pollux_wire::psn::Psn;
use pollux_wire::units::TimeCode;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The time in which an adapter sends an ACK: 0.13 s, the value of Linux for adapters that report
/// none.
const CA_ACK_DELAY: TimeCode = TimeCode(15);
/// The queue pair event by which the first data count as the RTU (`IBV_EVENT_COMM_EST`).
const COMMUNICATION_ESTABLISHED: u32 = 4;
/// The longest wait for an address or a route.
const RESOLUTION_TIME_MAX: Duration = Duration::from_secs(3600);

type Answered = Result<CommandAnswer, RdmaCmError>;

impl From<Vec<u8>> for CommandAnswer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, revoked: 0, revoked_at: None }
    }
}

/// Private data padded with zeros; an error if they are too long.
pub(super) fn padded<const N: usize>(private_data: &[u8]) -> Result<[u8; N], RdmaCmError> {
    let mut all = [0; N];
    all.get_mut(..private_data.len()).ok_or(RdmaCmError::Invalid)?.copy_from_slice(private_data);
    Ok(all)
}

impl RdmaCm {
    pub(super) fn carry_out(&mut self, now: Time, file: FileId, command: Command) -> Answered {
        let done = CommandAnswer::default;
        match command {
            Command::CreateId { uid, space, qp_type } => {
                self.create(file, uid, space, qp_type).map(|id| number(id).into())
            }
            Command::DestroyId { id } => self.destroy_id(now, file, id),
            Command::Bind { id, address } => self.bind(file, id, address).map(|()| done()),
            Command::ResolveAddress { id, source, to, timeout } => {
                self.resolve_address(now, file, id, (source, to), timeout).map(|()| done())
            }
            Command::ResolveRoute { id, timeout } => {
                self.resolve_route(now, file, id, timeout).map(|()| done())
            }
            Command::QueryRoute { id } => {
                self.id_at(file, id).map(|found| found.route(self).emit().into())
            }
            Command::Connect { id, parameters } => {
                self.connect(now, file, id, &parameters).map(|()| done())
            }
            Command::Listen { id, backlog } => self.listen(file, id, backlog).map(|()| done()),
            Command::Accept { id, uid, parameters } => {
                self.accept(now, file, id, uid, parameters.as_deref()).map(|()| done())
            }
            Command::Reject { id, reason, private_data } => {
                self.reject(now, file, id, reason, &private_data).map(|()| done())
            }
            Command::Disconnect { id } => self.disconnect(now, file, id).map(|()| done()),
            Command::InitQpAttributes { id, state } => {
                let attributes = self.id_at(file, id)?.attributes(self, state)?;
                Ok(emit_attributes(&attributes).into())
            }
            Command::TakeEvent => self.take_event(file).map(Into::into),
            Command::SetOption { id, option } => self.set_option(file, id, option).map(|()| done()),
            Command::Notify { id, event } => self.notify(now, file, id, event).map(|()| done()),
            Command::Migrate { id, from } => self.migrate(file, id, FileId(from)),
        }
    }

    /// An ID of the program that owns the file. As in the kernel, the ID may be of another file of
    /// the program.
    fn id_at(&self, file: FileId, number: u32) -> Result<&CmId, RdmaCmError> {
        let id = self.ids.get(&number).ok_or(RdmaCmError::NoId)?;
        let program = |file| self.files.get(&file).map(|file| file.program);
        if program(id.file) == program(file) { Ok(id) } else { Err(RdmaCmError::NoId) }
    }

    fn id_mut(&mut self, file: FileId, number: u32) -> Result<&mut CmId, RdmaCmError> {
        self.id_at(file, number)?;
        self.ids.get_mut(&number).ok_or(RdmaCmError::NoId)
    }

    fn create(
        &mut self,
        file: FileId,
        uid: u64,
        space: PortSpace,
        qp_type: u8,
    ) -> Result<u32, RdmaCmError> {
        let qp_type = match (space, qp_type) {
            (PortSpace::TCP, _) => QpType::Rc,
            (PortSpace::UDP, _) => QpType::Ud,
            // The numbers are those of `enum ib_qp_type`. The library sends 0 for its default.
            (PortSpace::IB, 0 | 2) => QpType::Rc,
            (PortSpace::IB, 3) => QpType::Uc,
            (PortSpace::IB, 4) => QpType::Ud,
            _ => return Err(RdmaCmError::Invalid),
        };
        self.add_id(CmId::new(file, uid, space, qp_type)).ok_or(RdmaCmError::NoMemory)
    }

    fn destroy_id(&mut self, now: Time, file: FileId, number: u32) -> Answered {
        let id = self.id_at(file, number)?;
        let (taken, at) = (id.events_taken, id.file);
        self.destroy(now, number);
        Ok(self.answer_with_revoked(taken, at))
    }

    /// The answer of a command that removes events of an ID: the number of the ID's events that the
    /// program has taken.
    fn answer_with_revoked(&mut self, taken: u32, at: FileId) -> CommandAnswer {
        let revoked = self.files.get_mut(&at).map_or(0, |file| file.take_revoked());
        CommandAnswer { bytes: number(taken), revoked, revoked_at: Some(at) }
    }

    fn bind(&mut self, file: FileId, number: u32, address: SocketAddr) -> Result<(), RdmaCmError> {
        let ip = address.ip();
        let host = self.host.as_ref();
        if !ip.is_unspecified() && !host.is_some_and(|host| host.addresses.contains(&ip)) {
            return Err(RdmaCmError::NoAddress);
        }
        let random = self.rng.next_u64();
        let id = self.id_at(file, number)?;
        if id.state != IdState::Created {
            return Err(RdmaCmError::Invalid);
        }
        let (space, is_shared, is_ipv6_only) = (id.space, id.is_shared, id.is_ipv6_only);
        let binding = Binding { id: number, ip, is_shared, is_ipv6_only, listens: false };
        let source = self.ports.bind(space, address.port(), binding, random)?;
        let id = self.id_mut(file, number)?;
        (id.source, id.is_bound, id.state) = (Some(source), true, IdState::Bound);
        Ok(())
    }

    fn listen(&mut self, file: FileId, number: u32, backlog: u32) -> Result<(), RdmaCmError> {
        if self.id_at(file, number)?.state == IdState::Created {
            self.bind(file, number, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        let id = self.id_at(file, number)?;
        let (IdState::Bound, Some(source)) = (id.state, id.source) else {
            return Err(RdmaCmError::Invalid);
        };
        let (space, port) = (id.space, source.port());
        self.ports.listen(space, port, number)?;
        if self.cm.listen(space.service_id(port), [0; 148]).is_err() {
            self.ports.unlisten(space, port, number);
            return Err(RdmaCmError::NoMemory);
        }
        let backlog = match backlog as usize {
            0 => BACKLOG_MAX,
            backlog => backlog.min(BACKLOG_MAX),
        };
        self.id_mut(file, number)?.state = IdState::Listening { backlog, waiting: 0 };
        Ok(())
    }

    fn set_option(
        &mut self,
        file: FileId,
        number: u32,
        option: IdOption,
    ) -> Result<(), RdmaCmError> {
        let id = self.id_mut(file, number)?;
        match option {
            // Ignored: the SA chooses the service level without the traffic class.
            IdOption::TrafficClass(_) => {}
            IdOption::ReuseAddress(is_shared) => id.is_shared = is_shared,
            IdOption::Ipv6Only(_) if id.is_bound => return Err(RdmaCmError::Invalid),
            IdOption::Ipv6Only(is_ipv6_only) => id.is_ipv6_only = is_ipv6_only,
            IdOption::AckTimeout(code) if code <= TimeCode::MAX.0 => id.ack_timeout = Some(code),
            IdOption::AckTimeout(_) => return Err(RdmaCmError::Invalid),
        }
        Ok(())
    }

    fn migrate(&mut self, file: FileId, number: u32, from: FileId) -> Answered {
        if self.id_at(file, number)?.file != from {
            return Err(RdmaCmError::Invalid);
        }
        if from != file && !self.move_events(number, from, file) {
            return Err(RdmaCmError::NoMemory);
        }
        let id = self.id_mut(file, number)?;
        id.file = file;
        let taken = id.events_taken;
        Ok(self.answer_with_revoked(taken, from))
    }
}

/// Addresses and routes.
impl RdmaCm {
    /// The addresses that IDs wait for.
    pub fn wanted(&self) -> BTreeSet<IpAddr> {
        let waiting = self.resolving.iter().filter_map(|(_, id)| self.ids.get(id));
        waiting.filter_map(|id| id.destination).map(|address| address.ip()).collect()
    }

    /// Handles the resolution of an address: reports it to the IDs that wait for it.
    pub fn handle_resolution(&mut self, to: IpAddr, resolved: &ResolvedAddress) {
        let is_for = |id: &CmId| id.destination.is_some_and(|address| address.ip() == to);
        let waiting: Vec<_> = self.resolving.iter().map(|(_, id)| *id).collect();
        for number in waiting {
            let Some(id) = self.ids.get_mut(&number).filter(|id| is_for(id)) else { continue };
            let (until, kind) = match id.state {
                IdState::ResolvingAddress { until } => (until, EventKind::AddressResolved),
                IdState::ResolvingRoute { until } if resolved.path.is_some() => {
                    (until, EventKind::RouteResolved)
                }
                _ => continue,
            };
            if kind == EventKind::AddressResolved {
                id.state = IdState::AddressResolved;
                id.peer_gid = Some(resolved.gid);
                let source = id.source.filter(|source| !source.ip().is_unspecified());
                let port = id.source.map_or(0, |source| source.port());
                id.source = source.or(Some(SocketAddr::new(resolved.source, port)));
            } else {
                (id.state, id.path) = (IdState::RouteResolved, resolved.path);
            }
            self.resolving.remove(&(until, number));
            self.emit(number, kind, 0, &nothing());
        }
    }

    /// Ends the wait of an ID for an address or a route, with an error event.
    pub(super) fn give_up_resolution(&mut self, number: u32) {
        let Some(id) = self.ids.get_mut(&number) else { return };
        let (until, state, kind) = match id.state {
            IdState::ResolvingAddress { until } => (until, IdState::Bound, EventKind::AddressError),
            IdState::ResolvingRoute { until } => {
                (until, IdState::AddressResolved, EventKind::RouteError)
            }
            _ => return,
        };
        id.state = state;
        self.resolving.remove(&(until, number));
        self.emit(number, kind, TIMED_OUT, &nothing());
    }

    fn resolve_address(
        &mut self,
        now: Time,
        file: FileId,
        number: u32,
        (source, to): (Option<SocketAddr>, SocketAddr),
        timeout: Duration,
    ) -> Result<(), RdmaCmError> {
        let is_for_many = to.ip().is_multicast() || to.ip() == IpAddr::V4(Ipv4Addr::BROADCAST);
        if is_for_many || to.ip().is_unspecified() {
            return Err(RdmaCmError::Invalid);
        }
        if self.id_at(file, number)?.state == IdState::Created {
            let all: IpAddr = match to {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            self.bind(file, number, source.unwrap_or(SocketAddr::new(all, 0)))?;
        }
        let id = self.id_mut(file, number)?;
        let is_family = id.source.is_some_and(|source| source.is_ipv4() == to.is_ipv4());
        if id.state != IdState::Bound || !is_family {
            return Err(RdmaCmError::Invalid);
        }
        let until = now + timeout.min(RESOLUTION_TIME_MAX);
        id.destination = Some(to);
        id.state = IdState::ResolvingAddress { until };
        self.resolving.insert((until, number));
        Ok(())
    }

    fn resolve_route(
        &mut self,
        now: Time,
        file: FileId,
        number: u32,
        timeout: Duration,
    ) -> Result<(), RdmaCmError> {
        let id = self.id_mut(file, number)?;
        if id.state != IdState::AddressResolved {
            return Err(RdmaCmError::Invalid);
        }
        let until = now + timeout.min(RESOLUTION_TIME_MAX);
        id.state = IdState::ResolvingRoute { until };
        self.resolving.insert((until, number));
        Ok(())
    }
}

/// Connections.
impl RdmaCm {
    fn connect(
        &mut self,
        now: Time,
        file: FileId,
        number: u32,
        parameters: &ConnectionParameters,
    ) -> Result<(), RdmaCmError> {
        let starting_psn = Psn::new(self.rng.next_u64() as u32);
        let id = self.id_at(file, number)?;
        let (IdState::RouteResolved, Some(mut path)) = (id.state, id.path) else {
            return Err(RdmaCmError::Invalid);
        };
        let (Some(source), Some(destination)) = (id.source, id.destination) else {
            return Err(RdmaCmError::Invalid);
        };
        let mut private_data = IpServiceHeader::new(source, destination.ip()).emit().to_vec();
        private_data.extend_from_slice(&parameters.private_data);
        let service_id = id.space.service_id(destination.port());
        let lmc = self.host.as_ref().map_or(0, |host| host.port.lmc);
        let to = MadAddress::gsi_along(&path, lmc);
        if id.qp_type == QpType::Ud {
            let private_data = padded(&private_data)?;
            return self.request_service(now, number, (to, path.p_key), service_id, private_data);
        }
        if let Some(timeout) = id.ack_timeout {
            path.packet_life_time = TimeCode(timeout.saturating_sub(1));
        }
        let req = Req {
            service_id,
            local_qpn: parameters.qpn,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            transport_service: match id.qp_type {
                QpType::Uc => TransportService::UC,
                _ => TransportService::RC,
            },
            end_to_end_flow_control: parameters.flow_control,
            starting_psn,
            retry_count: parameters.retry_count,
            rnr_retry_count: parameters.rnr_retry_count,
            srq: parameters.srq,
            private_data: padded(&private_data)?,
            ..request_along(&path, CA_ACK_DELAY)
        };
        let key = self.cm.new_key();
        let connect = Connect { to, req, packet_life_time: path.packet_life_time };
        self.cm.connect(now, key, connect).map_err(|_| RdmaCmError::NoMemory)?;
        self.connections.insert(key, number);
        let id = self.id_mut(file, number)?;
        id.state = IdState::Requesting(key);
        (id.starting_psn, id.responder_resources) = (starting_psn, parameters.responder_resources);
        Ok(())
    }

    /// Accepts the request of a peer, or confirms the reply to our own request.
    fn accept(
        &mut self,
        now: Time,
        file: FileId,
        number: u32,
        uid: u64,
        parameters: Option<&ConnectionParameters>,
    ) -> Result<(), RdmaCmError> {
        let id = self.id_at(file, number)?;
        match (id.state, parameters) {
            (IdState::Replied(key), _) => {
                self.cm.confirm(now, key, [0; 224]).map_err(|_| RdmaCmError::Invalid)?;
                let id = self.id_mut(file, number)?;
                (id.state, id.was_connected) = (IdState::Connected(key), true);
            }
            (IdState::Requested(key), Some(parameters)) => {
                let rep = Rep {
                    local_qpn: parameters.qpn,
                    starting_psn: id.starting_psn,
                    responder_resources: parameters.responder_resources,
                    initiator_depth: parameters.initiator_depth,
                    target_ack_delay: CA_ACK_DELAY,
                    end_to_end_flow_control: parameters.flow_control,
                    rnr_retry_count: parameters.rnr_retry_count,
                    srq: parameters.srq,
                    private_data: padded(&parameters.private_data)?,
                    ..Rep::default()
                };
                self.cm.accept(now, key, rep).map_err(|_| RdmaCmError::Invalid)?;
                let id = self.id_mut(file, number)?;
                (id.state, id.uid) = (IdState::Accepting(key), uid);
            }
            (IdState::ServiceRequested, Some(parameters)) => {
                self.serve(number, parameters)?;
                self.id_mut(file, number)?.uid = uid;
            }
            _ => return Err(RdmaCmError::Invalid),
        }
        Ok(())
    }

    fn reject(
        &mut self,
        now: Time,
        file: FileId,
        number: u32,
        reason: u8,
        private_data: &[u8],
    ) -> Result<(), RdmaCmError> {
        let reason = match RejectReason(reason.into()) {
            RejectReason(0) => RejectReason::CONSUMER_REJECT,
            RejectReason::CONSUMER_REJECT => RejectReason::CONSUMER_REJECT,
            RejectReason::VENDOR_OPTION_NOT_SUPPORTED => RejectReason::VENDOR_OPTION_NOT_SUPPORTED,
            _ => return Err(RdmaCmError::Invalid),
        };
        match self.id_at(file, number)?.state {
            IdState::Requested(key) | IdState::Replied(key) => {
                let private_data = padded(private_data)?;
                let rejected = self.cm.reject(now, key, reason, &[], private_data);
                rejected.map_err(|_| RdmaCmError::Invalid)?;
                self.id_mut(file, number)?.state = IdState::Ended(key);
                Ok(())
            }
            IdState::ServiceRequested => self.refuse_service(number, private_data),
            _ => Err(RdmaCmError::Invalid),
        }
    }

    /// Disconnects an open connection. As in the kernel, the command has no effect on a connection
    /// in another state.
    fn disconnect(&mut self, now: Time, file: FileId, number: u32) -> Result<(), RdmaCmError> {
        let state = self.id_at(file, number)?.state;
        let key = state.connection().ok_or(RdmaCmError::Invalid)?;
        if state == IdState::Connected(key) {
            let _ = self.cm.disconnect(now, key, [0; 220]);
        }
        Ok(())
    }

    fn notify(
        &mut self,
        now: Time,
        file: FileId,
        number: u32,
        event: u32,
    ) -> Result<(), RdmaCmError> {
        let key = self.id_at(file, number)?.state.connection().ok_or(RdmaCmError::Invalid)?;
        if event == COMMUNICATION_ESTABLISHED {
            self.cm.handle_data(now, key).map_err(|_| RdmaCmError::Invalid)?;
        }
        Ok(())
    }
}

/// The data of an event that has none.
pub(super) fn nothing() -> EventData {
    EventData::Connection(ConnectionParameters::default())
}
