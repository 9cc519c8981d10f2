//! Registered memory, which adapters and their peers may read and write at any time.
//!
//! A peer may write into this memory by RDMA while its owner reads it. The owner may read a torn
//! value, which it must handle, but the access must not be undefined behavior. So this memory is
//! accessed only as relaxed atomic words, and never as a slice. Memory leased from a peer is
//! read-only ([`ReadWords`]).
//!
//! [`Memory::private`] is for hardware adapters, and for software adapters whose peers are in the
//! same process. [`Memory::shared`] can be read by peers in other processes. A long message to
//! another process is copied once from shared memory, and twice from private memory. No other
//! process can write shared memory: the local adapter executes the RDMA writes of peers.
//!
//! Offsets are in bytes. A copy whose ends are not aligned to words leaves adjacent bytes
//! unchanged: partial words are written by compare-and-swap.

use crate::region::{MapError, Region};
use crate::segment::Segment;
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::words::{ReadWord, ReadWords, Words};

/// Memory that can be registered with an adapter. A clone is another handle on the same memory.
#[derive(Clone, Debug)]
pub struct Memory {
    words: ReadWords,
    /// The segment that other processes map to read it.
    segment: Option<Arc<Segment>>,
}

const WORD: usize = size_of::<u64>();

/// From this length on, the string copy instruction is faster than a loop over words.
const BULK_BYTES: usize = 1024;

impl Memory {
    /// At least `bytes` of zeroed memory of this process.
    pub fn private(bytes: usize) -> Result<Self, MapError> {
        Region::anonymous(bytes).map(Self::over)
    }

    /// At least `bytes` of zeroed memory that peers in other processes can read. They can read all
    /// of it, so it should hold only data to send and received data. If the kernel cannot seal the
    /// memory against writing (before Linux 5.1), peers get no access to it.
    pub fn shared(bytes: usize) -> Result<Self, MapError> {
        Self::of_segment(Segment::create("pollux-memory", bytes)?)
    }

    /// As [`Memory::shared`], in a new segment. Mappings that the caller made before stay writable.
    pub fn of_segment(segment: Segment) -> Result<Self, MapError> {
        let memory = Self::over(segment.map()?);
        Ok(Self { segment: segment.seal().is_ok().then(|| Arc::new(segment)), ..memory })
    }

    /// Memory leased from a peer: every write is refused.
    pub fn leased(segment: &Segment) -> Result<Self, MapError> {
        Ok(Self { words: ReadWords::of(segment)?, segment: None })
    }

    pub(crate) fn of(words: Words) -> Self {
        Self { words: words.into(), segment: None }
    }

    pub fn over(region: Region) -> Self {
        Self { words: ReadWords::over(region), segment: None }
    }

    /// The segment that a peer maps to read this memory; `None` if it is not shared.
    pub fn segment(&self) -> Option<&Arc<Segment>> {
        self.segment.as_ref()
    }

    /// The virtual address of the first byte, as hardware adapters use it.
    pub fn address(&self) -> u64 {
        self.words.as_slice().as_ptr() as u64
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        self.words.as_slice().len() * WORD
    }

    /// Copies bytes at offset `at` into `out`. Returns `false` if they are out of bounds.
    #[must_use]
    #[inline]
    pub fn read(&self, at: usize, out: &mut [u8]) -> bool {
        if !self.holds(at, out.len()) {
            return false;
        }
        let words = &self.words.as_slice()[at / WORD..];
        let (head, body) = out.split_at_mut(head_len(at, out.len()));
        if let Some(first) = words.first() {
            let bytes = first.load().to_ne_bytes();
            head.copy_from_slice(&bytes[at % WORD..][..head.len()]);
        }
        let words = &words[usize::from(!head.is_empty())..];
        let (whole, tail) = body.as_chunks_mut::<WORD>();
        if whole.len() * WORD >= BULK_BYTES {
            bulk::load(whole, words);
        } else {
            for (bytes, word) in whole.iter_mut().zip(words) {
                *bytes = word.load().to_ne_bytes();
            }
        }
        if !tail.is_empty() {
            let bytes = words[whole.len()].load().to_ne_bytes();
            tail.copy_from_slice(&bytes[..tail.len()]);
        }
        true
    }

