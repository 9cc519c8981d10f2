//! Shared receive queues (IBA 10.2.9): use by several queue pairs, the limit event, and the event
//! after the last receive of a failed queue pair.

use super::prelude::*;

pub const CASES: &[Case] = &[
    Case::new("first-come-first-served", "IBA 10.2.9.1", &[], first_come),
    Case::new("shared-by-100", "IBA 10.2.9.1", &[], shared_by_100),
    Case::new("rc-waits-on-an-empty-one", "IBA 9.7.5.2.8", &[], waits_on_empty),
    Case::new("write-imm-takes-one", "IBA 9.4.3", &[], write_imm_takes_one),
    Case::new("ud-takes-one", "IBA 10.2.9", &[Need::Lossless], datagram_takes_one),
    Case::new("uc-takes-one", "IBA 10.2.9", &[Need::UcSrq, Need::Lossless], uc_takes_one),
    Case::new("limit-event", "IBA 10.2.9.3", LIMIT, limit_event),
    Case::new("limit-event-comes-once", "IBA 10.2.9.3", LIMIT, limit_event_once),
    Case::new("limit-of-zero-is-none", "IBA 10.2.9.3", LIMIT, limit_of_zero),
    Case::new("limit-set-too-late", "IBA 10.2.9.3", LIMIT, limit_set_too_late),
    Case::new("no-limit-event-for-nothing-ud", "IBA 10.2.9.3", LIMIT_LOSSLESS, |cx| {
        too_long_takes_none(cx, QpType::Ud)
    }),
    Case::new("no-limit-event-for-nothing-uc", "IBA 10.2.9.3", LIMIT_UC, |cx| {
        too_long_takes_none(cx, QpType::Uc)
    }),
    Case::new("full", "contract: PostRefusal", &[], full),
    Case::new("too-many-entries", "IBA 11.4.1.2", &[], too_many_entries),
    Case::new("own-receives-are-refused", "IBA 10.2.9", &[], own_receives_are_refused),
    Case::new("error-leaves-it-alone", "IBA 10.2.9.2", &[], error_leaves_it_alone),
    Case::new("last-receive-event", "IBA 11.6.3.1", &[], last_receive_event),
    Case::new("reset-leaves-it-alone", "IBA 10.2.9", &[], reset_leaves_it_alone),
    Case::new("destroyed-with-receives", "IBA 11.2.3.4", &[], destroyed_with_receives),
];

const LIMIT: &[Need] = &[Need::SrqLimit];
const LIMIT_LOSSLESS: &[Need] = &[Need::SrqLimit, Need::Lossless];
const LIMIT_UC: &[Need] = &[Need::SrqLimit, Need::UcSrq, Need::Lossless];

/// A pair in which B has a shared receive queue.
fn pair(cx: &mut Context<'_>, qp_type: QpType) -> Result<(PairEnd, PairEnd, Srq), Stop> {
    let place_a = cx.place(Side::A)?;
    let place_b = cx.place_with_srq(Side::B, 16)?;
    let (a, b) = cx.pair_at(&place_a, &place_b, &PairSetup::new(qp_type))?;
    match place_b.srq {
        Some(srq) => Ok((a, b, srq)),
        None => skip("no shared receive queue"),
    }
}

/// Sends an empty message for each of `ids`; the receives with these IDs must be posted.
fn use_up(
    cx: &mut Context<'_>,
    a: &PairEnd,
    b: &PairEnd,
    ids: std::ops::Range<u64>,
) -> Result<(), Stop> {
    for id in ids {
        cx.carry_out(a, request(id, SendOp::Send, &[]))?;
        cx.received(b, id, 0)?;
    }
    Ok(())
}

fn first_come(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place_a = cx.place(Side::A)?;
    let place_b = cx.place_with_srq(Side::B, 16)?;
    let one = cx.pair_at(&place_a, &place_b, &PairSetup::RC)?;
    let other = cx.pair_at(&place_a, &place_b, &PairSetup::RC)?;
    let source = cx.source(&one.0, 80, 151)?;
    let sink = cx.sink(&one.1, 80)?;
    for nth in 0..8 {
        cx.recv(&one.1, nth as u64, &[sink.sge(10 * nth, 10)])?;
    }
    for nth in 0..8 {
        let (a, b) = if nth % 3 == 0 { &one } else { &other };
        cx.carry_out(a, request(nth as u64, SendOp::Send, &[source.sge(10 * nth, 10)]))?;
        cx.received(b, nth as u64, 10)?;
    }
    same(&source, 0, &sink, 0, 80)
}

