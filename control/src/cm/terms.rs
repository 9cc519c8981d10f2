//! Queue pair attributes from REQ and REP (IBA 12.6.5, 12.6.8, 12.9.7).
//!
//! Each side announces the first PSN that it expects, and the peer sends from that PSN on. The REQ
//! sets the retry counts of both sides, except that the REP sets the RNR retry count of the active
//! side.

use super::LocalPort;
use super::timing::ack_timeout;
use crate::mad::MadAddress;
use pollux_verbs::{AddressVector, GlobalRoute, QpAttributes, QpState, QpType, Retries};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::mad::cm::{Rep, Req, ReqPath, TransportService};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// `None` if the transport service is neither RC nor UC.
    pub qp_type: Option<QpType>,
    pub path: AddressVector,
    pub path_mtu: Mtu,
    pub dest_qp: Qpn,
    /// The PSN of the first packet to receive.
    pub rq_psn: Psn,
    /// The PSN of the first packet to send.
    pub sq_psn: Psn,
    /// The number of RDMA READs and atomics that the peer may have outstanding here.
    pub responder_resources: u8,
    /// The number of RDMA READs and atomics that we may have outstanding at the peer.
    pub initiator_depth: u8,
    pub timeout: TimeCode,
    pub retry_count: Retries,
    pub rnr_retry: Retries,
}

impl Terms {
    pub fn active(
        req: &Req,
        rep: &Rep,
        peer: &MadAddress,
        port: &LocalPort,
        packet_life_time: TimeCode,
    ) -> Self {
        let path = within_reach(req.primary, true, peer);
        Self {
            path: vector(&path, true, port, path.hop_limit),
            dest_qp: rep.local_qpn,
            rq_psn: req.starting_psn,
            sq_psn: rep.starting_psn,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            timeout: ack_timeout(packet_life_time, rep.target_ack_delay),
            rnr_retry: retries(rep.rnr_retry_count),
            ..Self::common(req)
        }
    }

    /// Packets have a GRH if and only if the datagram of the REQ had one.
    pub fn passive(req: &Req, rep: &Rep, peer: &MadAddress, port: &LocalPort) -> Self {
        /// The maximum, because the hop limit in the REQ is for the peer's packets.
        const HOP_LIMIT: u8 = 0xff;
        let path = within_reach(req.primary, false, peer);
        let hop_limit = if peer.global.is_some() { HOP_LIMIT } else { 0 };
        Self {
            path: vector(&path, false, port, hop_limit),
            dest_qp: req.local_qpn,
            rq_psn: rep.starting_psn,
            sq_psn: req.starting_psn,
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            timeout: path.local_ack_timeout,
            rnr_retry: retries(req.rnr_retry_count),
            ..Self::common(req)
        }
    }

    fn common(req: &Req) -> Self {
        Self {
            qp_type: match req.transport_service {
                TransportService::RC => Some(QpType::Rc),
                TransportService::UC => Some(QpType::Uc),
                _ => None,
            },
            path: AddressVector::default(),
            path_mtu: req.path_mtu,
            dest_qp: Qpn::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            responder_resources: 0,
            initiator_depth: 0,
            timeout: TimeCode::default(),
            retry_count: retries(req.retry_count),
            rnr_retry: Retries::NONE,
        }
    }

    /// The attributes of the transition from INIT to RTR.
    pub fn to_receive(&self, min_rnr_timer: RnrTimer) -> QpAttributes {
        let common = QpAttributes {
            state: Some(QpState::Rtr),
            path: Some(self.path),
            path_mtu: Some(self.path_mtu),
            dest_qp: Some(self.dest_qp),
            rq_psn: Some(self.rq_psn),
            ..QpAttributes::default()
        };
        match self.qp_type {
            Some(QpType::Rc) => QpAttributes {
                responder_resources: Some(self.responder_resources),
                min_rnr_timer: Some(min_rnr_timer),
                ..common
            },
            _ => common,
        }
    }

    /// The attributes of the transition from RTR to RTS.
    pub fn to_send(&self) -> QpAttributes {
        let common = QpAttributes {
            state: Some(QpState::Rts),
            sq_psn: Some(self.sq_psn),
            ..QpAttributes::default()
        };
        match self.qp_type {
            Some(QpType::Rc) => QpAttributes {
                timeout: Some(self.timeout),
                retry_count: Some(self.retry_count),
                rnr_retry: Some(self.rnr_retry),
                initiator_depth: Some(self.initiator_depth),
                ..common
            },
            _ => common,
        }
    }
}

