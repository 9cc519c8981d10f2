//! Requests to a worker with a later reply: all calls but those that move data.

use super::doorbell::Doorbell;
use super::waiters::Waiters;
use super::{Worker, lock};
use crate::timeout::CallTimeout;
use pollux_verbs::time::Time;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

pub(super) struct WorkerRequest<R> {
    slot: Arc<ReplySlot<R>>,
    doorbell: Arc<Doorbell>,
}

/// The worker's end of a reply. Its drop wakes the requester, with or without an answer.
struct Reply<R>(Arc<ReplySlot<R>>);

struct ReplySlot<R> {
    answer: Mutex<Option<io::Result<R>>>,
    waiters: Waiters,
}

impl<R: Send + 'static> WorkerRequest<R> {
    /// Runs a request between two turns of the worker.
    pub(super) fn new(
        doorbell: &Arc<Doorbell>,
        request: impl FnOnce(&mut Worker<'_>, Time) -> io::Result<R> + Send + 'static,
    ) -> Self {
        let slot = Arc::new(ReplySlot { answer: Mutex::new(None), waiters: Waiters::default() });
        let reply = Reply(slot.clone());
        doorbell.submit(Box::new(move |worker, now| {
            let answer = request(worker, now);
            *lock(&reply.0.answer) = Some(answer);
        }));
        Self { slot, doorbell: doorbell.clone() }
    }

    fn look(&self) -> io::Result<Option<R>> {
        // Read first: an answer from before the end is in the slot then.
        let is_served = self.doorbell.check();
        match lock(&self.slot.answer).take() {
            Some(answer) => answer.map(Some),
            None => is_served.map(|()| None),
        }
    }
}

/// Runs a request between two turns of the worker, and waits for the answer.
pub(super) fn ask<R: Send + 'static>(
    doorbell: &Arc<Doorbell>,
    request: impl FnOnce(&mut Worker<'_>, Time) -> io::Result<R> + Send + 'static,
) -> io::Result<R> {
    let request = WorkerRequest::new(doorbell, request);
    request.slot.waiters.wait(CallTimeout::Never, || request.look())
}

impl<R: Send + 'static> Future for WorkerRequest<R> {
    type Output = io::Result<R>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<R>> {
        self.slot.waiters.poll(context, || self.look())
    }
}

impl<R> Drop for Reply<R> {
    fn drop(&mut self) {
        self.0.waiters.wake();
    }
}
