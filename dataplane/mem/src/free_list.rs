//! A list of free indices that any number of threads share without a lock.
//!
//! It is a stack linked through an array: `next[i]` is the index below `i`. A whole chain is pushed
//! or popped with one compare-and-swap, so a worker that refills 32 buffers accesses the shared
//! cache line once.
//!
//! Why the head has a tag: between a thread's load of the head and its swap, other threads may pop
//! the same index and push it again with another chain below it (the ABA problem). Every swap
//! increments the tag, so a head that compares equal has not changed, and the chain below it is the
//! one that the thread has read. The tag has 40 bits. It fails only if a thread is stopped there
//! for exactly 2^40 swaps, about six hours.
//!
//! Why a stack and not a queue: the buffer that was freed last is probably still in a CPU cache.

use crate::pad::CachePadded;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

pub const INDICES_MAX: u32 = NIL;

const INDEX_BITS: u32 = 24;
const NIL: u32 = (1 << INDEX_BITS) - 1;

/// A shared stack of indices below a fixed number. An index that is pushed twice is popped twice,
/// so callers must own the indices that they push. The types of the pool guarantee this.
pub struct FreeList {
    head: CachePadded<AtomicU64>,
    next: Box<[AtomicU32]>,
}

/// The index on top and the tag, in one word.
#[derive(Clone, Copy)]
struct Head {
    index: u32,
    tag: u64,
}

impl Head {
    fn unpack(word: u64) -> Self {
        Self { index: word as u32 & NIL, tag: word >> INDEX_BITS }
    }

    /// The word of the head that replaces this one.
    fn followed_by(self, index: u32) -> u64 {
        self.tag.wrapping_add(1) << INDEX_BITS | u64::from(index)
    }

    fn pack(self) -> u64 {
        self.tag << INDEX_BITS | u64::from(self.index)
    }
}

impl FreeList {
    /// A list of all indices below `count`, the lowest on top. `None` if `count` is above
    /// [`INDICES_MAX`].
    pub fn full(count: u32) -> Option<Self> {
        if count > INDICES_MAX {
            return None;
        }
        let below = |index| if index + 1 == count { NIL } else { index + 1 };
        let next = (0..count).map(|index| AtomicU32::new(below(index))).collect();
        let top = Head { index: if count == 0 { NIL } else { 0 }, tag: 0 };
        Some(Self { head: CachePadded(AtomicU64::new(top.pack())), next })
    }

    /// Pops up to `count_max` indices, appends them to `out` and returns their number.
    pub fn pop(&self, out: &mut Vec<u32>, count_max: usize) -> usize {
        let kept = out.len();
        // Acquire, with the release in `push`: the thread that pops an index sees the links below
        // it and the writes of its former owner. A pop in between does not break this, because a
        // swap continues the release sequence of the push before it.
        let mut word = self.head.load(Ordering::Acquire);
        loop {
            let head = Head::unpack(word);
            let rest = self.walk(head.index, out, count_max);
            if out.len() == kept {
                return 0;
            }
            // A pop publishes nothing, so it needs no release.
            match self.head.compare_exchange_weak(
                word,
                head.followed_by(rest),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return out.len() - kept,
                Err(moved) => word = moved,
            }
            out.truncate(kept);
        }
    }

    /// Appends up to `count_max` indices of the chain that begins at `index`; returns the next one.
    ///
    /// Other threads may relink the chain meanwhile. Then the result is at most `count_max` valid
    /// but arbitrary indices, and the caller's swap fails.
    fn walk(&self, mut index: u32, out: &mut Vec<u32>, count_max: usize) -> u32 {
        for _ in 0..count_max {
            let Some(next) = self.next.get(index as usize) else { break };
            out.push(index);
            index = next.load(Ordering::Relaxed);
        }
        index
    }

    /// Puts `indices` on the list, the first on top.
    ///
    /// # Panics
    /// If an index is not below the list's count.
    pub fn push(&self, indices: &[u32]) {
        let (Some(&first), Some(&last)) = (indices.first(), indices.last()) else { return };
        for pair in indices.windows(2) {
            self.next[pair[0] as usize].store(pair[1], Ordering::Relaxed);
        }
        let bottom = &self.next[last as usize];
        let mut word = self.head.load(Ordering::Relaxed);
        loop {
            let head = Head::unpack(word);
            bottom.store(head.index, Ordering::Relaxed);
            // Release: the links above, and the caller's writes to the indexed objects.
            match self.head.compare_exchange_weak(
                word,
                head.followed_by(first),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(moved) => word = moved,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn gives_each_index_once() {
        let list = FreeList::full(5).unwrap();
        let mut out = Vec::with_capacity(5);
        assert_eq!(list.pop(&mut out, 3), 3);
        assert_eq!(list.pop(&mut out, 3), 2);
        assert_eq!(list.pop(&mut out, 3), 0);
        assert_eq!(out, [0, 1, 2, 3, 4]);
        list.push(&[3, 1]);
        list.push(&[]);
        list.push(&[4]);
        out.clear();
        assert_eq!(list.pop(&mut out, 9), 3);
        assert_eq!(out, [4, 3, 1]);
    }

    #[test]
    fn sizes_have_an_end() {
        assert_eq!(FreeList::full(0).unwrap().pop(&mut Vec::new(), 1), 0);
        assert!(FreeList::full(INDICES_MAX + 1).is_none());
    }

    #[test]
    fn tag_wraps_without_touching_the_index() {
        let head = Head { index: 7, tag: (1 << 40) - 1 };
        assert_eq!(head.followed_by(9), 9);
        let read = Head::unpack(head.pack());
        assert_eq!((read.index, read.tag), (7, (1 << 40) - 1));
    }
}
