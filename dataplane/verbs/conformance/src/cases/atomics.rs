//! Compare-and-swap and fetch-and-add (IBA 9.4.5). Numbers are in the responder's byte order.

use super::prelude::*;

pub const CASES: &[Case] = &[
    Case::new("swap-when-equal", "IBA 9.4.5.2", ATOMICS, |cx| compare_swap(cx, 7, 7, 9, 9)),
    Case::new("no-swap-when-not", "IBA 9.4.5.2", ATOMICS, |cx| compare_swap(cx, 7, 8, 9, 7)),
    Case::new("swap-to-zero", "IBA 9.4.5.2", ATOMICS, |cx| compare_swap(cx, 7, 7, 0, 0)),
    Case::new("compare-all-64-bits", "IBA 9.4.5.2", ATOMICS, |cx| {
        compare_swap(cx, 1 << 63 | 1, 1, 2, 1 << 63 | 1)
    }),
    Case::new("add", "IBA 9.4.5.1", ATOMICS, |cx| fetch_add(cx, 40, 2, 42)),
    Case::new("add-nothing", "IBA 9.4.5.1", ATOMICS, |cx| fetch_add(cx, 40, 0, 40)),
    Case::new("add-wraps", "IBA 9.4.5.1", ATOMICS, |cx| fetch_add(cx, u64::MAX, 3, 2)),
    Case::new("add-minus-one", "IBA 9.4.5.1", ATOMICS, |cx| fetch_add(cx, 1, u64::MAX, 0)),
    Case::new("add-carries-over-32-bits", "IBA 9.4.5.1", ATOMICS, |cx| {
        fetch_add(cx, 0xffff_ffff, 1, 0x1_0000_0000)
    }),
    Case::new("many-in-a-row", "IBA 9.4.5", ATOMICS, many_in_a_row),
    Case::new("from-two-queue-pairs", "IBA 9.4.5", ATOMICS, from_two_queue_pairs),
    Case::new("answer-is-scattered", "IBA 9.4.5", ATOMICS, answer_is_scattered),
    Case::new("add-not-on-eight", "IBA 9.4.5", ATOMICS, |cx| not_on_eight(cx, false)),
    Case::new("swap-not-on-eight", "IBA 9.4.5", ATOMICS, |cx| not_on_eight(cx, true)),
    Case::new("answer-too-short", "IBA 9.4.5", ATOMICS, answer_too_short),
];

const ATOMICS: &[Need] = &[Need::Atomics];

/// Executes an operation on memory that contains `before`, and expects `before` as the answer and
/// `after` in memory.
fn operate(
    cx: &mut Context<'_>,
    before: u64,
    op: fn(Remote, [u64; 2]) -> SendOp,
    operands: [u64; 2],
    after: u64,
) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 24)?;
    target.put_u64(8, before);
    let sink = cx.sink(&a, 24)?;
    let found = cx.carry_out(&a, request(1, op(target.remote(8), operands), &[sink.sge(8, 8)]))?;
    equal("bytes of the answer", found.bytes, 8)?;
    equal("the answer", sink.u64_at(8), before)?;
    equal("the memory", target.u64_at(8), after)?;
    for buffer in [&sink, &target] {
        buffer.is_untouched(0, 8)?;
        buffer.is_untouched(16, 8)?;
    }
    Ok(())
}

fn compare_swap(
    cx: &mut Context<'_>,
    before: u64,
    compare: u64,
    swap: u64,
    after: u64,
) -> Result<(), Stop> {
    let op = |remote, [compare, swap]: [u64; 2]| SendOp::CompareSwap { remote, compare, swap };
    operate(cx, before, op, [compare, swap], after)
}

fn fetch_add(cx: &mut Context<'_>, before: u64, add: u64, after: u64) -> Result<(), Stop> {
    let op = |remote, [add, _]: [u64; 2]| SendOp::FetchAdd { remote, add };
    operate(cx, before, op, [add, 0], after)
}

