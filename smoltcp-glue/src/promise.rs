//! A value that a thread computes and a task awaits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The half of the task, which receives the value.
pub(crate) struct Promise<T>(Arc<Mutex<State<T>>>);

/// The half of the thread, which sends the value. Dropping it wakes the task, with or without a
/// value.
pub(crate) struct Promised<T>(Arc<Mutex<State<T>>>);

struct State<T> {
    value: Option<T>,
    has_ended: bool,
    waker: Option<Waker>,
}

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Promise<T> {
    pub(crate) fn new() -> (Promised<T>, Self) {
        let state = Arc::new(Mutex::new(State { value: None, has_ended: false, waker: None }));
        (Promised(Arc::clone(&state)), Self(state))
    }

    /// Ready with `None` if the thread ended without a value: it panicked.
    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0);
        if state.has_ended {
            return Poll::Ready(state.value.take());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<T> Promised<T> {
    /// Passes the value to the task. If the task is gone, the value is dropped here.
    pub(crate) fn keep(self, value: T) {
        lock(&self.0).value = Some(value);
    }
}

impl<T> Drop for Promised<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.has_ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake_count::WakeCount;

    #[test]
    fn the_end_of_the_thread_wakes_the_task_with_or_without_a_value() {
        for value in [Some(7), None] {
            let woken = Arc::new(WakeCount::default());
            let waker = Waker::from(woken.clone());
            let (end, mut promise) = Promise::new();
            assert!(promise.poll(&Context::from_waker(&waker)).is_pending());
            match value {
                Some(value) => end.keep(value),
                None => drop(end),
            }
            assert_eq!(woken.taken(), 1);
            assert_eq!(promise.poll(&Context::from_waker(&waker)), Poll::Ready(value));
        }
    }
}
