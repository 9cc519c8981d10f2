//! Refusals of posts, and the number of accepted requests of a batch (contract: `PostError`; IBA
//! 10.8.3, 11.4.1).

use super::prelude::*;
use pollux_wire::address::Qpn;
use pollux_wire::units::TimeCode;

pub const CASES: &[Case] = &[
    Case::new("send-in-reset", "IBA 10.3.1.1", &[], |cx| send_in(cx, QpState::Reset)),
    Case::new("send-in-init", "IBA 10.3.1.2", &[], |cx| send_in(cx, QpState::Init)),
    Case::new("send-in-rtr", "IBA 10.3.1.3", &[], |cx| send_in(cx, QpState::Rtr)),
    Case::new("recv-in-reset", "IBA 10.3.1.1", &[], recv_in_reset),
    Case::new("recv-in-init", "IBA 10.3.1.2", &[], |cx| recv_in(cx, QpState::Init)),
    Case::new("recv-in-rtr", "IBA 10.3.1.3", &[], |cx| recv_in(cx, QpState::Rtr)),
    Case::new("send-queue-full", "contract: PostRefusal", &[], send_queue_full),
    Case::new("recv-queue-full", "contract: PostRefusal", &[], recv_queue_full),
    Case::new("full-in-the-middle-of-a-batch", "contract: PostError", &[], full_in_the_middle),
    Case::new("bad-in-the-middle-of-a-batch", "contract: PostError", &[], bad_in_the_middle),
    Case::new("too-many-send-entries", "IBA 11.4.1.1", &[], too_many_send_entries),
    Case::new("too-many-recv-entries", "IBA 11.4.1.2", &[], too_many_recv_entries),
    Case::new("no-such-queue", "contract: PostRefusal", &[], no_such_queue),
    Case::new("no-such-address-handle", "contract: PostRefusal", &[], no_such_address_handle),
    Case::new("destination-over-24-bits", "IBA 11.4.1.1", &[], destination_too_wide),
];

fn send_in(cx: &mut Context<'_>, state: QpState) -> Result<(), Stop> {
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    for setup in [PairSetup::RC, PairSetup::UD] {
        let a = cx.create(&place_a, &setup)?;
        let b = cx.create(&place_b, &setup)?;
        cx.advance(&a, state, &b, &setup)?;
        let op = match setup.qp_type {
            QpType::Ud => SendOp::Datagram(cx.destination(&a, &b)?),
            _ => SendOp::Send,
        };
        let answer = cx.device(Side::A).post_send(a.qp, &[request(1, op, &[])]);
        post_refused("a send", answer, 0, &[PostRefusal::State(state)])?;
    }
    Ok(())
}

fn recv_in_reset(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let a = cx.create(&place, &PairSetup::RC)?;
    let answer = cx.device(Side::A).post_recv(a.qp, &[RecvRequest { id: 1, sges: &[] }]);
    post_refused("a receive", answer, 0, &[PostRefusal::State(QpState::Reset)])
}

