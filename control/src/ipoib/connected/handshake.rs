//! The handshake of a connection (REQ, REP, RTU): the active side sends REQ and RTU, the passive
//! side REP.
//!
//! ```text
//!   we ask:     connect --> CreatingForReq --queue pair--> send_req --> ReqSent --REP--> Open
//!   peer asks:  accept --> CreatingForRep --queue pair--> send_rep --> RepSent --RTU--> Open
//! ```
//!
//! Both sides wait for the device to create their queue pair, and continue in `handle_made`. From
//! the REP to the RTU, everything is in `handle_reply`. For the tie-break between REQs that cross,
//! see `accept`. MTU negotiation: REQ and REP carry the receive MTU of their sender in private data
//! (RFC 4755 6), and neither side sends longer packets.

use super::connection::ConnectionPaths;
use super::pause::Failure;
use super::probe::Probe;
use super::worker::asking_worker;
use super::{Address, Attempt, Connection, Connections, PeerDrop, State};
use crate::cm::{Connect, Role, Terms, request_along};
use crate::effects::{ConnectionKey, WorkerId};
use crate::mad::MadAddress;
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::ip::ipoib::connection_ip_mtu;
use pollux_wire::ip::ipv4::IPV4_MTU_MIN;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::ipoib::{Dialect, IpoibPrivateData};
use pollux_wire::mad::cm::{RejectReason, Rep, Req, TransportService};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::psn::Psn;

/// Unlimited RNR retries. Linux replaces any other value by its own setting, which would mean no
/// retries.
const RNR_FOR_EVER: u8 = 7;

impl Connections {
    /// Requests a connection for a packet of a worker, unless the worker has one, or attempts are
    /// paused.
    pub fn connect(
        &mut self,
        now: Time,
        link: &LinkAddress,
        worker: WorkerId,
        qp_type: QpType,
        path: &PathRecord,
    ) {
        let Some(worker) = self.first_to_ask(link, worker).filter(|_| self.local.is_some()) else {
            return;
        };
        let address = link.comparison_form();
        self.enter_peer(address).is_neighbor = true;
        self.start_request(now, address, worker, qp_type, path);
    }

    fn start_request(
        &mut self,
        now: Time,
        address: Address,
        worker: WorkerId,
        qp_type: QpType,
        path: &PathRecord,
    ) {
        if self.is_full(worker) {
            self.drops.count(PeerDrop::Full);
            return self.pause((now, now), (address, worker), PeerDrop::Full.into());
        }
        let first = self.config.dialect_first;
        let dialect = self.enter_peer(address).dialect.unwrap_or(first);
        let connection = Connection {
            peer: address,
            worker,
            asking_worker: worker.0,
            qp_type,
            dialect,
            role: Role::Active,
            state: State::CreatingForReq { path: Box::new(*path) },
            since: now,
            used: now,
            probe: Probe::Idle,
            probes_until: now,
            mtu: 0,
            paths: ConnectionPaths::default(),
        };
        let key = self.cm.new_key();
        self.enter(now, key, connection);
        self.set_attempt(address, worker, Attempt::UnderWay(key));
    }

    pub(super) fn handle_made(&mut self, now: Time, key: ConnectionKey, qpn: Qpn) {
        let Some(connection) = self.all.get(&key) else { return };
        match connection.state.clone() {
            State::CreatingForReq { path } => self.send_req(now, key, qpn, path),
            State::CreatingForRep => self.send_rep(now, key, qpn),
            // The connection has ended meanwhile, and its queue pair is being destroyed.
            _ => return,
        }
        if let Some(State::Ending { qpn: made, .. }) =
            self.all.get_mut(&key).map(|it| &mut it.state)
        {
            *made = Some(qpn);
        }
    }

