//! Multicast (IBA 10.5, 11.3): every attached queue pair gets exactly one copy, with a GRH. That
//! includes queue pairs of the sender's adapter.

use super::prelude::*;
use pollux_wire::address::{Gid, Lid, Qpn};

pub const CASES: &[Case] = &[
    Case::new("reaches-who-is-attached", "IBA 10.5.2", NEEDS, reaches),
    Case::new("reaches-nobody-else", "IBA 10.5.2", NEEDS, reaches_nobody_else),
    Case::new("comes-back-to-the-sender", "IBA 10.5.2.1", NEEDS, comes_back),
    Case::new("sender-need-not-be-attached", "IBA 10.5.2", NEEDS, sender_need_not_be_attached),
    Case::new("two-of-one-adapter", "IBA 10.5.2.1", NEEDS, two_of_one_adapter),
    Case::new("two-groups", "IBA 10.5.2", NEEDS, two_groups),
    Case::new("detached-gets-nothing", "IBA 11.3.2", NEEDS, detached),
    Case::new("qkey-counts", "IBA 9.6.1.4.2", NEEDS, qkey_counts),
    Case::new("destroyed-while-attached", "IBA 11.2.4.4", NEEDS, destroyed_while_attached),
    Case::new("detach-without-attach", "IBA 11.3.2", NEEDS, detach_without_attach),
    Case::new("only-ud-attaches", "IBA 11.3.1", NEEDS, only_ud_attaches),
    Case::new("only-groups-are-attached-to", "IBA 11.3.1", NEEDS, only_groups),
];

const NEEDS: &[Need] = &[Need::Multicast, Need::Lossless];

pub(super) fn attach(cx: &mut Context<'_>, end: &PairEnd, group: Group) -> Result<(), Stop> {
    Ok(cx.device(end.side()).attach_multicast(end.qp, group.mgid, group.mlid)?)
}

/// The destination of datagrams to the group.
pub(super) fn to_group(
    cx: &mut Context<'_>,
    from: &PairEnd,
    group: Group,
) -> Result<Destination, Stop> {
    let route = GlobalRoute::to(group.mgid, 64);
    let port = cx.port(from.side());
    let path = AddressVector { dlid: group.mlid, port, grh: Some(route), ..Default::default() };
    let ah = cx.device(from.side()).create_ah(from.place.pd, &path)?;
    Ok(Destination { ah, qpn: Qpn::MULTICAST, qkey: PairSetup::UD.qkey })
}

pub(super) fn room(cx: &mut Context<'_>, end: &PairEnd, id: u64) -> Result<Buffer, Stop> {
    let sink = cx.sink(end, 48)?;
    cx.recv(end, id, &[sink.sge(0, 48)])?;
    Ok(sink)
}

pub(super) fn send(
    cx: &mut Context<'_>,
    a: &PairEnd,
    to: Destination,
    seed: u8,
) -> Result<(), Stop> {
    let source = cx.source(a, 8, seed)?;
    cx.carry_out(a, request(100, SendOp::Datagram(to), &[source.sge(0, 8)])).map(drop)
}

pub(super) fn has(
    cx: &mut Context<'_>,
    end: &PairEnd,
    id: u64,
    sink: &Buffer,
    seed: u8,
) -> Result<(), Stop> {
    let found = cx.received(end, id, 48)?;
    equal("a GRH", found.from.map(|from| from.has_grh), Some(true))?;
    sink.holds(Grh::LEN, &pattern(seed, 8))
}

/// Expects that receive `id` is still posted.
fn has_not(cx: &mut Context<'_>, end: &PairEnd, id: u64, sink: &Buffer) -> Result<(), Stop> {
    cx.nothing_more(end)?;
    sink.is_untouched(0, 48)?;
    cx.go(end, QpState::Err)?;
    cx.flushed(end, Queue::Recv, [id])
}

fn reaches(cx: &mut Context<'_>) -> Result<(), Stop> {
    let group = cx.group(0)?;
    let (a, b) = cx.connected(QpType::Ud)?;
    attach(cx, &b, group)?;
    let sink = room(cx, &b, 1)?;
    let to = to_group(cx, &a, group)?;
    send(cx, &a, to, 1)?;
    has(cx, &b, 1, &sink, 1)?;
    equal("the DGID of the GRH", sink.bytes_at(24, 16), group.mgid.0.to_vec())
}

fn reaches_nobody_else(cx: &mut Context<'_>) -> Result<(), Stop> {
    let group = cx.group(0)?;
    let (a, b) = cx.connected(QpType::Ud)?;
    let other = cx.create(&b.place, &PairSetup::UD)?;
    cx.advance(&other, QpState::Rts, &a, &PairSetup::UD)?;
    attach(cx, &b, group)?;
    let (sink, none) = (room(cx, &b, 1)?, room(cx, &other, 2)?);
    let to = to_group(cx, &a, group)?;
    send(cx, &a, to, 2)?;
    has(cx, &b, 1, &sink, 2)?;
    has_not(cx, &other, 2, &none)
}

fn comes_back(cx: &mut Context<'_>) -> Result<(), Stop> {
    let group = cx.group(0)?;
    let (a, b) = cx.connected(QpType::Ud)?;
    attach(cx, &a, group)?;
    attach(cx, &b, group)?;
    let (own, other) = (room(cx, &a, 1)?, room(cx, &b, 1)?);
    let to = to_group(cx, &a, group)?;
    send(cx, &a, to, 3)?;
    // An attached sender gets a copy too, which IP over InfiniBand has to drop.
    has(cx, &a, 1, &own, 3)?;
    has(cx, &b, 1, &other, 3)
}

