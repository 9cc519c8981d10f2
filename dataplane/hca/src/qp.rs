//! A queue pair: its states, the admission of packets, and its halves (IBA 10.3, 9.6.1).

use super::Shared;
use super::common::{Common, Sent};
use super::outlet::Outlet;
use super::port::{DropReason, Port};
use super::requester::Requester;
use super::responder::Responder;
use crate::frame::Arrival;
use crate::sink::FrameSink;
use pollux_verbs::time::Time;
use pollux_verbs::{
    AddressVector, AsyncEvent, CompletionStatus, Migration, Qp, QpAttributes, QpInit, QpState,
    QpType,
};
use pollux_wire::address::Qpn;

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) common: Common,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// Whether the requester had the first turn to send the last time. The halves alternate.
    requester_first: bool,
    /// Whether the queue pair is in the adapter's `active` list.
    pub(crate) is_active: bool,
    /// The time of the queue pair's entry in the adapter's `timers`.
    pub(crate) timer: Option<Time>,
}

impl QueuePair {
    pub(crate) fn new(handle: Qp, qpn: Qpn, init: QpInit) -> Self {
        Self {
            common: Common::new(handle, qpn, init),
            requester: Requester::default(),
            responder: Responder::default(),
            requester_first: false,
            is_active: false,
            timer: None,
        }
    }

    /// Applies attributes and enters the state `to`. The caller has checked that the transition
    /// table allows them.
    pub(crate) fn change(&mut self, to: QpState, change: &QpAttributes, shared: &mut Shared) {
        let from = self.common.state;
        let before = self.common.migration();
        self.common.attributes.take(change);
        self.change_migration(before);
        if change.access.is_some() {
            shared.leases.revoke(self.common.qpn);
        }
        self.common.enter(to);
        match to {
            QpState::Reset => {
                let Common { handle, qpn, init, .. } = self.common;
                shared.leases.revoke(qpn);
                let (is_active, timer) = (self.is_active, self.timer);
                let source = self.common.source.take();
                *self = Self { is_active, timer, ..Self::new(handle, qpn, init) };
                self.common.source = source;
                self.common.source.iter_mut().for_each(|source| source.reset());
            }
            QpState::Err => self.fail(shared),
            QpState::Rtr if from != to => {
                self.responder = Responder::new(self.common.attributes.rq_psn.unwrap_or_default());
            }
            QpState::Rts if from == QpState::Rtr => {
                self.requester.start(&self.common.attributes);
            }
            QpState::Rts if from == QpState::Sqd => self.requester.draining = None,
            QpState::Sqd if from == QpState::Rts => {
                let wants_event = change.drain_event == Some(true);
                self.requester.drain(&self.common, shared, wants_event);
            }
            _ => {}
        }
    }

    /// Enters the error state and flushes outstanding requests (IBA 10.3.1.7).
    pub(crate) fn fail(&mut self, shared: &mut Shared) {
        self.common.enter(QpState::Err);
        shared.leases.revoke(self.common.qpn);
        self.requester.flush(&self.common, shared);
        self.responder.flush(&mut self.common, shared);
        self.flush_receives(shared);
        if self.common.init.srq.is_some() && !self.common.last_wqe_reported {
            self.common.last_wqe_reported = true;
            shared.events.push_back(AsyncEvent::LastWqeReached(self.common.handle));
        }
    }

    /// Completes all posted receives with status Flushed. Returns whether there were any.
    pub(crate) fn flush_receives(&mut self, shared: &mut Shared) -> bool {
        self.common.fetch();
        let any = !self.common.receives.is_empty();
        while let Some(work) = self.common.receives.pop_front() {
            self.common.complete_recv(shared, &work, CompletionStatus::Flushed);
        }
        any
    }

    /// Checks the transport, the P_Key and the path of a packet, and the state of the queue pair,
    /// before the queue pair handles the packet (IBA 9.6.1).
    pub(crate) fn admit(
        &mut self,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), DropReason> {
        let common = &self.common;
        if arrival.head.opcode.transport() != common.transport() {
            return Err(DropReason::Transport);
        }
        if !matches!(common.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return Err(DropReason::QpState);
        }
        let pkey = arrival.head.pkey;
        let is_member = match common.init.qp_type {
            QpType::Gsi => shared.port.pkey_index(pkey).is_some(),
            _ => pkey.matches(common.pkey(&shared.port)),
        };
        if !is_member {
            return Err(DropReason::PKey);
        }
        if common.init.qp_type.is_datagram() {
            return Ok(());
        }
        self.check_path(shared, arrival)
    }

    /// Checks that a packet arrived by the right path (IBA 9.6.1.5). In Armed, a packet with MigReq
    /// 1 must arrive by the alternate path.
    fn check_path(&mut self, shared: &mut Shared, arrival: &Arrival<'_>) -> Result<(), DropReason> {
        let attributes = &self.common.attributes;
        if arrival.head.mig_req && attributes.migration == Some(Migration::Armed) {
            return self.check_alternate_path(shared, arrival);
        }
        matches_path(&attributes.path.unwrap_or_default(), &shared.port, arrival)
    }

