//! Memory that the adapter accesses as well: rings, doorbell records and doorbell registers.
//!
//! Only this file accesses it. libmlx5 allocates the memory with an object, and returns its
//! address. The values here are dropped before the object of the library.

use crate::barrier;
use crate::wqe::{BLOCK, Unit};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

/// A block, or an entry of a completion queue, in the byte order of memory.
pub(crate) type Block = [u64; BLOCK / 8];

/// A ring of entries.
#[derive(Debug)]
pub(crate) struct RingMemory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: only the thread that owns the device accesses the memory, and the adapter, which is no
// thread.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// `None` if the address is null or unaligned, or if the length is no power of two or less than
    /// a block.
    ///
    /// # Safety
    /// While this value exists, the bytes are allocated, and only the adapter and this value access
    /// them.
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
        // SAFETY: `at` returns an address within the memory. The load is volatile because the
        // adapter may write the word at any time.
        unsafe { ptr::read_volatile(self.at(at)) }
    }

    /// The address of a value whose offset is a multiple of its size. The offset wraps at the end
    /// of the ring.
    #[inline]
    fn at<T>(&self, at: usize) -> *mut T {
        const { assert!(size_of::<T>().is_power_of_two() && size_of::<T>() <= BLOCK) };
        // SAFETY: both sizes are powers of two, and the ring's is not smaller. So the mask, which
        // is their difference, limits the offset to at most that difference, where the value ends
        // at the end of the ring.
        unsafe { self.base.add(at & (self.bytes - size_of::<T>())).cast().as_ptr() }
    }

    #[inline]
    pub(crate) fn write(&self, at: usize, unit: Unit) {
        // SAFETY: `at` returns an address within the memory.
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

    /// Copies bytes to the ring. Bytes that do not fit before the end of the ring are written at
    /// its beginning.
    #[inline]
    pub(crate) fn write_around(&self, at: usize, bytes: &[u8]) {
        let at = at & (self.bytes - 1);
        let (first, rest) = match bytes.split_at_checked(self.bytes - at) {
            None => (bytes, &[][..]),
            Some(parts) => parts,
        };
        // SAFETY: the first part ends at the end of the memory at the latest. No slice of this
        // program is in a ring, so source and target do not overlap.
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
        // SAFETY: as above. The assertion checks that the rest fits.
        unsafe { ptr::copy_nonoverlapping(rest.as_ptr(), self.base.as_ptr(), rest.len()) };
    }

    /// Reads a block that the adapter may be writing. The adapter writes its last byte last. `None`
    /// if `is_complete` rejects this byte.
    #[inline]
    pub(crate) fn read_if(&self, at: usize, is_complete: impl FnOnce(u8) -> bool) -> Option<Block> {
        let block: *mut Block = self.at(at);
        // SAFETY: the last byte is in the block, which is within the memory. The load is volatile
        // because the adapter may write the byte.
        let last = unsafe { ptr::read_volatile(block.cast::<u8>().add(BLOCK - 1)) };
        if !is_complete(last) {
            return None;
        }
        barrier::from_device();
        // SAFETY: the block is within the memory. The adapter has completed it and does not write
        // it again before it is returned.
        Some(unsafe { ptr::read_unaligned(block) })
    }

    /// Reads a block that the adapter does not write now.
    #[inline]
    pub(crate) fn read_block(&self, at: usize) -> Block {
        // SAFETY: `at` returns an address within the memory.
        unsafe { ptr::read_unaligned(self.at(at)) }
    }
}

fn is_aligned(memory: NonNull<u8>) -> bool {
    memory.as_ptr().addr().is_multiple_of(align_of::<Unit>())
}

/// A doorbell record: two 32-bit words, which the adapter reads when a doorbell rings or when it
/// needs a receive.
#[derive(Debug)]
pub(crate) struct Record(NonNull<u32>);

// SAFETY: as for [`RingMemory`].
unsafe impl Send for Record {}

impl Record {
    pub(crate) const RECEIVE: usize = 0;
    pub(crate) const SEND: usize = 1;
    pub(crate) const CONSUMER: usize = 0;
    pub(crate) const ARM: usize = 1;

