//! Tables that one thread publishes and workers read without waiting: routes, neighbors,
//! connections.
//!
//! A worker holds a reference to the version that it uses. Once per poll iteration it compares one
//! pointer ([`Snapshot::refresh`]). While nothing is published, this is a load of a cache line that
//! no thread writes. No packet costs an atomic operation, and all packets of an iteration see the
//! same version.
//!
//! Why arc-swap: its cache does exactly this, and its swap waits for readers that are taking a
//! reference. A new version at the address of an old one cannot confuse the pointer comparison,
//! because the cache keeps the old version alive.
//!
//! Why the publisher keeps replaced versions: otherwise the last worker to refresh would free the
//! old table during a poll iteration, and freeing a route table takes milliseconds.
//! [`Publisher::reclaim`] drops a version once no reader has it. So, while the publisher exists,
//! the `Drop` of a version runs on the publisher's thread, and a dropped version proves that no
//! worker uses it. Connections that only this version contained can then be destroyed.

use arc_swap::{ArcSwap, Cache};
use std::sync::Arc;

pub struct Publisher<T> {
    current: Arc<ArcSwap<T>>,
    /// Replaced versions that readers may have. After `reclaim` there are at most two for each
    /// reader: its version, and the version that it is changing to.
    retired: Vec<Arc<T>>,
}

/// A reader of the published versions. A clone is another reader.
#[derive(Clone)]
pub struct Snapshot<T> {
    cache: Cache<Arc<ArcSwap<T>>, Arc<T>>,
}

impl<T> Publisher<T> {
    pub fn new(first: T) -> Self {
        Self { current: Arc::new(ArcSwap::from_pointee(first)), retired: Vec::new() }
    }

    pub fn reader(&self) -> Snapshot<T> {
        Snapshot { cache: Cache::new(self.current.clone()) }
    }

    /// The current version, for example as the base for the next one.
    pub fn current(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// Publishes a version, and drops replaced versions without readers.
    pub fn publish(&mut self, next: T) {
        let previous = self.current.swap(Arc::new(next));
        self.retired.push(previous);
        self.reclaim();
    }

    /// Drops replaced versions without readers; returns how many are left.
    pub fn reclaim(&mut self) -> usize {
        // A reference count of one is the publisher's own and does not grow again: readers take
        // references only to the current version, and `swap` returned after concurrent readers had
        // counted theirs.
        self.retired.retain_mut(|version| Arc::get_mut(version).is_none());
        self.retired.len()
    }
}

impl<T> Snapshot<T> {
    /// The current version, for one poll iteration.
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
