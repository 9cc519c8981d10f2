//! The effect of a connection's attributes (IBA 9.7.1, 9.7.7, 9.4.4.1): PSNs that wrap, packet
//! sizes, and the number of outstanding reads.

use super::prelude::*;
use pollux_wire::units::Mtu;

macro_rules! each_mtu {
    ($($bytes:literal $mtu:ident;)*) => {
        &[$(
            Case::new(concat!("rc-send-mtu-", $bytes), "IBA 9.7.7", &[], |cx| {
                send(cx, &PairSetup { path_mtu: Some(Mtu::$mtu), ..PairSetup::RC })
            }),
            Case::new(concat!("rc-write-mtu-", $bytes), "IBA 9.7.7", &[], |cx| {
                write(cx, &PairSetup { path_mtu: Some(Mtu::$mtu), ..PairSetup::RC })
            }),
            Case::new(concat!("rc-read-mtu-", $bytes), "IBA 9.7.7", &[], |cx| {
                read(cx, &PairSetup { path_mtu: Some(Mtu::$mtu), ..PairSetup::RC })
            }),
            Case::new(concat!("uc-send-mtu-", $bytes), "IBA 9.7.7", UC, |cx| {
                send(cx, &PairSetup { path_mtu: Some(Mtu::$mtu), ..PairSetup::UC })
            }),
        )*]
    };
}

/// Cases for every packet size.
pub const MTUS: &[Case] = each_mtu![
    "256" BYTES_256;
    "512" BYTES_512;
    "1024" BYTES_1024;
    "2048" BYTES_2048;
    "4096" BYTES_4096;
];

pub const CASES: &[Case] = &[
    Case::new("rc-send-psn-wraps", "IBA 9.7.1", &[], |cx| send(cx, &wrapping(QpType::Rc))),
    Case::new("rc-write-psn-wraps", "IBA 9.7.1", &[], |cx| write(cx, &wrapping(QpType::Rc))),
    Case::new("rc-read-psn-wraps", "IBA 9.7.1", &[], |cx| read(cx, &wrapping(QpType::Rc))),
    Case::new("uc-send-psn-wraps", "IBA 9.7.1", UC, |cx| send(cx, &wrapping(QpType::Uc))),
    Case::new("rc-psn-starts-at-zero", "IBA 9.7.1", &[], |cx| {
        send(cx, &PairSetup { psn_a: 0, psn_b: 0, ..PairSetup::RC })
    }),
    Case::new("psn-wraps-with-many-messages", "IBA 9.7.1", &[], many_messages),
    Case::new("more-reads-than-depth", "IBA 9.4.4.1", &[], |cx| many_reads(cx, 1)),
    Case::new("more-reads-than-deeper", "IBA 9.4.4.1", &[], |cx| many_reads(cx, 4)),
    Case::new("depth-zero-has-no-reads", "IBA 9.4.4.1", &[], depth_zero),
    Case::new("more-reads-than-responder-holds", "IBA 9.7.4.1.8", &[], more_than_the_responder),
    Case::new("no-responder-resources", "IBA 9.7.4.1.8", &[], no_responder_resources),
    Case::new("uc-wrong-first-psn-recovers", "IBA 9.8.2.2.1", UC, uc_wrong_first_psn),
    Case::new("rc-mtus-differ", "IBA 9.7.4.1.6", &[], rc_mtus_differ),
    Case::new("uc-mtus-differ", "IBA 9.8.3.2", UC, uc_mtus_differ),
    Case::new("with-a-grh", "IBA 8.3", &[], with_a_grh),
];

const UC: &[Need] = &[Need::Uc, Need::Lossless];

/// The length of a message of several packets, with a short last packet at every MTU.
const BYTES: usize = 10_001;

fn wrapping(qp_type: QpType) -> PairSetup {
    PairSetup { psn_a: 0xff_fffe, psn_b: 0xff_ffff, ..PairSetup::new(qp_type) }
}

/// A pair with this setup; skips the case if a port does not support the MTU.
fn pair(cx: &mut Context<'_>, setup: &PairSetup) -> Result<(PairEnd, PairEnd), Stop> {
    let max = cx.mtu()?;
    match setup.path_mtu {
        Some(mtu) if mtu > max => skip(format!("the ports carry at most {max:?}")),
        _ => cx.pair(setup),
    }
}