fn shared_by_100(cx: &mut Context<'_>) -> Result<(), Stop> {
    let limits = cx.limits();
    if limits.qps_max < 100 || limits.srq_requests_max < 100 {
        return skip("fewer than 100 queue pairs or shared receives");
    }
    let place_a = cx.place(Side::A)?;
    let place_b = cx.place_with_srq(Side::B, 100)?;
    let setup = PairSetup { requests_max: 1, sges_max: 1, ..PairSetup::RC };
    let mut pairs = Vec::new();
    for _ in 0..100 {
        pairs.push(cx.pair_at(&place_a, &place_b, &setup)?);
    }
    let source = cx.source(&pairs[0].0, 800, 152)?;
    let sink = cx.sink(&pairs[0].1, 800)?;
    for nth in 0..100 {
        cx.recv(&pairs[0].1, nth as u64, &[sink.sge(8 * nth, 8)])?;
    }
    for (nth, (a, _)) in pairs.iter().enumerate() {
        cx.post(a, request(nth as u64, SendOp::Send, &[source.sge(8 * nth, 8)]))?;
    }
    // The order in which messages use receives is open, so the QPN identifies the message.
    for _ in 0..100 {
        let found = cx.next(Side::B, place_b.recv_cq)?;
        equal("the status", found.status, Success)?;
        let Some(from) = pairs.iter().position(|(_, b)| b.qpn == found.qpn) else {
            return fail(format!("expected one of ours, found {found:?}"));
        };
        same(&source, 8 * from, &sink, 8 * found.id as usize, 8)?;
    }
    for _ in 0..100 {
        equal("the status", cx.next(Side::A, place_a.send_cq)?.status, Success)?;
    }
    Ok(())
}

fn waits_on_empty(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, _) = pair(cx, QpType::Rc)?;
    cx.post(&a, request(1, SendOp::Send, &[]))?;
    cx.settle()?;
    cx.recv(&b, 2, &[])?;
    cx.done(&a, CompletionKind::Send, 1)?;
    cx.received(&b, 2, 0).map(drop)
}

fn write_imm_takes_one(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, _) = pair(cx, QpType::Rc)?;
    let target = cx.shared(&b, 8)?;
    let source = cx.source(&a, 8, 153)?;
    cx.recv(&b, 1, &[])?;
    let write = SendOp::WriteImm(target.remote(0), 77);
    cx.carry_out(&a, request(2, write, &[source.sge(0, 8)]))?;
    let found = cx.done(&b, CompletionKind::RecvWriteImm, 1)?;
    equal("what came with it", found.with, With::Imm(77))
}

fn datagram_takes_one(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, _) = pair(cx, QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, 8, 154)?;
    let sink = cx.sink(&b, 48)?;
    cx.recv(&b, 1, &[sink.sge(0, 48)])?;
    cx.carry_out(&a, request(2, SendOp::Datagram(to), &[source.sge(0, 8)]))?;
    cx.received(&b, 1, 48)?;
    same(&source, 0, &sink, Grh::LEN, 8)
}

fn uc_takes_one(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, _) = pair(cx, QpType::Uc)?;
    cx.exchange(&a, &b, 3000)
}

fn limit_event(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, srq) = pair(cx, QpType::Rc)?;
    for id in 0..8 {
        cx.recv(&b, id, &[])?;
    }
    cx.device(Side::B).set_srq_limit(srq, 4)?;
    // Four left are not fewer than four.
    use_up(cx, &a, &b, 0..4)?;
    cx.settle()?;
    let event = AsyncEvent::SrqLimitReached(srq);
    let owner = cx.owner(Side::B);
    equal("an event too early", cx.events.contains(&(owner, event)), false)?;
    use_up(cx, &a, &b, 4..5)?;
    cx.event(Side::B, event)
}

fn limit_event_once(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, srq) = pair(cx, QpType::Rc)?;
    for id in 0..8 {
        cx.recv(&b, id, &[])?;
    }
    let event = AsyncEvent::SrqLimitReached(srq);
    cx.device(Side::B).set_srq_limit(srq, 6)?;
    use_up(cx, &a, &b, 0..3)?;
    cx.event(Side::B, event)?;
    // The limit is disarmed until it is set again.
    use_up(cx, &a, &b, 3..5)?;
    cx.settle()?;
    let owner = cx.owner(Side::B);
    equal("a second event", cx.events.contains(&(owner, event)), false)?;
    cx.device(Side::B).set_srq_limit(srq, 2)?;
    use_up(cx, &a, &b, 5..7)?;
    cx.event(Side::B, event)
}

fn limit_of_zero(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, srq) = pair(cx, QpType::Rc)?;
    for id in 0..4 {
        cx.recv(&b, id, &[])?;
    }
    cx.device(Side::B).set_srq_limit(srq, 2)?;
    cx.device(Side::B).set_srq_limit(srq, 0)?;
    use_up(cx, &a, &b, 0..4)
}

fn limit_set_too_late(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, srq) = pair(cx, QpType::Rc)?;
    for id in 0..3 {
        cx.recv(&b, id, &[])?;
    }
    // Fewer receives are left already: the event is raised at once or at the next used receive.
    cx.device(Side::B).set_srq_limit(srq, 5)?;
    use_up(cx, &a, &b, 0..1)?;
    cx.event(Side::B, AsyncEvent::SrqLimitReached(srq))
}

