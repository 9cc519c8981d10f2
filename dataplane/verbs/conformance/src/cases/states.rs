//! The states of a queue pair, compared with the table in [`transition`] (IBA 10.3.1, 11.2.4.2): a
//! change that the table does not allow is refused with the table's error and has no effect.

use super::prelude::*;
use pollux_verbs::qp::QpAttribute;
use pollux_verbs::transition;
use pollux_wire::keys::QKey;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};

macro_rules! each_state {
    ($($type_name:literal $qp_type:ident $needs:expr;)*) => {
        &[$(
            case(concat!($type_name, "-from-reset"), $needs, |cx| {
                illegal(cx, QpType::$qp_type, QpState::Reset)
            }),
            case(concat!($type_name, "-from-init"), $needs, |cx| {
                illegal(cx, QpType::$qp_type, QpState::Init)
            }),
            case(concat!($type_name, "-from-rtr"), $needs, |cx| {
                illegal(cx, QpType::$qp_type, QpState::Rtr)
            }),
            case(concat!($type_name, "-from-rts"), $needs, |cx| {
                illegal(cx, QpType::$qp_type, QpState::Rts)
            }),
            case(concat!($type_name, "-from-err"), $needs, |cx| {
                illegal(cx, QpType::$qp_type, QpState::Err)
            }),
            case(concat!($type_name, "-missing-for-init"), $needs, |cx| {
                missing(cx, QpType::$qp_type, QpState::Init)
            }),
            case(concat!($type_name, "-missing-for-rtr"), $needs, |cx| {
                missing(cx, QpType::$qp_type, QpState::Rtr)
            }),
            case(concat!($type_name, "-missing-for-rts"), $needs, |cx| {
                missing(cx, QpType::$qp_type, QpState::Rts)
            }),
            case(concat!($type_name, "-too-much-for-init"), $needs, |cx| {
                too_much(cx, QpType::$qp_type, QpState::Init)
            }),
            case(concat!($type_name, "-too-much-for-rtr"), $needs, |cx| {
                too_much(cx, QpType::$qp_type, QpState::Rtr)
            }),
            case(concat!($type_name, "-too-much-for-rts"), $needs, |cx| {
                too_much(cx, QpType::$qp_type, QpState::Rts)
            }),
            case(concat!($type_name, "-to-reset-from-everywhere"), $needs, |cx| {
                from_everywhere(cx, QpType::$qp_type, QpState::Reset)
            }),
            case(concat!($type_name, "-to-err-from-everywhere"), $needs, |cx| {
                from_everywhere(cx, QpType::$qp_type, QpState::Err)
            }),
            case(concat!($type_name, "-query"), $needs, |cx| query(cx, QpType::$qp_type)),
        )*]
    };
}

