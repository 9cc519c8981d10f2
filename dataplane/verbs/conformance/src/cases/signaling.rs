//! Which requests generate a completion, and which completions wake a waiting caller (IBA 10.7.3.1,
//! 11.4.2.2).

use super::prelude::*;
use std::time::Duration;

pub const CASES: &[Case] = &[
    Case::new("silent-sends-complete-silently", "IBA 10.7.3.1", &[], silence),
    Case::new("a-signal-covers-the-silent", "contract: device", &[], a_signal_covers_the_silent),
    Case::new("silent-slots-come-back", "IBA 10.7.3.1", &[], silent_slots_come_back),
    Case::new("silent-failures-complete", "IBA 10.7.3.1", &[], silent_failures_complete),
    Case::new("signal-all", "contract: QpInit", &[], signal_all),
    Case::new("silent-reads", "IBA 10.7.3.1", &[], silent_reads),
    Case::new("arm-then-message", "IBA 11.4.2.2", &[], |cx| wakes(cx, Arm::Any, SendFlags::NONE)),
    Case::new("solicited-arm-wakes", "IBA 9.2.3", &[], |cx| {
        wakes(cx, Arm::Solicited, SendFlags::SOLICITED)
    }),
    Case::new("solicited-arm-sleeps-on", "IBA 9.2.3", &[], solicited_arm_sleeps_on),
    Case::new("solicited-arm-wakes-on-failure", "IBA 11.4.2.2", &[], wakes_on_failure),
    Case::new("arm-for-a-send", "IBA 11.4.2.2", &[], arm_for_a_send),
    Case::new("not-armed-not-woken", "IBA 11.4.2.2", &[], not_armed_not_woken),
    Case::new("armed-once-woken-once", "IBA 11.4.2.2", &[], armed_once_woken_once),
    Case::new("waiting-ends", "contract: wait", &[], waiting_ends),
    Case::new("arming-nothing", "contract: arm", &[], arming_nothing),
];

/// The timeout of one wait. It is short, because software adapters make progress only in polls.
const GLANCE: Duration = Duration::from_micros(100);

fn silence(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 8, 41)?;
    let sink = cx.sink(&b, 8)?;
    cx.recv(&b, 1, &[sink.sge(0, 8)])?;
    cx.post(&a, silent(2, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.received(&b, 1, 8)?;
    cx.nothing_more(&a)
}

fn a_signal_covers_the_silent(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 64, 42)?;
    let target = cx.shared(&b, 64)?;
    for at in 0..7 {
        let write = SendOp::Write(target.remote(8 * at));
        cx.post(&a, silent(at as u64, write, &[source.sge(8 * at, 8)]))?;
    }
    let last = SendOp::Write(target.remote(56));
    cx.carry_out(&a, request(7, last, &[source.sge(56, 8)]))?;
    same(&source, 0, &target, 0, 64)
}

fn silent_slots_come_back(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { requests_max: 4, ..PairSetup::RC })?;
    let source = cx.source(&a, 8, 43)?;
    let target = cx.shared(&b, 8)?;
    let write = SendOp::Write(target.remote(0));
    // Ten rounds fill a queue of four requests.
    for round in 0..10 {
        for nth in 0..3 {
            cx.post(&a, silent(nth, write, &[source.sge(0, 8)]))?;
        }
        cx.carry_out(&a, request(100 + round, write, &[source.sge(0, 8)]))?;
    }
    Ok(())
}

fn silent_failures_complete(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 8, 44)?;
    let unknown = Sge { lkey: LKey(!source.region.lkey.0), ..source.sge(0, 8) };
    cx.post(&a, silent(1, SendOp::Send, &[unknown]))?;
    cx.breaks(&a, Queue::Send, 1, &[LocalProtection])?;
    cx.still_in(&b, QpState::Rts)
}

fn signal_all(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { signal_all: true, ..PairSetup::RC })?;
    let source = cx.source(&a, 8, 45)?;
    let target = cx.shared(&b, 8)?;
    for id in 0..4 {
        let write = SendOp::Write(target.remote(0));
        cx.post(&a, silent(id, write, &[source.sge(0, 8)]))?;
    }
    for id in 0..4 {
        cx.done(&a, CompletionKind::Write, id)?;
    }
    Ok(())
}

fn silent_reads(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 64)?;
    target.put(0, &pattern(46, 64));
    let sink = cx.sink(&a, 64)?;
    let read = |at| SendOp::Read(target.remote(at));
    cx.post(&a, silent(1, read(0), &[sink.sge(0, 32)]))?;
    cx.carry_out(&a, request(2, read(32), &[sink.sge(32, 32)]))?;
    same(&target, 0, &sink, 0, 64)
}

