//! The effect of the error state on requests (IBA 10.3.1.8, 10.7.3.1): each completes once, in
//! order, as flushed. Also reset and destruction, after which requests do not complete.

use super::prelude::*;
use pollux_wire::units::TimeCode;

pub const CASES: &[Case] = &[
    Case::new("receives-rc", "IBA 10.3.1.8", &[], |cx| receives(cx, QpType::Rc)),
    Case::new("receives-uc", "IBA 10.3.1.8", &[Need::Uc], |cx| receives(cx, QpType::Uc)),
    Case::new("receives-ud", "IBA 10.3.1.8", &[], |cx| receives(cx, QpType::Ud)),
    Case::new("sends-under-way", "IBA 10.3.1.8", &[], sends_under_way),
    Case::new("reads-under-way", "IBA 10.3.1.8", &[], reads_under_way),
    Case::new("behind-a-failure", "IBA 10.7.3.1", &[], behind_a_failure),
    Case::new("receives-behind-a-failed-send", "IBA 10.3.1.8", &[], receives_behind_a_failed_send),
    Case::new("posted-in-err-rc", "IBA 10.8.3", &[], |cx| posted_in_err(cx, QpType::Rc)),
    Case::new("posted-in-err-uc", "IBA 10.8.3", &[Need::Uc], |cx| posted_in_err(cx, QpType::Uc)),
    Case::new("posted-in-err-ud", "IBA 10.8.3", &[], |cx| posted_in_err(cx, QpType::Ud)),
    Case::new("flushed-from-init", "IBA 10.3.1.8", &[], |cx| flushed_from(cx, QpState::Init)),
    Case::new("flushed-from-rtr", "IBA 10.3.1.8", &[], |cx| flushed_from(cx, QpState::Rtr)),
    Case::new("err-twice", "IBA 10.3.1.8", &[], err_twice),
    Case::new("reset-takes-all-along", "IBA 10.3.1.1", &[], reset_takes_all_along),
    Case::new("reset-and-again-rc", "IBA 10.3.1.1", &[], |cx| reset_and_again(cx, QpType::Rc)),
    Case::new("reset-and-again-uc", "IBA 10.3.1.1", UC, |cx| reset_and_again(cx, QpType::Uc)),
    Case::new("destroy-with-work", "IBA 11.2.4.4", &[], destroy_with_work),
    Case::new("destroy-under-fire", "IBA 11.2.4.4", &[], destroy_under_fire),
];

const UC: &[Need] = &[Need::Uc, Need::Lossless];

fn receives(cx: &mut Context<'_>, qp_type: QpType) -> Result<(), Stop> {
    let (_, b) = cx.connected(qp_type)?;
    let sink = cx.sink(&b, 64)?;
    for id in 0..16 {
        cx.recv(&b, id, &[sink.sge(0, 64)])?;
    }
    cx.go(&b, QpState::Err)?;
    cx.flushed(&b, Queue::Recv, 0..16)
}

/// A pair in which B does not answer, so that requests of A stay outstanding.
fn unanswered(cx: &mut Context<'_>) -> Result<(PairEnd, PairEnd), Stop> {
    let (a, b) = cx.pair(&PairSetup { timeout: TimeCode(20), ..PairSetup::RC })?;
    cx.go(&b, QpState::Reset)?;
    Ok((a, b))
}

fn sends_under_way(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = unanswered(cx)?;
    let source = cx.source(&a, 8, 121)?;
    for id in 0..8 {
        // Flushed requests complete even if they are unsignaled.
        let make = if id % 2 == 0 { request } else { silent };
        cx.post(&a, make(id, SendOp::Send, &[source.sge(0, 8)]))?;
    }
    cx.go(&a, QpState::Err)?;
    cx.flushed(&a, Queue::Send, 0..8)
}

fn reads_under_way(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = unanswered(cx)?;
    let target = cx.shared(&b, 64)?;
    let sink = cx.sink(&a, 64)?;
    for id in 0..8 {
        cx.post(&a, request(id, SendOp::Read(target.remote(0)), &[sink.sge(0, 8)]))?;
    }
    cx.go(&a, QpState::Err)?;
    cx.flushed(&a, Queue::Send, 0..8)?;
    sink.is_untouched(0, 64)
}

fn behind_a_failure(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 8, 122)?;
    let target = cx.shared(&b, 8)?;
    let write = SendOp::Write(target.remote(0));
    let wrong = Sge { lkey: LKey(!source.region.lkey.0), ..source.sge(0, 8) };
    cx.post(&a, request(1, write, &[source.sge(0, 8)]))?;
    cx.post(&a, request(2, write, &[wrong]))?;
    for id in 3..8 {
        cx.post(&a, silent(id, write, &[source.sge(0, 8)]))?;
    }
    cx.done(&a, CompletionKind::Write, 1)?;
    cx.ended(&a, Queue::Send, 2, &[LocalProtection])?;
    cx.flushed(&a, Queue::Send, 3..8)
}

