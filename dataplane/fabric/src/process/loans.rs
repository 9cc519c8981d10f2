//! Memory that an adapter lends to peers in other processes: what a
//! [`Lender`](crate::Lender) has, by a shared table.
//!
//! The lender writes the table, borrowers read it. It is made by the lender and outlives servers.
//! The memory itself is in segments of its own ([`Memory::shared`]), whose descriptors go by the
//! server to whoever has something to take from them.
//!
//! ```text
//! words 0 .. 1023    how often queue pairs took back what they lent, by number modulo 1024
//! then, by place of the region:
//!   word 0   bit 32: is lent | key 32
//!        1   number of its segment
//!        2   address that its owner has it at
//! ```

use crate::hca::memory::region_of;
use crate::lend::{EPOCHS, Leave, Lends};
use pollux_mem::region::MapError;
use pollux_mem::{Memory, Segment, Words};
use pollux_verbs::LKey;
use pollux_wire::address::Qpn;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Regions that can be lent, by their place in the adapter's table; others go by copy.
const REGIONS: usize = 4096;
const REGION_WORDS: usize = 4;
const TABLE_OCTETS: usize = (EPOCHS + REGIONS * REGION_WORDS) * 8;
const LENT: u64 = 1 << 32;

/// Segments that a client can lend at a time; what is in others goes by copy.
pub const SEGMENTS_MAX: usize = 64;
/// Octets of a segment that a borrower maps.
const SEGMENT_OCTETS_MAX: usize = 1 << 36;
/// The number that stands for the table itself.
pub const TABLE: u32 = 0;

/// What a lender says of its segments.
#[derive(Clone, Debug)]
pub enum News {
    /// There is a new one.
    Lend(u32, Arc<Segment>),
    /// There is one less.
    Forget(u32),
}

/// The lender's side.
#[derive(Debug)]
pub struct Loans {
    segment: Segment,
    table: Words,
    lent: Mutex<Lent>,
}

#[derive(Debug, Default)]
struct Lent {
    /// The segment of each region that is lent.
    regions: BTreeMap<LKey, u32>,
    segments: BTreeMap<u32, Arc<Segment>>,
    last: u32,
    news: VecDeque<News>,
}

impl Loans {
    /// An empty table.
    pub fn new() -> Result<Self, MapError> {
        let segment = Segment::create("pollux-loans", TABLE_OCTETS)?;
        let table = Words::over(segment.map()?);
        Ok(Self { segment, table, lent: Mutex::default() })
    }

    /// The descriptor of the table.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.segment.as_fd()
    }

    /// Lends a region, if peers can map it and there is a place for it.
    pub(crate) fn lend(&self, key: LKey, memory: &Memory) {
        let (Some(segment), Some(place)) = (memory.segment(), place(&self.table, key)) else {
            return;
        };
        let mut lent = self.lent();
        let Some(number) = lent.number(segment) else { return };
        lent.regions.insert(key, number);
        place[1].store(number.into(), Ordering::Relaxed);
        place[2].store(memory.address(), Ordering::Relaxed);
        // Release: who sees that it is lent sees where it is.
        place[0].store(LENT | u64::from(key.0), Ordering::Release);
    }

    /// Takes it back.
    pub(crate) fn end(&self, key: LKey) {
        let mut lent = self.lent();
        let Some(number) = lent.regions.remove(&key) else { return };
        if let Some(place) = place(&self.table, key) {
            // What its owner writes from now on comes after this.
            place[0].swap(0, Ordering::AcqRel);
        }
        if !lent.regions.values().any(|other| *other == number) {
            lent.segments.remove(&number);
            lent.news.push_back(News::Forget(number));
        }
    }

    /// Whether a region is lent.
    pub(crate) fn lends(&self, key: LKey) -> bool {
        let is = LENT | u64::from(key.0);
        place(&self.table, key).is_some_and(|place| place[0].load(Ordering::Relaxed) == is)
    }

    /// A queue pair has taken back what it lent.
    pub(crate) fn set_epoch(&self, qpn: Qpn, epoch: u32) {
        self.table.as_slice()[qpn.0 as usize % EPOCHS].swap(epoch.into(), Ordering::AcqRel);
    }

    /// The server knows nothing yet: all that is lent is news.
    pub(crate) fn tell_all(&self) {
        let mut lent = self.lent();
        let all =
            lent.segments.iter().map(|(number, segment)| News::Lend(*number, segment.clone()));
        lent.news = all.collect();
    }

    /// Tells the server what is new, as long as `tell` says that it took it. Says whether there is
    /// nothing more.
    pub(crate) fn tell(&self, tell: impl Fn(&News) -> bool) -> bool {
        let mut lent = self.lent();
        while let Some(news) = lent.news.front() {
            if !tell(news) {
                return false;
            }
            lent.news.pop_front();
        }
        true
    }

    fn lent(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.news.push_back(News::Lend(self.last, segment.clone()));
        Some(self.last)
    }
}

/// The three words of a region.
fn place(table: &Words, key: LKey) -> Option<&[AtomicU64; REGION_WORDS]> {
    let at = EPOCHS + region_of(key).checked_mul(REGION_WORDS)?;
    let place = table.as_slice().get(at..EPOCHS + REGIONS * REGION_WORDS)?;
    place.first_chunk()
}

