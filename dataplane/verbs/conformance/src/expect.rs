//! Operations of cases on queue pairs, and checks of the results.

use super::adapters::Side;
use super::buffer::Buffer;
use super::context::Context;
use super::peers::PairEnd;
use super::verdict::{Stop, equal, fail};
use pollux_verbs::completion::{Completion, CompletionKind, CompletionStatus};
use pollux_verbs::event::AsyncEvent;
use pollux_verbs::memory::{Cq, Srq};
use pollux_verbs::qp::{QpAttributes, QpState};
use pollux_verbs::work::{Data, RecvRequest, SendFlags, SendOp, SendRequest, Sge};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Send,
    Recv,
}

impl Queue {
    /// The completion queue of this queue.
    fn cq_of(self, end: &PairEnd) -> Cq {
        match self {
            Self::Send => end.place.send_cq,
            Self::Recv => end.place.recv_cq,
        }
    }
}

pub fn request<'a>(id: u64, op: SendOp, sges: &'a [Sge]) -> SendRequest<'a> {
    SendRequest { id, op, flags: SendFlags::SIGNALED, data: Data::Sges(sges) }
}

pub fn inline<'a>(id: u64, op: SendOp, bytes: &'a [u8]) -> SendRequest<'a> {
    SendRequest { id, op, flags: SendFlags::SIGNALED, data: Data::Inline(bytes) }
}

/// A request that completes silently if it succeeds.
pub fn silent<'a>(id: u64, op: SendOp, sges: &'a [Sge]) -> SendRequest<'a> {
    SendRequest { flags: SendFlags::NONE, ..request(id, op, sges) }
}

/// A signaled request that waits for earlier reads and atomics.
pub fn fenced<'a>(id: u64, op: SendOp, sges: &'a [Sge]) -> SendRequest<'a> {
    SendRequest { flags: SendFlags::SIGNALED | SendFlags::FENCE, ..request(id, op, sges) }
}

