//! A check that protocol code runs on no worker thread: workers move packets, and punt those that
//! they cannot handle to the control thread. The check costs nothing in release builds.

use std::cell::Cell;

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as a worker thread: protocol code that runs on it panics in debug builds.
pub fn mark_worker_thread() {
    IS_WORKER.set(true);
}

/// Runs `work` as if on a worker thread: protocol code in it panics in debug builds.
pub fn as_worker<R>(work: impl FnOnce() -> R) -> R {
    if !cfg!(debug_assertions) {
        return work();
    }
    let before = IS_WORKER.replace(true);
    let result = work();
    IS_WORKER.set(before);
    result
}

pub(crate) fn assert_no_worker_thread() {
    debug_assert!(!IS_WORKER.get(), "protocol code runs on a worker thread");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_code_panics_on_a_worker_thread() {
        let marked = std::thread::spawn(|| {
            assert_no_worker_thread();
            mark_worker_thread();
            assert_no_worker_thread();
        });
        assert!(marked.join().is_err());
        assert_no_worker_thread();
    }
}
