//! Memory that an adapter lends to peers in other processes: what a [`Lender`](crate::Lender) has,
//! by a shared table of leases.
//!
//! The lender writes the table, and is the only one who can. The memory is in segments of its own
//! ([`Memory::shared`]). A peer gets the table, and a segment, when the lender says so by a lane
//! that it sends to that peer by (see `exposure`), and never else.
//!
//! ```text
//! words 0 .. 1023    how often queue pairs took back what they lent, by number modulo 1024: leases
//! then, by place of the region:
//!   word 0   the lease: which time it is lent 32 | key 32; 0: it is not
//!        1   number of its segment
//!        2   address that its owner has it at
//! ```

use crate::hca::memory::region_of;
use crate::lend::{EPOCHS, Leave, Lends, LentRegion, is_lease_of, lease_of};
use pollux_mem::lease::{Lease, LeaseReader};
use pollux_mem::region::MapError;
use pollux_mem::{Memory, OwnWords, PeerWords, Segment};
use pollux_verbs::LKey;
use pollux_wire::address::Qpn;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Regions that can be lent, by their place in the adapter's table; others go by copy.
const REGIONS: usize = 4096;
const REGION_WORDS: usize = 4;
const TABLE_BYTES: usize = (EPOCHS + REGIONS * REGION_WORDS) * 8;
/// What a segment's length may be rounded up by.
const PAGE_MAX: usize = 1 << 16;

/// Segments that a client can lend at a time, and that a receiver maps for one lane; what is in
/// others goes by copy.
pub const SEGMENTS_MAX: usize = 64;
/// Bytes that a receiver maps for one lane.
const LANE_BYTES_MAX: usize = 1 << 37;
/// The number that stands for the table itself.
pub const TABLE: u32 = 0;

/// The lender's side.
#[derive(Debug)]
pub struct Loans {
    table: OwnWords,
    lent: Mutex<Lent>,
}

#[derive(Debug, Default)]
struct Lent {
    /// The segment of each region that is lent.
    regions: BTreeMap<LKey, u32>,
    segments: BTreeMap<u32, Arc<Segment>>,
    last: u32,
    /// How often anything was lent.
    grants: u64,
}

impl Loans {
    /// An empty table.
    pub fn new() -> Result<Self, MapError> {
        let table = OwnWords::create("pollux-loans", TABLE_BYTES)?;
        Ok(Self { table, lent: Mutex::default() })
    }

    /// Lends a region, if peers can map it and there is a place for it.
    pub(crate) fn lend(&self, key: LKey, memory: &Memory) {
        let (Some(segment), Some(place)) = (memory.segment(), self.place(key)) else { return };
        let mut lent = self.lent();
        let Some(number) = lent.number(segment) else { return };
        lent.regions.insert(key, number);
        lent.grants += 1;
        place[1].store(number.into(), Ordering::Relaxed);
        place[2].store(memory.address(), Ordering::Relaxed);
        Lease::of(&place[0]).grant(lease_of(key, lent.grants));
    }

    /// Takes it back.
    pub(crate) fn end(&self, key: LKey) {
        let mut lent = self.lent();
        let Some(number) = lent.regions.remove(&key) else { return };
        if let Some(place) = self.place(key) {
            Lease::of(&place[0]).revoke(0);
        }
        if !lent.regions.values().any(|other| *other == number) {
            lent.segments.remove(&number);
        }
    }

    /// The number of the segment that a region is in, if it is lent.
    pub(crate) fn segment_of(&self, key: LKey) -> Option<u32> {
        let place = self.place(key)?;
        let is_lent = is_lease_of(key, Lease::of(&place[0]).value());
        is_lent.then(|| place[1].load(Ordering::Relaxed) as u32)
    }

    /// A queue pair has taken back what it lent.
    pub(crate) fn set_epoch(&self, qpn: Qpn, epoch: u32) {
        Lease::of(&self.table.as_slice()[qpn.0 as usize % EPOCHS]).revoke(epoch.into());
    }

    /// Shows `to` the descriptor of a segment, if there is such a one.
    pub(crate) fn show<R>(&self, segment: u32, to: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
        if segment == TABLE {
            return Some(to(self.table.as_fd()));
        }
        self.lent().segments.get(&segment).map(|segment| to(segment.as_fd()))
    }

    /// Whether anything in a segment is lent.
    pub(crate) fn has(&self, segment: u32) -> bool {
        segment == TABLE || self.lent().segments.contains_key(&segment)
    }

    fn lent(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The words of a region.
    fn place(&self, key: LKey) -> Option<&[AtomicU64; REGION_WORDS]> {
        self.table.as_slice().get(place_of(key)?..)?.first_chunk()
    }
}

impl Lent {
    /// The number of a segment, which may be a new one.
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

/// Where a region's words begin.
fn place_of(key: LKey) -> Option<usize> {
    let region = region_of(key);
    (region < REGIONS).then(|| EPOCHS + region * REGION_WORDS)
}

/// What the receiver of a lane has mapped of what its sender lends. It goes with the lane.
#[derive(Debug, Default)]
pub(crate) struct Borrowed {
    table: Option<PeerWords>,
    segments: BTreeMap<u32, Memory>,
    /// Of all segments.
    bytes: usize,
}

impl Borrowed {
    /// Maps a segment; says whether it is mapped now.
    pub(crate) fn map(&mut self, segment: u32, fd: OwnedFd) -> bool {
        if segment == TABLE {
            let table = PeerWords::open(fd, TABLE_BYTES..=TABLE_BYTES + PAGE_MAX);
            self.table = table.ok();
            return self.table.is_some();
        }
        if self.segments.len() >= SEGMENTS_MAX || self.segments.contains_key(&segment) {
            return false;
        }
        let left = LANE_BYTES_MAX.saturating_sub(self.bytes);
        let lent = Segment::from_fd(fd, 1..=left).and_then(|lent| Memory::borrowed(&lent));
        let Ok(memory) = lent else { return false };
        self.bytes += memory.bytes();
        self.segments.insert(segment, memory);
        true
    }

