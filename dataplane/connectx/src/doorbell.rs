//! The doorbell pages (UAR) of an adapter, to which libmlx5 stores.
//!
//! Each page has two registers for send queues. Page 0 also has a register for completion queues. A
//! store to a register is only a hint that a doorbell record has advanced: queues may share a
//! register, and a later store overwrites an earlier one. The adapter therefore exchanges the value
//! for 0, and reads the records of all queues of the register.
//!
//! Why the pages are a file: the program can then map and unmap them with system calls. MPI
//! libraries replace `mmap` and `munmap` by functions that make the system calls directly, so the
//! functions of this library would not be called.

use crate::mappings::{Mapping, mappings};
use crate::wqe::be32;
use pollux_mem::region::MapError;
use pollux_mem::{Segment, Words};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

pub(crate) const PAGE_BYTES: usize = 4096;
/// Pages of a context. With two registers each, they have the 16 registers that libmlx5 requests.
pub(crate) const PAGES: usize = 8;
pub(crate) const REGISTERS: u32 = 2 * PAGES as u32;
/// Bytes from one register to the next. A register has two halves, which libmlx5 uses in turn.
pub(crate) const REGISTER_BYTES: usize = 512;
const FIRST_REGISTER: usize = 0x800;
const CQ_DOORBELL: usize = 0x20;

/// The pages of a context.
#[derive(Debug)]
pub(crate) struct DoorbellPages {
    /// This library's own mapping.
    words: Words,
    /// The inode of the file, to find the program's mappings.
    inode: u64,
}

/// The value of a store to the register of completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqDoorbell {
    pub(crate) arm: u32,
    pub(crate) cqn: u32,
}

impl DoorbellPages {
    /// Returns the pages, and the file from which the program maps them. Page n is at the offset
    /// n x [`PAGE_BYTES`].
    pub(crate) fn new() -> Result<(Self, OwnedFd), Errno> {
        let no_memory = |_: MapError| Errno::NOMEM;
        let file = Segment::create("uverbs0", PAGES * PAGE_BYTES).map_err(no_memory)?;
        let words = Words::over(file.map().map_err(no_memory)?);
        let inode = fstat(&file)?.st_ino;
        Ok((Self { words, inode }, file.into_fd()))
    }

    /// The addresses and lengths of the program's mappings of the pages. libmlx5 maps each page
    /// separately; adjacent mappings are merged.
    pub(crate) fn mappings(&self) -> Vec<(u64, u64)> {
        let own = self.words.as_slice().as_ptr() as u64;
        let is_of_file =
            |mapping: &Mapping| mapping.inode == self.inode && mapping.name.starts_with("/memfd:");
        let all =
            mappings().into_iter().filter(|mapping| is_of_file(mapping) && mapping.start != own);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for Mapping { start, end, .. } in all {
            match ranges.last_mut() {
                Some((first, bytes)) if *first + *bytes == start => *bytes += end - start,
                _ => ranges.push((start, end - start)),
            }
        }
        ranges
    }

    /// Whether any register has a store that was not taken yet. Does not write to the pages.
    pub(crate) fn has_store(&self) -> bool {
        let words = self.words.as_slice();
        let halves = (0..REGISTERS).flat_map(register_halves);
        let mut all = halves.chain([CQ_DOORBELL]);
        all.any(|at| words[at / 8].load(Ordering::Acquire) != 0)
    }

    fn take(&self, at: usize) -> u64 {
        let word = &self.words.as_slice()[at / 8];
        // Load first: an unconditional swap would take the cache line away from the program.
        match word.load(Ordering::Relaxed) {
            0 => 0,
            _ => word.swap(0, Ordering::Acquire),
        }
    }

    /// Whether a register was rung since the last call.
    pub(crate) fn is_rung(&self, register: u32) -> bool {
        let halves = register_halves(register);
        halves.map(|at| self.take(at)).iter().any(|value| *value != 0)
    }

