//! The ring of entries of any length between two processes, of which neither trusts the other.
//!
//! An entry is a message: a few words of head, then bytes. A slot is two cache lines, which the
//! machine fetches as a pair, so a short message travels in one or two lines; a long one takes
//! several slots in a row:
//!
//! ```text
//! slot p      turn | shape | head ... | bytes ...        15 words beside the turn
//! slot p + 1  -    | bytes ...
//! ```
//!
//! The turn of the first slot is written last, by one atomic store, and later slots have none of
//! their own: so an entry is there whole or not at all, whoever is killed when, and no part of one
//! that was never finished can be taken for an entry. The words that an entry does not need are
//! neither written nor read.
//!
//! Positions, turns and room are those of the other rings. A peer that lies can stop the
//! flow, drop entries or deliver rubbish: entries are to be judged like packets. The shape and the
//! first words of the head are copied once, when the entry is taken up, and all is decided by the
//! copies: a sender that changes the originals meanwhile changes nothing. The bytes are copied by
//! the receiver, at the end and without being judged.

mod shape;

use crate::cursor::{ProducerCursor, START, filled, first_turn, is_capacity};
use crate::memory::Memory;
use crate::sync::{AtomicU64, Ordering};
use crate::words::{LINE_WORDS, Words};
use shape::Shape;

/// Words from one slot to the next.
const SLOT_WORDS: usize = 16;
/// Those beside the turn.
const ROOM_WORDS: usize = SLOT_WORDS - 1;
/// Bytes beside the turn.
const ROOM: usize = ROOM_WORDS * 8;

/// Words that a head can have: with its shape it fits into the first slot.
pub const HEAD_WORDS_MAX: usize = ROOM_WORDS - 1;

/// The words of a head that are copied with every entry: more than most heads have.
pub const FIRST_WORDS: usize = 4;

/// Bytes that an entry can have behind its head.
pub const BYTES_MAX: usize = 1 << 14;

/// What word 0 says: this layout, version 1.
const IDENTITY: u64 = u64::from_be_bytes(*b"PLXLANE1");

const IDENTITY_WORD: usize = 0;
const SLOTS_WORD: usize = 1;
const HEAD_WORD: usize = LINE_WORDS;
const FIRST_SLOT_WORD: usize = 2 * LINE_WORDS;

/// A ring in shared memory, before a side is chosen.
#[derive(Debug)]
pub struct SharedRing {
    words: Words,
    slots: usize,
}

/// Why memory is not the ring that it was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedRingError {
    /// The number of slots is not a power of two of at most 2^31.
    BadCapacity {
        /// The number.
        slots: u64,
    },
    /// The memory is too small for the slots.
    TooSmall {
        /// Words that there are.
        words: usize,
    },
    /// There is no ring of this version.
    NotARing,
}

impl std::fmt::Display for SharedRingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BadCapacity { slots } => {
                write!(f, "a ring has a power of two of slots up to 2^31, not {slots}")
            }
            Self::TooSmall { words } => write!(f, "a ring does not fit into {words} words"),
            Self::NotARing => f.write_str("no ring there; the peer must create it before we open"),
        }
    }
}

impl std::error::Error for SharedRingError {}

impl SharedRing {
    /// How many words a ring of `slots` takes. `None` if it can have no such number.
    pub fn words(slots: usize) -> Option<usize> {
        if !is_capacity(slots) {
            return None;
        }
        slots.checked_mul(SLOT_WORDS)?.checked_add(FIRST_SLOT_WORD)
    }

    /// A ring of this process, for two threads of it.
    pub fn private(slots: usize) -> Option<Self> {
        Self::create(Words::private(Self::words(slots)?).ok()?, slots).ok()
    }

    /// Makes an empty ring. To be done before the peer is told of the memory.
    pub fn create(words: Words, slots: usize) -> Result<Self, SharedRingError> {
        let ring = Self::fit(words, slots as u64)?;
        ring.words.as_slice()[SLOTS_WORD].store(slots as u64, Ordering::Relaxed);
        ring.reset();
        // Release, with the acquire in `open`: who sees a ring sees all of it.
        ring.words.as_slice()[IDENTITY_WORD].store(IDENTITY, Ordering::Release);
        Ok(ring)
    }

    /// Finds the ring that a peer made.
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

    /// Another handle on the same ring, for its other side.
    pub fn other_side(&self) -> Self {
        Self { words: self.words.clone(), slots: self.slots }
    }

