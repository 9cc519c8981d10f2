//! Inline bytes: the post copies them, so the caller can reuse their memory at once.

use super::prelude::*;

pub const CASES: &[Case] = &[
    Case::new("rc-send-one-byte", "IBA 11.4.1.1", &[], |cx| send(cx, |_| 1)),
    Case::new("rc-send-odd", "IBA 11.4.1.1", &[], |cx| send(cx, |max| max.min(13))),
    Case::new("rc-send-at-the-limit", "contract: QpInit", &[], |cx| send(cx, |max| max)),
    Case::new("rc-send-empty", "IBA 11.4.1.1", &[], |cx| send(cx, |_| 0)),
    Case::new("over-the-limit", "contract: PostRefusal", &[], over_the_limit),
    Case::new("over-a-lower-limit", "contract: QpInit", &[], over_a_lower_limit),
    Case::new("memory-is-free-at-once", "contract: Data", &[], memory_is_free_at_once),
    Case::new("rc-write", "IBA 11.4.1.1", &[], write),
    Case::new("ud-send", "IBA 11.4.1.1", &[Need::Lossless], datagram),
    Case::new("not-for-reads", "contract: Data", &[], not_for_reads),
    Case::new("not-for-atomics", "contract: Data", &[Need::Atomics], not_for_atomics),
];

/// A pair that supports inline data, and its limit in bytes; skips the case if there is none.
fn inline_pair(cx: &mut Context<'_>, qp_type: QpType) -> Result<(PairEnd, PairEnd, usize), Stop> {
    let max = cx.limits().inline_bytes_max;
    if max == 0 {
        return skip("no inline bytes at all");
    }
    let (a, b) = cx.pair(&PairSetup { inline_bytes_max: max, ..PairSetup::new(qp_type) })?;
    Ok((a, b, max as usize))
}

fn send(cx: &mut Context<'_>, bytes: fn(usize) -> usize) -> Result<(), Stop> {
    let (a, b, max) = inline_pair(cx, QpType::Rc)?;
    let message = pattern(31, bytes(max));
    let sink = cx.sink(&b, message.len() + 1)?;
    cx.recv(&b, 1, &[sink.sge(0, message.len())])?;
    cx.carry_out(&a, inline(2, SendOp::Send, &message))?;
    cx.received(&b, 1, message.len())?;
    sink.holds(0, &message)?;
    sink.is_untouched(message.len(), 1)
}

fn over_the_limit(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, max) = inline_pair(cx, QpType::Rc)?;
    too_long(cx, &a, max + 1)?;
    cx.exchange(&a, &b, 8)
}

fn over_a_lower_limit(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { inline_bytes_max: 8, ..PairSetup::RC })?;
    // An adapter may provide a higher limit than requested, without reporting it. So only a length
    // above the adapter's own limit must be refused.
    let max = cx.limits().inline_bytes_max as usize;
    too_long(cx, &a, max + 1)?;
    cx.exchange(&a, &b, 8)
}

fn too_long(cx: &mut Context<'_>, a: &PairEnd, bytes: usize) -> Result<(), Stop> {
    let message = pattern(32, bytes);
    let answer = cx.device(Side::A).post_send(a.qp, &[inline(1, SendOp::Send, &message)]);
    post_refused("inline bytes", answer, 0, &[PostRefusal::InlineTooLong])?;
    cx.still_in(a, QpState::Rts)
}

fn memory_is_free_at_once(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, max) = inline_pair(cx, QpType::Rc)?;
    let bytes = max.min(32);
    let sink = cx.sink(&b, 4 * bytes)?;
    for nth in 0..4 {
        cx.recv(&b, nth as u64, &[sink.sge(nth * bytes, bytes)])?;
    }
    let mut message = Vec::new();
    for nth in 0..4 {
        message.clear();
        message.extend(pattern(nth, bytes));
        cx.post(&a, inline(u64::from(nth), SendOp::Send, &message))?;
        message.fill(0);
    }
    for nth in 0..4u8 {
        cx.done(&a, CompletionKind::Send, u64::from(nth))?;
        cx.received(&b, u64::from(nth), bytes)?;
        sink.holds(usize::from(nth) * bytes, &pattern(nth, bytes))?;
    }
    Ok(())
}

fn write(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, max) = inline_pair(cx, QpType::Rc)?;
    let message = pattern(33, max);
    let target = cx.shared(&b, max + 8)?;
    cx.carry_out(&a, inline(1, SendOp::Write(target.remote(3)), &message))?;
    target.holds(3, &message)?;
    target.is_untouched(3 + max, 1)
}

fn datagram(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, max) = inline_pair(cx, QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let message = pattern(34, max.min(cx.mtu_bytes()?));
    let sink = cx.sink(&b, Grh::LEN + message.len())?;
    cx.recv(&b, 1, &[sink.sge(0, Grh::LEN + message.len())])?;
    cx.carry_out(&a, inline(2, SendOp::Datagram(to), &message))?;
    cx.received(&b, 1, Grh::LEN + message.len())?;
    sink.holds(Grh::LEN, &message)
}

fn not_for_reads(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, _) = inline_pair(cx, QpType::Rc)?;
    let remote = cx.shared(&b, 64)?.remote(0);
    let answer = cx.device(Side::A).post_send(a.qp, &[inline(1, SendOp::Read(remote), &[0; 1])]);
    post_refused("an inline read", answer, 0, &[PostRefusal::BadOperation])
}

fn not_for_atomics(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, _) = inline_pair(cx, QpType::Rc)?;
    let remote = cx.shared(&b, 64)?.remote(0);
    let add = inline(1, SendOp::FetchAdd { remote, add: 1 }, &[0; 8]);
    let answer = cx.device(Side::A).post_send(a.qp, &[add]);
    post_refused("an inline atomic", answer, 0, &[PostRefusal::BadOperation])
}
