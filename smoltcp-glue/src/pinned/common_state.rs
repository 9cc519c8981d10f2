//! The state that all workers of an interface share: the number of sockets, and the shutdown.
//!
//! An interface is served by all of its workers or by none: when one ends, for whatever reason, the
//! others end, too. Once all handles of the interface are gone, each worker sends the remaining
//! data of its own sockets, and goes on to handle packets of the others' flows until all have
//! finished. Then control leaves the link.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// The reason, if a worker has ended for none that it knows.
pub(super) const WORKER_ENDED: &str = "the interface's worker has ended";

pub(super) struct CommonState {
    sockets_max: usize,
    sockets: AtomicUsize,
    /// The last handle of the interface was dropped.
    is_shut_down: AtomicBool,
    /// The reason for which no worker serves the interface any more.
    end: OnceLock<String>,
    /// Workers whose sockets may still have something to send.
    unfinished: AtomicUsize,
}

pub(super) struct SocketSlot {
    common: Arc<CommonState>,
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

    /// The reason for which no worker serves the interface any more, if that is so.
    pub(super) fn end_reason(&self) -> Option<&String> {
        self.end.get()
    }

    /// Ends the service. The caller answers pending requests after this.
    pub(super) fn end(&self, why: String) {
        let _ = self.end.set(why);
        // A request after this fence sees the end; one before it is in the queue of the worker.
        fence(Ordering::SeqCst);
    }

    pub(super) fn shut_down(&self) {
        self.is_shut_down.store(true, Ordering::Release);
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.is_shut_down.load(Ordering::Acquire)
    }

    /// A worker has sent the remaining data of its sockets.
    pub(super) fn finish(&self) {
        self.unfinished.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether all workers have.
    pub(super) fn is_finished(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) == 0
    }
}

impl SocketSlot {
    /// `None` at the limit.
    pub(super) fn take(common: &Arc<CommonState>) -> Option<Self> {
        let slot = Self { common: common.clone() };
        // A slot above the limit is returned by its drop.
        let before = common.sockets.fetch_add(1, Ordering::Relaxed);
        (before < common.sockets_max).then_some(slot)
    }
}

impl Drop for SocketSlot {
    fn drop(&mut self) {
        self.common.sockets.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_max_slots_can_be_taken_at_a_time() {
        let common = Arc::new(CommonState::new(2, 3));
        for _ in 0..3 {
            let mut slots: Vec<_> = (0..3).filter_map(|_| SocketSlot::take(&common)).collect();
            assert_eq!(slots.len(), 3);
            assert!(SocketSlot::take(&common).is_none() && SocketSlot::take(&common).is_none());
            slots.pop();
            assert!(SocketSlot::take(&common).is_some());
        }
    }
}
