//! Memory that an adapter lends to its peers, so that a long message is copied once.
//!
//! A long message that takes the shortcut carries no octets but where they are: the receiver takes
//! them from the sender's own memory. That may not outlive the sender's leave. It ends when the
//! region is deregistered, and when the queue pair is flushed, for then the request is its owner's
//! again and so is the memory. So a receiver looks before the copy and again after it; if the leave
//! has ended meanwhile, the message is lost, as on a wire, and the rules for that apply.

use crate::hca::memory::{Pieces, region_of};
use arc_swap::ArcSwapOption;
use pollux_mem::Memory;
use pollux_verbs::{LKey, Sge};
use pollux_wire::address::Qpn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Regions to a chunk, and chunks: enough for all that an adapter registers.
const CHUNK: usize = 256;
const CHUNKS: usize = 256;
/// Queue pairs share epochs: more than one flush too many does no harm but a retry.
const EPOCHS: usize = 1024;

/// What one adapter lends.
#[derive(Debug)]
pub struct Lender {
    chunks: Box<[OnceLock<Chunk>]>,
    /// How often queue pairs have taken back what they lent.
    epochs: Box<[AtomicU32]>,
}

type Chunk = Box<[ArcSwapOption<Lent>]>;

#[derive(Debug)]
struct Lent {
    key: LKey,
    memory: Memory,
}

/// A queue pair's leave, as it was when the message was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leave {
    pub(crate) qpn: Qpn,
    pub(crate) epoch: u32,
}

impl Default for Lender {
    fn default() -> Self {
        Self {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            epochs: (0..EPOCHS).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl Lender {
    /// Lends a region, under its key.
    pub(crate) fn lend(&self, key: LKey, memory: &Memory) {
        let empty = || (0..CHUNK).map(|_| ArcSwapOption::empty()).collect();
        if let Some((chunk, place)) = self.place(key) {
            let lent = Lent { key, memory: memory.clone() };
            chunk.get_or_init(empty)[place].store(Some(Arc::new(lent)));
        }
    }

    /// Takes a region back.
    pub(crate) fn end(&self, key: LKey) {
        let place = self.place(key);
        if let Some((chunk, place)) = place.and_then(|(chunk, at)| Some((chunk.get()?, at))) {
            chunk[place].store(None);
        }
    }

    /// Takes back all that a queue pair lent for messages.
    pub(crate) fn revoke(&self, qpn: Qpn) {
        self.epoch(qpn).fetch_add(1, Ordering::AcqRel);
    }

    /// A queue pair's leave of now.
    pub(crate) fn leave(&self, qpn: Qpn) -> Leave {
        Leave { qpn, epoch: self.epoch(qpn).load(Ordering::Acquire) }
    }

    /// Copies what `sges` name to `targets`, from their `skip`-th octet on; says whether the leave
    /// held all the while.
    pub(crate) fn copy(
        &self,
        leave: Leave,
        sges: impl Iterator<Item = Sge>,
        targets: &Pieces<'_>,
        mut skip: usize,
    ) -> bool {
        for sge in sges {
            let lent = self.lent(sge.lkey);
            let Some(lent) = lent.as_deref() else { return false };
            let Some(at) = sge.address.checked_sub(lent.memory.address()) else { return false };
            let octets = sge.octets as usize;
            if !targets.copy_from(skip, &lent.memory, at as usize, octets) {
                return false;
            }
            if self.lent(sge.lkey).is_none() {
                return false;
            }
            skip += octets;
        }
        self.leave(leave.qpn) == leave
    }

    /// The region of this key, if it is lent now.
    fn lent(&self, key: LKey) -> Option<Arc<Lent>> {
        let (chunk, place) = self.place(key)?;
        chunk.get()?[place].load_full().filter(|lent| lent.key == key)
    }

    fn place(&self, key: LKey) -> Option<(&OnceLock<Chunk>, usize)> {
        let region = region_of(key);
        Some((self.chunks.get(region / CHUNK)?, region % CHUNK))
    }

    fn epoch(&self, qpn: Qpn) -> &AtomicU32 {
        &self.epochs[qpn.0 as usize % EPOCHS]
    }
}
