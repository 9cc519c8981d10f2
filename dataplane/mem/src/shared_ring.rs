//! A shared-memory ring of variable-length entries between two processes that do not trust each
//! other.
//!
//! An entry is a message: a few header words, then bytes. A slot is two cache lines, which the
//! processor fetches as a pair, so a short message needs one or two lines. A second area has as
//! many bytes again for each slot. The bytes of a longer entry are contiguous in this area, so that
//! they are copied at the speed of memory. Such an entry takes all slots whose bytes it uses:
//!
//! ```text
//! slot p      turn | shape | head ... | bytes ...        15 words after the turn
//! slot p + 1  -
//!
//! long p, long p + 1, ...   bytes of the entry at slot p; the area wraps at its end
//! ```
//!
//! The turn of the first slot is written last, by one atomic store, and the other slots of the
//! entry have no turn. So an entry is visible completely or not at all, even if a process is
//! killed, and a receiver never takes part of an unfinished entry for an entry. Words that an entry
//! does not need are neither written nor read.
//!
//! Positions, turns and free slots work as in the other rings (`cursor.rs`). A malicious peer can
//! stop the flow, drop entries or deliver garbage, so entries are validated like packets. The
//! receiver copies the shape and the first header words once and decides only by the copies. A
//! sender that changes the originals later has no effect. The receiver copies the bytes last and
//! does not interpret them.

mod entry;
mod shape;

pub use entry::Entry;

use crate::cursor::{ProducerCursor, START, filled, first_turn, is_capacity};
use crate::memory::Memory;
use crate::sync::{AtomicU64, Ordering};
use crate::words::{LINE_WORDS, Words};
use shape::Shape;

/// The distance between two slots, in words.
const SLOT_WORDS: usize = 16;
/// The number of words of a slot after its turn.
const DATA_WORDS: usize = SLOT_WORDS - 1;
/// The number of bytes that each slot of a long entry has in the second area.
const LONG_BYTES: usize = SLOT_WORDS * 8;

/// The maximum number of header words of an entry: with the shape they fit in the first slot.
pub const HEAD_WORDS_MAX: usize = DATA_WORDS - 1;

/// The number of header words that are copied with every entry, which is enough for most entries.
pub const FIRST_WORDS: usize = 4;

/// The maximum number of bytes of an entry after its header, which is more than the longest IP
/// packet has. A ring of fewer than [`LONG_SLOTS_MAX`] slots never has space for that many.
pub const BYTES_MAX: usize = 1 << 16;

pub const LONG_SLOTS_MAX: usize = BYTES_MAX / LONG_BYTES;

/// The bytes of a long entry are copied through a buffer of this length. Shorter entries have a
/// smaller buffer, because a buffer must be zeroed before its use.
const PART_BYTES: usize = 2048;
const SMALL_PART_BYTES: usize = 256;

/// The value of word 0: layout version 2.
const IDENTITY: u64 = u64::from_be_bytes(*b"PLXRING2");

const IDENTITY_WORD: usize = 0;
const SLOTS_WORD: usize = 1;
const HEAD_WORD: usize = LINE_WORDS;
const FIRST_SLOT_WORD: usize = 2 * LINE_WORDS;

#[derive(Debug)]
pub struct SharedRing {
    words: Words,
    slots: usize,
    /// The area for the bytes of long entries.
    long: Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharedRingError {
    #[error("a ring of {slots} slots; use a power of two up to 2^31")]
    BadCapacity { slots: u64 },
    /// The memory is too small for the slots.
    #[error("a ring does not fit into {words} words")]
    TooSmall { words: usize },
    #[error("the memory has no ring (wrong magic number); the peer must create the ring first")]
    NotARing,
}

impl SharedRing {
    /// The words that a ring needs. `None` if `slots` is not a valid number.
    pub fn words(slots: usize) -> Option<usize> {
        if !is_capacity(slots) {
            return None;
        }
        slots.checked_mul(2 * SLOT_WORDS)?.checked_add(FIRST_SLOT_WORD)
    }

    /// A ring in private memory, for two threads of this process.
    pub fn private(slots: usize) -> Option<Self> {
        Self::create(Words::private(Self::words(slots)?).ok()?, slots).ok()
    }

    /// Initializes a ring. Call this before the peer gets the memory.
    pub fn create(words: Words, slots: usize) -> Result<Self, SharedRingError> {
        let ring = Self::fit(words, slots as u64)?;
        ring.words.as_slice()[SLOTS_WORD].store(slots as u64, Ordering::Relaxed);
        ring.reset();
        // Release, with the acquire in `open`: a visible identity implies a complete ring.
        ring.words.as_slice()[IDENTITY_WORD].store(IDENTITY, Ordering::Release);
        Ok(ring)
    }

