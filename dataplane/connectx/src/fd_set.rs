//! The descriptors of a device file, one bit each. Every `write` and `close` of the program looks
//! its descriptor up here, so the set has no lock.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) struct FdSet {
    words: [AtomicU64; Self::FDS_MAX as usize / 64],
    /// The ID of the process that the descriptors belong to.
    process: AtomicU32,
}

impl FdSet {
    /// The set holds descriptors below this number.
    const FDS_MAX: RawFd = 4096;

    pub(crate) const fn new() -> Self {
        Self { words: [const { AtomicU64::new(0) }; _], process: AtomicU32::new(0) }
    }

    /// Whether a descriptor is in the set. Returns `false` in a child of vfork(2), which shares
    /// this memory: a descriptor that the child closes stays open in the parent.
    pub(crate) fn contains(&self, fd: RawFd) -> bool {
        (0..Self::FDS_MAX).contains(&fd)
            && self.words[fd as usize / 64].load(Ordering::Relaxed) >> (fd % 64) & 1 == 1
            && self.is_own_process()
    }

    /// Inserts a descriptor of this process. Returns `false` if it is too large.
    #[must_use]
    pub(crate) fn insert(&self, fd: RawFd) -> bool {
        let fits = (0..Self::FDS_MAX).contains(&fd);
        if fits {
            self.process.store(std::process::id(), Ordering::Relaxed);
            self.words[fd as usize / 64].fetch_or(1 << (fd % 64), Ordering::Relaxed);
        }
        fits
    }

    pub(crate) fn remove(&self, fd: RawFd) {
        if (0..Self::FDS_MAX).contains(&fd) {
            self.words[fd as usize / 64].fetch_and(!(1 << (fd % 64)), Ordering::Relaxed);
        }
    }

    /// Must be called after fork(2), in a child that keeps the descriptors.
    pub(crate) fn inherit(&self) {
        self.process.store(std::process::id(), Ordering::Relaxed);
    }

    /// Must be called after fork(2), in a child that treats its copies as ordinary descriptors.
    pub(crate) fn clear(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn is_own_process(&self) -> bool {
        self.process.load(Ordering::Relaxed) == std::process::id()
    }
}