fn send(cx: &mut Context<'_>, setup: &PairSetup) -> Result<(), Stop> {
    let (a, b) = pair(cx, setup)?;
    for bytes in [BYTES, 0, 1, 256, 4096] {
        cx.exchange(&a, &b, bytes)?;
    }
    Ok(())
}

fn write(cx: &mut Context<'_>, setup: &PairSetup) -> Result<(), Stop> {
    let (a, b) = pair(cx, setup)?;
    let source = cx.source(&a, BYTES, 191)?;
    let target = cx.shared(&b, BYTES)?;
    for bytes in [0, 1, 257, BYTES] {
        let op = SendOp::Write(target.remote(0));
        cx.carry_out(&a, request(1, op, &[source.sge(0, bytes)]))?;
        same(&source, 0, &target, 0, bytes)?;
        target.is_untouched(bytes, BYTES - bytes)?;
    }
    Ok(())
}

fn read(cx: &mut Context<'_>, setup: &PairSetup) -> Result<(), Stop> {
    let (a, b) = pair(cx, setup)?;
    let target = cx.shared(&b, BYTES)?;
    target.put(0, &pattern(192, BYTES));
    let sink = cx.sink(&a, BYTES)?;
    for bytes in [0, 1, 257, BYTES] {
        let op = SendOp::Read(target.remote(0));
        cx.carry_out(&a, request(1, op, &[sink.sge(0, bytes)]))?;
        same(&target, 0, &sink, 0, bytes)?;
        sink.is_untouched(bytes, BYTES - bytes)?;
    }
    Ok(())
}

fn many_messages(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { psn_a: 0xff_fff8, psn_b: 0xff_fff8, ..PairSetup::RC })?;
    for _ in 0..16 {
        cx.exchange(&a, &b, 1)?;
        cx.exchange(&b, &a, 1)?;
    }
    Ok(())
}

fn many_reads(cx: &mut Context<'_>, initiator_depth: u8) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { initiator_depth, ..PairSetup::RC })?;
    let target = cx.shared(&b, 16 * 3000)?;
    target.put(0, &pattern(193, 16 * 3000));
    let sink = cx.sink(&a, 16 * 3000)?;
    // More reads than may be outstanding: the adapter queues the others.
    for nth in 0..16 {
        let op = SendOp::Read(target.remote(3000 * nth));
        cx.post(&a, request(nth as u64, op, &[sink.sge(3000 * nth, 3000)]))?;
    }
    for nth in 0..16 {
        cx.done(&a, CompletionKind::Read, nth)?;
    }
    same(&target, 0, &sink, 0, 16 * 3000)
}

fn depth_zero(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { initiator_depth: 0, ..PairSetup::RC })?;
    let target = cx.shared(&b, 8)?;
    let sink = cx.sink(&a, 8)?;
    let op = SendOp::Read(target.remote(0));
    let answer = cx.device(Side::A).post_send(a.qp, &[request(1, op, &[sink.sge(0, 8)])]);
    match answer {
        // The post refuses the request ...
        Err(_) => post_refused("a read", answer, 0, &[PostRefusal::BadOperation]),
        // ... or the request fails when the adapter executes it.
        Ok(()) => cx.breaks(&a, Queue::Send, 1, &[LocalQpOperation]),
    }
}

fn more_than_the_responder(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) =
        cx.pair(&PairSetup { initiator_depth: 4, responder_resources: 1, ..PairSetup::RC })?;
    let target = cx.shared(&b, 4 * 3000)?;
    target.put(0, &pattern(194, 4 * 3000));
    let sink = cx.sink(&a, 4 * 3000)?;
    for nth in 0..4 {
        let op = SendOp::Read(target.remote(3000 * nth));
        cx.post(&a, request(nth as u64, op, &[sink.sge(3000 * nth, 3000)]))?;
    }
    // The requester exceeds the responder's resources. A responder may refuse that, or be fast
    // enough to serve the reads. Served reads return the right data, and requests after the first
    // refusal are flushed.
    for nth in 0..4 {
        let ends = [Success, RemoteInvalidRequest];
        let found = cx.ended(&a, Queue::Send, nth as u64, &ends)?;
        if found.status != Success {
            cx.flushed(&a, Queue::Send, nth as u64 + 1..4)?;
            // A responder with resources for one read cannot repeat an earlier read after its
            // answer was lost. It does not answer, and the requester exceeds its retries.
            if found.status == RemoteInvalidRequest {
                cx.in_state(&b, QpState::Err)?;
            }
            return cx.tolerate(Side::B, &[AsyncEvent::QpRequestError(b.qp)]);
        }
        same(&target, 3000 * nth, &sink, 3000 * nth, 3000)?;
    }
    Ok(())
}

