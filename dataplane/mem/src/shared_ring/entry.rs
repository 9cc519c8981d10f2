//! A received entry: a copy of its first header words, and access to its bytes, which are still in
//! the ring.

use super::shape::Shape;
use super::{DATA_WORDS, FIRST_WORDS, HEAD_WORDS_MAX, PART_BYTES, SLOT_WORDS, SharedRing};
use crate::memory::Memory;
use crate::sync::{AtomicU64, Ordering};

#[derive(Debug)]
pub struct Entry<'a> {
    first: &'a [AtomicU64; SLOT_WORDS],
    ring: &'a SharedRing,
    position: u64,
    shape: Shape,
    /// The first words of the head. Words beyond the length of the head have any value.
    words: [u64; FIRST_WORDS],
}

impl<'a> Entry<'a> {
    #[inline(always)]
    pub(super) fn copied(
        first: &'a [AtomicU64; SLOT_WORDS],
        ring: &'a SharedRing,
        position: u64,
        shape: Shape,
    ) -> Self {
        let words = std::array::from_fn(|nth| first[2 + nth].load(Ordering::Relaxed));
        Self { first, ring, position, shape, words }
    }

    #[inline(always)]
    pub fn tag(&self) -> u8 {
        self.shape.tag
    }

    #[inline(always)]
    pub fn head_words(&self) -> usize {
        self.shape.head_words
    }

    /// The first words of the head, which were copied at reception and do not change. Words beyond
    /// the length of the head are not part of it.
    #[inline(always)]
    pub fn first_words(&self) -> [u64; FIRST_WORDS] {
        self.words
    }

    /// All words of the head, followed by zeros. The words after the first [`FIRST_WORDS`] are
    /// copied from the ring by this call, and the sender may change them between calls. So call it
    /// once, and validate the copy.
    #[inline]
    pub fn head(&self) -> [u64; HEAD_WORDS_MAX] {
        let mut head = [0; HEAD_WORDS_MAX];
        let count = self.shape.head_words;
        let (first, rest) = head.split_at_mut(FIRST_WORDS);
        first.copy_from_slice(&self.words);
        first.iter_mut().skip(count).for_each(|word| *word = 0);
        let rest = rest.iter_mut().zip(&self.first[2 + FIRST_WORDS..]);
        for (copy, word) in rest.take(count.saturating_sub(FIRST_WORDS)) {
            *copy = word.load(Ordering::Relaxed);
        }
        head
    }

    /// The number of bytes after the head.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        self.shape.bytes
    }

    /// Passes the bytes to `show`, part by part and in order.
    #[inline]
    pub fn read(&self, mut show: impl FnMut(&[u8])) {
        if !self.shape.is_long() {
            return get(self.data(), self.shape.bytes, &mut show);
        }
        let mut buffer = [0; PART_BYTES];
        self.copy_long(|_, long, at, bytes| {
            (0..bytes).step_by(PART_BYTES).all(|skip| {
                let part = &mut buffer[..PART_BYTES.min(bytes - skip)];
                let is_read = long.read(at + skip, part);
                show(part);
                is_read
            })
        });
    }

    /// Copies the bytes. A short entry is passed to `write` as a slice. For a long entry, `copy` is
    /// called with the number of bytes already copied, a memory, an offset in it, and a number of
    /// bytes. Returns whether all calls succeeded.
    #[inline]
    #[must_use]
    pub fn copy_by(
        &self,
        mut write: impl FnMut(&[u8]) -> bool,
        copy: impl FnMut(usize, &Memory, usize, usize) -> bool,
    ) -> bool {
        if self.shape.is_long() {
            return self.copy_long(copy);
        }
        let mut went = true;
        get(self.data(), self.shape.bytes, &mut |bytes: &[u8]| went = write(bytes));
        went
    }

    fn copy_long(&self, mut copy: impl FnMut(usize, &Memory, usize, usize) -> bool) -> bool {
        let mut done = 0;
        self.ring.long_parts(self.position, self.shape.bytes).into_iter().all(|(at, bytes)| {
            let went = bytes == 0 || copy(done, &self.ring.long, at, bytes);
            done += bytes;
            went
        })
    }

    #[inline(always)]
    fn data(&self) -> &[AtomicU64] {
        &self.first[2 + self.shape.head_words..]
    }
}

impl Entry<'_> {
    /// Copies the bytes to offset `at` of a memory. Returns `false` if they do not fit.
    #[inline(always)]
    #[must_use]
    pub fn copy_to(&self, memory: &Memory, at: usize) -> bool {
        if !self.shape.is_long() {
            return memory.write_words(at, self.data(), self.shape.bytes);
        }
        self.copy_long(|done, long, from, bytes| {
            at.checked_add(done).is_some_and(|at| memory.copy(at, long, from, bytes))
        })
    }
}

#[inline(always)]
fn get(words: &[AtomicU64], bytes: usize, show: &mut impl FnMut(&[u8])) {
    if bytes == 0 {
        return;
    }
    let mut buffer = [0; DATA_WORDS * 8];
    let (whole, _) = buffer.as_chunks_mut::<8>();
    for (value, word) in whole.iter_mut().zip(words).take(bytes.div_ceil(8)) {
        *value = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    show(&buffer[..bytes]);
}
