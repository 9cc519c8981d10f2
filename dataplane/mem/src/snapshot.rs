//! Tables that one thread publishes and workers read without waiting: routes, neighbors,
//! connections.
//!
//! A worker holds a reference to the version it uses. Once a breath it compares one pointer
//! ([`Snapshot::refresh`]); as long as nothing was published, that is a load of a line that nobody
//! writes. No packet costs an atomic operation, and all packets of a breath see one version.
//!
//! Why arc-swap underneath: its cache does exactly this, and its swap settles what readers are in
//! the middle of. The pointer compare cannot be fooled by an address that is used again, because
//! the cache keeps the old version alive.
//!
//! Why the publisher keeps what it replaced: else the last worker to move on would free the old
//! table in the middle of a breath, and a route table takes milliseconds to free.
//! [`Publisher::reclaim`] drops a version once nobody else has it. So, while the publisher lives, a
//! value's `Drop` runs on its thread, and that a version is gone proves that no worker uses it: the
//! moment to destroy the connections that only it named.

use arc_swap::{ArcSwap, Cache};
use std::sync::Arc;

/// The one who publishes.
pub struct Publisher<T> {
    current: Arc<ArcSwap<T>>,
    /// Replaced versions that somebody may still read: after `reclaim`, at most the one that
    /// a reader has and the one that it is changing to.
    retired: Vec<Arc<T>>,
}

/// A reader's view. Clones are further readers.
#[derive(Clone)]
pub struct Snapshot<T> {
    cache: Cache<Arc<ArcSwap<T>>, Arc<T>>,
}

impl<T> Publisher<T> {
    /// Publishes the first version.
    pub fn new(first: T) -> Self {
        Self { current: Arc::new(ArcSwap::from_pointee(first)), retired: Vec::new() }
    }

    /// A new reader.
    pub fn reader(&self) -> Snapshot<T> {
        Snapshot { cache: Cache::new(self.current.clone()) }
    }

    /// The version that readers get now, to make the next one from.
    pub fn current(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// Publishes another version, and drops those that nobody reads any more.
    pub fn publish(&mut self, next: T) {
        let previous = self.current.swap(Arc::new(next));
        self.retired.push(previous);
        self.reclaim();
    }

    /// Drops replaced versions that nobody reads any more; says how many are still read.
    pub fn reclaim(&mut self) -> usize {
        // A count of one is ours and final: new references are taken from the current version only,
        // and `swap` returned after all that were being taken had been counted.
        self.retired.retain_mut(|version| Arc::get_mut(version).is_none());
        self.retired.len()
    }
}

impl<T> Snapshot<T> {
    /// The current version, for the length of a breath.
    #[inline]
    pub fn refresh(&mut self) -> &T {
        self.cache.load()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn versions_stay_while_read_and_end_at_the_publisher() {
        let mut publisher = Publisher::new(String::from("one"));
        let (mut early, mut late) = (publisher.reader(), publisher.reader());
        assert_eq!((early.refresh(), late.refresh()), (&"one".into(), &"one".into()));
        publisher.publish("two".into());
        assert_eq!(early.refresh(), "two");
        assert_eq!(publisher.reclaim(), 1, "the late one reads the first version");
        publisher.publish("three".into());
        publisher.publish("four".into());
        assert_eq!(publisher.reclaim(), 2, "nobody ever read the third");
        assert_eq!(late.refresh(), "four");
        assert_eq!(early.clone().refresh(), "four");
        drop(early);
        assert_eq!(publisher.reclaim(), 0);
        assert_eq!(*publisher.current(), "four");
    }
}
