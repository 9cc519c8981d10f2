//! Posts, polls and notifications.

use super::{Address, CompletionQueue, ConnectX, QueuePair};
use crate::cqe::{Completed, Cqe};
use crate::rings::shared::SharedRing;
use crate::wqe::umr;
use pollux_ibverbs::Hca;
use pollux_verbs::error::none;
use pollux_verbs::table::SideTable;
use pollux_verbs::{
    Completion, Cq, Data, PostError, PostRefusal, Qp, QpInit, QpState, RecvRequest, SendOp,
    SendRequest, Srq, VerbsError, check,
};
use pollux_wire::address::Qpn;
use std::collections::VecDeque;
use std::slice;

const SETTLED_AT_ONCE: usize = 16;

impl ConnectX {
    #[inline]
    pub(super) fn post_send(&mut self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError> {
        let refused = |refusal| Err(PostError { accepted: 0, refusal });
        let Self { qps, ahs, registers, hca, .. } = self;
        let Some(kept) = qps.get_mut(qp.0) else { return refused(PostRefusal::NoSuchQueue) };
        if !batch.is_empty() {
            check::send_state(kept.state).or_else(refused)?;
        }
        let posted = write_all(batch, |request| kept.write_send(request, ahs, hca));
        let accepted = accepted(&posted, batch.len());
        if accepted > 0 {
            kept.send.ring(accepted == 1, &mut registers[kept.register]);
        }
        posted
    }

    pub(super) fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let refused = |refusal| Err(PostError { accepted: 0, refusal });
        let Some(kept) = self.qps.get_mut(qp.0) else { return refused(PostRefusal::NoSuchQueue) };
        if batch.is_empty() {
            return Ok(());
        }
        if kept.state == QpState::Reset {
            return refused(PostRefusal::State(kept.state));
        }
        let Some(ring) = &mut kept.recv else {
            let has_none = kept.init.srq.is_some();
            return refused(if has_none { PostRefusal::BadOperation } else { PostRefusal::Full });
        };
        let posted = write_all(batch, |request| ring.write(request));
        if accepted(&posted, batch.len()) > 0 {
            ring.ring();
        }
        posted
    }

