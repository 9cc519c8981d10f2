//! The sending half of a connection: requests out, acknowledgements in (IBA 9.7.7, 9.9.2).
//!
//! ```text
//!            begin          last packet sent          acknowledged
//!   posted --------> sending ---------------> waiting ------------> completed
//!                      ^                         |
//!                      |   go back to a PSN:     |
//!                      +-------------------------+
//!                          time-out, NAK 0, RNR NAK, a gap in the answers
//! ```
//!
//! The queue holds the requests in order. `next` and `packet` are the position of transmission, and
//! `acked` is the first PSN that is not acknowledged. Going back only moves `next` and `packet`:
//! the requester builds retransmitted packets again from the consumer's memory, as hardware does.
//! On an unreliable connection, a request completes when its last packet is sent.

mod answers;
mod fast_path;
mod sending;

use super::Shared;
use super::common::{Common, Sent};
use super::outlet::Outlet;
use super::queue::{InlineSlots, SendWork, StoredData};
use crate::frame::{Arrival, FrameToSend, Payload, PayloadSource};
use crate::memory::Pieces;
use crate::port::DropReason;
use pollux_verbs::time::Time;
use pollux_verbs::work::{Remote, SendOp};
use pollux_verbs::{
    AddressVector, AsyncEvent, Completion, CompletionKind, CompletionStatus, QpAttributes, QpInit,
    QpState, QpType, SendFlags, SendRequest,
};
use pollux_wire::packet::{
    Aeth, AtomicEth, Extended, Ieth, ImmDt, NakCode, Operation, Reth, RnrTimer, Syndrome,
};
use pollux_wire::psn::Psn;
use std::collections::VecDeque;
use std::time::Duration;

/// The maximum number of unacknowledged packets: enough to fill a link, and few enough to
/// retransmit.
const UNACKED_PACKETS_MAX: u32 = 256;
/// The maximum number of unacknowledged PSNs. A single message may exceed it: the longest has 2^23
/// PSNs, and two PSNs at that distance can still be ordered (IBA 9.7.1).
const UNACKED_PSNS_MAX: u32 = 1 << 22;
/// The number of packets between acknowledge requests (AckReq) within a message. The last packet
/// always has one.
const PACKETS_PER_ACK: u32 = 64;
/// The length of the operand of an atomic operation, in bytes.
const ATOMIC_BYTES: u64 = 8;

#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub(crate) queue: VecDeque<SendWork>,
    /// The index of the next request to send, and the number of its packets that were sent.
    next: usize,
    packet: u32,
    /// The first PSN of the next new message.
    pub(crate) psn: Psn,
    /// The PSN after the last one sent. Responses from this PSN on are invalid.
    sent_end: Psn,
    /// The first PSN that is not acknowledged.
    acked: Psn,
    /// The SSN of the next message.
    ssn: Psn,
    /// The last SSN that the peer's credits allow; `None` without flow control.
    ssn_allowed: Option<Psn>,
    /// The newest MSN of the peer.
    peer_msn: Psn,
    retries_left: u8,
    rnr_retries_left: u8,
    /// The RNR timer.
    rnr_until: Option<Time>,
    /// The ACK timer.
    ack_deadline: Option<Time>,
    /// The start of the ACK timer. It is a clock reading that may be old.
    ack_awaited: Time,
    /// The error with which the oldest request fails.
    pub(crate) failed: Option<CompletionStatus>,
    /// `Some` while the send queue drains (SQD). `Some(true)` if an event is to be queued at the
    /// end.
    pub(crate) draining: Option<bool>,
    /// A lost response was requested again, and there was no progress since.
    requested_again: bool,
    /// The PSN of the last NAK for a PSN sequence error. `None` after progress.
    nak_psn: Option<Psn>,
    pub(crate) inline: InlineSlots,
    /// The number of queued reads and atomics without a complete response.
    answers_due: u32,
}