/// Waits at `end` for a notification, and polls the peer so that it makes progress.
fn woken(cx: &mut Context<'_>, end: &PairEnd, peer: &PairEnd) -> Result<Option<Cq>, Stop> {
    for _ in 0..64 {
        let mut none = [];
        cx.device(peer.side()).poll(peer.place.send_cq, &mut none)?;
        if let Some(cq) = cx.device(end.side()).wait(GLANCE)? {
            return Ok(Some(cq));
        }
        if cx.turn() == WaitDecision::GiveUp {
            break;
        }
    }
    Ok(None)
}

fn send_one(
    cx: &mut Context<'_>,
    a: &PairEnd,
    b: &PairEnd,
    id: u64,
    flags: SendFlags,
) -> Result<(), Stop> {
    let source = cx.source(a, 8, 47)?;
    let sink = cx.sink(b, 8)?;
    cx.recv(b, id, &[sink.sge(0, 8)])?;
    cx.post(a, SendRequest { flags, ..request(id, SendOp::Send, &[source.sge(0, 8)]) })
}

fn wakes(cx: &mut Context<'_>, arm: Arm, flags: SendFlags) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    cx.device(Side::B).arm(b.place.recv_cq, arm)?;
    send_one(cx, &a, &b, 1, flags)?;
    let found = woken(cx, &b, &a)?;
    equal("the queue that woke the sleeper", found, Some(b.place.recv_cq))?;
    cx.received(&b, 1, 8).map(drop)
}

fn solicited_arm_sleeps_on(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    cx.device(Side::B).arm(b.place.recv_cq, Arm::Solicited)?;
    send_one(cx, &a, &b, 1, SendFlags::SIGNALED)?;
    cx.done(&a, CompletionKind::Send, 1)?;
    cx.received(&b, 1, 8)?;
    equal("who woke the sleeper", woken(cx, &b, &a)?, None)?;
    // The queue is still armed.
    send_one(cx, &a, &b, 2, SendFlags::SOLICITED)?;
    equal("who woke the sleeper", woken(cx, &b, &a)?, Some(b.place.recv_cq))?;
    cx.received(&b, 2, 8).map(drop)
}

fn wakes_on_failure(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let sink = cx.sink(&b, 8)?;
    cx.recv(&b, 1, &[sink.sge(0, 8)])?;
    cx.device(Side::B).arm(b.place.recv_cq, Arm::Solicited)?;
    cx.go(&b, QpState::Err)?;
    equal("who woke the sleeper", woken(cx, &b, &a)?, Some(b.place.recv_cq))?;
    cx.flushed(&b, Queue::Recv, [1])
}

fn arm_for_a_send(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    cx.device(Side::A).arm(a.place.send_cq, Arm::Any)?;
    send_one(cx, &a, &b, 1, SendFlags::SIGNALED)?;
    equal("who woke the sleeper", woken(cx, &a, &b)?, Some(a.place.send_cq))?;
    cx.done(&a, CompletionKind::Send, 1)?;
    cx.received(&b, 1, 8).map(drop)
}

fn not_armed_not_woken(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    send_one(cx, &a, &b, 1, SendFlags::SOLICITED)?;
    cx.received(&b, 1, 8)?;
    equal("who woke the sleeper", woken(cx, &b, &a)?, None)
}

fn armed_once_woken_once(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    cx.device(Side::B).arm(b.place.recv_cq, Arm::Any)?;
    for id in [1, 2] {
        send_one(cx, &a, &b, id, SendFlags::SOLICITED)?;
        let expected = (id == 1).then_some(b.place.recv_cq);
        equal("who woke the sleeper", woken(cx, &b, &a)?, expected)?;
        cx.received(&b, id, 8)?;
    }
    Ok(())
}

fn waiting_ends(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    cx.device(Side::B).arm(b.place.recv_cq, Arm::Any)?;
    equal("who woke the sleeper", cx.device(Side::B).wait(GLANCE)?, None)?;
    equal("who woke the sleeper", cx.device(Side::B).wait(Duration::ZERO)?, None)?;
    cx.exchange(&a, &b, 8)
}

fn arming_nothing(cx: &mut Context<'_>) -> Result<(), Stop> {
    let cq = cx.device(Side::A).create_cq(4)?;
    cx.device(Side::A).destroy_cq(cq)?;
    no_such("arming a queue that is gone", cx.device(Side::A).arm(cq, Arm::Any))
}
