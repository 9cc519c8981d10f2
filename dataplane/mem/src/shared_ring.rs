//! The ring between two processes, of which neither trusts the other.
//!
//! The algorithm is that of [`spsc`](crate::spsc) with three differences. Entries are [`Plain`]
//! values, copied word by word. A side's own position is never read back, and the peer's is
//! checked, so nothing that a peer writes moves us out of bounds. And the whole lies at fixed
//! places:
//!
//! ```text
//! word 0      what it is            written by its maker, checked by who opens it
//!      1      entries               and copied then: later changes have no effect
//!      2      words of an entry
//!     16      head                  written by the consumer alone
//!     32 ...  slots: each a turn and then an entry, written by the producer alone
//! ```
//!
//! So an entry of 7 words fills a cache line together with its turn and travels in one.
//!
//! A peer killed at any instant wedges nobody. An entry counts once its turn is stored, one atomic
//! store after the entry is whole; whoever dies before that has not sent it. A consumer that dies
//! before it stores the head has not taken the entries, and its successor gets them again.
//!
//! A peer that lies can stop the flow, drop entries or deliver rubbish: the entries it sends are to
//! be judged like a packet. It cannot do more.
//!
//! Why one producer only: with several, one that dies between claiming a slot and filling it would
//! stop all. Give every process a ring of its own.

use crate::cursor::{ProducerCursor, START, filled, first_turn, is_capacity};
use crate::sync::{AtomicU64, Ordering};
use crate::words::{self, LINE_WORDS, Plain, Words};
use std::fmt;
use std::marker::PhantomData;

/// What word 0 says: this layout, version 1.
const IDENTITY: u64 = u64::from_be_bytes(*b"PLXRING1");

const IDENTITY_WORD: usize = 0;
const ENTRIES_WORD: usize = 1;
const ENTRY_WORDS_WORD: usize = 2;
const HEAD_WORD: usize = LINE_WORDS;
const SLOTS_WORD: usize = 2 * LINE_WORDS;

const _: () = {
    assert!(ENTRY_WORDS_WORD < HEAD_WORD);
    assert!(HEAD_WORD == 16 && SLOTS_WORD == 32);
};

/// Why memory is not the ring that it was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// The number of entries is not a power of two of at most 2^31.
    BadCapacity {
        /// The number.
        entries: u64,
    },
    /// The memory is too small for the entries.
    TooSmall {
        /// Words that there are.
        words: usize,
    },
    /// There is no ring of this version.
    NotARing,
    /// The ring is of another type of entry.
    BadEntry {
        /// Words of an entry there.
        words: u64,
    },
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadCapacity { entries } => {
                write!(f, "a ring has a power of two of entries up to 2^31, not {entries}")
            }
            Self::TooSmall { words } => write!(f, "a ring does not fit into {words} words"),
            Self::NotARing => f.write_str("no ring there; the peer must create it before we open"),
            Self::BadEntry { words } => {
                write!(f, "the ring's entries have {words} words; do both sides have one version?")
            }
        }
    }
}

impl std::error::Error for RingError {}

/// A ring in shared memory, before a side is chosen.
#[derive(Debug)]
pub struct SharedRing<T> {
    words: Words,
    entries: usize,
    entry: PhantomData<T>,
}

impl<T: Plain> SharedRing<T> {
    /// From one slot to the next: a turn and an entry.
    const SLOT_WORDS: usize = 1 + T::WORDS;

    /// How many words a ring of `entries` takes. `None` if it can have no such number.
    pub fn words(entries: usize) -> Option<usize> {
        if !is_capacity(entries) {
            return None;
        }
        entries.checked_mul(Self::SLOT_WORDS)?.checked_add(SLOTS_WORD)
    }

    /// Makes an empty ring. To be done before the peer is told of the memory.
    pub fn create(words: Words, entries: usize) -> Result<Self, RingError> {
        let ring = Self::fit(words, entries as u64)?;
        let at = ring.words.as_slice();
        at[ENTRIES_WORD].store(entries as u64, Ordering::Relaxed);
        at[ENTRY_WORDS_WORD].store(T::WORDS as u64, Ordering::Relaxed);
        ring.reset();
        // Release, with the acquire in `open`: who sees a ring sees all of it.
        at[IDENTITY_WORD].store(IDENTITY, Ordering::Release);
        Ok(ring)
    }

    /// Finds the ring that a peer made.
    pub fn open(words: Words) -> Result<Self, RingError> {
        let at = words.as_slice();
        if at.len() < SLOTS_WORD {
            return Err(RingError::TooSmall { words: at.len() });
        }
        if at[IDENTITY_WORD].load(Ordering::Acquire) != IDENTITY {
            return Err(RingError::NotARing);
        }
        let entry_words = at[ENTRY_WORDS_WORD].load(Ordering::Relaxed);
        if entry_words != T::WORDS as u64 {
            return Err(RingError::BadEntry { words: entry_words });
        }
        let entries = at[ENTRIES_WORD].load(Ordering::Relaxed);
        Self::fit(words, entries)
    }

    /// Empties the ring. For the survivor, when the peer is known to be dead and before another is
    /// given the memory. A peer that lives after all finds its positions gone and stands still.
    pub fn reset(&self) {
        for index in 0..self.entries {
            self.turn(index as u64).store(first_turn(index, self.entries), Ordering::Relaxed);
        }
        // Release: a producer that finds room finds the turns in order.
        self.head().store(START, Ordering::Release);
    }

