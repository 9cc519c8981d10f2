//! Memory that an adapter lends to its peers, so that a long message is copied once.
//!
//! A long message that takes the shortcut carries no octets but where they are: the receiver takes
//! them from the sender's own memory. That may not outlive the sender's leave. It ends when the
//! region is deregistered, when the queue pair fails or goes, for then the request is its owner's
//! again and so is the memory, and when its peers' rights change. So a receiver looks before the
//! copy and again after it; if the leave has ended meanwhile, the message is lost, as on a wire,
//! and the rules for that apply. Windows come and go too often for that: what is read through one
//! is never lent.
//!
//! Peers in the same process see the [`Lender`] itself. Peers in other processes see what it tells
//! its [`Loans`], and only regions that they can map count as lent then.

use crate::hca::memory::{Pieces, region_of};
use crate::process::loans::Loans;
use arc_swap::ArcSwapOption;
use pollux_mem::Memory;
use pollux_verbs::{LKey, Sge};
use pollux_wire::address::Qpn;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// Regions to a chunk, and chunks: enough for all that an adapter registers.
const CHUNK: usize = 256;
const CHUNKS: usize = 256;
/// Queue pairs share epochs: more than one flush too many does no harm but a retry.
pub(crate) const EPOCHS: usize = 1024;

/// What has been lent, as a borrower sees it.
pub(crate) trait Lends {
    /// The region of this key, if it is lent now, and the address where its owner has it. A look
    /// after a copy tells what was so during it.
    fn region(&self, key: LKey) -> Option<(Memory, u64)>;

    /// A queue pair's leave of now.
    fn leave(&self, qpn: Qpn) -> Leave;

    /// Copies what `sges` name to `targets`, from their `skip`-th octet on; says whether the leave
    /// held all the while.
    fn copy(
        &self,
        leave: Leave,
        sges: &mut dyn Iterator<Item = Sge>,
        targets: &Pieces<'_>,
        mut skip: usize,
    ) -> bool {
        if self.leave(leave.qpn) != leave {
            return false;
        }
        for sge in sges {
            let Some((memory, base)) = self.region(sge.lkey) else { return false };
            let Some(at) = sge.address.checked_sub(base) else { return false };
            let octets = sge.octets as usize;
            if !targets.copy_from(skip, &memory, at as usize, octets) {
                return false;
            }
            // What was read comes before the looks that follow.
            fence(Ordering::Acquire);
            if self.region(sge.lkey).is_none() {
                return false;
            }
            skip += octets;
        }
        self.leave(leave.qpn) == leave
    }
}

/// What one adapter lends.
#[derive(Debug)]
pub struct Lender {
    chunks: Box<[OnceLock<Chunk>]>,
    /// How often queue pairs have taken back what they lent.
    epochs: Box<[AtomicU32]>,
    /// What peers in other processes see, if that is where they are.
    loans: OnceLock<Arc<Loans>>,
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
            loans: OnceLock::new(),
        }
    }
}

impl Lender {
    /// Peers are in other processes, and see this. For a lender that has lent nothing yet.
    pub(crate) fn set_loans(&self, loans: &Arc<Loans>) {
        // A lender has one kind of peers for life.
        let _ = self.loans.set(loans.clone());
    }

    /// Lends a region, under its key.
    pub(crate) fn lend(&self, key: LKey, memory: &Memory) {
        if let Some(loans) = self.loans.get() {
            loans.lend(key, memory);
        }
        // Whatever its peers do, an adapter also borrows from itself.
        let empty = || (0..CHUNK).map(|_| ArcSwapOption::empty()).collect();
        if let Some((chunk, place)) = self.place(key) {
            let lent = Lent { key, memory: memory.clone() };
            chunk.get_or_init(empty)[place].store(Some(Arc::new(lent)));
        }
    }

    /// Takes a region back.
    pub(crate) fn end(&self, key: LKey) {
        if let Some(loans) = self.loans.get() {
            loans.end(key);
        }
        let place = self.place(key);
        if let Some((chunk, place)) = place.and_then(|(chunk, at)| Some((chunk.get()?, at))) {
            chunk[place].store(None);
        }
    }

    /// Whether peers can take a message from where its pieces are; else it goes by copy.
    pub(crate) fn lends(&self, pieces: &Pieces<'_>) -> bool {
        let loans = self.loans.get();
        loans.is_none_or(|loans| pieces.sges().all(|sge| loans.lends(sge.lkey)))
    }

    /// Takes back all that a queue pair lent for messages.
    pub(crate) fn revoke(&self, qpn: Qpn) {
        let epoch = self.epoch(qpn).fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        // With the fence in `copy`: who reads what the owner writes from now on sees the new epoch.
        fence(Ordering::Release);
        if let Some(loans) = self.loans.get() {
            loans.set_epoch(qpn, epoch);
        }
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

impl Lends for Lender {
    fn region(&self, key: LKey) -> Option<(Memory, u64)> {
        let lent = self.lent(key)?;
        Some((lent.memory.clone(), lent.memory.address()))
    }

    fn leave(&self, qpn: Qpn) -> Leave {
        Leave { qpn, epoch: self.epoch(qpn).load(Ordering::Acquire) }
    }
}
