//! One side's view of a single-producer single-consumer ring: how far it may go.
//!
//! A ring has two positions that only count up: `tail`, of the next entry to be written, and `head`, of
//! the next to be read. Each side writes one, keeps the true value of it here, and never reads it back.
//! It reads the other's only when what it saw last does not suffice, so while both keep moving a line
//! changes cores once per batch and not once per entry.
//!
//! Producer and consumer differ in one number. The consumer may go up to `tail`; the producer up to
//! `head + capacity`. So one type serves both, with that distance as its `lead`.
//!
//! What the other side says is checked: a limit less than nothing or more than the capacity ahead is
//! impossible. Between threads that cannot happen; between processes it means that the peer is
//! broken, and the side that notices stands still.

use crate::sync::{AtomicU64, Ordering};

/// Where positions begin: shortly before they wrap, so that every run crosses that point.
pub(crate) const START: u64 = 0u64.wrapping_sub(64);

/// How many entries a ring can have.
pub(crate) const ENTRIES_MAX: usize = 1 << 31;

pub(crate) struct Cursor {
    position: u64,
    /// The position that this side must not pass, as last seen.
    limit: u64,
    /// How far the limit lies ahead of the other side's position.
    lead: u64,
    capacity: u64,
    broken: bool,
}

impl Cursor {
    pub(crate) fn of_producer(position: u64, capacity: usize) -> Self {
        let capacity = capacity as u64;
        Self { position, limit: position, lead: capacity, capacity, broken: false }
    }

    pub(crate) fn of_consumer(position: u64, capacity: usize) -> Self {
        Self { position, limit: position, lead: 0, capacity: capacity as u64, broken: false }
    }

    /// How many entries this side may write or read now. Looks at the other side's position only if
    /// fewer than `wanted` are known.
    #[inline(always)]
    pub(crate) fn available(&mut self, wanted: u64, other: &AtomicU64) -> u64 {
        let known = self.limit.wrapping_sub(self.position);
        if known >= wanted { known } else { self.look(other) }
    }

    #[inline(always)]
    fn look(&mut self, other: &AtomicU64) -> u64 {
        // Acquire, with the release in `publish`: a consumer sees the entries that were written, and a
        // producer overwrites none before it was read.
        let limit = other.load(Ordering::Acquire).wrapping_add(self.lead);
        let known = limit.wrapping_sub(self.position);
        if known > self.capacity || self.broken {
            self.broken = true;
            self.limit = self.position;
            return 0;
        }
        self.limit = limit;
        known
    }

    /// The next entry's position; an index once masked.
    #[inline(always)]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Goes on by `count` entries, which must have been available.
    #[inline(always)]
    pub(crate) fn advance(&mut self, count: u64) {
        self.position = self.position.wrapping_add(count);
    }

    /// Shows the other side how far this one is.
    #[inline(always)]
    pub(crate) fn publish(&self, own: &AtomicU64) {
        own.store(self.position, Ordering::Release);
    }

    /// Whether the other side ever showed an impossible position.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }
}

/// Whether a ring can have that many entries: positions are masked into indices.
pub(crate) fn is_capacity(entries: usize) -> bool {
    entries.is_power_of_two() && entries <= ENTRIES_MAX
}
