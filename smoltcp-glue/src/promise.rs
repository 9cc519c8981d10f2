//! A value that a thread makes for a task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The end of the task.
pub(crate) struct Promise<T>(Arc<Mutex<State<T>>>);

/// The end of the thread.
pub(crate) struct Promised<T>(Arc<Mutex<State<T>>>);

struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Promise<T> {
    pub(crate) fn new() -> (Promised<T>, Self) {
        let state = Arc::new(Mutex::new(State { value: None, waker: None }));
        (Promised(Arc::clone(&state)), Self(state))
    }

    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<T> {
        let mut state = lock(&self.0);
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Promised<T> {
    /// Hands over the value. Without the task, it is dropped here.
    pub(crate) fn keep(self, value: T) {
        let mut state = lock(&self.0);
        state.value = Some(value);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
