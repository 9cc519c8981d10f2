//! Peers that are not ready, or absent (IBA 9.7.5.2.8, 9.9.2.1): retries, their number, and the
//! state after the last one.

use super::prelude::*;
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::packet::RnrTimer;
use pollux_wire::units::TimeCode;

/// Cases of receivers that are not ready.
pub const RNR: &[Case] = &[
    Case::new("send-waits-for-a-receive", "IBA 9.7.5.2.8", &[], |cx| late(cx, SendOp::Send, 7)),
    Case::new("send-imm-waits-for-a-receive", "IBA 9.7.5.2.8", &[], |cx| {
        late(cx, SendOp::SendImm(1), 7)
    }),
    Case::new("long-send-waits-for-a-receive", "IBA 9.7.5.2.8", &[], long_send_waits),
    Case::new("write-imm-waits-for-a-receive", "IBA 9.7.5.2.8", &[], write_imm_waits),
    Case::new("many-wait-in-order", "IBA 9.7.5.2.8", &[], many_wait_in_order),
    Case::new("no-retry-left", "IBA 9.7.5.2.8", &[], |cx| exhausted(cx, 0)),
    Case::new("one-retry-left", "IBA 9.7.5.2.8", &[], |cx| exhausted(cx, 1)),
    Case::new("six-retries-left", "IBA 9.7.5.2.8", &[], |cx| exhausted(cx, 6)),
    Case::new("seven-is-without-end", "IBA 9.7.5.2.8", &[Need::Lossless], without_end),
    Case::new("writes-need-no-receive", "IBA 9.7.5.2.8", &[], writes_need_none),
    Case::new("reads-need-no-receive", "IBA 9.7.5.2.8", &[], reads_need_none),
    Case::new("the-count-starts-anew", "IBA 9.7.5.2.8", &[], count_starts_anew),
    Case::new("uc-message-is-dropped", "IBA 9.8.2.2", UC, uc_dropped),
    Case::new("ud-message-is-dropped", "IBA 9.8.3.2", &[Need::Lossless], ud_dropped),
];

/// Cases of absent peers.
pub const ABSENT: &[Case] = &[
    Case::new("no-such-queue-pair", "IBA 9.9.2.1.1", &[], |cx| absent(cx, Absent::NoSuchQp, 1)),
    Case::new("peer-in-reset", "IBA 9.9.2.1.1", &[], |cx| absent(cx, Absent::Reset, 1)),
    Case::new("peer-in-init", "IBA 9.9.2.1.1", &[], |cx| absent(cx, Absent::Init, 1)),
    Case::new("peer-in-err", "IBA 9.9.2.1.1", &[], |cx| absent(cx, Absent::Err, 1)),
    Case::new("peer-destroyed", "IBA 9.9.2.1.1", &[], |cx| absent(cx, Absent::Destroyed, 1)),
    Case::new("peer-is-ud", "IBA 9.6.1.3", &[], |cx| absent(cx, Absent::Ud, 1)),
    Case::new("no-retry", "IBA 9.9.2.1.1", &[], |cx| absent(cx, Absent::NoSuchQp, 0)),
    Case::new("seven-retries-end", "IBA 9.9.2.1.1", &[], |cx| absent(cx, Absent::NoSuchQp, 7)),
    Case::new("without-a-timer-for-ever", "IBA 9.7.6.1.3", &[Need::Lossless], without_a_timer),
    Case::new("no-such-port", "IBA 9.9.2.1.1", &[Need::Subnet], no_such_port),
    Case::new("a-late-peer-is-found", "IBA 9.9.2.1.1", &[], late_peer),
    Case::new("uc-does-not-care", "IBA 9.8.2", &[Need::Uc], uc_does_not_care),
    Case::new("ud-does-not-care", "IBA 9.8.3", &[], ud_does_not_care),
];

const UC: &[Need] = &[Need::Uc, Need::Lossless];

