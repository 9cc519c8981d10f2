//! The state that all workers of an interface share: the number of sockets, and the shutdown.
//!
//! An interface is served by all of its workers or by none: when one worker ends for any reason,
//! the others end too. Once all handles of the interface are dropped, each worker sends the
//! remaining data of its own sockets, and continues to handle packets of other workers' flows until
//! all workers have finished. Then the control plane leaves the link.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// The end reason if a worker ends without a known reason.
pub(super) const WORKER_ENDED: &str = "the interface's worker has ended";

pub(super) struct CommonState {
    sockets_max: usize,
    sockets: AtomicUsize,
    /// Whether the last handle of the interface was dropped.
    is_shut_down: AtomicBool,
    /// Why no worker serves the interface any more.
    end: OnceLock<String>,
    /// The number of workers with sockets that may still have data to send.
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

    /// Why no worker serves the interface any more; `None` while they do.
    pub(super) fn end_reason(&self) -> Option<&String> {
        self.end.get()
    }

    /// Ends the service. Afterwards, the worker drops pending requests, which wakes their callers.
    pub(super) fn end(&self, why: String) {
        let _ = self.end.set(why);
        // A request after this fence sees the end; an earlier one is in the queue of the worker.
        fence(Ordering::SeqCst);
    }

    pub(super) fn shut_down(&self) {
        self.is_shut_down.store(true, Ordering::Release);
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.is_shut_down.load(Ordering::Acquire)
    }

    /// Notes that a worker has sent the remaining data of its sockets.
    pub(super) fn finish(&self) {
        self.unfinished.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether all workers have sent the remaining data of their sockets.
    pub(super) fn is_finished(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) == 0
    }
}

impl SocketSlot {
    /// Takes a slot; `None` if `sockets_max` slots are taken.
    pub(super) fn take(common: &Arc<CommonState>) -> Option<Self> {
        let slot = Self { common: common.clone() };
        // A slot above the limit is dropped, which returns it.
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
