//! Forbidden local accesses (IBA 10.6.3.1, 10.7.2.2, 9.9.2.3): keys, bounds, rights and domains of
//! scatter/gather entries.

use super::prelude::*;

/// The fault of a scatter/gather entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// A key that no region has.
    Key,
    /// One byte beyond the region.
    Over,
    /// One byte before the region.
    Before,
    Domain,
    /// The region is deregistered.
    Gone,
    /// The region does not permit writes of the adapter.
    ReadOnly,
}

pub const CASES: &[Case] = &[
    Case::new("send-unknown-key", "IBA 10.6.3", &[], |cx| send(cx, Wrong::Key)),
    Case::new("send-over-by-one", "IBA 10.6.3", &[], |cx| send(cx, Wrong::Over)),
    Case::new("send-before", "IBA 10.6.3", &[], |cx| send(cx, Wrong::Before)),
    Case::new("send-other-domain", "IBA 10.6.3", &[], |cx| send(cx, Wrong::Domain)),
    Case::new("send-region-gone", "IBA 10.6.3", &[], |cx| send(cx, Wrong::Gone)),
    Case::new("send-second-entry-wrong", "IBA 10.6.3", &[], second_entry_wrong),
    Case::new("recv-unknown-key", "IBA 10.6.3", &[], |cx| recv(cx, Wrong::Key)),
    Case::new("recv-over-by-one", "IBA 10.6.3", &[], |cx| recv(cx, Wrong::Over)),
    Case::new("recv-before", "IBA 10.6.3", &[], |cx| recv(cx, Wrong::Before)),
    Case::new("recv-other-domain", "IBA 10.6.3", &[], |cx| recv(cx, Wrong::Domain)),
    Case::new("recv-region-gone", "IBA 10.6.3", &[], |cx| recv(cx, Wrong::Gone)),
    Case::new("recv-read-only", "IBA 10.6.3.1", &[], |cx| recv(cx, Wrong::ReadOnly)),
    Case::new("read-unknown-key", "IBA 10.6.3", &[], |cx| read(cx, Wrong::Key)),
    Case::new("read-over-by-one", "IBA 10.6.3", &[], |cx| read(cx, Wrong::Over)),
    Case::new("read-other-domain", "IBA 10.6.3", &[], |cx| read(cx, Wrong::Domain)),
    Case::new("read-read-only", "IBA 10.6.3.1", &[], |cx| read(cx, Wrong::ReadOnly)),
    Case::new("atomic-read-only", "IBA 10.6.3.1", &[Need::Atomics], atomic_read_only),
    Case::new("write-unknown-key", "IBA 10.6.3", &[], write_unknown_key),
    Case::new("uc-send-unknown-key", "IBA 10.3.1", &[Need::Uc], |cx| error_state(cx, QpType::Uc)),
    Case::new("ud-send-unknown-key", "IBA 10.3.1", &[], |cx| error_state(cx, QpType::Ud)),
    Case::new("uc-recv-unknown-key", "IBA 10.10.3.2", UC, |cx| recv_unreliable(cx, QpType::Uc)),
    Case::new("ud-recv-unknown-key", "IBA 10.10.3.2", &[Need::Lossless], |cx| {
        recv_unreliable(cx, QpType::Ud)
    }),
    Case::new("rights-that-go-not-together", "IBA 10.6.3.1", &[], inconsistent_rights),
    Case::new("send-needs-no-rights", "IBA 10.6.3.1", &[], send_needs_no_rights),
    Case::new("two-regions-of-one-memory", "IBA 10.6.3", &[], two_regions_of_one_memory),
];

const UC: &[Need] = &[Need::Uc, Need::Lossless];

impl Wrong {
    /// An entry of eight bytes with this fault.
    fn entry(self, cx: &mut Context<'_>, end: &PairEnd) -> Result<Sge, Stop> {
        let side = end.side();
        let elsewhere = cx.device(side).create_pd()?;
        let pd = if self == Self::Domain { elsewhere } else { end.place.pd };
        let access = if self == Self::ReadOnly { Access::NONE } else { Access::LOCAL_WRITE };
        let buffer = cx.buffer(&Place { pd, ..end.place }, 64, access)?;
        if self == Self::Gone {
            cx.device(side).deregister(buffer.region.lkey)?;
        }
        let right = buffer.sge(0, 8);
        Ok(match self {
            Self::Key => Sge { lkey: LKey(!right.lkey.0), ..right },
            Self::Over => buffer.sge(buffer.bytes() - 7, 8),
            Self::Before => Sge { address: right.address - 1, ..right },
            Self::Domain | Self::Gone | Self::ReadOnly => right,
        })
    }
}

fn send(cx: &mut Context<'_>, wrong: Wrong) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let sink = cx.sink(&b, 8)?;
    cx.recv(&b, 1, &[sink.sge(0, 8)])?;
    let entry = wrong.entry(cx, &a)?;
    cx.post(&a, request(2, SendOp::Send, &[entry]))?;
    cx.breaks(&a, Queue::Send, 2, &[LocalProtection])?;
    // The peer received nothing.
    cx.still_in(&b, QpState::Rts)?;
    sink.is_untouched(0, 8)
}

fn second_entry_wrong(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 8, 81)?;
    let sink = cx.sink(&b, 16)?;
    cx.recv(&b, 1, &[sink.sge(0, 16)])?;
    let entry = Wrong::Key.entry(cx, &a)?;
    cx.post(&a, request(2, SendOp::Send, &[source.sge(0, 8), entry]))?;
    cx.breaks(&a, Queue::Send, 2, &[LocalProtection])
}