    fn send_req(&mut self, now: Time, key: ConnectionKey, qpn: Qpn, path: Box<PathRecord>) {
        let starting_psn = Psn::new(self.rng.next_u64() as u32);
        let Some(worker) = self.all.get(&key).map(|connection| connection.worker) else { return };
        let Some(local) = &self.local else { return self.end(now, key, PeerDrop::Down) };
        let own = self.private_data();
        let private_data = match self.asking(worker) {
            Some(asking) => own.padded_with(&asking),
            None => own.padded(),
        };
        let config = &self.config;
        let Some(connection) = self.all.get_mut(&key) else { return };
        let listener = LinkAddress::parse(&connection.peer).qpn;
        let mut req = Req {
            service_id: connection.dialect.service_id(listener),
            local_qpn: qpn,
            transport_service: match connection.qp_type {
                QpType::Uc => TransportService::UC,
                _ => TransportService::RC,
            },
            starting_psn,
            retry_count: config.retry_count,
            rnr_retry_count: config.rnr_retry_count,
            max_cm_retries: config.cm_retries,
            remote_cm_response_timeout: config.cm_response_timeout,
            local_cm_response_timeout: config.cm_response_timeout,
            srq: true,
            private_data,
            ..request_along(&path, config.ca_ack_delay)
        };
        req.p_key = local.p_key.full();
        req.primary.local_ack_timeout = config.ack_timeout;
        let to = MadAddress::gsi_along(&path, local.port.lmc);
        let packet_life_time = path.packet_life_time.min(config.cm_response_timeout);
        match self.cm.connect(now, key, Connect { to, req, packet_life_time }) {
            Ok(()) => connection.state = State::ReqSent { qpn, path },
            Err(_) => self.fail_attempt(now, key, PeerDrop::Full),
        }
    }

    /// Handles a REP: our queue pair becomes ready and an RTU opens the connection, or a REJ ends
    /// it.
    pub(super) fn handle_reply(&mut self, now: Time, key: ConnectionKey, rep: &Rep) {
        let is_requesting = |it: &&Connection| matches!(it.state, State::ReqSent { .. });
        let Some(connection) = self.all.get(&key).filter(is_requesting) else {
            // The connection is ending or gone. This makes the CM report when it has closed.
            let _gone = self.cm.disconnect(now, key, self.private_data().padded());
            return;
        };
        let head = rep.private_data.first_chunk().copied().unwrap_or_default();
        let private_data = IpoibPrivateData::parse(&head);
        let mtu = connection_ip_mtu(self.config.receive_mtu, private_data.receive_mtu);
        // A REP from another interface is rejected (RFC 4755 8).
        let is_other = private_data.ud_qpn != LinkAddress::parse(&connection.peer).qpn;
        let terms = self.cm.terms(key);
        match terms.filter(|_| mtu >= IPV4_MTU_MIN && !is_other) {
            Some(terms) => {
                self.make_ready(key, terms);
                let private_data = self.private_data().padded();
                if self.cm.confirm(now, key, private_data).is_ok()
                    && let Some(connection) = self.all.get_mut(&key)
                {
                    connection.mtu = mtu;
                    self.open(now, key);
                }
            }
            None => {
                self.reject(now, key, RejectReason::CONSUMER_REJECT);
                self.fail_attempt(now, key, PeerDrop::BadPrivateData);
            }
        }
    }

    /// Makes our queue pair ready to receive and to send. RC uses the configured ACK timeout, which
    /// is shorter than the path would allow (RFC 4755 7.1). With unlimited RNR retries, a peer
    /// without receives does not make the queue pair fail, because it is only busy. The port driver
    /// reports a peer that receives nothing for long.
    fn make_ready(&mut self, key: ConnectionKey, terms: Terms) {
        let timeout = self.config.ack_timeout;
        let terms = Terms { timeout, ..terms };
        if let Some(connection) = self.all.get_mut(&key) {
            (connection.paths.path, connection.paths.mtu) = (terms.path, Some(terms.path_mtu));
        }
        self.modify(key, terms.to_receive(self.config.min_rnr_timer));
        self.modify(key, terms.to_send());
    }

