//! The common parts of the rings: positions, turns and the producer's count of free slots.
//!
//! Positions only increase; the entry of position `p` is in slot `p mod entries`. Each slot has a
//! *turn*: `p + 1` means that it holds the entry of position `p`. The consumer knows its next
//! position, so one load of one turn shows whether there is an entry, and the entry is next to the
//! turn.
//!
//! Why each slot has a turn, instead of one tail for all entries: an entry then moves between cores
//! in one cache line. With a tail, the consumer has a cache miss on the tail's line and then one on
//! the entry's line. That hop was measured at 2.4 times a bare cache line.
//!
//! The producer knows the free slots from the `head`, which the consumer publishes. It loads the
//! head only when the free slots that it knows of are used up.

use crate::sync::{AtomicU64, Ordering};

/// The first position. It is shortly before the counter wraps, so that every run of the program
/// tests the wrap.
pub(crate) const START: u64 = 0u64.wrapping_sub(64);

const ENTRIES_MAX: usize = 1 << 31;

/// The number must be a power of two, because positions are masked.
pub(crate) fn is_capacity(entries: usize) -> bool {
    entries.is_power_of_two() && entries <= ENTRIES_MAX
}

/// The initial turn of a slot: the first position `p` of the slot. The turn becomes `p + 1` when
/// that entry is written.
pub(crate) fn first_turn(index: usize, entries: usize) -> u64 {
    let mask = entries as u64 - 1;
    START.wrapping_add((index as u64).wrapping_sub(START) & mask)
}

/// The turn of a slot that holds the entry of `position`.
#[inline(always)]
pub(crate) fn filled(position: u64) -> u64 {
    position.wrapping_add(1)
}

#[derive(Debug)]
pub(crate) struct ProducerCursor {
    position: u64,
    /// The first position that would overwrite an unread entry, by the last load of the head.
    limit: u64,
    entries: u64,
    broken: bool,
}

impl ProducerCursor {
    pub(crate) fn new(position: u64, entries: usize) -> Self {
        Self { position, limit: position, entries: entries as u64, broken: false }
    }

    /// The number of free slots. Loads the consumer's head only if fewer than `wanted` are known.
    #[inline(always)]
    pub(crate) fn room(&mut self, wanted: u64, head: &AtomicU64) -> u64 {
        let known = self.limit.wrapping_sub(self.position);
        if known >= wanted { known } else { self.look(head) }
    }

    #[inline]
    fn look(&mut self, head: &AtomicU64) -> u64 {
        // Acquire, with the consumer's release: no entry is overwritten before it was read.
        let limit = head.load(Ordering::Acquire).wrapping_add(self.entries);
        let room = limit.wrapping_sub(self.position);
        // A head beyond the written entries, or more than a ring behind them, is invalid. Only
        // another process can write one: the peer is broken, and this producer sends nothing more.
        if room > self.entries || self.broken {
            self.broken = true;
            self.limit = self.position;
            return 0;
        }
        self.limit = limit;
        room
    }

    #[inline(always)]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Advances by one free slot.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.advance_by(1);
    }

    /// Advances by several free slots.
    #[inline(always)]
    pub(crate) fn advance_by(&mut self, slots: u64) {
        self.position = self.position.wrapping_add(slots);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn first_turns_are_the_first_positions() {
        for entries in [1, 2, 64, 256] {
            for position in 0..entries as u64 {
                let position = START.wrapping_add(position);
                assert_eq!(first_turn(position as usize & (entries - 1), entries), position);
            }
        }
    }

    #[test]
    fn an_impossible_head_stops_the_producer() {
        let head = AtomicU64::new(START);
        let mut cursor = ProducerCursor::new(START, 4);
        assert_eq!(cursor.room(1, &head), 4);
        cursor.advance();
        head.store(START.wrapping_add(2), Ordering::Relaxed);
        assert_eq!(cursor.room(4, &head), 0, "it read what was never written");
        head.store(START.wrapping_add(1), Ordering::Relaxed);
        assert_eq!((cursor.room(1, &head), cursor.broken), (0, true));
    }
}
