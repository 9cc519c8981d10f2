//! The device on the ConnectX in software: [`equal`] and [`traffic`].
//!
//! A test starts this program again, in the environment in which libibverbs finds the adapter.

#[path = "../../../../connectx/tests/common/mod.rs"]
mod common;
mod equal;
mod traffic;

use common::{Hosts, finish, is_program};
use pollux_verbs::{Access, AddressVector, QpAttributes, QpState, QpType, Retries};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};

/// Runs a test of these files as a program at a host.
fn run(test: &str) {
    let hosts = Hosts::new();
    let own = std::env::current_exe().unwrap();
    let test = format!("device::tests::{test}");
    let child = hosts.start(0, own.to_str().unwrap(), &["--exact", &test, "--nocapture"]);
    let (is_right, output) = finish(&test, child);
    assert!(is_right && output.contains("1 passed"), "{output}");
}

/// The changes to RTS, with this peer.
fn changes(qp_type: QpType, (dlid, dest_qp): (Lid, Qpn)) -> [QpAttributes; 3] {
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
