//! Receives in a consumer's own memory, which the adapter fetches, as hardware does.
//!
//! A consumer that posts by a store to its memory does not call the adapter, and a message may
//! arrive right after the store. So the adapter fetches what was posted before it finds that a
//! queue has no receive.

use super::Adapter;
use super::posting::recv_work;
use super::queue::{RecvWork, SharedQueue};
use pollux_verbs::{Qp, QpState, RecvRequest, Srq};
use std::collections::VecDeque;
use std::fmt::Debug;

pub trait RecvSource: Debug + Send {
    /// Passes on up to `count_max` receives that were posted since the last call, oldest first. None
    /// has more entries than the queue takes.
    fn fetch(&mut self, count_max: usize, take: &mut dyn FnMut(&RecvRequest<'_>));

    /// The queue pair was reset: its ring begins anew.
    fn reset(&mut self);
}

/// Fetches what a queue of `count_max` has space for.
fn fetch(
    source: &mut Option<Box<dyn RecvSource>>,
    receives: &mut VecDeque<RecvWork>,
    count_max: usize,
) -> bool {
    let Some(source) = source else { return false };
    let before = receives.len();
    source.fetch(count_max - before, &mut |request| receives.push_back(recv_work(request)));
    receives.len() > before
}

impl SharedQueue {
    pub(crate) fn fetch(&mut self) -> bool {
        fetch(&mut self.source, &mut self.requests, self.requests_max)
    }
}

impl super::common::Common {
    pub(crate) fn fetch(&mut self) -> bool {
        let count_max = self.init.recv_requests_max as usize;
        self.state != QpState::Reset && fetch(&mut self.source, &mut self.receives, count_max)
    }
}

impl Adapter {
    /// Sets where the receives of a queue pair are posted.
    pub fn set_recv_source(&mut self, qp: Qp, source: Box<dyn RecvSource>) {
        if let Some(qp) = self.qps.get_mut(qp.0) {
            qp.common.source = Some(source);
        }
    }

    pub fn set_srq_source(&mut self, srq: Srq, source: Box<dyn RecvSource>) {
        if let Some(queue) = self.shared.srqs.get_mut(srq.0) {
            queue.source = Some(source);
        }
    }

    /// Flushes receives that were posted to a queue pair in error; returns whether there were any.
    pub fn flush_receives(&mut self, qp: Qp) -> bool {
        let failed = self.qps.get_mut(qp.0).filter(|qp| qp.common.state == QpState::Err);
        failed.is_some_and(|qp| qp.flush_receives(&mut self.shared))
    }
}
