//! Shared words that one process writes and others only read, enforced by the mappings.
//!
//! The writer maps the segment and then seals it: no process, the writer included, can map it for
//! writing again. A reader maps it read-only. A store would raise a signal, so the reader's type
//! has no store. A reader validates the contents like all input from a peer, but only the writer
//! can change them.

use crate::lease::LeaseReader;
use crate::region::MapError;
use crate::segment::Segment;
use crate::sync::AtomicU64;
use crate::words::{ReadWords, Words};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
pub struct OwnWords {
    words: Words,
    segment: Segment,
}

#[derive(Debug)]
pub struct PeerWords {
    words: ReadWords,
}

impl OwnWords {
    /// At least `bytes` bytes of zeroed words. Fails if the kernel cannot seal against writing
    /// (before Linux 5.1).
    pub fn create(name: &str, bytes: usize) -> Result<Self, MapError> {
        let segment = Segment::create(name, bytes)?;
        let words = Words::over(segment.map()?);
        segment.seal()?;
        Ok(Self { words, segment })
    }

    #[inline(always)]
    pub fn as_slice(&self) -> &[AtomicU64] {
        self.words.as_slice()
    }
}

impl AsFd for OwnWords {
    /// The descriptor that readers open.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.segment.as_fd()
    }
}

impl PeerWords {
    /// The words of a peer's segment. Its length must be within `bytes`, and it must be sealed
    /// against writing.
    pub fn open(fd: OwnedFd, bytes: RangeInclusive<usize>) -> Result<Self, MapError> {
        let segment = Segment::from_fd(fd, bytes)?;
        if !segment.is_sealed() {
            return Err(MapError::NotSealed);
        }
        Ok(Self { words: ReadWords::of(&segment)? })
    }

    /// A relaxed load, which a lease orders. `None` past the end.
    #[inline]
    pub fn load(&self, at: usize) -> Option<u64> {
        Some(self.words.as_slice().get(at)?.load())
    }

    /// `None` past the end.
    #[inline]
    pub fn lease(&self, at: usize) -> Option<LeaseReader<'_>> {
        self.words.as_slice().get(at).map(LeaseReader::of_peer)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn only_the_creator_can_write() {
        let own = OwnWords::create("test", 4096).unwrap();
        let fd = || own.as_fd().try_clone_to_owned().unwrap();
        let peer = PeerWords::open(fd(), 4096..=4096).unwrap();
        own.as_slice()[3].store(7, Ordering::Relaxed);
        assert_eq!((peer.load(3), peer.load(512)), (Some(7), None));
        assert!(peer.lease(3).unwrap().is_still(7) && peer.lease(512).is_none());
        let received = Segment::from_fd(fd(), 1..=1 << 20).unwrap();
        assert!(received.map().is_err(), "nobody maps it for writing");
    }

    #[test]
    fn an_unsealed_segment_is_refused() {
        let open = Segment::create("test", 4096).unwrap();
        let opened = PeerWords::open(open.into_fd(), 1..=4096);
        assert!(matches!(opened, Err(MapError::NotSealed)));
    }
}
