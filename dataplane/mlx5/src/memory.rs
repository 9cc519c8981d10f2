//! Memory that the adapter reads and writes too: rings, doorbell records, doorbell registers.
//!
//! All accesses to it are here. libmlx5 allocates it with the object, and tells its place; an
//! object that uses it is dropped with the library's.

use crate::barrier;
use crate::wqe::{BLOCK, Unit};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

/// A block, or an entry of a completion queue, as it is in memory.
pub(crate) type Block = [u64; BLOCK / 8];

/// A ring of entries.
#[derive(Debug)]
pub(crate) struct RingMemory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is reached by the one thread that has the device, and by the adapter.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// `None` if the length is no power of two, or less than a block.
    ///
    /// # Safety
    /// The bytes are there, and nothing but the adapter and this value uses them, for as long as
    /// the value lives.
    pub(crate) unsafe fn new(base: *mut c_void, bytes: usize) -> Option<Self> {
        let base = NonNull::new(base.cast())?;
        let is_right = is_aligned(base) && bytes.is_power_of_two() && bytes >= BLOCK;
        is_right.then_some(Self { base, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(crate) fn copy(&self) -> Vec<u8> {
        let blocks = (0..self.bytes / 8).map(|at| self.read_word(at * 8));
        blocks.flat_map(u64::to_ne_bytes).collect()
    }

    #[cfg(test)]
    fn read_word(&self, at: usize) -> u64 {
        // SAFETY: `at` gives a place within the memory; the adapter may write it meanwhile.
        unsafe { ptr::read_volatile(self.at(at)) }
    }

    /// The place of a value at a multiple of its size, around the end of the ring.
    #[inline]
    fn at<T>(&self, at: usize) -> *mut T {
        const { assert!(size_of::<T>().is_power_of_two() && size_of::<T>() <= BLOCK) };
        // SAFETY: both are powers of two, the ring's the greater one: the last place for the value
        // is at their difference, whose bits are those of all places before it.
        unsafe { self.base.add(at & (self.bytes - size_of::<T>())).cast().as_ptr() }
    }

    #[inline]
    pub(crate) fn write(&self, at: usize, unit: Unit) {
        // SAFETY: `at` gives a place within the memory.
        unsafe { ptr::write_unaligned(self.at(at), unit) };
    }

    #[inline]
    pub(crate) fn write_be32(&self, at: usize, word: u32) {
        // SAFETY: as above.
        unsafe { ptr::write_unaligned(self.at(at), word.to_be()) };
    }

    pub(crate) fn read_be16(&self, at: usize) -> u16 {
        // SAFETY: as above.
        u16::from_be(unsafe { ptr::read_unaligned(self.at(at)) })
    }

    /// Copies bytes, up to the end of the ring, and the rest to its beginning.
    #[inline]
    pub(crate) fn write_around(&self, at: usize, bytes: &[u8]) {
        let at = at & (self.bytes - 1);
        let (first, rest) = match bytes.split_at_checked(self.bytes - at) {
            None => (bytes, &[][..]),
            Some(parts) => parts,
        };
        // SAFETY: the first part ends at the end of the memory at the latest; nothing of ours
        // points into a ring, so they do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(first.as_ptr(), self.base.as_ptr().add(at), first.len());
        }
        if !rest.is_empty() {
            self.write_rest(rest);
        }
    }

    #[cold]
    fn write_rest(&self, rest: &[u8]) {
        assert!(rest.len() <= self.bytes, "beyond the ring");
        // SAFETY: as above; it fits by the line above.
        unsafe { ptr::copy_nonoverlapping(rest.as_ptr(), self.base.as_ptr(), rest.len()) };
    }

    /// A block that the adapter may write now, its last byte last: the block, if that byte says
    /// that it is complete.
    #[inline]
    pub(crate) fn read_if(&self, at: usize, is_complete: impl FnOnce(u8) -> bool) -> Option<Block> {
        let block: *mut Block = self.at(at);
        // SAFETY: the last byte is in the block, which is within the memory.
        let last = unsafe { ptr::read_volatile(block.cast::<u8>().add(BLOCK - 1)) };
        if !is_complete(last) {
            return None;
        }
        barrier::from_device();
        // SAFETY: the block is within the memory.
        Some(unsafe { ptr::read_unaligned(block) })
    }

    /// A block that the adapter does not write now.
    #[inline]
    pub(crate) fn read_block(&self, at: usize) -> Block {
        // SAFETY: `at` gives a place within the memory.
        unsafe { ptr::read_unaligned(self.at(at)) }
    }
}

fn is_aligned(memory: NonNull<u8>) -> bool {
    memory.as_ptr().addr().is_multiple_of(align_of::<Unit>())
}

/// A doorbell record: two words of 32 bits, which the adapter reads when a doorbell is rung, or
/// when it needs a receive.
#[derive(Debug)]
pub(crate) struct Record(NonNull<u32>);

// SAFETY: as for a ring.
unsafe impl Send for Record {}

impl Record {
    pub(crate) const RECEIVE: usize = 0;
    pub(crate) const SEND: usize = 1;
    pub(crate) const CONSUMER: usize = 0;
    pub(crate) const ARM: usize = 1;

    /// # Safety
    /// As for [`RingMemory::new`], of two words.
    pub(crate) unsafe fn new(record: *mut u32) -> Option<Self> {
        NonNull::new(record).filter(|record| record.is_aligned()).map(Self)
    }

    /// Writes a word, which hands over all that was written to the ring before.
    #[inline]
    pub(crate) fn set(&self, nth: usize, word: u32) {
        barrier::to_device();
        // SAFETY: a record has two words, and `nth` is one of the constants above.
        unsafe { self.0.add(nth & 1).write_volatile(word.to_be()) };
    }
}

/// The doorbell register of send queues, in a page that is mapped for writing only, and
/// write-combining: a store may wait until the next barrier.
///
/// Queue pairs share registers, so their device keeps them.
#[derive(Debug)]
pub(crate) struct SendRegister {
    address: NonNull<u8>,
    /// Bytes of one of its two halves; 0 if it takes no WQE, only the first eight bytes of one.
    half_bytes: usize,
    /// Where the half of the next doorbell is. They take turns, so that the lines of two doorbells
    /// do not merge.
    half: usize,
}

// SAFETY: as for a ring.
unsafe impl Send for SendRegister {}

impl SendRegister {
    /// # Safety
    /// As for [`RingMemory::new`], of two halves of `half_bytes`, or of eight bytes if that is 0.
    pub(crate) unsafe fn new(address: *mut c_void, half_bytes: u32) -> Option<Self> {
        let address = NonNull::new(address.cast::<u8>())?;
        let half_bytes = half_bytes as usize;
        let is_whole = is_aligned(address) && half_bytes.is_multiple_of(BLOCK);
        is_whole.then_some(Self { address, half_bytes, half: 0 })
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The next doorbell goes to the other half.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn flip(&mut self) {
        self.half ^= self.half_bytes;
    }

    /// Whether a WQE of so many blocks can be written to it.
    #[inline]
    pub(crate) fn takes(&self, blocks: usize) -> bool {
        blocks * BLOCK <= self.half_bytes
    }

    #[inline]
    fn words(&self) -> NonNull<u64> {
        // SAFETY: the half is within the register.
        unsafe { self.address.add(self.half) }.cast()
    }

    /// Rings by the first eight bytes of the last WQE.
    #[inline]
    pub(crate) fn ring(&mut self, first: u64) {
        barrier::before_doorbell();
        // SAFETY: a half has eight bytes at least, and the page is mapped for writing.
        unsafe { self.words().write_volatile(first) };
        barrier::after_doorbell();
        self.half ^= self.half_bytes;
    }

    /// Rings by a WQE itself (BlueFlame): so many blocks, which the register takes.
    #[inline]
    pub(crate) fn ring_by_wqe(&mut self, blocks: usize, block: impl Fn(usize) -> Block) {
        barrier::before_doorbell();
        let words = self.words();
        for nth in 0..blocks.min(self.half_bytes / BLOCK) {
            // One store after the other: the adapter takes complete lines in ascending order.
            for (at, word) in block(nth).into_iter().enumerate() {
                // SAFETY: so many blocks are within the half.
                unsafe { words.add(nth * (BLOCK / 8) + at).write_volatile(word) };
            }
        }
        barrier::after_doorbell();
        self.half ^= self.half_bytes;
    }
}

/// The doorbell register of completion queues, in such a page.
#[derive(Debug)]
pub(crate) struct ArmRegister(NonNull<u64>);

// SAFETY: as for a ring.
unsafe impl Send for ArmRegister {}

impl ArmRegister {
    /// Where it is in a page.
    pub(crate) const AT: usize = 0x20;

    /// # Safety
    /// As for [`RingMemory::new`], of a page of registers.
    pub(crate) unsafe fn new(page: *mut c_void) -> Option<Self> {
        let page = NonNull::new(page.cast::<u8>()).filter(|page| is_aligned(*page))?;
        // SAFETY: the register is in the page.
        Some(Self(unsafe { page.add(Self::AT) }.cast()))
    }

    pub(crate) fn ring(&self, arm: u32, cqn: u32) {
        barrier::before_doorbell();
        let word = u64::from(arm) << 32 | u64::from(cqn);
        // SAFETY: the page is mapped for writing.
        unsafe { self.0.write_volatile(word.to_be()) };
        barrier::after_doorbell();
    }
}
