//! Registered memory in pages that peers can map, so that a peer copies a long message only once,
//! directly from the program's buffer.
//!
//! A program registers private memory, which peers cannot map, so messages from it are copied
//! twice. This module replaces the private pages, at the same addresses, by pages of a shared
//! segment with the same content. When the region is deregistered, private pages replace them
//! again.
//!
//! ```text
//!   private --- protected, copied, replaced by a shared mapping ---> shared
//!      ^                                                               |
//!      +------- protected, copied, replaced by a private mapping ------+
//! ```
//!
//! No store is lost: during the copy, the pages are protected from writing (userfaultfd(2)), and a
//! thread that stores to them waits until they are replaced. While pages are protected, this module
//! must not allocate memory, because the waiting thread may hold the allocator's lock.
//!
//! The pages exist as long as the region, even if the program unmaps its own mapping.
//!
//! Shared pages differ from private memory in one way: a child of fork(2) can see what its parent
//! writes there later, until the child's pages become private ([`SharedPages::leave_to_parent`]).
//! Therefore only regions of complete pages are shared, so that no other data of the program is in
//! these pages.

use crate::doorbell::PAGE_BYTES;
use crate::mappings::{Mapping, mappings};
use crate::write_watch::WriteWatch;
use pollux_mem::{Memory, Segment};
use rustix::fs::fstat;
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap_fixed, munmap,
};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Shorter regions cannot contain long messages.
const SHARED_BYTES_MIN: u64 = 64 << 10;
/// The adapter does no work while a region is copied: for this length, some tens of milliseconds.
const SHARED_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct SharedPages {
    /// Another mapping of the pages, for the adapter.
    pub(crate) memory: Memory,
    start: u64,
    bytes: usize,
}

impl SharedPages {
    /// Replaces private pages of the program. Returns `None` if they stay private.
    pub(crate) fn replace(start: u64, bytes: u64) -> Option<Self> {
        let is_size = (SHARED_BYTES_MIN..=SHARED_BYTES_MAX).contains(&bytes);
        if !is_size || !(start | bytes).is_multiple_of(PAGE_BYTES as u64) {
            return None;
        }
        let bytes = bytes as usize;
        if !is_private(&mapping_at(start, bytes)?) || holds_stack(start, bytes) {
            return None;
        }
        // userfaultfd protects only pages that are present.
        if !populate(start, bytes) {
            return None;
        }
        let segment = Segment::create("pollux-program", bytes).ok()?;
        let fd = segment.as_fd().try_clone_to_owned().ok()?;
        let region = segment.map().ok()?;
        // Check that shared pages can be protected, too, to restore private pages later: older
        // kernels can protect only private pages.
        let address = region.address().as_ptr() as u64;
        WriteWatch::new()?.register(address, bytes as u64).then_some(())?;
        drop(region);
        let protection = protect(start, bytes)?;
        let is_replaced =
            write_all(fd.as_fd(), start, bytes) && map_segment(fd.as_fd(), start, bytes);
        // End the protection, so that waiting writers continue.
        drop(protection);
        if !is_replaced {
            return None;
        }
        match Memory::of_segment(segment) {
            Ok(memory) if memory.segment().is_some() => Some(Self { memory, start, bytes }),
            _ => {
                restore(fd.as_fd(), start, bytes);
                None
            }
        }
    }

