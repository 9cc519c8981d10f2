//! The shape word of a ring entry: its tag and the lengths of its header and data.

use super::{BYTES_MAX, HEAD_WORDS_MAX, LONG_BYTES};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) tag: u8,
    pub(super) head_words: usize,
    pub(super) bytes: usize,
}

impl Shape {
    #[inline(always)]
    pub(super) fn new(tag: u8, head: &[u64], bytes: usize) -> Self {
        assert!(head.len() <= HEAD_WORDS_MAX && bytes <= BYTES_MAX, "an entry has its limits");
        Self { tag, head_words: head.len(), bytes }
    }

    #[inline(always)]
    pub(super) const fn to_word(self) -> u64 {
        self.tag as u64 | (self.head_words as u64) << 8 | (self.bytes as u64) << 32
    }

    /// `None` if the lengths are invalid.
    #[inline(always)]
    pub(super) const fn of_word(word: u64) -> Option<Self> {
        let shape = Self {
            tag: word as u8,
            head_words: (word >> 8 & 0xff) as usize,
            bytes: (word >> 32) as usize,
        };
        if shape.head_words > HEAD_WORDS_MAX || shape.bytes > BYTES_MAX {
            return None;
        }
        Some(shape)
    }

    /// Whether the bytes do not fit in the first slot.
    #[inline(always)]
    pub(super) const fn is_long(self) -> bool {
        self.bytes > (HEAD_WORDS_MAX - self.head_words) * 8
    }

    #[inline(always)]
    pub(super) const fn slots(self) -> u64 {
        if self.is_long() { self.bytes.div_ceil(LONG_BYTES) as u64 } else { 1 }
    }
}