/// A three-bit retry count; a larger value counts as 7.
const fn retries(count: u8) -> Retries {
    match Retries::new(count) {
        Some(retries) => retries,
        None => Retries::SEVEN,
    }
}

/// Replaces the permissive LIDs of a path through a router by those of the CM datagram: data take
/// the same path as the datagram.
fn within_reach(path: ReqPath, is_ours: bool, peer: &MadAddress) -> ReqPath {
    let known = |lid: Lid, instead| if lid.is_unicast() { lid } else { instead };
    let (own, other) = (Lid(peer.path_bits.into()), peer.lid);
    let (local, remote) = if is_ours { (own, other) } else { (other, own) };
    let (local_lid, remote_lid) = (known(path.local_lid, local), known(path.remote_lid, remote));
    ReqPath { local_lid, remote_lid, ..path }
}

/// The address vector from our port to the other end of `path`. `is_ours`: the local end of `path`
/// is our port, not the peer's. With a hop limit of 0 there is no GRH.
pub fn vector(path: &ReqPath, is_ours: bool, port: &LocalPort, hop_limit: u8) -> AddressVector {
    let (local, remote) = ((path.local_lid, path.local_gid), (path.remote_lid, path.remote_gid));
    let ((lid, gid), (dlid, dgid)) = if is_ours { (local, remote) } else { (remote, local) };
    let gids = || port.gids.iter().zip(0..);
    let sgid_index = gids().find(|(own, _)| **own == gid).map_or(0, |(_, index)| index);
    AddressVector {
        dlid,
        sl: path.sl,
        src_path_bits: lid.path_bits(port.lmc),
        static_rate: path.packet_rate.0,
        port: port.number,
        grh: (hop_limit > 0).then_some(GlobalRoute {
            dgid,
            sgid_index,
            flow_label: path.flow_label,
            hop_limit,
            traffic_class: path.traffic_class,
        }),
    }
}

/// A REQ for a connection along a path. The caller sets service ID, queue pair, PSN, retries and
/// private data.
pub fn request_along(path: &PathRecord, ca_ack_delay: TimeCode) -> Req {
    Req {
        p_key: path.p_key,
        path_mtu: path.mtu,
        remote_cm_response_timeout: RESPONSE_TIME,
        local_cm_response_timeout: RESPONSE_TIME,
        max_cm_retries: 15,
        primary: as_requested(path, ca_ack_delay),
        ..Req::default()
    }
}

/// A path in the form of REQ and LAP.
pub fn as_requested(path: &PathRecord, ca_ack_delay: TimeCode) -> ReqPath {
    // A path with a hop limit of 1 has a GRH, but no router.
    let subnet_local = path.hop_limit <= 1;
    let lid = |lid| if subnet_local { lid } else { Lid::PERMISSIVE };
    ReqPath {
        local_lid: lid(path.slid),
        remote_lid: lid(path.dlid),
        local_gid: path.sgid,
        remote_gid: path.dgid,
        flow_label: path.flow_label,
        packet_rate: path.rate,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        sl: path.sl,
        subnet_local,
        local_ack_timeout: ack_timeout(path.packet_life_time, ca_ack_delay),
        sap_supported: false,
    }
}