    /// Unmaps a segment.
    pub(crate) fn unmap(&mut self, segment: u32) {
        if let Some(memory) = self.segments.remove(&segment) {
            self.bytes -= memory.bytes();
        }
    }

    fn lease(&self, at: usize) -> Option<LeaseReader<'_>> {
        self.table.as_ref()?.lease(at)
    }
}

impl Lends for Borrowed {
    fn region(&self, key: LKey) -> Option<LentRegion> {
        let (table, at) = (self.table.as_ref()?, place_of(key)?);
        let lease = table.lease(at)?.now();
        if !is_lease_of(key, lease) {
            return None;
        }
        let (segment, base) = (table.load(at + 1)? as u32, table.load(at + 2)?);
        Some(LentRegion { memory: self.segments.get(&segment)?.clone(), base, lease })
    }

    fn holds(&self, key: LKey, lease: u64) -> bool {
        let reader = place_of(key).and_then(|at| self.lease(at));
        reader.is_some_and(|reader| reader.is_still(lease))
    }

    fn leave(&self, qpn: Qpn) -> Leave {
        // Without a table nothing is copied, and no leave is asked for.
        let reader = self.lease(qpn.0 as usize % EPOCHS);
        Leave { qpn, epoch: reader.map_or(0, |reader| reader.now() as u32) }
    }

    fn has_leave(&self, leave: Leave) -> bool {
        let reader = self.lease(leave.qpn.0 as usize % EPOCHS);
        reader.is_some_and(|reader| reader.is_still(leave.epoch.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd_of(loans: &Loans, segment: u32) -> OwnedFd {
        loans.show(segment, |fd| fd.try_clone_to_owned().unwrap()).expect("it is lent")
    }

    #[test]
    fn what_is_lent_is_found_until_it_is_taken_back() {
        let loans = Loans::new().unwrap();
        let (shared, private) = (Memory::shared(4096).unwrap(), Memory::private(4096).unwrap());
        let keys = [LKey(0x100), LKey(0x201), LKey((REGIONS as u32 + 1) << 8)];
        loans.lend(keys[0], &shared);
        loans.lend(keys[1], &private);
        loans.lend(keys[2], &shared);
        assert_eq!(keys.map(|key| loans.segment_of(key)), [Some(1), None, None]);

        let mut borrowed = Borrowed::default();
        assert!(borrowed.region(keys[0]).is_none(), "nothing is mapped");
        assert!(borrowed.map(TABLE, fd_of(&loans, TABLE)) && borrowed.map(1, fd_of(&loans, 1)));
        assert!(!borrowed.map(1, fd_of(&loans, 1)), "a number stands for one segment");
        let LentRegion { memory, base, lease } = borrowed.region(keys[0]).unwrap();
        assert!(shared.write(8, b"here") && base == shared.address());
        let mut out = [0; 4];
        assert!(memory.read(8, &mut out) && &out == b"here");
        assert!(borrowed.region(LKey(0x101)).is_none(), "another key of the same place");

        let leave = borrowed.leave(Qpn(5));
        assert!(leave.epoch == 0 && borrowed.has_leave(leave));
        loans.set_epoch(Qpn(5), 3);
        assert!(borrowed.leave(Qpn(5)).epoch == 3 && !borrowed.has_leave(leave));
        assert!(borrowed.holds(keys[0], lease));
        loans.end(keys[0]);
        assert!(!borrowed.holds(keys[0], lease) && borrowed.region(keys[0]).is_none());
        assert!(!loans.has(1) && loans.show(1, |_| ()).is_none());
        // The same key once more is another lease.
        loans.lend(keys[0], &shared);
        assert!(!borrowed.holds(keys[0], lease));
        borrowed.unmap(1);
        assert_eq!((borrowed.segments.len(), borrowed.bytes), (0, 0));
    }

    #[test]
    fn segments_have_a_limit() {
        let loans = Loans::new().unwrap();
        let last = SEGMENTS_MAX as u32;
        for region in 1..=last + 1 {
            loans.lend(LKey(region << 8), &Memory::shared(1).unwrap());
        }
        assert!(loans.segment_of(LKey(1 << 8)).is_some());
        assert!(loans.segment_of(LKey((last + 1) << 8)).is_none());
        let mut borrowed = Borrowed::default();
        let mapped = (1..1000).filter(|segment| borrowed.map(*segment, fd_of(&loans, 1)));
        assert_eq!(mapped.count(), SEGMENTS_MAX);
        // Nor does anybody's length use up the address space.
        borrowed.bytes = LANE_BYTES_MAX - 1;
        borrowed.unmap(1);
        borrowed.bytes = LANE_BYTES_MAX - 1;
        assert!(!borrowed.map(1, fd_of(&loans, 1)));
    }

    #[test]
    fn nobody_writes_to_a_table_but_its_lender() {
        let loans = Loans::new().unwrap();
        let table = Segment::from_fd(fd_of(&loans, TABLE), 1..=1 << 30).unwrap();
        assert!(table.is_sealed() && table.map().is_err());
        let open = Segment::create("pollux-loans", TABLE_BYTES).unwrap();
        assert!(!Borrowed::default().map(TABLE, open.into_fd()), "others could write to this");
    }
}
