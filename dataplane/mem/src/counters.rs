//! Counters in shared memory: one owner counts, anyone looks, and nobody waits.
//!
//! Why a load and a store and not an atomic add: there is one owner, so nothing can come between,
//! and a locked instruction costs twenty times as much. Why each owner has a place of its own: two
//! that count on one line would take it from each other with every packet; [`Words::take`] sees to
//! it.
//!
//! Each counter is read whole, but two of them need not be of the same instant. Where they must
//! agree, a [`seq_cell`](crate::seq_cell) holds them. Which counter means what is agreed elsewhere.

use crate::sync::Ordering;
use crate::words::{ReadWords, Words};

/// The owner of a place full of counters.
#[derive(Debug)]
pub struct Counters {
    words: Words,
}

/// One who looks at them.
#[derive(Debug)]
pub struct CounterReader {
    words: ReadWords,
}

impl Counters {
    /// Counts on from what the place holds; fresh memory holds zeros.
    pub fn new(words: Words) -> Self {
        Self { words }
    }

    /// Adds `amount` to a counter; it wraps.
    ///
    /// # Panics
    /// If there is no such counter: the place was taken too small.
    #[inline(always)]
    pub fn add(&mut self, counter: usize, amount: u64) {
        let word = &self.words.as_slice()[counter];
        // Relaxed: a counter orders nothing but itself.
        word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }
}

impl CounterReader {
    /// Looks at the counters of a place, which it need not be able to write.
    pub fn new(words: impl Into<ReadWords>) -> Self {
        Self { words: words.into() }
    }

    /// A counter as it stands, or `None` if there is no such.
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
        let mut counters = Counters::new(place());
        counters.add(19, 2);
        drop(counters);
        Counters::new(place()).add(19, 3);
        let reader = CounterReader::new(place());
        assert_eq!((reader.read(19), reader.read(0), reader.read(32)), (Some(5), Some(0), None));
    }
}
