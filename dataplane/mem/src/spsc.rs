//! A ring from one thread to one other, for any values.
//!
//! An entry costs a write into a slot and a store of the position; a batch costs one store for all of
//! it. Positions are cached on both sides (see `cursor.rs`), each on a line of its own. There is no
//! read-modify-write operation and no fence that x86 would have to execute.
//!
//! Ownership: what is pushed belongs to the ring until popped; what is left when both ends are gone is
//! dropped. A slot belongs to the producer from `tail` on and to the consumer from `head` to `tail`; a
//! position is published after the slot was used and never before.

use crate::cursor::{Cursor, START, is_capacity};
use crate::pad::CachePadded;
use crate::sync::{Arc, AtomicU64, Ordering, UnsafeCell};
use std::mem::MaybeUninit;

/// The end that pushes.
pub struct Producer<T> {
    ring: Arc<Ring<T>>,
    cursor: Cursor,
}

/// The end that pops.
pub struct Consumer<T> {
    ring: Arc<Ring<T>>,
    cursor: Cursor,
}

struct Ring<T> {
    tail: CachePadded<AtomicU64>,
    head: CachePadded<AtomicU64>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a slot is reached by one side at a time, as the positions hand it over with release and
// acquire; so values only move from one thread to another.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: the ring owns its values.
unsafe impl<T: Send> Send for Ring<T> {}

/// A ring of `entries` entries, which must be a power of two of at most 2^31; `None` otherwise.
pub fn ring<T>(entries: usize) -> Option<(Producer<T>, Consumer<T>)> {
    if !is_capacity(entries) {
        return None;
    }
    let ring = Arc::new(Ring {
        tail: CachePadded(AtomicU64::new(START)),
        head: CachePadded(AtomicU64::new(START)),
        slots: (0..entries).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
    });
    let producer = Producer { ring: ring.clone(), cursor: Cursor::of_producer(START, entries) };
    let consumer = Consumer { ring, cursor: Cursor::of_consumer(START, entries) };
    Some((producer, consumer))
}

impl<T> Ring<T> {
    #[inline(always)]
    fn slot(&self, position: u64) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[position as usize & (self.slots.len() - 1)]
    }

    /// # Safety
    /// The slot is the producer's, and the caller is that.
    #[inline(always)]
    unsafe fn write(&self, position: u64, value: T) {
        // SAFETY: by the contract nobody else reaches the slot now. It holds no value: it was never
        // used, or what it held was moved out before the consumer published its head.
        self.slot(position).with_mut(|slot| unsafe { (*slot).write(value) });
    }

    /// # Safety
    /// The slot is the consumer's, the caller is that, and moves each value out once.
    #[inline(always)]
    unsafe fn take(&self, position: u64) -> T {
        // SAFETY: by the contract nobody else reaches the slot now, and it holds the value that was
        // written before the producer published its tail.
        self.slot(position).with_mut(|slot| unsafe { (*slot).assume_init_read() })
    }
}

impl<T> Producer<T> {
    /// How many entries there is room for now, at least; more may become free at any time.
    pub fn room(&mut self) -> usize {
        self.cursor.available(u64::MAX, &self.ring.head) as usize
    }

    /// Appends a value, or gives it back when the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.cursor.available(1, &self.ring.head) == 0 {
            return Err(value);
        }
        self.write(value);
        self.cursor.publish(&self.ring.tail);
        Ok(())
    }

    /// Appends values as long as there are any and there is room, and shows them all at once; says how
    /// many. The iterator is not asked for a value that has no room.
    #[inline]
    pub fn push_from(&mut self, values: impl IntoIterator<Item = T>) -> usize {
        let mut values = values.into_iter();
        let mut count = 0;
        while self.cursor.available(1, &self.ring.head) > 0 {
            let Some(value) = values.next() else { break };
            self.write(value);
            count += 1;
        }
        self.cursor.publish(&self.ring.tail);
        count
    }

    /// Appends what there is room for from the front of `values`; says how many.
    #[inline]
    pub fn push_slice(&mut self, values: &[T]) -> usize
    where
        T: Copy,
    {
        self.push_from(values.iter().copied())
    }

    /// Writes one value that is known to have room. If a caller's iterator panics between this and the
    /// publication, what was written shows with the next push.
    #[inline(always)]
    fn write(&mut self, value: T) {
        // SAFETY: this is the only producer, and `available` said that this slot is ours.
        unsafe { self.ring.write(self.cursor.position(), value) };
        self.cursor.advance(1);
    }
}

impl<T> Consumer<T> {
    /// How many entries there are now, at least; more may come at any time.
    pub fn ready(&mut self) -> usize {
        self.cursor.available(u64::MAX, &self.ring.tail) as usize
    }

    /// Takes the oldest value. `None` when the ring is empty.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.cursor.available(1, &self.ring.tail) == 0 {
            return None;
        }
        let value = self.take();
        self.cursor.publish(&self.ring.head);
        Some(value)
    }

    /// Looks at the oldest value and leaves it.
    #[inline]
    pub fn peek(&mut self) -> Option<&T> {
        if self.cursor.available(1, &self.ring.tail) == 0 {
            return None;
        }
        let slot = self.ring.slot(self.cursor.position());
        // SAFETY: this is the only consumer, `available` said that this slot is ours and so holds a
        // value, and it stays while `self` is borrowed, because taking it needs `&mut self`.
        Some(slot.with(|slot| unsafe { (*slot).assume_init_ref() }))
    }

    /// The oldest values, at most `count_max`. Their slots go back to the producer all at once when the
    /// iterator is dropped; values not asked for stay in the ring.
    #[inline]
    pub fn drain(&mut self, count_max: usize) -> Drain<'_, T> {
        let ready = self.cursor.available(count_max as u64, &self.ring.tail) as usize;
        Drain { left: ready.min(count_max), consumer: self }
    }

    /// Moves the oldest values to the front of `out`; says how many.
    #[inline]
    pub fn pop_into(&mut self, out: &mut [T]) -> usize
    where
        T: Copy,
    {
        let values = self.drain(out.len());
        let count = values.left;
        for (place, value) in out.iter_mut().zip(values) {
            *place = value;
        }
        count
    }

    #[inline(always)]
    fn take(&mut self) -> T {
        // SAFETY: this is the only consumer, `available` said that this slot is ours, and the position
        // goes on, so the value is not moved out twice.
        let value = unsafe { self.ring.take(self.cursor.position()) };
        self.cursor.advance(1);
        value
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
        Some(self.consumer.take())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> ExactSizeIterator for Drain<'_, T> {}

impl<T> Drop for Drain<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.consumer.cursor.publish(&self.consumer.ring.head);
    }
}

impl<T> Drop for Consumer<T> {
    /// A `Drain` that was forgotten took values whose positions it did not publish.
    fn drop(&mut self) {
        self.cursor.publish(&self.ring.head);
    }
}

impl<T> Drop for Producer<T> {
    /// After a panic in `push_from`, values may be written and not published.
    fn drop(&mut self) {
        self.cursor.publish(&self.ring.tail);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let tail = self.tail.load(Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: both ends are gone, so the slots from head to tail are ours alone, and each
            // holds a value that was written and not taken.
            drop(unsafe { self.take(head) });
            head = head.wrapping_add(1);
        }
    }
}
