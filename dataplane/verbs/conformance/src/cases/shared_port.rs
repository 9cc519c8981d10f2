//! Two contexts of one adapter ([`open_shared`](pollux_verbs::Device::open_shared)). The contexts
//! have separate resources, but share a port.

use super::multicast::{attach, has, room, send, to_group};
use super::prelude::*;
use std::collections::BTreeSet;

pub const CASES: &[Case] = &[
    Case::new("same-port", "contract: open_shared", &[], same_port),
    Case::new("numbers-differ", "contract: open_shared", &[], numbers_differ),
    Case::new("a-connection-each", "contract: open_shared", &[], connection_each),
    Case::new("long-messages", "contract: open_shared", &[], long_messages),
    Case::new("reads-its-own-memory", "contract: open_shared", &[], reads_its_own),
    Case::new("to-each-other", "IBA 17.2.2", &[], to_each_other),
    Case::new("datagrams-by-number", "contract: open_shared", UD, datagrams_by_number),
    Case::new("groups-come-to-both", "IBA 10.5.2.1", GROUPS, groups_come_to_both),
    Case::new("groups-of-one", "IBA 10.5.2.1", GROUPS, groups_of_one),
    Case::new("what-one-destroys", "contract: open_shared", &[], what_one_destroys),
    Case::new("one-ends", "contract: open_shared", &[], one_ends),
    Case::new("opened-again", "contract: open_shared", &[], opened_again),
];

const UD: &[Need] = &[Need::Lossless];
const GROUPS: &[Need] = &[Need::Multicast, Need::Lossless];

const BOTH: [Side; 2] = [Side::A, Side::SecondContext];

fn same_port(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_second_context()?;
    let port = cx.port(Side::A);
    let seen = |cx: &mut Context<'_>, side| -> Result<_, Stop> {
        let device = cx.device(side);
        Ok((device.attributes(), device.port(port)?, device.gid(port, 0)?, device.pkey(port, 0)?))
    };
    let first = seen(cx, Side::A)?;
    equal("what it is", seen(cx, Side::SecondContext)?, first)
}

fn numbers_differ(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_second_context()?;
    let mut numbers = BTreeSet::new();
    for side in BOTH {
        let place = cx.place(side)?;
        for _ in 0..3 {
            numbers.insert(cx.create(&place, &PairSetup::RC)?.qpn);
        }
    }
    equal("numbers of six queue pairs", numbers.len(), 6)
}

/// One connection from each context to B.
fn connections(cx: &mut Context<'_>) -> Result<[(PairEnd, PairEnd); 2], Stop> {
    let peer = cx.place(Side::B)?;
    let mut connection = |side| -> Result<_, Stop> {
        let place = cx.place(side)?;
        cx.pair_at(&place, &peer, &PairSetup::RC)
    };
    Ok([connection(Side::A)?, connection(Side::SecondContext)?])
}

fn connection_each(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_second_context()?;
    let all = connections(cx)?;
    for bytes in [1, 64, 1000, 1] {
        for (own, peer) in &all {
            cx.exchange(own, peer, bytes)?;
            cx.exchange(peer, own, bytes)?;
        }
    }
    Ok(())
}

fn long_messages(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_second_context()?;
    for (own, peer) in connections(cx)? {
        cx.exchange(&own, &peer, 65_520)?;
        cx.exchange(&peer, &own, 65_520)?;
    }
    Ok(())
}

fn reads_its_own(cx: &mut Context<'_>) -> Result<(), Stop> {
    // Each context has memory with its own keys; the peer must read from the addressed context.
    cx.open_second_context()?;
    for (seed, (own, peer)) in (1..).zip(connections(cx)?) {
        let (theirs, sink) = (cx.shared(&own, 256)?, cx.sink(&peer, 256)?);
        theirs.put(0, &pattern(seed, 256));
        let read = SendOp::Read(theirs.remote(0));
        cx.carry_out(&peer, request(1, read, &[sink.sge(0, 256)]))?;
        sink.holds(0, &pattern(seed, 256))?;
    }
    Ok(())
}

