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
//! The queue holds the requests in their order; `next` and `packet` say what is sent next, `acked`
//! up to which number all is acknowledged. Going back only moves `next` and `packet`, so what is
//! sent again is made again from the memory, as hardware does. An unreliable connection waits for
//! nothing: its requests complete with their last packet.

mod answers;
mod sending;

use super::Shared;
use super::outlet::Outlet;
use super::qp::{Common, Sent};
use super::queue::{InlineSlots, Kept, SendWork};
use crate::frame::{Arrival, COPY_BYTES_MAX, Outgoing, Payload, Source};
use crate::hca::memory::Pieces;
use crate::hca::port::Drop;
use crate::time::Time;
use pollux_verbs::work::{Remote, SendOp};
use pollux_verbs::{
    AddressVector, AsyncEvent, Completion, CompletionKind, CompletionStatus, QpAttributes, QpInit,
    QpState, QpType, SendFlags, SendRequest, With,
};
use pollux_wire::packet::{
    Aeth, AtomicEth, Extended, Ieth, ImmDt, NakCode, Operation, Reth, RnrTimer, Syndrome,
};
use pollux_wire::psn::Psn;
use std::collections::VecDeque;
use std::time::Duration;

/// Packets that may be unacknowledged: enough to fill a link, few enough to send again.
const UNACKED_PACKETS_MAX: u32 = 256;
/// Numbers that may be given out and unacknowledged, unless it is one message that takes more: the
/// longest takes 2^23, and two numbers that far apart still have an order (IBA 9.7.1).
const UNACKED_PSNS_MAX: u32 = 1 << 22;
/// An acknowledgement is asked for at the end of a message, and within it this often.
const PACKETS_PER_ACK: u32 = 64;
/// What an atomic operation works on.
const ATOMIC_BYTES: u64 = 8;

#[derive(Debug, Default)]
pub(crate) struct Requester {
    queue: VecDeque<SendWork>,
    /// Which request is sent next, and how many of its packets were sent.
    next: usize,
    packet: u32,
    /// The number that the next new message begins with.
    psn: Psn,
    /// The number behind the last one sent, which no answer can be beyond.
    sent_end: Psn,
    /// All before it is acknowledged.
    acked: Psn,
    /// The place of the next message among all.
    ssn: Psn,
    /// The last message that the peer's credits allow; none if they are not counted.
    ssn_allowed: Option<Psn>,
    /// How many messages the peer has said to have completed.
    msn_told: Psn,
    retries_left: u8,
    rnr_retries_left: u8,
    /// No sending before: the peer had no receive.
    rnr_until: Option<Time>,
    /// An answer is due.
    ack_deadline: Option<Time>,
    /// When we began to wait for it, by a clock that may have been read long before.
    ack_awaited: Time,
    /// Why the oldest request has failed.
    failed: Option<CompletionStatus>,
    /// Draining, and whether to tell when done.
    draining: Option<bool>,
    /// Lost answers have been asked for again, and nothing has come of it yet.
    asked_again: bool,
    /// The gap that the peer told of last, and that nothing has come of yet.
    gap_told: Option<Psn>,
    inline: InlineSlots,
    /// Requests in the queue whose answers with data have not come.
    answers_due: u32,
}

impl Requester {
    /// The queue pair may send from now on.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        self.psn = attributes.sq_psn.unwrap_or_default();
        self.acked = self.psn;
        self.sent_end = self.psn;
        self.restore_retries(attributes);
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    #[inline(always)]
    pub(crate) fn post(&mut self, request: &SendRequest<'_>, path: AddressVector, init: &QpInit) {
        let work = SendWork::new(request, path, &mut self.inline, init);
        self.answers_due += u32::from(work.needs_answer());
        self.queue.push_back(work);
    }

