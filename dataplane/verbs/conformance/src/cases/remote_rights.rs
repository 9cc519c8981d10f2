//! Forbidden remote accesses (IBA 9.7.4.1.5, 10.6.3, 9.9.3): every fault, with every operation that
//! accesses remote memory.
//!
//! In each case the requester's completion reports the error, both queue pairs enter the error
//! state, the responder raises an event, and the memory is unchanged.

use super::prelude::*;

/// The fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// A key that no region has.
    Key,
    /// One byte beyond the region.
    Over,
    /// One byte before the region.
    Before,
    /// The end of the range wraps around to zero.
    Wraps,
    RegionRight,
    QpRight,
    /// The region and the queue pair are in different protection domains.
    Domain,
    /// The region is deregistered.
    Gone,
}

/// The operation with the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
}

macro_rules! wrongs {
    ($($op_name:literal $op:ident $needs:expr;)*) => {
        &[$(
            case(concat!($op_name, "-unknown-key"), $needs, |cx| refusal(cx, Op::$op, Wrong::Key)),
            case(concat!($op_name, "-over-by-one"), $needs, |cx| refusal(cx, Op::$op, Wrong::Over)),
            case(concat!($op_name, "-before"), $needs, |cx| refusal(cx, Op::$op, Wrong::Before)),
            case(concat!($op_name, "-wraps"), $needs, |cx| refusal(cx, Op::$op, Wrong::Wraps)),
            case(concat!($op_name, "-not-in-region"), $needs, |cx| {
                refusal(cx, Op::$op, Wrong::RegionRight)
            }),
            case(concat!($op_name, "-not-in-qp"), $needs, |cx| {
                refusal(cx, Op::$op, Wrong::QpRight)
            }),
            case(concat!($op_name, "-other-domain"), $needs, |cx| {
                refusal(cx, Op::$op, Wrong::Domain)
            }),
            case(concat!($op_name, "-region-gone"), $needs, |cx| refusal(cx, Op::$op, Wrong::Gone)),
        )*]
    };
}

const ATOMICS: &[Need] = &[Need::Atomics];