fn to_each_other(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_second_context()?;
    let (a, second) = (cx.place(Side::A)?, cx.place(Side::SecondContext)?);
    let (a, second) = cx.pair_at(&a, &second, &PairSetup::RC)?;
    for bytes in [8, 1000, 65_520] {
        cx.exchange(&a, &second, bytes)?;
        cx.exchange(&second, &a, bytes)?;
    }
    Ok(())
}

/// One UD queue pair in RTS for each side.
fn datagram_ends<const N: usize>(
    cx: &mut Context<'_>,
    sides: [Side; N],
) -> Result<[PairEnd; N], Stop> {
    let mut ends = Vec::new();
    for side in sides {
        let place = cx.place(side)?;
        let end = cx.create(&place, &PairSetup::UD)?;
        cx.advance(&end, QpState::Rts, &end, &PairSetup::UD)?;
        ends.push(end);
    }
    Ok(ends.try_into().expect("an end a side"))
}

fn datagrams_by_number(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_second_context()?;
    let [a, second, b] = datagram_ends(cx, [Side::A, Side::SecondContext, Side::B])?;
    for (id, (from, to)) in (1..).zip([(b, a), (b, second), (a, b), (second, b), (second, a)]) {
        let (source, sink) = (cx.source(&from, 8, id as u8)?, cx.sink(&to, 48)?);
        cx.recv(&to, id, &[sink.sge(0, 48)])?;
        let destination = cx.destination(&from, &to)?;
        let datagram = SendOp::Datagram(destination);
        cx.carry_out(&from, request(100, datagram, &[source.sge(0, 8)]))?;
        let found = cx.received(&to, id, 48)?;
        equal("its sender", found.from.map(|from| from.src_qp), Some(from.qpn))?;
        sink.holds(Grh::LEN, &pattern(id as u8, 8))?;
    }
    Ok(())
}

fn groups_come_to_both(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_second_context()?;
    let group = cx.group(0)?;
    let [a, second, b] = datagram_ends(cx, [Side::A, Side::SecondContext, Side::B])?;
    for end in [&a, &second] {
        attach(cx, end, group)?;
    }
    // The sender is another port, or one of the two contexts.
    for (from, seed) in [(&b, 1), (&a, 2), (&second, 3)] {
        let sinks = [room(cx, &a, 1)?, room(cx, &second, 2)?];
        let to = to_group(cx, from, group)?;
        send(cx, from, to, seed)?;
        has(cx, &a, 1, &sinks[0], seed)?;
        has(cx, &second, 2, &sinks[1], seed)?;
    }
    Ok(())
}

fn groups_of_one(cx: &mut Context<'_>) -> Result<(), Stop> {
    // A context that is not attached receives nothing, even if the other context is attached.
    cx.open_second_context()?;
    let group = cx.group(0)?;
    let [a, second] = datagram_ends(cx, BOTH)?;
    attach(cx, &a, group)?;
    let (sink, none) = (room(cx, &a, 1)?, room(cx, &second, 2)?);
    let to = to_group(cx, &second, group)?;
    send(cx, &second, to, 1)?;
    has(cx, &a, 1, &sink, 1)?;
    cx.nothing_more(&second)?;
    none.is_untouched(0, 48)?;
    cx.go(&second, QpState::Err)?;
    cx.flushed(&second, Queue::Recv, [2])
}

fn what_one_destroys(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_second_context()?;
    let [(a, _), (second, peer)] = connections(cx)?;
    let device = cx.device(Side::A);
    device.destroy_qp(a.qp)?;
    device.destroy_pd(a.place.pd)?;
    cx.exchange(&second, &peer, 1000)?;
    cx.exchange(&peer, &second, 1000)?;
    cx.still_in(&second, QpState::Rts)
}

fn one_ends(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_second_context()?;
    let [(a, its_peer), (second, peer)] = connections(cx)?;
    cx.exchange(&second, &peer, 1000)?;
    cx.close_second_context();
    cx.exchange(&a, &its_peer, 1000)?;
    cx.exchange(&its_peer, &a, 1000)
}

fn opened_again(cx: &mut Context<'_>) -> Result<(), Stop> {
    for _ in 0..3 {
        cx.open_second_context()?;
        for (own, peer) in connections(cx)? {
            cx.exchange(&own, &peer, 64)?;
            cx.exchange(&peer, &own, 64)?;
        }
        cx.close_second_context();
    }
    Ok(())
}
