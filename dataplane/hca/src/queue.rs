//! Queues of work and of completions (IBA 10.2.5, 10.2.6, 10.8).

use crate::recv_source::RecvSource;
use pollux_verbs::work::SendOp;
use pollux_verbs::{
    AddressVector, Arm, Completion, CompletionStatus, Data, Pd, QpInit, RecvRequest, SendFlags,
    SendRequest, Sge,
};
use pollux_wire::psn::Psn;
use std::collections::VecDeque;

/// Bytes that a send may carry inline: with its head, two pairs of cache lines.
pub(crate) const INLINE_BYTES_MAX: usize = 188;

/// Pieces of the consumer's memory. One is the common case, and needs no allocation.
#[derive(Clone, Debug)]
pub(crate) enum Entries {
    One(Sge),
    /// Several, or none.
    Many(Box<[Sge]>),
}

impl Entries {
    pub(crate) fn of(sges: &[Sge]) -> Self {
        match sges {
            &[sge] => Self::One(sge),
            sges => Self::Many(sges.into()),
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Sge] {
        match self {
            Self::One(sge) => std::slice::from_ref(sge),
            Self::Many(sges) => sges,
        }
    }
}

/// The data of a send, kept until its completion for retransmission.
#[derive(Clone, Debug)]
pub(crate) enum StoredData {
    /// Copied to this slot when it was posted; the request has the length.
    Inline(u32),
    Sges(Entries),
}

impl StoredData {
    #[inline]
    pub(crate) fn sges(&self) -> &[Sge] {
        match self {
            Self::Inline(_) => &[],
            Self::Sges(entries) => entries.as_slice(),
        }
    }
}

/// The inline data of a send queue: a slot for each request, used in turn.
#[derive(Debug, Default)]
pub(crate) struct InlineSlots {
    bytes: Box<[u8]>,
    stride: usize,
    next: u32,
}

impl InlineSlots {
    /// Stores data of a queue of at most `requests`, each with at most `stride` bytes.
    #[inline]
    fn store(&mut self, data: &[u8], requests: u32, stride: u32) -> u32 {
        if self.bytes.is_empty() {
            // Only a queue that sends inline data needs memory for it.
            self.stride = stride as usize;
            self.bytes = vec![0; self.stride * requests as usize].into();
        }
        let slot = self.next;
        self.next = if slot + 1 == requests { 0 } else { slot + 1 };
        let at = slot as usize * self.stride;
        self.bytes[at..at + data.len()].copy_from_slice(data);
        slot
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32, bytes: usize) -> &[u8] {
        &self.bytes[slot as usize * self.stride..][..bytes]
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SendWork {
    pub(crate) id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) data: StoredData,
    /// The path of a datagram, at the time of posting.
    pub(crate) path: AddressVector,
    /// Bytes to send, or to read.
    pub(crate) bytes: u64,
    /// The first PSN, once it was started.
    pub(crate) psn: Psn,
    /// The number of PSNs; 0 before the start, and for local operations.
    pub(crate) packets: u32,
    /// The send sequence number (SSN), for credits.
    pub(crate) ssn: Psn,
    /// Received bytes of the answer, and their packets.
    pub(crate) answered: u64,
    pub(crate) answered_packets: u32,
    /// It cannot be sent, and completes with this error after the requests before it.
    pub(crate) local_error: Option<CompletionStatus>,
    /// The answer to a read or an atomic is complete, or a local operation is done.
    pub(crate) done: bool,
}

impl SendWork {
    #[inline(always)]
    pub(crate) fn new(
        request: &SendRequest<'_>,
        path: AddressVector,
        inline: &mut InlineSlots,
        init: &QpInit,
    ) -> Self {
        let data = match request.data {
            Data::Sges(sges) => StoredData::Sges(Entries::of(sges)),
            Data::Inline(bytes) => StoredData::Inline(inline.store(
                bytes,
                init.send_requests_max,
                init.inline_bytes_max,
            )),
        };
        Self {
            id: request.id,
            op: request.op,
            flags: request.flags,
            data,
            path,
            bytes: request.data.bytes(),
            psn: Psn::default(),
            packets: 0,
            ssn: Psn::default(),
            answered: 0,
            answered_packets: 0,
            local_error: None,
            done: false,
        }
    }

