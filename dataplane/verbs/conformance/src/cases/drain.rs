//! Draining the send queue (IBA 10.3.1.5): in SQD, the adapter finishes requests that it has begun
//! and begins no others. It continues after the change to RTS.

use super::prelude::*;

pub const CASES: &[Case] = &[
    Case::new("event-at-rest", "IBA 10.3.1.5", DRAIN, event_at_rest),
    Case::new("no-event-unless-asked", "IBA 10.3.1.5", DRAIN, no_event_unless_asked),
    Case::new("event-after-the-last-completion", "IBA 10.3.1.5", DRAIN, event_after_the_last),
    Case::new("posted-meanwhile-waits", "IBA 10.3.1.5", DRAIN, posted_meanwhile_waits),
    Case::new("receives-go-on", "IBA 10.3.1.5", DRAIN, receives_go_on),
    Case::new("attributes-change", "IBA 11.2.4.2", DRAIN, attributes_change),
    Case::new("drained-to-err", "IBA 10.3.1.8", DRAIN, drained_to_err),
    Case::new("ud-drains", "IBA 10.3.1.5", DRAIN, ud_drains),
];

const DRAIN: &[Need] = &[Need::Drain];

fn drain(cx: &mut Context<'_>, a: &PairEnd, event: bool) -> Result<(), Stop> {
    let change = QpAttributes {
        state: Some(QpState::Sqd),
        drain_event: Some(event),
        ..QpAttributes::default()
    };
    Ok(cx.device(a.side()).modify_qp(a.qp, &change)?)
}

fn event_at_rest(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    drain(cx, &a, true)?;
    cx.event(Side::A, AsyncEvent::SendQueueDrained(a.qp))?;
    cx.still_in(&a, QpState::Sqd)?;
    cx.go(&a, QpState::Rts)?;
    cx.exchange(&a, &b, 64)
}

fn no_event_unless_asked(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    cx.go(&a, QpState::Sqd)?;
    cx.nothing_more(&a)?;
    cx.go(&a, QpState::Rts)?;
    cx.exchange(&a, &b, 64)
}

fn event_after_the_last(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 100_000, 181)?;
    let target = cx.shared(&b, 100_000)?;
    for id in 0..4 {
        let write = SendOp::Write(target.remote(0));
        cx.post(&a, request(id, write, &[source.sge(0, 100_000)]))?;
    }
    drain(cx, &a, true)?;
    cx.event(Side::A, AsyncEvent::SendQueueDrained(a.qp))?;
    // The number of requests that had begun is open. These are done; the adapter executes the
    // others after the change to RTS.
    cx.settle()?;
    cx.go(&a, QpState::Rts)?;
    for id in 0..4 {
        cx.done(&a, CompletionKind::Write, id)?;
    }
    same(&source, 0, &target, 0, 100_000)
}

fn posted_meanwhile_waits(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 8, 182)?;
    let target = cx.shared(&b, 8)?;
    drain(cx, &a, true)?;
    cx.event(Side::A, AsyncEvent::SendQueueDrained(a.qp))?;
    cx.post(&a, request(1, SendOp::Write(target.remote(0)), &[source.sge(0, 8)]))?;
    cx.nothing_more(&a)?;
    target.is_untouched(0, 8)?;
    cx.go(&a, QpState::Rts)?;
    cx.done(&a, CompletionKind::Write, 1)?;
    same(&source, 0, &target, 0, 8)
}

fn receives_go_on(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    drain(cx, &a, true)?;
    cx.event(Side::A, AsyncEvent::SendQueueDrained(a.qp))?;
    cx.exchange(&b, &a, 5000)?;
    let local = cx.shared(&a, 8)?;
    let sink = cx.sink(&b, 8)?;
    cx.carry_out(&b, request(1, SendOp::Read(local.remote(0)), &[sink.sge(0, 8)])).map(drop)
}

fn attributes_change(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    drain(cx, &a, true)?;
    cx.event(Side::A, AsyncEvent::SendQueueDrained(a.qp))?;
    let change = QpAttributes {
        state: Some(QpState::Sqd),
        rnr_retry: Some(Retries::NONE),
        ..QpAttributes::default()
    };
    cx.device(Side::A).modify_qp(a.qp, &change)?;
    let (_, found) = cx.device(Side::A).query_qp(a.qp)?;
    equal("rnr_retry", found.rnr_retry, Some(Retries::NONE))?;
    cx.go(&a, QpState::Rts)?;
    cx.exchange(&a, &b, 64)?;
    // B has no receive posted, so the request fails without a retry.
    cx.post(&a, request(1, SendOp::Send, &[]))?;
    cx.breaks(&a, Queue::Send, 1, &[RnrRetryExceeded])
}

fn drained_to_err(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = cx.connected(QpType::Rc)?;
    drain(cx, &a, true)?;
    cx.event(Side::A, AsyncEvent::SendQueueDrained(a.qp))?;
    for id in 0..4 {
        cx.post(&a, request(id, SendOp::Send, &[]))?;
    }
    cx.go(&a, QpState::Err)?;
    cx.flushed(&a, Queue::Send, 0..4)
}

fn ud_drains(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    drain(cx, &a, true)?;
    cx.event(Side::A, AsyncEvent::SendQueueDrained(a.qp))?;
    cx.post(&a, request(1, SendOp::Datagram(to), &[]))?;
    cx.nothing_more(&a)?;
    cx.go(&a, QpState::Rts)?;
    cx.done(&a, CompletionKind::Send, 1).map(drop)
}
