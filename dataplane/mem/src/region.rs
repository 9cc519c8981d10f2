//! Page-aligned memory from the kernel, on the largest pages that can be had.
//!
//! Why huge pages: a pool of 64 Ki buffers of 2 KiB spans 138 MB, which is 34,000 small pages or 66
//! of 2 MiB. The TLB holds about two thousand entries, so small pages cost a page walk per packet.
//!
//! Why never fail for want of them: a machine that reserves none must still run, slower. So there
//! are three steps, and [`Region::backing`] says which one was reached, as the kernel reports it
//! and not as we wished: pages reserved for huge use, pages that the kernel makes huge by itself,
//! plain ones.
//!
//! Why fault everything in at once: the first touch of a page is an exception of microseconds,
//! which does not belong in a breath. It also makes the report true.

use crate::segment::Segment;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fmt;
use std::ops::RangeInclusive;
use std::ptr::{self, NonNull};

/// The size of a huge page on the machines that we run on.
pub const HUGE_PAGE_OCTETS: usize = 2 << 20;

/// What pages a region lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Pages of 2 MiB that the administrator had reserved.
    Huge2M,
    /// The kernel uses huge pages for this region, or for a part of it.
    Transparent,
    /// Pages of the machine's base size.
    Plain,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge2M => "huge pages of 2 MiB",
            Self::Transparent => "transparent huge pages",
            Self::Plain => "plain pages",
        })
    }
}

/// Why there is no memory to be had, or why a segment is refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum MapError {
    /// Nothing, or more than an address space holds, was asked for.
    BadSize {
        /// What was asked for.
        octets: usize,
    },
    /// The kernel refused.
    System {
        /// The call that it refused.
        call: &'static str,
        /// Its reason.
        errno: rustix::io::Errno,
    },
    /// The segment could be resized under our feet, or lies on pages that can run out.
    NotSealed,
    /// The segment is shorter or longer than was agreed.
    BadLength {
        /// What it has.
        octets: u64,
        /// What was agreed.
        allowed: RangeInclusive<usize>,
    },
}

impl MapError {
    pub(crate) fn system(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System { call, errno }
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSize { octets } => write!(f, "cannot map {octets} octets"),
            Self::System { call, errno } => {
                write!(f, "{call}: {errno}; is the memory limit of this process too low?")
            }
            Self::NotSealed => f.write_str(
                "not shared memory sealed against resizing; its maker must use memfd and seal it",
            ),
            Self::BadLength { octets, allowed } => {
                let (least, most) = (allowed.start(), allowed.end());
                write!(f, "shared memory has {octets} octets, agreed were {least} to {most}")
            }
        }
    }
}

impl std::error::Error for MapError {}

/// A mapping that this value alone owns: unmapped when dropped.
///
/// Its octets are never lent as a slice, because a device or another process may write them at any
/// time. Give the region to a [`Pool`](crate::Pool) or to [`Words`](crate::Words), or copy in and
/// out.
#[derive(Debug)]
pub struct Region {
    address: NonNull<u8>,
    octets: usize,
    backing: Backing,
}

// SAFETY: the mapping belongs to the process, not to the thread that made it, and only this value
// refers to it.
unsafe impl Send for Region {}
// SAFETY: through a shared reference the octets can only be copied out; writing takes `&mut`.
unsafe impl Sync for Region {}

impl Region {
    /// At least `octets` of zeroed private memory, all of it faulted in.
    pub fn anonymous(octets: usize) -> Result<Self, MapError> {
        let rounded = round_to_pages(octets)?;
        if rounded < HUGE_PAGE_OCTETS {
            return Self::map_plain(rounded);
        }
        let huge = rounded
            .checked_next_multiple_of(HUGE_PAGE_OCTETS)
            .ok_or(MapError::BadSize { octets })?;
        Self::map_reserved_huge(huge).or_else(|_| Self::map_transparent(huge))
    }

