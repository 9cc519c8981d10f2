//! Page-aligned memory from the kernel, on the largest available pages.
//!
//! Why huge pages: a pool of 64 Ki buffers of 2 KiB spans 138 MB, which is 34,000 small pages or 66
//! of 2 MiB. The TLB holds about two thousand entries, so small pages cost a page walk per packet.
//!
//! Why a lack of huge pages is not an error: a machine without reserved huge pages must still run,
//! if slower. So a region tries reserved huge pages, then transparent huge pages, then plain pages.
//!
//! Why all pages are faulted in when a region is mapped: the first access to a page causes a page
//! fault of microseconds, which must not happen in a poll iteration.
//!
//! Why this file never returns the bytes of a region as a slice: a device or another process may
//! write them at any time, which is undefined behavior for a slice. [`Words`](crate::Words) take a
//! region and access it by atomic operations only. The exception is a [`Pool`](crate::Pool), which
//! creates its region itself and so knows all other writers.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

pub const HUGE_PAGE_BYTES: usize = 2 << 20;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// Zero, or more than the address space holds.
    #[error("cannot map {bytes} bytes")]
    BadSize { bytes: usize },
    #[error("{call}: {errno}; is the memory limit of this process too low?")]
    System { call: &'static str, errno: rustix::io::Errno },
    /// The peer could resize the segment, or it is on pages that can run out.
    #[error("not shared memory sealed against resizing; its creator must use memfd and seal it")]
    NotSealed,
    #[error(
        "the shared memory has {bytes} bytes; expected {} to {}", allowed.start(), allowed.end()
    )]
    BadLength { bytes: u64, allowed: RangeInclusive<usize> },
}

impl MapError {
    pub(crate) fn system(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System { call, errno }
    }
}

/// A page-aligned mapping, which is unmapped on drop, unless the program made it
/// ([`Region::borrowed`]).
#[derive(Debug)]
pub struct Region {
    address: NonNull<u8>,
    bytes: usize,
    is_writable: bool,
    is_borrowed: bool,
}

// SAFETY: the mapping belongs to the process, not to the thread that made it, and only this value
// refers to it.
unsafe impl Send for Region {}
// SAFETY: a shared reference gives access to an address and numbers, but to no byte of the mapping.
unsafe impl Sync for Region {}

impl Region {
    /// At least `bytes` of zeroed private memory. All pages are faulted in.
    pub fn anonymous(bytes: usize) -> Result<Self, MapError> {
        let rounded = round_to_pages(bytes)?;
        if rounded < HUGE_PAGE_BYTES {
            return Self::map_plain(rounded);
        }
        let huge =
            rounded.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or(MapError::BadSize { bytes })?;
        Self::map_reserved_huge(huge).or_else(|_| Self::map_transparent(huge))
    }

    /// The first `bytes` of a file. A read-only region is not faulted in: most of it may never be
    /// accessed.
    pub(crate) fn of_file(
        fd: BorrowedFd<'_>,
        bytes: usize,
        protection: ProtFlags,
    ) -> Result<Self, MapError> {
        Self::of_file_at(fd, 0, bytes, protection)
    }

    /// As [`Region::of_file`], but from `offset` on.
    pub(crate) fn of_file_at(
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        protection: ProtFlags,
    ) -> Result<Self, MapError> {
        let flags = MapFlags::SHARED;
        // SAFETY: with a null hint and no MAP_FIXED the kernel picks addresses that nothing uses.
        let address = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, fd, offset) };
        let address = address.map_err(MapError::system("mmap"))?;
        if protection.contains(ProtFlags::WRITE) {
            return Ok(Self::fault_in(address, bytes));
        }
        let address = NonNull::new(address.cast()).expect("the kernel maps nothing at address 0");
        Ok(Self { address, bytes, is_writable: false, is_borrowed: false })
    }

    fn map_plain(bytes: usize) -> Result<Self, MapError> {
        Ok(Self::fault_in(map_anonymous(bytes, MapFlags::empty())?, bytes))
    }

    fn map_reserved_huge(bytes: usize) -> Result<Self, MapError> {
        let address = map_anonymous(bytes, MapFlags::HUGETLB | MapFlags::HUGE_2MB)?;
        Ok(Self::populated(address, bytes))
    }

    /// Maps one extra huge page and unmaps the unaligned ends. Otherwise the region would have
    /// small pages at both ends, because older kernels do not align mappings to huge pages.
    fn map_transparent(bytes: usize) -> Result<Self, MapError> {
        let surplus = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(MapError::BadSize { bytes })?;
        let start = map_anonymous(surplus, MapFlags::empty())?;
        let head = start.align_offset(HUGE_PAGE_BYTES);
        let tail = surplus - head - bytes;
        let address = start.wrapping_byte_add(head);
        unmap(start, head);
        unmap(address.wrapping_byte_add(bytes), tail);
        Ok(Self::fault_in(address, bytes))
    }

    /// Requests huge pages, if the region is large enough, and faults in all pages.
    fn fault_in(address: *mut c_void, bytes: usize) -> Self {
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: the range was just mapped by our caller; the advice changes no content.
            // A refusal leaves plain pages.
            let _ = unsafe { madvise(address, bytes, Advice::LinuxHugepage) };
        }
        Self::populated(address, bytes)
    }

    /// Faults in all pages. A kernel before 5.14 does not support that, and faults in each page at
    /// its first access.
    fn populated(address: *mut c_void, bytes: usize) -> Self {
        // SAFETY: the range was just mapped for writing; populating changes no content.
        let _ = unsafe { madvise(address, bytes, Advice::LinuxPopulateWrite) };
        let address = NonNull::new(address.cast()).expect("the kernel maps nothing at address 0");
        Self { address, bytes, is_writable: true, is_borrowed: false }
    }

    /// Pages that the program mapped itself, for a device that runs in its process.
    ///
    /// # Safety
    /// The range is page-aligned and stays mapped for reading and writing while the region exists,
    /// or the program accepts the fault of an access. The program treats the bytes as memory that a
    /// device may access at any time.
    pub const unsafe fn borrowed(address: NonNull<u8>, bytes: usize) -> Self {
        Self { address, bytes, is_writable: true, is_borrowed: true }
    }

    /// The address of the first byte, which is page-aligned, for registering the region with a
    /// device.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The requested length, rounded up to pages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.is_borrowed {
            unmap(self.address.as_ptr().cast(), self.bytes);
        }
    }
}

