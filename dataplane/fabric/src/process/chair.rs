//! What those who share a port have in common: a secret, and who has which seat.
//!
//! The secret is made by whoever opens a port, and shown with every
//! [`Attach`](super::note::Attach): a server lets those sit together who show the same. So neither
//! they nor the server need to remember who came first: each attaches anew, in any order, when
//! there is another server, and those who stay keep the port for their own.

use crate::hca::SEATS_MAX;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// A seat at a port, as long as somebody has it.
pub(super) struct Chair {
    party: Arc<Party>,
    seat: u8,
}

struct Party {
    secret: u64,
    /// A bit for each seat.
    taken: AtomicU8,
}

const _: () = assert!(SEATS_MAX as u32 == u8::BITS);

impl Chair {
    /// The first at a port.
    pub(super) fn first() -> Self {
        // Its keys are the system's randomness, and nobody guesses them.
        let secret = RandomState::new().hash_one(());
        Self { party: Arc::new(Party { secret, taken: AtomicU8::new(1) }), seat: 0 }
    }

    /// Another one; none if all are taken. The first seat is only ever the first's.
    pub(super) fn beside(&self) -> Option<Self> {
        let free = |taken: u8| Some((taken | 1).trailing_ones()).filter(|free| *free < u8::BITS);
        let taken = &self.party.taken;
        let before = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            free(taken).map(|free| taken | 1 << free)
        });
        let seat = before.ok().and_then(free)? as u8;
        Some(Self { party: self.party.clone(), seat })
    }

    pub(super) fn seat(&self) -> u8 {
        self.seat
    }

    pub(super) fn secret(&self) -> u64 {
        self.party.secret
    }
}

impl Drop for Chair {
    fn drop(&mut self) {
        self.party.taken.fetch_and(!(1 << self.seat), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seat_is_taken_once() {
        let first = Chair::first();
        assert_ne!(first.secret(), Chair::first().secret());
        let mut others: Vec<Chair> = std::iter::from_fn(|| first.beside()).collect();
        assert!(others.iter().map(Chair::seat).eq(1..SEATS_MAX));
        assert!(others.iter().all(|other| other.secret() == first.secret()));
        drop(others.remove(2));
        drop(first);
        let last = others[0].beside();
        assert_eq!(last.as_ref().map(Chair::seat), Some(3));
        assert!(others[0].beside().is_none(), "the first seat is gone with the first");
    }
}
