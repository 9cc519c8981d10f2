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
//! The queue holds the requests in order; `next` and `packet` are the position of sending, `acked`
//! is the first PSN that is not acknowledged. Going back only moves `next` and `packet`:
//! retransmitted packets are built again from memory, as in hardware. On an unreliable connection,
//! requests complete with their last packet.

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

/// Unacknowledged packets, at most: enough to fill a link, few enough to retransmit.
const UNACKED_PACKETS_MAX: u32 = 256;
/// Unacknowledged PSNs, at most, except for a single message with more: the longest has 2^23, and
/// two PSNs at that distance still have an order (IBA 9.7.1).
const UNACKED_PSNS_MAX: u32 = 1 << 22;
/// Packets between acknowledge requests within a message; the last packet always has one.
const PACKETS_PER_ACK: u32 = 64;
/// Bytes of an atomic operation.
const ATOMIC_BYTES: u64 = 8;

#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub(crate) queue: VecDeque<SendWork>,
    /// The next request to send, and its packets sent so far.
    next: usize,
    packet: u32,
    /// The first PSN of the next new message.
    pub(crate) psn: Psn,
    /// The PSN behind the last one sent; answers beyond it are invalid.
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
    /// The start of the ACK timer, by a clock reading that may be old.
    ack_awaited: Time,
    /// The error of the oldest request.
    pub(crate) failed: Option<CompletionStatus>,
    /// Draining, and whether an event is to be sent at the end.
    pub(crate) draining: Option<bool>,
    /// Lost answers were requested again, without progress so far.
    requested_again: bool,
    /// The PSN of the last NAK sequence error; `None` after progress.
    nak_psn: Option<Psn>,
    pub(crate) inline: InlineSlots,
    /// Requests in the queue whose answers with data have not come.
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

    /// Starts no new request; sends an event when started ones are done, if requested (SQD).
    pub(crate) fn drain(&mut self, common: &Common, shared: &mut Shared, wants_event: bool) {
        self.draining = Some(wants_event);
        self.retire(common, shared);
    }

    /// Completes the oldest request, a datagram that was sent.
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

    /// Resends unacknowledged requests by a new path, with full retries. The RNR timer still runs.
    pub(crate) fn restart(&mut self, attributes: &QpAttributes) {
        // Other failures do not depend on the path.
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
        // PSNs and retries stay valid if the queue pair recovers from its error (IBA 10.3.1.6).
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

    /// Executes local operations at `next`.
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

    /// Completes what is done, in order.
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

    /// Acknowledges everything before `upto`, except for missing answers with data: a later answer
    /// shows that they are lost (IBA 9.9.2.2).
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
        // Packets to retransmit may have been acknowledged meanwhile.
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

    /// Checks both timers. If the clock was not read since the request was sent, restarts the ACK
    /// timer once from now.
    pub(crate) fn handle_timeout(&mut self, common: &Common, before: Time, now: Time) {
        // An expired timer must not stay the deadline, or it fires forever.
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
