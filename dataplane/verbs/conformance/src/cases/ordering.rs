//! The order of operations (IBA 9.5, 10.8.3.3).

use super::prelude::*;

pub const CASES: &[Case] = &[
    Case::new("rc-messages-in-order", "IBA 9.5", &[], |cx| in_order(cx, QpType::Rc)),
    Case::new("uc-messages-in-order", "IBA 9.5", UC, |cx| in_order(cx, QpType::Uc)),
    Case::new("mixed-completions-in-order", "IBA 10.8.3.3", &[], mixed_completions),
    Case::new("write-then-read-back", "IBA 9.5", &[], write_then_read_back),
    Case::new("write-then-send", "IBA 9.5", &[], write_then_send),
    Case::new("write-over-write", "IBA 9.5", &[], write_over_write),
    Case::new("read-then-write", "IBA 9.5", &[], read_then_write),
    Case::new("fence-after-read", "IBA 10.8.3.3", &[], fence_after_read),
    Case::new("fence-after-atomic", "IBA 10.8.3.3", &[Need::Atomics], fence_after_atomic),
    Case::new("fence-after-nothing", "IBA 10.8.3.3", &[], fence_after_nothing),
    Case::new("both-directions", "IBA 9.7", &[], |cx| both_directions(cx, 64)),
    Case::new("both-directions-packets", "IBA 9.7", &[], |cx| both_directions(cx, 20_000)),
    Case::new("two-pairs-do-not-mix", "IBA 9.7", &[], two_pairs_do_not_mix),
    Case::new("a-queue-pair-to-itself", "IBA 17.2.2", &[], to_itself),
    Case::new("full-queues-for-long", "IBA 9.7", &[], full_queues_for_long),
];

const UC: &[Need] = &[Need::Uc, Need::Lossless];

fn in_order(cx: &mut Context<'_>, qp_type: QpType) -> Result<(), Stop> {
    let count = 16;
    let (a, b) = cx.connected(qp_type)?;
    let source = cx.source(&a, count * 300, 51)?;
    let sink = cx.sink(&b, count * 300)?;
    let cut = |buffer: &Buffer, nth: usize| [buffer.sge(nth * 300, 1 + nth * 17)];
    for nth in 0..count {
        cx.recv(&b, nth as u64, &cut(&sink, nth))?;
    }
    for nth in 0..count {
        cx.post(&a, request(nth as u64, SendOp::Send, &cut(&source, nth)))?;
    }
    for nth in 0..count {
        cx.done(&a, CompletionKind::Send, nth as u64)?;
        cx.received(&b, nth as u64, 1 + nth * 17)?;
        same(&source, nth * 300, &sink, nth * 300, 1 + nth * 17)?;
    }
    Ok(())
}

fn mixed_completions(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let local = cx.shared(&a, 20_000)?;
    let target = cx.shared(&b, 20_000)?;
    let sink = cx.sink(&b, 8)?;
    cx.recv(&b, 1, &[sink.sge(0, 8)])?;
    // The read takes longest, but no later request completes before it.
    let read = SendOp::Read(target.remote(0));
    cx.post(&a, request(1, read, &[local.sge(0, 10_000)]))?;
    let write = SendOp::Write(target.remote(10_000));
    cx.post(&a, request(2, write, &[local.sge(10_000, 8)]))?;
    cx.post(&a, request(3, SendOp::Send, &[local.sge(10_000, 8)]))?;
    cx.post(&a, request(4, read, &[local.sge(0, 8)]))?;
    cx.done(&a, CompletionKind::Read, 1)?;
    cx.done(&a, CompletionKind::Write, 2)?;
    cx.done(&a, CompletionKind::Send, 3)?;
    cx.done(&a, CompletionKind::Read, 4)?;
    cx.received(&b, 1, 8).map(drop)
}

fn write_then_read_back(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 5000, 52)?;
    let back = cx.sink(&a, 5000)?;
    let target = cx.shared(&b, 5000)?;
    let write = SendOp::Write(target.remote(0));
    cx.post(&a, silent(1, write, &[source.sge(0, 5000)]))?;
    let read = SendOp::Read(target.remote(0));
    cx.carry_out(&a, request(2, read, &[back.sge(0, 5000)]))?;
    same(&source, 0, &back, 0, 5000)
}

fn write_then_send(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 10_000, 53)?;
    let target = cx.shared(&b, 10_000)?;
    let sink = cx.sink(&b, 1)?;
    cx.recv(&b, 1, &[sink.sge(0, 1)])?;
    let write = SendOp::Write(target.remote(0));
    cx.post(&a, silent(1, write, &[source.sge(0, 10_000)]))?;
    cx.post(&a, silent(2, SendOp::Send, &[source.sge(0, 1)]))?;
    // When the message is received, the earlier write is complete.
    cx.received(&b, 1, 1)?;
    same(&source, 0, &target, 0, 10_000)
}

fn write_over_write(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let old = cx.source(&a, 9000, 54)?;
    let new = cx.source(&a, 9000, 55)?;
    let target = cx.shared(&b, 9000)?;
    let write = SendOp::Write(target.remote(0));
    cx.post(&a, silent(1, write, &[old.sge(0, 9000)]))?;
    cx.carry_out(&a, request(2, write, &[new.sge(0, 9000)]))?;
    same(&new, 0, &target, 0, 9000)
}

