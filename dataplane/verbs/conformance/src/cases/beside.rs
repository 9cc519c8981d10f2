//! Two contexts of one adapter ([`open_shared`](pollux_verbs::Device::open_shared)). Each has
//! resources of its own, and the network sees one port.

use super::multicast::{attach, has, room, send, to_group};
use super::prelude::*;
use std::collections::BTreeSet;

/// The cases.
pub const CASES: &[Case] = &[
    Case::new("same-port", "contract: beside", &[], same_port),
    Case::new("numbers-differ", "contract: beside", &[], numbers_differ),
    Case::new("a-connection-each", "contract: beside", &[], connection_each),
    Case::new("long-messages", "contract: beside", &[], long_messages),
    Case::new("reads-its-own-memory", "contract: beside", &[], reads_its_own),
    Case::new("to-each-other", "IBA 17.2.2", &[], to_each_other),
    Case::new("datagrams-by-number", "contract: beside", UD, datagrams_by_number),
    Case::new("groups-come-to-both", "IBA 10.5.2.1", GROUPS, groups_come_to_both),
    Case::new("groups-of-one", "IBA 10.5.2.1", GROUPS, groups_of_one),
    Case::new("what-one-destroys", "contract: beside", &[], what_one_destroys),
    Case::new("one-ends", "contract: beside", &[], one_ends),
    Case::new("opened-again", "contract: beside", &[], opened_again),
];

const UD: &[Need] = &[Need::Lossless];
const GROUPS: &[Need] = &[Need::Multicast, Need::Lossless];

const BOTH: [Side; 2] = [Side::A, Side::Beside];

fn same_port(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_beside()?;
    let port = cx.port(Side::A);
    let seen = |cx: &mut Context<'_>, side| -> Result<_, Stop> {
        let device = cx.device(side);
        Ok((device.attributes(), device.port(port)?, device.gid(port, 0)?, device.pkey(port, 0)?))
    };
    let first = seen(cx, Side::A)?;
    equal("what it is", seen(cx, Side::Beside)?, first)
}

fn numbers_differ(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_beside()?;
    let mut numbers = BTreeSet::new();
    for side in BOTH {
        let place = cx.place(side)?;
        for _ in 0..3 {
            numbers.insert(cx.create(&place, &Setup::RC)?.qpn);
        }
    }
    equal("numbers of six queue pairs", numbers.len(), 6)
}

/// A connection of each to B.
fn connections(cx: &mut Context<'_>) -> Result<[(End, End); 2], Stop> {
    let peer = cx.place(Side::B)?;
    let mut connection = |side| -> Result<_, Stop> {
        let place = cx.place(side)?;
        cx.pair_at(&place, &peer, &Setup::RC)
    };
    Ok([connection(Side::A)?, connection(Side::Beside)?])
}

fn connection_each(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_beside()?;
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
    cx.open_beside()?;
    for (own, peer) in connections(cx)? {
        cx.exchange(&own, &peer, 65_520)?;
        cx.exchange(&peer, &own, 65_520)?;
    }
    Ok(())
}

fn reads_its_own(cx: &mut Context<'_>) -> Result<(), Stop> {
    // Both have memory under a key of their own, and the peer gets that of whom it asks.
    cx.open_beside()?;
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
    cx.open_beside()?;
    let (a, beside) = (cx.place(Side::A)?, cx.place(Side::Beside)?);
    let (a, beside) = cx.pair_at(&a, &beside, &Setup::RC)?;
    for bytes in [8, 1000, 65_520] {
        cx.exchange(&a, &beside, bytes)?;
        cx.exchange(&beside, &a, bytes)?;
    }
    Ok(())
}

/// A queue pair for datagrams at each side, in RTS.
fn datagram_ends<const N: usize>(cx: &mut Context<'_>, sides: [Side; N]) -> Result<[End; N], Stop> {
    let mut ends = Vec::new();
    for side in sides {
        let place = cx.place(side)?;
        let end = cx.create(&place, &Setup::UD)?;
        cx.advance(&end, QpState::Rts, &end, &Setup::UD)?;
        ends.push(end);
    }
    Ok(ends.try_into().expect("an end a side"))
}

fn datagrams_by_number(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_beside()?;
    let [a, beside, b] = datagram_ends(cx, [Side::A, Side::Beside, Side::B])?;
    for (id, (from, to)) in (1..).zip([(b, a), (b, beside), (a, b), (beside, b), (beside, a)]) {
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
    cx.open_beside()?;
    let group = cx.group(0)?;
    let [a, beside, b] = datagram_ends(cx, [Side::A, Side::Beside, Side::B])?;
    for end in [&a, &beside] {
        attach(cx, end, group)?;
    }
    // From elsewhere, and from one of the two.
    for (from, seed) in [(&b, 1), (&a, 2), (&beside, 3)] {
        let sinks = [room(cx, &a, 1)?, room(cx, &beside, 2)?];
        let to = to_group(cx, from, group)?;
        send(cx, from, to, seed)?;
        has(cx, &a, 1, &sinks[0], seed)?;
        has(cx, &beside, 2, &sinks[1], seed)?;
    }
    Ok(())
}

fn groups_of_one(cx: &mut Context<'_>) -> Result<(), Stop> {
    // A worker that only sends hears nothing, whoever of the adapter listens.
    cx.open_beside()?;
    let group = cx.group(0)?;
    let [a, beside] = datagram_ends(cx, BOTH)?;
    attach(cx, &a, group)?;
    let (sink, none) = (room(cx, &a, 1)?, room(cx, &beside, 2)?);
    let to = to_group(cx, &beside, group)?;
    send(cx, &beside, to, 1)?;
    has(cx, &a, 1, &sink, 1)?;
    cx.nothing_more(&beside)?;
    none.is_untouched(0, 48)?;
    cx.go(&beside, QpState::Err)?;
    cx.flushed(&beside, Queue::Recv, [2])
}

fn what_one_destroys(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_beside()?;
    let [(a, _), (beside, peer)] = connections(cx)?;
    let device = cx.device(Side::A);
    device.destroy_qp(a.qp)?;
    device.destroy_pd(a.place.pd)?;
    cx.exchange(&beside, &peer, 1000)?;
    cx.exchange(&peer, &beside, 1000)?;
    cx.still_in(&beside, QpState::Rts)
}

fn one_ends(cx: &mut Context<'_>) -> Result<(), Stop> {
    cx.open_beside()?;
    let [(a, its_peer), (beside, peer)] = connections(cx)?;
    cx.exchange(&beside, &peer, 1000)?;
    cx.close_beside();
    cx.exchange(&a, &its_peer, 1000)?;
    cx.exchange(&its_peer, &a, 1000)
}

fn opened_again(cx: &mut Context<'_>) -> Result<(), Stop> {
    for _ in 0..3 {
        cx.open_beside()?;
        for (own, peer) in connections(cx)? {
            cx.exchange(&own, &peer, 64)?;
            cx.exchange(&peer, &own, 64)?;
        }
        cx.close_beside();
    }
    Ok(())
}