const fn case(
    name: &'static str,
    needs: &'static [Need],
    run: fn(&mut Context<'_>) -> Result<(), Stop>,
) -> Case {
    Case::new(name, "IBA 9.7.4.1.5", needs, run)
}

/// Every operation with every fault.
pub const WRONGS: &[Case] = wrongs![
    "write" Write &[];
    "write-imm" WriteImm &[];
    "read" Read &[];
    "fetch-add" FetchAdd ATOMICS;
    "compare-swap" CompareSwap ATOMICS;
];

/// Accesses at the limit of a region, and the effects of a failure on other requests.
pub const CASES: &[Case] = &[
    Case::new("write-to-the-last-byte", "IBA 10.6.3", &[], write_to_the_last_byte),
    Case::new("read-to-the-last-byte", "IBA 10.6.3", &[], read_to_the_last_byte),
    Case::new("empty-write-needs-no-key", "IBA C9-88", &[], empty_write_needs_no_key),
    Case::new("empty-read-needs-no-key", "IBA C9-88", &[], empty_read_needs_no_key),
    Case::new("what-came-before-is-done", "IBA 9.9.2.2", &[], what_came_before_is_done),
    Case::new("long-write-stops-at-the-end", "IBA 9.7.4.1.5", &[], long_write),
    Case::new("uc-write-unknown-key", "IBA 9.9.3.2", UC, uc_write_unknown_key),
    Case::new("other-queue-pairs-go-on", "IBA 9.9", &[], other_queue_pairs_go_on),
];

const UC: &[Need] = &[Need::Uc, Need::Lossless];

impl Op {
    /// The access right that the operation needs.
    fn right(self) -> Access {
        match self {
            Self::Write | Self::WriteImm => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::FetchAdd | Self::CompareSwap => Access::REMOTE_ATOMIC,
        }
    }

    fn on(self, remote: Remote) -> SendOp {
        match self {
            Self::Write => SendOp::Write(remote),
            Self::WriteImm => SendOp::WriteImm(remote, 1),
            Self::Read => SendOp::Read(remote),
            Self::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
            Self::CompareSwap => {
                SendOp::CompareSwap { remote, compare: u64::from_ne_bytes([0xee; 8]), swap: 0 }
            }
        }
    }
}

/// All remote rights except this one, and the local right that writes and atomics require.
fn all_but(right: Access) -> Access {
    let rest = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    let rest = rest.into_iter().filter(|&one| one != right);
    rest.fold(Access::LOCAL_WRITE, |all, one| all | one)
}

fn refusal(cx: &mut Context<'_>, op: Op, wrong: Wrong) -> Result<(), Stop> {
    let lacking = if wrong == Wrong::QpRight { all_but(op.right()).remote() } else { REMOTE };
    let (a, b) = cx.pair(&PairSetup { access: lacking, ..PairSetup::RC })?;
    let local = cx.shared(&a, 8)?;
    let elsewhere = cx.device(Side::B).create_pd()?;
    let place = if wrong == Wrong::Domain { Place { pd: elsewhere, ..b.place } } else { b.place };
    let allowed = if wrong == Wrong::RegionRight { all_but(op.right()) } else { Access::ALL };
    let target = cx.buffer(&place, 64, allowed)?;
    let sink = cx.sink(&b, 8)?;
    cx.recv(&b, 1, &[sink.sge(0, 8)])?;
    if wrong == Wrong::Gone {
        cx.device(Side::B).deregister(target.region.lkey)?;
    }
    cx.post(&a, request(2, op.on(wrong.place(op, &target)), &[local.sge(0, 8)]))?;
    cx.breaks(&a, Queue::Send, 2, wrong.statuses())?;
    cx.in_state(&b, QpState::Err)?;
    target.is_untouched(0, target.bytes())?;
    local.is_untouched(0, 8)?;
    receive_is_returned(cx, &b, op)?;
    event_came(cx, &b, op, wrong)
}

impl Wrong {
    /// The target of the request.
    fn place(self, op: Op, target: &Buffer) -> Remote {
        let aligned = if op.right() == Access::REMOTE_ATOMIC { 8 } else { 1 };
        let right = target.remote(0);
        match self {
            Self::Key => Remote { rkey: RKey(!right.rkey.0), ..right },
            // The address of an atomic stays a multiple of eight, so that only the range is wrong.
            Self::Over => target.remote(target.bytes() - 8 + aligned),
            Self::Before => Remote { address: right.address - aligned as u64, ..right },
            Self::Wraps => Remote { address: u64::MAX - 7 + (8 - aligned as u64), ..right },
            Self::RegionRight | Self::QpRight | Self::Domain | Self::Gone => right,
        }
    }

    fn statuses(self) -> &'static [CompletionStatus] {
        match self {
            // Some responders check the rights of the queue pair before the key, and report an
            // invalid request.
            Self::QpRight => REMOTE_REFUSALS,
            _ => &[RemoteAccess],
        }
    }
}

/// Expects the completion of the receive. A write with immediate data may have used the receive
/// before it failed; with other operations the receive is flushed.
fn receive_is_returned(cx: &mut Context<'_>, b: &PairEnd, op: Op) -> Result<(), Stop> {
    let taken = [Flushed, LocalAccess, LocalQpOperation, LocalProtection];
    let statuses = if op == Op::WriteImm { &taken[..] } else { &taken[..1] };
    cx.ended(b, Queue::Recv, 1, statuses).map(drop)
}

/// Expects an event at the responder. After a write with immediate data, or a violation of the
/// queue pair's rights, the event is optional.
fn event_came(cx: &mut Context<'_>, b: &PairEnd, op: Op, wrong: Wrong) -> Result<(), Stop> {
    let access = AsyncEvent::QpAccessError(b.qp);
    if wrong == Wrong::QpRight || op == Op::WriteImm {
        return cx.tolerate(b.side(), &[access, AsyncEvent::QpRequestError(b.qp)]);
    }
    cx.event(b.side(), access)
}

fn write_to_the_last_byte(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 9, 71)?;
    let target = cx.shared(&b, 64)?;
    let write = SendOp::Write(target.remote(target.bytes() - 9));
    cx.carry_out(&a, request(1, write, &[source.sge(0, 9)]))?;
    same(&source, 0, &target, target.bytes() - 9, 9)
}

