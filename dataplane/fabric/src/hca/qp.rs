//! A queue pair: what both of its halves need, and how it goes through its states (IBA 10.3).

use super::Shared;
use super::outlet::Outlet;
use super::port::Port;
use super::queue::{RecvWork, SharedQueue};
use super::requester::Requester;
use super::responder::Responder;
use super::usual::Usual;
use crate::head::Head;
use crate::time::Time;
use pollux_verbs::table::Table;
use pollux_verbs::{
    Access, AddressVector, AsyncEvent, Completion, CompletionKind, CompletionStatus, Cq,
    GlobalRoute, Migration, Pd, Qp, QpAttributes, QpInit, QpState, QpType, With,
};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::packet::{Credits, Grh, Opcode, Operation, Transport};
use pollux_wire::psn::Psn;
use std::collections::VecDeque;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) common: Common,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// The requester is asked first for what to send next.
    asks_next: bool,
    /// It stands in the adapter's list of those that may have something to send.
    pub(crate) is_active: bool,
    /// Its entry among the adapter's timers.
    pub(crate) timer: Option<Time>,
}

/// What both halves need.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) handle: Qp,
    pub(crate) qpn: Qpn,
    pub(crate) init: QpInit,
    pub(crate) attributes: QpAttributes,
    pub(crate) state: QpState,
    /// What its usual messages have in common.
    pub(crate) usual: Usual,
    /// Receives of its own; unused with a shared queue.
    pub(crate) receives: VecDeque<RecvWork>,
    /// The last receive of the shared queue was told of.
    last_wqe_told: bool,
    /// So was the first packet.
    established_told: bool,
    /// So was a peer's migration that was refused, since the alternate path was loaded.
    pub(super) refusal_told: bool,
}

impl QueuePair {
    pub(crate) fn new(handle: Qp, qpn: Qpn, init: QpInit) -> Self {
        Self {
            common: Common {
                handle,
                qpn,
                init,
                attributes: QpAttributes::default(),
                state: QpState::Reset,
                usual: Usual::default(),
                receives: VecDeque::new(),
                last_wqe_told: false,
                established_told: false,
                refusal_told: false,
            },
            requester: Requester::default(),
            responder: Responder::default(),
            asks_next: false,
            is_active: false,
            timer: None,
        }
    }

