//! Asking for connections.

use super::migration::Ways;
use super::pause::Failure;
use super::probe::Probe;
use super::{Address, Attempt, Cause, Connection, Connections, PeerDrop, State};
use crate::cm::{Connect, ConnectionId, Role, request_along};
use crate::interface::{ConnectionKey, Worker};
use crate::mad::{GlobalAddress, MadAddress};
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::address::Qpn;
use pollux_wire::ip::ipoib::connection_ip_mtu;
use pollux_wire::ip::ipv4::IPV4_MTU_MIN;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::ipoib::{Dialect, IpoibPrivateData};
use pollux_wire::mad::cm::{RejectReason, Rep, Req, TransportService};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::psn::Psn;

impl Connections {
    /// Asks a peer for a connection along a path, since a worker has a packet for it, unless there
    /// is one or it is not the time to ask.
    pub fn connect(
        &mut self,
        now: Time,
        link: &LinkAddress,
        worker: Worker,
        qp_type: QpType,
        path: &PathRecord,
    ) {
        let Some(worker) = self.first_to_ask(link, worker).filter(|_| self.place.is_some()) else {
            return;
        };
        let address = link.comparison_form();
        self.enter_peer(address).is_neighbor = true;
        self.ask(now, address, worker, qp_type, path);
    }

    fn ask(
        &mut self,
        now: Time,
        address: Address,
        worker: Worker,
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
            lane: worker.0,
            qp_type,
            dialect,
            cause: Cause::Ours { path: Box::new(*path) },
            state: State::Making,
            since: now,
            used: now,
            probe: Probe::Idle,
            probed: now,
            id: None,
            qpn: None,
            mtu: 0,
            ways: Ways::default(),
        };
        let key = self.enter(now, connection);
        self.set_attempt(address, worker, Attempt::UnderWay(key));
    }

    /// The queue pair is there: what it was made for goes on.
    pub(super) fn made(&mut self, now: Time, key: ConnectionKey, qpn: Qpn) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        if connection.state != State::Making {
            return;
        }
        connection.qpn = Some(qpn);
        match connection.cause.clone() {
            Cause::Ours { path } => self.send_req(now, key, qpn, &path),
            Cause::Theirs { req, from } => self.send_rep(now, key, qpn, &req, &from),
        }
    }

    fn send_req(&mut self, now: Time, key: ConnectionKey, qpn: Qpn, path: &PathRecord) {
        let starting_psn = Psn::new(self.rng.next_u64() as u32);
        let Some(worker) = self.all.get(&key).map(|connection| connection.worker) else { return };
        let Some(place) = &self.place else { return };
        let words = self.words(place.link.qpn);
        let private_data =
            self.asking(worker).map_or_else(|| words.padded(), |asking| words.padded_with(&asking));
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
            ..request_along(path, config.ca_ack_delay)
        };
        req.p_key = place.p_key.full();
        req.primary.local_ack_timeout = config.ack_timeout;
        let to = manager_along(path, place.port.lmc);
        let packet_life_time = path.packet_life_time.min(config.cm_response_timeout);
        match self.cm.connect(now, Connect { to, req, packet_life_time }) {
            Ok(id) => {
                (connection.id, connection.state) = (Some(id), State::Asked);
                self.by_id.insert(id, key);
            }
            Err(_) => self.vain(now, key, PeerDrop::Full),
        }
    }

    /// The peer accepts.
    pub(super) fn replied(&mut self, now: Time, id: ConnectionId, rep: &Rep) {
        let Some((&key, connection)) = self.by_id.get(&id).and_then(|key| {
            Some((key, self.all.get(key)?)).filter(|(_, known)| known.state == State::Asked)
        }) else {
            return self.cm.forget(now, id);
        };
        let head = rep.private_data.first_chunk().copied().unwrap_or_default();
        let said = IpoibPrivateData::parse(&head);
        let mtu = connection_ip_mtu(self.config.receive_mtu, said.receive_mtu);
        // One that answers for somebody else is not whom we asked (RFC 4755 8).
        let is_other = said.ud_qpn != LinkAddress::parse(&connection.peer).qpn;
        let terms = self.cm.terms(id);
        match terms.filter(|_| mtu >= IPV4_MTU_MIN && !is_other) {
            Some(terms) => {
                self.make_ready(key, terms);
                let words = self.own_words();
                if self.cm.confirm(now, id, words).is_ok()
                    && let Some(connection) = self.all.get_mut(&key)
                {
                    connection.mtu = mtu;
                    self.opened(now, key);
                }
            }
            None => {
                let (wanted, words) = (self.config.receive_mtu.to_be_bytes(), self.own_words());
                let reason = RejectReason::CONSUMER_REJECT;
                // It was there a moment ago.
                let _gone = self.cm.reject(now, id, reason, &wanted, words);
                self.vain(now, key, PeerDrop::BadPrivateData);
            }
        }
    }

    /// A request of ours came to nothing, or what came of it failed at once.
    pub(super) fn vain(&mut self, now: Time, key: ConnectionKey, failure: impl Into<Failure>) {
        let failure = failure.into();
        let Some(connection) = self.all.get(&key) else { return };
        let (address, worker) = (connection.peer, connection.worker);
        let (is_ours, began) = (connection.role() == Role::Active, connection.since);
        self.end(now, key, failure.why);
        if is_ours && self.attempt(address, worker).due().is_none() {
            self.pause((now, began), (address, worker), failure);
        }
    }

    /// The peer listens to another service ID than the one that it was asked by: it is asked by the
    /// other, once (RFC 4755 3.5).
    pub(super) fn try_other_dialect(&mut self, now: Time, key: ConnectionKey) {
        let Some(connection) = self.all.get(&key) else { return };
        let Connection { peer: address, worker, qp_type, dialect, .. } = *connection;
        let Cause::Ours { path } = connection.cause.clone() else { return };
        let other = match dialect {
            Dialect::Rfc => Dialect::Linux,
            Dialect::Linux => Dialect::Rfc,
        };
        let Some(lane) = self.lane_mut(address, worker) else { return };
        let has_refused_both = lane.has_refused_one;
        lane.has_refused_one = !has_refused_both;
        self.enter_peer(address).dialect = (!has_refused_both).then_some(other);
        if has_refused_both {
            return self.vain(now, key, Failure::rejected(RejectReason::INVALID_SERVICE_ID));
        }
        self.end(now, key, PeerDrop::Refused);
        self.ask(now, address, worker, qp_type, &path);
    }

    /// Whether a request of ours for a worker is under way, by which connection.
    pub(super) fn asks_by(&self, peer: Address, worker: Worker) -> Option<ConnectionKey> {
        match self.attempt(peer, worker) {
            Attempt::UnderWay(key) => Some(key),
            _ => None,
        }
    }
}

/// Where the connection manager at the other end of a path is.
fn manager_along(path: &PathRecord, lmc: u8) -> MadAddress {
    let mask = (1u16 << lmc.min(7)) - 1;
    MadAddress {
        lid: path.dlid,
        path_bits: (path.slid.0 & mask) as u8,
        sl: path.sl,
        qpn: Qpn::GSI,
        p_key: path.p_key,
        global: (path.hop_limit > 0).then_some(GlobalAddress {
            remote_gid: path.dgid,
            local_gid: path.sgid,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        }),
    }
}