    /// Whether a message may be sent at once, before it is in the queue.
    #[inline(always)]
    pub(crate) fn is_clear(&self, common: &Common) -> bool {
        self.next == self.queue.len()
            && self.next < common.init.send_requests_max as usize
            && self.failed.is_none()
            && self.rnr_until.is_none()
            && self.draining.is_none()
            && (self.psn.since(self.acked) as u32) < UNACKED_PACKETS_MAX
            && self.ssn_allowed.is_none_or(|last| !last.is_before(self.ssn))
    }

    /// A message of one packet has been sent at once.
    #[inline(always)]
    pub(crate) fn sent_usual(&mut self, common: &Common, request: &SendRequest<'_>, now: Time) {
        let mut work =
            SendWork::new(request, AddressVector::default(), &mut self.inline, &common.init);
        (work.psn, work.packets, work.ssn) = (self.psn, 1, self.ssn);
        self.queue.push_back(work);
        self.next += 1;
        (self.psn, self.ssn) = (self.psn.plus(1), self.ssn.plus(1));
        self.sent_end = self.psn;
        if self.ack_deadline.is_none() {
            self.start_timer(common, now);
        }
    }

    /// A message of one packet has been sent at once, and nothing more will be heard of it.
    #[inline(always)]
    pub(crate) fn sent_unreliable(
        &mut self,
        common: &Common,
        shared: &mut Shared,
        request: &SendRequest<'_>,
    ) {
        self.psn = self.psn.plus(1);
        (self.acked, self.sent_end) = (self.psn, self.psn);
        if common.init.signal_all || request.flags.has(SendFlags::SIGNALED) {
            let completion = Completion {
                id: request.id,
                status: CompletionStatus::Success,
                kind: CompletionKind::Send,
                qpn: common.qpn,
                bytes: 0,
                with: With::Nothing,
                from: None,
            };
            common.complete(shared, common.init.send_cq, completion, false);
        }
    }

    /// Takes an acknowledgement, if nothing but messages waits for one.
    #[inline(always)]
    pub(crate) fn take_usual_ack(
        &mut self,
        common: &Common,
        shared: &mut Shared,
        now: Time,
        psn: Psn,
        aeth: Aeth,
    ) -> bool {
        let awaited = !psn.is_before(self.acked) && psn.is_before(self.sent_end);
        if !awaited || self.answers_due > 0 || self.failed.is_some() {
            return false;
        }
        self.take_credits(aeth.syndrome, aeth.msn);
        self.progress(common, shared, now, psn.plus(1));
        true
    }

    /// Whether requests wait to be sent.
    #[inline(always)]
    pub(crate) fn has_more(&self) -> bool {
        self.next < self.queue.len()
    }

    /// Begins nothing new; tells when what was begun is done, if asked to.
    pub(crate) fn drain(&mut self, common: &Common, shared: &mut Shared, tell: bool) {
        self.draining = Some(tell);
        self.retire(common, shared);
    }

    pub(crate) fn resume(&mut self) {
        self.draining = None;
    }

    /// The oldest request.
    pub(crate) fn front(&self) -> Option<&SendWork> {
        self.queue.front()
    }

    /// What was posted inline to this slot.
    #[inline]
    pub(crate) fn inline(&self, slot: u32, bytes: usize) -> &[u8] {
        self.inline.get(slot, bytes)
    }

    /// The number of the next packet.
    pub(crate) fn psn(&self) -> Psn {
        self.psn
    }

    /// The oldest request has failed.
    pub(crate) fn fail(&mut self, status: CompletionStatus) {
        self.failed = Some(status);
    }

    /// The oldest request, a datagram, is on its way: nothing more will be heard of it.
    pub(crate) fn finish_datagram(&mut self, common: &Common, shared: &mut Shared) {
        self.psn = self.psn.plus(1);
        (self.acked, self.sent_end) = (self.psn, self.psn);
        if let Some(work) = self.queue.front() {
            complete(common, shared, work, CompletionStatus::Success);
            drop(self.queue.pop_front());
        }
    }