fn many_in_a_row(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 8)?;
    target.put_u64(0, 0);
    let sink = cx.sink(&a, 16 * 8)?;
    // More than the responder's resources, so the requester has to queue them.
    for nth in 0..16 {
        let add = SendOp::FetchAdd { remote: target.remote(0), add: 3 };
        cx.post(&a, request(nth as u64, add, &[sink.sge(8 * nth, 8)]))?;
    }
    for nth in 0..16 {
        cx.done(&a, CompletionKind::FetchAdd, nth as u64)?;
        equal("the answer", sink.u64_at(8 * nth), 3 * nth as u64)?;
    }
    equal("the memory", target.u64_at(0), 48)
}

fn from_two_queue_pairs(cx: &mut Context<'_>) -> Result<(), Stop> {
    let places = (cx.place(Side::A)?, cx.place(Side::B)?);
    let pairs = [
        cx.pair_at(&places.0, &places.1, &PairSetup::RC)?,
        cx.pair_at(&places.0, &places.1, &PairSetup::RC)?,
    ];
    let target = cx.shared(&pairs[0].1, 8)?;
    target.put_u64(0, 100);
    let sink = cx.sink(&pairs[0].0, 16 * 8)?;
    for nth in 0..16 {
        let add = SendOp::FetchAdd { remote: target.remote(0), add: 1 };
        let sges = [sink.sge(8 * nth, 8)];
        cx.post(&pairs[nth % 2].0, request(nth as u64, add, &sges))?;
    }
    let mut ids = Vec::new();
    for _ in 0..16 {
        let found = cx.next(Side::A, places.0.send_cq)?;
        equal("the status", found.status, Success)?;
        ids.push(found.id);
    }
    ids.sort_unstable();
    equal("the requests that completed", ids, (0..16).collect())?;
    let mut answers: Vec<u64> = (0..16).map(|nth| sink.u64_at(8 * nth)).collect();
    answers.sort_unstable();
    equal("all answers", answers, (100..116).collect())?;
    equal("the memory", target.u64_at(0), 116)
}

fn answer_is_scattered(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 8)?;
    target.put_u64(0, 0x0123_4567_89ab_cdef);
    let sink = cx.sink(&a, 20)?;
    let add = SendOp::FetchAdd { remote: target.remote(0), add: 1 };
    cx.carry_out(&a, request(1, add, &[sink.sge(1, 3), sink.sge(10, 5)]))?;
    let bytes = 0x0123_4567_89ab_cdef_u64.to_ne_bytes();
    sink.holds(1, &bytes[..3])?;
    sink.holds(10, &bytes[3..])
}

fn not_on_eight(cx: &mut Context<'_>, swap: bool) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 64)?;
    let sink = cx.sink(&a, 8)?;
    let remote = target.remote(4);
    let op = if swap {
        SendOp::CompareSwap { remote, compare: 0, swap: 1 }
    } else {
        SendOp::FetchAdd { remote, add: 1 }
    };
    cx.post(&a, request(1, op, &[sink.sge(0, 8)]))?;
    cx.breaks(&a, Queue::Send, 1, REMOTE_REFUSALS)?;
    cx.in_state(&b, QpState::Err)?;
    target.is_untouched(0, 64)?;
    sink.is_untouched(0, 8)?;
    // The kind of event, if any, depends on the status.
    cx.tolerate(b.side(), &[AsyncEvent::QpRequestError(b.qp), AsyncEvent::QpAccessError(b.qp)])
}

fn answer_too_short(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 8)?;
    let sink = cx.sink(&a, 8)?;
    let add = SendOp::FetchAdd { remote: target.remote(0), add: 1 };
    let answer = cx.device(Side::A).post_send(a.qp, &[request(1, add, &[sink.sge(0, 7)])]);
    // The length is known when posted; an adapter that checks later reports it in the completion.
    if answer.is_ok() {
        cx.breaks(&a, Queue::Send, 1, &[LocalLength, LocalProtection, LocalQpOperation])?;
    }
    sink.is_untouched(0, 8)
}
