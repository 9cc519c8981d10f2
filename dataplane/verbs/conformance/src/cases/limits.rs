//! The attributes of an adapter, and whether its limits are as reported (IBA 11.2.1).

use super::prelude::*;
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::RnrTimer;
use pollux_wire::units::TimeCode;

pub const CASES: &[Case] = &[
    Case::new("attributes-make-sense", "IBA 11.2.1.2", &[], attributes_make_sense),
    Case::new("ports-make-sense", "IBA 11.2.1.2", &[], ports_make_sense),
    Case::new("no-such-port", "IBA 11.2.1.2", &[], no_such_port),
    Case::new("no-such-gid", "IBA 11.2.1.2", &[], no_such_gid),
    Case::new("no-such-pkey", "IBA 11.2.1.2", &[], no_such_pkey),
    Case::new("send-queue-too-long", "IBA 11.2.4.1", &[], |cx| {
        qp_over(cx, |init, limits| init.send_requests_max = limits.requests_max + 1)
    }),
    Case::new("recv-queue-too-long", "IBA 11.2.4.1", &[], |cx| {
        qp_over(cx, |init, limits| init.recv_requests_max = limits.requests_max + 1)
    }),
    Case::new("too-many-send-entries", "IBA 11.2.4.1", &[], |cx| {
        qp_over(cx, |init, limits| init.send_sges_max = limits.sges_max + 1)
    }),
    Case::new("too-many-recv-entries", "IBA 11.2.4.1", &[], |cx| {
        qp_over(cx, |init, limits| init.recv_sges_max = limits.sges_max + 1)
    }),
    Case::new("too-much-inline", "contract: Limits", &[], |cx| {
        qp_over(cx, |init, limits| init.inline_bytes_max = limits.inline_bytes_max + 1)
    }),
    Case::new("cq-too-long", "IBA 11.2.8.1", &[], cq_too_long),
    Case::new("srq-too-long", "IBA 11.2.3.1", &[], srq_too_long),
    Case::new("srq-limit-beyond-its-length", "IBA 11.2.3.3", &[Need::SrqLimit], srq_limit_beyond),
    Case::new("responder-resources-beyond", "IBA 11.2.4.2", &[], responder_resources_beyond),
    Case::new("initiator-depth-beyond", "IBA 11.2.4.2", &[], initiator_depth_beyond),
    Case::new("rnr-timer-beyond", "IBA 9.7.5.2.8", &[], |cx| {
        change_over(cx, QpState::Rtr, |change| change.min_rnr_timer = Some(RnrTimer(32)))
    }),
    Case::new("timeout-beyond", "IBA 9.7.6.1.3", &[], |cx| {
        change_over(cx, QpState::Rts, |change| change.timeout = Some(TimeCode(32)))
    }),
    Case::new("destination-beyond", "IBA 11.2.4.2", &[], |cx| {
        change_over(cx, QpState::Rtr, |change| change.dest_qp = Some(Qpn(1 << 24)))
    }),
    Case::new("path-through-no-port", "IBA 11.2.4.2", &[], |cx| {
        change_over(cx, QpState::Rtr, |change| with_path(change, |path| path.port = u8::MAX))
    }),
    Case::new("path-to-a-group", "IBA 11.2.4.2", &[Need::Subnet], |cx| {
        change_over(cx, QpState::Rtr, |change| with_path(change, |path| path.dlid = Lid(0xc001)))
    }),
    Case::new("path-to-nobody", "IBA 11.2.4.2", &[Need::Subnet], |cx| {
        change_over(cx, QpState::Rtr, |change| with_path(change, |path| path.dlid = Lid::NONE))
    }),
    Case::new("pds-run-out", "IBA 11.2.2.1", &[], pds_run_out),
    Case::new("cqs-run-out", "IBA 11.2.8.1", &[], cqs_run_out),
    Case::new("qps-run-out", "IBA 11.2.4.1", &[], qps_run_out),
    Case::new("ahs-run-out", "IBA 11.2.2.1", &[], ahs_run_out),
];

use pollux_verbs::device::Limits;
use pollux_verbs::qp::QpInit;

