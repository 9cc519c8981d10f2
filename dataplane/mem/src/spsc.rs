//! A ring from one thread to one other, for any values.
//!
//! A push writes a value and its slot's turn, both on one line; a pop reads them and stores the
//! head, which the producer looks at once in a round (see `cursor.rs`). There is no
//! read-modify-write operation and no fence that x86 would have to execute. A value can be popped
//! as soon as it is pushed, also in the middle of a batch; what a batch of pops saves is the stores
//! of the head.
//!
//! Ownership: what is pushed belongs to the ring until popped; what is left when both ends are gone
//! is dropped. A slot belongs to the consumer from the moment its turn says so, and to the producer
//! from the moment the head is past it.

use crate::cursor::{ProducerCursor, START, filled, first_turn, is_capacity};
use crate::pad::CachePadded;
use crate::sync::{Arc, AtomicU64, Ordering, UnsafeCell};
use std::mem::MaybeUninit;

/// The end that pushes.
pub struct Producer<T> {
    ring: Arc<Ring<T>>,
    cursor: ProducerCursor,
}

/// The end that pops.
pub struct Consumer<T> {
    ring: Arc<Ring<T>>,
    position: u64,
}

struct Ring<T> {
    head: CachePadded<AtomicU64>,
    slots: Box<[Slot<T>]>,
}

struct Slot<T> {
    turn: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: a value is reached by one side at a time, as turn and head hand its slot over with
// release and acquire; so values only move from one thread to another.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: the ring owns its values.
unsafe impl<T: Send> Send for Ring<T> {}

/// A ring of `entries` entries, which must be a power of two of at most 2^31; `None` otherwise.
pub fn ring<T>(entries: usize) -> Option<(Producer<T>, Consumer<T>)> {
    if !is_capacity(entries) {
        return None;
    }
    let slot = |index| Slot {
        turn: AtomicU64::new(first_turn(index, entries)),
        value: UnsafeCell::new(MaybeUninit::uninit()),
    };
    let ring = Arc::new(Ring {
        head: CachePadded(AtomicU64::new(START)),
        slots: (0..entries).map(slot).collect(),
    });
    let producer = Producer { ring: ring.clone(), cursor: ProducerCursor::new(START, entries) };
    Some((producer, Consumer { ring, position: START }))
}

impl<T> Ring<T> {
    #[inline(always)]
    fn slot(&self, position: u64) -> &Slot<T> {
        &self.slots[position as usize & (self.slots.len() - 1)]
    }

    /// The slot of `position`, if its value is there.
    #[inline(always)]
    fn filled_slot(&self, position: u64) -> Option<&Slot<T>> {
        let slot = self.slot(position);
        // Acquire, with the release in `write`: the value is there.
        (slot.turn.load(Ordering::Acquire) == filled(position)).then_some(slot)
    }

    /// Moves out the value of `position`, if it is there.
    ///
    /// # Safety
    /// The caller is the only consumer, and takes no position twice.
    #[inline(always)]
    unsafe fn take(&self, position: u64) -> Option<T> {
        let slot = self.filled_slot(position)?;
        // SAFETY: the turn says that the slot holds this position's value and is the consumer's,
        // who is the caller, until the head is past it. The value is not moved out again.
        Some(slot.value.with_mut(|value| unsafe { (*value).assume_init_read() }))
    }
}

impl<T> Producer<T> {
    /// How many entries there is room for now; more may become free at any time.
    pub fn room(&mut self) -> usize {
        self.cursor.room(u64::MAX, &self.ring.head) as usize
    }

    /// Appends a value, or gives it back when the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.cursor.room(1, &self.ring.head) == 0 {
            return Err(value);
        }
        let position = self.cursor.position();
        let slot = self.ring.slot(position);
        // SAFETY: this is the only producer, and there is room, so the head is past the slot's last
        // value, which was moved out, and the consumer reaches the slot only by the turn below.
        slot.value.with_mut(|place| unsafe { (*place).write(value) });
        slot.turn.store(filled(position), Ordering::Release);
        self.cursor.advance();
        Ok(())
    }
}

impl<T> Consumer<T> {
    /// Whether there is nothing to pop. Something may come at any time.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ring.filled_slot(self.position).is_none()
    }

    /// Takes the oldest value. `None` when the ring is empty.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let value = self.take()?;
        self.publish();
        Some(value)
    }

    /// Looks at the oldest value and leaves it.
    #[inline]
    pub fn peek(&mut self) -> Option<&T> {
        let slot = self.ring.filled_slot(self.position)?;
        // SAFETY: this is the only consumer and the slot holds a value, which stays while `self` is
        // borrowed, because taking it needs `&mut self`.
        Some(slot.value.with(|value| unsafe { (*value).assume_init_ref() }))
    }

    /// The oldest values as they come, at most `count_max`. Their slots go back to the producer all
    /// at once when the iterator is dropped; values not asked for stay in the ring.
    #[inline]
    pub fn drain(&mut self, count_max: usize) -> Drain<'_, T> {
        Drain { consumer: self, left: count_max }
    }

    #[inline(always)]
    fn take(&mut self) -> Option<T> {
        // SAFETY: this is the only consumer, and the position goes on below.
        let value = unsafe { self.ring.take(self.position) }?;
        self.position = self.position.wrapping_add(1);
        Some(value)
    }

    #[inline(always)]
    fn publish(&self) {
        // Release, with the acquire in `ProducerCursor`: the slots before are emptied.
        self.ring.head.store(self.position, Ordering::Release);
    }
}

/// The values of [`Consumer::drain`].
pub struct Drain<'a, T> {
    consumer: &'a mut Consumer<T>,
    left: usize,
}

impl<T> Iterator for Drain<'_, T> {
    type Item = T;

    #[inline(always)]
    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        self.consumer.take()
    }
}

impl<T> Drop for Drain<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.consumer.publish();
    }
}

impl<T> Drop for Consumer<T> {
    /// A `Drain` that was forgotten took values and did not publish it.
    fn drop(&mut self) {
        self.publish();
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let mut position = self.head.load(Ordering::Relaxed);
        // SAFETY: both ends are gone, so this is the only consumer; positions before the head were
        // taken and those after it were not.
        while unsafe { self.take(position) }.is_some() {
            position = position.wrapping_add(1);
        }
    }
}
