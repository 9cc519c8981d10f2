//! The verbs that post requests: what a queue takes, and what it gives back and why (IBA 11.4).

use super::Adapter;
use super::queue::{Entries, RecvWork};
use super::verbs::QPN_MAX;
use crate::link::Link;
use crate::time::Time;
use pollux_verbs::work::{MESSAGE_BYTES_MAX, SendOp};
use pollux_verbs::{
    AddressVector, CompletionStatus, Data, PostError, PostRefusal, Qp, QpState, RecvRequest,
    SendRequest, Srq,
};

impl Adapter {
    /// Takes requests; what is usual leaves at once by the shortcut, if there is one.
    #[inline]
    pub(crate) fn post_send<L: Link>(
        &mut self,
        now: Time,
        qp: Qp,
        batch: &[SendRequest<'_>],
        mut shortcut: Option<&mut L>,
    ) -> Result<(), PostError> {
        let mut posted = Ok(());
        let mut waits = false;
        for (accepted, request) in batch.iter().enumerate() {
            if let Some(link) = &mut shortcut
                && self.send_usual(now, qp.0, request, *link)
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
            self.touch(qp.0);
        }
        posted
    }

    fn post_one_send(&mut self, qp: Qp, request: &SendRequest<'_>) -> Result<(), PostRefusal> {
        let kept = self.qps.get_mut(qp.0).ok_or(PostRefusal::NoSuchQueue)?;
        let init = &kept.common.init;
        let state = kept.common.state;
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostRefusal::State(state));
        }
        let is_read = matches!(
            request.op,
            SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
        );
        match request.data {
            Data::Inline(_) if is_read => return Err(PostRefusal::BadOperation),
            Data::Inline(bytes) if bytes.len() > init.inline_bytes_max as usize => {
                return Err(PostRefusal::InlineTooLong);
            }
            Data::Sges(sges) if sges.len() > init.send_sges_max as usize => {
                return Err(PostRefusal::TooManySges);
            }
            _ => {}
        }
        if !init.qp_type.has(&request.op) {
            return Err(PostRefusal::BadOperation);
        }
        if request.data.bytes() > MESSAGE_BYTES_MAX {
            return Err(PostRefusal::TooLong);
        }
        if kept.requester.len() >= init.send_requests_max as usize {
            return Err(PostRefusal::Full);
        }
        let path = match request.op {
            SendOp::DatagramIn(_, index) if usize::from(index) >= self.shared.port.pkeys.len() => {
                return Err(PostRefusal::BadOperation);
            }
            SendOp::Datagram(to) | SendOp::DatagramImm(to, _) | SendOp::DatagramIn(to, _) => {
                let ah = self.shared.ahs.get(to.ah.0).filter(|(pd, _)| *pd == init.pd);
                let ah = ah.filter(|_| to.qpn.0 <= QPN_MAX);
                ah.ok_or(PostRefusal::BadOperation)?.1
            }
            _ => AddressVector::default(),
        };
        kept.requester.post(request, path, &kept.common.init);
        if matches!(state, QpState::Err | QpState::Sqe) {
            kept.requester.flush(&kept.common, &mut self.shared);
        }
        Ok(())
    }

    pub(crate) fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
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
        let work = recv_work(request);
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
            queue.requests.push_back(recv_work(request));
        }
        Ok(())
    }
}

fn recv_work(request: &RecvRequest<'_>) -> RecvWork {
    let bytes = Data::Sges(request.sges).bytes();
    RecvWork { id: request.id, entries: Entries::of(request.sges), bytes }
}
