//! Every operation of every transport in its simplest form, and the refusal of operations that a
//! transport does not support (IBA 9.4).

use super::prelude::*;

pub const CASES: &[Case] = &[
    Case::new("rc-send", "IBA 9.4.1", &[], |cx| send(cx, QpType::Rc)),
    Case::new("uc-send", "IBA 9.4.1", UC, |cx| send(cx, QpType::Uc)),
    Case::new("rc-send-imm", "IBA 9.2.6", &[], |cx| send_imm(cx, QpType::Rc, 64)),
    Case::new("uc-send-imm", "IBA 9.2.6", UC, |cx| send_imm(cx, QpType::Uc, 64)),
    Case::new("rc-send-imm-empty", "IBA 9.2.6", &[], |cx| send_imm(cx, QpType::Rc, 0)),
    Case::new("uc-send-imm-empty", "IBA 9.2.6", UC, |cx| send_imm(cx, QpType::Uc, 0)),
    Case::new("rc-send-imm-packets", "IBA 9.2.6", &[], |cx| send_imm(cx, QpType::Rc, 10_000)),
    Case::new("uc-send-imm-packets", "IBA 9.2.6", UC, |cx| send_imm(cx, QpType::Uc, 10_000)),
    Case::new("rc-write-imm", "IBA 9.4.3", &[], |cx| write_imm(cx, QpType::Rc, 64)),
    Case::new("uc-write-imm", "IBA 9.4.3", UC, |cx| write_imm(cx, QpType::Uc, 64)),
    Case::new("rc-write-imm-empty", "IBA 9.4.3", &[], |cx| write_imm(cx, QpType::Rc, 0)),
    Case::new("uc-write-imm-empty", "IBA 9.4.3", UC, |cx| write_imm(cx, QpType::Uc, 0)),
    Case::new("rc-write-imm-packets", "IBA 9.4.3", &[], |cx| write_imm(cx, QpType::Rc, 10_000)),
    Case::new("uc-write-imm-packets", "IBA 9.4.3", UC, |cx| write_imm(cx, QpType::Uc, 10_000)),
    Case::new("rc-write-takes-no-receive", "IBA 9.4.3", &[], write_takes_no_receive),
    Case::new("rc-send-invalidate-of-nothing", "IBA 9.4.1.1", INVALIDATE, invalidate_nothing),
    Case::new("ud-send", "IBA 9.4.1", UD, |cx| datagram(cx, None)),
    Case::new("ud-send-imm", "IBA 9.2.6", UD, |cx| datagram(cx, Some(0xfedc_ba98))),
    Case::new("rc-has-no-datagrams", "IBA 9.4", &[], rc_has_no_datagrams),
    Case::new("uc-has-no-reads", "IBA 9.4", &[Need::Uc], uc_has_no_reads),
    Case::new("uc-has-no-atomics", "IBA 9.4", &[Need::Uc], uc_has_no_atomics),
    Case::new("uc-has-no-invalidate", "IBA 9.4", &[Need::Uc], uc_has_no_invalidate),
    Case::new("ud-has-no-plain-send", "IBA 9.4", &[], ud_has_no_plain_send),
    Case::new("ud-has-no-rdma", "IBA 9.4", &[], ud_has_no_rdma),
    Case::new("empty-batches-are-nothing", "contract: post_send", &[], empty_batches),
    Case::new("a-batch-is-its-requests", "contract: post_send", &[], a_batch),
];

const UC: &[Need] = &[Need::Uc, Need::Lossless];
const UD: &[Need] = &[Need::Lossless];
const INVALIDATE: &[Need] = &[Need::SendInvalidate];