    pub(crate) const fn needs_answer(&self) -> bool {
        matches!(self.op, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Whether it never leaves the adapter.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self.op, SendOp::Bind(_) | SendOp::LocalInvalidate(_) | SendOp::Nop)
    }

    pub(crate) const fn is_untouched(&self) -> bool {
        self.packets == 0 && !self.done
    }

    /// Whether it consumes a receive of the peer.
    pub(crate) const fn takes_recv(&self) -> bool {
        matches!(
            self.op,
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) | SendOp::WriteImm(..)
        )
    }

    pub(crate) const fn end(&self) -> Psn {
        self.psn.plus(self.packets)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RecvWork {
    pub(crate) id: u64,
    pub(crate) entries: Entries,
    pub(crate) bytes: u64,
}

impl RecvWork {
    pub(crate) fn of(request: &RecvRequest<'_>) -> Self {
        let bytes = Data::Sges(request.sges).bytes();
        Self { id: request.id, entries: Entries::of(request.sges), bytes }
    }

    /// Fetches the receives that a queue of `count_max` has space for; returns whether there were
    /// any.
    pub(crate) fn fetch(
        source: &mut Option<Box<dyn RecvSource>>,
        receives: &mut VecDeque<Self>,
        count_max: usize,
    ) -> bool {
        let Some(source) = source else { return false };
        let before = receives.len();
        source.fetch(count_max - before, &mut |request| receives.push_back(Self::of(request)));
        receives.len() > before
    }
}

#[derive(Debug)]
pub(crate) struct SharedQueue {
    pub(crate) pd: Pd,
    pub(crate) requests: VecDeque<RecvWork>,
    /// Where they are posted, if not by calls.
    pub(crate) source: Option<Box<dyn RecvSource>>,
    pub(crate) requests_max: usize,
    pub(crate) sges_max: usize,
    /// The limit below which an event is sent; 0: never.
    pub(crate) limit: u32,
    pub(crate) qps: u32,
}

impl SharedQueue {
    pub(crate) fn fetch(&mut self) -> bool {
        RecvWork::fetch(&mut self.source, &mut self.requests, self.requests_max)
    }
}

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) completions: VecDeque<Completion>,
    completions_max: usize,
    /// It overran: no more completions are added (IBA 10.2.5.2).
    pub(crate) is_lost: bool,
    armed: Option<Arm>,
    /// A completion of the kind that it was armed for was added.
    pub(crate) is_notified: bool,
    /// Completions that were added after the last solicited or failed one.
    pub(crate) since_solicited: usize,
    pub(crate) qps: u32,
}

impl CompletionQueue {
    pub(crate) fn new(completions_max: u32) -> Self {
        Self {
            completions: VecDeque::with_capacity(completions_max.min(4096) as usize),
            completions_max: completions_max as usize,
            is_lost: false,
            armed: None,
            is_notified: false,
            since_solicited: usize::MAX,
            qps: 0,
        }
    }

    /// Sets the number of completions, at most; `false` if it has more.
    pub(crate) fn resize(&mut self, completions_max: u32) -> bool {
        let is_enough = self.completions.len() <= completions_max as usize;
        if is_enough {
            self.completions_max = completions_max as usize;
        }
        is_enough
    }

    /// Appends a completion; returns whether there was space.
    #[inline]
    pub(crate) fn push(&mut self, completion: Completion, solicited: bool) -> bool {
        if self.is_lost || self.completions.len() >= self.completions_max {
            return false;
        }
        let is_solicited = solicited || completion.status != CompletionStatus::Success;
        self.since_solicited =
            if is_solicited { 0 } else { self.since_solicited.saturating_add(1) };
        let notifies = match self.armed {
            None => false,
            Some(Arm::Any) => true,
            Some(Arm::Solicited) => is_solicited,
        };
        if notifies {
            self.armed = None;
            self.is_notified = true;
        }
        self.completions.push_back(completion);
        true
    }

    #[inline]
    pub(crate) fn take(&mut self, out: &mut [Completion]) -> usize {
        let mut count = 0;
        for slot in out {
            let Some(completion) = self.completions.pop_front() else { break };
            *slot = completion;
            count += 1;
        }
        count
    }

    /// Arms the queue for the next completion of this kind, or of a kind armed before.
    pub(crate) fn arm(&mut self, arm: Arm) {
        if self.armed != Some(Arm::Any) {
            self.armed = Some(arm);
        }
        self.is_notified = false;
    }
}
