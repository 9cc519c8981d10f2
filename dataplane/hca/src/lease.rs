//! Leases for zero-copy send: the receiver of a long message copies it once, out of the sender's
//! memory.
//!
//! A long message that bypasses packets carries the location of its bytes. The receiver may read
//! them only while the lease is valid. The lease ends when the region is deregistered, and when the
//! queue pair is destroyed, fails or changes the access rights of its peer, because the application
//! owns the buffer again from then on. So the receiver checks the lease before the copy and again
//! after it. If the lease has ended in between, the message counts as lost on the wire, and loss
//! recovery applies. Memory that is read through a memory window is never leased: windows change
//! too often.
//!
//! Peers in the same process read the [`LeaseTable`] directly. Peers in other processes read the
//! table of its [`LeasePublisher`]. Their links decide which peer may read which segment
//! ([`FrameSink::can_lease`](crate::sink::FrameSink::can_lease)).

use crate::memory::{Pieces, region_of};
use arc_swap::ArcSwapOption;
use pollux_mem::{Lease, LeaseReader, Memory};
use pollux_verbs::{LKey, Sge};
use pollux_wire::address::Qpn;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The number of regions per chunk, and of chunks: together enough for all regions of an adapter.
const CHUNK: usize = 256;
const CHUNKS: usize = 256;
/// The number of epochs. Queue pairs share them by QPN modulo this number. A revocation by another
/// queue pair with the same epoch costs only a retransmission.
pub const EPOCHS: usize = 1024;

/// The receiver's view of the sender's leases, which it checks before a copy and again after it.
pub trait LeasedMemory {
    /// The region of this key, if it is leased now.
    fn region(&self, key: LKey) -> Option<LeasedRegion>;

    /// Whether the region of this key still has this lease.
    fn holds(&self, key: LKey, lease: u64) -> bool;

    fn qp_lease(&self, qpn: Qpn) -> QpLease;

    fn holds_qp(&self, qp_lease: QpLease) -> bool;

    /// Copies the memory of `sges` to `targets`, from offset `skip` on. Returns whether the leases
    /// were valid during the whole copy.
    fn copy(
        &self,
        qp_lease: QpLease,
        sges: &mut dyn Iterator<Item = Sge>,
        targets: &Pieces<'_>,
        mut skip: usize,
    ) -> bool {
        if self.qp_lease(qp_lease.qpn) != qp_lease {
            return false;
        }
        for sge in sges {
            let Some(LeasedRegion { memory, base, lease }) = self.region(sge.lkey) else {
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
        self.holds_qp(qp_lease)
    }
}

pub struct LeasedRegion {
    pub memory: Memory,
    /// The address of the first byte, as scatter/gather entries of the sender have it.
    pub base: u64,
    pub lease: u64,
}

/// Publishes the leases of an adapter to peers in other processes.
pub trait LeasePublisher: Debug + Send + Sync {
    /// Grants a lease on a region, if peers can map it and the table has an entry for it. `base` is
    /// the address of its first byte, as scatter/gather entries have it.
    fn grant(&self, key: LKey, memory: &Memory, base: u64);

    fn end(&self, key: LKey);

    /// Sets the epoch of a queue pair that has revoked its leases.
    fn set_epoch(&self, qpn: Qpn, epoch: u32);
}

#[derive(Debug)]
pub struct LeaseTable {
    chunks: Box<[OnceLock<Chunk>]>,
    /// How often the queue pairs of each epoch have revoked their leases.
    epochs: Box<[AtomicU64]>,
    /// The number of granted leases, which gives each lease its own value.
    grants: AtomicU64,
    publisher: OnceLock<Arc<dyn LeasePublisher>>,
}

type Chunk = Box<[Entry]>;

#[derive(Debug, Default)]
struct Entry {
    /// The value of [`lease_of`] for its key; 0: no lease.
    lease: AtomicU64,
    /// The memory, and the address of its first byte.
    range: ArcSwapOption<(Memory, u64)>,
}

/// The lease that covers a message: the epoch of its queue pair at the time of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpLease {
    pub qpn: Qpn,
    /// The queue pair's epoch: how often its leases were revoked.
    pub epoch: u32,
}

impl Default for LeaseTable {
    fn default() -> Self {
        Self {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            epochs: (0..EPOCHS).map(|_| AtomicU64::new(0)).collect(),
            grants: AtomicU64::new(0),
            publisher: OnceLock::new(),
        }
    }
}

impl LeaseTable {
    /// Publishes leases to peers in other processes. Must precede the first grant.
    pub fn set_publisher(&self, publisher: Arc<dyn LeasePublisher>) {
        // The first publisher stays for the life of the table.
        let _ = self.publisher.set(publisher);
    }

