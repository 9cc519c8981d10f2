//! Requests to a worker, which replies later: for all calls except those that move data.

use super::common_state::{CommonState, WORKER_ENDED};
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

/// The worker's half of a reply. Dropping it wakes the caller, with or without an answer.
///
/// Without an answer, the worker has ended or is about to end: a panic in the request drops this
/// before the worker. So the drop sets the end reason before it wakes the caller, which is not
/// woken again.
struct Reply<R> {
    slot: Arc<ReplySlot<R>>,
    common: Arc<CommonState>,
    is_given: bool,
}

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
        let common = doorbell.common().clone();
        let reply = Reply { slot: slot.clone(), common, is_given: false };
        doorbell.submit(Box::new(move |worker, now| {
            let answer = request(worker, now);
            reply.give(answer);
        }));
        Self { slot, doorbell: doorbell.clone() }
    }

    fn look(&self) -> io::Result<Option<R>> {
        // The end is read first: then an answer that was given before the end is in the slot.
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

impl<R> Reply<R> {
    fn give(mut self, answer: io::Result<R>) {
        *lock(&self.slot.answer) = Some(answer);
        self.is_given = true;
    }
}

impl<R> Drop for Reply<R> {
    fn drop(&mut self) {
        if !self.is_given {
            self.common.end(WORKER_ENDED.into());
        }
        self.slot.waiters.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_dropped_without_an_answer_ends_its_call() {
        let common = Arc::new(CommonState::new(1, 1));
        let (doorbell, mut inbox) = Doorbell::new(&common, 1).expect("a ring");
        let request = WorkerRequest::new(&Arc::new(doorbell), |_, _| Ok(()));
        assert!(matches!(request.look(), Ok(None)), "it waits");
        drop(inbox.next_request().expect("it was submitted"));
        let error = request.look().expect_err("the worker has ended");
        assert_eq!(error.to_string(), WORKER_ENDED);
    }
}