    /// Copies `bytes` to offset `at`. Returns `false` if out of bounds or read-only.
    #[must_use]
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) -> bool {
        if !self.takes(at, bytes.len()) {
            return false;
        }
        let words = &self.words.targets()[at / WORD..];
        let (head, body) = bytes.split_at(head_len(at, bytes.len()));
        if !head.is_empty() {
            blend(&words[0], at % WORD, head);
        }
        let words = &words[usize::from(!head.is_empty())..];
        let (whole, tail) = body.as_chunks::<WORD>();
        if whole.len() * WORD >= BULK_BYTES {
            bulk::store(words, whole);
        } else {
            for (bytes, word) in whole.iter().zip(words) {
                word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
        }
        if !tail.is_empty() {
            blend(&words[whole.len()], 0, tail);
        }
        true
    }

    /// Copies the first `bytes` of `from`, in native byte order, to offset `at`. Returns `false` if
    /// either is out of bounds.
    #[inline(always)]
    pub(crate) fn write_words(&self, at: usize, from: &[AtomicU64], bytes: usize) -> bool {
        if !self.takes(at, bytes) || bytes > from.len() * WORD {
            return false;
        }
        if !at.is_multiple_of(WORD) {
            return self.write_words_shifted(at, from, bytes);
        }
        let whole = bytes / WORD;
        let words = &self.words.targets()[at / WORD..];
        for (word, from) in words[..whole].iter().zip(from) {
            word.store(load(from), Ordering::Relaxed);
        }
        let tail = bytes % WORD;
        if tail > 0 {
            blend(&words[whole], 0, &load(&from[whole]).to_ne_bytes()[..tail]);
        }
        true
    }

    /// Copies to an offset that is not aligned, through a buffer: then only partial words at the
    /// ends of each buffer need a compare-and-swap.
    #[cold]
    fn write_words_shifted(&self, at: usize, from: &[AtomicU64], bytes: usize) -> bool {
        let mut buffer = [0; 8 * WORD];
        let parts = from.chunks(8).zip((0..bytes).step_by(buffer.len()));
        parts.into_iter().all(|(words, done)| {
            let (places, _) = buffer.as_chunks_mut::<WORD>();
            for (place, word) in places.iter_mut().zip(words) {
                *place = load(word).to_ne_bytes();
            }
            self.write(at + done, &buffer[..buffer.len().min(bytes - done)])
        })
    }

    /// Copies `bytes` of `from` at `from_at` to offset `at`. Returns `false` if either is out of
    /// bounds. If the ranges overlap, the target may get any mixture of old and new bytes.
    #[must_use]
    pub fn copy(&self, at: usize, from: &Self, from_at: usize, bytes: usize) -> bool {
        if !self.takes(at, bytes) || !from.holds(from_at, bytes) {
            return false;
        }
        if at % WORD == from_at % WORD {
            self.copy_aligned(at, from, from_at, bytes);
        } else {
            self.copy_shifted(at, from, from_at, bytes);
        }
        true
    }

    /// Copies between offsets that are equal modulo the word size: word by word, with at most one
    /// partial word at each end.
    fn copy_aligned(&self, at: usize, from: &Self, from_at: usize, bytes: usize) {
        let head = head_len(at, bytes);
        let body = (bytes - head) / WORD * WORD;
        let tail = bytes - head - body;
        self.copy_part(at, from, from_at, head);
        let targets = &self.words.targets()[(at + head) / WORD..][..body / WORD];
        let sources = &from.words.as_slice()[(from_at + head) / WORD..][..body / WORD];
        if body >= BULK_BYTES {
            bulk::copy(targets, sources);
        } else {
            for (target, source) in targets.iter().zip(sources) {
                target.store(source.load(), Ordering::Relaxed);
            }
        }
        self.copy_part(at + head + body, from, from_at + head + body, tail);
    }

    /// Copies between offsets that differ modulo the word size, through a buffer that stays in the
    /// L1 cache.
    fn copy_shifted(&self, at: usize, from: &Self, from_at: usize, bytes: usize) {
        let mut done = 0;
        let mut buffer = [0; 1024];
        while done < bytes {
            let part = &mut buffer[..1024.min(bytes - done)];
            let both = from.read(from_at + done, part) && self.write(at + done, part);
            debug_assert!(both, "our caller checked both ends");
            done += part.len();
        }
    }

    /// Copies a part of a word.
    fn copy_part(&self, at: usize, from: &Self, from_at: usize, bytes: usize) {
        if bytes > 0 {
            let mut part = [0; WORD];
            let both = from.read(from_at, &mut part[..bytes]) && self.write(at, &part[..bytes]);
            debug_assert!(both, "our caller checked both ends");
        }
    }

    /// Changes the eight bytes at `at` atomically and returns the old value; `None` if `at` is not
    /// a multiple of eight or out of bounds.
    #[must_use]
    pub fn update(&self, at: usize, change: impl Fn(u64) -> u64) -> Option<u64> {
        if !at.is_multiple_of(WORD) || !self.takes(at, WORD) {
            return None;
        }
        let word = &self.words.targets()[at / WORD];
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(old))).ok()
    }

    #[inline]
    fn holds(&self, at: usize, bytes: usize) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.bytes())
    }

    #[inline]
    fn takes(&self, at: usize, bytes: usize) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.words.targets().len() * WORD)
    }
}

