//! Leases for peers in other processes: the contents of a
//! [`LeaseTable`](pollux_hca::LeaseTable) as a table in shared memory.
//!
//! Only the owner of the memory can write to the table. Leased memory is in segments of its own
//! ([`Memory::shared`]). A peer gets the descriptors of the table and of a segment only for a ring
//! that the owner uses to send to it (see `exposure`).
//!
//! ```text
//! words 0 .. 1023    how often queue pairs revoked their leases, by QPN modulo 1024
//! then, by index of the region:
//!   word 0   the lease: number of the grant 32 | key 32; 0: none
//!        1   number of the region's segment
//!        2   address of the region in the process of its owner
//!        3   -
//! ```

use super::PAGE_BYTES_MAX;
use pollux_hca::lease::{
    EPOCHS, LeasePublisher, LeasedMemory, LeasedRegion, QpLease, is_lease_of, lease_of,
};
use pollux_hca::region_of;
use pollux_mem::lease::{Lease, LeaseReader};
use pollux_mem::region::MapError;
use pollux_mem::{Memory, OwnWords, PeerWords, Segment};
use pollux_verbs::LKey;
use pollux_wire::address::Qpn;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Regions that can be leased, by their index in the adapter's table. Messages in regions with a
/// higher index are copied.
const REGIONS: usize = 4096;
const REGION_WORDS: usize = 4;
const TABLE_BYTES: usize = (EPOCHS + REGIONS * REGION_WORDS) * 8;

/// Segments that a client can lease at a time, and that a receiver maps for one ring. Messages in
/// other segments are copied.
pub const SEGMENTS_MAX: usize = 64;
/// Bytes that a receiver maps for one ring, at most.
const RING_BYTES_MAX: usize = 1 << 37;
/// The segment number of the table itself.
pub const TABLE: u32 = 0;

#[derive(Debug)]
pub struct SharedLeases {
    table: OwnWords,
    leased: Mutex<Leased>,
}

#[derive(Debug, Default)]
struct Leased {
    regions: BTreeMap<LKey, u32>,
    segments: BTreeMap<u32, Arc<Segment>>,
    last: u32,
    grants: u64,
}

impl SharedLeases {
    pub fn new() -> Result<Self, MapError> {
        let table = OwnWords::create("pollux-leases", TABLE_BYTES)?;
        Ok(Self { table, leased: Mutex::default() })
    }

    pub(crate) fn segment_of(&self, key: LKey) -> Option<u32> {
        let entry = self.entry(key)?;
        let is_leased = is_lease_of(key, Lease::of(&entry[0]).value());
        is_leased.then(|| entry[1].load(Ordering::Relaxed) as u32)
    }

    /// Calls `to` with the descriptor of a segment, if it exists.
    pub(crate) fn with_descriptor<R>(
        &self,
        segment: u32,
        to: impl FnOnce(BorrowedFd<'_>) -> R,
    ) -> Option<R> {
        if segment == TABLE {
            return Some(to(self.table.as_fd()));
        }
        self.leased().segments.get(&segment).map(|segment| to(segment.as_fd()))
    }

    /// Whether anything in a segment is leased.
    pub(crate) fn has(&self, segment: u32) -> bool {
        segment == TABLE || self.leased().segments.contains_key(&segment)
    }

    fn leased(&self) -> MutexGuard<'_, Leased> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, key: LKey) -> Option<&[AtomicU64; REGION_WORDS]> {
        self.table.as_slice().get(entry_of(key)?..)?.first_chunk()
    }
}

impl LeasePublisher for SharedLeases {
    fn grant(&self, key: LKey, memory: &Memory, base: u64) {
        let (Some(segment), Some(entry)) = (memory.segment(), self.entry(key)) else { return };
        let mut leased = self.leased();
        let Some(number) = leased.number(segment) else { return };
        leased.regions.insert(key, number);
        leased.grants += 1;
        entry[1].store(number.into(), Ordering::Relaxed);
        entry[2].store(base, Ordering::Relaxed);
        Lease::of(&entry[0]).grant(lease_of(key, leased.grants));
    }

