//! A ring from one or many threads to one: commands to a worker, punted packets to the control
//! thread, accepted connections.
//!
//! Each slot has a turn, as in `cursor.rs`, but here it also shows when the slot is free: it is
//! `2p` while the slot waits for the value of position `p`, `2p + 1` while it holds that value, and
//! then `2(p + entries)`. Producers claim positions by a compare-and-swap on the tail; the consumer
//! needs none.
//!
//! Why it cannot block forever: a producer that claimed a position and never filled it would stop
//! the consumer there. Between claim and fill there is only the move of the value, which cannot
//! panic, and a single thread cannot be killed. A process can, so processes share only
//! [`shared_ring`](crate::shared_ring).
//!
//! A producer that is preempted at that point delays the values pushed after its own. The consumer
//! sees an empty ring meanwhile and does not wait. Why not crossbeam's `ArrayQueue`: its consumer
//! waits there, forever if it is a real-time thread on the core of the producer, and it executes a
//! fence each time that it finds the queue empty.

use crate::cursor::{START, first_turn, is_capacity};
use crate::pad::CachePadded;
use crate::sync::{Arc, AtomicU64, Ordering, UnsafeCell};
use std::mem::MaybeUninit;

/// Clones push into the same ring.
pub struct Sender<T> {
    ring: Arc<Ring<T>>,
}

pub struct Receiver<T> {
    ring: Arc<Ring<T>>,
}

/// A place between two values of a ring.
#[derive(Clone, Copy, Debug)]
pub struct RingPlace(u64);

struct Ring<T> {
    tail: CachePadded<AtomicU64>,
    /// Written by the consumer only; read when the ring is dropped, too.
    head: CachePadded<AtomicU64>,
    slots: Box<[Slot<T>]>,
}

struct Slot<T> {
    turn: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: one thread at a time accesses the value of a slot, because `turn` hands it over with
// release and acquire; so values only move from one thread to another.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: the ring owns its values.
unsafe impl<T: Send> Send for Ring<T> {}

/// The turn of a slot that waits for the value of `position`.
fn awaiting(position: u64) -> u64 {
    position.wrapping_mul(2)
}

/// The turn of a slot that holds the value of `position`.
fn filled(position: u64) -> u64 {
    awaiting(position).wrapping_add(1)
}

/// A ring of `entries` entries, which must be a power of two of at most 2^31; `None` otherwise.
pub fn ring<T>(entries: usize) -> Option<(Sender<T>, Receiver<T>)> {
    if !is_capacity(entries) {
        return None;
    }
    let slot = |index| Slot {
        turn: AtomicU64::new(awaiting(first_turn(index, entries))),
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
            let ahead = turn.wrapping_sub(awaiting(position)) as i64;
            if ahead < 0 {
                return None;
            }
            if ahead > 0 {
                // Another producer claimed it; its tail is visible with the turn.
                position = self.tail.load(Ordering::Relaxed);
                continue;
            }
            // Relaxed: the tail only numbers the claims; turns hand over the slots.
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
        // SAFETY: the turn shows that the slot holds a value and belongs to the consumer, which is
        // the caller; the turn changes below, so the value is moved out once.
        let value = slot.value.with_mut(|value| unsafe { (*value).assume_init_read() });
        let next = position.wrapping_add(self.slots.len() as u64);
        slot.turn.store(awaiting(next), Ordering::Release);
        self.head.store(position.wrapping_add(1), Ordering::Relaxed);
        Some(value)
    }
}

impl<T> Sender<T> {
    /// Whether a push would succeed, if there is no other producer.
    pub fn has_room(&self) -> bool {
        let position = self.ring.tail.load(Ordering::Relaxed);
        // Acquire, with the release in `take`: the slot was emptied.
        self.ring.slot(position).turn.load(Ordering::Acquire) == awaiting(position)
    }

    /// Appends a value, or gives it back when the ring is full.
    #[inline]
    pub fn push(&self, value: T) -> Result<(), T> {
        let Some(position) = self.ring.claim() else { return Err(value) };
        let slot = self.ring.slot(position);
        // SAFETY: the claim gave this slot to this producer until the turn is stored below. It has
        // no value, because the consumer took the last one before it set the turn that was claimed.
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
    /// Whether [`Receiver::pop`] would return `None`. That may change at any time.
    pub fn is_empty(&self) -> bool {
        let position = self.ring.head.load(Ordering::Relaxed);
        self.ring.slot(position).turn.load(Ordering::Acquire) != filled(position)
    }

    /// The place behind all values whose push has ended, as far as this thread knows.
    pub fn end(&self) -> RingPlace {
        RingPlace(self.ring.tail.load(Ordering::Relaxed))
    }

    /// Whether all values before the place were taken. Unlike [`Receiver::is_empty`], this
    /// also waits for a value that has been claimed but not yet written.
    pub fn has_passed(&self, RingPlace(position): RingPlace) -> bool {
        self.ring.head.load(Ordering::Relaxed).wrapping_sub(position) as i64 >= 0
    }

    /// Takes the oldest value. `None` if there is none, or if the next value has been claimed but
    /// not yet written.
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