/// The number of `bytes` before the first aligned word.
#[inline(always)]
fn head_len(at: usize, bytes: usize) -> usize {
    if at.is_multiple_of(WORD) { 0 } else { bytes.min(WORD - at % WORD) }
}

#[inline(always)]
fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Writes part of a word by compare-and-swap, so that concurrent writes to its other bytes are
/// kept.
fn blend(word: &AtomicU64, first: usize, part: &[u8]) {
    let put = |old: u64| {
        let mut bytes = old.to_ne_bytes();
        bytes[first..first + part.len()].copy_from_slice(part);
        Some(u64::from_ne_bytes(bytes))
    };
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, put).expect("put always gives a word");
}

#[cfg(all(target_arch = "x86_64", not(loom)))]
mod bulk {
    //! The string copy instruction, which moves entire cache lines.

    use super::{ReadWord, WORD};
    use crate::sync::AtomicU64;
    use std::arch::asm;

    /// Copies until the end of the shorter slice.
    pub(super) fn copy(targets: &[AtomicU64], sources: &[ReadWord]) {
        let words = targets.len().min(sources.len());
        // SAFETY: the slices have at least `words` words; atomic words may be written through a
        // shared borrow.
        unsafe { copy_words(targets.as_ptr().cast(), sources.as_ptr().cast(), words) }
    }

    pub(super) fn load(out: &mut [[u8; WORD]], sources: &[ReadWord]) {
        let words = out.len().min(sources.len());
        // SAFETY: as in `copy`; `out` is borrowed for writing.
        unsafe { copy_words(out.as_mut_ptr().cast(), sources.as_ptr().cast(), words) }
    }

    pub(super) fn store(targets: &[AtomicU64], bytes: &[[u8; WORD]]) {
        let words = targets.len().min(bytes.len());
        // SAFETY: as in `copy`.
        unsafe { copy_words(targets.as_ptr().cast(), bytes.as_ptr().cast(), words) }
    }

    /// # Safety
    /// Both ranges have this many words, and the first may be written.
    unsafe fn copy_words(to: *const u8, from: *const u8, words: usize) {
        // SAFETY: the caller guarantees the ranges. Other threads may access the words at the same
        // time, which would be a data race for an ordinary access of the language. Inline assembly
        // is no such access: the language treats it like an access by a device. By the calling
        // convention the direction flag is clear. The string copy changes only the three registers
        // that are declared.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") words * WORD => _,
                inout("rdi") to => _,
                inout("rsi") from => _,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(loom))))]
