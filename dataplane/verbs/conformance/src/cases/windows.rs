//! Memory windows (IBA 10.6.7, 9.4.1.1, 10.8.3.3): a request binds a window, the peer uses it, and
//! a request of either side invalidates it. B has the memory; A accesses it.

use super::prelude::*;

pub const CASES: &[Case] = &[
    Case::new("bind-and-write", "IBA 10.6.7.2", WINDOWS, bind_and_write),
    Case::new("bind-and-read", "IBA 10.6.7.2", WINDOWS, bind_and_read),
    Case::new("before-the-first-bind", "IBA 10.6.7.2", WINDOWS, before_the_first_bind),
    Case::new("bounds-below", "IBA 10.6.7.2", WINDOWS, |cx| out_of_bounds(cx, 4095, 1)),
    Case::new("bounds-above", "IBA 10.6.7.2", WINDOWS, |cx| out_of_bounds(cx, 4096 + 1000, 1)),
    Case::new("bounds-across", "IBA 10.6.7.2", WINDOWS, |cx| out_of_bounds(cx, 4096 + 999, 2)),
    Case::new("rights-are-its-own", "IBA 10.6.7.2", WINDOWS, rights_are_its_own),
    Case::new("rebind-ends-the-old-key", "IBA 10.6.7.2", WINDOWS, rebind_ends_the_old_key),
    Case::new("rebind-moves", "IBA 10.6.7.2", WINDOWS, rebind_moves),
    Case::new("local-invalidate", "IBA 10.6.5", WINDOWS, local_invalidate),
    Case::new("send-with-invalidate", "IBA 9.4.1.1", INVALIDATE, send_with_invalidate),
    Case::new("invalidate-then-bind", "IBA 10.6.5", WINDOWS, invalidate_then_bind),
    Case::new("region-without-bind-right", "IBA 10.6.7.2", WINDOWS, region_without_right),
    Case::new("beyond-the-region", "IBA 10.6.7.2", WINDOWS, beyond_the_region),
    Case::new("writes-need-local-write", "IBA 10.6.7.2", WINDOWS, writes_need_local_write),
    Case::new("region-of-another-domain", "IBA 10.6.7.2", WINDOWS, region_of_another_domain),
    Case::new("unknown-window", "IBA 10.6.7.2", WINDOWS, unknown_window),
    Case::new("unknown-key-to-invalidate", "IBA 10.6.5", WINDOWS, unknown_key_to_invalidate),
    Case::new("region-with-a-window", "IBA 10.6.5", WINDOWS, region_with_a_window),
    Case::new("destroyed-while-bound", "IBA 11.2.10", WINDOWS, destroyed_while_bound),
];

const WINDOWS: &[Need] = &[Need::Windows];
const INVALIDATE: &[Need] = &[Need::Windows, Need::SendInvalidate];

/// The offset of a window in its region; `BYTES` is its length.
const AT: usize = 4096;
const BYTES: usize = 1000;

/// Creates a window, and returns the arguments that most cases bind it with.
fn unbound(cx: &mut Context<'_>, b: &PairEnd, target: &Buffer) -> Result<Bind, Stop> {
    let window = cx.device(b.side()).create_window(b.place.pd)?.rkey;
    Ok(Bind {
        window,
        rkey: next_key(window),
        region: target.region.lkey,
        address: target.region.address + AT as u64,
        bytes: BYTES as u64,
        access: REMOTE,
    })
}

/// The key with its low eight bits incremented.
fn next_key(rkey: RKey) -> RKey {
    RKey(rkey.0 & !0xff | rkey.0.wrapping_add(1) & 0xff)
}

/// A pair, memory of B, and a window that is bound to part of it.
fn bound(cx: &mut Context<'_>) -> Result<(PairEnd, PairEnd, Buffer, Bind), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 16_384)?;
    let bind = unbound(cx, &b, &target)?;
    cx.carry_out(&b, request(50, SendOp::Bind(bind), &[]))?;
    Ok((a, b, target, bind))
}

/// The address at offset `at` of the region, with a window's key.
fn place(target: &Buffer, at: usize, rkey: RKey) -> Remote {
    Remote { rkey, ..target.remote(at) }
}

fn write(cx: &mut Context<'_>, a: &PairEnd, remote: Remote, bytes: usize) -> Result<(), Stop> {
    let source = cx.source(a, bytes, 201)?;
    cx.carry_out(a, request(1, SendOp::Write(remote), &[source.sge(0, bytes)])).map(drop)
}