    /// Takes the changes that the table of transitions has allowed.
    pub(crate) fn change(&mut self, to: QpState, change: &QpAttributes, shared: &mut Shared) {
        let from = self.common.state;
        let before = self.common.migration();
        self.common.attributes.take(change);
        self.change_migration(before);
        if change.access.is_some() {
            shared.memory.lender().revoke(self.common.qpn);
        }
        self.common.enter(to);
        match to {
            QpState::Reset => {
                let Common { handle, qpn, init, .. } = self.common;
                shared.memory.lender().revoke(qpn);
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

    /// Goes to the error state: what is outstanding is flushed (IBA 10.3.1.7).
    pub(crate) fn fail(&mut self, shared: &mut Shared) {
        self.common.enter(QpState::Err);
        shared.memory.lender().revoke(self.common.qpn);
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

    /// Sends what may be sent now, but no more than its turn allows; says how that ended.
    pub(crate) fn transmit(
        &mut self,
        shared: &mut Shared,
        now: Time,
        shortcut: bool,
        outlet: &mut impl Outlet,
    ) -> Sent {
        let mut sent = Sent::More;
        for _ in 0..SENT_PER_TURN {
            sent = self.transmit_one(shared, now, shortcut, outlet);
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
        shortcut: bool,
        outlet: &mut impl Outlet,
    ) -> Sent {
        let Self { common, requester, responder, .. } = self;
        if common.init.qp_type.is_datagram() {
            return requester.transmit_datagram(common, shared, shortcut, outlet);
        }
        // The halves take turns, so that long answers do not keep requests back for ever.
        self.asks_next = !self.asks_next;
        if self.asks_next {
            match requester.transmit(common, shared, now, shortcut, outlet) {
                Sent::All => responder.transmit(common, shared, shortcut, outlet),
                other => other,
            }
        } else {
            match responder.transmit(common, shared, shortcut, outlet) {
                Sent::All => requester.transmit(common, shared, now, shortcut, outlet),
                other => other,
            }
        }
    }

    /// Goes to the state that a failed request demands: an unreliable queue pair goes on receiving
    /// (IBA 10.3.1.6).
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

    /// When it wants to be asked again, if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.requester.deadline()
    }

    /// Whether it wants to be asked earlier than it will be.
    #[inline(always)]
    pub(crate) fn is_unwatched(&self) -> bool {
        self.deadline().is_some_and(|wanted| self.timer.is_none_or(|set| wanted < set))
    }
}

impl Common {
    fn enter(&mut self, state: QpState) {
        self.state = state;
        self.attributes.state = Some(state);
        self.usual.forget();
    }

    /// The path MTU in bytes.
    #[inline]
    pub(crate) fn mtu(&self) -> usize {
        self.attributes.path_mtu.map_or(256, |mtu| mtu.bytes().unwrap_or(256))
    }

    /// The queue pair's P_Key, as it is in the port's table now.
    #[inline]
    pub(crate) fn pkey(&self, port: &Port) -> PKey {
        port.pkey(self.attributes.pkey_index.unwrap_or(0))
    }

    pub(crate) fn transport(&self) -> Transport {
        match self.init.qp_type {
            QpType::Uc => Transport::UC,
            QpType::Ud | QpType::Gsi => Transport::UD,
            _ => Transport::RC,
        }
    }

    /// What a packet to the peer of a connection has, and its GRH.
    #[inline(always)]
    pub(crate) fn head(&self, port: &Port, op: Operation, psn: Psn) -> (Head, Option<Grh>) {
        let to = To {
            path: self.attributes.path.as_ref().unwrap_or(&NO_PATH),
            pkey: self.pkey(port),
            dest_qp: self.attributes.dest_qp.unwrap_or_default(),
        };
        let (mut head, grh) = to.head(port, Opcode::new(self.transport(), op), psn);
        head.mig_req = self.migration() == Migration::Migrated;
        (head, grh)
    }

    /// How many packets a message of so many bytes is: one at least.
    pub(crate) fn packets(&self, bytes: u64) -> u32 {
        bytes.div_ceil(self.mtu() as u64).max(1) as u32
    }

    /// The next receive, from wherever this queue pair takes them.
    pub(crate) fn take_recv(&mut self, shared: &mut Shared) -> Option<RecvWork> {
        let Some(srq) = self.init.srq else { return self.receives.pop_front() };
        let queue = shared.srqs.get_mut(srq.0)?;
        let work = queue.requests.pop_front();
        if queue.limit > 0 && (queue.requests.len() as u32) < queue.limit {
            queue.limit = 0;
            shared.events.push_back(AsyncEvent::SrqLimitReached(srq));
        }
        work
    }

    /// A receive that was taken for nothing is the next one again.
    pub(crate) fn give_back_recv(&mut self, shared: &mut Shared, work: RecvWork) {
        match self.init.srq.and_then(|srq| shared.srqs.get_mut(srq.0)) {
            Some(queue) => queue.requests.push_front(work),
            None => self.receives.push_front(work),
        }
    }

    /// The protection domain of the receives.
    pub(crate) fn recv_pd(&self, shared: &Shared) -> Pd {
        let srq = self.init.srq.and_then(|srq| shared.srqs.get(srq.0));
        srq.map_or(self.init.pd, |queue| queue.pd)
    }

    /// Whether peers may do this through the queue pair.
    pub(crate) fn allows(&self, need: Access) -> bool {
        self.attributes.access.unwrap_or_default().has(need)
    }

    /// What an acknowledgement says of receives; of shared ones nothing.
    pub(crate) fn credits(&self) -> Credits {
        match self.init.srq {
            Some(_) => Credits::UNLIMITED,
            None => Credits::promise(self.receives.len()),
        }
    }

    /// How many bytes the next receive takes; none if there is none. Who looks first need not take
    /// one in vain: a shared queue may tell its owner of each that is taken.
    pub(crate) fn next_recv_bytes(&self, srqs: &Table<SharedQueue>) -> Option<u64> {
        let receives = match self.init.srq {
            None => &self.receives,
            Some(srq) => &srqs.get(srq.0)?.requests,
        };
        receives.front().map(|work| work.bytes)
    }

    /// A receive ends without a message.
    pub(crate) fn complete_recv(
        &self,
        shared: &mut Shared,
        work: &RecvWork,
        status: CompletionStatus,
    ) {
        let completion = Completion {
            id: work.id,
            status,
            kind: CompletionKind::Recv,
            qpn: self.qpn,
            bytes: 0,
            with: With::Nothing,
            from: None,
        };
        self.complete(shared, self.init.recv_cq, completion, false);
    }

    /// Puts a completion into a queue; a queue that overruns is lost (IBA 10.2.5.2).
    #[inline]
    pub(crate) fn complete(
        &self,
        shared: &mut Shared,
        cq: Cq,
        completion: Completion,
        solicited: bool,
    ) {
        let Some(queue) = shared.cqs.get_mut(cq.0) else { return };
        if !queue.push(completion, solicited) && !queue.is_lost {
            queue.is_lost = true;
            shared.lost_cqs.push(cq);
            shared.events.push_back(AsyncEvent::CqError(cq));
        }
    }
}

/// How sending ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// There may be more to send.
    More,
    /// Nothing more may be sent now.
    All,
    /// The link has no room now.
    Stalled,
}

/// Packets or messages that a queue pair sends before others have their turn.
const SENT_PER_TURN: u32 = 16;

const NO_PATH: AddressVector =
    AddressVector { dlid: Lid::NONE, sl: 0, src_path_bits: 0, static_rate: 0, port: 0, grh: None };

/// Where something goes.
pub(crate) struct To<'a> {
    pub(crate) path: &'a AddressVector,
    pub(crate) pkey: PKey,
    pub(crate) dest_qp: Qpn,
}

impl To<'_> {
    /// What one packet there has, and its GRH.
    #[inline(always)]
    pub(crate) fn head(&self, port: &Port, opcode: Opcode, psn: Psn) -> (Head, Option<Grh>) {
        let dlid = if port.is_ethernet() { Lid::NONE } else { self.path.dlid };
        let head = Head {
            opcode,
            se: false,
            mig_req: true,
            ack_req: false,
            whole: false,
            lent: false,
            pkey: self.pkey,
            dest_qp: self.dest_qp,
            psn,
            packets: 1,
            dlid,
            slid: Lid(port.lid.0 | u16::from(self.path.src_path_bits)),
            sl: self.path.sl,
        };
        (head, self.path.grh.as_ref().map(|route| grh(port, route)))
    }
}

#[cold]
fn grh(port: &Port, route: &GlobalRoute) -> Grh {
    Grh {
        ip_ver: Grh::IP_VER,
        tclass: route.traffic_class,
        flow_label: route.flow_label,
        nxt_hdr: Grh::NXT_HDR_IBA,
        hop_lmt: route.hop_limit,
        sgid: port.gids.get(usize::from(route.sgid_index)).copied().unwrap_or_default(),
        dgid: route.dgid,
        ..Grh::default()
    }
}
