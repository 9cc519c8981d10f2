//! A ring from many threads to one: commands to a worker, punted packets to the control thread.
//!
//! Turns say here whose a slot is (see `cursor.rs`): awaiting the value of position `p` it shows
//! `p`, with the value in it `p + 1`, emptied `p + entries`, the next position that it awaits.
//! Producers share out positions by one compare-and-swap on the tail; the consumer needs none.
//!
//! Why it cannot block for ever: a producer that claimed a position and never filled it would stop
//! the consumer there. Between claim and fill there is only the move of the value, which cannot
//! panic, and a single thread cannot be killed. A process can, so processes share only
//! [`shared_ring`](crate::shared_ring).
//!
//! A producer that is preempted at that point delays the values pushed after its own. The consumer
//! sees an empty ring meanwhile and does not wait.

use crate::cursor::{START, filled, first_turn, is_capacity};
use crate::pad::CachePadded;
use crate::sync::{Arc, AtomicU64, Ordering, UnsafeCell};
use std::mem::MaybeUninit;

/// An end that pushes; clones push into the same ring.
pub struct Sender<T> {
    ring: Arc<Ring<T>>,
}

/// The end that pops.
pub struct Receiver<T> {
    ring: Arc<Ring<T>>,
}

struct Ring<T> {
    tail: CachePadded<AtomicU64>,
    /// Written by the consumer alone, and read by the one who drops the ring.
    head: CachePadded<AtomicU64>,
    slots: Box<[Slot<T>]>,
}

struct Slot<T> {
    turn: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: a slot's value is reached only by the one whose turn it is, as `turn` hands it over with
// release and acquire; so values only move from one thread to another.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: the ring owns its values.
unsafe impl<T: Send> Send for Ring<T> {}

/// A ring of `entries` entries, which must be a power of two from 2 to 2^31; `None` otherwise.
/// (With one slot, "filled" and "awaits the next" would be the same number.)
pub fn ring<T>(entries: usize) -> Option<(Sender<T>, Receiver<T>)> {
    if !is_capacity(entries) || entries < 2 {
        return None;
    }
    let slot = |index| Slot {
        turn: AtomicU64::new(first_turn(index, entries)),
        value: UnsafeCell::new(MaybeUninit::uninit()),
    };
    let ring = Arc::new(Ring {
        tail: CachePadded(AtomicU64::new(START)),
        head: CachePadded(AtomicU64::new(START)),
        slots: (0..entries).map(slot).collect(),
    });
    Some((Sender { ring: ring.clone() }, Receiver { ring }))
}

impl<T> Ring<T> {
    #[inline(always)]
    fn slot(&self, position: u64) -> &Slot<T> {
        &self.slots[position as usize & (self.slots.len() - 1)]
    }

    /// Claims the next position. `None` when its slot still holds the value of the round before.
    fn claim(&self) -> Option<u64> {
        let mut position = self.tail.load(Ordering::Relaxed);
        loop {
            // Acquire, with the release in `take`: the slot is overwritten after it was emptied.
            let turn = self.slot(position).turn.load(Ordering::Acquire);
            let ahead = turn.wrapping_sub(position) as i64;
            if ahead < 0 {
                return None;
            }
            if ahead > 0 {
                // Others claimed it; the turn that we saw makes us see their tail too.
                position = self.tail.load(Ordering::Relaxed);
                continue;
            }
            // Relaxed: the tail only shares out numbers; what it stands for is handed over by
            // turns.
            let next = position.wrapping_add(1);
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            match self.tail.compare_exchange_weak(position, next, success, failure) {
                Ok(_) => return Some(position),
                Err(moved) => position = moved,
            }
        }
    }

    /// Takes the value at the head, if it is there.
    ///
    /// # Safety
    /// The caller is the only consumer.
    unsafe fn take(&self) -> Option<T> {
        let position = self.head.load(Ordering::Relaxed);
        let slot = self.slot(position);
        // Acquire, with the release in `push`: the value is there.
        if slot.turn.load(Ordering::Acquire) != filled(position) {
            return None;
        }
        // SAFETY: the turn says that the slot holds a value and is the consumer's, who is the
        // caller; the turn goes on below, so the value is moved out once.
        let value = slot.value.with_mut(|value| unsafe { (*value).assume_init_read() });
        slot.turn.store(position.wrapping_add(self.slots.len() as u64), Ordering::Release);
        self.head.store(position.wrapping_add(1), Ordering::Relaxed);
        Some(value)
    }
}

impl<T> Sender<T> {
    /// Appends a value, or gives it back when the ring is full.
    #[inline]
    pub fn push(&self, value: T) -> Result<(), T> {
        let Some(position) = self.ring.claim() else { return Err(value) };
        let slot = self.ring.slot(position);
        // SAFETY: the claim made this slot ours alone until the turn below; it holds no value,
        // because the consumer took the last one before it set the turn that was claimed.
        slot.value.with_mut(|place| unsafe { (*place).write(value) });
        slot.turn.store(filled(position), Ordering::Release);
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { ring: self.ring.clone() }
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest value. `None` when there is none, or when the one whose turn it is has not
    /// yet been written.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        // SAFETY: there is one receiver, and `&mut self` keeps it to one caller.
        unsafe { self.ring.take() }
    }

    /// The oldest values, at most `count_max`.
    #[inline]
    pub fn drain(&mut self, count_max: usize) -> impl Iterator<Item = T> {
        (0..count_max).map_while(|_| self.pop())
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: all ends are gone, so this is the only consumer, and every claimed slot is
        // filled.
        while unsafe { self.take() }.is_some() {}
    }
}
