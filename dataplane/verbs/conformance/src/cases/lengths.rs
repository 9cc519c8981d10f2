//! Messages that do not fit into their receive (IBA 9.7.4.1.6, 9.7.6.3.1, 9.8.2.2.4, 9.8.3.2).

use super::prelude::*;

pub const CASES: &[Case] = &[
    Case::new("rc-receive-too-short", "IBA 9.7.4.1.6", &[], |cx| rc_too_short(cx, 64, 63)),
    Case::new("rc-receive-of-nothing", "IBA 9.7.4.1.6", &[], |cx| rc_too_short(cx, 1, 0)),
    Case::new("rc-too-short-in-a-later-packet", "IBA 9.7.4.1.6", &[], |cx| {
        rc_too_short(cx, 20_000, 19_999)
    }),
    Case::new("rc-receive-just-fits", "IBA 9.7.4.1.6", &[], rc_just_fits),
    Case::new("write-imm-needs-no-room", "IBA 9.4.3", &[], write_imm_needs_no_room),
    Case::new("uc-receive-too-short", "IBA 9.8.2.2.4", UC, uc_too_short),
    Case::new("ud-receive-too-short", "IBA 9.8.3.2", &[Need::Lossless], ud_too_short),
    Case::new("ud-receive-without-grh-room", "IBA 9.8.3.2", &[Need::Lossless], ud_no_grh_room),
    Case::new("ud-longer-than-a-packet", "IBA C10-93.1.1", &[Need::Lossless], ud_too_long),
];

const UC: &[Need] = &[Need::Uc, Need::Lossless];

fn rc_too_short(cx: &mut Context<'_>, bytes: usize, room: usize) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, bytes, 91)?;
    let sink = cx.sink(&b, room + 1)?;
    cx.recv(&b, 1, &[sink.sge(0, room)])?;
    cx.recv(&b, 2, &[sink.sge(0, 0)])?;
    cx.post(&a, request(3, SendOp::Send, &[source.sge(0, bytes)]))?;
    cx.post(&a, request(4, SendOp::Send, &[source.sge(0, 0)]))?;
    cx.breaks(&a, Queue::Send, 3, &[RemoteInvalidRequest])?;
    cx.flushed(&a, Queue::Send, [4])?;
    cx.breaks(&b, Queue::Recv, 1, &[LocalLength])?;
    cx.flushed(&b, Queue::Recv, [2])?;
    // No event is raised: events report only errors without a completion (IBA 10.10.2.3).
    sink.is_untouched(room, 1)
}

fn rc_just_fits(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 10_001, 92)?;
    let sink = cx.sink(&b, 10_002)?;
    cx.recv(&b, 1, &[sink.sge(0, 10_000), sink.sge(10_000, 1)])?;
    cx.carry_out(&a, request(2, SendOp::Send, &[source.sge(0, 10_001)]))?;
    cx.received(&b, 1, 10_001)?;
    same(&source, 0, &sink, 0, 10_001)?;
    sink.is_untouched(10_001, 1)
}

fn write_imm_needs_no_room(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 5000, 93)?;
    let target = cx.shared(&b, 5000)?;
    cx.recv(&b, 1, &[])?;
    let write = SendOp::WriteImm(target.remote(0), 5);
    cx.carry_out(&a, request(2, write, &[source.sge(0, 5000)]))?;
    cx.done(&b, CompletionKind::RecvWriteImm, 1)?;
    same(&source, 0, &target, 0, 5000)
}

/// Sends `short`, which does not fit into receive 1, and then an empty message; the sender gets no
/// error. By IBA, receive 1 completes with a length error. Some adapters drop the message instead
/// and use receive 1 for the next one.
fn unreliable_too_short(
    cx: &mut Context<'_>,
    a: &PairEnd,
    b: &PairEnd,
    short: &SendRequest<'_>,
    grh: usize,
) -> Result<(), Stop> {
    let empty = SendRequest { id: 3, data: Data::EMPTY, ..*short };
    cx.carry_out(a, *short)?;
    cx.carry_out(a, empty)?;
    let found = cx.next(b.side(), b.place.recv_cq)?;
    equal("the receive that completed first", found.id, 1)?;
    match found.status {
        Success => equal("bytes of the message that fits", found.bytes as usize, grh)?,
        LocalLength => {
            // The queue pair has failed, or continues with the next receive.
            cx.settle()?;
            let (state, _) = cx.device(b.side()).query_qp(b.qp)?;
            let second = if state == QpState::Err { Flushed } else { Success };
            cx.ended(b, Queue::Recv, 2, &[second])?;
            return cx.tolerate(b.side(), &[AsyncEvent::QpRequestError(b.qp)]);
        }
        other => {
            return fail(format!("expected the message dropped or LocalLength, found {other:?}"));
        }
    }
    cx.go(b, QpState::Err)?;
    cx.flushed(b, Queue::Recv, [2])
}

fn uc_too_short(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Uc)?;
    let source = cx.source(&a, 64, 94)?;
    let sink = cx.sink(&b, 128)?;
    cx.recv(&b, 1, &[sink.sge(0, 63)])?;
    cx.recv(&b, 2, &[sink.sge(64, 63)])?;
    let sges = [source.sge(0, 64)];
    unreliable_too_short(cx, &a, &b, &request(9, SendOp::Send, &sges), 0)?;
    sink.is_untouched(63, 1)
}

fn ud_too_short(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, 64, 95)?;
    let sink = cx.sink(&b, 256)?;
    cx.recv(&b, 1, &[sink.sge(0, Grh::LEN + 63)])?;
    cx.recv(&b, 2, &[sink.sge(128, Grh::LEN + 63)])?;
    let sges = [source.sge(0, 64)];
    unreliable_too_short(cx, &a, &b, &request(9, SendOp::Datagram(to), &sges), Grh::LEN)?;
    sink.is_untouched(Grh::LEN + 63, 1)
}

fn ud_no_grh_room(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, 64, 96)?;
    let sink = cx.sink(&b, 256)?;
    // The receive has space for the message, but not for the 40 bytes in front of it.
    cx.recv(&b, 1, &[sink.sge(0, 64)])?;
    cx.recv(&b, 2, &[sink.sge(128, 64)])?;
    let sges = [source.sge(0, 64)];
    unreliable_too_short(cx, &a, &b, &request(9, SendOp::Datagram(to), &sges), Grh::LEN)?;
    sink.is_untouched(64, 64)
}

fn ud_too_long(cx: &mut Context<'_>) -> Result<(), Stop> {
    let bytes = cx.mtu_bytes()? + 1;
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, bytes, 97)?;
    let sink = cx.sink(&b, 2 * (Grh::LEN + bytes))?;
    cx.recv(&b, 1, &[sink.sge(0, Grh::LEN + bytes)])?;
    let sges = [source.sge(0, bytes)];
    let answer = cx.device(Side::A).post_send(a.qp, &[request(2, SendOp::Datagram(to), &sges)]);
    match answer {
        Err(_) => post_refused("a long datagram", answer, 0, &[PostRefusal::TooLong])?,
        // Hardware fails the request. By IBA C10-93.1.1 it can also succeed without sending.
        Ok(()) => cx.ended(&a, Queue::Send, 2, &[LocalLength, Success]).map(drop)?,
    }
    cx.nothing_more(&b)?;
    sink.is_untouched(0, sink.bytes())?;
    cx.go(&b, QpState::Err)?;
    cx.flushed(&b, Queue::Recv, [1])
}
