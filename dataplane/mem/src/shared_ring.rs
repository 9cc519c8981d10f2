//! The ring between two processes, of which neither trusts the other.
//!
//! The algorithm is that of [`spsc`](crate::spsc) with three differences. Entries are [`Plain`] values,
//! copied word by word. A side's own position is never read back, and the peer's is checked, so
//! nothing that a peer writes moves us out of bounds. And the whole lies at fixed places:
//!
//! ```text
//! word 0      what it is            written by its maker, checked by who opens it
//!      1      entries               and copied then: later changes have no effect
//!      2      words of an entry
//!     16      tail                  written by the producer alone
//!     32      head                  written by the consumer alone
//!     48 ...  entries
//! ```
//!
//! A peer killed at any instant wedges nobody. An entry counts once the tail is stored, one atomic store
//! after the entry is whole; whoever dies before that has not sent it. A consumer that dies before it
//! stores the head has not taken the entries, and its successor gets them again.
//!
//! A peer that lies can stop the flow ([`SharedProducer::is_broken`]), drop entries or deliver rubbish:
//! the entries it sends are to be judged like a packet. It cannot do more.
//!
//! Why one producer only: with several, one that dies between claiming a slot and filling it would stop
//! all. Give every process a ring of its own.

use crate::cursor::{Cursor, START, is_capacity};
use crate::sync::{AtomicU64, Ordering};
use crate::words::{self, LINE_WORDS, Plain, Words};
use std::fmt;
use std::marker::PhantomData;

/// What word 0 says: this layout, version 1.
const IDENTITY: u64 = u64::from_be_bytes(*b"PLXRING1");

const IDENTITY_WORD: usize = 0;
const ENTRIES_WORD: usize = 1;
const ENTRY_WORDS_WORD: usize = 2;
const TAIL_WORD: usize = LINE_WORDS;
const HEAD_WORD: usize = 2 * LINE_WORDS;
const SLOTS_WORD: usize = 3 * LINE_WORDS;

const _: () = {
    assert!(ENTRY_WORDS_WORD < TAIL_WORD);
    assert!(TAIL_WORD == 16 && HEAD_WORD == 32 && SLOTS_WORD == 48);
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
    /// The two positions do not fit each other. Whose ring it is must reset it.
    BadPositions,
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
            Self::BadPositions => {
                f.write_str("the ring's positions contradict each other; reset it")
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
    /// How many words a ring of `entries` takes. `None` if it can have no such number.
    pub fn words(entries: usize) -> Option<usize> {
        if !is_capacity(entries) {
            return None;
        }
        entries.checked_mul(T::WORDS)?.checked_add(SLOTS_WORD)
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

    /// Empties the ring and forgets what its positions were. For the survivor, when the peer is known
    /// to be dead and before another is given the memory. A peer that lives after all sees positions
    /// jump and stands still.
    pub fn reset(&self) {
        let at = self.words.as_slice();
        at[TAIL_WORD].store(START, Ordering::Release);
        at[HEAD_WORD].store(START, Ordering::Release);
    }

    /// The producing side. It goes on where the last one of this ring stopped.
    pub fn producer(self) -> Result<SharedProducer<T>, RingError> {
        let (tail, _) = self.positions()?;
        Ok(SharedProducer { cursor: Cursor::of_producer(tail, self.entries), ring: self })
    }

    /// The consuming side. It begins with the entries that the last one of this ring did not release.
    pub fn consumer(self) -> Result<SharedConsumer<T>, RingError> {
        let (_, head) = self.positions()?;
        Ok(SharedConsumer { cursor: Cursor::of_consumer(head, self.entries), ring: self })
    }

    fn fit(words: Words, entries: u64) -> Result<Self, RingError> {
        let count = usize::try_from(entries).ok().and_then(Self::words);
        let needed = count.ok_or(RingError::BadCapacity { entries })?;
        if words.as_slice().len() < needed {
            return Err(RingError::TooSmall { words: words.as_slice().len() });
        }
        Ok(Self { words, entries: entries as usize, entry: PhantomData })
    }

    fn positions(&self) -> Result<(u64, u64), RingError> {
        // Acquire: a successor in the same role must not touch slots before its predecessor's last use.
        let tail = self.tail().load(Ordering::Acquire);
        let head = self.head().load(Ordering::Acquire);
        let filled = tail.wrapping_sub(head);
        if filled > self.entries as u64 {
            return Err(RingError::BadPositions);
        }
        Ok((tail, head))
    }

    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        &self.words.as_slice()[TAIL_WORD]
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        &self.words.as_slice()[HEAD_WORD]
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> &[AtomicU64] {
        let index = position as usize & (self.entries - 1);
        &self.words.as_slice()[SLOTS_WORD + index * T::WORDS..]
    }
}

/// The side that pushes. One process has it at a time; a second one would spoil entries and nothing
/// else.
pub struct SharedProducer<T> {
    ring: SharedRing<T>,
    cursor: Cursor,
}

impl<T: Plain> SharedProducer<T> {
    /// How many entries there is room for now, at least.
    pub fn room(&mut self) -> usize {
        self.cursor.available(u64::MAX, self.ring.head()) as usize
    }

    /// Appends an entry; says whether there was room.
    #[inline]
    #[must_use]
    pub fn push(&mut self, value: &T) -> bool {
        self.push_slice(std::slice::from_ref(value)) == 1
    }

    /// Appends what there is room for from the front of `values`, all shown at once; says how many.
    #[inline]
    pub fn push_slice(&mut self, values: &[T]) -> usize {
        let room = self.cursor.available(values.len() as u64, self.ring.head());
        let count = values.len().min(room as usize);
        if count == 0 {
            return 0;
        }
        for value in &values[..count] {
            words::store(self.ring.slot(self.cursor.position()), value);
            self.cursor.advance(1);
        }
        self.cursor.publish(self.ring.tail());
        count
    }

    /// Whether the peer showed an impossible position. From then on there is no room: reset and reopen.
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
    cursor: Cursor,
}

impl<T: Plain> SharedConsumer<T> {
    /// How many entries there are now, at least.
    pub fn ready(&mut self) -> usize {
        self.cursor.available(u64::MAX, self.ring.tail()) as usize
    }

    /// Takes the oldest entry. `None` when the ring is empty.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let value = self.peek()?;
        self.cursor.advance(1);
        self.cursor.publish(self.ring.head());
        Some(value)
    }

    /// A copy of the oldest entry, which stays. A hostile peer may show another one next time.
    #[inline]
    pub fn peek(&mut self) -> Option<T> {
        if self.cursor.available(1, self.ring.tail()) == 0 {
            return None;
        }
        Some(words::load(self.ring.slot(self.cursor.position())))
    }

    /// Moves the oldest entries to the front of `out` and releases them at once; says how many.
    #[inline]
    pub fn pop_into(&mut self, out: &mut [T]) -> usize {
        let ready = self.cursor.available(out.len() as u64, self.ring.tail());
        let count = out.len().min(ready as usize);
        if count == 0 {
            return 0;
        }
        for value in &mut out[..count] {
            *value = words::load(self.ring.slot(self.cursor.position()));
            self.cursor.advance(1);
        }
        self.cursor.publish(self.ring.head());
        count
    }

    /// Whether the peer showed an impossible position. From then on there is nothing: reset and reopen.
    pub fn is_broken(&self) -> bool {
        self.cursor.is_broken()
    }

    /// Gives up the side, for a reset or another process.
    pub fn into_ring(self) -> SharedRing<T> {
        self.ring
    }
}