/// What a borrower knows of one lender.
#[derive(Debug, Default)]
pub(crate) struct Borrowed {
    table: Option<Words>,
    /// There is no such lender, so nothing is worth asking for.
    is_gone: bool,
    /// None is a segment that there is not.
    segments: BTreeMap<u32, Option<Memory>>,
}

impl Borrowed {
    /// The descriptor of a segment has come, or word that there is none.
    pub(crate) fn take(&mut self, segment: u32, fd: Option<OwnedFd>) {
        let page = 1 << 16;
        let lent = |octets| Segment::from_fd(fd?, octets).ok();
        if segment == TABLE {
            let table = lent(TABLE_OCTETS..=TABLE_OCTETS + page);
            self.table = table.and_then(|table| table.map().ok()).map(Words::over);
            self.is_gone = self.table.is_none();
            return;
        }
        // A lender that lies about many loses its place here, and asks for them again.
        if self.segments.len() >= 2 * SEGMENTS_MAX {
            self.segments.clear();
        }
        let memory = lent(1..=SEGMENT_OCTETS_MAX);
        self.segments.insert(segment, memory.and_then(|lent| Memory::borrowed(&lent).ok()));
    }

    /// Whether there is no such lender.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// What has to be fetched before a region of this key can be copied from.
    pub(crate) fn missing(&self, key: LKey) -> Option<u32> {
        let Some(table) = &self.table else { return (!self.is_gone).then_some(TABLE) };
        let place = place(table, key)?;
        let is = place[0].load(Ordering::Acquire) == LENT | u64::from(key.0);
        let segment = place[1].load(Ordering::Relaxed) as u32;
        (is && segment != TABLE && !self.segments.contains_key(&segment)).then_some(segment)
    }
}

impl Lends for Borrowed {
    fn region(&self, key: LKey) -> Option<(Memory, u64)> {
        // What was copied before was copied before this look.
        fence(Ordering::Acquire);
        let place = place(self.table.as_ref()?, key)?;
        if place[0].load(Ordering::Acquire) != LENT | u64::from(key.0) {
            return None;
        }
        let segment = place[1].load(Ordering::Relaxed) as u32;
        let base = place[2].load(Ordering::Relaxed);
        Some((self.segments.get(&segment)?.clone()?, base))
    }

    fn leave(&self, qpn: Qpn) -> Leave {
        fence(Ordering::Acquire);
        let word = |table: &Words| {
            table.as_slice()[qpn.0 as usize % EPOCHS].load(Ordering::Acquire) as u32
        };
        // Without a table nothing is copied, and no leave is asked for.
        Leave { qpn, epoch: self.table.as_ref().map_or(0, word) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_found_until_it_is_taken_back() {
        let loans = Loans::new().unwrap();
        let (shared, private) = (Memory::shared(4096).unwrap(), Memory::private(4096).unwrap());
        let keys = [LKey(0x100), LKey(0x201), LKey((REGIONS as u32 + 1) << 8)];
        loans.lend(keys[0], &shared);
        loans.lend(keys[1], &private);
        loans.lend(keys[2], &shared);
        assert_eq!(keys.map(|key| loans.lends(key)), [true, false, false]);

        let mut borrowed = Borrowed::default();
        assert_eq!(borrowed.missing(keys[0]), Some(TABLE));
        borrowed.take(TABLE, loans.as_fd().try_clone_to_owned().ok());
        assert_eq!((borrowed.missing(keys[0]), borrowed.missing(keys[1])), (Some(1), None));
        assert!(loans.tell(|news| {
            let News::Lend(number, segment) = news else { return false };
            borrowed_fd(segment).is_some() && *number == 1
        }));
        borrowed.take(1, borrowed_fd(shared.segment().unwrap()));
        let (memory, base) = borrowed.region(keys[0]).unwrap();
        assert!(shared.write(8, b"here") && base == shared.address());
        let mut out = [0; 4];
        assert!(memory.read(8, &mut out) && &out == b"here");
        assert!(borrowed.region(LKey(0x101)).is_none(), "another key of the same place");

        assert_eq!(borrowed.leave(Qpn(5)).epoch, 0);
        loans.set_epoch(Qpn(5), 3);
        assert_eq!(borrowed.leave(Qpn(5)).epoch, 3);
        loans.end(keys[0]);
        assert!(borrowed.region(keys[0]).is_none() && borrowed.missing(keys[0]).is_none());
        assert!(loans.tell(|news| matches!(news, News::Forget(1))));
        loans.tell_all();
        assert!(loans.tell(|_| false), "nothing is lent any more");
        borrowed.take(TABLE, None);
        assert_eq!(borrowed.missing(keys[0]), None, "nobody is asked who is gone");
    }

    fn borrowed_fd(segment: &Segment) -> Option<OwnedFd> {
        segment.as_fd().try_clone_to_owned().ok()
    }

    #[test]
    fn segments_have_a_limit() {
        let loans = Loans::new().unwrap();
        for region in 1..=SEGMENTS_MAX as u32 + 1 {
            loans.lend(LKey(region << 8), &Memory::shared(1).unwrap());
        }
        assert!(loans.lends(LKey(1 << 8)) && !loans.lends(LKey((SEGMENTS_MAX as u32 + 1) << 8)));
        let mut borrowed = Borrowed::default();
        for segment in 1..1000 {
            borrowed.take(segment, None);
        }
        assert!(borrowed.segments.len() <= 2 * SEGMENTS_MAX);
    }
}