mod bulk {
    //! A loop over words, for other processors.

    use super::{ReadWord, WORD};
    use crate::sync::{AtomicU64, Ordering};

    pub(super) fn copy(targets: &[AtomicU64], sources: &[ReadWord]) {
        for (target, source) in targets.iter().zip(sources) {
            target.store(source.load(), Ordering::Relaxed);
        }
    }

    pub(super) fn load(out: &mut [[u8; WORD]], sources: &[ReadWord]) {
        for (bytes, source) in out.iter_mut().zip(sources) {
            *bytes = source.load().to_ne_bytes();
        }
    }

    pub(super) fn store(targets: &[AtomicU64], bytes: &[[u8; WORD]]) {
        for (target, bytes) in targets.iter().zip(bytes) {
            target.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: usize = 4096;

    fn filled(seed: u8) -> (Memory, Vec<u8>) {
        let memory = Memory::private(BYTES).unwrap();
        let content: Vec<u8> = (0..memory.bytes()).map(|i| (i as u8).wrapping_mul(seed)).collect();
        assert!(memory.write(0, &content));
        (memory, content)
    }

    fn all(memory: &Memory) -> Vec<u8> {
        let mut out = vec![0; memory.bytes()];
        assert!(memory.read(0, &mut out));
        out
    }

    proptest! {
        #[test]
        fn a_vector_of_bytes_agrees(
            at in 0..BYTES, from_at in 0..BYTES, bytes in 0usize..3000,
            put in proptest::collection::vec(any::<u8>(), 0..3000),
        ) {
            let ((memory, mut model), (other, other_model)) = (filled(3), filled(7));
            let fits = |at: usize, bytes: usize| at + bytes <= model.len();
            prop_assert_eq!(memory.write(at, &put), fits(at, put.len()));
            if fits(at, put.len()) {
                model[at..at + put.len()].copy_from_slice(&put);
            }
            prop_assert_eq!(&all(&memory), &model);

            let fits = at.max(from_at) + bytes <= model.len();
            prop_assert_eq!(memory.copy(at, &other, from_at, bytes), fits);
            if fits {
                model[at..at + bytes].copy_from_slice(&other_model[from_at..from_at + bytes]);
            }
            prop_assert_eq!(&all(&memory), &model);

            let mut out = vec![0; bytes];
            prop_assert_eq!(memory.read(at, &mut out), at + bytes <= model.len());
            if at + bytes <= model.len() {
                prop_assert_eq!(&out[..], &model[at..at + bytes]);
            }
        }
    }

    #[test]
    fn shared_memory_is_readable_and_not_writable_by_its_segment() {
        let memory = Memory::shared(BYTES).unwrap();
        let peers = Memory::leased(memory.segment().unwrap()).unwrap();
        assert!(memory.write(BYTES - 4, b"here"));
        let written = (peers.write(0, b"x"), peers.copy(0, &memory, 0, 8), peers.update(0, |_| 1));
        assert_eq!(written, (false, false, None));
        let mut out = [0; 4];
        assert!(peers.read(BYTES - 4, &mut out));
        assert_eq!((&out, peers.bytes()), (b"here", memory.bytes()));
        assert!(Memory::private(BYTES).unwrap().segment().is_none());
    }

    #[test]
    fn updates_are_whole_and_aligned() {
        let memory = Memory::private(BYTES).unwrap();
        assert!(memory.write(8, &7u64.to_ne_bytes()));
        assert_eq!(memory.update(8, |old| old + 1), Some(7));
        assert_eq!(memory.update(8, |old| old), Some(8));
        assert_eq!(memory.update(4, |old| old), None);
        assert_eq!(memory.update(memory.bytes(), |old| old), None);
    }
}