    fn end(&self, key: LKey) {
        let mut leased = self.leased();
        let Some(number) = leased.regions.remove(&key) else { return };
        if let Some(entry) = self.entry(key) {
            Lease::of(&entry[0]).revoke(0);
        }
        if !leased.regions.values().any(|other| *other == number) {
            leased.segments.remove(&number);
        }
    }

    fn set_epoch(&self, qpn: Qpn, epoch: u32) {
        Lease::of(&self.table.as_slice()[qpn.0 as usize % EPOCHS]).revoke(epoch.into());
    }
}

impl Leased {
    /// The number of a segment; assigns one to a new segment.
    fn number(&mut self, segment: &Arc<Segment>) -> Option<u32> {
        let known = self.segments.iter().find(|(_, known)| Arc::ptr_eq(known, segment));
        if let Some((number, _)) = known {
            return Some(*number);
        }
        if self.segments.len() >= SEGMENTS_MAX {
            return None;
        }
        self.last = self.last.checked_add(1)?;
        self.segments.insert(self.last, segment.clone());
        Some(self.last)
    }
}

fn entry_of(key: LKey) -> Option<usize> {
    let region = region_of(key);
    (region < REGIONS).then(|| EPOCHS + region * REGION_WORDS)
}

/// The segments of a ring's sender that the receiver has mapped. They stay mapped until the ring
/// ends.
#[derive(Debug, Default)]
pub(crate) struct PeerLeases {
    table: Option<PeerWords>,
    segments: BTreeMap<u32, Memory>,
    bytes: usize,
}

impl PeerLeases {
    /// Maps a segment; returns whether that succeeded.
    pub(crate) fn map(&mut self, segment: u32, fd: OwnedFd) -> bool {
        if segment == TABLE {
            let table = PeerWords::open(fd, TABLE_BYTES..=TABLE_BYTES + PAGE_BYTES_MAX);
            self.table = table.ok();
            return self.table.is_some();
        }
        if self.segments.len() >= SEGMENTS_MAX || self.segments.contains_key(&segment) {
            return false;
        }
        let left = RING_BYTES_MAX.saturating_sub(self.bytes);
        let memory = Segment::from_fd(fd, 1..=left).and_then(|segment| Memory::leased(&segment));
        let Ok(memory) = memory else { return false };
        self.bytes += memory.bytes();
        self.segments.insert(segment, memory);
        true
    }

    pub(crate) fn unmap(&mut self, segment: u32) {
        if let Some(memory) = self.segments.remove(&segment) {
            self.bytes -= memory.bytes();
        }
    }

    fn lease(&self, at: usize) -> Option<LeaseReader<'_>> {
        self.table.as_ref()?.lease(at)
    }
}

impl LeasedMemory for PeerLeases {
    fn region(&self, key: LKey) -> Option<LeasedRegion> {
        let (table, at) = (self.table.as_ref()?, entry_of(key)?);
        let lease = table.lease(at)?.now();
        if !is_lease_of(key, lease) {
            return None;
        }
        let (segment, base) = (table.load(at + 1)? as u32, table.load(at + 2)?);
        Some(LeasedRegion { memory: self.segments.get(&segment)?.clone(), base, lease })
    }

    fn holds(&self, key: LKey, lease: u64) -> bool {
        let reader = entry_of(key).and_then(|at| self.lease(at));
        reader.is_some_and(|reader| reader.is_still(lease))
    }

    fn qp_lease(&self, qpn: Qpn) -> QpLease {
        // Without a table, `region` returns `None`, so nothing is copied under epoch 0.
        let reader = self.lease(qpn.0 as usize % EPOCHS);
        QpLease { qpn, epoch: reader.map_or(0, |reader| reader.now() as u32) }
    }

