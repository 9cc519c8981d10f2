//! A waker for tests, which counts wakes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

#[derive(Default)]
pub(crate) struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl WakeCount {
    /// The number of wakes since the last call.
    pub(crate) fn taken(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}