fn recv_in(cx: &mut Context<'_>, state: QpState) -> Result<(), Stop> {
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let a = cx.create(&place_a, &PairSetup::RC)?;
    let b = cx.create(&place_b, &PairSetup::RC)?;
    cx.advance(&b, state, &a, &PairSetup::RC)?;
    let sink = cx.sink(&b, 8)?;
    cx.recv(&b, 1, &[sink.sge(0, 8)])?;
    // The first message uses the receive that was posted early.
    for to in [QpState::Rtr, QpState::Rts] {
        if to > state {
            let change = cx.change(&b, to, &a, &PairSetup::RC)?;
            cx.device(Side::B).modify_qp(b.qp, &change)?;
        }
    }
    cx.advance(&a, QpState::Rts, &b, &PairSetup::RC)?;
    let source = cx.source(&a, 8, 131)?;
    cx.carry_out(&a, request(2, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.received(&b, 1, 8).map(drop)
}

/// A pair with small queues in which B does not answer, so that A's send queue stays full.
fn small_and_unanswered(cx: &mut Context<'_>) -> Result<(PairEnd, PairEnd), Stop> {
    let setup = PairSetup { requests_max: 4, timeout: TimeCode(20), ..PairSetup::RC };
    let (a, b) = cx.pair(&setup)?;
    cx.go(&b, QpState::Reset)?;
    Ok((a, b))
}

/// Requests after which a case stops to post. The case measures the length of a queue, because an
/// adapter may round it up.
const QUEUE_MAX: u64 = 1 << 16;

fn send_queue_full(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = small_and_unanswered(cx)?;
    let mut posted = 0;
    let answer = loop {
        let answer = cx.device(Side::A).post_send(a.qp, &[request(posted, SendOp::Send, &[])]);
        if answer.is_err() || posted == QUEUE_MAX {
            break answer;
        }
        posted += 1;
    };
    post_refused("one too many", answer, 0, &[PostRefusal::Full])?;
    if posted < 4 {
        return fail(format!("expected room for 4 sends, found {posted}"));
    }
    // All accepted requests are flushed, and the queue has space again.
    cx.go(&a, QpState::Err)?;
    cx.flushed(&a, Queue::Send, 0..posted)?;
    cx.post(&a, request(posted, SendOp::Send, &[]))?;
    cx.flushed(&a, Queue::Send, [posted])
}

fn recv_queue_full(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b) = cx.pair(&PairSetup { requests_max: 4, ..PairSetup::RC })?;
    let mut posted = 0;
    let answer = loop {
        let one = RecvRequest { id: posted, sges: &[] };
        let answer = cx.device(Side::B).post_recv(b.qp, &[one]);
        if answer.is_err() || posted == QUEUE_MAX {
            break answer;
        }
        posted += 1;
    };
    post_refused("one too many", answer, 0, &[PostRefusal::Full])?;
    if posted < 4 {
        return fail(format!("expected room for 4 receives, found {posted}"));
    }
    cx.go(&b, QpState::Err)?;
    cx.flushed(&b, Queue::Recv, 0..posted)
}

fn full_in_the_middle(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = small_and_unanswered(cx)?;
    let batch: Vec<_> = (0..64).map(|id| request(id, SendOp::Send, &[])).collect();
    let accepted = match cx.device(Side::A).post_send(a.qp, &batch) {
        Ok(()) => return skip("the queue is much longer than it was asked to be"),
        Err(error) => error.accepted,
    };
    let answer = cx.device(Side::A).post_send(a.qp, &batch[accepted..]);
    post_refused("the rest", answer, 0, &[PostRefusal::Full])?;
    cx.go(&a, QpState::Err)?;
    cx.flushed(&a, Queue::Send, 0..accepted as u64)?;
    // The other requests were not accepted, so they do not complete.
    cx.nothing_more(&a)
}

fn bad_in_the_middle(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let to = cx.destination(&a, &b)?;
    let sink = cx.sink(&b, 8)?;
    for id in 0..3 {
        cx.recv(&b, id, &[sink.sge(0, 8)])?;
    }
    let send = |id| request(id, SendOp::Send, &[]);
    let batch = [send(0), send(1), request(2, SendOp::Datagram(to), &[]), send(3)];
    let answer = cx.device(Side::A).post_send(a.qp, &batch);
    post_refused("a batch", answer, 2, &[PostRefusal::BadOperation])?;
    for id in 0..2 {
        cx.done(&a, CompletionKind::Send, id)?;
        cx.received(&b, id, 0)?;
    }
    // No request after the invalid one was accepted.
    cx.nothing_more(&a)?;
    cx.carry_out(&a, send(4))?;
    cx.received(&b, 2, 0).map(drop)
}

fn too_many_send_entries(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let count = cx.limits().sges_max as usize + 1;
    let source = cx.source(&a, 8, 132)?;
    let entries = vec![source.sge(0, 0); count];
    let answer = cx.device(Side::A).post_send(a.qp, &[request(1, SendOp::Send, &entries)]);
    post_refused("entries over the limit", answer, 0, &[PostRefusal::TooManySges])?;
    cx.exchange(&a, &b, 8)
}

fn too_many_recv_entries(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let count = cx.limits().sges_max as usize + 1;
    let sink = cx.sink(&b, 8)?;
    let entries = vec![sink.sge(0, 0); count];
    let one = RecvRequest { id: 1, sges: &entries };
    let answer = cx.device(Side::B).post_recv(b.qp, &[one]);
    post_refused("entries over the limit", answer, 0, &[PostRefusal::TooManySges])?;
    cx.exchange(&a, &b, 8)
}

fn no_such_queue(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place_with_srq(Side::A, 4);
    let a = cx.connected(QpType::Rc)?.0;
    cx.device(Side::A).destroy_qp(a.qp)?;
    let gone = [PostRefusal::NoSuchQueue];
    let answer = cx.device(Side::A).post_send(a.qp, &[request(1, SendOp::Send, &[])]);
    post_refused("a send", answer, 0, &gone)?;
    let recv = RecvRequest { id: 1, sges: &[] };
    let answer = cx.device(Side::A).post_recv(a.qp, &[recv]);
    post_refused("a receive", answer, 0, &gone)?;
    if let Ok(Place { srq: Some(srq), .. }) = place {
        cx.device(Side::A).destroy_srq(srq)?;
        let answer = cx.device(Side::A).post_srq_recv(srq, &[recv]);
        post_refused("a shared receive", answer, 0, &gone)?;
    }
    Ok(())
}

fn no_such_address_handle(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    cx.device(Side::A).destroy_ah(to.ah)?;
    let answer = cx.device(Side::A).post_send(a.qp, &[request(1, SendOp::Datagram(to), &[])]);
    post_refused("a datagram", answer, 0, &[PostRefusal::BadOperation])
}

fn destination_too_wide(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Ud)?;
    let to = cx.destination(&a, &b)?;
    let to = Destination { qpn: Qpn(to.qpn.0 | 1 << 24), ..to };
    let answer = cx.device(Side::A).post_send(a.qp, &[request(1, SendOp::Datagram(to), &[])]);
    post_refused("a number of 25 bits", answer, 0, &[PostRefusal::BadOperation])
}