fn receives_behind_a_failed_send(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = cx.connected(QpType::Rc)?;
    let sink = cx.sink(&a, 8)?;
    for id in 0..4 {
        cx.recv(&a, id, &[sink.sge(0, 8)])?;
    }
    let wrong = Sge { lkey: LKey(!sink.region.lkey.0), ..sink.sge(0, 8) };
    cx.post(&a, request(9, SendOp::Send, &[wrong]))?;
    cx.breaks(&a, Queue::Send, 9, &[LocalProtection])?;
    // The whole queue pair is in the error state, so the receives are flushed too.
    cx.flushed(&a, Queue::Recv, 0..4)
}

fn posted_in_err(cx: &mut Context<'_>, qp_type: QpType) -> Result<(), Stop> {
    let (a, b) = cx.connected(qp_type)?;
    let op = match qp_type {
        QpType::Ud => SendOp::Datagram(cx.destination(&a, &b)?),
        _ => SendOp::Send,
    };
    cx.go(&a, QpState::Err)?;
    for id in 0..4 {
        cx.post(&a, request(id, op, &[]))?;
        cx.recv(&a, id, &[])?;
    }
    cx.flushed(&a, Queue::Send, 0..4)?;
    cx.flushed(&a, Queue::Recv, 0..4)
}

fn flushed_from(cx: &mut Context<'_>, state: QpState) -> Result<(), Stop> {
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let a = cx.create(&place_a, &PairSetup::RC)?;
    let b = cx.create(&place_b, &PairSetup::RC)?;
    cx.advance(&b, state, &a, &PairSetup::RC)?;
    for id in 0..4 {
        cx.recv(&b, id, &[])?;
    }
    cx.go(&b, QpState::Err)?;
    cx.flushed(&b, Queue::Recv, 0..4)
}

fn err_twice(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b) = cx.connected(QpType::Rc)?;
    cx.recv(&b, 1, &[])?;
    cx.go(&b, QpState::Err)?;
    cx.go(&b, QpState::Err)?;
    cx.flushed(&b, Queue::Recv, [1])
}

fn reset_takes_all_along(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = unanswered(cx)?;
    cx.recv(&a, 1, &[])?;
    cx.post(&a, request(2, SendOp::Send, &[]))?;
    cx.go(&a, QpState::Reset)?;
    cx.still_in(&a, QpState::Reset)?;
    cx.nothing_more(&a)
}

fn reset_and_again(cx: &mut Context<'_>, qp_type: QpType) -> Result<(), Stop> {
    let (a, b) = cx.connected(qp_type)?;
    cx.exchange(&a, &b, 100)?;
    cx.recv(&b, 1, &[])?;
    for end in [&a, &b] {
        cx.go(end, QpState::Err)?;
    }
    cx.flushed(&b, Queue::Recv, [1])?;
    for end in [&a, &b] {
        cx.go(end, QpState::Reset)?;
    }
    // The PSNs differ, to show that no state of the first connection is left.
    let setup = PairSetup { psn_a: 0x777, psn_b: 0x888, ..PairSetup::new(qp_type) };
    cx.connect(&a, &b, &setup)?;
    cx.exchange(&a, &b, 5000)
}

fn destroy_with_work(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = unanswered(cx)?;
    let source = cx.source(&a, 8, 123)?;
    for id in 0..4 {
        cx.post(&a, request(id, SendOp::Send, &[source.sge(0, 8)]))?;
        cx.recv(&a, id, &[])?;
    }
    cx.device(Side::A).destroy_qp(a.qp)?;
    cx.nothing_more(&a)?;
    no_such("destroying it again", cx.device(Side::A).destroy_qp(a.qp))
}

fn destroy_under_fire(cx: &mut Context<'_>) -> Result<(), Stop> {
    let setup = PairSetup { retry_count: 1, timeout: TimeCode(8), ..PairSetup::RC };
    let (a, b) = cx.pair(&setup)?;
    let source = cx.source(&a, 1 << 18, 124)?;
    let sink = cx.sink(&b, 1 << 18)?;
    cx.recv(&b, 1, &[sink.sge(0, 1 << 18)])?;
    cx.post(&a, request(2, SendOp::Send, &[source.sge(0, 1 << 18)]))?;
    cx.device(Side::B).destroy_qp(b.qp)?;
    // The message may have arrived before B was destroyed. Then B's completion can be polled, or
    // was removed.
    let found = cx.next(Side::A, a.place.send_cq)?;
    equal("the request that ended", found.id, 2)?;
    match found.status {
        RetryExceeded => cx.in_state(&a, QpState::Err),
        Success => {
            cx.settle()?;
            match cx.has_completion(&b, Queue::Recv) {
                true => cx.received(&b, 1, 1 << 18).map(drop),
                false => Ok(()),
            }
        }
        other => fail(format!("expected RetryExceeded or Success, found {other:?}")),
    }
}