    pub fn open(words: Words) -> Result<Self, SharedRingError> {
        let at = words.as_slice();
        if at.len() < FIRST_SLOT_WORD {
            return Err(SharedRingError::TooSmall { words: at.len() });
        }
        if at[IDENTITY_WORD].load(Ordering::Acquire) != IDENTITY {
            return Err(SharedRingError::NotARing);
        }
        let slots = at[SLOTS_WORD].load(Ordering::Relaxed);
        Self::fit(words, slots)
    }

    /// The other side of the same ring.
    pub fn other_side(&self) -> Self {
        Self { words: self.words.clone(), slots: self.slots, long: self.long.clone() }
    }

    fn reset(&self) {
        for index in 0..self.slots {
            let turn = first_turn(index, self.slots);
            self.slot(index as u64)[0].store(turn, Ordering::Relaxed);
        }
        // Release: a sender that sees the free slots also sees their turns.
        self.head().store(START, Ordering::Release);
    }

    /// The sending side. It continues after the complete entries that the last sender left in the
    /// ring.
    pub fn sender(self) -> RingSender {
        let head = self.head().load(Ordering::Acquire);
        let mut tail = head;
        // Acquire: the last sender's writes to the slots come before ours.
        while self.slot(tail)[0].load(Ordering::Acquire) == filled(tail) {
            let next = tail.wrapping_add(self.shape(tail).map_or(1, Shape::slots));
            if next.wrapping_sub(head) > self.slots as u64 {
                break;
            }
            tail = next;
        }
        RingSender { cursor: ProducerCursor::new(tail, self.slots), ring: self }
    }

    /// The receiving side. It begins with the first entry that the last receiver did not release.
    pub fn receiver(self) -> RingReceiver {
        RingReceiver { position: self.head().load(Ordering::Acquire), ring: self }
    }

    fn fit(mut words: Words, slots: u64) -> Result<Self, SharedRingError> {
        let count = usize::try_from(slots).ok().and_then(Self::words);
        let needed = count.ok_or(SharedRingError::BadCapacity { slots })?;
        let too_small = SharedRingError::TooSmall { words: words.as_slice().len() };
        let slots = slots as usize;
        let mut take = |count| words.take(count).ok_or(too_small);
        let ring = take(needed - slots * SLOT_WORDS)?;
        let long = Memory::of(take(slots * SLOT_WORDS)?);
        Ok(Self { words: ring, slots, long })
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        &self.words.as_slice()[HEAD_WORD]
    }

    /// The shape of the entry at a position. `None` if it is invalid.
    #[inline(always)]
    fn shape(&self, position: u64) -> Option<Shape> {
        let shape = Shape::of_word(self.slot(position)[1].load(Ordering::Relaxed));
        shape.filter(|shape| shape.slots() <= self.slots as u64)
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> &[AtomicU64; SLOT_WORDS] {
        let index = position as usize & (self.slots - 1);
        let words = &self.words.as_slice()[FIRST_SLOT_WORD + index * SLOT_WORDS..];
        words.first_chunk().expect("the words were counted when the ring was made")
    }

    /// The offsets and lengths of the two ranges that a long entry has in the second area: one up
    /// to the end of the area, and one from its start.
    fn long_parts(&self, position: u64, bytes: usize) -> [(usize, usize); 2] {
        let at = (position as usize & (self.slots - 1)) * LONG_BYTES;
        let before_end = bytes.min(self.slots * LONG_BYTES - at);
        [(at, before_end), (0, bytes - before_end)]
    }
}

/// The sending side. Only one process may have it at a time. A second sender would corrupt entries,
/// but nothing else.
#[derive(Debug)]
pub struct RingSender {
    ring: SharedRing,
    cursor: ProducerCursor,
}

impl RingSender {
    /// Sends an entry of `bytes`, which `fill` writes part by part, in order. Returns `false` if
    /// the ring is full.
    ///
    /// # Panics
    /// With more than [`HEAD_WORDS_MAX`] words or [`BYTES_MAX`] bytes.
    #[inline]
    #[must_use]
    pub fn send(
        &mut self,
        tag: u8,
        head: &[u64],
        bytes: usize,
        mut fill: impl FnMut(&mut [u8]),
    ) -> bool {
        let shape = Shape::new(tag, head, bytes);
        let Some(position) = self.begin(shape) else { return false };
        let first = self.ring.slot(position);
        let data = write_head(first, shape, head);
        if !shape.is_long() {
            put(data, bytes, &mut fill);
        } else if bytes <= SMALL_PART_BYTES {
            self.write_long::<SMALL_PART_BYTES>(position, bytes, &mut fill);
        } else {
            self.write_long::<PART_BYTES>(position, bytes, &mut fill);
        }
        // Release: a visible turn implies a complete entry.
        first[0].store(filled(position), Ordering::Release);
        self.cursor.advance_by(shape.slots());
        true
    }

