//! Automatic path migration (IBA 17.2.8): traffic arms a connection with an alternate path, and
//! both ends migrate to that path.
//!
//! To simulate a failed path, a case changes the path of one idle end to an unused LID.

use super::prelude::*;
use pollux_verbs::qp::Migration;
use pollux_wire::address::Lid;

pub const CASES: &[Case] = &[
    Case::new("traffic-arms-both-rc", "IBA 17.2.8.1", RC, |cx| traffic_arms(cx, &PairSetup::RC)),
    Case::new("traffic-arms-both-uc", "IBA 17.2.8.1", UC, |cx| traffic_arms(cx, &PairSetup::UC)),
    Case::new("one-end-waits-for-the-other", "IBA 17.2.8.1", RC, waits_for_the_other),
    Case::new("the-owner-moves-both-rc", "IBA 17.2.8.1", RC, |cx| owner_moves(cx, &PairSetup::RC)),
    Case::new("the-owner-moves-both-uc", "IBA 17.2.8.1", UC, |cx| owner_moves(cx, &PairSetup::UC)),
    Case::new("the-owner-moves-both-at-rest", "IBA 17.2.8.1", RC_DRAIN, owner_moves_at_rest),
    Case::new("a-dead-path-is-left", "IBA 17.2.8.1", RC_DRAIN, dead_path_is_left),
    Case::new("a-peer-that-leaves-is-followed", "IBA 17.2.8.1", RC_DRAIN, peer_is_followed),
    Case::new("there-and-back", "IBA 17.2.8.1", RC, there_and_back),
    Case::new("unarmed-retries-end", "IBA 9.9.2.1.1", RC_DRAIN, unarmed_retries_end),
    Case::new("no-other-path-is-followed", "IBA 17.2.8.1, 11.6.3.2", RC, other_is_not_followed),
    Case::new("what-owners-cannot-ask-for", "IBA 11.2.4.2", RC, refusals),
];

const RC: &[Need] = &[Need::Migration, Need::Subnet];
const RC_DRAIN: &[Need] = &[Need::Migration, Need::Subnet, Need::Drain];
const UC: &[Need] = &[Need::Migration, Need::Subnet, Need::Uc, Need::Lossless];

/// A LID that no port has in the subnet of a backend.
const NOWHERE: Lid = Lid(0xbffe);
/// The length of a message of several packets.
const BYTES: usize = 9000;

fn with_path(path: AddressVector) -> QpAttributes {
    QpAttributes {
        alternate_path: Some(path),
        migration: Some(Migration::Rearm),
        ..QpAttributes::default()
    }
}

fn modify(cx: &mut Context<'_>, end: &PairEnd, change: &QpAttributes) -> Result<(), Stop> {
    Ok(cx.device(end.side()).modify_qp(end.qp, change)?)
}

fn migrate(cx: &mut Context<'_>, end: &PairEnd) -> Result<(), Stop> {
    let migration = Some(Migration::Migrated);
    modify(cx, end, &QpAttributes { migration, ..QpAttributes::default() })?;
    // Some adapters report a migration that the program has requested; others do not.
    cx.tolerate(end.side(), &[AsyncEvent::PathMigrated(end.qp)])
}

fn is_in(cx: &mut Context<'_>, end: &PairEnd, migration: Migration) -> Result<(), Stop> {
    let (_, found) = cx.device(end.side()).query_qp(end.qp)?;
    equal("the state of migration", found.migration.unwrap_or_default(), migration)
}

/// Exchanges long and short messages in both directions. On a wire that reorders packets, an armed
/// end may receive late packets that its peer sent before it was armed.
fn talk(cx: &mut Context<'_>, a: &PairEnd, b: &PairEnd) -> Result<(), Stop> {
    for bytes in [BYTES, 8] {
        cx.exchange(a, b, bytes)?;
        cx.exchange(b, a, bytes)?;
    }
    if cx.is_lossy() {
        for end in [a, b] {
            cx.tolerate(end.side(), &[AsyncEvent::PathMigrationError(end.qp)])?;
        }
    }
    Ok(())
}

/// Expects that both ends are armed after they have exchanged messages.
fn are_armed(cx: &mut Context<'_>, a: &PairEnd, b: &PairEnd) -> Result<(), Stop> {
    talk(cx, a, b)?;
    is_in(cx, a, Migration::Armed)?;
    is_in(cx, b, Migration::Armed)
}

fn armed(cx: &mut Context<'_>, setup: &PairSetup) -> Result<(PairEnd, PairEnd), Stop> {
    let (a, b) = cx.pair(setup)?;
    for (end, peer) in [(&a, &b), (&b, &a)] {
        let path = cx.alternate_path(end.side(), peer.side())?;
        modify(cx, end, &with_path(path))?;
        is_in(cx, end, Migration::Rearm)?;
    }
    are_armed(cx, &a, &b)?;
    Ok((a, b))
}

