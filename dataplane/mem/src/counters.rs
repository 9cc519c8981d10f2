//! Counters in shared memory: one owner writes, any process reads, and neither waits.
//!
//! Why a load and a store and not an atomic add: there is one owner, so no other write can
//! intervene, and a locked instruction costs twenty times as much. Why owners share no cache line:
//! it would move between their cores with every packet. [`Words::take`] aligns to lines.
//!
//! Each counter is read atomically, but the values of two counters may be from different times.
//! Values that must agree belong in a [`seq_cell`](crate::seq_cell). The users define the meaning
//! of each counter.

use crate::sync::Ordering;
use crate::words::{ReadWords, Words};

/// An array of counters, as its owner sees it.
#[derive(Debug)]
pub struct SharedCounters {
    words: Words,
}

#[derive(Debug)]
pub struct CounterReader {
    words: ReadWords,
}

impl SharedCounters {
    /// Continues from the values in `words`; fresh memory is zero.
    pub fn new(words: Words) -> Self {
        Self { words }
    }

    /// Adds `amount` to a counter, which wraps at 2^64.
    ///
    /// # Panics
    /// If there is no such counter.
    #[inline(always)]
    pub fn add(&mut self, counter: usize, amount: u64) {
        let word = &self.words.as_slice()[counter];
        // Relaxed: a counter orders nothing but itself.
        word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }
}

impl CounterReader {
    /// `words` may be mapped read-only.
    pub fn new(words: impl Into<ReadWords>) -> Self {
        Self { words: words.into() }
    }

    /// `None` past the end.
    pub fn read(&self, counter: usize) -> Option<u64> {
        Some(self.words.as_slice().get(counter)?.load())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Segment;

    #[test]
    fn counts_show_in_another_mapping_and_go_on_after_a_restart() {
        let segment = Segment::create("counters", 4096).unwrap();
        let place = || Words::over(segment.map().unwrap()).take(20).unwrap();
        let mut counters = SharedCounters::new(place());
        counters.add(19, 2);
        drop(counters);
        SharedCounters::new(place()).add(19, 3);
        let reader = CounterReader::new(place());
        assert_eq!((reader.read(19), reader.read(0), reader.read(32)), (Some(5), Some(0), None));
    }
}