fn attributes_make_sense(cx: &mut Context<'_>) -> Result<(), Stop> {
    for side in Side::BOTH {
        let found = cx.device(side).attributes();
        let limits = found.limits;
        let least = [
            ("ports", u32::from(found.ports)),
            ("pds_max", limits.pds_max),
            ("regions_max", limits.regions_max),
            ("cqs_max", limits.cqs_max),
            ("completions_max", limits.completions_max),
            ("qps_max", limits.qps_max),
            ("requests_max", limits.requests_max),
            ("sges_max", limits.sges_max),
            ("ahs_max", limits.ahs_max),
        ];
        if let Some((name, _)) = least.iter().find(|(_, value)| *value == 0) {
            return fail(format!("{name}: expected at least 1, found 0"));
        }
        equal("an adapter without a name", found.name.is_empty(), false)?;
        equal("windows without any", found.can.windows && limits.windows_max == 0, false)?;
        let atomics = found.can.atomics && limits.responder_resources_max == 0;
        equal("atomics without responder resources", atomics, false)?;
    }
    Ok(())
}

fn ports_make_sense(cx: &mut Context<'_>) -> Result<(), Stop> {
    for side in Side::BOTH {
        let nth = cx.port(side);
        let port = cx.device(side).port(nth)?;
        equal("the port's state", port.state, PortState::ACTIVE)?;
        equal("an MTU beyond the largest", port.mtu > port.mtu_max, false)?;
        equal("a port without a GID", port.gids == 0, false)?;
        equal("a port without a P_Key", port.pkeys == 0, false)?;
        if cx.device(side).attributes().can.subnet {
            equal("a unicast LID", port.lid.is_unicast(), true)?;
            equal("a P_Key that is one", cx.device(side).pkey(nth, 0)?.is_valid(), true)?;
        }
        let again = cx.device(side).port(nth)?;
        equal("the port, asked again", again, port)?;
    }
    Ok(())
}

fn no_such_port(cx: &mut Context<'_>) -> Result<(), Stop> {
    let device = cx.device(Side::A);
    let wrong = device.attributes().ports + 1;
    for port in [0, wrong] {
        is_wrong("a port that is not there", device.port(port))?;
        is_wrong("its GID", device.gid(port, 0))?;
        is_wrong("its P_Key", device.pkey(port, 0))?;
    }
    Ok(())
}

/// The port or index is an invalid argument and does not exist, so both errors are right.
fn is_wrong<T: std::fmt::Debug>(what: &str, answer: Result<T, VerbsError>) -> Result<(), Stop> {
    refused(what, answer, |error| {
        matches!(error, VerbsError::NoSuch { .. } | VerbsError::Invalid { .. })
    })
}

fn no_such_gid(cx: &mut Context<'_>) -> Result<(), Stop> {
    let port = cx.port(Side::A);
    let gids = cx.device(Side::A).port(port)?.gids;
    is_wrong("a GID beyond the table", cx.device(Side::A).gid(port, gids))
}

fn no_such_pkey(cx: &mut Context<'_>) -> Result<(), Stop> {
    let port = cx.port(Side::A);
    let pkeys = cx.device(Side::A).port(port)?.pkeys;
    is_wrong("a P_Key beyond the table", cx.device(Side::A).pkey(port, pkeys))
}

fn qp_over(cx: &mut Context<'_>, exceed: fn(&mut QpInit, &Limits)) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let limits = cx.device(Side::A).attributes().limits;
    let mut init = cx.qp_init(&place, &PairSetup::RC);
    exceed(&mut init, &limits);
    limited("a queue pair over a limit", cx.device(Side::A).create_qp(&init))
}

fn cq_too_long(cx: &mut Context<'_>) -> Result<(), Stop> {
    let max = cx.device(Side::A).attributes().limits.completions_max;
    limited("a queue over the limit", cx.device(Side::A).create_cq(max + 1))?;
    invalid("a queue of no length", cx.device(Side::A).create_cq(0))
}

fn srq_too_long(cx: &mut Context<'_>) -> Result<(), Stop> {
    let pd = cx.place(Side::A)?.pd;
    let limits = cx.device(Side::A).attributes().limits;
    let device = cx.device(Side::A);
    limited("a queue over the limit", device.create_srq(pd, limits.srq_requests_max + 1, 1))?;
    limited("entries over the limit", device.create_srq(pd, 4, limits.sges_max + 1))
}

fn srq_limit_beyond(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place_with_srq(Side::A, 4)?;
    let Some(srq) = place.srq else { return skip("no shared receive queue") };
    let beyond = cx.device(Side::A).attributes().limits.srq_requests_max + 1;
    let answer = cx.device(Side::A).set_srq_limit(srq, beyond);
    refused("a limit that it always is under", answer, |error| {
        matches!(error, VerbsError::Invalid { .. } | VerbsError::Limit { .. })
    })
}

