//! A ring from one or more sending threads to one receiving thread: commands to a worker, punted
//! packets to the control thread, accepted connections.
//!
//! Each slot has a turn, as in `cursor.rs`, but here the turn also shows when the slot is free. It
//! is `2p` while the slot waits for the value of position `p`, `2p + 1` while it holds that value,
//! and then `2(p + entries)`. Producers claim positions by a compare-and-swap on the tail. The
//! consumer needs no compare-and-swap.
//!
//! Why the ring cannot block forever: a producer that claimed a position and never filled it would
//! stop the consumer there. Between claim and fill, the producer only moves the value, which cannot
//! panic, and a single thread of a process cannot be killed. A whole process can be, so processes
//! share only [`shared_ring`](crate::shared_ring).
//!
//! A producer that is preempted between claim and fill delays the values pushed after its own.
//! Meanwhile the consumer sees an empty ring and does not wait. Why not crossbeam's `ArrayQueue`:
//! its consumer waits there, and it waits forever if it is a real-time thread on the core of the
//! producer. It also executes a fence each time that it finds the queue empty.

use crate::cursor::{START, first_turn, is_capacity};
use crate::pad::CachePadded;
use crate::sync::{Arc, AtomicU64, Ordering, UnsafeCell};
use std::mem::MaybeUninit;

/// The sending side. A clone pushes into the same ring.
pub struct Sender<T> {
    ring: Arc<Ring<T>>,
}

pub struct Receiver<T> {
    ring: Arc<Ring<T>>,
}

/// A position between two values of a ring.
#[derive(Clone, Copy, Debug)]
pub struct RingPlace(u64);

struct Ring<T> {
    tail: CachePadded<AtomicU64>,
    /// Only the consumer writes it. The drop of the ring also reads it.
    head: CachePadded<AtomicU64>,
    slots: Box<[Slot<T>]>,
}

struct Slot<T> {
    turn: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: only one thread at a time accesses the value of a slot, because `turn` passes the slot on
// with release and acquire. So values only move between threads, for which `T: Send` is enough.
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

    /// Claims the next position. `None` if its slot still holds the value of the previous round.
    fn claim(&self) -> Option<u64> {
        let mut position = self.tail.load(Ordering::Relaxed);
        loop {
            // Acquire, with the release in `take`: the slot was emptied before it is overwritten.
            let turn = self.slot(position).turn.load(Ordering::Acquire);
            let ahead = turn.wrapping_sub(awaiting(position)) as i64;
            if ahead < 0 {
                return None;
            }
            if ahead > 0 {
                // Another producer has claimed this position. With its turn, its new tail is
                // visible, too.
                position = self.tail.load(Ordering::Relaxed);
                continue;
            }
            // Relaxed: the tail only numbers the claims. The turns order the accesses to the slots.
            let next = position.wrapping_add(1);
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            match self.tail.compare_exchange_weak(position, next, success, failure) {
                Ok(_) => return Some(position),
                Err(moved) => position = moved,
            }
        }
    }

    /// Takes the value at the head, if it was pushed.
    ///
    /// # Safety
    /// The caller is the only consumer.
    unsafe fn take(&self) -> Option<T> {
        let position = self.head.load(Ordering::Relaxed);
        let slot = self.slot(position);
        // Acquire, with the release in `push`: the value is complete.
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

    /// Appends a value, or returns it if the ring is full.
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

    /// The position after all values whose push has returned, as far as this thread knows.
    pub fn end(&self) -> RingPlace {
        RingPlace(self.ring.tail.load(Ordering::Relaxed))
    }

    /// Whether all values before the position were taken. Unlike [`Receiver::is_empty`], this
    /// includes values that were claimed but not yet written.
    pub fn has_passed(&self, RingPlace(position): RingPlace) -> bool {
        self.ring.head.load(Ordering::Relaxed).wrapping_sub(position) as i64 >= 0
    }

    /// Takes the oldest value. `None` if there is none, or if the next value has been claimed but
    /// not yet written.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        // SAFETY: a ring has one receiver, and `&mut self` excludes other callers.
        unsafe { self.ring.take() }
    }

    /// Takes the oldest values, at most `count_max`.
    #[inline]
    pub fn drain(&mut self, count_max: usize) -> impl Iterator<Item = T> {
        (0..count_max).map_while(|_| self.pop())
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: all senders and the receiver are dropped, so this is the only consumer, and every
        // claimed slot is filled.
        while unsafe { self.take() }.is_some() {}
    }
}