/// Number of polls, at most, while the requester retries.
const POLLS_MAX: usize = 40;

fn look_on(cx: &mut Context<'_>, a: &PairEnd) -> Result<(), Stop> {
    for _ in 0..POLLS_MAX {
        if !cx.breathe()? && cx.turn() == WaitDecision::GiveUp {
            break;
        }
    }
    cx.still_in(a, QpState::Rts)
}

fn late(cx: &mut Context<'_>, op: SendOp, rnr_retry: u8) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { rnr_retry, ..PairSetup::RC })?;
    let source = cx.source(&a, 64, 101)?;
    let sink = cx.sink(&b, 64)?;
    cx.post(&a, request(1, op, &[source.sge(0, 64)]))?;
    look_on(cx, &a)?;
    cx.recv(&b, 2, &[sink.sge(0, 64)])?;
    cx.done(&a, CompletionKind::Send, 1)?;
    cx.received(&b, 2, 64)?;
    same(&source, 0, &sink, 0, 64)
}

fn long_send_waits(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 30_000, 102)?;
    let sink = cx.sink(&b, 30_000)?;
    cx.post(&a, request(1, SendOp::Send, &[source.sge(0, 30_000)]))?;
    look_on(cx, &a)?;
    cx.recv(&b, 2, &[sink.sge(0, 30_000)])?;
    cx.done(&a, CompletionKind::Send, 1)?;
    cx.received(&b, 2, 30_000)?;
    same(&source, 0, &sink, 0, 30_000)
}

fn write_imm_waits(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 10_000, 103)?;
    let target = cx.shared(&b, 10_000)?;
    let write = SendOp::WriteImm(target.remote(0), 3);
    cx.post(&a, request(1, write, &[source.sge(0, 10_000)]))?;
    look_on(cx, &a)?;
    cx.recv(&b, 2, &[])?;
    cx.done(&a, CompletionKind::Write, 1)?;
    let found = cx.done(&b, CompletionKind::RecvWriteImm, 2)?;
    equal("what came with it", found.with, With::Imm(3))?;
    same(&source, 0, &target, 0, 10_000)
}

fn many_wait_in_order(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 80, 104)?;
    let sink = cx.sink(&b, 80)?;
    for nth in 0..8 {
        cx.post(&a, request(nth as u64, SendOp::Send, &[source.sge(10 * nth, 10)]))?;
    }
    look_on(cx, &a)?;
    // Each receive is used by one message, and the other messages wait again.
    for nth in 0..8 {
        cx.recv(&b, nth as u64, &[sink.sge(10 * nth, 10)])?;
        cx.received(&b, nth as u64, 10)?;
        cx.done(&a, CompletionKind::Send, nth as u64)?;
    }
    same(&source, 0, &sink, 0, 80)
}

fn exhausted(cx: &mut Context<'_>, rnr_retry: u8) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { rnr_retry, ..PairSetup::RC })?;
    let source = cx.source(&a, 8, 105)?;
    let target = cx.shared(&b, 8)?;
    cx.post(&a, request(1, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.post(&a, silent(2, SendOp::Write(target.remote(0)), &[source.sge(0, 8)]))?;
    cx.breaks(&a, Queue::Send, 1, &[RnrRetryExceeded])?;
    cx.flushed(&a, Queue::Send, [2])?;
    // The responder has no error, and did not execute the request behind the message.
    cx.still_in(&b, QpState::Rts)?;
    target.is_untouched(0, 8)
}

/// Not for a wire that loses packets. Each lost answer consumes a retry of `retry_count`, which
/// only progress restores (IBA 9.9.2.1.1), and the case makes no progress for long.
fn without_end(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) =
        cx.pair(&PairSetup { rnr_retry: 7, min_rnr_timer: RnrTimer(1), ..PairSetup::RC })?;
    let source = cx.source(&a, 8, 106)?;
    let sink = cx.sink(&b, 8)?;
    cx.post(&a, request(1, SendOp::Send, &[source.sge(0, 8)]))?;
    for _ in 0..8 {
        look_on(cx, &a)?;
    }
    cx.recv(&b, 2, &[sink.sge(0, 8)])?;
    cx.done(&a, CompletionKind::Send, 1)?;
    cx.received(&b, 2, 8).map(drop)
}

fn writes_need_none(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { rnr_retry: 0, ..PairSetup::RC })?;
    let source = cx.source(&a, 8, 107)?;
    let target = cx.shared(&b, 8)?;
    cx.carry_out(&a, request(1, SendOp::Write(target.remote(0)), &[source.sge(0, 8)]))?;
    same(&source, 0, &target, 0, 8)
}

