//! What all workers of an interface have in common: the number of sockets, and the shutdown.
//!
//! An interface is served by all of its workers or by none: when one ends, for whatever reason, so
//! do the others. When nobody has the interface any more, each brings what its own sockets were
//! given to their peers, and goes on for the others, whose packets may come to it, until all have
//! done so. Then control leaves the link.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// The common state of workers.
pub(super) struct CommonState {
    sockets_max: usize,
    sockets: AtomicUsize,
    /// The last handle of the interface was dropped.
    is_shut_down: AtomicBool,
    /// The reason why no worker serves it any more.
    end: OnceLock<String>,
    /// Workers whose sockets may still have something to send.
    unfinished: AtomicUsize,
}

/// A slot of the socket limit.
pub(super) struct SocketSlot {
    group: Arc<CommonState>,
}

impl CommonState {
    pub(super) const fn new(workers: usize, sockets_max: usize) -> Self {
        Self {
            sockets_max,
            sockets: AtomicUsize::new(0),
            is_shut_down: AtomicBool::new(false),
            end: OnceLock::new(),
            unfinished: AtomicUsize::new(workers),
        }
    }

    /// The reason why no worker serves it any more, if that is so.
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
    pub(super) fn shut_down(&self) {
        self.is_shut_down.store(true, Ordering::Release);
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.is_shut_down.load(Ordering::Acquire)
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

impl SocketSlot {
    /// One more, if there may be.
    pub(super) fn take(group: &Arc<CommonState>) -> Option<Self> {
        let slot = Self { group: group.clone() };
        // One that is too many goes again at once.
        let before = group.sockets.fetch_add(1, Ordering::Relaxed);
        (before < group.sockets_max).then_some(slot)
    }
}

impl Drop for SocketSlot {
    fn drop(&mut self) {
        self.group.sockets.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_max_slots_can_be_taken_at_a_time() {
        let group = Arc::new(CommonState::new(2, 3));
        for _ in 0..3 {
            let mut slots: Vec<_> = (0..3).filter_map(|_| SocketSlot::take(&group)).collect();
            assert_eq!(slots.len(), 3);
            assert!(SocketSlot::take(&group).is_none() && SocketSlot::take(&group).is_none());
            slots.pop();
            assert!(SocketSlot::take(&group).is_some());
        }
    }
}