    /// # Safety
    /// As for [`RingMemory::new`], for two words.
    pub(crate) unsafe fn new(record: *mut u32) -> Option<Self> {
        NonNull::new(record).filter(|record| record.is_aligned()).map(Self)
    }

    /// Writes a word, which passes all entries written to the ring before to the adapter.
    #[inline]
    pub(crate) fn set(&self, nth: usize, word: u32) {
        barrier::to_device();
        // SAFETY: a record has two words, and the mask limits the index to them.
        unsafe { self.0.add(nth & 1).write_volatile(word.to_be()) };
    }
}

/// The doorbell register of send queues. Its page is mapped write-only and write-combining, so a
/// store may be delayed until the next barrier.
///
/// Queue pairs share registers, so the device owns them.
#[derive(Debug)]
pub(crate) struct SendRegister {
    address: NonNull<u8>,
    /// The length of each of its two halves in bytes. 0 if the register takes only the first eight
    /// bytes of a WQE.
    half_bytes: usize,
    /// The offset of the half for the next doorbell. The halves alternate, so that the stores of
    /// two doorbells do not merge.
    half: usize,
}

// SAFETY: as for [`RingMemory`].
unsafe impl Send for SendRegister {}

impl SendRegister {
    /// # Safety
    /// As for [`RingMemory::new`], for two halves of `half_bytes` bytes, or for eight bytes if
    /// `half_bytes` is 0.
    pub(crate) unsafe fn new(address: *mut c_void, half_bytes: u32) -> Option<Self> {
        let address = NonNull::new(address.cast::<u8>())?;
        let half_bytes = half_bytes as usize;
        let is_whole = is_aligned(address) && half_bytes.is_multiple_of(BLOCK);
        is_whole.then_some(Self { address, half_bytes, half: 0 })
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Makes the next doorbell go to the other half.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn flip(&mut self) {
        self.half ^= self.half_bytes;
    }

    /// Whether a WQE of this number of blocks can be written to the register.
    #[inline]
    pub(crate) fn takes(&self, blocks: usize) -> bool {
        blocks * BLOCK <= self.half_bytes
    }

    #[inline]
    fn words(&self) -> NonNull<u64> {
        // SAFETY: the half is within the register.
        unsafe { self.address.add(self.half) }.cast()
    }

    /// Rings the doorbell with the first eight bytes of the last WQE.
    #[inline]
    pub(crate) fn ring(&mut self, first: u64) {
        barrier::before_doorbell();
        // SAFETY: a half has at least eight bytes, and the page is mapped for writing.
        unsafe { self.words().write_volatile(first) };
        barrier::after_doorbell();
        self.half ^= self.half_bytes;
    }

    /// Rings the doorbell with a complete WQE (BlueFlame). The register must take this number of
    /// blocks.
    #[inline]
    pub(crate) fn ring_by_wqe(&mut self, blocks: usize, block: impl Fn(usize) -> Block) {
        barrier::before_doorbell();
        let words = self.words();
        for nth in 0..blocks.min(self.half_bytes / BLOCK) {
            // The words are stored one by one, because the adapter expects complete cache lines in
            // ascending order.
            for (at, word) in block(nth).into_iter().enumerate() {
                // SAFETY: the loop is limited to the blocks of a half, which is mapped for writing.
                unsafe { words.add(nth * (BLOCK / 8) + at).write_volatile(word) };
            }
        }
        barrier::after_doorbell();
        self.half ^= self.half_bytes;
    }
}

/// The doorbell register of completion queues, in a page as that of [`SendRegister`].
#[derive(Debug)]
pub(crate) struct ArmRegister(NonNull<u64>);

// SAFETY: as for [`RingMemory`].
unsafe impl Send for ArmRegister {}

impl ArmRegister {
    /// The offset of the register in its page.
    pub(crate) const AT: usize = 0x20;

    /// # Safety
    /// As for [`RingMemory::new`], for a page of registers.
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