    pub(crate) fn handle(
        &mut self,
        shared: &mut Shared,
        now: Time,
        arrival: &Arrival<'_>,
    ) -> Result<(), DropReason> {
        if self.common.init.qp_type.is_datagram() {
            return self.receive(shared, arrival);
        }
        self.report_established(shared);
        self.handle_mig_req(shared, arrival.head.mig_req);
        let outcome = if !arrival.head.opcode.is_request() {
            self.requester.handle(&self.common, shared, now, arrival)
        } else if self.common.init.qp_type == QpType::Rc {
            self.responder.handle_reliable(&mut self.common, shared, arrival)
        } else {
            self.responder.handle_unreliable(&mut self.common, shared, arrival)
        };
        self.handle_failure(shared);
        outcome
    }

    /// Queues the ConnectionEstablished event for the first packet that arrives in RTR (IBA
    /// 10.3.1.4).
    pub(crate) fn report_established(&mut self, shared: &mut Shared) {
        if self.common.state == QpState::Rtr && !self.common.established_reported {
            self.common.established_reported = true;
            shared.events.push_back(AsyncEvent::ConnectionEstablished(self.common.handle));
        }
    }

    /// Sends up to [`SENT_PER_TURN`] frames.
    pub(crate) fn transmit(
        &mut self,
        shared: &mut Shared,
        now: Time,
        bypass: bool,
        outlet: &mut Outlet<'_, impl FrameSink>,
    ) -> Sent {
        let mut sent = Sent::More;
        for _ in 0..SENT_PER_TURN {
            sent = self.transmit_one(shared, now, bypass, outlet);
            if !matches!(sent, Sent::More) {
                break;
            }
        }
        self.handle_failure(shared);
        sent
    }

    fn transmit_one(
        &mut self,
        shared: &mut Shared,
        now: Time,
        bypass: bool,
        outlet: &mut Outlet<'_, impl FrameSink>,
    ) -> Sent {
        let Self { common, requester, responder, .. } = self;
        if common.init.qp_type.is_datagram() {
            return requester.transmit_datagram(common, shared, bypass, outlet);
        }
        // The halves take turns, so that long read responses do not block requests.
        self.requester_first = !self.requester_first;
        if self.requester_first {
            match requester.transmit(common, shared, now, bypass, outlet) {
                Sent::All => responder.transmit(common, shared, bypass, outlet),
                other => other,
            }
        } else {
            match responder.transmit(common, shared, bypass, outlet) {
                Sent::All => requester.transmit(common, shared, now, bypass, outlet),
                other => other,
            }
        }
    }

    /// Handles a failure of either half. If the requester has used up its retries and the alternate
    /// path is armed, the connection migrates instead of failing. A failed request moves an RC
    /// queue pair to the error state and an unreliable one to SQE, in which it still receives (IBA
    /// 10.3.1.6). A failure of the responder leads to the error state on every service.
    pub(crate) fn handle_failure(&mut self, shared: &mut Shared) {
        let (ours, theirs) = (self.requester.failed.is_some(), self.responder.failed);
        if self.common.state == QpState::Err || !ours && !theirs {
            return;
        }
        if !theirs && self.migrate_if_exhausted(shared) {
            return;
        }
        if theirs || self.common.init.qp_type == QpType::Rc {
            self.fail(shared);
        } else {
            self.common.enter(QpState::Sqe);
            self.requester.flush(&self.common, shared);
        }
    }

    pub(crate) fn handle_timeout(&mut self, shared: &mut Shared, before: Time, now: Time) {
        self.requester.handle_timeout(&self.common, before, now);
        self.handle_failure(shared);
    }

    /// Whether the queue pair needs an earlier timer than the scheduled one.
    #[inline(always)]
    pub(crate) fn needs_timer(&self) -> bool {
        self.requester.deadline().is_some_and(|wanted| self.timer.is_none_or(|set| wanted < set))
    }
}

/// The number of packets or messages that a queue pair sends before the next queue pair may send.
const SENT_PER_TURN: u32 = 16;

/// Checks that a packet is from the other end of a path.
pub(crate) fn matches_path(
    path: &AddressVector,
    port: &Port,
    arrival: &Arrival<'_>,
) -> Result<(), DropReason> {
    if arrival.head.slid != path.dlid && !port.is_ethernet() {
        return Err(DropReason::Slid);
    }
    match (arrival.grh, path.grh) {
        (None, None) => Ok(()),
        (Some(theirs), Some(ours)) if theirs.sgid == ours.dgid => Ok(()),
        _ => Err(DropReason::Grh),
    }
}
