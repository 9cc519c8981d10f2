//! Memory that an adapter lends to its peers, so that a long message is copied once.
//!
//! A long message that takes the shortcut carries no bytes but where they are: the receiver takes
//! them from the sender's own memory. That may not outlive the sender's leave. It ends when the
//! region is deregistered, when the queue pair fails or goes, for then the request is its owner's
//! again and so is the memory, and when its peers' rights change. So a receiver looks before the
//! copy and again after it; if the leave has ended meanwhile, the message is lost, as on a wire,
//! and the rules for that apply. Windows come and go too often for that: what is read through one
//! is never lent.
//!
//! Peers in the same process see the [`Lender`] itself. Peers in other processes see what it tells
//! its [`Loans`]; which of them may take what, their links decide ([`Link::lends`]).
//!
//! [`Link::lends`]: crate::link::Link::lends

use crate::hca::memory::{Pieces, region_of};
use crate::process::loans::Loans;
use arc_swap::ArcSwapOption;
use pollux_mem::{Lease, LeaseReader, Memory};
use pollux_verbs::{LKey, Sge};
use pollux_wire::address::Qpn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Regions to a chunk, and chunks: enough for all that an adapter registers.
const CHUNK: usize = 256;
const CHUNKS: usize = 256;
/// Queue pairs share epochs: more than one flush too many does no harm but a retry.
pub(crate) const EPOCHS: usize = 1024;

/// What has been lent, as a borrower sees it. Whether a copy counts is asked behind it, as
/// [`LeaseReader`] has it.
pub(crate) trait Lends {
    /// The region of this key, if it is lent now.
    fn region(&self, key: LKey) -> Option<LentRegion>;

    /// Whether a region is still lent as it was.
    fn holds(&self, key: LKey, lease: u64) -> bool;

    /// A queue pair's leave of now.
    fn leave(&self, qpn: Qpn) -> Leave;

    /// Whether a queue pair's leave is still this one.
    fn has_leave(&self, leave: Leave) -> bool;

    /// Copies what `sges` name to `targets`, from their `skip`-th byte on; says whether the leave
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
            let Some(LentRegion { memory, base, lease }) = self.region(sge.lkey) else {
                return false;
            };
            let Some(at) = sge.address.checked_sub(base) else { return false };
            let bytes = sge.bytes as usize;
            let copied = targets.copy_from(skip, &memory, at as usize, bytes);
            if !copied || !self.holds(sge.lkey, lease) {
                return false;
            }
            skip += bytes;
        }
        self.has_leave(leave)
    }
}

/// A region that is lent.
pub(crate) struct LentRegion {
    pub(crate) memory: Memory,
    /// The address that its owner has it at.
    pub(crate) base: u64,
    /// What the lease on it says as long as that is so.
    pub(crate) lease: u64,
}

/// What one adapter lends.
#[derive(Debug)]
pub struct Lender {
    chunks: Box<[OnceLock<Chunk>]>,
    /// How often queue pairs have taken back what they lent.
    epochs: Box<[AtomicU64]>,
    /// How often anything was lent: no two leases have the same value.
    grants: AtomicU64,
    /// What peers in other processes see, if that is where they are.
    loans: OnceLock<Arc<Loans>>,
}

type Chunk = Box<[Lent]>;

/// A region that may be lent.
#[derive(Debug, Default)]
struct Lent {
    /// What [`lease_of`] makes of its key; 0: it is not lent.
    lease: AtomicU64,
    memory: ArcSwapOption<Memory>,
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
            epochs: (0..EPOCHS).map(|_| AtomicU64::new(0)).collect(),
            grants: AtomicU64::new(0),
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
        let empty = || (0..CHUNK).map(|_| Lent::default()).collect();
        if let Some((chunk, place)) = self.place(key) {
            let lent = &chunk.get_or_init(empty)[place];
            lent.memory.store(Some(Arc::new(memory.clone())));
            let nth = self.grants.fetch_add(1, Ordering::Relaxed);
            Lease::of(&lent.lease).grant(lease_of(key, nth));
        }
    }

    /// Takes a region back.
    pub(crate) fn end(&self, key: LKey) {
        if let Some(loans) = self.loans.get() {
            loans.end(key);
        }
        let place = self.place(key);
        if let Some((chunk, place)) = place.and_then(|(chunk, at)| Some((chunk.get()?, at))) {
            Lease::of(&chunk[place].lease).revoke(0);
            chunk[place].memory.store(None);
        }
    }

    /// Takes back all that a queue pair lent for messages.
    pub(crate) fn revoke(&self, qpn: Qpn) {
        let lease = Lease::of(self.epoch(qpn));
        let epoch = (lease.value() as u32).wrapping_add(1);
        lease.revoke(epoch.into());
        if let Some(loans) = self.loans.get() {
            loans.set_epoch(qpn, epoch);
        }
    }

    fn lent(&self, key: LKey) -> Option<&Lent> {
        let (chunk, place) = self.place(key)?;
        chunk.get()?.get(place)
    }

    fn place(&self, key: LKey) -> Option<(&OnceLock<Chunk>, usize)> {
        let region = region_of(key);
        Some((self.chunks.get(region / CHUNK)?, region % CHUNK))
    }

    fn epoch(&self, qpn: Qpn) -> &AtomicU64 {
        &self.epochs[qpn.0 as usize % EPOCHS]
    }
}

impl Lends for Lender {
    fn region(&self, key: LKey) -> Option<LentRegion> {
        let lent = self.lent(key)?;
        let lease = LeaseReader::of(&lent.lease).now();
        let memory = lent.memory.load_full().filter(|_| is_lease_of(key, lease))?;
        Some(LentRegion { base: memory.address(), memory: (*memory).clone(), lease })
    }

    fn holds(&self, key: LKey, lease: u64) -> bool {
        self.lent(key).is_some_and(|lent| LeaseReader::of(&lent.lease).is_still(lease))
    }

    fn leave(&self, qpn: Qpn) -> Leave {
        Leave { qpn, epoch: LeaseReader::of(self.epoch(qpn)).now() as u32 }
    }

    fn has_leave(&self, leave: Leave) -> bool {
        LeaseReader::of(self.epoch(leave.qpn)).is_still(leave.epoch.into())
    }
}

/// What the lease on a region says while that is lent for the `nth` time: another value each time,
/// and never 0.
pub(crate) fn lease_of(key: LKey, nth: u64) -> u64 {
    u64::from(key.0) | (nth % u64::from(u32::MAX) + 1) << 32
}

/// Whether a lease says that the region of this key is lent.
pub(crate) fn is_lease_of(key: LKey, lease: u64) -> bool {
    lease as u32 == key.0 && lease >> 32 != 0
}
