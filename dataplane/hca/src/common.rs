//! The state that both halves of a queue pair share: QPN, attributes, receives and completions.
//!
//! [`ExpectedHeads`] is for the fast path. The fields that the admission checks of a packet compare
//! (IBA 9.6.1) are in the first two words of its head. A queue pair computes the expected words in
//! advance, so that the fast path compares whole words. Every change of the port, or of the state
//! or the attributes of the queue pair, invalidates them.

use super::Shared;
use super::port::Port;
use super::queue::{RecvWork, SharedQueue};
use crate::head::{self, Head};
use crate::message_bypass::COPY_BYTES_MAX;
use crate::recv_source::RecvSource;
use pollux_verbs::table::Table;
use pollux_verbs::{
    Access, AddressVector, AsyncEvent, Completion, CompletionKind, CompletionStatus, Cq,
    GlobalRoute, Migration, Pd, Qp, QpAttributes, QpInit, QpState, QpType, With,
};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::{Credits, Grh, Opcode, Operation, Transport};
use pollux_wire::psn::Psn;
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) handle: Qp,
    pub(crate) qpn: Qpn,
    pub(crate) init: QpInit,
    pub(crate) attributes: QpAttributes,
    pub(crate) state: QpState,
    pub(crate) heads: ExpectedHeads,
    /// Unused with a shared receive queue.
    pub(crate) receives: VecDeque<RecvWork>,
    /// Where the adapter fetches receives, if the consumer does not post them by calls.
    pub(crate) source: Option<Box<dyn RecvSource>>,
    /// The LastWqeReached event was queued.
    pub(crate) last_wqe_reported: bool,
    /// The ConnectionEstablished event was queued.
    pub(crate) established_reported: bool,
    /// The PathMigrationError event was queued since the alternate path was loaded.
    pub(crate) refusal_reported: bool,
}

/// The head fields that are the same in all fast-path messages of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExpectedHeads {
    /// The value of [`Shared::epoch`] for which the heads were computed. 0 if they are invalid.
    epoch: u64,
    pub(crate) is_fast: bool,
    /// First words of SEND Only and of ACK, as sent and as received.
    pub(crate) message: u64,
    pub(crate) ack: u64,
    pub(crate) received_message: u64,
    pub(crate) received_ack: u64,
    /// The upper half of the second word (DLID and SLID), as sent and as received. For UD it has
    /// only our own LID, because the peer's LID differs between datagrams.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// The bits of `received` that a received head must match.
    pub(crate) received_mask: u64,
    pub(crate) bytes_max: usize,
    pub(crate) pkey_index: u16,
}

/// The masks of DLID and SLID in the second word.
const DLID: u64 = 0xffff << 32;
const SLID: u64 = 0xffff << 48;

impl ExpectedHeads {
    pub(crate) fn invalidate(&mut self) {
        self.epoch = 0;
    }
}

impl Common {
    pub(crate) fn new(handle: Qp, qpn: Qpn, init: QpInit) -> Self {
        Self {
            handle,
            qpn,
            init,
            attributes: QpAttributes::default(),
            state: QpState::Reset,
            heads: ExpectedHeads::default(),
            receives: VecDeque::new(),
            source: None,
            last_wqe_reported: false,
            established_reported: false,
            refusal_reported: false,
        }
    }

    pub(crate) fn enter(&mut self, state: QpState) {
        self.state = state;
        self.attributes.state = Some(state);
        self.heads.invalidate();
    }

    #[inline(always)]
    pub(crate) fn has_fast_path(&mut self, shared: &Shared) -> bool {
        if self.heads.epoch != shared.epoch {
            self.heads = self.find_expected_heads(shared);
        }
        self.heads.is_fast
    }

