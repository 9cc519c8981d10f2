//! Completion queues (IBA 10.2.6, 11.2.8): shared, small, full.

use super::prelude::*;

pub const CASES: &[Case] = &[
    Case::new("one-queue-for-sends-and-receives", "IBA 10.2.6", &[], one_queue_for_both),
    Case::new("one-queue-for-many-pairs", "IBA 10.2.6", &[], one_queue_for_many),
    Case::new("polling-an-empty-queue", "contract: poll", &[], polling_an_empty_queue),
    Case::new("polling-without-room", "contract: poll", &[], polling_without_room),
    Case::new("polling-one-at-a-time", "contract: poll", &[], one_at_a_time),
    Case::new("overflow", "IBA 11.6.3.1", &[], overflow),
];

fn one_queue_for_both(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let one = Place { recv_cq: place.send_cq, ..place };
    let other = cx.place(Side::B)?;
    let (a, b) = cx.pair_at(&one, &other, &PairSetup::RC)?;
    cx.exchange(&a, &b, 64)?;
    cx.exchange(&b, &a, 64)
}

fn one_queue_for_many(cx: &mut Context<'_>) -> Result<(), Stop> {
    let places = (cx.place(Side::A)?, cx.place(Side::B)?);
    let mut pairs = Vec::new();
    for _ in 0..8 {
        pairs.push(cx.pair_at(&places.0, &places.1, &PairSetup::RC)?);
    }
    let sink = cx.sink(&pairs[0].1, 8)?;
    let source = cx.source(&pairs[0].0, 8, 141)?;
    for (id, (a, b)) in pairs.iter().enumerate() {
        cx.recv(b, id as u64, &[sink.sge(0, 8)])?;
        cx.post(a, request(id as u64, SendOp::Send, &[source.sge(0, 8)]))?;
    }
    // The order is open, but each receive completes once, with the QPN of its queue pair.
    let mut found = Vec::new();
    for _ in 0..8 {
        let sent = cx.next(Side::A, places.0.send_cq)?;
        equal("whose completion", sent.qpn, pairs[sent.id as usize % 8].0.qpn)?;
        let received = cx.next(Side::B, places.1.recv_cq)?;
        equal("whose completion", received.qpn, pairs[received.id as usize % 8].1.qpn)?;
        equal("the status", received.status, Success)?;
        found.push(received.id);
    }
    found.sort_unstable();
    equal("the receives that completed", found, (0..8).collect())
}

fn polling_an_empty_queue(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _) = cx.connected(QpType::Rc)?;
    let mut room = [Completion::NOTHING; 4];
    equal("completions", cx.device(Side::A).poll(a.place.send_cq, &mut room)?, 0)?;
    equal("completions", cx.device(Side::A).poll(a.place.recv_cq, &mut room)?, 0)
}

fn polling_without_room(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b) = cx.connected(QpType::Rc)?;
    cx.recv(&b, 1, &[])?;
    cx.go(&b, QpState::Err)?;
    equal("completions", cx.device(Side::B).poll(b.place.recv_cq, &mut [])?, 0)?;
    cx.flushed(&b, Queue::Recv, [1])
}

fn one_at_a_time(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b) = cx.connected(QpType::Rc)?;
    for id in 0..4 {
        cx.recv(&b, id, &[])?;
    }
    cx.go(&b, QpState::Err)?;
    // Adapters flush asynchronously. The check at the end of the case would detect a fifth
    // completion.
    let mut found = Vec::new();
    while found.len() < 4 {
        let mut room = [Completion::NOTHING; 1];
        if cx.device(Side::B).poll(b.place.recv_cq, &mut room)? == 1 {
            found.push(room[0].id);
        } else if cx.turn() == WaitDecision::GiveUp {
            break;
        }
    }
    equal("the receives that were flushed", found, vec![0, 1, 2, 3])
}

fn overflow(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::B)?;
    let small = cx.device(Side::B).create_cq(1)?;
    let place = Place { recv_cq: small, ..place };
    let requests_max = cx.limits().requests_max.min(4096);
    let b = cx.create(&place, &PairSetup { requests_max, ..PairSetup::RC })?;
    cx.advance(&b, QpState::Init, &b, &PairSetup::RC)?;
    // Adapters round the length of a completion queue up; a full receive queue exceeds it.
    let mut posted = 0;
    let one = [RecvRequest { id: 1, sges: &[] }];
    while posted < 4096 && cx.device(Side::B).post_recv(b.qp, &one).is_ok() {
        posted += 1;
    }
    cx.go(&b, QpState::Err)?;
    cx.settle()?;
    let owner = cx.owner(Side::B);
    let lost = (owner, AsyncEvent::CqError(small));
    let times = cx.events.iter().filter(|event| **event == lost).count();
    if times > 0 {
        equal("times that the queue was told to be lost", times, 1)?;
        // Adapters may also report a failure of the queue pairs that use the overrun queue.
        return cx.tolerate(Side::B, &[AsyncEvent::CqError(small), AsyncEvent::QpFatal(b.qp)]);
    }
    // Without an overflow, every completion must be present.
    let mut found = 0;
    let mut room = [Completion::NOTHING; 16];
    for _ in 0..=posted {
        found += cx.device(Side::B).poll(small, &mut room)?;
    }
    equal("completions without an overflow event", found, posted)
}