    /// Sends an entry with these bytes. Returns `false` if the ring is full.
    ///
    /// # Panics
    /// As [`send`](Self::send).
    #[inline]
    #[must_use]
    pub fn send_bytes(&mut self, tag: u8, head: &[u64], bytes: &[u8]) -> bool {
        let shape = Shape::new(tag, head, bytes.len());
        if shape.is_long() {
            let mut rest = bytes;
            return self.send(tag, head, bytes.len(), |part| {
                let (now, later) = rest.split_at(part.len());
                part.copy_from_slice(now);
                rest = later;
            });
        }
        let Some(position) = self.begin(shape) else { return false };
        let first = self.ring.slot(position);
        let data = write_head(first, shape, head);
        let (whole, tail) = bytes.as_chunks::<8>();
        for (word, bytes) in data.iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if !tail.is_empty() {
            let mut last = [0; 8];
            last[..tail.len()].copy_from_slice(tail);
            data[whole.len()].store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
        // Release: a visible turn implies a complete entry.
        first[0].store(filled(position), Ordering::Release);
        self.cursor.advance();
        true
    }

    /// The position of a new entry, if the ring has space for it.
    #[inline(always)]
    fn begin(&mut self, shape: Shape) -> Option<u64> {
        let slots = shape.slots();
        let fits = self.cursor.room(slots, self.ring.head()) >= slots;
        fits.then(|| self.cursor.position())
    }

    /// Writes the bytes of a long entry. If the sender is killed during this call, nothing was
    /// sent.
    fn write_long<const PART: usize>(
        &self,
        position: u64,
        bytes: usize,
        fill: &mut impl FnMut(&mut [u8]),
    ) {
        let mut buffer = [0; PART];
        for (at, bytes) in self.ring.long_parts(position, bytes) {
            for done in (0..bytes).step_by(PART) {
                let part = PART.min(bytes - done);
                fill(&mut buffer[..part]);
                // Writes whole words, so no partial word must be merged. The bytes after the part
                // belong to this entry, too.
                let written = &buffer[..part.next_multiple_of(8)];
                assert!(self.ring.long.write(at + done, written), "the area has all its slots'");
            }
        }
    }
}

/// Writes the shape and the header. Returns the words for the bytes.
#[inline(always)]
fn write_head<'a>(
    slot: &'a [AtomicU64; SLOT_WORDS],
    shape: Shape,
    head: &[u64],
) -> &'a [AtomicU64] {
    slot[1].store(shape.to_word(), Ordering::Relaxed);
    let (head_words, data) = slot[2..].split_at(head.len());
    for (word, value) in head_words.iter().zip(head) {
        word.store(*value, Ordering::Relaxed);
    }
    data
}

#[inline(always)]
fn put(words: &[AtomicU64], bytes: usize, fill: &mut impl FnMut(&mut [u8])) {
    if bytes == 0 {
        return;
    }
    let mut buffer = [0; DATA_WORDS * 8];
    fill(&mut buffer[..bytes]);
    let (whole, _) = buffer.as_chunks::<8>();
    for (word, value) in words.iter().zip(whole).take(bytes.div_ceil(8)) {
        word.store(u64::from_ne_bytes(*value), Ordering::Relaxed);
    }
}

/// The receiving side. Only one process may have it at a time. A second receiver would lose or
/// repeat entries, but nothing else.
#[derive(Debug)]
pub struct RingReceiver {
    ring: SharedRing,
    position: u64,
}

impl RingReceiver {
    /// Passes the oldest entry to `take` and releases it. Returns `false` if the ring is empty. An
    /// entry of an invalid shape is skipped.
    #[inline]
    pub fn receive(&mut self, take: impl FnOnce(&Entry<'_>)) -> bool {
        if !self.has_entry() {
            return false;
        }
        let first = self.ring.slot(self.position);
        let shape = self.ring.shape(self.position);
        let slots = shape.map_or(1, Shape::slots);
        let (ring, position) = (&self.ring, self.position);
        if let Some(shape) = shape {
            take(&Entry::copied(first, ring, position, shape));
        }
        self.position = self.position.wrapping_add(slots);
        // Release, with the acquire in `ProducerCursor`: the entry was read before its slots are
        // free.
        self.ring.head().store(self.position, Ordering::Release);
        true
    }

    #[inline]
    pub fn has_entry(&self) -> bool {
        // Acquire, with the release in `send`: a visible entry is complete.
        self.ring.slot(self.position)[0].load(Ordering::Acquire) == filled(self.position)
    }
}