    /// Makes the pages private in a child of fork(2), so that its stores do not reach the parent.
    pub(crate) fn leave_to_parent(&self) {
        if self.are_at(self.start, self.bytes as u64) {
            map_file(self.fd(), self.start, self.bytes, MapFlags::PRIVATE);
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.memory.segment().expect("made with one").as_fd()
    }

    /// Whether the program still has exactly these pages mapped at a range.
    pub(crate) fn are_at(&self, start: u64, bytes: u64) -> bool {
        self.start == start
            && self.bytes as u64 == bytes
            && mapping_at(start, self.bytes).is_some_and(|mapping| is_of(&mapping, self.fd()))
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        restore(self.fd(), self.start, self.bytes);
    }
}

/// Replaces shared pages by private pages with the same content, unless the program has unmapped
/// them.
fn restore(fd: BorrowedFd<'_>, start: u64, bytes: usize) {
    let is_own = mapping_at(start, bytes).is_some_and(|mapping| is_of(&mapping, fd));
    let Some(private) = is_own.then(|| map_private(bytes)).flatten() else { return };
    let protection = protect(start, bytes);
    let is_copied = protection.is_some() && read_all(fd, private, bytes);
    if !(is_copied && move_mapping(private, start, bytes)) {
        unmap(private, bytes);
    }
    drop(protection);
}

/// Protects pages from writing, until the value is dropped.
fn protect(start: u64, bytes: usize) -> Option<WriteWatch> {
    let watch = WriteWatch::new()?;
    let bytes = bytes as u64;
    (watch.register(start, bytes) && watch.set_protected(start, bytes, true)).then_some(watch)
}

/// The mapping that contains a whole range.
fn mapping_at(start: u64, bytes: usize) -> Option<Mapping> {
    let end = start + bytes as u64;
    mappings().into_iter().find(|mapping| mapping.start <= start && end <= mapping.end)
}

fn is_private(mapping: &Mapping) -> bool {
    mapping.rights == "rw-p" && mapping.inode == 0 && mapping.name != "[stack]"
}

fn is_of(mapping: &Mapping, fd: BorrowedFd<'_>) -> bool {
    mapping.rights == "rw-s" && fstat(fd).is_ok_and(|file| file.st_ino == mapping.inode)
}

/// Whether the stack of this thread is in a range. The thread would then wait for itself when it
/// stores to its stack.
fn holds_stack(start: u64, bytes: usize) -> bool {
    let local = 0_u8;
    (start..start + bytes as u64).contains(&(&raw const local as u64))
}

fn populate(start: u64, bytes: usize) -> bool {
    // SAFETY: faulting in pages changes no content.
    unsafe { madvise(start as *mut c_void, bytes, Advice::LinuxPopulateWrite) }.is_ok()
}

/// Writes pages of the program to a segment.
fn write_all(fd: BorrowedFd<'_>, start: u64, bytes: usize) -> bool {
    transfer(bytes, |at, left| {
        // SAFETY: the kernel checks the range, and only reads from it.
        unsafe { libc::pwrite(fd.as_raw_fd(), (start as usize + at) as *const _, left, at as i64) }
    })
}

/// Reads a segment into a mapping of this library.
fn read_all(fd: BorrowedFd<'_>, to: *mut c_void, bytes: usize) -> bool {
    transfer(bytes, |at, left| {
        // SAFETY: `to` is a mapping of `bytes` bytes that only our caller uses, and `at + left` is
        // `bytes`.
        unsafe { libc::pread(fd.as_raw_fd(), to.byte_add(at), left, at as i64) }
    })
}

fn transfer(bytes: usize, mut part: impl FnMut(usize, usize) -> isize) -> bool {
    let mut at = 0;
    while at < bytes {
        match part(at, bytes - at) {
            moved @ 1.. => at += moved as usize,
            _ => return false,
        }
    }
    true
}

// The following functions make system calls directly. MPI libraries intercept libc's functions, and
// would conclude that the program has unmapped the region that is being registered.

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Maps a segment over pages of the program.
fn map_segment(fd: BorrowedFd<'_>, start: u64, bytes: usize) -> bool {
    map_file(fd, start, bytes, MapFlags::SHARED | MapFlags::POPULATE)
}

fn map_file(fd: BorrowedFd<'_>, start: u64, bytes: usize, flags: MapFlags) -> bool {
    let flags = flags | MapFlags::FIXED;
    // SAFETY: the range is a mapping of the program, and the segment has the same content. The
    // content cannot differ: either the range is protected from writing since it was copied, or the
    // range is a mapping of this very segment.
    unsafe { mmap(start as *mut c_void, bytes, READ_WRITE, flags, fd, 0) }.is_ok()
}

fn map_private(bytes: usize) -> Option<*mut c_void> {
    // SAFETY: the kernel picks a range of addresses that is not in use.
    unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, READ_WRITE, MapFlags::PRIVATE) }.ok()
}

/// Moves a mapping of this library over pages of the program.
fn move_mapping(from: *mut c_void, start: u64, bytes: usize) -> bool {
    let to = start as *mut c_void;
    // SAFETY: the target range is the program's mapping of the segment. `from` is a private mapping
    // with the same content, and the target is protected from writing since it was copied.
    unsafe { mremap_fixed(from, bytes, bytes, MremapFlags::MAYMOVE, to) }.is_ok()
}