    /// The whole of `segment`. What is only read is faulted in as it is: most of it never may be.
    pub(crate) fn of_segment(segment: &Segment, protection: ProtFlags) -> Result<Self, MapError> {
        let octets = segment.octets();
        // SAFETY: with a null hint and no MAP_FIXED the kernel picks addresses that nothing uses.
        let address =
            unsafe { mmap(ptr::null_mut(), octets, protection, MapFlags::SHARED, segment.fd(), 0) };
        let address = address.map_err(MapError::system("mmap"))?;
        if protection.contains(ProtFlags::WRITE) {
            return Ok(Self::fault_in(address, octets));
        }
        let address = NonNull::new(address.cast()).expect("the kernel maps nothing at address 0");
        Ok(Self { address, octets, backing: Backing::Plain })
    }

    fn map_plain(octets: usize) -> Result<Self, MapError> {
        let address = map_anonymous(octets, MapFlags::empty())?;
        Ok(Self { address: populate(address, octets), octets, backing: Backing::Plain })
    }

    fn map_reserved_huge(octets: usize) -> Result<Self, MapError> {
        let address = map_anonymous(octets, MapFlags::HUGETLB | MapFlags::HUGE_2MB)?;
        Ok(Self { address: populate(address, octets), octets, backing: Backing::Huge2M })
    }

    /// Takes one huge page too many and gives the ends back: an unaligned region would have small
    /// pages at both ends, and older kernels do not align by themselves.
    fn map_transparent(octets: usize) -> Result<Self, MapError> {
        let surplus = octets.checked_add(HUGE_PAGE_OCTETS).ok_or(MapError::BadSize { octets })?;
        let start = map_anonymous(surplus, MapFlags::empty())?;
        let head = start.align_offset(HUGE_PAGE_OCTETS);
        let tail = surplus - head - octets;
        let address = start.wrapping_byte_add(head);
        unmap(start, head);
        unmap(address.wrapping_byte_add(octets), tail);
        Ok(Self::fault_in(address, octets))
    }

    /// Asks for huge pages, touches everything, and looks what came of it.
    fn fault_in(address: *mut c_void, octets: usize) -> Self {
        // SAFETY: the range was just mapped by our caller; the advice changes no content.
        // A refusal leaves plain pages, which the report below will show.
        let _ = unsafe { madvise(address, octets, Advice::LinuxHugepage) };
        let address = populate(address, octets);
        let backing =
            if kernel_uses_huge_pages(address) { Backing::Transparent } else { Backing::Plain };
        Self { address, octets, backing }
    }

    /// Where it begins: page-aligned. For registering the region with a device.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// How long it is: what was asked for, rounded up to whole pages.
    pub fn octets(&self) -> usize {
        self.octets
    }

