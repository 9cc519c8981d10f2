//! What all workers of an interface share: how many sockets there are, and how it ends.
//!
//! An interface is served by all of its workers or by none: when one ends, for whatever reason, so
//! do the others. When nobody has the interface any more, each brings what its own sockets were
//! given to their peers; it goes on with that for the others, whose packets may come to it, until
//! all have done so; and then the lead takes leave of the link.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// What workers share.
pub(super) struct Crew {
    sockets_max: usize,
    sockets: AtomicUsize,
    /// Nobody has the interface any more.
    is_left: AtomicBool,
    /// Why nobody serves it any more.
    end: OnceLock<String>,
    /// Workers whose sockets may still have something to send.
    unfinished: AtomicUsize,
}

/// A socket's place among all that there may be.
pub(super) struct Place {
    crew: Arc<Crew>,
}

impl Crew {
    pub(super) const fn new(workers: usize, sockets_max: usize) -> Self {
        Self {
            sockets_max,
            sockets: AtomicUsize::new(0),
            is_left: AtomicBool::new(false),
            end: OnceLock::new(),
            unfinished: AtomicUsize::new(workers),
        }
    }

    /// Why nobody serves it any more, if that is so.
    pub(super) fn ended(&self) -> Option<&String> {
        self.end.get()
    }

    /// Nobody serves it any more. Who asked before is to be answered after this.
    pub(super) fn end(&self, why: String) {
        let _ = self.end.set(why);
        // Who asks after this fence sees the end; what was asked before it, the worker sees.
        fence(Ordering::SeqCst);
    }

    /// Nobody has it any more.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
    }

    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// A worker has brought what its sockets were given to their peers.
    pub(super) fn finish(&self) {
        self.unfinished.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether all have.
    pub(super) fn is_finished(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) == 0
    }
}

impl Place {
    /// One more, if there may be.
    pub(super) fn take(crew: &Arc<Crew>) -> Option<Self> {
        let place = Self { crew: crew.clone() };
        // One that is too many goes again at once.
        let before = crew.sockets.fetch_add(1, Ordering::Relaxed);
        (before < crew.sockets_max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crew.sockets.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_places_as_were_said() {
        let crew = Arc::new(Crew::new(2, 3));
        for _ in 0..3 {
            let mut places: Vec<_> = (0..3).filter_map(|_| Place::take(&crew)).collect();
            assert_eq!(places.len(), 3);
            assert!(Place::take(&crew).is_none() && Place::take(&crew).is_none());
            places.pop();
            assert!(Place::take(&crew).is_some());
        }
    }
}