    pub(crate) fn grant(&self, key: LKey, memory: &Memory, base: u64) {
        if let Some(publisher) = self.publisher.get() {
            publisher.grant(key, memory, base);
        }
        // This table is for the adapter itself and for peers in the same process.
        let empty = || (0..CHUNK).map(|_| Entry::default()).collect();
        if let Some((chunk, slot)) = self.slot(key) {
            let entry = &chunk.get_or_init(empty)[slot];
            entry.range.store(Some(Arc::new((memory.clone(), base))));
            let nth = self.grants.fetch_add(1, Ordering::Relaxed);
            Lease::of(&entry.lease).grant(lease_of(key, nth));
        }
    }

    pub(crate) fn end(&self, key: LKey) {
        if let Some(publisher) = self.publisher.get() {
            publisher.end(key);
        }
        let slot = self.slot(key);
        if let Some((chunk, slot)) = slot.and_then(|(chunk, at)| Some((chunk.get()?, at))) {
            Lease::of(&chunk[slot].lease).revoke(0);
            chunk[slot].range.store(None);
        }
    }

    /// Revokes the leases of all messages that a queue pair has sent.
    pub(crate) fn revoke(&self, qpn: Qpn) {
        let lease = Lease::of(self.epoch(qpn));
        let epoch = (lease.value() as u32).wrapping_add(1);
        lease.revoke(epoch.into());
        if let Some(publisher) = self.publisher.get() {
            publisher.set_epoch(qpn, epoch);
        }
    }

    fn entry(&self, key: LKey) -> Option<&Entry> {
        let (chunk, slot) = self.slot(key)?;
        chunk.get()?.get(slot)
    }

    fn slot(&self, key: LKey) -> Option<(&OnceLock<Chunk>, usize)> {
        let region = region_of(key);
        Some((self.chunks.get(region / CHUNK)?, region % CHUNK))
    }

    fn epoch(&self, qpn: Qpn) -> &AtomicU64 {
        &self.epochs[qpn.0 as usize % EPOCHS]
    }
}

impl LeasedMemory for LeaseTable {
    fn region(&self, key: LKey) -> Option<LeasedRegion> {
        let entry = self.entry(key)?;
        let lease = LeaseReader::of(&entry.lease).now();
        let range = entry.range.load_full().filter(|_| is_lease_of(key, lease))?;
        Some(LeasedRegion { base: range.1, memory: range.0.clone(), lease })
    }

    fn holds(&self, key: LKey, lease: u64) -> bool {
        self.entry(key).is_some_and(|entry| LeaseReader::of(&entry.lease).is_still(lease))
    }

    fn qp_lease(&self, qpn: Qpn) -> QpLease {
        QpLease { qpn, epoch: LeaseReader::of(self.epoch(qpn)).now() as u32 }
    }

    fn holds_qp(&self, qp_lease: QpLease) -> bool {
        LeaseReader::of(self.epoch(qp_lease.qpn)).is_still(qp_lease.epoch.into())
    }
}

/// The value of the table's `nth` lease, which is on the region of this key. Each lease has another
/// value, and none is 0.
pub fn lease_of(key: LKey, nth: u64) -> u64 {
    u64::from(key.0) | (nth % u64::from(u32::MAX) + 1) << 32
}

pub fn is_lease_of(key: LKey, lease: u64) -> bool {
    lease as u32 == key.0 && lease >> 32 != 0
}
