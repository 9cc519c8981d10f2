//! A lease: one word by which a sender grants receivers access to its memory (zero-copy send), and
//! revokes it without waiting for them.
//!
//! A reader loads the lease, copies, and loads it again. If both loads have the same value, the
//! copy is valid; otherwise it is discarded. So the owner never waits, and a reader that is stopped
//! or killed delays nothing.
//!
//! ```text
//! owner:   writes data, then grant(v)           revoke(w), then overwrites the data
//!                          |release                  |release fence
//! reader:       now() = v, acquire fence        copy, acquire fence, is_still(v)
//! ```
//!
//! Two pairs of orderings make this correct on every machine. By the release in `grant` and the
//! fence in `now`, a reader that sees the grant sees the data written before it. By the fences in
//! `revoke` and `is_still`, a reader whose copy contains anything written after the revocation sees
//! the revocation in its second load: the fences also order the copy, which consists of relaxed
//! loads. An atomic exchange in place of the fence in `revoke` is not enough, because later stores
//! may become visible before its store.
//!
//! A value must not be reused while a copy may be in progress, so owners use a counter.

use crate::sync::{AtomicU64, Ordering, fence};
use crate::words::ReadWord;

#[derive(Clone, Copy, Debug)]
pub struct Lease<'a> {
    word: &'a AtomicU64,
}

#[derive(Clone, Copy, Debug)]
pub struct LeaseReader<'a> {
    word: &'a AtomicU64,
}

impl<'a> Lease<'a> {
    /// The lease in a word that only this process writes.
    #[inline(always)]
    pub fn of(word: &'a AtomicU64) -> Self {
        Self { word }
    }

    /// Grants readers the data written so far, under this value.
    #[inline]
    pub fn grant(self, value: u64) {
        // Release, which pairs with the fence in `now`: a reader that sees the value sees the data.
        self.word.store(value, Ordering::Release);
    }

    /// Revokes the data and sets this value: no copy of anything written from now on is valid.
    #[inline]
    pub fn revoke(self, value: u64) {
        self.word.store(value, Ordering::Relaxed);
        // Pairs with the fence in `is_still`: a reader that sees a later store sees this one, too.
        fence(Ordering::Release);
    }

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

    /// The current value. Call it before the copy.
    #[inline]
    pub fn now(self) -> u64 {
        // Pairs with the release in `grant`. It is a fence and no acquire load, because the
        // language allows only relaxed loads from read-only pages.
        let value = self.word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    /// Whether the value is unchanged. Call it after the copy, which is valid only if so.
    #[inline]
    pub fn is_still(self, value: u64) -> bool {
        // Pairs with the fence in `revoke`, and orders the loads of the copy before this one.
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
