//! Work queues and completion queues (IBA 10.2.5, 10.2.6, 10.8).

use crate::recv_source::RecvSource;
use pollux_verbs::work::SendOp;
use pollux_verbs::{
    AddressVector, Arm, Completion, CompletionStatus, Data, Pd, QpInit, RecvRequest, SendFlags,
    SendRequest, Sge,
};
use pollux_wire::psn::Psn;
use std::collections::VecDeque;

/// The maximum length of the inline data of a send.
pub(crate) const INLINE_BYTES_MAX: usize = 188;

/// The scatter/gather list of a request. A single entry is the common case and needs no allocation.
#[derive(Clone, Debug)]
pub(crate) enum Entries {
    One(Sge),
    /// Several entries, or none.
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
    /// The slot of [`InlineSlots`] to which the data was copied when the request was posted. The
    /// length is `SendWork::bytes`.
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

/// The inline data of a send queue: one slot per request, used round-robin.
#[derive(Debug, Default)]
pub(crate) struct InlineSlots {
    bytes: Box<[u8]>,
    stride: usize,
    next: u32,
}

impl InlineSlots {
    /// Copies `data` to the next slot and returns the index of the slot. The queue holds at most
    /// `requests` requests, each with at most `stride` bytes of inline data.
    #[inline]
    fn store(&mut self, data: &[u8], requests: u32, stride: u32) -> u32 {
        if self.bytes.is_empty() {
            // Allocated at the first use: only a queue that sends inline data needs the memory.
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
    /// The path of a datagram, copied from its address handle at posting.
    pub(crate) path: AddressVector,
    /// Bytes to send, or to read.
    pub(crate) bytes: u64,
    /// The first PSN; valid once the request was started.
    pub(crate) psn: Psn,
    /// The number of PSNs. 0 until the request is started, and for local operations.
    pub(crate) packets: u32,
    /// The send sequence number (SSN), for credits.
    pub(crate) ssn: Psn,
    /// The bytes and packets of the read or atomic response received so far.
    pub(crate) answered: u64,
    pub(crate) answered_packets: u32,
    /// The request cannot be sent. It completes with this error after the requests before it.
    pub(crate) local_error: Option<CompletionStatus>,
    /// The response to a read or an atomic is complete, or a local operation was executed.
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

    /// Whether the request is executed in the adapter, without a packet.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self.op, SendOp::Bind(_) | SendOp::LocalInvalidate(_) | SendOp::Nop)
    }

    pub(crate) const fn is_untouched(&self) -> bool {
        self.packets == 0 && !self.done
    }

    /// Whether the request consumes a receive at the peer.
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

    /// Fetches receives from `source` until `receives` holds `count_max`. Returns whether it
    /// fetched any.
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
    /// Where the adapter fetches receives, if the consumer does not post them by calls.
    pub(crate) source: Option<Box<dyn RecvSource>>,
    pub(crate) requests_max: usize,
    pub(crate) sges_max: usize,
    /// The SRQ limit: an event is queued once fewer receives are left. 0 disables the event.
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
    /// The queue has overrun and takes no more completions (IBA 10.2.5.2).
    pub(crate) is_lost: bool,
    armed: Option<Arm>,
    /// A completion of the armed kind was added, and the consumer has not taken the notification.
    pub(crate) is_notified: bool,
    /// The number of completions that were added after the last solicited or failed one.
    /// `usize::MAX` if there was none.
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

    /// Changes the capacity. Returns `false`, without a change, if the queue holds more
    /// completions.
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

    /// Arms the queue for the next completion of this kind. If it is armed for any completion
    /// already, it stays so.
    pub(crate) fn arm(&mut self, arm: Arm) {
        if self.armed != Some(Arm::Any) {
            self.armed = Some(arm);
        }
        self.is_notified = false;
    }
}