/// Expects that both ends use their former alternate paths, and exchanges messages.
fn have_migrated(cx: &mut Context<'_>, a: &PairEnd, b: &PairEnd) -> Result<(), Stop> {
    for (end, peer) in [(a, b), (b, a)] {
        is_in(cx, end, Migration::Migrated)?;
        let path = cx.alternate_path(end.side(), peer.side())?;
        let (_, found) = cx.device(end.side()).query_qp(end.qp)?;
        equal("the path", found.path, Some(path))?;
    }
    talk(cx, a, b)
}

/// Drains the send queue, changes the queue pair, and returns to RTS.
fn at_rest(cx: &mut Context<'_>, end: &PairEnd, change: QpAttributes) -> Result<(), Stop> {
    let (state, drain_event) = (Some(QpState::Sqd), Some(true));
    modify(cx, end, &QpAttributes { state, drain_event, ..QpAttributes::default() })?;
    cx.event(end.side(), AsyncEvent::SendQueueDrained(end.qp))?;
    modify(cx, end, &QpAttributes { state, ..change })?;
    cx.go(end, QpState::Rts)
}

/// Makes the current path of an end unusable in both directions.
fn cut(cx: &mut Context<'_>, end: &PairEnd) -> Result<(), Stop> {
    let (_, found) = cx.device(end.side()).query_qp(end.qp)?;
    let path = found.path.map(|path| AddressVector { dlid: NOWHERE, ..path });
    at_rest(cx, end, QpAttributes { path, ..QpAttributes::default() })
}

fn traffic_arms(cx: &mut Context<'_>, setup: &PairSetup) -> Result<(), Stop> {
    let (place_a, place_b) = (cx.place(Side::A)?, cx.place(Side::B)?);
    let (a, b) = (cx.create(&place_a, setup)?, cx.create(&place_b, setup)?);
    for (end, peer) in [(&a, &b), (&b, &a)] {
        cx.advance(end, QpState::Rtr, peer, setup)?;
    }
    // The alternate path can be loaded with the change to RTS.
    for (end, peer) in [(&a, &b), (&b, &a)] {
        let mut change = cx.change(end, QpState::Rts, peer, setup)?;
        change.take(&with_path(cx.alternate_path(end.side(), peer.side())?));
        modify(cx, end, &change)?;
        is_in(cx, end, Migration::Rearm)?;
    }
    are_armed(cx, &a, &b)?;
    talk(cx, &a, &b)
}

fn waits_for_the_other(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    for (end, peer, state) in [(&a, &b, Migration::Rearm), (&b, &a, Migration::Armed)] {
        let path = cx.alternate_path(end.side(), peer.side())?;
        modify(cx, end, &with_path(path))?;
        // Packets of a peer without an alternate path do not arm the other end.
        talk(cx, &a, &b)?;
        is_in(cx, &a, state)?;
    }
    is_in(cx, &b, Migration::Armed)
}

fn owner_moves(cx: &mut Context<'_>, setup: &PairSetup) -> Result<(), Stop> {
    let (a, b) = armed(cx, setup)?;
    migrate(cx, &a)?;
    is_in(cx, &b, Migration::Armed)?;
    // The first packet makes the peer migrate.
    cx.exchange(&a, &b, BYTES)?;
    cx.event(Side::B, AsyncEvent::PathMigrated(b.qp))?;
    have_migrated(cx, &a, &b)
}

fn owner_moves_at_rest(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = armed(cx, &PairSetup::RC)?;
    let migration = Some(Migration::Migrated);
    at_rest(cx, &a, QpAttributes { migration, ..QpAttributes::default() })?;
    cx.tolerate(Side::A, &[AsyncEvent::PathMigrated(a.qp)])?;
    cx.exchange(&a, &b, BYTES)?;
    cx.event(Side::B, AsyncEvent::PathMigrated(b.qp))?;
    have_migrated(cx, &a, &b)
}

fn dead_path_is_left(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = armed(cx, &PairSetup::RC)?;
    cut(cx, &a)?;
    let source = cx.source(&a, 4 * BYTES, 211)?;
    let sink = cx.sink(&b, 4 * BYTES)?;
    let answer = cx.sink(&a, BYTES)?;
    let target = cx.shared(&b, BYTES)?;
    target.put(0, &pattern(212, BYTES));
    for nth in 0..4 {
        let (id, at) = (nth as u64, nth * BYTES);
        cx.recv(&b, id, &[sink.sge(at, BYTES)])?;
        cx.post(&a, request(id, SendOp::Send, &[source.sge(at, BYTES)]))?;
    }
    cx.post(&a, request(4, SendOp::Read(target.remote(0)), &[answer.sge(0, BYTES)]))?;
    cx.event(Side::A, AsyncEvent::PathMigrated(a.qp))?;
    cx.event(Side::B, AsyncEvent::PathMigrated(b.qp))?;
    for id in 0..4 {
        cx.done(&a, CompletionKind::Send, id)?;
        cx.received(&b, id, BYTES)?;
    }
    cx.done(&a, CompletionKind::Read, 4)?;
    same(&source, 0, &sink, 0, 4 * BYTES)?;
    same(&target, 0, &answer, 0, BYTES)?;
    have_migrated(cx, &a, &b)
}