    fn holds_qp(&self, qp_lease: QpLease) -> bool {
        let reader = self.lease(qp_lease.qpn.0 as usize % EPOCHS);
        reader.is_some_and(|reader| reader.is_still(qp_lease.epoch.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd_of(leases: &SharedLeases, segment: u32) -> OwnedFd {
        leases
            .with_descriptor(segment, |fd| fd.try_clone_to_owned().unwrap())
            .expect("it is leased")
    }

    #[test]
    fn a_lease_is_found_until_it_is_revoked() {
        let leases = SharedLeases::new().unwrap();
        let (shared, private) = (Memory::shared(4096).unwrap(), Memory::private(4096).unwrap());
        let keys = [LKey(0x100), LKey(0x201), LKey((REGIONS as u32 + 1) << 8)];
        leases.grant(keys[0], &shared, shared.address());
        leases.grant(keys[1], &private, private.address());
        leases.grant(keys[2], &shared, shared.address());
        assert_eq!(keys.map(|key| leases.segment_of(key)), [Some(1), None, None]);

        let mut peer_leases = PeerLeases::default();
        assert!(peer_leases.region(keys[0]).is_none(), "nothing is mapped");
        assert!(
            peer_leases.map(TABLE, fd_of(&leases, TABLE)) && peer_leases.map(1, fd_of(&leases, 1))
        );
        assert!(!peer_leases.map(1, fd_of(&leases, 1)), "a number stands for one segment");
        let LeasedRegion { memory, base, lease } = peer_leases.region(keys[0]).unwrap();
        assert!(shared.write(8, b"here") && base == shared.address());
        let mut out = [0; 4];
        assert!(memory.read(8, &mut out) && &out == b"here");
        assert!(peer_leases.region(LKey(0x101)).is_none(), "another key of the same place");

        let qp_lease = peer_leases.qp_lease(Qpn(5));
        assert!(qp_lease.epoch == 0 && peer_leases.holds_qp(qp_lease));
        leases.set_epoch(Qpn(5), 3);
        assert!(peer_leases.qp_lease(Qpn(5)).epoch == 3 && !peer_leases.holds_qp(qp_lease));
        assert!(peer_leases.holds(keys[0], lease));
        leases.end(keys[0]);
        assert!(!peer_leases.holds(keys[0], lease) && peer_leases.region(keys[0]).is_none());
        assert!(!leases.has(1) && leases.with_descriptor(1, |_| ()).is_none());
        // Granting the same key again makes another lease.
        leases.grant(keys[0], &shared, shared.address());
        assert!(!peer_leases.holds(keys[0], lease));
        peer_leases.unmap(1);
        assert_eq!((peer_leases.segments.len(), peer_leases.bytes), (0, 0));
    }

    #[test]
    fn segments_have_a_limit() {
        let leases = SharedLeases::new().unwrap();
        let last = SEGMENTS_MAX as u32;
        for region in 1..=last + 1 {
            leases.grant(LKey(region << 8), &Memory::shared(1).unwrap(), 0);
        }
        assert!(leases.segment_of(LKey(1 << 8)).is_some());
        assert!(leases.segment_of(LKey((last + 1) << 8)).is_none());
        let mut peer_leases = PeerLeases::default();
        let mapped = (1..1000).filter(|segment| peer_leases.map(*segment, fd_of(&leases, 1)));
        assert_eq!(mapped.count(), SEGMENTS_MAX);
        // The bytes mapped for a ring are limited as well.
        peer_leases.bytes = RING_BYTES_MAX - 1;
        peer_leases.unmap(1);
        peer_leases.bytes = RING_BYTES_MAX - 1;
        assert!(!peer_leases.map(1, fd_of(&leases, 1)));
    }

    #[test]
    fn only_its_owner_can_write_a_lease_table() {
        let leases = SharedLeases::new().unwrap();
        let table = Segment::from_fd(fd_of(&leases, TABLE), 1..=1 << 30).unwrap();
        assert!(table.is_sealed() && table.map().is_err());
        let open = Segment::create("pollux-leases", TABLE_BYTES).unwrap();
        assert!(!PeerLeases::default().map(TABLE, open.into_fd()), "others could write to this");
    }
}