fn read_then_write(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 64, 56)?;
    let sink = cx.sink(&a, 64)?;
    let target = cx.shared(&b, 64)?;
    target.put(0, &pattern(57, 64));
    // Without the fence, the write could be executed before the read (IBA 9.5).
    cx.post(&a, silent(1, SendOp::Read(target.remote(0)), &[sink.sge(0, 64)]))?;
    cx.carry_out(&a, fenced(2, SendOp::Write(target.remote(0)), &[source.sge(0, 64)]))?;
    sink.holds(0, &pattern(57, 64))?;
    same(&source, 0, &target, 0, 64)
}

fn fence_after_read(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let relay = cx.sink(&a, 10_000)?;
    let target = cx.shared(&b, 10_000)?;
    target.put(0, &pattern(58, 10_000));
    let sink = cx.sink(&b, 10_000)?;
    cx.recv(&b, 1, &[sink.sge(0, 10_000)])?;
    // The send is posted before the data that it sends has been read.
    cx.post(&a, silent(1, SendOp::Read(target.remote(0)), &[relay.sge(0, 10_000)]))?;
    cx.carry_out(&a, fenced(2, SendOp::Send, &[relay.sge(0, 10_000)]))?;
    cx.received(&b, 1, 10_000)?;
    sink.holds(0, &pattern(58, 10_000))
}

fn fence_after_atomic(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let relay = cx.sink(&a, 8)?;
    let target = cx.shared(&b, 8)?;
    target.put_u64(0, 1234);
    let sink = cx.sink(&b, 8)?;
    cx.recv(&b, 1, &[sink.sge(0, 8)])?;
    let add = SendOp::FetchAdd { remote: target.remote(0), add: 1 };
    cx.post(&a, silent(1, add, &[relay.sge(0, 8)]))?;
    cx.carry_out(&a, fenced(2, SendOp::Send, &[relay.sge(0, 8)]))?;
    cx.received(&b, 1, 8)?;
    equal("the answer that was sent on", sink.u64_at(0), 1234)
}

fn fence_after_nothing(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 8, 59)?;
    let sink = cx.sink(&b, 8)?;
    cx.recv(&b, 1, &[sink.sge(0, 8)])?;
    cx.carry_out(&a, fenced(2, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.received(&b, 1, 8).map(drop)
}

fn both_directions(cx: &mut Context<'_>, bytes: usize) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let (source_a, sink_a) = (cx.source(&a, bytes, 60)?, cx.sink(&a, bytes)?);
    let (source_b, sink_b) = (cx.source(&b, bytes, 61)?, cx.sink(&b, bytes)?);
    for id in 0..8 {
        cx.recv(&a, id, &[sink_a.sge(0, bytes)])?;
        cx.recv(&b, id, &[sink_b.sge(0, bytes)])?;
        cx.post(&a, request(id, SendOp::Send, &[source_a.sge(0, bytes)]))?;
        cx.post(&b, request(id, SendOp::Send, &[source_b.sge(0, bytes)]))?;
    }
    for id in 0..8 {
        for end in [&a, &b] {
            cx.done(end, CompletionKind::Send, id)?;
            cx.received(end, id, bytes)?;
        }
    }
    same(&source_a, 0, &sink_b, 0, bytes)?;
    same(&source_b, 0, &sink_a, 0, bytes)
}

fn two_pairs_do_not_mix(cx: &mut Context<'_>) -> Result<(), Stop> {
    let pairs = [cx.connected(QpType::Rc)?, cx.connected(QpType::Rc)?];
    let mut sinks = Vec::new();
    for (_, b) in &pairs {
        let sink = cx.sink(b, 8)?;
        cx.recv(b, 1, &[sink.sge(0, 8)])?;
        sinks.push(sink);
    }
    // Uses the second pair first, to show that the order of creation has no effect.
    for (nth, (a, b)) in pairs.iter().enumerate().rev() {
        let source = cx.source(a, 8, nth as u8)?;
        cx.carry_out(a, request(2, SendOp::Send, &[source.sge(0, 8)]))?;
        cx.received(b, 1, 8)?;
        sinks[nth].holds(0, &pattern(nth as u8, 8))?;
    }
    Ok(())
}

fn to_itself(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let setup = PairSetup { psn_b: PairSetup::RC.psn_a, ..PairSetup::RC };
    let a = cx.create(&place, &setup)?;
    cx.advance(&a, QpState::Rts, &a, &setup)?;
    cx.exchange(&a, &a, 5000)
}

fn full_queues_for_long(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { requests_max: 8, ..PairSetup::RC })?;
    let source = cx.source(&a, 256, 62)?;
    let sink = cx.sink(&b, 256)?;
    let bytes = |id: u64| (id % 256) as usize;
    for id in 0..8 {
        cx.recv(&b, id, &[sink.sge(0, 256)])?;
        cx.post(&a, request(id, SendOp::Send, &[source.sge(0, bytes(id))]))?;
    }
    for id in 0..1000 {
        cx.done(&a, CompletionKind::Send, id)?;
        cx.received(&b, id, bytes(id))?;
        if id + 8 < 1000 {
            cx.recv(&b, id + 8, &[sink.sge(0, 256)])?;
            cx.post(&a, request(id + 8, SendOp::Send, &[source.sge(0, bytes(id + 8))]))?;
        }
    }
    Ok(())
}
