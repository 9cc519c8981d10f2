//! A queue pair: what both of its halves need, and how it goes through its states (IBA 10.3).

use super::Shared;
use super::port::Port;
use super::queue::{RecvWork, SharedQueue};
use super::requester::Requester;
use super::responder::Responder;
use crate::frame::{Frame, Message, Payload};
use crate::table::Table;
use crate::time::Time;
use pollux_verbs::work::SendOp;
use pollux_verbs::{
    Access, AddressVector, AsyncEvent, Completion, CompletionKind, CompletionStatus, Cq, Pd, Qp,
    QpAttributes, QpInit, QpState, QpType, With,
};
use pollux_wire::address::Qpn;
use pollux_wire::keys::PKey;
use pollux_wire::packet::{
    Bth, Credits, Extended, Grh, Headers, Lrh, Opcode, Operation, PACKET_LEN_MAX, Transport,
};
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
    /// Receives of its own; unused with a shared queue.
    pub(crate) receives: VecDeque<RecvWork>,
    /// The last receive of the shared queue was told of.
    last_wqe_told: bool,
    /// So was the first packet.
    established_told: bool,
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
                receives: VecDeque::new(),
                last_wqe_told: false,
                established_told: false,
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
        self.common.attributes.take(change);
        self.common.state = to;
        self.common.attributes.state = Some(to);
        match to {
            QpState::Reset => {
                let Common { handle, qpn, init, .. } = self.common;
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
        self.common.state = QpState::Err;
        self.common.attributes.state = Some(QpState::Err);
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

    /// The next thing to send, if anything may be sent now.
    pub(crate) fn poll_transmit(
        &mut self,
        shared: &mut Shared,
        now: Time,
        shortcut: bool,
    ) -> Option<Frame> {
        if self.common.init.qp_type == QpType::Ud {
            return self.poll_datagram(shared, shortcut);
        }
        // The halves take turns, so that long answers do not keep requests back for ever.
        let Self { common, requester, responder, .. } = self;
        self.asks_next = !self.asks_next;
        let frame = if self.asks_next {
            let request = requester.poll_transmit(common, shared, now, shortcut);
            request.or_else(|| responder.poll_transmit(common, shared, shortcut))
        } else {
            let answer = responder.poll_transmit(common, shared, shortcut);
            answer.or_else(|| requester.poll_transmit(common, shared, now, shortcut))
        };
        self.settle(shared);
        frame
    }

    /// Goes to the state that a failed request demands: an unreliable queue pair goes on receiving
    /// (IBA 10.3.1.6).
    pub(crate) fn settle(&mut self, shared: &mut Shared) {
        let (ours, theirs) = (self.requester.has_failed(), self.responder.has_failed());
        if self.common.state == QpState::Err || !ours && !theirs {
            return;
        }
        if theirs || self.common.init.qp_type == QpType::Rc {
            self.fail(shared);
        } else {
            self.common.state = QpState::Sqe;
            self.common.attributes.state = Some(QpState::Sqe);
            self.requester.flush(&self.common, shared);
        }
    }

    /// When it wants to be asked again, if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.requester.deadline()
    }
}

impl Common {
    /// The path MTU in octets.
    #[inline]
    pub(crate) fn mtu(&self) -> usize {
        self.attributes.path_mtu.map_or(256, |mtu| mtu.octets().unwrap_or(256))
    }

    /// The queue pair's P_Key, as it is in the port's table now.
    #[inline]
    pub(crate) fn pkey(&self, port: &Port) -> PKey {
        let index = usize::from(self.attributes.pkey_index.unwrap_or(0));
        port.pkeys.get(index).copied().unwrap_or(PKey::INVALID)
    }

    pub(crate) fn transport(&self) -> Transport {
        match self.init.qp_type {
            QpType::Uc => Transport::UC,
            QpType::Ud => Transport::UD,
            _ => Transport::RC,
        }
    }

    /// Headers of a packet to the peer of a connection.
    pub(crate) fn headers(&self, port: &Port, op: Operation, psn: Psn, ext: Extended) -> Headers {
        let path = self.attributes.path.unwrap_or_default();
        let opcode = Opcode::new(self.transport(), op);
        let dest = self.attributes.dest_qp.unwrap_or_default();
        let bth = Bth {
            opcode,
            mig_req: true,
            pkey: self.pkey(port),
            dest_qp: dest,
            psn,
            ..Bth::default()
        };
        route(port, &path, bth, ext)
    }

    /// How many packets a message of so many octets is: one at least.
    pub(crate) fn packets(&self, octets: u64) -> u32 {
        octets.div_ceil(self.mtu() as u64).max(1) as u32
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

    /// How many octets the next receive takes; none if there is none. Who looks first need not take
    /// one in vain: a shared queue may tell its owner of each that is taken.
    pub(crate) fn next_recv_octets(&self, srqs: &Table<SharedQueue>) -> Option<u64> {
        let receives = match self.init.srq {
            None => &self.receives,
            Some(srq) => &srqs.get(srq.0)?.requests,
        };
        receives.front().map(|work| work.octets)
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
            octets: 0,
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

/// Headers of a packet that takes this path.
pub(crate) fn route(port: &Port, path: &AddressVector, bth: Bth, extended: Extended) -> Headers {
    let lrh = Lrh {
        sl: path.sl,
        dlid: path.dlid,
        slid: pollux_wire::address::Lid(port.lid.0 | u16::from(path.src_path_bits)),
        ..Lrh::default()
    };
    let grh = path.grh.map(|grh| Grh {
        ip_ver: Grh::IP_VER,
        tclass: grh.traffic_class,
        flow_label: grh.flow_label,
        nxt_hdr: Grh::NXT_HDR_IBA,
        hop_lmt: grh.hop_limit,
        sgid: port.gids.get(usize::from(grh.sgid_index)).copied().unwrap_or_default(),
        dgid: grh.dgid,
        ..Grh::default()
    });
    Headers { lrh, grh, bth, rd: None, extended }
}

/// A packet around what `fill` puts in place.
pub(crate) fn packet(headers: &Headers, octets: usize, fill: impl FnOnce(&mut [u8])) -> Frame {
    let mut out = vec![0; octets + (PACKET_LEN_MAX - 4096)];
    let len = headers.emit_with(octets, &mut out, fill);
    out.truncate(len.expect("a payload of at most an MTU fits"));
    Frame::Packet(out)
}

/// A message in one piece.
pub(crate) fn message(headers: Headers, packets: u32, payload: Payload) -> Frame {
    Frame::Message(Message { headers, packets, payload })
}

/// What kind of completion a request ends in.
pub(crate) const fn kind_of(op: &SendOp) -> CompletionKind {
    match op {
        SendOp::Send
        | SendOp::SendImm(_)
        | SendOp::SendInvalidate(_)
        | SendOp::Datagram(_)
        | SendOp::DatagramImm(..) => CompletionKind::Send,
        SendOp::Write(_) | SendOp::WriteImm(..) => CompletionKind::Write,
        SendOp::Read(_) => CompletionKind::Read,
        SendOp::CompareSwap { .. } => CompletionKind::CompareSwap,
        SendOp::FetchAdd { .. } => CompletionKind::FetchAdd,
        SendOp::Bind(_) => CompletionKind::Bind,
        SendOp::LocalInvalidate(_) => CompletionKind::LocalInvalidate,
    }
}
