//! What is asked of the worker and answered later: all that is not the way of bytes.

use super::doorbell::Doorbell;
use super::waiters::Waiters;
use super::worker::Worker;
use crate::interface::CallTimeout;
use pollux_verbs::time::Time;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

/// A question that was put to the worker.
pub(super) struct Asked<R> {
    slip: Arc<Slip<R>>,
    doorbell: Arc<Doorbell>,
}

/// Where the worker writes the answer. Without one, who asked learns of that when it is dropped.
pub(super) struct Answer<R> {
    slip: Arc<Slip<R>>,
}

struct Slip<R> {
    answer: Mutex<Option<io::Result<R>>>,
    waiters: Waiters,
}

impl<R: Send + 'static> Asked<R> {
    /// Has something done between two turns of the worker.
    pub(super) fn new(
        doorbell: &Arc<Doorbell>,
        question: impl FnOnce(&mut Worker<'_>, Time) -> io::Result<R> + Send + 'static,
    ) -> Self {
        Self::later(doorbell, |worker, now, answer| answer.give(question(worker, now)))
    }

    /// The same, if the answer takes its time.
    pub(super) fn later(
        doorbell: &Arc<Doorbell>,
        question: impl FnOnce(&mut Worker<'_>, Time, Answer<R>) + Send + 'static,
    ) -> Self {
        let slip = Arc::new(Slip { answer: Mutex::new(None), waiters: Waiters::default() });
        let answer = Answer { slip: slip.clone() };
        doorbell.submit(Box::new(move |worker, now| question(worker, now, answer)));
        Self { slip, doorbell: doorbell.clone() }
    }

    fn look(&self) -> io::Result<Option<R>> {
        // Whether it is over is looked at first: what was answered before that is there.
        let is_served = self.doorbell.check();
        match self.slip.answer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(answer) => answer.map(Some),
            None => is_served.map(|()| None),
        }
    }

    pub(super) fn wait(self) -> io::Result<R> {
        self.slip.waiters.wait(CallTimeout::Never, || self.look())
    }
}

impl<R: Send + 'static> Future for Asked<R> {
    type Output = io::Result<R>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<R>> {
        self.slip.waiters.poll(context, || self.look())
    }
}

impl<R> Answer<R> {
    pub(super) fn give(self, answer: io::Result<R>) {
        *self.slip.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }
}

impl<R> Drop for Answer<R> {
    fn drop(&mut self) {
        self.slip.waiters.wake();
    }
}