    pub(super) fn handle_established(&mut self, now: Time, key: ConnectionKey) {
        if self.all.get(&key).is_some_and(|it| matches!(it.state, State::RepSent { .. })) {
            self.open(now, key);
        }
    }

    /// Opens a connection: ends its attempt, and ends the older connections of the peer that it
    /// replaces.
    fn open(&mut self, now: Time, key: ConnectionKey) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        let (State::ReqSent { qpn, .. } | State::RepSent { qpn }) = connection.state else {
            return;
        };
        connection.state = State::Open { qpn };
        (connection.since, connection.used) = (now, now);
        let serves_us = connection.serves_us();
        let Connection { peer: address, worker, asking_worker, dialect, role, .. } = *connection;
        let peer = self.enter_peer(address);
        peer.dialect = Some(dialect);
        if let Some(attempts) = peer.attempts.get_mut(usize::from(worker.0)) {
            attempts.has_refused_one = false;
        }
        let mut others = self.all.keys_of_peer(address);
        others.retain(|it| *it != key);
        if serves_us {
            self.set_attempt(address, worker, Attempt::Idle);
        }
        if role == Role::Passive {
            self.end_pauses(now, address);
        }
        self.plan_alternate(now, key);
        let replaces = |known: &Connection| {
            let is_of_rfc = known.dialect == Dialect::Rfc && dialect == Dialect::Rfc;
            known.asking_worker == asking_worker && (is_of_rfc || known.role == role)
        };
        let (replaced, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|other| self.all.get(other).is_some_and(replaces));
        let is_open = |it: &ConnectionKey| self.all.get(it).is_some_and(Connection::is_open);
        if replaced.iter().any(is_open) {
            // The peer may have restarted, and lost the other connections too.
            others.into_iter().for_each(|other| self.probe_soon(now, other));
        }
        for other in replaced {
            self.end(now, other, PeerDrop::Replaced);
        }
    }

    /// Handles a failed request of ours, or a connection that failed soon after it was opened.
    pub(super) fn fail_attempt(
        &mut self,
        now: Time,
        key: ConnectionKey,
        failure: impl Into<Failure>,
    ) {
        let failure = failure.into();
        let Some(connection) = self.all.get(&key) else { return };
        let (address, worker) = (connection.peer, connection.worker);
        let (is_ours, began) = (connection.role == Role::Active, connection.since);
        self.end(now, key, failure.why);
        if is_ours && self.attempt(address, worker).due().is_none() {
            self.pause((now, began), (address, worker), failure);
        }
    }

    /// Handles a REJ because the peer does not listen to the service ID of our REQ: sends a REQ
    /// with the service ID of the other convention, once (RFC 4755 3.5).
    pub(super) fn try_other_dialect(&mut self, now: Time, key: ConnectionKey) {
        let Some(connection) = self.all.get(&key) else { return };
        let Connection { peer: address, worker, qp_type, dialect, .. } = *connection;
        let State::ReqSent { path, .. } = connection.state.clone() else { return };
        let other = match dialect {
            Dialect::Rfc => Dialect::Linux,
            Dialect::Linux => Dialect::Rfc,
        };
        let Some(attempts) = self.attempts_mut(address, worker) else { return };
        let has_refused_both = attempts.has_refused_one;
        attempts.has_refused_one = !has_refused_both;
        self.enter_peer(address).dialect = (!has_refused_both).then_some(other);
        if has_refused_both {
            return self.fail_attempt(
                now,
                key,
                Failure::rejected(RejectReason::INVALID_SERVICE_ID),
            );
        }
        self.end(now, key, PeerDrop::Refused);
        self.start_request(now, address, worker, qp_type, &path);
    }

    /// The connection of an outstanding request of ours for a worker, if there is one.
    pub(super) fn outstanding_request(
        &self,
        peer: Address,
        worker: WorkerId,
    ) -> Option<ConnectionKey> {
        match self.attempt(peer, worker) {
            Attempt::UnderWay(key) => Some(key),
            _ => None,
        }
    }

    pub(super) fn handle_request(&mut self, now: Time, key: ConnectionKey, req: &Req) {
        let worker = self.worker_for(req);
        let Err((reason, why)) = self.accept(now, key, worker, req) else { return };
        self.drops.count(why);
        if self.is_full(worker) {
            // Without an answer, the peer repeats its REQ later, when there may be resources. Linux
            // repeats a rejected REQ at once.
            return self.cm.ignore(now, key);
        }
        self.reject(now, key, reason);
    }

    /// Rejects a REQ or a REP. Our receive MTU is the additional information (RFC 4755 6).
    fn reject(&mut self, now: Time, key: ConnectionKey, reason: RejectReason) {
        let receive_mtu = self.config.receive_mtu.to_be_bytes();
        let private_data = self.private_data().padded();
        // The connection may have ended at the CM.
        let _gone = self.cm.reject(now, key, reason, &receive_mtu, private_data);
    }

    fn accept(
        &mut self,
        now: Time,
        key: ConnectionKey,
        worker: WorkerId,
        req: &Req,
    ) -> Result<(), (RejectReason, PeerDrop)> {
        const UNWANTED: RejectReason = RejectReason::CONSUMER_REJECT;
        let qp_type = self
            .offered(req.transport_service)
            .ok_or((RejectReason::INVALID_TRANSPORT_SERVICE_TYPE, PeerDrop::NotOffered))?;
        let local = self.local.as_ref().ok_or((UNWANTED, PeerDrop::Down))?;
        let (own, partition) = (local.link.comparison_form(), local.p_key.partition());
        let bad = (UNWANTED, PeerDrop::BadPrivateData);
        let (link, mtu) = self.read(req).ok_or(bad)?;
        let (dialect, _) = Dialect::of(req.service_id).ok_or(bad)?;
        let peer = link.comparison_form();
        if peer == own || req.p_key.partition() != partition {
            return Err(bad);
        }
        if req.path_mtu.bytes().is_none() {
            return Err((RejectReason::INVALID_PATH_MTU, PeerDrop::BadPrivateData));
        }
        let asking_worker = asking_worker(req);
        let crossing = self.outstanding_request(peer, WorkerId(asking_worker));
        let crossing = crossing.filter(|key| self.crosses(*key, dialect));
        let is_sent = |key| {
            self.all.get(&key).is_some_and(|known| matches!(known.state, State::ReqSent { .. }))
        };
        if crossing.is_some_and(is_sent) && own > peer {
            return Err((UNWANTED, PeerDrop::Crossing));
        }
        if !self.is_within_limits(&link, asking_worker, worker, crossing) {
            return Err((RejectReason::NO_QP, PeerDrop::Full));
        }
        if let Some(ours) = crossing {
            self.end(now, ours, PeerDrop::Crossing);
        }
        let connection = Connection {
            peer,
            worker,
            asking_worker,
            qp_type,
            dialect,
            role: Role::Passive,
            state: State::CreatingForRep,
            since: now,
            used: now,
            probe: Probe::Idle,
            probes_until: now,
            mtu,
            paths: ConnectionPaths::default(),
        };
        self.enter(now, key, connection);
        Ok(())
    }

    /// Whether a peer may have one more connection for this asking worker, at this worker of ours.
    /// The port of the peer has a limit too, because QPNs and worker indexes can be forged. The
    /// limits are per worker of ours, because connections use the receives and queue pairs of the
    /// worker. Ending connections have a limit of their own. The connection `to_go` is about to end
    /// and does not count.
    fn is_within_limits(
        &self,
        link: &LinkAddress,
        asking_worker: u8,
        worker: WorkerId,
        to_go: Option<ConnectionKey>,
    ) -> bool {
        let config = &self.config;
        let of_port = self.all.of_port(link.gid, worker);
        let goes = to_go.and_then(|key| self.all.get(&key)).filter(|it| it.worker == worker);
        let live = of_port.live - usize::from(goes.is_some());
        // The limits of the peer's port bound this walk.
        let known = self.all.of_peer(link.comparison_form());
        let known = known.filter(|(key, _)| Some(*key) != to_go).map(|(_, it)| it);
        let of_peer = known.filter(|it| it.worker == worker && !it.is_ending());
        let (of_peer, of_asking_worker) =
            of_peer.fold((0, 0), |(of_peer, of_asking_worker), it| {
                (of_peer + 1, of_asking_worker + usize::from(it.asking_worker == asking_worker))
            });
        // A peer's connections for further workers must leave resources for the first connections
        // of others.
        let is_second = of_peer > of_asking_worker;
        let of_port_max = config.connections_per_port_max / if is_second { 2 } else { 1 };
        !self.is_full(worker)
            && of_asking_worker < config.connections_per_peer_max
            && live < of_port_max
            && of_port.ending < config.ending_per_port_max
    }

    /// Whether a REQ of this service-ID convention crosses ours, so that only one of the two stands
    /// (RFC 4755 3.3). With the convention of Linux, both stand.
    fn crosses(&self, ours: ConnectionKey, dialect: Dialect) -> bool {
        let ours = self.all.get(&ours);
        dialect == Dialect::Rfc && ours.is_some_and(|ours| ours.dialect == Dialect::Rfc)
    }

    fn offered(&self, service: TransportService) -> Option<QpType> {
        match (service, self.config.offers()) {
            (TransportService::RC, (true, _)) => Some(QpType::Rc),
            (TransportService::UC, (_, true)) => Some(QpType::Uc),
            _ => None,
        }
    }

    /// The link address of the requester, and the MTU of a connection with it; `None` if the
    /// private data are invalid.
    fn read(&self, req: &Req) -> Option<(LinkAddress, u32)> {
        let private_data = IpoibPrivateData::parse(req.private_data.first_chunk()?);
        let (qpn, gid) = (private_data.ud_qpn, req.primary.local_gid);
        let mtu = connection_ip_mtu(self.config.receive_mtu, private_data.receive_mtu);
        let is_interface = !matches!(qpn, Qpn::SMI | Qpn::GSI | Qpn::MULTICAST)
            && gid != Gid::NONE
            && !gid.is_multicast();
        let link = LinkAddress { qpn, gid, ..LinkAddress::default() };
        (is_interface && mtu >= IPV4_MTU_MIN).then_some((link, mtu))
    }

    /// Makes the queue pair ready to receive and to send, then sends the REP: data may arrive
    /// before the RTU.
    fn send_rep(&mut self, now: Time, key: ConnectionKey, qpn: Qpn) {
        let mut rep = Rep {
            local_qpn: qpn,
            starting_psn: Psn::new(self.rng.next_u64() as u32),
            target_ack_delay: self.config.ca_ack_delay,
            rnr_retry_count: RNR_FOR_EVER,
            srq: true,
            private_data: self.private_data().padded(),
            ..Rep::default()
        };
        let Some(local) = &self.local else { return self.end(now, key, PeerDrop::Down) };
        let Some((req, from)) = self.cm.request(key) else {
            return self.end(now, key, PeerDrop::NoResponse);
        };
        let (terms, alternate) = (Terms::passive(req, &rep, from, &local.port), req.alternate);
        self.make_ready(key, terms);
        if alternate.remote_lid != Lid::NONE {
            rep.failover_accepted = self.take_alternate(now, key, &alternate);
        }
        let is_accepted = self.cm.accept(now, key, rep).is_ok();
        match self.all.get_mut(&key).filter(|_| is_accepted) {
            Some(connection) => connection.state = State::RepSent { qpn },
            None => self.end(now, key, PeerDrop::NoResponse),
        }
    }
}