fn send(cx: &mut Context<'_>, qp_type: QpType) -> Result<(), Stop> {
    let (a, b) = cx.connected(qp_type)?;
    let source = cx.source(&a, 64, 1)?;
    let sink = cx.sink(&b, 64)?;
    cx.recv(&b, 1, &[sink.sge(0, 64)])?;
    cx.carry_out(&a, request(2, SendOp::Send, &[source.sge(0, 64)]))?;
    let found = cx.received(&b, 1, 64)?;
    equal("what came with it", found.with, With::Nothing)?;
    equal("the source of a message on a connection", found.from, None)?;
    same(&source, 0, &sink, 0, 64)
}

fn send_imm(cx: &mut Context<'_>, qp_type: QpType, bytes: usize) -> Result<(), Stop> {
    let (a, b) = cx.connected(qp_type)?;
    let source = cx.source(&a, bytes, 2)?;
    let sink = cx.sink(&b, bytes)?;
    cx.recv(&b, 1, &[sink.sge(0, bytes)])?;
    let op = SendOp::SendImm(0x0123_4567);
    cx.carry_out(&a, request(2, op, &[source.sge(0, bytes)]))?;
    let found = cx.received(&b, 1, bytes)?;
    equal("what came with it", found.with, With::Imm(0x0123_4567))?;
    same(&source, 0, &sink, 0, bytes)
}

fn write_imm(cx: &mut Context<'_>, qp_type: QpType, bytes: usize) -> Result<(), Stop> {
    let (a, b) = cx.connected(qp_type)?;
    let source = cx.source(&a, bytes, 3)?;
    let target = cx.shared(&b, bytes)?;
    let sink = cx.sink(&b, 64)?;
    // The write consumes the receive, but does not write to its memory.
    cx.recv(&b, 1, &[sink.sge(0, 64)])?;
    let op = SendOp::WriteImm(target.remote(0), 0x89ab_cdef);
    cx.carry_out(&a, request(2, op, &[source.sge(0, bytes)]))?;
    let found = cx.done(&b, CompletionKind::RecvWriteImm, 1)?;
    equal("what came with it", found.with, With::Imm(0x89ab_cdef))?;
    equal("bytes written", found.bytes as usize, bytes)?;
    same(&source, 0, &target, 0, bytes)?;
    sink.is_untouched(0, 64)
}

fn write_takes_no_receive(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 64, 4)?;
    let target = cx.shared(&b, 64)?;
    let sink = cx.sink(&b, 64)?;
    cx.recv(&b, 1, &[sink.sge(0, 64)])?;
    cx.carry_out(&a, request(2, SendOp::Write(target.remote(0)), &[source.sge(0, 64)]))?;
    cx.nothing_more(&b)?;
    cx.carry_out(&a, request(3, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.received(&b, 1, 8).map(drop)
}

fn invalidate_nothing(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 64)?;
    let sink = cx.sink(&b, 64)?;
    cx.recv(&b, 1, &[sink.sge(0, 64)])?;
    let unknown = RKey(!target.region.rkey.0);
    cx.post(&a, request(2, SendOp::SendInvalidate(unknown), &[]))?;
    // By IBA 9.9.6.3 this is an access error; some adapters report an invalid request.
    cx.breaks(&a, Queue::Send, 2, REMOTE_REFUSALS)?;
    cx.breaks(&b, Queue::Recv, 1, &[LocalProtection, LocalAccess, LocalQpOperation, Flushed])?;
    cx.tolerate(b.side(), &[AsyncEvent::QpAccessError(b.qp), AsyncEvent::QpRequestError(b.qp)])
}

fn datagram(cx: &mut Context<'_>, imm: Option<u32>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, 100, 5)?;
    let sink = cx.sink(&b, Grh::LEN + 100)?;
    cx.recv(&b, 1, &[sink.sge(0, Grh::LEN + 100)])?;
    let op = imm.map_or(SendOp::Datagram(to), |imm| SendOp::DatagramImm(to, imm));
    cx.carry_out(&a, request(2, op, &[source.sge(0, 100)]))?;
    let found = cx.received(&b, 1, Grh::LEN + 100)?;
    equal("what came with it", found.with, imm.map_or(With::Nothing, With::Imm))?;
    same(&source, 0, &sink, Grh::LEN, 100)
}