fn recv(cx: &mut Context<'_>, wrong: Wrong) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 8, 82)?;
    let entry = wrong.entry(cx, &b)?;
    cx.recv(&b, 1, &[entry])?;
    cx.post(&a, request(2, SendOp::Send, &[source.sge(0, 8)]))?;
    // The responder reports its own fault with a NAK, remote operational error (IBA 9.9.3.1).
    cx.breaks(&a, Queue::Send, 2, &[RemoteOperation])?;
    cx.breaks(&b, Queue::Recv, 1, &[LocalProtection])
}

fn read(cx: &mut Context<'_>, wrong: Wrong) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 8)?;
    let entry = wrong.entry(cx, &a)?;
    cx.post(&a, request(1, SendOp::Read(target.remote(0)), &[entry]))?;
    cx.breaks(&a, Queue::Send, 1, &[LocalProtection])?;
    cx.still_in(&b, QpState::Rts)
}

fn atomic_read_only(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 8)?;
    let entry = Wrong::ReadOnly.entry(cx, &a)?;
    let add = SendOp::FetchAdd { remote: target.remote(0), add: 1 };
    cx.post(&a, request(1, add, &[entry]))?;
    // The peer may have executed the operation: only the response could not be written.
    cx.breaks(&a, Queue::Send, 1, &[LocalProtection])
}

fn write_unknown_key(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let target = cx.shared(&b, 8)?;
    let entry = Wrong::Key.entry(cx, &a)?;
    cx.post(&a, request(1, SendOp::Write(target.remote(0)), &[entry]))?;
    cx.breaks(&a, Queue::Send, 1, &[LocalProtection])?;
    cx.still_in(&b, QpState::Rts)?;
    target.is_untouched(0, 8)
}

/// In an unreliable queue pair only the send queue fails: the state is SQE, from which the queue
/// pair can return to RTS (IBA 10.3.1.7).
fn error_state(cx: &mut Context<'_>, qp_type: QpType) -> Result<(), Stop> {
    let (a, b) = cx.connected(qp_type)?;
    let op = match qp_type {
        QpType::Ud => SendOp::Datagram(cx.destination(&a, &b)?),
        _ => SendOp::Send,
    };
    let entry = Wrong::Key.entry(cx, &a)?;
    cx.post(&a, request(1, op, &[entry]))?;
    cx.ended(&a, Queue::Send, 1, &[LocalProtection])?;
    cx.in_state(&a, QpState::Sqe)?;
    // Requests posted in SQE are flushed.
    cx.post(&a, request(2, op, &[]))?;
    cx.flushed(&a, Queue::Send, [2])?;
    cx.go(&a, QpState::Rts)?;
    let source = cx.source(&a, 8, 83)?;
    cx.carry_out(&a, request(3, op, &[source.sge(0, 8)])).map(drop)
}

/// On UC and UD too, a receive into invalid memory fails its queue pair; the sender gets no error.
fn recv_unreliable(cx: &mut Context<'_>, qp_type: QpType) -> Result<(), Stop> {
    let (a, b) = cx.connected(qp_type)?;
    // In both cases the first entry is filled, and the wrong entry gets eight bytes.
    let (op, bytes) = match qp_type {
        QpType::Ud => (SendOp::Datagram(cx.destination(&a, &b)?), 8),
        _ => (SendOp::Send, Grh::LEN + 8),
    };
    let (wrong, right) = (Wrong::Key.entry(cx, &b)?, cx.sink(&b, 64)?);
    cx.recv(&b, 1, &[right.sge(0, Grh::LEN), wrong])?;
    cx.recv(&b, 2, &[right.sge(0, 64)])?;
    let source = cx.source(&a, bytes, 86)?;
    cx.carry_out(&a, request(3, op, &[source.sge(0, bytes)]))?;
    cx.breaks(&b, Queue::Recv, 1, &[LocalProtection])?;
    cx.flushed(&b, Queue::Recv, [2])?;
    cx.still_in(&a, QpState::Rts)
}

fn inconsistent_rights(cx: &mut Context<'_>) -> Result<(), Stop> {
    let place = cx.place(Side::A)?;
    let memory = cx.buffer(&place, 64, Access::NONE)?.memory;
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, REMOTE] {
        let answer = cx.device(Side::A).register(place.pd, &memory, access);
        invalid(&format!("a region with {access:?}"), answer)?;
    }
    Ok(())
}

fn send_needs_no_rights(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.buffer(&a.place, 64, Access::NONE)?;
    let sink = cx.buffer(&b.place, 64, Access::LOCAL_WRITE)?;
    source.put(0, &pattern(84, 64));
    cx.recv(&b, 1, &[sink.sge(0, 64)])?;
    cx.carry_out(&a, request(2, SendOp::Send, &[source.sge(0, 64)]))?;
    cx.received(&b, 1, 64)?;
    same(&source, 0, &sink, 0, 64)
}

fn two_regions_of_one_memory(cx: &mut Context<'_>) -> Result<(), Stop> {
    let (a, b) = cx.connected(QpType::Rc)?;
    let source = cx.source(&a, 16, 85)?;
    let sink = cx.sink(&b, 16)?;
    let again = cx.device(Side::B).register(b.place.pd, &sink.memory, Access::LOCAL_WRITE)?;
    let again = Buffer { memory: sink.memory.clone(), region: again };
    cx.device(Side::B).deregister(sink.region.lkey)?;
    // One region is deregistered, the other is not.
    cx.recv(&b, 1, &[again.sge(0, 16)])?;
    cx.carry_out(&a, request(2, SendOp::Send, &[source.sge(0, 16)]))?;
    cx.received(&b, 1, 16)?;
    same(&source, 0, &again, 0, 16)
}