    fn reset(&self) {
        for index in 0..self.slots {
            let turn = first_turn(index, self.slots);
            self.slot(index as u64)[0].store(turn, Ordering::Relaxed);
        }
        // Release: a producer that finds room finds the turns in order.
        self.head().store(START, Ordering::Release);
    }

    /// The sending side. It goes on behind the entries from the head on that are there.
    pub fn sender(self) -> RingSender {
        let head = self.head().load(Ordering::Acquire);
        let mut tail = head;
        // Acquire: what the last sender did with the slots comes before what we do.
        while self.slot(tail)[0].load(Ordering::Acquire) == filled(tail) {
            let next = tail.wrapping_add(self.shape(tail).map_or(1, Shape::slots));
            if next.wrapping_sub(head) > self.slots as u64 {
                break;
            }
            tail = next;
        }
        RingSender { cursor: ProducerCursor::new(tail, self.slots), ring: self }
    }

    /// The receiving side. It begins with the entries that the last one did not release.
    pub fn receiver(self) -> RingReceiver {
        RingReceiver { position: self.head().load(Ordering::Acquire), ring: self }
    }

    fn fit(words: Words, slots: u64) -> Result<Self, SharedRingError> {
        let count = usize::try_from(slots).ok().and_then(Self::words);
        let needed = count.ok_or(SharedRingError::BadCapacity { slots })?;
        if words.as_slice().len() < needed {
            return Err(SharedRingError::TooSmall { words: words.as_slice().len() });
        }
        Ok(Self { words, slots: slots as usize })
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        &self.words.as_slice()[HEAD_WORD]
    }

    /// The shape of the entry that begins here; none if our own sender never wrote it.
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
}

/// The side that sends. One process has it at a time; a second one would spoil entries and nothing
/// else.
#[derive(Debug)]
pub struct RingSender {
    ring: SharedRing,
    cursor: ProducerCursor,
}

impl RingSender {
    /// Sends an entry of `bytes`, which `fill` writes part by part, in order; says whether there
    /// was room.
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
        let room = write_head(first, shape, head);
        put(room, bytes.min(shape.first_room()), &mut fill);
        if shape.slots() > 1 {
            self.send_rest(position, bytes - shape.first_room(), &mut fill);
        }
        // Release: who sees this turn sees the whole entry.
        first[0].store(filled(position), Ordering::Release);
        self.cursor.advance_by(shape.slots());
        true
    }

    /// Sends an entry of these bytes; says whether there was room.
    ///
    /// # Panics
    /// As [`send`](Self::send).
    #[inline]
    #[must_use]
    pub fn send_bytes(&mut self, tag: u8, head: &[u64], bytes: &[u8]) -> bool {
        let shape = Shape::new(tag, head, bytes.len());
        if shape.slots() > 1 {
            let mut rest = bytes;
            return self.send(tag, head, bytes.len(), |part| {
                let (now, later) = rest.split_at(part.len());
                part.copy_from_slice(now);
                rest = later;
            });
        }
        let Some(position) = self.begin(shape) else { return false };
        let first = self.ring.slot(position);
        let room = write_head(first, shape, head);
        let (whole, tail) = bytes.as_chunks::<8>();
        for (word, bytes) in room.iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if !tail.is_empty() {
            let mut last = [0; 8];
            last[..tail.len()].copy_from_slice(tail);
            room[whole.len()].store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
        // Release: who sees this turn sees the whole entry.
        first[0].store(filled(position), Ordering::Release);
        self.cursor.advance();
        true
    }

    /// Where an entry begins, if there is room for all of it.
    #[inline(always)]
    fn begin(&mut self, shape: Shape) -> Option<u64> {
        let slots = shape.slots();
        let has_room = self.cursor.room(slots, self.ring.head()) >= slots;
        has_room.then(|| self.cursor.position())
    }

    /// Writes the slots behind the first. A sender that is killed in here has sent nothing.
    fn send_rest(&self, position: u64, mut bytes: usize, fill: &mut impl FnMut(&mut [u8])) {
        let mut position = position;
        while bytes > 0 {
            position = position.wrapping_add(1);
            let slot = self.ring.slot(position);
            let part = bytes.min(ROOM);
            put(&slot[1..], part, fill);
            bytes -= part;
        }
    }
}

/// Writes what comes before the bytes; gives the words for them.
#[inline(always)]
fn write_head<'a>(
    slot: &'a [AtomicU64; SLOT_WORDS],
    shape: Shape,
    head: &[u64],
) -> &'a [AtomicU64] {
    slot[1].store(shape.to_word(), Ordering::Relaxed);
    let (head_words, room) = slot[2..].split_at(head.len());
    for (word, value) in head_words.iter().zip(head) {
        word.store(*value, Ordering::Relaxed);
    }
    room
}