    #[cold]
    fn find_expected_heads(&self, shared: &Shared) -> ExpectedHeads {
        let none = ExpectedHeads { epoch: shared.epoch, ..ExpectedHeads::default() };
        let port = &shared.port;
        let is_ud = self.init.qp_type == QpType::Ud;
        // Each datagram has its own path. Only the source LID is the same for all.
        let path = if is_ud { Some(AddressVector::default()) } else { self.attributes.path };
        let Some(path) = path else { return none };
        let pkey = self.pkey(port);
        let is_fast = self.state == QpState::Rts
            && self.init.qp_type != QpType::Gsi
            && path.grh.is_none()
            // In Rearm, a received packet may change the migration state, which only the slow path
            // does.
            && self.migration() != Migration::Rearm
            && port.state == PortState::ACTIVE
            && (is_ud || !port.lid.covers(port.lmc, path.dlid))
            // Two limited members of a partition may not communicate, and P_Key 0 is invalid.
            && pkey.is_full()
            && pkey.matches(pkey);
        if !is_fast {
            return none;
        }
        let first = |operation, dest_qp: Qpn, unsegmented| {
            let opcode = Opcode::new(self.transport(), operation);
            let is_armed = self.migration() == Migration::Armed;
            let flag = if is_armed { head::NO_MIG_REQ } else { 0 };
            head::first_word(opcode, pkey, dest_qp, unsegmented) | flag
        };
        let dest_qp = self.attributes.dest_qp.unwrap_or_default();
        let sl = u64::from(path.sl) << 56;
        let ack_req = if self.init.qp_type == QpType::Rc { head::ACK_REQ } else { 0 };
        let slid = port.lid.0 | u16::from(path.src_path_bits);
        let mtu = if is_ud { port.mtu.bytes().unwrap_or(256) } else { self.mtu() };
        ExpectedHeads {
            is_fast,
            message: first(Operation::SEND_ONLY, dest_qp, !is_ud) | ack_req | sl,
            ack: first(Operation::ACKNOWLEDGE, dest_qp, false) | sl,
            received_message: first(Operation::SEND_ONLY, self.qpn, !is_ud),
            received_ack: first(Operation::ACKNOWLEDGE, self.qpn, false),
            sent: u64::from(path.dlid.0) << 32 | u64::from(slid) << 48,
            received: u64::from(slid) << 32 | u64::from(path.dlid.0) << 48,
            received_mask: if is_ud { DLID } else { DLID | SLID },
            bytes_max: COPY_BYTES_MAX.min(mtu),
            pkey_index: port.pkey_index(pkey).unwrap_or(0),
            ..none
        }
    }

    /// The path MTU in bytes.
    #[inline]
    pub(crate) fn mtu(&self) -> usize {
        self.attributes.path_mtu.map_or(256, |mtu| mtu.bytes().unwrap_or(256))
    }

    /// The queue pair's P_Key, looked up in the current P_Key table of the port.
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

    /// The head and the GRH of a packet to the peer of a connection.
    #[inline(always)]
    pub(crate) fn head(&self, port: &Port, op: Operation, psn: Psn) -> (Head, Option<Grh>) {
        let path = self.attributes.path.as_ref().unwrap_or(&NO_PATH);
        let dest_qp = self.attributes.dest_qp.unwrap_or_default();
        let opcode = Opcode::new(self.transport(), op);
        let (mut head, grh) = head_to(port, path, self.pkey(port), dest_qp, opcode, psn);
        head.mig_req = self.migration() == Migration::Migrated;
        (head, grh)
    }

    /// The number of packets of a message of this length; at least 1.
    pub(crate) fn packets(&self, bytes: u64) -> u32 {
        bytes.div_ceil(self.mtu() as u64).max(1) as u32
    }

    /// Takes the next receive from the queue pair or its SRQ. If that leaves the SRQ below its
    /// limit, queues the SrqLimitReached event and disarms the limit.
    pub(crate) fn take_recv(&mut self, shared: &mut Shared) -> Option<RecvWork> {
        let Some(srq) = self.init.srq else { return self.receives.pop_front() };
        let queue = shared.srqs.get_mut(srq.0)?;
        let work = queue.requests.pop_front();
        let is_low = |queue: &SharedQueue| (queue.requests.len() as u32) < queue.limit;
        if is_low(queue) && (!queue.fetch() || is_low(queue)) {
            queue.limit = 0;
            shared.events.push_back(AsyncEvent::SrqLimitReached(srq));
        }
        work
    }

    pub(crate) fn fetch(&mut self) -> bool {
        let count_max = self.init.recv_requests_max as usize;
        self.state != QpState::Reset
            && RecvWork::fetch(&mut self.source, &mut self.receives, count_max)
    }