    pub(crate) fn take_cq_doorbell(&self) -> Option<CqDoorbell> {
        let bytes = self.take(CQ_DOORBELL).to_ne_bytes();
        let doorbell = CqDoorbell { arm: be32(&bytes, 0), cqn: be32(&bytes, 4) };
        (doorbell.cqn != 0).then_some(doorbell)
    }
}

/// The offsets of the two halves of a register.
fn register_halves(register: u32) -> [usize; 2] {
    let (page, nth) = (register as usize / 2, register as usize % 2);
    let at = page * PAGE_BYTES + FIRST_REGISTER + nth * REGISTER_BYTES;
    [at, at + REGISTER_BYTES / 2]
}

/// The target of a store to an offset of a context's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreTarget {
    /// The register of completion queues.
    Arm,
    /// A register of send queues, `at` bytes after the start of one of its halves.
    Send { register: u32, half: usize, at: usize },
}

impl StoreTarget {
    /// Returns `None` if there is no register at the offset.
    pub(crate) fn of(offset: usize) -> Option<Self> {
        if offset == CQ_DOORBELL {
            return Some(Self::Arm);
        }
        let (page, at) = (offset / PAGE_BYTES, (offset % PAGE_BYTES).checked_sub(FIRST_REGISTER)?);
        let (nth, at) = (at / REGISTER_BYTES, at % REGISTER_BYTES);
        let half_bytes = REGISTER_BYTES / 2;
        let (register, half) = ((page * 2 + nth) as u32, at / half_bytes);
        (page < PAGES && nth < 2).then_some(Self::Send { register, half, at: at % half_bytes })
    }
}

/// The index of a register in answers to CREATE_QP. It counts four registers per page, of which two
/// exist.
pub(crate) fn bfreg_index(register: u32) -> u32 {
    register / 2 * 4 + register % 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(pages: &DoorbellPages, at: usize, value: u64) {
        pages.words.as_slice()[at / 8].store(value, Ordering::Relaxed);
    }

    #[test]
    fn each_half_of_a_register_rings_it_once() {
        let (pages, _) = DoorbellPages::new().unwrap();
        for at in [0x1a00, 0x1b00] {
            store(&pages, at, 7);
            let rung: Vec<_> = (0..REGISTERS).filter(|n| pages.is_rung(*n)).collect();
            assert_eq!(rung, [3]);
            assert!(!pages.is_rung(3));
        }
    }

    #[test]
    fn offsets_lead_to_registers() {
        let send = |register, half, at| Some(StoreTarget::Send { register, half, at });
        for (offset, target) in [
            (0x20, Some(StoreTarget::Arm)),
            (0x28, None),
            (0x800, send(0, 0, 0)),
            (0x1b08, send(3, 1, 8)),
            (0x7bf8, send(15, 1, 0xf8)),
            (0xc00, None),
            (0x1020, None),
            (0x8800, None),
        ] {
            assert_eq!(StoreTarget::of(offset), target, "{offset:#x}");
        }
    }

    #[test]
    fn an_arm_names_its_completion_queue() {
        let (pages, _) = DoorbellPages::new().unwrap();
        let bytes = [0x11, 0, 0, 9, 0, 0, 4, 1];
        store(&pages, 0x20, u64::from_ne_bytes(bytes));
        assert_eq!(pages.take_cq_doorbell(), Some(CqDoorbell { arm: 0x1100_0009, cqn: 0x401 }));
        assert_eq!(pages.take_cq_doorbell(), None);
    }

    #[test]
    fn mappings_of_the_file_are_found() {
        let (pages, file) = DoorbellPages::new().unwrap();
        assert_eq!(pages.mappings(), []);
        let bytes = PAGES * PAGE_BYTES;
        let mapped = Segment::from_fd(file, bytes..=bytes).unwrap().map().unwrap();
        let [(start, length)] = pages.mappings()[..] else { panic!("{:?}", pages.mappings()) };
        assert_eq!((start, length), (mapped.address().as_ptr() as u64, bytes as u64));
        let program = Words::over(mapped);
        program.as_slice()[CQ_DOORBELL / 8].store(1, Ordering::Relaxed);
        assert!(pages.has_store());
    }
}
