//! States of queue pairs, for tests and benches.

use pollux_verbs::{Access, AddressVector, QpAttributes, QpState, QpType, Retries};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};

/// The changes to RTS, with this peer.
pub fn changes(qp_type: QpType, (dlid, dest_qp): (Lid, Qpn)) -> [QpAttributes; 3] {
    let (is_rc, is_ud) = (qp_type == QpType::Rc, qp_type == QpType::Ud);
    let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
    let path = AddressVector { dlid, port: 1, ..AddressVector::default() };
    let init = QpAttributes {
        pkey_index: Some(0),
        port: Some(1),
        access: (!is_ud).then_some(Access::ALL.remote()),
        qkey: is_ud.then_some(QKey(1)),
        ..to(QpState::Init)
    };
    let rtr = QpAttributes {
        path: (!is_ud).then_some(path),
        path_mtu: (!is_ud).then_some(Mtu(3)),
        dest_qp: (!is_ud).then_some(dest_qp),
        rq_psn: (!is_ud).then_some(Psn::new(1)),
        responder_resources: is_rc.then_some(1),
        min_rnr_timer: is_rc.then_some(RnrTimer(1)),
        ..to(QpState::Rtr)
    };
    let rts = QpAttributes {
        sq_psn: Some(Psn::new(1)),
        timeout: is_rc.then_some(TimeCode(17)),
        retry_count: is_rc.then_some(Retries::SEVEN),
        rnr_retry: is_rc.then_some(Retries::SEVEN),
        initiator_depth: is_rc.then_some(1),
        ..to(QpState::Rts)
    };
    [init, rtr, rts]
}
