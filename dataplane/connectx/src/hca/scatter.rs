//! Scatter to CQE: the completion queue entry of a short received message contains the message, and
//! libmlx5 copies it from there to the program's buffers.
//!
//! A card then does not write the buffers itself. This adapter has already written them, so the
//! message is in both places.

use crate::cqe::WorkId;
use crate::objects::{NEXT, QpObject, RegionObject, SrqObject};
use crate::wqe::recv_segments;
use pollux_verbs::table::Table;
use pollux_verbs::{Completion, CompletionKind, CompletionStatus, Sge};
use std::collections::BTreeMap;

/// The space for a message in an entry of 64 bytes.
pub(super) const IN_ENTRY_MAX: usize = 32;
/// The space for a message in an entry of 128 bytes, which is its first half.
pub(super) const BEFORE_ENTRY_MAX: usize = 64;

/// Copies the message of a completion to the start of `out` and returns it. `None` if the queue
/// pair does not scatter it, or if it does not fit.
pub(super) fn message<'a>(
    completion: &Completion,
    qp: &QpObject,
    srqs: &Table<SrqObject>,
    regions: &BTreeMap<u32, RegionObject>,
    slot: &mut Vec<u8>,
    out: &'a mut [u8],
) -> Option<&'a [u8]> {
    let bytes = completion.bytes as usize;
    let is_scattered = qp.scatters_receives
        && (1..=out.len()).contains(&bytes)
        && completion.status == CompletionStatus::Success
        && completion.kind == CompletionKind::Recv;
    let WorkId::Recv { index } = WorkId::from_u64(completion.id) else { return None };
    if !is_scattered {
        return None;
    }
    // The receive WQE is still in its ring, because its completion was not polled yet.
    let (slots, before) = match qp.srq {
        Some(srq) => (&srqs.get(srq)?.slots, NEXT),
        None => (qp.recv_slots.as_ref()?, 0),
    };
    if !slots.read(index, slot) {
        return None;
    }
    let out = &mut out[..bytes];
    let mut rest = &mut *out;
    for sge in recv_segments(&slot[before..]) {
        let (part, after) = rest.split_at_mut(rest.len().min(sge.bytes as usize));
        read(regions, &sge, part)?;
        rest = after;
    }
    rest.is_empty().then_some(&*out)
}

/// Reads the first bytes of a segment. The adapter has checked the L_Key, but the region may have
/// been deregistered since; then the result is `None`.
fn read(regions: &BTreeMap<u32, RegionObject>, sge: &Sge, out: &mut [u8]) -> Option<()> {
    let region = regions.get(&sge.lkey.0)?;
    let at = sge.address.checked_sub(region.address)?;
    region.memory.read(at as usize, out).then_some(())
}