impl Context<'_> {
    pub fn post(&mut self, end: &PairEnd, request: SendRequest<'_>) -> Result<(), Stop> {
        Ok(self.device(end.side()).post_send(end.qp, &[request])?)
    }

    /// Posts a signaled request and expects that it succeeds.
    pub fn carry_out(
        &mut self,
        end: &PairEnd,
        request: SendRequest<'_>,
    ) -> Result<Completion, Stop> {
        self.post(end, request)?;
        self.done(end, request.op.kind(), request.id)
    }

    /// Posts a receive, to the shared queue if there is one.
    pub fn recv(&mut self, end: &PairEnd, id: u64, sges: &[Sge]) -> Result<(), Stop> {
        match end.place.srq {
            Some(srq) => self.recv_shared(end.side(), srq, id, sges),
            None => Ok(self.device(end.side()).post_recv(end.qp, &[RecvRequest { id, sges }])?),
        }
    }

    pub fn recv_shared(&mut self, side: Side, srq: Srq, id: u64, sges: &[Sge]) -> Result<(), Stop> {
        Ok(self.device(side).post_srq_recv(srq, &[RecvRequest { id, sges }])?)
    }

    pub fn next(&mut self, side: Side, cq: Cq) -> Result<Completion, Stop> {
        self.take(side, cq, &|| format!("a completion at {side:?}"))
    }

    /// As [`Self::next`], with a description of the expected completion.
    fn take(&mut self, side: Side, cq: Cq, what: &dyn Fn() -> String) -> Result<Completion, Stop> {
        let key = (self.owner(side), cq);
        self.until(what, |cx| Ok(cx.inbox.get_mut(&key).and_then(|inbox| inbox.pop_front())))
    }

    /// Whether a polled completion of this queue has not been taken yet.
    pub fn has_completion(&self, end: &PairEnd, queue: Queue) -> bool {
        let key = (self.owner(end.side()), queue.cq_of(end));
        self.inbox.get(&key).is_some_and(|inbox| !inbox.is_empty())
    }

    /// Expects that the next completion of this queue has this ID and one of these statuses.
    pub fn ended(
        &mut self,
        end: &PairEnd,
        queue: Queue,
        id: u64,
        statuses: &[CompletionStatus],
    ) -> Result<Completion, Stop> {
        let what = || format!("the {queue:?} {id} of {:?} to end with {statuses:?}", end.side());
        let found = self.take(end.side(), queue.cq_of(end), &what)?;
        let is_status = statuses.contains(&found.status)
            || self.is_lossy() && is_lost_answer(statuses, found.status);
        if found.id != id || found.qpn != end.qpn || !is_status {
            return fail(format!("expected {} on {}, found {found:?}", what(), end.qpn));
        }
        Ok(found)
    }

    /// Expects that the next completion is a success of this kind.
    pub fn done(
        &mut self,
        end: &PairEnd,
        kind: CompletionKind,
        id: u64,
    ) -> Result<Completion, Stop> {
        let queue = if kind.is_recv() { Queue::Recv } else { Queue::Send };
        let found = self.ended(end, queue, id, &[CompletionStatus::Success])?;
        equal("the kind of the completion", found.kind, kind)?;
        Ok(found)
    }

    /// Expects that the next receive holds this many bytes.
    pub fn received(&mut self, end: &PairEnd, id: u64, bytes: usize) -> Result<Completion, Stop> {
        let found = self.done(end, CompletionKind::Recv, id)?;
        equal("bytes received", found.bytes as usize, bytes)?;
        Ok(found)
    }

    /// Expects that these requests are flushed, in this order.
    pub fn flushed(
        &mut self,
        end: &PairEnd,
        queue: Queue,
        ids: impl IntoIterator<Item = u64>,
    ) -> Result<(), Stop> {
        for id in ids {
            self.ended(end, queue, id, &[CompletionStatus::Flushed])?;
        }
        Ok(())
    }

    /// Expects that a request fails, and that its queue pair enters ERR.
    pub fn breaks(
        &mut self,
        end: &PairEnd,
        queue: Queue,
        id: u64,
        statuses: &[CompletionStatus],
    ) -> Result<(), Stop> {
        self.ended(end, queue, id, statuses)?;
        self.in_state(end, QpState::Err)
    }

    /// Expects that nothing more completes on this queue pair's completion queues.
    pub fn nothing_more(&mut self, end: &PairEnd) -> Result<(), Stop> {
        self.settle()?;
        let owner = self.owner(end.side());
        for cq in [end.place.send_cq, end.place.recv_cq] {
            if let Some(found) = self.inbox.get(&(owner, cq)).and_then(|inbox| inbox.front()) {
                return fail(format!("expected no more completions, found {found:?}"));
            }
        }
        Ok(())
    }

    /// Expects that a queue pair is in a state, or enters it while both devices are polled: after
    /// an error, one end can fail later than the other.
    pub fn in_state(&mut self, end: &PairEnd, state: QpState) -> Result<(), Stop> {
        self.until(&|| format!("the queue pair of {:?} in {state}", end.side()), |cx| {
            let (found, _) = cx.device(end.side()).query_qp(end.qp)?;
            Ok((found == state).then_some(()))
        })
    }

    pub fn still_in(&mut self, end: &PairEnd, state: QpState) -> Result<(), Stop> {
        let (found, _) = self.device(end.side()).query_qp(end.qp)?;
        equal("the state of the queue pair", found, state)
    }

    pub fn go(&mut self, end: &PairEnd, state: QpState) -> Result<(), Stop> {
        let change = QpAttributes { state: Some(state), ..QpAttributes::default() };
        Ok(self.device(end.side()).modify_qp(end.qp, &change)?)
    }

    /// Expects an event, except if the adapter does not report this kind of event.
    pub fn event(&mut self, side: Side, event: AsyncEvent) -> Result<(), Stop> {
        let is_refusal =
            matches!(event, AsyncEvent::QpAccessError(_) | AsyncEvent::QpRequestError(_));
        if is_refusal && !self.device(side).attributes().can.refusal_events {
            return Ok(());
        }
        let wanted = (self.owner(side), event);
        self.until(&|| format!("the event {event:?} at {side:?}"), |cx| {
            let at = cx.events.iter().position(|found| *found == wanted);
            Ok(at.map(|at| {
                cx.events.remove(at);
            }))
        })
    }

    /// Discards events that an adapter may or may not report.
    pub fn tolerate(&mut self, side: Side, events: &[AsyncEvent]) -> Result<(), Stop> {
        self.settle()?;
        let owner = self.owner(side);
        self.events.retain(|(of, event)| *of != owner || !events.contains(event));
        Ok(())
    }

    /// Sends `bytes` bytes from `a` to `b` and compares them.
    pub fn exchange(&mut self, a: &PairEnd, b: &PairEnd, bytes: usize) -> Result<(), Stop> {
        let source = self.source(a, bytes, 77)?;
        let sink = self.sink(b, bytes)?;
        self.recv(b, 9001, &[sink.sge(0, bytes)])?;
        self.carry_out(a, request(9002, SendOp::Send, &[source.sge(0, bytes)]))?;
        self.received(b, 9001, bytes)?;
        same(&source, 0, &sink, 0, bytes)
    }
}

/// Whether the peer's NAK was lost. A peer that refuses a request enters the error state and
/// answers no more packets, so it cannot repeat the NAK (IBA 9.9.3).
fn is_lost_answer(expected: &[CompletionStatus], found: CompletionStatus) -> bool {
    use CompletionStatus::{RemoteAccess, RemoteInvalidRequest, RemoteOperation, RetryExceeded};
    let refusals = [RemoteAccess, RemoteInvalidRequest, RemoteOperation];
    found == RetryExceeded && expected.iter().any(|status| refusals.contains(status))
}

/// Expects the same bytes in two ranges.
pub fn same(
    source: &Buffer,
    source_at: usize,
    sink: &Buffer,
    sink_at: usize,
    bytes: usize,
) -> Result<(), Stop> {
    sink.holds(sink_at, &source.bytes_at(source_at, bytes))
}
