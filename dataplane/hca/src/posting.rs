//! The verbs that post requests and poll completions (IBA 11.4).

use super::Adapter;
use super::queue::RecvWork;
use crate::recv_source::RecvSource;
use crate::sink::FrameSink;
use pollux_verbs::error::none;
use pollux_verbs::time::Time;
use pollux_verbs::work::SendOp;
use pollux_verbs::{
    AddressVector, Arm, Completion, CompletionStatus, Cq, PostError, PostRefusal, Qp, QpState,
    RecvRequest, SendRequest, Srq, VerbsError, check,
};

impl Adapter {
    /// Queues requests. With a `bypass` link, requests that qualify for the fast path are sent
    /// immediately, as bypass messages instead of packets.
    #[inline]
    pub(crate) fn post_send<L: FrameSink>(
        &mut self,
        now: Time,
        qp: Qp,
        batch: &[SendRequest<'_>],
        mut bypass: Option<&mut L>,
    ) -> Result<(), PostError> {
        let mut posted = Ok(());
        let mut waits = false;
        for (accepted, request) in batch.iter().enumerate() {
            if let Some(link) = &mut bypass
                && self.send_fast(now, qp.0, request, *link)
            {
                continue;
            }
            waits = true;
            if let Err(refusal) = self.post_one_send(qp, request) {
                posted = Err(PostError { accepted, refusal });
                break;
            }
        }
        if waits {
            self.activate(qp.0);
        }
        posted
    }

    #[inline(always)]
    fn send_fast<L: FrameSink>(
        &mut self,
        now: Time,
        number: u32,
        request: &SendRequest<'_>,
        link: &mut L,
    ) -> bool {
        let Some(qp) = self.qps.get_mut(number) else { return false };
        let sent = qp.requester.send_fast(&mut qp.common, &mut self.shared, now, request, link);
        if sent && qp.needs_timer() {
            self.schedule_timer(number);
        }
        sent
    }

    fn post_one_send(&mut self, qp: Qp, request: &SendRequest<'_>) -> Result<(), PostRefusal> {
        let kept = self.qps.get_mut(qp.0).ok_or(PostRefusal::NoSuchQueue)?;
        let init = &kept.common.init;
        check::send_state(kept.common.state)?;
        check::send(request, init)?;
        if kept.requester.queue.len() >= init.send_requests_max as usize {
            return Err(PostRefusal::Full);
        }
        let path = match request.op {
            SendOp::DatagramIn(_, index) if usize::from(index) >= self.shared.port.pkeys.len() => {
                return Err(PostRefusal::BadOperation);
            }
            SendOp::Datagram(to) | SendOp::DatagramImm(to, _) | SendOp::DatagramIn(to, _) => {
                let ah = self.shared.ahs.get(to.ah.0).filter(|(pd, _)| *pd == init.pd);
                ah.ok_or(PostRefusal::BadOperation)?.1
            }
            _ => AddressVector::default(),
        };
        kept.requester.post(request, path, &kept.common.init);
        if matches!(kept.common.state, QpState::Err | QpState::Sqe) {
            kept.requester.flush(&kept.common, &mut self.shared);
        }
        Ok(())
    }

    pub fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        for (accepted, request) in batch.iter().enumerate() {
            self.post_one_recv(qp, request).map_err(|refusal| PostError { accepted, refusal })?;
        }
        Ok(())
    }

    fn post_one_recv(&mut self, qp: Qp, request: &RecvRequest<'_>) -> Result<(), PostRefusal> {
        let kept = self.qps.get_mut(qp.0).ok_or(PostRefusal::NoSuchQueue)?;
        let common = &mut kept.common;
        if common.state == QpState::Reset {
            return Err(PostRefusal::State(common.state));
        }
        if common.init.srq.is_some() {
            return Err(PostRefusal::BadOperation);
        }
        if request.sges.len() > common.init.recv_sges_max as usize {
            return Err(PostRefusal::TooManySges);
        }
        if common.receives.len() >= common.init.recv_requests_max as usize {
            return Err(PostRefusal::Full);
        }
        let work = RecvWork::of(request);
        if common.state == QpState::Err {
            let status = CompletionStatus::Flushed;
            common.complete_recv(&mut self.shared, &work, status);
        } else {
            common.receives.push_back(work);
        }
        Ok(())
    }

    pub(crate) fn post_srq_recv(
        &mut self,
        srq: Srq,
        batch: &[RecvRequest<'_>],
    ) -> Result<(), PostError> {
        for (accepted, request) in batch.iter().enumerate() {
            let refused = |refusal| PostError { accepted, refusal };
            let queue = self.shared.srqs.get_mut(srq.0);
            let queue = queue.ok_or(refused(PostRefusal::NoSuchQueue))?;
            if request.sges.len() > queue.sges_max {
                return Err(refused(PostRefusal::TooManySges));
            }
            if queue.requests.len() >= queue.requests_max {
                return Err(refused(PostRefusal::Full));
            }
            queue.requests.push_back(RecvWork::of(request));
        }
        Ok(())
    }

    /// Sets the source from which the adapter fetches the receives of a queue pair.
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

    /// Flushes the receives of a queue pair in state ERR, including those that were added to its
    /// source after it entered this state. Returns whether there were any.
    pub fn flush_receives(&mut self, qp: Qp) -> bool {
        let failed = self.qps.get_mut(qp.0).filter(|qp| qp.common.state == QpState::Err);
        failed.is_some_and(|qp| qp.flush_receives(&mut self.shared))
    }

    #[inline]
    pub(crate) fn has_completions(&self, cq: Cq, count: usize) -> bool {
        self.shared.cqs.get(cq.0).is_some_and(|queue| queue.completions.len() >= count)
    }

    /// The number of completions of all queues so far, including those that were polled, or lost by
    /// an overrun.
    pub fn completed(&self) -> u64 {
        self.shared.completed
    }

    /// Moves completions out of a queue; returns their number.
    pub fn poll(&mut self, cq: Cq, out: &mut [Completion]) -> Result<usize, VerbsError> {
        let queue = self.shared.cqs.get_mut(cq.0).ok_or(none("poll", "completion queue"))?;
        Ok(queue.take(out))
    }

    pub(crate) fn arm(&mut self, cq: Cq, arm: Arm) -> Result<(), VerbsError> {
        let queue = self.shared.cqs.get_mut(cq.0).ok_or(none("arm", "completion queue"))?;
        queue.arm(arm);
        Ok(())
    }

    /// The position of the last solicited or failed completion of a queue. 1 is the oldest
    /// completion in the queue; 0 and below mean that the completion was polled. `None` if there
    /// was none.
    pub fn last_solicited(&self, cq: Cq) -> Option<isize> {
        let queue = self.shared.cqs.get(cq.0)?;
        (queue.completions.len() as isize).checked_sub_unsigned(queue.since_solicited)
    }

    /// Takes a pending notification and returns its completion queue.
    pub(crate) fn take_notified(&mut self) -> Option<Cq> {
        let (number, _) = self.shared.cqs.iter().find(|(_, queue)| queue.is_notified)?;
        self.shared.cqs.get_mut(number)?.is_notified = false;
        Some(Cq(number))
    }
}