fn reads_need_none(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { rnr_retry: 0, ..PairSetup::RC })?;
    let sink = cx.sink(&a, 8)?;
    let target = cx.shared(&b, 8)?;
    cx.carry_out(&a, request(1, SendOp::Read(target.remote(0)), &[sink.sge(0, 8)]))?;
    same(&target, 0, &sink, 0, 8)
}

fn count_starts_anew(cx: &mut Context<'_>) -> Result<(), Stop> {
    // 122.88 ms, so that the receive is posted before the only retry, even on a busy machine.
    let timer = RnrTimer(27);
    let (a, b) = cx.pair(&PairSetup { rnr_retry: 1, min_rnr_timer: timer, ..PairSetup::RC })?;
    let source = cx.source(&a, 8, 108)?;
    let sink = cx.sink(&b, 8)?;
    for id in 0..4 {
        cx.post(&a, request(id, SendOp::Send, &[source.sge(0, 8)]))?;
        // The case does not wait here, so the request is refused at most once.
        cx.breathe()?;
        cx.recv(&b, id, &[sink.sge(0, 8)])?;
        cx.done(&a, CompletionKind::Send, id)?;
        cx.received(&b, id, 8)?;
    }
    Ok(())
}

fn uc_dropped(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Uc)?;
    let source = cx.source(&a, 16, 109)?;
    let sink = cx.sink(&b, 16)?;
    cx.carry_out(&a, request(1, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.nothing_more(&b)?;
    cx.recv(&b, 2, &[sink.sge(0, 8)])?;
    cx.carry_out(&a, request(3, SendOp::Send, &[source.sge(8, 8)]))?;
    cx.received(&b, 2, 8)?;
    same(&source, 8, &sink, 0, 8)
}

fn ud_dropped(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, 16, 110)?;
    let sink = cx.sink(&b, 64)?;
    cx.carry_out(&a, request(1, SendOp::Datagram(to), &[source.sge(0, 8)]))?;
    cx.nothing_more(&b)?;
    cx.recv(&b, 2, &[sink.sge(0, Grh::LEN + 8)])?;
    cx.carry_out(&a, request(3, SendOp::Datagram(to), &[source.sge(8, 8)]))?;
    cx.received(&b, 2, Grh::LEN + 8)?;
    same(&source, 8, &sink, Grh::LEN, 8)
}

/// The reason why no answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absent {
    NoSuchQp,
    Reset,
    Init,
    Err,
    Destroyed,
    Ud,
}

/// A QPN that no queue pair has in a case with few queue pairs.
const NO_QPN: Qpn = Qpn(0xff_fff0);