    /// Returns an unused receive to the front of its queue.
    pub(crate) fn give_back_recv(&mut self, shared: &mut Shared, work: RecvWork) {
        match self.init.srq.and_then(|srq| shared.srqs.get_mut(srq.0)) {
            Some(queue) => queue.requests.push_front(work),
            None => self.receives.push_front(work),
        }
    }

    pub(crate) fn recv_pd(&self, shared: &Shared) -> Pd {
        let srq = self.init.srq.and_then(|srq| shared.srqs.get(srq.0));
        srq.map_or(self.init.pd, |queue| queue.pd)
    }

    /// Whether the queue pair grants its peer this access.
    pub(crate) fn allows(&self, need: Access) -> bool {
        self.attributes.access.unwrap_or_default().has(need)
    }

    /// The end-to-end flow control credits for an ACK. They are unlimited with an SRQ, which other
    /// queue pairs use too, and with a receive source, from which receives are fetched only when
    /// needed.
    pub(crate) fn credits(&self) -> Credits {
        if self.init.srq.is_some() || self.source.is_some() {
            return Credits::UNLIMITED;
        }
        Credits::promise(self.receives.len())
    }

    /// The length of the next receive in bytes. The receive stays in its queue, so this never
    /// triggers the SRQ limit event, unlike [`Common::take_recv`].
    pub(crate) fn next_recv_bytes(&mut self, srqs: &mut Table<SharedQueue>) -> Option<u64> {
        let receives = match self.init.srq {
            None => {
                if self.receives.is_empty() {
                    self.fetch();
                }
                &self.receives
            }
            Some(srq) => {
                let queue = srqs.get_mut(srq.0)?;
                if queue.requests.is_empty() {
                    queue.fetch();
                }
                &queue.requests
            }
        };
        receives.front().map(|work| work.bytes)
    }

    /// Completes a receive with an error status.
    pub(crate) fn complete_recv(
        &self,
        shared: &mut Shared,
        work: &RecvWork,
        status: CompletionStatus,
    ) {
        let completion = self.completion(work.id, status, CompletionKind::Recv);
        self.complete(shared, self.init.recv_cq, completion, false);
    }

    #[inline(always)]
    pub(crate) fn completion(
        &self,
        id: u64,
        status: CompletionStatus,
        kind: CompletionKind,
    ) -> Completion {
        Completion { id, status, kind, qpn: self.qpn, bytes: 0, with: With::Nothing, from: None }
    }

    /// Adds a completion to a queue. A queue that overruns takes no more completions, and its queue
    /// pairs fail (IBA 10.2.5.2).
    #[inline]
    pub(crate) fn complete(
        &self,
        shared: &mut Shared,
        cq: Cq,
        completion: Completion,
        solicited: bool,
    ) {
        let Some(queue) = shared.cqs.get_mut(cq.0) else { return };
        shared.completed += 1;
        if !queue.push(completion, solicited) && !queue.is_lost {
            queue.is_lost = true;
            shared.lost_cqs.push(cq);
            shared.events.push_back(AsyncEvent::CqError(cq));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// There may be more to send.
    More,
    /// Nothing more may be sent now.
    All,
    /// The link has no space now.
    Stalled,
}

const NO_PATH: AddressVector =
    AddressVector { dlid: Lid::NONE, sl: 0, src_path_bits: 0, static_rate: 0, port: 0, grh: None };

/// The head and the GRH of a packet that is sent along `path`.
#[inline(always)]
pub(crate) fn head_to(
    port: &Port,
    path: &AddressVector,
    pkey: PKey,
    dest_qp: Qpn,
    opcode: Opcode,
    psn: Psn,
) -> (Head, Option<Grh>) {
    let head = Head {
        opcode,
        se: false,
        mig_req: true,
        ack_req: false,
        unsegmented: false,
        leased: false,
        pkey,
        dest_qp,
        psn,
        packets: 1,
        dlid: if port.is_ethernet() { Lid::NONE } else { path.dlid },
        slid: Lid(port.lid.0 | u16::from(path.src_path_bits)),
        sl: path.sl,
    };
    (head, path.grh.as_ref().map(|route| grh(port, route)))
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