fn unmap(at: *mut c_void, bytes: usize) {
    // SAFETY: this library created the mapping, and did not move it, so nothing else uses it.
    let _ = unsafe { munmap(at, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_mem::Words;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const BYTES: u64 = 4 * SHARED_BYTES_MIN;

    /// Private memory of a program.
    fn program() -> (Words, u64) {
        let words = Words::private(BYTES as usize / 8).unwrap();
        let start = words.as_slice().as_ptr() as u64;
        (words, start)
    }

    #[test]
    fn a_child_of_fork_does_not_write_to_its_parents_pages() {
        let (words, start) = program();
        words.as_slice()[0].store(7, Ordering::Relaxed);
        let Some(pages) = replace(start) else { return };
        pages.leave_to_parent();
        assert_eq!(words.as_slice()[0].swap(8, Ordering::Relaxed), 7);
        let mut bytes = [0; 8];
        assert!(pages.memory.read(0, &mut bytes));
        assert_eq!(u64::from_ne_bytes(bytes), 7);
    }

    fn replace(start: u64) -> Option<SharedPages> {
        let pages = SharedPages::replace(start, BYTES);
        if pages.is_none() {
            assert!(WriteWatch::new().is_none(), "the kernel has what it takes");
            println!("this kernel has no userfaultfd for programs");
        }
        pages
    }

    #[test]
    fn content_stays_and_both_mappings_have_the_same_bytes() {
        let (words, start) = program();
        words.as_slice()[9].store(7, Ordering::Relaxed);
        let Some(pages) = replace(start) else { return };
        assert!(pages.are_at(start, BYTES) && !pages.are_at(start, BYTES / 2));
        let mut bytes = [0; 8];
        assert!(pages.memory.read(72, &mut bytes));
        assert_eq!(u64::from_ne_bytes(bytes), 7);
        assert!(pages.memory.write(80, &8_u64.to_ne_bytes()));
        words.as_slice()[11].store(9, Ordering::Relaxed);
        drop(pages);
        let after = [9, 10, 11].map(|nth| words.as_slice()[nth].load(Ordering::Relaxed));
        assert_eq!(after, [7, 8, 9]);
        assert!(mapping_at(start, BYTES as usize).is_some_and(|mapping| is_private(&mapping)));
    }

    #[test]
    fn no_store_is_lost_while_pages_are_replaced() {
        let (words, start) = program();
        let is_over = AtomicBool::new(false);
        let stores = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Store to one word of each page in turn.
                for nth in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    let page = nth % (BYTES as usize / 4096);
                    words.as_slice()[page * 512].fetch_add(1, Ordering::Relaxed);
                    stores.fetch_add(1, Ordering::Relaxed);
                }
            });
            for _ in 0..200 {
                let before = stores.load(Ordering::Relaxed);
                let pages = replace(start);
                drop(pages);
                while stores.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let sum: u64 =
            words.as_slice().iter().step_by(512).map(|word| word.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, stores.load(Ordering::Relaxed));
    }

    #[test]
    fn pages_that_the_program_has_mapped_anew_are_left_alone() {
        let (words, start) = program();
        words.as_slice()[9].store(7, Ordering::Relaxed);
        let Some(pages) = replace(start) else { return };
        let anew = map_private(BYTES as usize).unwrap();
        assert!(move_mapping(anew, start, BYTES as usize));
        assert!(!pages.are_at(start, BYTES));
        drop(pages);
        assert_eq!(words.as_slice()[9].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn parts_of_pages_short_regions_and_foreign_mappings_stay_as_they_are() {
        let (_words, start) = program();
        assert!(SharedPages::replace(start + 64, BYTES - 4096).is_none());
        assert!(SharedPages::replace(start, BYTES - 64).is_none());
        assert!(SharedPages::replace(start, SHARED_BYTES_MIN / 2).is_none());
        let segment = Segment::create("other", BYTES as usize).unwrap();
        let region = segment.map().unwrap();
        assert!(SharedPages::replace(region.address().as_ptr() as u64, BYTES).is_none());
    }
}