/// Expects that the post of an unsupported operation is refused.
fn has_not(cx: &mut Context<'_>, a: &PairEnd, op: SendOp, sges: &[Sge]) -> Result<(), Stop> {
    let answer = cx.device(a.side()).post_send(a.qp, &[request(1, op, sges)]);
    post_refused(&format!("{op:?}"), answer, 0, &[PostRefusal::BadOperation])?;
    cx.still_in(a, QpState::Rts)
}

fn rc_has_no_datagrams(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let to = cx.destination(&a, &b)?;
    let source = cx.source(&a, 64, 6)?;
    has_not(cx, &a, SendOp::Datagram(to), &[source.sge(0, 8)])?;
    has_not(cx, &a, SendOp::DatagramImm(to, 1), &[source.sge(0, 8)])?;
    cx.exchange(&a, &b, 8)
}

fn uc_has_no_reads(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Uc)?;
    let sink = cx.sink(&a, 64)?;
    let target = cx.shared(&b, 64)?;
    has_not(cx, &a, SendOp::Read(target.remote(0)), &[sink.sge(0, 8)])
}

fn uc_has_no_atomics(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Uc)?;
    let sink = cx.sink(&a, 64)?;
    let remote = cx.shared(&b, 64)?.remote(0);
    has_not(cx, &a, SendOp::FetchAdd { remote, add: 1 }, &[sink.sge(0, 8)])?;
    has_not(cx, &a, SendOp::CompareSwap { remote, compare: 0, swap: 1 }, &[sink.sge(0, 8)])
}

fn uc_has_no_invalidate(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Uc)?;
    let rkey = cx.shared(&b, 64)?.region.rkey;
    has_not(cx, &a, SendOp::SendInvalidate(rkey), &[])
}

fn ud_has_no_plain_send(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = cx.connected(QpType::Ud)?;
    let source = cx.source(&a, 64, 7)?;
    has_not(cx, &a, SendOp::Send, &[source.sge(0, 8)])?;
    has_not(cx, &a, SendOp::SendImm(1), &[source.sge(0, 8)])
}

fn ud_has_no_rdma(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let sink = cx.sink(&a, 64)?;
    let remote = cx.shared(&b, 64)?.remote(0);
    has_not(cx, &a, SendOp::Write(remote), &[sink.sge(0, 8)])?;
    has_not(cx, &a, SendOp::WriteImm(remote, 1), &[sink.sge(0, 8)])?;
    has_not(cx, &a, SendOp::Read(remote), &[sink.sge(0, 8)])?;
    has_not(cx, &a, SendOp::FetchAdd { remote, add: 1 }, &[sink.sge(0, 8)])?;
    has_not(cx, &a, SendOp::LocalInvalidate(remote.rkey), &[])
}

fn empty_batches(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    cx.device(Side::A).post_send(a.qp, &[])?;
    cx.device(Side::B).post_recv(b.qp, &[])?;
    cx.nothing_more(&a)?;
    cx.exchange(&a, &b, 8)
}

fn a_batch(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 64, 8)?;
    let sink = cx.sink(&b, 64)?;
    let halves = [[sink.sge(0, 32)], [sink.sge(32, 32)]];
    let receives = [0, 1].map(|half| RecvRequest { id: half as u64, sges: &halves[half] });
    cx.device(Side::B).post_recv(b.qp, &receives)?;
    let halves = [[source.sge(0, 32)], [source.sge(32, 32)]];
    let sends = [0, 1].map(|half| request(half as u64, SendOp::Send, &halves[half]));
    cx.device(Side::A).post_send(a.qp, &sends)?;
    for id in 0..2 {
        cx.done(&a, CompletionKind::Send, id)?;
        cx.received(&b, id, 32)?;
    }
    same(&source, 0, &sink, 0, 64)
}
