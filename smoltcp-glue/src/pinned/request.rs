//! Requests to a worker with a later reply: everything but data.

use super::Worker;
use super::doorbell::Doorbell;
use super::waiters::Waiters;
use crate::interface::CallTimeout;
use pollux_verbs::time::Time;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

/// A request that was put to the worker.
pub(super) struct WorkerRequest<R> {
    slot: Arc<ReplySlot<R>>,
    doorbell: Arc<Doorbell>,
}

/// The worker's end of a reply. A drop without a reply wakes the requester with an error.
pub(super) struct Reply<R> {
    slot: Arc<ReplySlot<R>>,
}

struct ReplySlot<R> {
    answer: Mutex<Option<io::Result<R>>>,
    waiters: Waiters,
}

impl<R: Send + 'static> WorkerRequest<R> {
    /// Has something done between two turns of the worker.
    pub(super) fn new(
        doorbell: &Arc<Doorbell>,
        request: impl FnOnce(&mut Worker<'_>, Time) -> io::Result<R> + Send + 'static,
    ) -> Self {
        Self::deferred(doorbell, |worker, now, reply| reply.send(request(worker, now)))
    }

    /// The same, if the answer takes its time.
    pub(super) fn deferred(
        doorbell: &Arc<Doorbell>,
        request: impl FnOnce(&mut Worker<'_>, Time, Reply<R>) + Send + 'static,
    ) -> Self {
        let slot = Arc::new(ReplySlot { answer: Mutex::new(None), waiters: Waiters::default() });
        let reply = Reply { slot: slot.clone() };
        doorbell.submit(Box::new(move |worker, now| request(worker, now, reply)));
        Self { slot, doorbell: doorbell.clone() }
    }

    fn look(&self) -> io::Result<Option<R>> {
        // Whether it is over is looked at first: what was answered before that is there.
        let is_served = self.doorbell.check();
        match self.slot.answer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(answer) => answer.map(Some),
            None => is_served.map(|()| None),
        }
    }

    pub(super) fn wait(self) -> io::Result<R> {
        self.slot.waiters.wait(CallTimeout::Never, || self.look())
    }
}

impl<R: Send + 'static> Future for WorkerRequest<R> {
    type Output = io::Result<R>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<R>> {
        self.slot.waiters.poll(context, || self.look())
    }
}

impl<R> Reply<R> {
    pub(super) fn send(self, answer: io::Result<R>) {
        *self.slot.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }
}

impl<R> Drop for Reply<R> {
    fn drop(&mut self) {
        self.slot.waiters.wake();
    }
}
