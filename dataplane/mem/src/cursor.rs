//! What the rings have in common: positions, turns, and how a producer knows that there is room.
//!
//! Positions only count up; the entry of position `p` lies in slot `p mod entries`. Each slot has a
//! *turn*: `p + 1` says that the entry of position `p` is in it. The consumer knows its next
//! position, so one look at one turn tells it whether there is an entry, and the entry lies beside
//! it.
//!
//! Why a turn in each slot and not one tail that all entries share: an entry then travels from core
//! to core in one cache line. With a tail, the consumer first misses the line of the tail and,
//! knowing it, the line of the entry, one after the other. Measured, the hop took 2.4 times as long
//! as a bare cache line then; the bench has the figure of now.
//!
//! Room is known the other way: the consumer publishes how far it is as one `head`, and the
//! producer looks at that only when the room that it last saw is used up, so seldom.

use crate::sync::{AtomicU64, Ordering};

/// Where positions begin: shortly before they wrap, so that every run crosses that point.
pub(crate) const START: u64 = 0u64.wrapping_sub(64);

/// How many entries a ring can have.
const ENTRIES_MAX: usize = 1 << 31;

/// Whether a ring can have that many entries: positions are masked into indices.
pub(crate) fn is_capacity(entries: usize) -> bool {
    entries.is_power_of_two() && entries <= ENTRIES_MAX
}

/// What the turn of an empty slot says at first: the first position that falls to it, one less than
/// when that entry is there.
pub(crate) fn first_turn(index: usize, entries: usize) -> u64 {
    let mask = entries as u64 - 1;
    START.wrapping_add((index as u64).wrapping_sub(START) & mask)
}

/// The turn of a slot that holds the entry of `position`.
#[inline(always)]
pub(crate) fn filled(position: u64) -> u64 {
    position.wrapping_add(1)
}

/// A single producer's position and how far it may go.
#[derive(Debug)]
pub(crate) struct ProducerCursor {
    position: u64,
    /// The position that would overwrite an entry not yet read, as last seen.
    limit: u64,
    entries: u64,
    broken: bool,
}

impl ProducerCursor {
    pub(crate) fn new(position: u64, entries: usize) -> Self {
        Self { position, limit: position, entries: entries as u64, broken: false }
    }

    /// How many entries may be written now. Looks at the consumer's head only if fewer than
    /// `wanted` are known.
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
        // A head beyond what was written, or a whole ring behind, is impossible. Between threads it
        // cannot happen; between processes the peer is broken, and we stand still.
        if room > self.entries || self.broken {
            self.broken = true;
            self.limit = self.position;
            return 0;
        }
        self.limit = limit;
        room
    }

    /// The next entry's position.
    #[inline(always)]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Goes on by one entry, for which there was room.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.advance_by(1);
    }

    /// Goes on by several slots, for which there was room.
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
    fn a_broken_consumer_gets_nothing_more() {
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
