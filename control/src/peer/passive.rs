//! Being asked for connections.

use super::lane::lane_of;
use super::migration::Ways;
use super::probe::Probe;
use super::{Cause, Connection, Connections, PeerDrop, State};
use crate::cm::{ConnectionId, Terms};
use crate::interface::{ConnectionKey, Worker};
use crate::mad::MadAddress;
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::ip::ipoib::connection_ip_mtu;
use pollux_wire::ip::ipv4::IPV4_MTU_MIN;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::ipoib::{Dialect, IpoibPrivateData};
use pollux_wire::mad::cm::{RejectReason, Rep, Req, TransportService};
use pollux_wire::psn::Psn;

/// What a sender tries again for ever, when it finds no receive. For Linux this becomes its own
/// setting, which would be to give up at once.
const RNR_FOR_EVER: u8 = 7;

impl Connections {
    /// A peer asks.
    pub(super) fn requested(
        &mut self,
        now: Time,
        id: ConnectionId,
        req: Box<Req>,
        from: MadAddress,
    ) {
        let worker = self.worker_for(&req);
        let Err((reason, why)) = self.accept(now, id, worker, req, from) else { return };
        self.drops.count(why);
        if self.is_full(worker) {
            // It will ask again, and then there may be room; Linux asks at once whoever rejects.
            return self.cm.ignore(now, id);
        }
        let (wanted, words) = (self.config.receive_mtu.to_be_bytes(), self.own_words());
        // It was there a moment ago.
        let _gone = self.cm.reject(now, id, reason, &wanted, words);
    }

    fn accept(
        &mut self,
        now: Time,
        id: ConnectionId,
        worker: Worker,
        req: Box<Req>,
        from: MadAddress,
    ) -> Result<(), (RejectReason, PeerDrop)> {
        const UNWANTED: RejectReason = RejectReason::CONSUMER_REJECT;
        let qp_type = self
            .offered(req.transport_service)
            .ok_or((RejectReason::INVALID_TRANSPORT_SERVICE_TYPE, PeerDrop::NotOffered))?;
        let place = self.place.as_ref().ok_or((UNWANTED, PeerDrop::Down))?;
        let (own, partition) = (place.link.comparison_form(), place.p_key.partition());
        let bad = (UNWANTED, PeerDrop::BadPrivateData);
        let (link, mtu) = self.read(&req).ok_or(bad)?;
        let (dialect, _) = Dialect::of(req.service_id).ok_or(bad)?;
        let peer = link.comparison_form();
        if peer == own || req.p_key.partition() != partition {
            return Err(bad);
        }
        if req.path_mtu.bytes().is_none() {
            return Err((RejectReason::INVALID_PATH_MTU, PeerDrop::BadPrivateData));
        }
        let lane = lane_of(&req);
        let crossing = self.asks_by(peer, Worker(lane));
        let crossing = crossing.filter(|key| self.crosses(*key, dialect));
        let is_sent = |key| self.all.get(&key).is_some_and(|known| known.state == State::Asked);
        if crossing.is_some_and(is_sent) && own > peer {
            return Err((UNWANTED, PeerDrop::Crossing));
        }
        if !self.has_room_for(&link, lane, worker, crossing) {
            return Err((RejectReason::NO_QP, PeerDrop::Full));
        }
        if let Some(ours) = crossing {
            self.end(now, ours, PeerDrop::Crossing);
        }
        let connection = Connection {
            peer,
            worker,
            lane,
            qp_type,
            dialect,
            cause: Cause::Theirs { req, from },
            state: State::Making,
            since: now,
            used: now,
            probe: Probe::Idle,
            probed: now,
            id: Some(id),
            qpn: None,
            mtu,
            ways: Ways::default(),
        };
        self.enter(now, connection);
        Ok(())
    }

    /// Whether a peer may have one more for this lane, at this worker of ours. Its port counts as
    /// well: numbers of queue pairs and of workers can be made up. It counts by worker, for that is
    /// whose receives and queue pairs they keep. What ends counts by itself, and what is to make
    /// way not at all.
    fn has_room_for(
        &self,
        link: &LinkAddress,
        lane: u8,
        worker: Worker,
        to_go: Option<ConnectionKey>,
    ) -> bool {
        let config = &self.config;
        let of_port = self.all.of_port(link.gid, worker);
        let goes = to_go.and_then(|key| self.all.get(&key)).filter(|it| it.worker == worker);
        let live = of_port.live - usize::from(goes.is_some());
        // Of one peer there are no more than of its port.
        let peer = self.peers.get(&link.comparison_form());
        let keys = peer.into_iter().flat_map(|peer| &peer.connections);
        let known = keys.filter(|key| Some(**key) != to_go).filter_map(|key| self.all.get(key));
        let of_peer = known.filter(|it| it.worker == worker && !it.is_ending());
        let (of_peer, of_lane) = of_peer.fold((0, 0), |(of_peer, of_lane), it| {
            (of_peer + 1, of_lane + usize::from(it.lane == lane))
        });
        // A peer's second connection leaves others at its port room for their first.
        let is_second = of_peer > of_lane;
        let of_port_max = config.connections_per_port_max / if is_second { 2 } else { 1 };
        !self.is_full(worker)
            && of_lane < config.connections_per_peer_max
            && live < of_port_max
            && of_port.ending < config.ending_per_port_max
    }

    /// Whether a request in this dialect and ours cannot both stand (RFC 4755 3.3). With Linux they
    /// do; but a peer that asks as Linux does is not asked as the RFC says any more.
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

    /// Who asks, and the longest packet of a connection with it; none if it makes no sense.
    fn read(&self, req: &Req) -> Option<(LinkAddress, u32)> {
        let said = IpoibPrivateData::parse(req.private_data.first_chunk()?);
        let (qpn, gid) = (said.ud_qpn, req.primary.local_gid);
        let mtu = connection_ip_mtu(self.config.receive_mtu, said.receive_mtu);
        let is_interface = !matches!(qpn, Qpn::SMI | Qpn::GSI | Qpn::MULTICAST)
            && gid != Gid::NONE
            && !gid.is_multicast();
        let link = LinkAddress { qpn, gid, ..LinkAddress::default() };
        (is_interface && mtu >= IPV4_MTU_MIN).then_some((link, mtu))
    }

    /// The queue pair is there: it is made ready to receive, and to send, before the peer hears of
    /// it, since data may come before the peer's confirmation.
    pub(super) fn send_rep(
        &mut self,
        now: Time,
        key: ConnectionKey,
        qpn: Qpn,
        req: &Req,
        from: &MadAddress,
    ) {
        let mut rep = Rep {
            local_qpn: qpn,
            starting_psn: Psn::new(self.rng.next_u64() as u32),
            target_ack_delay: self.config.ca_ack_delay,
            rnr_retry_count: RNR_FOR_EVER,
            srq: true,
            private_data: self.own_words(),
            ..Rep::default()
        };
        let Some(place) = &self.place else { return };
        let terms = Terms::passive(req, &rep, from, &place.port);
        let id = self.all.get(&key).and_then(|connection| connection.id);
        self.make_ready(key, terms);
        if req.alternate.remote_lid != Lid::NONE {
            rep.failover_accepted = self.take_alternate(now, key, &req.alternate);
        }
        let is_accepted = id.is_some_and(|id| self.cm.accept(now, id, rep).is_ok());
        match self.all.get_mut(&key).filter(|_| is_accepted) {
            Some(connection) => connection.state = State::Accepted,
            None => self.end(now, key, PeerDrop::Silence),
        }
    }
}