fn absent(cx: &mut Context<'_>, why: Absent, retry_count: u8) -> Result<(), Stop> {
    let setup = PairSetup { retry_count, timeout: TimeCode(8), ..PairSetup::RC };
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let a = cx.create(&place_a, &setup)?;
    let its_setup = if why == Absent::Ud { PairSetup::UD } else { setup };
    let b = cx.create(&place_b, &its_setup)?;
    let peer = if why == Absent::NoSuchQp { PairEnd { qpn: NO_QPN, ..b } } else { b };
    cx.advance(&a, QpState::Rts, &peer, &setup)?;
    match why {
        Absent::NoSuchQp | Absent::Reset => {}
        Absent::Init => cx.advance(&b, QpState::Init, &a, &setup)?,
        Absent::Ud => cx.advance(&b, QpState::Rts, &a, &its_setup)?,
        Absent::Err => {
            cx.advance(&b, QpState::Rts, &a, &setup)?;
            cx.go(&b, QpState::Err)?;
        }
        Absent::Destroyed => cx.device(Side::B).destroy_qp(b.qp)?,
    }
    let source = cx.source(&a, 8, 111)?;
    cx.post(&a, request(1, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.post(&a, silent(2, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.breaks(&a, Queue::Send, 1, &[RetryExceeded])?;
    cx.flushed(&a, Queue::Send, [2])
}

fn no_such_port(cx: &mut Context<'_>) -> Result<(), Stop> {
    let setup = PairSetup { retry_count: 1, timeout: TimeCode(8), ..PairSetup::RC };
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let a = cx.create(&place_a, &setup)?;
    let b = cx.create(&place_b, &setup)?;
    cx.advance(&a, QpState::Init, &b, &setup)?;
    let mut change = cx.change(&a, QpState::Rtr, &b, &setup)?;
    change.path = change.path.map(|path| AddressVector { dlid: Lid(0xbffe), ..path });
    cx.device(Side::A).modify_qp(a.qp, &change)?;
    let change = cx.change(&a, QpState::Rts, &b, &setup)?;
    cx.device(Side::A).modify_qp(a.qp, &change)?;
    let source = cx.source(&a, 8, 112)?;
    cx.post(&a, request(1, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.breaks(&a, Queue::Send, 1, &[RetryExceeded])
}

fn without_a_timer(cx: &mut Context<'_>) -> Result<(), Stop> {
    // Code 0 disables the timer: the request is sent once and never fails.
    let (a, b) = cx.pair(&PairSetup { timeout: TimeCode(0), retry_count: 0, ..PairSetup::RC })?;
    cx.go(&b, QpState::Reset)?;
    let source = cx.source(&a, 8, 116)?;
    cx.post(&a, request(1, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.nothing_more(&a)?;
    cx.still_in(&a, QpState::Rts)?;
    cx.go(&a, QpState::Err)?;
    cx.flushed(&a, Queue::Send, [1])
}

fn late_peer(cx: &mut Context<'_>) -> Result<(), Stop> {
    // The timeout is long, so that the peer is ready when the request is sent again.
    let setup = PairSetup { timeout: TimeCode(14), ..PairSetup::RC };
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let a = cx.create(&place_a, &setup)?;
    let b = cx.create(&place_b, &setup)?;
    cx.advance(&a, QpState::Rts, &b, &setup)?;
    cx.advance(&b, QpState::Init, &a, &setup)?;
    let source = cx.source(&a, 8, 113)?;
    let sink = cx.sink(&b, 8)?;
    cx.recv(&b, 1, &[sink.sge(0, 8)])?;
    cx.post(&a, request(2, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.breathe()?;
    let change = cx.change(&b, QpState::Rtr, &a, &setup)?;
    cx.device(Side::B).modify_qp(b.qp, &change)?;
    // In RTR a queue pair receives and acknowledges.
    cx.done(&a, CompletionKind::Send, 2)?;
    cx.received(&b, 1, 8)?;
    same(&source, 0, &sink, 0, 8)
}

fn uc_does_not_care(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Uc)?;
    cx.device(Side::B).destroy_qp(b.qp)?;
    let source = cx.source(&a, 8, 114)?;
    cx.carry_out(&a, request(1, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.still_in(&a, QpState::Rts)
}

fn ud_does_not_care(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let to = Destination { qpn: NO_QPN, ..to };
    let source = cx.source(&a, 8, 115)?;
    cx.carry_out(&a, request(1, SendOp::Datagram(to), &[source.sge(0, 8)]))?;
    cx.still_in(&a, QpState::Rts)
}