/// Both ends send on a failed path. One end migrates first, and the other end follows.
fn peer_is_followed(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = armed(cx, &PairSetup::RC)?;
    cut(cx, &b)?;
    let ends = [(&a, &b), (&b, &a)];
    let mut buffers = Vec::new();
    for (end, peer) in ends {
        let (source, sink) = (cx.source(end, BYTES, 213)?, cx.sink(peer, BYTES)?);
        cx.recv(peer, 1, &[sink.sge(0, BYTES)])?;
        cx.post(end, request(2, SendOp::Send, &[source.sge(0, BYTES)]))?;
        buffers.push((source, sink));
    }
    for ((end, peer), (source, sink)) in ends.into_iter().zip(buffers) {
        cx.event(end.side(), AsyncEvent::PathMigrated(end.qp))?;
        cx.done(end, CompletionKind::Send, 2)?;
        cx.received(peer, 1, BYTES)?;
        same(&source, 0, &sink, 0, BYTES)?;
    }
    have_migrated(cx, &a, &b)
}

fn there_and_back(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = armed(cx, &PairSetup::RC)?;
    migrate(cx, &a)?;
    cx.exchange(&a, &b, BYTES)?;
    cx.event(Side::B, AsyncEvent::PathMigrated(b.qp))?;
    have_migrated(cx, &a, &b)?;
    cx.settle()?;
    // The first path is the alternate one now.
    for (end, peer) in [(&a, &b), (&b, &a)] {
        let path = cx.path(end.side(), peer.side())?;
        modify(cx, end, &with_path(path))?;
    }
    are_armed(cx, &a, &b)?;
    migrate(cx, &b)?;
    cx.exchange(&b, &a, BYTES)?;
    cx.event(Side::A, AsyncEvent::PathMigrated(a.qp))?;
    for (end, peer) in [(&a, &b), (&b, &a)] {
        let path = cx.path(end.side(), peer.side())?;
        let (_, found) = cx.device(end.side()).query_qp(end.qp)?;
        equal("the path", found.path, Some(path))?;
    }
    talk(cx, &a, &b)
}

fn unarmed_retries_end(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let path = cx.alternate_path(Side::A, Side::B)?;
    modify(cx, &a, &with_path(path))?;
    cut(cx, &a)?;
    let source = cx.source(&a, 8, 214)?;
    cx.post(&a, request(1, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.breaks(&a, Queue::Send, 1, &[RetryExceeded])?;
    cx.still_in(&b, QpState::Rts)
}

fn other_is_not_followed(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let path = cx.alternate_path(Side::A, Side::B)?;
    modify(cx, &a, &with_path(path))?;
    // The ends have different alternate paths.
    let (first, path) = (cx.path(Side::B, Side::A)?, cx.alternate_path(Side::B, Side::A)?);
    modify(cx, &b, &with_path(AddressVector { dlid: NOWHERE, ..path }))?;
    are_armed(cx, &a, &b)?;
    migrate(cx, &a)?;
    let (source, sink) = (cx.source(&a, 8, 215)?, cx.sink(&b, 8)?);
    cx.recv(&b, 1, &[sink.sge(0, 8)])?;
    cx.post(&a, request(2, SendOp::Send, &[source.sge(0, 8)]))?;
    cx.breaks(&a, Queue::Send, 2, &[RetryExceeded])?;
    // The event is raised once, however often the request was sent.
    cx.event(Side::B, AsyncEvent::PathMigrationError(b.qp))?;
    cx.nothing_more(&b)?;
    sink.is_untouched(0, 8)?;
    is_in(cx, &b, Migration::Armed)?;
    let (state, found) = cx.device(Side::B).query_qp(b.qp)?;
    equal("the state", state, QpState::Rts)?;
    equal("the path", found.path, Some(first))
}

fn refusals(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let path = cx.alternate_path(Side::A, Side::B)?;
    let rearm = QpAttributes { migration: Some(Migration::Rearm), ..QpAttributes::default() };
    let arm = QpAttributes { migration: Some(Migration::Armed), ..with_path(path) };
    let ask = |cx: &mut Context<'_>, what, change| {
        invalid(what, cx.device(Side::A).modify_qp(a.qp, change))?;
        is_in(cx, &a, Migration::Migrated)
    };
    ask(cx, "to rearm without a second path", &rearm)?;
    ask(cx, "to be armed", &arm)?;
    talk(cx, &a, &b)
}