/// Expects that a write of A to `remote` is refused, and that B raises an event.
fn write_is_refused(
    cx: &mut Context<'_>,
    (a, b): (&PairEnd, &PairEnd),
    remote: Remote,
    bytes: usize,
) -> Result<(), Stop> {
    let source = cx.source(a, bytes, 202)?;
    cx.post(a, request(2, SendOp::Write(remote), &[source.sge(0, bytes)]))?;
    cx.breaks(a, Queue::Send, 2, &[RemoteAccess])?;
    cx.in_state(b, QpState::Err)?;
    cx.event(b.side(), AsyncEvent::QpAccessError(b.qp))
}

fn bind_and_write(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _, target, bind) = bound(cx)?;
    write(cx, &a, place(&target, AT, bind.rkey), BYTES)?;
    target.holds(AT, &pattern(201, BYTES))?;
    target.is_untouched(0, AT)?;
    target.is_untouched(AT + BYTES, AT)
}

fn bind_and_read(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, _, target, bind) = bound(cx)?;
    target.put(AT, &pattern(203, BYTES));
    let sink = cx.sink(&a, BYTES)?;
    let read = SendOp::Read(place(&target, AT, bind.rkey));
    cx.carry_out(&a, request(1, read, &[sink.sge(0, BYTES)]))?;
    same(&target, AT, &sink, 0, BYTES)
}

fn before_the_first_bind(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 16_384)?;
    let bind = unbound(cx, &b, &target)?;
    write_is_refused(cx, (&a, &b), place(&target, AT, bind.window), 8)?;
    target.is_untouched(AT, 8)
}

fn out_of_bounds(cx: &mut Context<'_>, at: usize, bytes: usize) -> Result<(), Stop> {
    let (a, b, target, bind) = bound(cx)?;
    // The range is inside the region: the region's own key would permit the write.
    write_is_refused(cx, (&a, &b), place(&target, at, bind.rkey), bytes)?;
    target.is_untouched(0, 16_384)
}

fn rights_are_its_own(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 16_384)?;
    let bind = Bind { access: Access::REMOTE_READ, ..unbound(cx, &b, &target)? };
    cx.carry_out(&b, request(50, SendOp::Bind(bind), &[]))?;
    let remote = place(&target, AT, bind.rkey);
    let sink = cx.sink(&a, 8)?;
    cx.carry_out(&a, request(1, SendOp::Read(remote), &[sink.sge(0, 8)]))?;
    write_is_refused(cx, (&a, &b), remote, 8)?;
    target.is_untouched(AT, 8)
}

/// The arguments to bind the same window again, with its next key.
fn again(bind: &Bind) -> Bind {
    Bind { window: bind.rkey, rkey: next_key(bind.rkey), ..*bind }
}

fn rebind_ends_the_old_key(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, target, bind) = bound(cx)?;
    let next = again(&bind);
    // The bound window is invalidated first, which adapters with type 2 windows require.
    cx.carry_out(&b, request(51, SendOp::LocalInvalidate(bind.rkey), &[]))?;
    cx.carry_out(&b, request(52, SendOp::Bind(next), &[]))?;
    write(cx, &a, place(&target, AT, next.rkey), 8)?;
    write_is_refused(cx, (&a, &b), place(&target, AT, bind.rkey), 8)
}

fn rebind_moves(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, target, bind) = bound(cx)?;
    let next = Bind { address: target.region.address, bytes: 8, ..again(&bind) };
    cx.carry_out(&b, request(51, SendOp::LocalInvalidate(bind.rkey), &[]))?;
    cx.carry_out(&b, request(52, SendOp::Bind(next), &[]))?;
    write(cx, &a, place(&target, 0, next.rkey), 8)?;
    target.holds(0, &pattern(201, 8))?;
    write_is_refused(cx, (&a, &b), place(&target, AT, next.rkey), 8)
}

fn local_invalidate(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, target, bind) = bound(cx)?;
    write(cx, &a, place(&target, AT, bind.rkey), 8)?;
    cx.carry_out(&b, request(51, SendOp::LocalInvalidate(bind.rkey), &[]))?;
    write_is_refused(cx, (&a, &b), place(&target, AT + 8, bind.rkey), 8)?;
    target.is_untouched(AT + 8, 8)
}