const fn case(
    name: &'static str,
    needs: &'static [Need],
    run: fn(&mut Context<'_>) -> Result<(), Stop>,
) -> Case {
    Case::new(name, "IBA 11.2.4.2", needs, run)
}

/// Cases for each transition of the table and each transport.
pub const TABLE: &[Case] = each_state![
    "rc" Rc &[];
    "uc" Uc &[Need::Uc];
    "ud" Ud &[];
];

/// Further cases.
pub const CASES: &[Case] = &[
    Case::new("sqd-illegal", "IBA 10.3.1.5", &[Need::Drain], sqd_illegal),
    Case::new("sqe-illegal", "IBA 10.3.1.7", &[], sqe_illegal),
    Case::new("believed-state-is-wrong", "contract: current_state", &[], believed_wrong),
    Case::new("believed-state-is-right", "contract: current_state", &[], believed_right),
    Case::new("no-such-port", "IBA 11.2.4.2", &[], no_such_port),
    Case::new("no-such-pkey", "IBA 11.2.4.2", &[], no_such_pkey),
    Case::new("mtu-beyond-the-port", "IBA 11.2.4.2", &[], mtu_beyond_the_port),
    Case::new("changes-in-init-count", "IBA 11.2.4.2", &[], changes_in_init_count),
    Case::new("created-in-reset", "IBA 11.2.4.1", &[], created_in_reset),
];

/// A queue pair in this state, and its peer, which is in RESET.
fn in_state(
    cx: &mut Context<'_>,
    qp_type: QpType,
    state: QpState,
) -> Result<(PairEnd, PairEnd), Stop> {
    let setup = PairSetup::new(qp_type);
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let a = cx.create(&place_a, &setup)?;
    let b = cx.create(&place_b, &setup)?;
    match state {
        QpState::Err => cx.go(&a, QpState::Err)?,
        QpState::Sqd => {
            cx.advance(&a, QpState::Rts, &b, &setup)?;
            cx.go(&a, QpState::Sqd)?;
        }
        QpState::Sqe => {
            cx.advance(&a, QpState::Rts, &b, &setup)?;
            let to = cx.destination(&a, &b)?;
            let wrong = Sge { address: 0, bytes: 8, lkey: LKey(0xdead_beef) };
            cx.post(&a, request(1, SendOp::Datagram(to), &[wrong]))?;
            cx.ended(&a, Queue::Send, 1, &[LocalProtection])?;
            cx.in_state(&a, QpState::Sqe)?;
        }
        _ => cx.advance(&a, state, &b, &setup)?,
    }
    Ok((a, b))
}

/// Expects that a change is refused with the error of the table, and has no effect.
fn is_refused(cx: &mut Context<'_>, a: &PairEnd, change: &QpAttributes) -> Result<(), Stop> {
    let (before, attributes) = cx.device(a.side()).query_qp(a.qp)?;
    let Err(expected) = transition::check(a.qp_type, before, change) else {
        return fail(format!("the table allows what the case took for wrong: {change:?}"));
    };
    let answer = cx.device(a.side()).modify_qp(a.qp, change);
    equal("the answer", answer, Err(expected))?;
    cx.still_in(a, before)?;
    let (_, after) = cx.device(a.side()).query_qp(a.qp)?;
    equal("the attributes", after, attributes)
}

fn illegal(cx: &mut Context<'_>, qp_type: QpType, from: QpState) -> Result<(), Stop> {
    let (a, b) = in_state(cx, qp_type, from)?;
    for to in QpState::ALL {
        // The change has all attributes of the target state, so only the transition is wrong.
        let change = cx.change(&a, to, &b, &PairSetup::new(qp_type))?;
        if transition::check(qp_type, from, &change).is_err() {
            is_refused(cx, &a, &change)?;
        }
    }
    Ok(())
}

fn sqd_illegal(cx: &mut Context<'_>) -> Result<(), Stop> {
    illegal(cx, QpType::Rc, QpState::Sqd)
}

fn sqe_illegal(cx: &mut Context<'_>) -> Result<(), Stop> {
    illegal(cx, QpType::Ud, QpState::Sqe)
}

fn before(to: QpState) -> QpState {
    match to {
        QpState::Init => QpState::Reset,
        QpState::Rtr => QpState::Init,
        _ => QpState::Rtr,
    }
}

fn missing(cx: &mut Context<'_>, qp_type: QpType, to: QpState) -> Result<(), Stop> {
    let (a, b) = in_state(cx, qp_type, before(to))?;
    let change = cx.change(&a, to, &b, &PairSetup::new(qp_type))?;
    for &attribute in QpAttribute::ALL {
        let less = change.without(attribute);
        // A change without the state is a different change, which may be valid.
        if less != change && attribute != QpAttribute::State {
            is_refused(cx, &a, &less)?;
        }
    }
    // With all attributes the transition succeeds.
    Ok(cx.device(Side::A).modify_qp(a.qp, &change)?)
}

fn too_much(cx: &mut Context<'_>, qp_type: QpType, to: QpState) -> Result<(), Stop> {
    let (a, b) = in_state(cx, qp_type, before(to))?;
    let right = cx.change(&a, to, &b, &PairSetup::new(qp_type))?;
    let more = [
        QpAttributes { qkey: Some(QKey(1)), ..right },
        QpAttributes { path_mtu: Some(Mtu::BYTES_256), ..right },
        QpAttributes { rq_psn: Some(Psn::new(1)), ..right },
        QpAttributes { sq_psn: Some(Psn::new(1)), ..right },
        QpAttributes { timeout: Some(TimeCode(1)), ..right },
        QpAttributes { drain_event: Some(true), ..right },
    ];
    for change in more {
        if transition::check(qp_type, before(to), &change).is_err() {
            is_refused(cx, &a, &change)?;
        }
    }
    Ok(cx.device(Side::A).modify_qp(a.qp, &right)?)
}

fn from_everywhere(cx: &mut Context<'_>, qp_type: QpType, to: QpState) -> Result<(), Stop> {
    let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err];
    for state in states {
        let (a, _) = in_state(cx, qp_type, state)?;
        cx.go(&a, to)?;
        cx.still_in(&a, to)?;
    }
    Ok(())
}