/// The response timeout of both sides: about four seconds, as in Linux.
const RESPONSE_TIME: TimeCode = TimeCode(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::GlobalAddress;
    use pollux_verbs::transition;
    use pollux_wire::address::{Gid, Guid};
    use pollux_wire::keys::PKey;
    use pollux_wire::units::Rate;

    const OURS: Gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(1));
    const THEIRS: Gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(2));

    fn path(hop_limit: u8) -> PathRecord {
        PathRecord {
            sgid: OURS,
            dgid: THEIRS,
            slid: Lid(0x21),
            dlid: Lid(0x32),
            hop_limit,
            p_key: PKey::DEFAULT,
            sl: 3,
            mtu: Mtu::BYTES_2048,
            rate: Rate::GBPS_56,
            packet_life_time: TimeCode(18),
            flow_label: 0x12345,
            traffic_class: 7,
            ..PathRecord::default()
        }
    }

    fn req(hop_limit: u8) -> Req {
        Req {
            local_qpn: Qpn(0x100),
            starting_psn: Psn::new(0x111),
            responder_resources: 4,
            initiator_depth: 2,
            retry_count: 6,
            rnr_retry_count: 1,
            ..request_along(&path(hop_limit), TimeCode(15))
        }
    }

    fn rep() -> Rep {
        Rep {
            local_qpn: Qpn(0x200),
            starting_psn: Psn::new(0x222),
            responder_resources: 2,
            initiator_depth: 3,
            target_ack_delay: TimeCode(18),
            rnr_retry_count: 7,
            ..Rep::default()
        }
    }

    fn port(gid: Gid) -> LocalPort {
        LocalPort { number: 2, lid: Lid(0x30), lmc: 4, gids: vec![Gid::NONE, gid] }
    }

    fn both(hop_limit: u8, global: Option<GlobalAddress>) -> (Terms, Terms) {
        let to = MadAddress { global, ..MadAddress::gsi(Lid(0x32), 3, PKey::DEFAULT) };
        let from = MadAddress { lid: Lid(0x40), ..to };
        let (req, rep) = (req(hop_limit), rep());
        let active = Terms::active(&req, &rep, &to, &port(OURS), TimeCode(18));
        (active, Terms::passive(&req, &rep, &from, &port(THEIRS)))
    }

    #[test]
    fn each_side_expects_what_it_announced_and_sends_what_its_peer_did() {
        let (active, passive) = both(0, None);
        assert_eq!((active.dest_qp, passive.dest_qp), (Qpn(0x200), Qpn(0x100)));
        assert_eq!((active.rq_psn, active.sq_psn), (Psn::new(0x111), Psn::new(0x222)));
        assert_eq!((passive.rq_psn, passive.sq_psn), (active.sq_psn, active.rq_psn));
        assert_eq!((active.path_mtu, passive.path_mtu), (Mtu::BYTES_2048, Mtu::BYTES_2048));
        // RDMA READs: each side serves as many as the other may issue.
        assert_eq!((active.responder_resources, active.initiator_depth), (3, 2));
        assert_eq!((passive.responder_resources, passive.initiator_depth), (2, 3));
    }

    #[test]
    fn the_request_decides_of_retries_and_the_reply_of_those_without_a_receive() {
        let (active, passive) = both(0, None);
        assert_eq!((active.retry_count.get(), passive.retry_count.get()), (6, 6));
        assert_eq!((active.rnr_retry.get(), passive.rnr_retry.get()), (7, 1));
        // The active side: packet lifetime code 18, and code 18 of the REP, give 20. The passive
        // side takes the 19 of the REQ, from the requester's own ACK delay code 15.
        assert_eq!((active.timeout, passive.timeout), (TimeCode(20), TimeCode(19)));
    }

    #[test]
    fn within_a_subnet_lids_are_enough() {
        let (active, passive) = both(0, None);
        let own = AddressVector {
            dlid: Lid(0x32),
            sl: 3,
            src_path_bits: 1,
            static_rate: Rate::GBPS_56.0,
            port: 2,
            grh: None,
        };
        assert_eq!(active.path, own);
        assert_eq!(passive.path, AddressVector { dlid: Lid(0x21), src_path_bits: 2, ..own });
    }

    #[test]
    fn beyond_a_router_goes_by_the_gids_and_the_way_of_the_messages() {
        let (active, passive) = both(64, Some(GlobalAddress::default()));
        assert_eq!((active.path.dlid, passive.path.dlid), (Lid(0x32), Lid(0x40)));
        let grh = active.path.grh.unwrap();
        assert_eq!((grh.dgid, grh.hop_limit, grh.sgid_index), (THEIRS, 64, 1));
        assert_eq!((grh.flow_label, grh.traffic_class), (0x12345, 7));
        let grh = passive.path.grh.unwrap();
        assert_eq!((grh.dgid, grh.hop_limit, grh.sgid_index), (OURS, 255, 1));
    }

    #[test]
    fn the_passive_side_uses_a_grh_exactly_if_the_request_had_one() {
        assert!(both(1, None).1.path.grh.is_none() && both(1, None).0.path.grh.is_some());
        assert!(both(0, Some(GlobalAddress::default())).1.path.grh.is_some());
    }

    #[test]
    fn queue_pairs_take_the_terms() {
        let timer = RnrTimer(12);
        for (service, qp_type) in
            [(TransportService::RC, QpType::Rc), (TransportService::UC, QpType::Uc)]
        {
            let req = Req { transport_service: service, ..req(0) };
            let peer = MadAddress::gsi(Lid(0x32), 3, PKey::DEFAULT);
            let terms = Terms::passive(&req, &rep(), &peer, &port(OURS));
            assert_eq!(terms.qp_type, Some(qp_type));
            let to_receive = transition::check(qp_type, QpState::Init, &terms.to_receive(timer));
            assert_eq!(to_receive, Ok(QpState::Rtr));
            let to_send = transition::check(qp_type, QpState::Rtr, &terms.to_send());
            assert_eq!(to_send, Ok(QpState::Rts));
        }
    }
}