/// Writes bytes into words.
#[inline(always)]
fn put(words: &[AtomicU64], bytes: usize, fill: &mut impl FnMut(&mut [u8])) {
    if bytes == 0 {
        return;
    }
    let mut buffer = [0; ROOM];
    let part = &mut buffer[..bytes];
    fill(part);
    let (whole, _) = buffer.as_chunks::<8>();
    for (word, value) in words.iter().zip(whole).take(bytes.div_ceil(8)) {
        word.store(u64::from_ne_bytes(*value), Ordering::Relaxed);
    }
}

/// The side that receives. One process has it at a time; a second one would lose or repeat entries
/// and nothing else.
#[derive(Debug)]
pub struct RingReceiver {
    ring: SharedRing,
    position: u64,
}

impl RingReceiver {
    /// Hands the oldest entry to `take` and releases it; says whether there was one.
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
        // Release, with the acquire in `ProducerCursor`: the entry is read.
        self.ring.head().store(self.position, Ordering::Release);
        true
    }

    /// Whether there is an entry.
    #[inline]
    pub fn has_entry(&self) -> bool {
        // Acquire, with the release in `send`: the entry is there, whole.
        self.ring.slot(self.position)[0].load(Ordering::Acquire) == filled(self.position)
    }
}

/// An entry that has come.
#[derive(Debug)]
pub struct Entry<'a> {
    first: &'a [AtomicU64; SLOT_WORDS],
    ring: &'a SharedRing,
    position: u64,
    shape: Shape,
    /// The first words of the head, or what lies in their place.
    words: [u64; FIRST_WORDS],
}

impl<'a> Entry<'a> {
    #[inline(always)]
    fn copied(
        first: &'a [AtomicU64; SLOT_WORDS],
        ring: &'a SharedRing,
        position: u64,
        shape: Shape,
    ) -> Self {
        let words = std::array::from_fn(|nth| first[2 + nth].load(Ordering::Relaxed));
        Self { first, ring, position, shape, words }
    }

    /// What its sender called it.
    #[inline(always)]
    pub fn tag(&self) -> u8 {
        self.shape.tag
    }

    /// Words of its head.
    #[inline(always)]
    pub fn head_words(&self) -> usize {
        self.shape.head_words
    }

    /// The first words of its head, which are the same at every look. Where the head has fewer,
    /// the rest are no words of it.
    #[inline(always)]
    pub fn first_words(&self) -> [u64; FIRST_WORDS] {
        self.words
    }

    /// All words of its head, and zeros behind them. Words behind the first ones are copied by this
    /// call: call it once, and judge the copy.
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

    /// Bytes behind its head.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        self.shape.bytes
    }

    /// Shows the bytes part by part, in order.
    #[inline]
    pub fn read(&self, mut show: impl FnMut(&[u8])) {
        let room = &self.first[2 + self.shape.head_words..];
        let part = self.shape.bytes.min(self.shape.first_room());
        get(room, part, &mut show);
        let mut rest = self.shape.bytes - part;
        let mut position = self.position;
        while rest > 0 {
            position = position.wrapping_add(1);
            let part = rest.min(ROOM);
            get(&self.ring.slot(position)[1..], part, &mut show);
            rest -= part;
        }
    }
}

impl Entry<'_> {
    /// Copies the bytes into memory, to `at` on; says whether it reaches that far.
    #[inline(always)]
    #[must_use]
    pub fn copy_to(&self, memory: &Memory, at: usize) -> bool {
        let bytes = self.shape.bytes;
        if bytes <= self.shape.first_room() {
            let words = &self.first[2 + self.shape.head_words..];
            return memory.write_words(at, words, bytes);
        }
        let (mut to, mut reached) = (at, true);
        self.read(|part| {
            reached &= memory.write(to, part);
            to += part.len();
        });
        reached
    }
}

/// Reads bytes out of words.
#[inline(always)]
fn get(words: &[AtomicU64], bytes: usize, show: &mut impl FnMut(&[u8])) {
    if bytes == 0 {
        return;
    }
    let mut buffer = [0; ROOM];
    let (whole, _) = buffer.as_chunks_mut::<8>();
    for (value, word) in whole.iter_mut().zip(words).take(bytes.div_ceil(8)) {
        *value = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    show(&buffer[..bytes]);
}