fn query(cx: &mut Context<'_>, qp_type: QpType) -> Result<(), Stop> {
    let setup = PairSetup::new(qp_type);
    let (a, b) = in_state(cx, qp_type, QpState::Reset)?;
    let mut expected = QpAttributes::default();
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let change = cx.change(&a, to, &b, &setup)?;
        cx.device(Side::A).modify_qp(a.qp, &change)?;
        expected.take(&change);
        let (state, found) = cx.device(Side::A).query_qp(a.qp)?;
        equal("the state", state, to)?;
        // An adapter may or may not report the state among the attributes, and may report values of
        // attributes that were never set.
        let found = QpAttributes {
            state: None,
            current_state: None,
            alternate_path: None,
            drain_event: None,
            migration: None,
            ..found
        };
        equal("the attributes", found, QpAttributes { state: None, ..expected })?;
    }
    Ok(())
}

fn believed_wrong(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = in_state(cx, QpType::Rc, QpState::Rtr)?;
    let change = QpAttributes {
        state: Some(QpState::Err),
        current_state: Some(QpState::Rts),
        ..QpAttributes::default()
    };
    is_refused(cx, &a, &change)
}

fn believed_right(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = in_state(cx, QpType::Rc, QpState::Rtr)?;
    let change = cx.change(&a, QpState::Rts, &b, &PairSetup::RC)?;
    let change = QpAttributes { current_state: Some(QpState::Rtr), ..change };
    cx.device(Side::A).modify_qp(a.qp, &change)?;
    cx.still_in(&a, QpState::Rts)
}

fn no_such_port(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = in_state(cx, QpType::Rc, QpState::Reset)?;
    let ports = cx.device(Side::A).attributes().ports;
    let right = cx.change(&a, QpState::Init, &b, &PairSetup::RC)?;
    for port in [0, ports + 1] {
        let change = QpAttributes { port: Some(port), ..right };
        invalid("a port that is not there", cx.device(Side::A).modify_qp(a.qp, &change))?;
        cx.still_in(&a, QpState::Reset)?;
    }
    Ok(())
}

fn no_such_pkey(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = in_state(cx, QpType::Rc, QpState::Reset)?;
    let port = cx.port(Side::A);
    let pkeys = cx.device(Side::A).port(port)?.pkeys;
    let right = cx.change(&a, QpState::Init, &b, &PairSetup::RC)?;
    let change = QpAttributes { pkey_index: Some(pkeys), ..right };
    invalid("a place beyond the P_Key table", cx.device(Side::A).modify_qp(a.qp, &change))?;
    cx.still_in(&a, QpState::Reset)
}

fn mtu_beyond_the_port(cx: &mut Context<'_>) -> Result<(), Stop> {
    let port = cx.port(Side::A);
    let max = cx.device(Side::A).port(port)?.mtu;
    let Some(beyond) = Mtu::ALL.iter().copied().find(|mtu| *mtu > max) else {
        return skip("the port carries the largest MTU there is");
    };
    let (a, b) = in_state(cx, QpType::Rc, QpState::Init)?;
    let right = cx.change(&a, QpState::Rtr, &b, &PairSetup::RC)?;
    let change = QpAttributes { path_mtu: Some(beyond), ..right };
    invalid("an MTU beyond the port's", cx.device(Side::A).modify_qp(a.qp, &change))?;
    cx.still_in(&a, QpState::Init)
}

fn changes_in_init_count(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = in_state(cx, QpType::Rc, QpState::Init)?;
    let change = QpAttributes {
        state: Some(QpState::Init),
        access: Some(Access::REMOTE_READ),
        ..QpAttributes::default()
    };
    cx.device(Side::A).modify_qp(a.qp, &change)?;
    let (_, found) = cx.device(Side::A).query_qp(a.qp)?;
    equal("access", found.access, Some(Access::REMOTE_READ))
}

fn created_in_reset(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = in_state(cx, QpType::Rc, QpState::Reset)?;
    cx.still_in(&a, QpState::Reset)?;
    cx.still_in(&b, QpState::Reset)?;
    // Two queue pairs of one port have different QPNs.
    let other = cx.create(&a.place, &PairSetup::RC)?;
    equal("the same number twice", a.qpn == other.qpn, false)
}