fn send_with_invalidate(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, target, bind) = bound(cx)?;
    let source = cx.source(&a, 100, 204)?;
    let sink = cx.sink(&b, 100)?;
    cx.recv(&b, 1, &[sink.sge(0, 100)])?;
    write(cx, &a, place(&target, AT, bind.rkey), 8)?;
    cx.carry_out(&a, request(2, SendOp::SendInvalidate(bind.rkey), &[source.sge(0, 100)]))?;
    let found = cx.received(&b, 1, 100)?;
    equal("what came with it", found.with, With::Invalidated(bind.rkey))?;
    same(&source, 0, &sink, 0, 100)?;
    write_is_refused(cx, (&a, &b), place(&target, AT + 8, bind.rkey), 8)?;
    target.is_untouched(AT + 8, 8)
}

fn invalidate_then_bind(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, target, mut bind) = bound(cx)?;
    for _ in 0..5 {
        cx.carry_out(&b, request(51, SendOp::LocalInvalidate(bind.rkey), &[]))?;
        bind = again(&bind);
        cx.carry_out(&b, request(52, SendOp::Bind(bind), &[]))?;
        write(cx, &a, place(&target, AT, bind.rkey), 8)?;
    }
    Ok(())
}

/// Expects that a bind fails. IBA 11.6.2 has a status for that; adapters that check the range like
/// other local memory report a protection error.
fn bind_fails(cx: &mut Context<'_>, b: &PairEnd, bind: Bind) -> Result<(), Stop> {
    let answer = cx.device(b.side()).post_send(b.qp, &[request(51, SendOp::Bind(bind), &[])]);
    match answer {
        Ok(()) => cx.breaks(b, Queue::Send, 51, &[WindowBind, LocalProtection]),
        // An adapter may refuse the post if it detects the fault there.
        Err(_) => post_refused("a bind", answer, 0, &[PostRefusal::BadOperation]),
    }
}

fn region_without_right(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b) = cx.connected(QpType::Rc)?;
    let target = cx.buffer(&b.place, 16_384, REMOTE | Access::LOCAL_WRITE)?;
    let bind = unbound(cx, &b, &target)?;
    bind_fails(cx, &b, bind)
}

fn beyond_the_region(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 16_384)?;
    let bind = unbound(cx, &b, &target)?;
    let bytes = (target.bytes() - AT + 1) as u64;
    bind_fails(cx, &b, Bind { bytes, ..bind })
}

fn writes_need_local_write(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b) = cx.connected(QpType::Rc)?;
    let target = cx.buffer(&b.place, 16_384, Access::REMOTE_READ | Access::BIND)?;
    let bind = unbound(cx, &b, &target)?;
    bind_fails(cx, &b, bind)
}

fn region_of_another_domain(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b) = cx.connected(QpType::Rc)?;
    let pd = cx.device(Side::B).create_pd()?;
    let target = cx.buffer(&Place { pd, ..b.place }, 16_384, Access::ALL)?;
    let bind = unbound(cx, &b, &target)?;
    bind_fails(cx, &b, bind)
}

fn unknown_window(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 16_384)?;
    let bind = unbound(cx, &b, &target)?;
    let window = RKey(!bind.window.0);
    bind_fails(cx, &b, Bind { window, rkey: next_key(window), ..bind })
}

fn unknown_key_to_invalidate(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (_, b, _, bind) = bound(cx)?;
    let unknown = RKey(!bind.rkey.0);
    cx.post(&b, request(51, SendOp::LocalInvalidate(unknown), &[]))?;
    // By IBA 10.6.5 this is a memory management error; some adapters have no such status.
    cx.breaks(&b, Queue::Send, 51, &[LocalProtection, WindowBind, LocalQpOperation])
}

fn region_with_a_window(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, target, bind) = bound(cx)?;
    // The adapter refuses to deregister a region with a bound window, or the window becomes
    // invalid.
    match cx.device(Side::B).deregister(target.region.lkey) {
        Err(VerbsError::Busy { .. }) => {
            cx.device(Side::B).destroy_window(bind.rkey)?;
            Ok(cx.device(Side::B).deregister(target.region.lkey)?)
        }
        Err(other) => fail(format!("expected Busy or success, found: {other}")),
        Ok(()) => write_is_refused(cx, (&a, &b), place(&target, AT, bind.rkey), 8),
    }
}

fn destroyed_while_bound(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b, target, bind) = bound(cx)?;
    cx.device(Side::B).destroy_window(bind.rkey)?;
    write_is_refused(cx, (&a, &b), place(&target, AT, bind.rkey), 8)?;
    target.is_untouched(AT, 8)
}
