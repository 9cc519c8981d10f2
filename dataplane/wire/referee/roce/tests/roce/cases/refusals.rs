//! Failures on connections without a fault of the wire: not ready, not allowed, not there.

use super::Case;
use super::messages::MIB;
use crate::peer::*;
use pollux_conformance::end::op;
use pollux_verbs::CompletionStatus::{
    LocalLength, RemoteAccess, RemoteInvalidRequest, RetryExceeded, RnrRetryExceeded, Success,
};

/// A connection with short retries: three times, 33 ms each.
const IMPATIENT: Connection = Connection { timeout: 13, retries: 3, ..RC };

pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("RC receiver not ready, then ready", not_ready_then_ready),
        Case::new("RC receiver never ready", never_ready),
        Case::new("RC message longer than the receive", too_long),
        Case::new("RC no such queue pair", |t| {
            unanswered(t, &Connection { qpn_off: 0x5a00, ..IMPATIENT })
        }),
        Case::new("RC other partition", |t| {
            unanswered(t, &Connection { our_pkey_index: 1, ..IMPATIENT })
        }),
    ];
    for timer in [1, 6, 12, 16] {
        cases.push(Case::new(format!("RC RNR timer {timer}"), move |t| rnr_timer(t, timer)));
    }
    for (name, op, bytes) in [
        ("write", op::WRITE, 100),
        ("read", op::READ, 100),
        ("fetch and add", op::FETCH_ADD, 8),
        ("compare and swap", op::COMPARE_SWAP, 8),
    ] {
        cases.push(Case::new(format!("RC {name} with a wrong R_Key"), move |t| {
            t.connect(&RC)?;
            let rkey = Some(t.answers.rkey ^ 0xff);
            refused(
                t,
                Request { id: 1, op, bytes, to: TO, rkey, ..Request::default() },
                RemoteAccess,
            )
        }));
        cases.push(Case::new(format!("RC {name} beyond the region"), move |t| {
            t.connect(&RC)?;
            let to = if bytes == 8 { 2 * TO } else { 2 * TO - 8 };
            refused(t, Request { id: 1, op, bytes, to, ..Request::default() }, RemoteAccess)
        }));
        // IBA has an access error for it, and hardware answers so or with an invalid request.
        cases.push(Case::new(format!("RC {name} without the right"), move |t| {
            t.connect(&Connection { access: 1, ..RC })?;
            let request = Request { id: 1, op, bytes, to: TO, ..Request::default() };
            refused_either(t, request)
        }));
    }
    cases
}

fn not_ready_then_ready(t: &mut Trial<'_>) -> Outcome {
    // A timer of 10 ms, and no limit of retries: there are several before the receive is posted.
    t.connect(&Connection { rnr_timer: 20, rnr_retries: 7, ..RC })?;
    t.fill(t.asker, FROM, 3000, 4)?;
    t.post(Request { id: 1, op: op::SEND, bytes: 3000, ..Request::default() })?;
    expect("done without a receive", t.poll(t.asker, 60)?, None)?;
    t.recv(2, TO, MIB)?;
    t.ends(1, Success)?;
    t.received(2, 3000, None)?;
    t.check(t.answerer(), TO, 3000, 4)
}

fn rnr_timer(t: &mut Trial<'_>, rnr_timer: u64) -> Outcome {
    t.connect(&Connection { rnr_timer, rnr_retries: 7, ..RC })?;
    for id in 0..3 {
        t.post(Request { id, op: op::SEND, bytes: 10, ..Request::default() })?;
        t.recv(id, TO, 10)?;
        t.ends(id, Success)?;
        t.received(id, 10, None)?;
    }
    Ok(())
}

fn never_ready(t: &mut Trial<'_>) -> Outcome {
    t.connect(&Connection { rnr_retries: 2, ..RC })?;
    t.post(Request { id: 1, op: op::SEND, bytes: 10, ..Request::default() })?;
    t.ends(1, RnrRetryExceeded)?;
    expect("asker is broken", t.is_broken(t.asker)?, true)?;
    expect("answerer is broken", t.is_broken(t.answerer())?, false)
}

fn too_long(t: &mut Trial<'_>) -> Outcome {
    t.connect(&RC)?;
    t.recv(1, TO, 2000)?;
    t.post(Request { id: 2, op: op::SEND, bytes: 3000, ..Request::default() })?;
    t.ends(2, RemoteInvalidRequest)?;
    let done = t.wait(t.answerer())?;
    expect("receive", (done.id, done.status), (1, LocalLength))
}

/// No answer: the queue pair goes to the error state, and nothing arrives.
fn unanswered(t: &mut Trial<'_>, connection: &Connection) -> Outcome {
    t.connect(connection)?;
    t.recv(1, TO, 100)?;
    t.post(Request { id: 2, op: op::SEND, bytes: 10, ..Request::default() })?;
    t.ends(2, RetryExceeded)?;
    expect("asker is broken", t.is_broken(t.asker)?, true)?;
    expect("answerer is broken", t.is_broken(t.answerer())?, false)?;
    t.is_quiet()
}

fn refused(t: &mut Trial<'_>, request: Request, status: pollux_verbs::CompletionStatus) -> Outcome {
    let answerer = t.answerer();
    t.fill(answerer, TO, 4000, 12)?;
    t.post(request)?;
    t.ends(request.id, status)?;
    expect("asker is broken", t.is_broken(t.asker)?, true)?;
    expect("answerer is broken", t.is_broken(answerer)?, true)?;
    t.check(answerer, TO, 4000, 12)
}

fn refused_either(t: &mut Trial<'_>, request: Request) -> Outcome {
    let answerer = t.answerer();
    t.fill(answerer, TO, 4000, 12)?;
    t.post(request)?;
    let status = t.wait(t.asker)?.status;
    let is_refused = [RemoteAccess, RemoteInvalidRequest].contains(&status);
    expect(&format!("{status} is a refusal"), is_refused, true)?;
    t.check(answerer, TO, 4000, 12)
}