fn responder_resources_beyond(cx: &mut Context<'_>) -> Result<(), Stop> {
    let max = cx.device(Side::A).attributes().limits.responder_resources_max;
    let Some(beyond) = max.checked_add(1) else { return skip("there is no number beyond") };
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let a = cx.create(&place_a, &PairSetup::RC)?;
    let b = cx.create(&place_b, &PairSetup::RC)?;
    cx.advance(&a, QpState::Init, &b, &PairSetup::RC)?;
    let right = cx.change(&a, QpState::Rtr, &b, &PairSetup::RC)?;
    let change = QpAttributes { responder_resources: Some(beyond), ..right };
    is_beyond("responder resources", cx.device(Side::A).modify_qp(a.qp, &change))
}

fn initiator_depth_beyond(cx: &mut Context<'_>) -> Result<(), Stop> {
    let max = cx.device(Side::A).attributes().limits.initiator_depth_max;
    let Some(beyond) = max.checked_add(1) else { return skip("there is no number beyond") };
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let a = cx.create(&place_a, &PairSetup::RC)?;
    let b = cx.create(&place_b, &PairSetup::RC)?;
    cx.advance(&a, QpState::Rtr, &b, &PairSetup::RC)?;
    let right = cx.change(&a, QpState::Rts, &b, &PairSetup::RC)?;
    let change = QpAttributes { initiator_depth: Some(beyond), ..right };
    is_beyond("initiator depth", cx.device(Side::A).modify_qp(a.qp, &change))
}

/// Expects that a change, which is valid except for the effect of `exceed`, is refused.
fn change_over(
    cx: &mut Context<'_>,
    to: QpState,
    exceed: fn(&mut QpAttributes),
) -> Result<(), Stop> {
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let a = cx.create(&place_a, &PairSetup::RC)?;
    let b = cx.create(&place_b, &PairSetup::RC)?;
    let before = if to == QpState::Rtr { QpState::Init } else { QpState::Rtr };
    cx.advance(&a, before, &b, &PairSetup::RC)?;
    let mut change = cx.change(&a, to, &b, &PairSetup::RC)?;
    exceed(&mut change);
    invalid("an attribute that there is not", cx.device(Side::A).modify_qp(a.qp, &change))?;
    cx.still_in(&a, before)
}

fn with_path(change: &mut QpAttributes, spoil: fn(&mut AddressVector)) {
    if let Some(path) = &mut change.path {
        spoil(path);
    }
}

/// A value above a limit is also an invalid argument, so both errors are right.
fn is_beyond(what: &str, answer: Result<(), VerbsError>) -> Result<(), Stop> {
    refused(what, answer, |error| {
        matches!(error, VerbsError::Invalid { .. } | VerbsError::Limit { .. })
    })
}

/// Creates objects up to the limit, and expects that one more is refused.
fn run_out<T: std::fmt::Debug>(
    max: u32,
    mut make: impl FnMut() -> Result<T, VerbsError>,
) -> Result<(), Stop> {
    for _ in 0..max {
        make()?;
    }
    limited("one more than the limit", make())
}

fn pds_run_out(cx: &mut Context<'_>) -> Result<(), Stop> {
    let max = cx.device(Side::A).attributes().limits.pds_max;
    cx.needs_objects(max)?;
    let device = cx.device(Side::A);
    run_out(max, || device.create_pd())
}

fn cqs_run_out(cx: &mut Context<'_>) -> Result<(), Stop> {
    let max = cx.device(Side::A).attributes().limits.cqs_max;
    cx.needs_objects(max)?;
    let device = cx.device(Side::A);
    run_out(max, || device.create_cq(1))
}

fn qps_run_out(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let setup = PairSetup { requests_max: 1, sges_max: 1, ..PairSetup::UD };
    let init = cx.qp_init(&place, &setup);
    let max = cx.device(Side::A).attributes().limits.qps_max;
    cx.needs_objects(max)?;
    let device = cx.device(Side::A);
    run_out(max, || device.create_qp(&init))
}

fn ahs_run_out(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let path = cx.path(Side::A, Side::B)?;
    let max = cx.device(Side::A).attributes().limits.ahs_max;
    cx.needs_objects(max)?;
    let device = cx.device(Side::A);
    run_out(max, || device.create_ah(place.pd, &path))
}