    /// When something is to be done, if nothing comes before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.rnr_until.or(self.ack_deadline)
    }

    /// Whether the oldest request has failed because it was tried as often as it may.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.failed == Some(CompletionStatus::RetryExceeded)
    }

    /// The peer is elsewhere from now on: what it has not acknowledged goes there, as often as
    /// before. A peer that had no receive still needs its time.
    pub(crate) fn begin_again(&mut self, attributes: &QpAttributes) {
        // What failed for another reason fails anywhere.
        if self.is_exhausted() {
            self.failed = None;
        }
        self.asked_again = false;
        self.gap_told = None;
        self.restore_retries(attributes);
        self.ack_deadline = None;
        self.go_back(self.acked);
    }

    /// Whether the oldest request has failed, and the queue pair with it.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// All requests end.
    pub(crate) fn flush(&mut self, common: &Common, shared: &mut Shared) {
        let mut status = self.failed.take().unwrap_or(CompletionStatus::Flushed);
        while let Some(work) = self.queue.pop_front() {
            complete(common, shared, &work, status);
            status = CompletionStatus::Flushed;
        }
        // Numbers and budgets go on where a queue pair recovers from its error (IBA 10.3.1.6).
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

    /// Does at `next` what never leaves the adapter.
    fn carry_out_local(&mut self, common: &Common, shared: &mut Shared) {
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
                self.break_off(common, status);
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
            let broken = self.queue.front().and_then(|work| work.broken);
            self.failed = self.failed.or(broken);
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

    /// All before `upto` is acknowledged, but for answers with data that have not come: of those an
    /// answer to something later only says that they are lost (IBA 9.9.2.2).
    fn progress(&mut self, common: &Common, shared: &mut Shared, now: Time, upto: Psn) {
        let lost = self.first_unanswered().filter(|lost| lost.is_before(upto));
        let upto = lost.unwrap_or(upto);
        if !self.acked.is_before(upto) {
            return;
        }
        self.acked = upto;
        self.asked_again = false;
        self.gap_told = None;
        self.restore_retries(&common.attributes);
        self.start_timer(common, now);
        // What was to be sent again may have been acknowledged meanwhile.
        if let Some(work) = self.queue.get(self.next)
            && work.packets > 0
            && work.psn.plus(self.packet).is_before(upto)
        {
            self.go_back(upto);
        }
        self.retire(common, shared);
    }

    /// Everything from `psn` on is sent again.
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

    /// Sends again from `psn` on, if that may be done once more.
    fn retry(&mut self, psn: Psn) {
        if self.retries_left == 0 {
            self.failed = Some(CompletionStatus::RetryExceeded);
            return;
        }
        self.retries_left -= 1;
        self.ack_deadline = None;
        self.go_back(psn);
    }

    /// Looks at the clock: an answer may be overdue. Where nobody had looked since we began to wait
    /// for it, the wait begins now, once.
    pub(crate) fn handle_timeout(&mut self, common: &Common, before: Time, now: Time) {
        // A wait that is over must not stay the deadline, or the timer fires at it for ever.
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
            self.asked_again = false;
            self.gap_told = None;
            self.retry(self.acked);
        }
    }
}

/// 4.096 us * 2^code; code 0 is for ever (IBA 9.7.6.1.3).
fn ack_timeout(code: u8) -> Option<Duration> {
    let code = code & 31;
    (code > 0).then(|| Duration::from_nanos(4096 << code))
}

fn complete(common: &Common, shared: &mut Shared, work: &SendWork, status: CompletionStatus) {
    let good = status == CompletionStatus::Success;
    if good && !common.init.signal_all && !work.flags.has(SendFlags::SIGNALED) {
        return;
    }
    let completion = Completion {
        id: work.id,
        status,
        kind: work.op.kind(),
        qpn: common.qpn,
        bytes: if work.needs_answer() { work.bytes as u32 } else { 0 },
        with: With::Nothing,
        from: None,
    };
    common.complete(shared, common.init.send_cq, completion, false);
}
