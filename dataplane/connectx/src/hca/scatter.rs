//! Scatter to CQE: a short message that was received is also in its completion queue entry, from
//! which libmlx5 copies it to the program's buffers.
//!
//! A card does not write the buffers then. Here the adapter has, so both have the message.

use crate::cqe::WorkId;
use crate::objects::{NEXT, QpObject, RegionObject, SrqObject};
use crate::wqe::recv_segments;
use pollux_verbs::table::Table;
use pollux_verbs::{Completion, CompletionKind, CompletionStatus, Sge};
use std::collections::BTreeMap;

/// Bytes that an entry of 64 has space for.
pub(super) const IN_ENTRY_MAX: usize = 32;
/// Bytes of the first half of an entry of 128.
pub(super) const BEFORE_ENTRY_MAX: usize = 64;

/// The message of a completion, in the first bytes of `out`, if its queue pair scatters it and it
/// fits.
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
    // A receive stays in its ring until its completion was polled.
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

/// Reads the first bytes of a segment. The adapter has checked its key, which may have changed.
fn read(regions: &BTreeMap<u32, RegionObject>, sge: &Sge, out: &mut [u8]) -> Option<()> {
    let region = regions.get(&sge.lkey.0)?;
    let at = sge.address.checked_sub(region.address)?;
    region.memory.read(at as usize, out).then_some(())
}
