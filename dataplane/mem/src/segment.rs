//! Memory that two processes map: an anonymous file (memfd), which is accessible only by its
//! descriptor.
//!
//! Why a segment is sealed: if a peer shortened the file, our next access would raise SIGBUS. The
//! kernel refuses that once shrinking and growing are sealed, and [`Segment::from_fd`] accepts only
//! segments with both seals. If a peer seals writing as well, our mapping fails with an error,
//! without a signal. We seal memory that we lease to peers in the same way ([`Segment::seal`]).
//!
//! Why a segment has no reserved huge pages: a peer may punch holes into the file. On ordinary
//! shared memory a hole reads as zero. On reserved pages, an access to a hole raises SIGBUS when no
//! page is left. The kernel may still use transparent huge pages.
//!
//! Why a segment of a peer has a maximum length: mapping it faults in all of its pages, which uses
//! our time and memory.
//!
//! The caller passes the descriptor to the peer (by SCM_RIGHTS or inheritance).

use crate::region::{MapError, Region};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals};
use rustix::fs::{fstat, fstatfs, ftruncate};
use rustix::mm::ProtFlags;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The `f_type` of ordinary shared memory (TMPFS_MAGIC in Linux's magic.h).
const ORDINARY: u64 = 0x0102_1994;

/// Memory that every process with its descriptor can map. The size never changes.
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
    bytes: usize,
}

impl Segment {
    /// At least `bytes` of zeroed memory. The name shows in `/proc` and need not be unique.
    pub fn create(name: &str, bytes: usize) -> Result<Self, MapError> {
        let page = rustix::param::page_size();
        let bytes = match bytes.checked_next_multiple_of(page) {
            Some(rounded) if rounded > 0 => rounded,
            _ => return Err(MapError::BadSize { bytes }),
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(MapError::system("memfd_create"))?;
        ftruncate(&fd, bytes as u64).map_err(MapError::system("ftruncate"))?;
        fcntl_add_seals(&fd, SEALS).map_err(MapError::system("F_ADD_SEALS"))?;
        Ok(Self { fd, bytes })
    }

    /// The segment of a peer's descriptor. It must be sealed against resizing and on ordinary
    /// shared memory, and its length must be within `bytes`.
    pub fn from_fd(fd: OwnedFd, bytes: RangeInclusive<usize>) -> Result<Self, MapError> {
        // The seals come first: before they are set, the length may still change.
        let seals = fcntl_get_seals(&fd).map_err(|_| MapError::NotSealed)?;
        let kind = fstatfs(&fd).map_err(MapError::system("fstatfs"))?.f_type as u64;
        if !seals.contains(SEALS) || kind != ORDINARY {
            return Err(MapError::NotSealed);
        }
        let have = fstat(&fd).map_err(MapError::system("fstat"))?.st_size as u64;
        match usize::try_from(have) {
            Ok(have) if have > 0 && bytes.contains(&have) => Ok(Self { fd, bytes: have }),
            _ => Err(MapError::BadLength { bytes: have, allowed: bytes }),
        }
    }

    /// The descriptor, to pass to a peer. Existing mappings remain valid.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Maps all bytes. Each mapping is a separate region over the same memory: a write to one
    /// appears in the others, as if another process had written it.
    pub fn map(&self) -> Result<Region, MapError> {
        Region::of_file(self.fd.as_fd(), self.bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps it read-only, for [`ReadWords`](crate::words::ReadWords).
    pub(crate) fn map_to_read(&self) -> Result<Region, MapError> {
        Region::of_file(self.fd.as_fd(), self.bytes, ProtFlags::READ)
    }

    /// Prevents new writable mappings. Existing mappings remain valid.
    pub fn seal(&self) -> Result<(), MapError> {
        fcntl_add_seals(&self.fd, SealFlags::FUTURE_WRITE).map_err(MapError::system("F_ADD_SEALS"))
    }

    /// Whether new writable mappings are prevented.
    pub fn is_sealed(&self) -> bool {
        let writing = SealFlags::FUTURE_WRITE | SealFlags::WRITE;
        fcntl_get_seals(&self.fd).is_ok_and(|seals| seals.intersects(writing))
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let segment = Segment::create("test", 10_000).unwrap();
        let ours = Memory::over(segment.map().unwrap());
        let received = Segment::from_fd(segment.into_fd(), 10_000..=1 << 20).unwrap();
        let theirs = Memory::over(received.map().unwrap());
        assert!(ours.write(9_000, b"here"));
        let mut out = [0; 4];
        assert!(theirs.read(9_000, &mut out));
        assert_eq!(&out, b"here");
    }

    #[test]
    fn a_sealed_segment_has_no_new_writers() {
        let segment = Segment::create("test", 4096).unwrap();
        let ours = Memory::over(segment.map().unwrap());
        assert!(!segment.is_sealed());
        segment.seal().unwrap();
        assert!(segment.is_sealed());
        assert!(segment.map().is_err() && ours.write(0, b"here"));
        let mut out = [0; 4];
        assert!(Memory::leased(&segment).unwrap().read(0, &mut out));
        assert_eq!(&out, b"here");
    }

    #[test]
    fn no_peer_can_resize_it() {
        let fd = Segment::create("test", 4096).unwrap().into_fd();
        assert!(ftruncate(&fd, 0).is_err());
        assert!(ftruncate(&fd, 1 << 20).is_err());
    }

    #[test]
    fn a_segment_that_could_be_resized_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("test", flags).unwrap();
        ftruncate(&fd, 4096).unwrap();
        assert!(matches!(Segment::from_fd(fd, 1..=4096), Err(MapError::NotSealed)));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(Segment::from_fd(file.into(), 1..=4096), Err(MapError::NotSealed)));
    }

    #[test]
    fn lengths_out_of_range_are_refused() {
        let fd = Segment::create("test", 4096).unwrap().into_fd();
        let again = fd.try_clone().unwrap();
        let refused = |result| matches!(result, Err(MapError::BadLength { bytes: 4096, .. }));
        assert!(refused(Segment::from_fd(fd, 4097..=8192)));
        assert!(refused(Segment::from_fd(again, 1..=4095)));
        let empty = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&empty, SEALS).unwrap();
        assert!(matches!(Segment::from_fd(empty, 0..=1), Err(MapError::BadLength { .. })));
        assert!(matches!(Segment::create("test", 0), Err(MapError::BadSize { .. })));
    }
}