    /// What pages it lies on.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Copies octets from `offset` on into `out`; says whether the region reaches that far.
    ///
    /// What is copied may be torn when another process writes meanwhile, so agree on the time by a
    /// ring, and judge the copy and never the original.
    #[must_use]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> bool {
        let Some(source) = self.at(offset, out.len()) else { return false };
        // SAFETY: `at` checked that the source lies within the mapping, which lives as long as
        // `self`; `out` is ordinary memory and so cannot overlap it. In this process nobody writes
        // the source meanwhile (that takes `&mut self`). Another process may: that is the case of
        // memory written by a device, outside what the compiler reasons about, and any octet is a
        // valid u8.
        unsafe { ptr::copy_nonoverlapping(source, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Copies `octets` to `offset` on; says whether the region reaches that far.
    #[must_use]
    pub fn copy_in(&mut self, offset: usize, octets: &[u8]) -> bool {
        let Some(target) = self.at(offset, octets.len()) else { return false };
        // SAFETY: as in `copy_out`, with the directions exchanged; `&mut self` keeps others out.
        unsafe { ptr::copy_nonoverlapping(octets.as_ptr(), target, octets.len()) };
        true
    }

    fn at(&self, offset: usize, octets: usize) -> Option<*mut u8> {
        let end = offset.checked_add(octets)?;
        (end <= self.octets).then(|| self.address.as_ptr().wrapping_add(offset))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        unmap(self.address.as_ptr().cast(), self.octets);
    }
}

fn round_to_pages(octets: usize) -> Result<usize, MapError> {
    let rounded = octets.checked_next_multiple_of(rustix::param::page_size());
    match rounded {
        Some(rounded) if rounded > 0 && rounded <= isize::MAX as usize => Ok(rounded),
        _ => Err(MapError::BadSize { octets }),
    }
}

fn map_anonymous(octets: usize, more: MapFlags) -> Result<*mut c_void, MapError> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: with a null hint and no MAP_FIXED the kernel picks addresses that nothing uses.
    let address =
        unsafe { mmap_anonymous(ptr::null_mut(), octets, protection, MapFlags::PRIVATE | more) };
    address.map_err(MapError::system("mmap"))
}

/// Gives back pages of a mapping that this module made and to which no reference is left.
fn unmap(address: *mut c_void, octets: usize) {
    if octets == 0 {
        return;
    }
    // SAFETY: every caller passes pages that it mapped itself and whose only owner it is. The
    // kernel refuses only arguments that are not pages, so there is nothing to tell of.
    let _ = unsafe { munmap(address, octets) };
}

/// Faults all pages in. A kernel before 5.14 does not know how: then each comes at its first touch.
fn populate(address: *mut c_void, octets: usize) -> NonNull<u8> {
    // SAFETY: the range was just mapped for writing; populating changes no content.
    let _ = unsafe { madvise(address, octets, Advice::LinuxPopulateWrite) };
    NonNull::new(address.cast()).expect("the kernel maps nothing at address 0 unless told to")
}

/// Whether any of the mapping around `address` lies on huge pages, by `/proc/self/smaps`.
fn kernel_uses_huge_pages(address: NonNull<u8>) -> bool {
    let address = address.addr().get();
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return false };
    let mut ours = false;
    for line in smaps.lines() {
        if let Some(range) = address_range(line) {
            ours = range.contains(&address);
        } else if ours && (line.starts_with("AnonHuge") || line.starts_with("ShmemPmdMapped")) {
            let kib = line.split_ascii_whitespace().nth(1).unwrap_or("0");
            if kib != "0" {
                return true;
            }
        }
    }
    false
}

/// The addresses in the first line of a mapping's entry, such as `7f10e000-7f30e000 rw-p 0 ...`.
fn address_range(line: &str) -> Option<std::ops::Range<usize>> {
    let (from, to) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn any_size_is_had_and_reported() {
        for octets in [1, 4096, 100_000, HUGE_PAGE_OCTETS, 3 * HUGE_PAGE_OCTETS + 1] {
            let mut region = Region::anonymous(octets).unwrap();
            assert!(region.octets() >= octets);
            assert_eq!(region.address().as_ptr().align_offset(rustix::param::page_size()), 0);
            println!("{octets} octets on {}", region.backing());
            let mut last = [7];
            assert!(region.copy_out(octets - 1, &mut last));
            assert_eq!(last, [0], "fresh memory is zero");
            assert!(region.copy_in(octets - 1, &[9]));
            assert!(region.copy_out(octets - 1, &mut last));
            assert_eq!(last, [9]);
        }
    }

    #[test]
    fn copies_stay_inside() {
        let mut region = Region::anonymous(1).unwrap();
        let octets = region.octets();
        assert!(!region.copy_in(octets, &[1]));
        assert!(!region.copy_in(usize::MAX, &[1]));
        assert!(!region.copy_out(octets - 1, &mut [0; 2]));
        assert!(region.copy_out(octets, &mut []));
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(matches!(Region::anonymous(0), Err(MapError::BadSize { .. })));
        assert!(matches!(Region::anonymous(usize::MAX), Err(MapError::BadSize { .. })));
        assert!(matches!(Region::anonymous(1 << 60), Err(MapError::System { .. })));
    }

    #[test]
    fn smaps_headers_are_told_from_its_fields() {
        assert_eq!(address_range("1000-3000 rw-p 00000000 00:00 0"), Some(0x1000..0x3000));
        assert_eq!(address_range("AnonHugePages:      2048 kB"), None);
        assert_eq!(address_range(""), None);
    }
}