    /// The producing side. It goes on where the last one of this ring stopped: behind the entries
    /// from the head on that are there.
    pub fn producer(self) -> SharedProducer<T> {
        // A consumer that moves on meanwhile does no harm: slots keep their turns until
        // overwritten.
        let mut tail = self.head().load(Ordering::Acquire);
        for _ in 0..self.entries {
            // Acquire: what the last producer did with the slots comes before what we do.
            if self.turn(tail).load(Ordering::Acquire) != filled(tail) {
                break;
            }
            tail = tail.wrapping_add(1);
        }
        SharedProducer { cursor: ProducerCursor::new(tail, self.entries), ring: self }
    }

    /// The consuming side. It begins with the entries that the last one of this ring did not
    /// release.
    pub fn consumer(self) -> SharedConsumer<T> {
        SharedConsumer { position: self.head().load(Ordering::Acquire), ring: self }
    }

    fn fit(words: Words, entries: u64) -> Result<Self, RingError> {
        let count = usize::try_from(entries).ok().and_then(Self::words);
        let needed = count.ok_or(RingError::BadCapacity { entries })?;
        if words.as_slice().len() < needed {
            return Err(RingError::TooSmall { words: words.as_slice().len() });
        }
        Ok(Self { words, entries: entries as usize, entry: PhantomData })
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        &self.words.as_slice()[HEAD_WORD]
    }

    #[inline(always)]
    fn turn(&self, position: u64) -> &AtomicU64 {
        &self.slot(position)[0]
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> &[AtomicU64] {
        let index = position as usize & (self.entries - 1);
        &self.words.as_slice()[SLOTS_WORD + index * Self::SLOT_WORDS..][..Self::SLOT_WORDS]
    }
}

/// The side that pushes. One process has it at a time; a second one would spoil entries and nothing
/// else.
pub struct SharedProducer<T> {
    ring: SharedRing<T>,
    cursor: ProducerCursor,
}

impl<T: Plain> SharedProducer<T> {
    /// How many entries there is room for now; more may become free at any time.
    pub fn room(&mut self) -> usize {
        self.cursor.room(u64::MAX, self.ring.head()) as usize
    }

    /// Appends an entry; says whether there was room.
    #[inline]
    #[must_use]
    pub fn push(&mut self, value: &T) -> bool {
        if self.cursor.room(1, self.ring.head()) == 0 {
            return false;
        }
        self.write(value);
        true
    }

    /// Appends what there is room for from the front of `values`; says how many.
    #[inline]
    pub fn push_slice(&mut self, values: &[T]) -> usize {
        let room = self.cursor.room(values.len() as u64, self.ring.head());
        let count = values.len().min(room as usize);
        values[..count].iter().for_each(|value| self.write(value));
        count
    }

    /// Writes one entry that is known to have room.
    #[inline(always)]
    fn write(&mut self, value: &T) {
        let position = self.cursor.position();
        let slot = self.ring.slot(position);
        words::store(&slot[1..], value);
        // Release: who sees this turn sees the whole entry.
        slot[0].store(filled(position), Ordering::Release);
        self.cursor.advance();
    }

    /// Whether the peer showed an impossible head. From then on there is no room: reset and reopen.
    pub fn is_broken(&self) -> bool {
        self.cursor.is_broken()
    }

    /// Gives up the side, for a reset or another process.
    pub fn into_ring(self) -> SharedRing<T> {
        self.ring
    }
}

/// The side that pops. One process has it at a time; a second one would lose or repeat entries and
/// nothing else.
pub struct SharedConsumer<T> {
    ring: SharedRing<T>,
    position: u64,
}

impl<T: Plain> SharedConsumer<T> {
    /// Takes the oldest entry. `None` when the ring is empty.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let value = self.peek()?;
        self.release(1);
        Some(value)
    }

    /// A copy of the oldest entry, which stays. A hostile peer may show another one next time.
    #[inline]
    pub fn peek(&mut self) -> Option<T> {
        self.read(self.position)
    }

    /// Moves the oldest entries to the front of `out` and releases them at once; says how many.
    #[inline]
    pub fn pop_into(&mut self, out: &mut [T]) -> usize {
        let mut count = 0;
        for place in out {
            let Some(value) = self.read(self.position.wrapping_add(count)) else { break };
            *place = value;
            count += 1;
        }
        self.release(count);
        count as usize
    }

    /// The entry of `position`, if it is there.
    #[inline(always)]
    fn read(&self, position: u64) -> Option<T> {
        let slot = self.ring.slot(position);
        // Acquire, with the release in `write`: the entry is there, whole.
        let there = slot[0].load(Ordering::Acquire) == filled(position);
        there.then(|| words::load(&slot[1..]))
    }

    /// Gives the slots of the next `count` entries back to the producer.
    #[inline(always)]
    fn release(&mut self, count: u64) {
        self.position = self.position.wrapping_add(count);
        // Release, with the acquire in `ProducerCursor`: the entries before are read.
        self.ring.head().store(self.position, Ordering::Release);
    }

    /// Gives up the side, for a reset or another process.
    pub fn into_ring(self) -> SharedRing<T> {
        self.ring
    }
}