/// A message that is too long for its receive is dropped, and the receive stays posted.
fn too_long_takes_none(cx: &mut Context<'_>, qp_type: QpType) -> Result<(), Stop> {
    let (a, b, srq) = pair(cx, qp_type)?;
    let op = match qp_type {
        QpType::Ud => SendOp::Datagram(cx.destination(&a, &b)?),
        _ => SendOp::Send,
    };
    let (source, sink) = (cx.source(&a, 64, 155)?, cx.sink(&b, 64)?);
    cx.recv(&b, 1, &[sink.sge(0, 48)])?;
    cx.device(Side::B).set_srq_limit(srq, 1)?;
    cx.carry_out(&a, request(2, op, &[source.sge(0, 64)]))?;
    cx.nothing_more(&b)?;
    let event = AsyncEvent::SrqLimitReached(srq);
    let owner = cx.owner(Side::B);
    equal("an event for nothing", cx.events.contains(&(owner, event)), false)?;
    cx.carry_out(&a, request(3, op, &[source.sge(0, 8)]))?;
    cx.done(&b, CompletionKind::Recv, 1)?;
    cx.event(Side::B, event)
}

fn full(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, srq) = pair(cx, QpType::Rc)?;
    let mut posted = 0;
    let answer = loop {
        let one = RecvRequest { id: posted, sges: &[] };
        let answer = cx.device(Side::B).post_srq_recv(srq, &[one]);
        if answer.is_err() || posted == 1 << 16 {
            break answer;
        }
        posted += 1;
    };
    post_refused("one too many", answer, 0, &[PostRefusal::Full])?;
    if posted < 16 {
        return fail(format!("expected room for 16 receives, found {posted}"));
    }
    use_up(cx, &a, &b, 0..1)?;
    cx.recv(&b, posted, &[])?;
    use_up(cx, &a, &b, 1..posted + 1)
}

fn too_many_entries(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b, srq) = pair(cx, QpType::Rc)?;
    let sink = cx.sink(&b, 8)?;
    let entries = vec![sink.sge(0, 0); cx.limits().sges_max as usize + 1];
    let one = RecvRequest { id: 1, sges: &entries };
    let answer = cx.device(Side::B).post_srq_recv(srq, &[one]);
    post_refused("entries over the limit", answer, 0, &[PostRefusal::TooManySges])
}

fn own_receives_are_refused(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b, _) = pair(cx, QpType::Rc)?;
    let answer = cx.device(Side::B).post_recv(b.qp, &[RecvRequest { id: 1, sges: &[] }]);
    // The queue pair has no receive queue of its own, so both refusals are right.
    let refusals = [PostRefusal::BadOperation, PostRefusal::NoSuchQueue];
    post_refused("a receive of its own", answer, 0, &refusals)
}

fn error_leaves_it_alone(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place_a = cx.place(Side::A)?;
    let place_b = cx.place_with_srq(Side::B, 16)?;
    let broken = cx.pair_at(&place_a, &place_b, &PairSetup::RC)?;
    let (a, b) = cx.pair_at(&place_a, &place_b, &PairSetup::RC)?;
    for id in 0..4 {
        cx.recv(&b, id, &[])?;
    }
    cx.go(&broken.1, QpState::Err)?;
    // Unused receives of a shared queue are not flushed.
    cx.nothing_more(&b)?;
    cx.event(Side::B, AsyncEvent::LastWqeReached(broken.1.qp))?;
    use_up(cx, &a, &b, 0..4)
}

fn last_receive_event(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, _) = pair(cx, QpType::Rc)?;
    cx.recv(&b, 0, &[])?;
    use_up(cx, &a, &b, 0..1)?;
    cx.go(&b, QpState::Err)?;
    // After this event, the queue pair can be destroyed without losing a receive.
    cx.event(Side::B, AsyncEvent::LastWqeReached(b.qp))?;
    cx.device(Side::B).destroy_qp(b.qp)?;
    Ok(())
}

fn reset_leaves_it_alone(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, _) = pair(cx, QpType::Rc)?;
    cx.recv(&b, 0, &[])?;
    for end in [&a, &b] {
        cx.go(end, QpState::Reset)?;
    }
    cx.connect(&a, &b, &PairSetup::RC)?;
    use_up(cx, &a, &b, 0..1)
}

fn destroyed_with_receives(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place_with_srq(Side::B, 16)?;
    let Some(srq) = place.srq else { return skip("no shared receive queue") };
    for id in 0..4 {
        cx.recv_shared(Side::B, srq, id, &[])?;
    }
    cx.device(Side::B).destroy_srq(srq)?;
    no_such("destroying it again", cx.device(Side::B).destroy_srq(srq))
}