fn sender_need_not_be_attached(cx: &mut Context<'_>) -> Result<(), Stop> {
    let group = cx.group(0)?;
    let (a, b) = cx.connected(QpType::Ud)?;
    attach(cx, &b, group)?;
    let (own, other) = (room(cx, &a, 1)?, room(cx, &b, 1)?);
    let to = to_group(cx, &a, group)?;
    send(cx, &a, to, 4)?;
    has(cx, &b, 1, &other, 4)?;
    has_not(cx, &a, 1, &own)
}

fn two_of_one_adapter(cx: &mut Context<'_>) -> Result<(), Stop> {
    let group = cx.group(0)?;
    let (a, b) = cx.connected(QpType::Ud)?;
    let place = cx.place(Side::B)?;
    let other = cx.create(&place, &PairSetup::UD)?;
    cx.advance(&other, QpState::Rts, &a, &PairSetup::UD)?;
    attach(cx, &b, group)?;
    attach(cx, &other, group)?;
    let sinks = (room(cx, &b, 1)?, room(cx, &other, 2)?);
    let to = to_group(cx, &a, group)?;
    send(cx, &a, to, 5)?;
    has(cx, &b, 1, &sinks.0, 5)?;
    has(cx, &other, 2, &sinks.1, 5)
}

fn two_groups(cx: &mut Context<'_>) -> Result<(), Stop> {
    let groups = [cx.group(0)?, cx.group(1)?];
    let (a, b) = cx.connected(QpType::Ud)?;
    for group in groups {
        attach(cx, &b, group)?;
    }
    for (seed, group) in [6, 7].into_iter().zip(groups) {
        let sink = room(cx, &b, 1)?;
        let to = to_group(cx, &a, group)?;
        send(cx, &a, to, seed)?;
        has(cx, &b, 1, &sink, seed)?;
    }
    // After the detach from one group, the queue pair is still attached to the other.
    cx.device(Side::B).detach_multicast(b.qp, groups[0].mgid, groups[0].mlid)?;
    let sink = room(cx, &b, 1)?;
    let to = to_group(cx, &a, groups[0])?;
    send(cx, &a, to, 8)?;
    let to = to_group(cx, &a, groups[1])?;
    send(cx, &a, to, 9)?;
    has(cx, &b, 1, &sink, 9)
}

fn detached(cx: &mut Context<'_>) -> Result<(), Stop> {
    let group = cx.group(0)?;
    let (a, b) = cx.connected(QpType::Ud)?;
    attach(cx, &b, group)?;
    cx.device(Side::B).detach_multicast(b.qp, group.mgid, group.mlid)?;
    let sink = room(cx, &b, 1)?;
    let to = to_group(cx, &a, group)?;
    send(cx, &a, to, 10)?;
    has_not(cx, &b, 1, &sink)
}

fn qkey_counts(cx: &mut Context<'_>) -> Result<(), Stop> {
    let group = cx.group(0)?;
    let (a, b) = cx.connected(QpType::Ud)?;
    attach(cx, &b, group)?;
    let sink = room(cx, &b, 1)?;
    let to = to_group(cx, &a, group)?;
    send(cx, &a, Destination { qkey: pollux_wire::keys::QKey(1), ..to }, 11)?;
    cx.nothing_more(&b)?;
    send(cx, &a, to, 12)?;
    has(cx, &b, 1, &sink, 12)
}

fn destroyed_while_attached(cx: &mut Context<'_>) -> Result<(), Stop> {
    let group = cx.group(0)?;
    let (a, b) = cx.connected(QpType::Ud)?;
    attach(cx, &b, group)?;
    // The adapter detaches the queue pair itself, or requires an explicit detach.
    if let Err(error) = cx.device(Side::B).destroy_qp(b.qp) {
        busy("destroying it while attached", Err::<(), _>(error))?;
        cx.device(Side::B).detach_multicast(b.qp, group.mgid, group.mlid)?;
        cx.device(Side::B).destroy_qp(b.qp)?;
    }
    let to = to_group(cx, &a, group)?;
    send(cx, &a, to, 13)
}

fn detach_without_attach(cx: &mut Context<'_>) -> Result<(), Stop> {
    let group = cx.group(0)?;
    let (_, b) = cx.connected(QpType::Ud)?;
    let answer = cx.device(Side::B).detach_multicast(b.qp, group.mgid, group.mlid);
    // The adapter reports that the attachment does not exist, or that an argument is invalid.
    refused("a detach", answer, |error| {
        matches!(error, VerbsError::NoSuch { .. } | VerbsError::Invalid { .. })
    })
}

fn only_ud_attaches(cx: &mut Context<'_>) -> Result<(), Stop> {
    let group = cx.group(0)?;
    let (_, b) = cx.connected(QpType::Rc)?;
    let answer = cx.device(Side::B).attach_multicast(b.qp, group.mgid, group.mlid);
    invalid("an RC queue pair in a group", answer)
}

fn only_groups(cx: &mut Context<'_>) -> Result<(), Stop> {
    let group = cx.group(0)?;
    let (_, b) = cx.connected(QpType::Ud)?;
    let unicast = Gid::new(Gid::DEFAULT_PREFIX, pollux_wire::address::Guid(1));
    let answer = cx.device(Side::B).attach_multicast(b.qp, unicast, group.mlid);
    invalid("a unicast GID", answer)?;
    if cx.device(Side::B).attributes().can.subnet {
        let answer = cx.device(Side::B).attach_multicast(b.qp, group.mgid, Lid(1));
        invalid("a unicast LID", answer)?;
    }
    Ok(())
}