fn no_responder_resources(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.pair(&PairSetup { responder_resources: 0, ..PairSetup::RC })?;
    let target = cx.shared(&b, 8)?;
    let sink = cx.sink(&a, 8)?;
    cx.post(&a, request(1, SendOp::Read(target.remote(0)), &[sink.sge(0, 8)]))?;
    let found = cx.ended(&a, Queue::Send, 1, &[RemoteInvalidRequest, Success])?;
    if found.status == Success {
        // An adapter may round the number up. Then the read must return the right data.
        return same(&target, 0, &sink, 0, 8);
    }
    cx.in_state(&a, QpState::Err)?;
    cx.in_state(&b, QpState::Err)?;
    cx.tolerate(Side::B, &[AsyncEvent::QpRequestError(b.qp)])
}

fn uc_wrong_first_psn(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let a = cx.create(&place_a, &PairSetup::UC)?;
    let b = cx.create(&place_b, &PairSetup::UC)?;
    // B expects a different first PSN, as after lost messages. UC recovers from that.
    let expects = PairSetup { psn_a: PairSetup::UC.psn_a - 1000, ..PairSetup::UC };
    cx.advance(&a, QpState::Rts, &b, &PairSetup::UC)?;
    cx.advance(&b, QpState::Rts, &a, &expects)?;
    cx.exchange(&a, &b, BYTES)?;
    cx.exchange(&a, &b, 1)
}

fn with_a_grh(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let a = cx.create(&place_a, &PairSetup::RC)?;
    let b = cx.create(&place_b, &PairSetup::RC)?;
    for (end, peer) in [(&a, &b), (&b, &a)] {
        cx.advance(end, QpState::Init, peer, &PairSetup::RC)?;
        let path = cx.global_path(end.side(), peer.side())?;
        let change = cx.change(end, QpState::Rtr, peer, &PairSetup::RC)?;
        let change = QpAttributes { path: Some(path), ..change };
        cx.device(end.side()).modify_qp(end.qp, &change)?;
        let change = cx.change(end, QpState::Rts, peer, &PairSetup::RC)?;
        cx.device(end.side()).modify_qp(end.qp, &change)?;
    }
    cx.exchange(&a, &b, BYTES)?;
    cx.exchange(&b, &a, BYTES)
}

/// A pair of queue pairs with different path MTUs.
fn mtus_differ(cx: &mut Context<'_>, qp_type: QpType) -> Result<(PairEnd, PairEnd), Stop> {
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let of = |mtu| PairSetup { path_mtu: Some(mtu), ..PairSetup::new(qp_type) };
    let (large, small) = (of(Mtu::BYTES_512), of(Mtu::BYTES_256));
    let (a, b) = (cx.create(&place_a, &large)?, cx.create(&place_b, &small)?);
    cx.advance(&b, QpState::Rts, &a, &small)?;
    cx.advance(&a, QpState::Rts, &b, &large)?;
    // The difference has no effect on a message of one packet.
    cx.exchange(&a, &b, 256)?;
    Ok((a, b))
}

fn rc_mtus_differ(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = mtus_differ(cx, QpType::Rc)?;
    let (source, sink) = (cx.source(&a, 300, 192)?, cx.sink(&b, 300)?);
    cx.recv(&b, 1, &[sink.sge(0, 300)])?;
    cx.post(&a, request(2, SendOp::Send, &[source.sge(0, 300)]))?;
    cx.breaks(&a, Queue::Send, 2, &[RemoteInvalidRequest])?;
    cx.breaks(&b, Queue::Recv, 1, &[Flushed])?;
    cx.tolerate(Side::B, &[AsyncEvent::QpRequestError(b.qp)])?;
    sink.is_untouched(0, 300)
}

fn uc_mtus_differ(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = mtus_differ(cx, QpType::Uc)?;
    let (source, sink) = (cx.source(&a, 300, 193)?, cx.sink(&b, 300)?);
    cx.recv(&b, 1, &[sink.sge(0, 300)])?;
    cx.carry_out(&a, request(2, SendOp::Send, &[source.sge(0, 300)]))?;
    cx.nothing_more(&b)?;
    sink.is_untouched(0, 300)?;
    // The receive waits for the next message.
    cx.carry_out(&a, request(3, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.received(&b, 1, 8).map(drop)
}