fn read_to_the_last_byte(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let sink = cx.sink(&a, 9)?;
    let target = cx.shared(&b, 64)?;
    let last = target.bytes() - 9;
    target.put(last, &pattern(72, 9));
    cx.carry_out(&a, request(1, SendOp::Read(target.remote(last)), &[sink.sge(0, 9)]))?;
    same(&target, last, &sink, 0, 9)
}

fn empty_write_needs_no_key(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let nowhere = Remote { address: 0, rkey: RKey(0xdead_beef) };
    cx.carry_out(&a, request(1, SendOp::Write(nowhere), &[]))?;
    cx.exchange(&a, &b, 8)
}

fn empty_read_needs_no_key(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let nowhere = Remote { address: 0, rkey: RKey(0xdead_beef) };
    cx.carry_out(&a, request(1, SendOp::Read(nowhere), &[]))?;
    cx.exchange(&a, &b, 8)
}

fn what_came_before_is_done(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 64, 73)?;
    let target = cx.shared(&b, 64)?;
    let wrong = Remote { rkey: RKey(!target.region.rkey.0), ..target.remote(0) };
    cx.post(&a, request(1, SendOp::Write(target.remote(0)), &[source.sge(0, 8)]))?;
    // One packet may acknowledge the first write and refuse the second. If the wire loses packets,
    // the case waits for the first completion, because the peer in the error state does not repeat
    // the acknowledgment.
    let lossy = cx.is_lossy();
    if lossy {
        cx.done(&a, CompletionKind::Write, 1)?;
    }
    cx.post(&a, request(2, SendOp::Write(wrong), &[source.sge(8, 8)]))?;
    cx.post(&a, request(3, SendOp::Write(target.remote(16)), &[source.sge(16, 8)]))?;
    if !lossy {
        cx.done(&a, CompletionKind::Write, 1)?;
    }
    cx.breaks(&a, Queue::Send, 2, &[RemoteAccess])?;
    cx.flushed(&a, Queue::Send, [3])?;
    cx.event(b.side(), AsyncEvent::QpAccessError(b.qp))?;
    same(&source, 0, &target, 0, 8)?;
    target.is_untouched(8, 56)
}

fn long_write(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 8192)?;
    let source = cx.source(&a, target.bytes() + 1, 74)?;
    // The first packet has the length, so even its payload must not be written (IBA 9.7.4.1.5).
    let sges = [source.sge(0, target.bytes() + 1)];
    cx.post(&a, request(1, SendOp::Write(target.remote(0)), &sges))?;
    cx.breaks(&a, Queue::Send, 1, &[RemoteAccess])?;
    cx.in_state(&b, QpState::Err)?;
    cx.event(b.side(), AsyncEvent::QpAccessError(b.qp))?;
    target.is_untouched(0, target.bytes())
}

fn uc_write_unknown_key(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Uc)?;
    let source = cx.source(&a, 8, 75)?;
    let target = cx.shared(&b, 8)?;
    let wrong = Remote { rkey: RKey(!target.region.rkey.0), ..target.remote(0) };
    // The sender gets no error. The responder drops the message; whether it enters the error state
    // is open in IBA.
    cx.carry_out(&a, request(1, SendOp::Write(wrong), &[source.sge(0, 8)]))?;
    cx.tolerate(b.side(), &[AsyncEvent::QpAccessError(b.qp)])?;
    cx.still_in(&a, QpState::Rts)?;
    target.is_untouched(0, 8)
}

fn other_queue_pairs_go_on(cx: &mut Context<'_>) -> Result<(), Stop> {
    let places = (cx.place(Side::A)?, cx.place(Side::B)?);
    let (a, b) = cx.pair_at(&places.0, &places.1, &PairSetup::RC)?;
    let (other_a, other_b) = cx.pair_at(&places.0, &places.1, &PairSetup::RC)?;
    let source = cx.source(&a, 8, 76)?;
    let nowhere = Remote { address: 64, rkey: RKey(0xdead_beef) };
    cx.post(&a, request(1, SendOp::Write(nowhere), &[source.sge(0, 8)]))?;
    cx.breaks(&a, Queue::Send, 1, &[RemoteAccess])?;
    cx.event(b.side(), AsyncEvent::QpAccessError(b.qp))?;
    cx.exchange(&other_a, &other_b, 100)
}