fn round_to_pages(bytes: usize) -> Result<usize, MapError> {
    let rounded = bytes.checked_next_multiple_of(rustix::param::page_size());
    match rounded {
        Some(rounded) if rounded > 0 && rounded <= isize::MAX as usize => Ok(rounded),
        _ => Err(MapError::BadSize { bytes }),
    }
}

fn map_anonymous(bytes: usize, more: MapFlags) -> Result<*mut c_void, MapError> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: with a null hint and no MAP_FIXED the kernel picks addresses that nothing uses.
    let address =
        unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE | more) };
    address.map_err(MapError::system("mmap"))
}

/// Unmaps pages of a mapping that this module made and to which no references are left.
fn unmap(address: *mut c_void, bytes: usize) {
    if bytes == 0 {
        return;
    }
    // SAFETY: every caller passes pages that it mapped itself and alone owns. The kernel refuses
    // only arguments that are not whole pages.
    let _ = unsafe { munmap(address, bytes) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Memory, Segment};

    #[test]
    fn a_region_of_any_size_is_aligned_zeroed_and_writable() {
        for bytes in [1, 4096, 100_000, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 1] {
            let region = Region::anonymous(bytes).unwrap();
            assert!(region.bytes() >= bytes && region.is_writable());
            assert_eq!(region.address().as_ptr().align_offset(rustix::param::page_size()), 0);
            let memory = Memory::over(region);
            let mut last = [7];
            assert!(memory.read(bytes - 1, &mut last));
            assert_eq!(last, [0], "fresh memory is zero");
            assert!(memory.write(bytes - 1, &[9]) && memory.read(bytes - 1, &mut last));
            assert_eq!(last, [9]);
        }
    }

    /// Reserves huge pages until it is dropped. Without the permission, it changes nothing.
    struct Reservation {
        before: String,
    }

    const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

    impl Reservation {
        fn of(pages: u32) -> Self {
            let before = std::fs::read_to_string(RESERVED).unwrap_or_default();
            let count = before.trim().parse().unwrap_or(0) + pages;
            if let Err(error) = std::fs::write(RESERVED, count.to_string()) {
                println!("cannot reserve huge pages: {error}");
            }
            Self { before }
        }
    }

    impl Drop for Reservation {
        fn drop(&mut self) {
            let _ = std::fs::write(RESERVED, &self.before);
        }
    }

    #[test]
    fn reserved_huge_pages_stay_mapped_while_their_region_lives() {
        let _reservation = Reservation::of(16);
        let Ok(region) = Region::map_reserved_huge(2 * HUGE_PAGE_BYTES) else {
            return println!("the kernel has no huge pages to reserve");
        };
        let memory = Memory::over(region);
        let mut last = [7];
        assert!(memory.write(2 * HUGE_PAGE_BYTES - 1, &[9]));
        assert!(memory.read(2 * HUGE_PAGE_BYTES - 1, &mut last));
        assert_eq!(last, [9]);
    }

    /// The number of read system calls of this thread so far.
    fn reads() -> u64 {
        let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let count = io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap();
        count.parse().unwrap()
    }

    #[test]
    fn mapping_reads_no_file() {
        let segment = Segment::create("test", 4096).unwrap();
        let counting = {
            let before = reads();
            reads() - before
        };
        let before = reads();
        let mapped = [
            segment.map().unwrap(),
            Region::anonymous(4096).unwrap(),
            Region::anonymous(HUGE_PAGE_BYTES).unwrap(),
        ];
        assert_eq!(reads() - before, counting, "the server maps a ring between two polls");
        drop(mapped);
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(matches!(Region::anonymous(0), Err(MapError::BadSize { .. })));
        assert!(matches!(Region::anonymous(usize::MAX), Err(MapError::BadSize { .. })));
        assert!(matches!(Region::anonymous(1 << 60), Err(MapError::System { .. })));
    }
}
