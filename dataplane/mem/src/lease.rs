//! The word by which an owner takes back memory that others copy from, without waiting for them.
//!
//! A reader looks at the lease, copies, and looks again. If both looks show the same value, the
//! copy is what the owner had there while it lent it; else the copy is worth nothing. So the owner
//! never waits, and a reader that is stopped or dies holds nothing up.
//!
//! ```text
//! owner:   what is lent, then grant(v)          revoke(w), then what it writes later
//!                          |release                  |release fence
//! reader:       now() = v, acquire fence        copy, acquire fence, is_still(v)
//! ```
//!
//! Two pairs order this on every machine. A reader that sees the grant sees what was written before
//! it. A reader that has copied anything that was written after the revocation sees the revocation
//! in the second look: the fences order the copy, which is relaxed loads, and not just the lease
//! itself. An atomic exchange in place of the fence would not do: later stores may pass its store.
//!
//! A value must not come back while a copy may go on: count it up.

use crate::sync::{AtomicU64, Ordering, fence};
use crate::words::ReadWord;

/// The owner's side of a lease.
#[derive(Clone, Copy, Debug)]
pub struct Lease<'a> {
    word: &'a AtomicU64,
}

/// A reader's side of a lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseReader<'a> {
    word: &'a AtomicU64,
}

impl<'a> Lease<'a> {
    /// The lease in a word that this process alone writes.
    #[inline(always)]
    pub fn of(word: &'a AtomicU64) -> Self {
        Self { word }
    }

    /// Lends what was written before, under this value.
    #[inline]
    pub fn grant(self, value: u64) {
        // Release, with the fence in `now`: who sees the value sees what it stands for.
        self.word.store(value, Ordering::Release);
    }

    /// Takes back what was lent: the lease has this value, and what the owner writes from now on no
    /// reader takes for lent.
    #[inline]
    pub fn revoke(self, value: u64) {
        self.word.store(value, Ordering::Relaxed);
        // With the fence in `is_still`: who has read a later store of ours sees this one.
        fence(Ordering::Release);
    }

    /// The value that the owner gave it last.
    #[inline]
    pub fn value(self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }
}

impl<'a> LeaseReader<'a> {
    /// The lease in a word of this process.
    #[inline(always)]
    pub fn of(word: &'a AtomicU64) -> Self {
        Self { word }
    }

    /// The lease in a word that another process writes.
    #[inline(always)]
    pub fn of_peer(word: &'a ReadWord) -> Self {
        Self { word: &word.0 }
    }

    /// Its value now. To be asked before anything is copied.
    #[inline]
    pub fn now(self) -> u64 {
        // With the release in `grant`; by a fence, since of pages that cannot be written the
        // language allows relaxed loads only.
        let value = self.word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    /// Whether it still has this value. To be asked behind the copy, which counts only then.
    #[inline]
    pub fn is_still(self, value: u64) -> bool {
        // With the fence in `revoke`: the loads of the copy come before this look.
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == value
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lease_holds_until_it_is_revoked() {
        let word = AtomicU64::new(0);
        let (owner, reader) = (Lease::of(&word), LeaseReader::of(&word));
        owner.grant(5);
        assert_eq!((owner.value(), reader.now()), (5, 5));
        assert!(reader.is_still(5) && !reader.is_still(4));
        owner.revoke(0);
        assert!(!reader.is_still(5) && reader.is_still(0));
    }
}