    pub(super) fn post_srq_recv(
        &mut self,
        srq: Srq,
        batch: &[RecvRequest<'_>],
    ) -> Result<(), PostError> {
        let ring = self.srqs.get_mut(srq.0);
        let ring = ring.ok_or(PostError { accepted: 0, refusal: PostRefusal::NoSuchQueue })?;
        let posted = write_all(batch, |request| ring.write(request));
        if accepted(&posted, batch.len()) > 0 {
            ring.ring();
        }
        posted
    }

    #[inline]
    pub(super) fn poll(&mut self, cq: Cq, out: &mut [Completion]) -> Result<usize, VerbsError> {
        let Self { qps, qpns, cqs, srqs, .. } = self;
        let queue = cqs.get_mut(cq.0).ok_or(none("poll", "completion queue"))?;
        let mut done = if queue.settled.is_empty() { 0 } else { queue.take_settled(out) };
        let ring = &mut queue.ring;
        let (mut is_foreign, mut taken) = (false, 0);
        // The queue pair of the last entry, because the next entry is mostly for the same.
        let (mut qpn, mut kept) = (Qpn(u32::MAX), None);
        while done < out.len() {
            let Some(cqe) = ring.entry(taken) else { break };
            let completed = cqe.completed();
            is_foreign = matches!(completed, Completed::Foreign(_));
            if is_foreign {
                break;
            }
            taken += 1;
            if cqe.qpn() != qpn {
                qpn = cqe.qpn();
                kept = qps.get_mut(qpns.get(qpn).0);
            }
            // A destroyed queue pair has no entries here, because `settle` has taken them.
            let Some(kept) = &mut kept else { continue };
            if completed == Completed::Send {
                let sent = kept.send.complete(cqe.index());
                out[done] = cqe.sent(sent.id, sent.kind);
            } else if let Some(completion) = kept.complete(&cqe, srqs) {
                out[done] = completion;
            } else {
                continue;
            }
            done += 1;
        }
        if taken > 0 {
            ring.take(taken);
        }
        // A foreign entry stays in the ring. If there were completions before it, the next poll
        // fails.
        if is_foreign && done == 0 { Err(foreign()) } else { Ok(done) }
    }

    /// Moves all completions from the rings of a queue pair's completion queues to `settled`,
    /// before the queue pair is reset or removed here, because its entries name its requests. The
    /// adapter writes no further entries for it.
    pub(super) fn settle(&mut self, init: &QpInit) {
        let mut some = [Completion::NOTHING; SETTLED_AT_ONCE];
        for cq in [init.send_cq, init.recv_cq] {
            let mut all = VecDeque::new();
            // A poll that fails here fails again for the consumer, which then gets the error.
            while let Ok(count @ 1..) = self.poll(cq, &mut some) {
                all.extend(&some[..count]);
            }
            if let Some(queue) = self.cqs.get_mut(cq.0) {
                queue.settled = all;
            }
        }
    }
}

#[cold]
fn foreign() -> VerbsError {
    let why = "the adapter wrote a CQE of a form that this driver has not enabled";
    VerbsError::Lost { what: "completion queue", why }
}

impl CompletionQueue {
    #[cold]
    fn take_settled(&mut self, out: &mut [Completion]) -> usize {
        let count = out.len().min(self.settled.len());
        for (out, settled) in out.iter_mut().zip(self.settled.drain(..count)) {
            *out = settled;
        }
        count
    }
}

/// Writes requests until one is refused.
#[inline]
fn write_all<T>(
    batch: &[T],
    mut write: impl FnMut(&T) -> Result<(), PostRefusal>,
) -> Result<(), PostError> {
    for (accepted, request) in batch.iter().enumerate() {
        if let Err(refusal) = write(request) {
            return Err(PostError { accepted, refusal });
        }
    }
    Ok(())
}

#[inline]
fn accepted(posted: &Result<(), PostError>, all: usize) -> usize {
    posted.as_ref().map_or_else(|error| error.accepted, |()| all)
}

impl QueuePair {
    /// Writes a request. The most frequent forms are compiled separately, without the code that
    /// they do not need.
    #[inline]
    pub(super) fn write_send(
        &mut self,
        request: &SendRequest<'_>,
        ahs: &SideTable<Address>,
        hca: &Hca,
    ) -> Result<(), PostRefusal> {
        let form = |op, data| SendRequest { op, data, ..*request };
        let one = |sge| Data::Sges(slice::from_ref(sge));
        match (request.op, request.data) {
            (SendOp::Send, Data::Sges([sge])) => {
                self.write_form(&form(SendOp::Send, one(sge)), ahs, hca)
            }
            (SendOp::Send, Data::Inline(_)) => {
                self.write_form(&form(SendOp::Send, request.data), ahs, hca)
            }
            (SendOp::Datagram(to), Data::Sges([sge])) => {
                self.write_form(&form(SendOp::Datagram(to), one(sge)), ahs, hca)
            }
            _ => self.write_form(request, ahs, hca),
        }
    }

    #[inline(always)]
    fn write_form(
        &mut self,
        request: &SendRequest<'_>,
        ahs: &SideTable<Address>,
        hca: &Hca,
    ) -> Result<(), PostRefusal> {
        check::send(request, &self.init)?;
        let av = match &request.op {
            SendOp::Datagram(to) | SendOp::DatagramImm(to, _) => {
                let address = ahs.get(to.ah.0).filter(|address| address.pd == self.init.pd);
                Some(&address.ok_or(PostRefusal::BadOperation)?.av)
            }
            SendOp::Bind(bind) => {
                if !hca.can_bind(bind) {
                    return Err(PostRefusal::BadOperation);
                }
                if bind.bytes > umr::BYTES_MAX {
                    return Err(PostRefusal::TooLong);
                }
                None
            }
            _ => None,
        };
        self.send.write(request, av)
    }

    /// The completion of an entry. `None` if it matches no request.
    #[inline]
    fn complete(&mut self, cqe: &Cqe, srqs: &mut SideTable<SharedRing>) -> Option<Completion> {
        match cqe.completed() {
            Completed::Send => {
                let sent = self.send.complete(cqe.index());
                Some(cqe.sent(sent.id, sent.kind))
            }
            Completed::Recv => {
                let id = self.complete_recv(cqe, srqs)?;
                Some(cqe.received(id, self.pkey_index))
            }
            Completed::FailedSend => Some(cqe.failed(self.send.complete(cqe.index()).id)),
            Completed::FailedRecv => self.complete_recv(cqe, srqs).map(|id| cqe.failed(id)),
            Completed::Foreign(_) => None,
        }
    }

    #[inline]
    fn complete_recv(&mut self, cqe: &Cqe, srqs: &mut SideTable<SharedRing>) -> Option<u64> {
        match (&mut self.recv, self.init.srq) {
            (_, Some(srq)) => srqs.get_mut(srq.0)?.complete(cqe.index()),
            (Some(ring), None) => Some(ring.complete(cqe.index())),
            (None, None) => None,
        }
    }
}
