//! A queue pair: its halves and its states (IBA 10.3).

use super::Shared;
use super::common::{Common, Sent};
use super::outlet::Outlet;
use super::requester::Requester;
use super::responder::Responder;
use pollux_verbs::time::Time;
use pollux_verbs::{AsyncEvent, CompletionStatus, Qp, QpAttributes, QpInit, QpState, QpType};
use pollux_wire::address::Qpn;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) common: Common,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// The requester is asked first for what to send next.
    asks_next: bool,
    /// It is in the adapter's list of queue pairs that may have something to send.
    pub(crate) is_active: bool,
    /// Its entry among the adapter's timers.
    pub(crate) timer: Option<Time>,
}

impl QueuePair {
    pub(crate) fn new(handle: Qp, qpn: Qpn, init: QpInit) -> Self {
        Self {
            common: Common::new(handle, qpn, init),
            requester: Requester::default(),
            responder: Responder::default(),
            asks_next: false,
            is_active: false,
            timer: None,
        }
    }

    /// Applies attributes that the table of transitions allows.
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
                *self = Self { is_active, timer, ..Self::new(handle, qpn, init) };
            }
            QpState::Err => self.fail(shared),
            QpState::Rtr if from != to => {
                self.responder = Responder::new(self.common.attributes.rq_psn.unwrap_or_default());
            }
            QpState::Rts if from == QpState::Rtr => {
                self.requester.start(&self.common.attributes);
            }
            QpState::Rts if from == QpState::Sqd => self.requester.resume(),
            QpState::Sqd if from == QpState::Rts => {
                let tell = change.drain_event == Some(true);
                self.requester.drain(&self.common, shared, tell);
            }
            _ => {}
        }
    }

    /// Enters the error state: outstanding requests are flushed (IBA 10.3.1.7).
    pub(crate) fn fail(&mut self, shared: &mut Shared) {
        self.common.enter(QpState::Err);
        shared.leases.revoke(self.common.qpn);
        self.requester.flush(&self.common, shared);
        self.responder.flush(&mut self.common, shared);
        while let Some(work) = self.common.receives.pop_front() {
            self.common.complete_recv(shared, &work, CompletionStatus::Flushed);
        }
        if self.common.init.srq.is_some() && !self.common.last_wqe_told {
            self.common.last_wqe_told = true;
            shared.events.push_back(AsyncEvent::LastWqeReached(self.common.handle));
        }
    }

    /// The first packet of the peer's has come before our side was told to send (IBA 10.3.1.4).
    pub(crate) fn tell_established(&mut self, shared: &mut Shared) {
        if self.common.state == QpState::Rtr && !self.common.established_told {
            self.common.established_told = true;
            shared.events.push_back(AsyncEvent::ConnectionEstablished(self.common.handle));
        }
    }

    /// Sends frames, as many as its turn allows; returns the result.
    pub(crate) fn transmit(
        &mut self,
        shared: &mut Shared,
        now: Time,
        bypass: bool,
        outlet: &mut impl Outlet,
    ) -> Sent {
        let mut sent = Sent::More;
        for _ in 0..SENT_PER_TURN {
            sent = self.transmit_one(shared, now, bypass, outlet);
            if !matches!(sent, Sent::More) {
                break;
            }
        }
        self.settle(shared);
        sent
    }

    fn transmit_one(
        &mut self,
        shared: &mut Shared,
        now: Time,
        bypass: bool,
        outlet: &mut impl Outlet,
    ) -> Sent {
        let Self { common, requester, responder, .. } = self;
        if common.init.qp_type.is_datagram() {
            return requester.transmit_datagram(common, shared, bypass, outlet);
        }
        // The halves take turns, so that long answers do not block requests for ever.
        self.asks_next = !self.asks_next;
        if self.asks_next {
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

    /// Enters the state after a failed request: an unreliable queue pair goes on receiving (IBA
    /// 10.3.1.6).
    pub(crate) fn settle(&mut self, shared: &mut Shared) {
        let (ours, theirs) = (self.requester.has_failed(), self.responder.has_failed());
        if self.common.state == QpState::Err || !ours && !theirs {
            return;
        }
        if !theirs && self.escapes(shared) {
            return;
        }
        if theirs || self.common.init.qp_type == QpType::Rc {
            self.fail(shared);
        } else {
            self.common.enter(QpState::Sqe);
            self.requester.flush(&self.common, shared);
        }
    }

    /// Runs the timers of the requester.
    pub(crate) fn handle_timeout(&mut self, shared: &mut Shared, before: Time, now: Time) {
        self.requester.handle_timeout(&self.common, before, now);
        self.settle(shared);
    }

    /// The time of its next timer.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.requester.deadline()
    }

    /// Whether it needs a timer before the scheduled one.
    #[inline(always)]
    pub(crate) fn is_unwatched(&self) -> bool {
        self.deadline().is_some_and(|wanted| self.timer.is_none_or(|set| wanted < set))
    }
}

/// Packets or messages that a queue pair sends before others have their turn.
const SENT_PER_TURN: u32 = 16;