impl Requester {
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        self.psn = attributes.sq_psn.unwrap_or_default();
        self.acked = self.psn;
        self.sent_end = self.psn;
        self.restore_retries(attributes);
    }

    #[inline(always)]
    pub(crate) fn post(&mut self, request: &SendRequest<'_>, path: AddressVector, init: &QpInit) {
        let work = SendWork::new(request, path, &mut self.inline, init);
        self.answers_due += u32::from(work.needs_answer());
        self.queue.push_back(work);
    }

    #[inline(always)]
    pub(crate) fn has_more(&self) -> bool {
        self.next < self.queue.len()
    }

    /// Stops the start of new requests (SQD). With `wants_event`, queues the SendQueueDrained event
    /// when all started requests are complete.
    pub(crate) fn drain(&mut self, common: &Common, shared: &mut Shared, wants_event: bool) {
        self.draining = Some(wants_event);
        self.retire(common, shared);
    }

    /// Completes the oldest request, which is a datagram that was sent.
    pub(crate) fn finish_datagram(&mut self, common: &Common, shared: &mut Shared) {
        self.psn = self.psn.plus(1);
        (self.acked, self.sent_end) = (self.psn, self.psn);
        if let Some(work) = self.queue.front() {
            complete(common, shared, work, CompletionStatus::Success);
            drop(self.queue.pop_front());
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.rnr_until.or(self.ack_deadline)
    }

    /// Whether the oldest request has failed because its retries are used up.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.failed == Some(CompletionStatus::RetryExceeded)
    }

    /// Retransmits unacknowledged requests along a new path, with all retries restored. A running
    /// RNR timer continues.
    pub(crate) fn restart(&mut self, attributes: &QpAttributes) {
        // Failures other than exhausted retries do not depend on the path, so they stay.
        if self.is_exhausted() {
            self.failed = None;
        }
        self.requested_again = false;
        self.nak_psn = None;
        self.restore_retries(attributes);
        self.ack_deadline = None;
        self.go_back(self.acked);
    }

    pub(crate) fn flush(&mut self, common: &Common, shared: &mut Shared) {
        let mut status = self.failed.take().unwrap_or(CompletionStatus::Flushed);
        while let Some(work) = self.queue.pop_front() {
            complete(common, shared, &work, status);
            status = CompletionStatus::Flushed;
        }
        // The queue pair may recover from SQE, so PSNs and retry counts must stay valid (IBA
        // 10.3.1.6).
        *self = Self {
            psn: self.psn,
            acked: self.psn,
            sent_end: self.psn,
            retries_left: self.retries_left,
            rnr_retries_left: self.rnr_retries_left,
            inline: std::mem::take(&mut self.inline),
            ..Self::default()
        };
    }

    fn restore_retries(&mut self, attributes: &QpAttributes) {
        self.retries_left = attributes.retry_count.map_or(0, |count| count.get());
        self.rnr_retries_left = attributes.rnr_retry.map_or(0, |count| count.get());
    }

    /// Executes the local operation at `next`.
    fn execute_local(&mut self, common: &Common, shared: &mut Shared) {
        let work = &mut self.queue[self.next];
        if !work.done {
            let outcome = match &work.op {
                SendOp::Bind(bind) => shared.memory.bind(common.init.pd, bind),
                SendOp::LocalInvalidate(rkey) => shared.memory.invalidate(common.init.pd, *rkey),
                _ => Ok(()),
            };
            if outcome.is_err() {
                let is_bind = matches!(work.op, SendOp::Bind(_));
                let status = if is_bind {
                    CompletionStatus::WindowBind
                } else {
                    CompletionStatus::LocalProtection
                };
                self.set_local_error(common, status);
                return;
            }
            work.done = true;
        }
        self.next += 1;
        self.retire(common, shared);
    }

    /// Completes the finished requests at the front of the queue, in order.
    fn retire(&mut self, common: &Common, shared: &mut Shared) {
        while self.next > 0 {
            let Some(work) = self.queue.front() else { break };
            let is_over = match (work.is_local(), work.needs_answer()) {
                (true, _) => work.done,
                (false, answer) => !self.acked.is_before(work.end()) && (work.done || !answer),
            };
            if !is_over {
                break;
            }
            complete(common, shared, work, CompletionStatus::Success);
            drop(self.queue.pop_front());
            self.next -= 1;
        }
        if self.next == 0 && self.packet == 0 {
            let local_error = self.queue.front().and_then(|work| work.local_error);
            self.failed = self.failed.or(local_error);
        }
        if self.draining == Some(true) && self.queue.front().is_none_or(SendWork::is_untouched) {
            self.draining = Some(false);
            shared.events.push_back(AsyncEvent::SendQueueDrained(common.handle));
        }
    }

    fn start_timer(&mut self, common: &Common, now: Time) {
        self.ack_awaited = now;
        let outstanding = self.acked != self.sent_end;
        let timeout = common.attributes.timeout.and_then(|code| ack_timeout(code.0));
        self.ack_deadline = timeout.filter(|_| outstanding).map(|timeout| now + timeout);
    }

    /// Marks everything before `upto` as acknowledged, but not beyond a missing read or atomic
    /// response: a later response shows that it was lost (IBA 9.9.2.2).
    fn advance_acked(&mut self, common: &Common, shared: &mut Shared, now: Time, upto: Psn) {
        let lost = self.first_unanswered().filter(|lost| lost.is_before(upto));
        let upto = lost.unwrap_or(upto);
        if !self.acked.is_before(upto) {
            return;
        }
        self.acked = upto;
        self.requested_again = false;
        self.nak_psn = None;
        self.restore_retries(&common.attributes);
        self.start_timer(common, now);
        // Packets that were still to be retransmitted may be acknowledged now: skip them.
        if let Some(work) = self.queue.get(self.next)
            && work.packets > 0
            && work.psn.plus(self.packet).is_before(upto)
        {
            self.go_back(upto);
        }
        self.retire(common, shared);
    }

    /// Retransmits everything from `psn` on.
    fn go_back(&mut self, psn: Psn) {
        for (index, work) in self.queue.iter().enumerate() {
            if work.packets > 0 && psn.is_before(work.end()) {
                self.next = index;
                self.packet = psn.since(work.psn).max(0) as u32;
                return;
            }
            if work.packets == 0 && !work.done {
                self.next = index;
                self.packet = 0;
                return;
            }
        }
        self.next = self.queue.len();
        self.packet = 0;
    }

    /// Retransmits from `psn` on, if a retry is left.
    fn retry(&mut self, psn: Psn) {
        if self.retries_left == 0 {
            self.failed = Some(CompletionStatus::RetryExceeded);
            return;
        }
        self.retries_left -= 1;
        self.ack_deadline = None;
        self.go_back(psn);
    }

    /// Checks both timers. If the ACK timer was started at the clock reading `before` or later, its
    /// start is not exact, so it is restarted once from now.
    pub(crate) fn handle_timeout(&mut self, common: &Common, before: Time, now: Time) {
        // An expired RNR timer is cleared. Otherwise it would stay the deadline and fire forever.
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
            return;
        }
        if self.ack_deadline.is_some_and(|deadline| deadline <= now) && self.rnr_until.is_none() {
            if self.ack_awaited >= before {
                self.start_timer(common, now);
                self.ack_awaited = Time::START;
                return;
            }
            self.requested_again = false;
            self.nak_psn = None;
            self.retry(self.acked);
        }
    }
}

/// 4.096 us * 2^code; code 0 is no timeout (IBA 9.7.6.1.3).
fn ack_timeout(code: u8) -> Option<Duration> {
    let code = code & 31;
    (code > 0).then(|| Duration::from_nanos(4096 << code))
}

fn complete(common: &Common, shared: &mut Shared, work: &SendWork, status: CompletionStatus) {
    let good = status == CompletionStatus::Success;
    if good && !common.init.signal_all && !work.flags.has(SendFlags::SIGNALED) {
        return;
    }
    let bytes = if work.needs_answer() { work.bytes as u32 } else { 0 };
    let completion = common.completion(work.id, status, work.op.kind());
    let completion = Completion { bytes, ..completion };
    common.complete(shared, common.init.send_cq, completion, false);
}
