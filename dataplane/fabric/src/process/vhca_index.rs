//! vHCA indexes: the shared-port contexts of a port that are taken, and their common secret.
//!
//! The first adapter at a port makes the secret, and every
//! [`Attach`](super::control_message::Attach) contains it. After a server restart, the contexts can
//! attach in any order. Once one of them is attached, the server refuses other processes at the
//! port, because they do not have the secret.

use pollux_hca::PORT_CONTEXTS_MAX;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The index of a shared-port context, taken until this is dropped.
pub(super) struct VhcaIndex {
    port: Arc<SharedPort>,
    number: u8,
}

struct SharedPort {
    secret: u64,
    /// A bit for each context that is taken.
    taken: AtomicU32,
}

const _: () = assert!(PORT_CONTEXTS_MAX as u32 == u32::BITS);

impl VhcaIndex {
    /// Index 0 of a port, with a new secret.
    pub(super) fn first() -> Self {
        // The keys of `RandomState` are random, so the secret cannot be guessed.
        let secret = RandomState::new().hash_one(());
        Self { port: Arc::new(SharedPort { secret, taken: AtomicU32::new(1) }), number: 0 }
    }

    /// An index of a port that several processes share. All of them have the secret.
    pub(super) fn of_group(secret: u64, number: u8) -> Self {
        Self { port: Arc::new(SharedPort { secret, taken: AtomicU32::new(1 << number) }), number }
    }

    /// Another index; `None` if all are taken. Index 0 is not assigned again.
    pub(super) fn another(&self) -> Option<Self> {
        let free = |taken: u32| Some((taken | 1).trailing_ones()).filter(|free| *free < u32::BITS);
        let taken = &self.port.taken;
        let before = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            free(taken).map(|free| taken | 1 << free)
        });
        let number = before.ok().and_then(free)? as u8;
        Some(Self { port: self.port.clone(), number })
    }

    pub(super) fn number(&self) -> u8 {
        self.number
    }

    pub(super) fn secret(&self) -> u64 {
        self.port.secret
    }
}

impl Drop for VhcaIndex {
    fn drop(&mut self) {
        self.port.taken.fetch_and(!(1 << self.number), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_context_is_taken_once() {
        let first = VhcaIndex::first();
        assert_ne!(first.secret(), VhcaIndex::first().secret());
        let mut others: Vec<VhcaIndex> = std::iter::from_fn(|| first.another()).collect();
        assert!(others.iter().map(VhcaIndex::number).eq(1..PORT_CONTEXTS_MAX));
        assert!(others.iter().all(|other| other.secret() == first.secret()));
        drop(others.remove(2));
        drop(first);
        let last = others[0].another();
        assert_eq!(last.as_ref().map(VhcaIndex::number), Some(3));
        assert!(others[0].another().is_none(), "the first context is gone with the first");
    }
}
