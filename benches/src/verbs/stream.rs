//! Streams: messages posted up to the queue depth, on all queue pairs in turn, in one direction or
//! in both.
//!
//! ```text
//!   client                                       server
//!     posts and polls completions  ===========>    receives, or its device executes the requests
//!     posted messages of each QP   ----------->    waits for the rest of them
//!     waits for the rest of them   <-----------    number of posted messages
//!     finished                     ----------->
//!                                  <-----------    number of received messages
//! ```

use super::buffers::MessageBuffers;
use super::end::{EndAddress, RecvId, SendId, VerbsEnd};
use super::{POLLS_IDLE, TIMEOUT, not_done};
use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::plan::{EndRole, MeasuredTransport, MeasurementOutcome, Plan};
use crate::samples::{Schedule, per_second};
use crate::verbs_plan::{POST_LIST_MAX, VerbsOp};
use pollux_verbs::{Completion, Data, Device, SendFlags, SendOp, SendRequest};
use std::time::{Duration, Instant};

/// If no message arrives for this time, the missing messages count as lost.
const LOSS_TIMEOUT: Duration = Duration::from_millis(250);

pub struct Stream<'a, D: Device + ?Sized> {
    pub plan: &'a Plan,
    pub end: &'a mut VerbsEnd<D>,
    pub other: &'a EndAddress,
    pub buffers: &'a mut MessageBuffers,
}

/// The messages of a queue pair that this end posted.
#[derive(Clone, Copy, Debug, Default)]
struct FlowCounts {
    posted: u64,
    /// Messages whose completion was polled.
    done: u64,
}

struct Counts {
    /// One per queue pair.
    flows: Vec<FlowCounts>,
    /// The queue pair of the next messages.
    next: usize,
    received: u64,
    /// Messages in flight on each queue pair, at most.
    depth: u64,
    /// Messages that one call posts.
    list: u64,
    /// Messages per completion.
    every: u64,
    /// Inline data of one call; empty if messages are not sent inline.
    inline: Vec<u8>,
}

impl Counts {
    fn posted(&self) -> u64 {
        self.flows.iter().map(|flow| flow.posted).sum()
    }

    fn done(&self) -> u64 {
        self.flows.iter().map(|flow| flow.done).sum()
    }

    fn by_qp(&self) -> Vec<u64> {
        self.flows.iter().map(|flow| flow.posted).collect()
    }
}

impl<D: Device + ?Sized> Stream<'_, D> {
    /// Runs one end. Only the client returns an outcome, which covers both directions.
    pub fn play(
        mut self,
        role: EndRole,
        exchange: &mut Exchange,
    ) -> Result<Option<MeasurementOutcome>, PerfError> {
        let (verbs, bytes) = (&self.plan.verbs, self.plan.bytes);
        let mut counts = Counts {
            flows: vec![FlowCounts::default(); verbs.qps.into()],
            next: 0,
            received: 0,
            depth: verbs.depth(bytes).into(),
            list: verbs.post_list(bytes).into(),
            every: verbs.completion_every(bytes).into(),
            inline: match verbs.op {
                VerbsOp::Send | VerbsOp::Write if self.end.takes_inline(bytes) => {
                    vec![0; POST_LIST_MAX * bytes as usize]
                }
                _ => Vec::new(),
            },
        };
        match role {
            EndRole::Client => self.client(&mut counts, exchange).map(Some),
            EndRole::Server => self.server(&mut counts, exchange).map(|()| None),
        }
    }

    fn client(
        &mut self,
        counts: &mut Counts,
        exchange: &mut Exchange,
    ) -> Result<MeasurementOutcome, PerfError> {
        let mut schedule = Schedule::new(self.plan.per_second);
        let mut posted = 0;
        let rate = per_second(self.plan.duration, || {
            posted += self.send(counts, schedule.due(posted))?;
            let before = counts.received;
            Ok(self.collect(counts)? + counts.received - before)
        })?;
        let mut left = schedule.left(posted);
        while left > 0 {
            left -= self.send(counts, left)?;
            self.collect(counts)?;
        }
        self.finish_sends(counts)?;
        exchange.send(&counts.by_qp())?;
        self.serve(counts, exchange, false)?;
        let theirs: u64 = exchange.receive()?;
        self.finish_receives(counts, theirs)?;
        exchange.send(&())?;
        let received: u64 = exchange.receive()?;
        let (sent, received) = (counts.posted() + theirs, counts.received + received);
        let outcome = MeasurementOutcome::one_way(self.plan, rate.per_second, sent, received);
        Ok(outcome.with_course(rate.timeline, schedule.late_max()))
    }

    fn server(&mut self, counts: &mut Counts, exchange: &mut Exchange) -> Result<(), PerfError> {
        self.serve(counts, exchange, self.plan.verbs.bidirectional)?;
        let theirs: Vec<u64> = exchange.receive()?;
        if theirs.len() != counts.flows.len() {
            return Err(PerfError::OtherEnd("it has another number of queue pairs".into()));
        }
        self.finish_sends(counts)?;
        let op = self.plan.verbs.op;
        match op {
            VerbsOp::Send => self.finish_receives(counts, theirs.iter().sum())?,
            // The client has polled the completions of all its requests. On an unreliable
            // connection, a completion does not mean that the message arrived.
            VerbsOp::Write | VerbsOp::Read | VerbsOp::Atomic => {
                for (qp, done) in theirs.iter().enumerate() {
                    let missing = self.buffers.check_written(op, qp, *done);
                    counts.received += done - missing;
                    if self.plan.transport == MeasuredTransport::Rc {
                        self.buffers.add_wrong(qp, missing);
                    }
                }
            }
        }
        exchange.send(&counts.posted())?;
        // The client may still wait for messages, which this end's device sends when it is polled.
        self.serve(counts, exchange, false)?;
        exchange.receive::<()>()?;
        exchange.send(&counts.received)
    }

    /// Receives messages, and sends if `sends` is set, until the other end sends a control message.
    fn serve(
        &mut self,
        counts: &mut Counts,
        exchange: &mut Exchange,
        sends: bool,
    ) -> Result<(), PerfError> {
        let mut idle = 0;
        loop {
            let posted = if sends { self.send(counts, u64::MAX)? } else { 0 };
            let before = counts.received;
            let done = self.collect(counts)?;
            let is_busy = posted + done > 0 || counts.received > before;
            idle = if is_busy && !sends { 0 } else { idle + 1 };
            if idle >= self.end.idle_polls(POLLS_IDLE) {
                idle = 0;
                std::thread::yield_now();
                if exchange.is_over() {
                    return Ok(());
                }
            }
        }
    }

    /// Waits until all posted messages are done.
    fn finish_sends(&mut self, counts: &mut Counts) -> Result<(), PerfError> {
        for qp in 0..counts.flows.len() {
            // Post messages until the last one is signaled: its completion covers all before it.
            while !counts.flows[qp].posted.is_multiple_of(counts.every) {
                match counts.flows[qp].posted - counts.flows[qp].done < counts.depth {
                    true => self.post(counts, qp, 1)?,
                    false => drop(self.collect(counts)?),
                }
            }
        }
        match self.wait_until(counts, TIMEOUT, |counts| counts.done() == counts.posted())? {
            true => Ok(()),
            false => Err(not_done()),
        }
    }

    /// Waits until `expected` messages have arrived, or none has arrived for [`LOSS_TIMEOUT`].
    fn finish_receives(&mut self, counts: &mut Counts, expected: u64) -> Result<(), PerfError> {
        self.wait_until(counts, LOSS_TIMEOUT, |counts| counts.received >= expected).map(drop)
    }

    /// Polls until `is_over` returns true. Returns false if there is no progress for `timeout`.
    #[expect(clippy::disallowed_methods, reason = "messages may be lost")]
    fn wait_until(
        &mut self,
        counts: &mut Counts,
        timeout: Duration,
        is_over: impl Fn(&Counts) -> bool,
    ) -> Result<bool, PerfError> {
        let mut progress = Instant::now();
        while !is_over(counts) {
            let before = counts.received;
            let mut done = 0;
            for _ in 0..self.end.idle_polls(POLLS_IDLE) {
                done += self.collect(counts)?;
                if is_over(counts) {
                    return Ok(true);
                }
            }
            match done > 0 || counts.received > before {
                true => progress = Instant::now(),
                false if progress.elapsed() > timeout => return Ok(false),
                false => std::thread::yield_now(),
            }
        }
        Ok(true)
    }

    /// Posts one call of messages to the next queue pair, but at most `due`. Returns the number of
    /// posted messages, which is 0 if the depth is reached.
    fn send(&mut self, counts: &mut Counts, due: u64) -> Result<u64, PerfError> {
        let (qp, count) = (counts.next, counts.list.min(due));
        let FlowCounts { posted, done } = counts.flows[qp];
        if count == 0 || posted - done + count > counts.depth {
            return Ok(0);
        }
        counts.next = if qp + 1 == counts.flows.len() { 0 } else { qp + 1 };
        self.post(counts, qp, count)?;
        Ok(count)
    }

    fn post(&mut self, counts: &mut Counts, qp: usize, count: u64) -> Result<(), PerfError> {
        match count {
            1 => self.post_list::<1>(counts, qp, 1),
            _ => self.post_list::<POST_LIST_MAX>(counts, qp, count as usize),
        }
    }

    fn post_list<const MOST: usize>(
        &mut self,
        counts: &mut Counts,
        qp: usize,
        count: usize,
    ) -> Result<(), PerfError> {
        let mut messages = [(SendOp::Send, [self.end.sge(0, 0)]); MOST];
        let (mut flags, bytes) = ([SendFlags::NONE; MOST], self.plan.bytes as usize);
        for nth in 0..count {
            let (op, at, _) = request(self.plan, self.end, self.other, self.buffers, qp);
            messages[nth] = (op, [self.end.sge(at, self.plan.bytes)]);
            if let Some(message) = counts.inline.chunks_exact_mut(bytes).nth(nth) {
                assert!(self.buffers.memory.read(at, message), "messages are within the memory");
            }
            counts.flows[qp].posted += 1;
            if counts.flows[qp].posted.is_multiple_of(counts.every) {
                flags[nth] = SendFlags::SIGNALED;
            }
        }
        let id = SendId { qp, requests: counts.every as u32 }.to_bits();
        let requests: [_; MOST] = std::array::from_fn(|nth| {
            let ((op, sges), inline) = (&messages[nth], counts.inline.chunks_exact(bytes).nth(nth));
            let data = inline.map_or(Data::Sges(sges), Data::Inline);
            SendRequest { id, op: *op, flags: flags[nth], data }
        });
        Ok(self.end.device.post_send(self.end.qps[qp], &requests[..count])?)
    }

    /// Polls once. Processes received messages, and returns the number of this end's messages that
    /// are done.
    fn collect(&mut self, counts: &mut Counts) -> Result<u64, PerfError> {
        let mut out = [Completion::NOTHING; 64];
        let count = self.end.poll_or_sleep(&mut out)?;
        let mut all = 0;
        for one in &out[..count] {
            if one.kind.is_recv() {
                self.buffers.check(one, None);
                self.buffers.receive(self.end, RecvId::of(one))?;
                counts.received += 1;
                continue;
            }
            let id = SendId::of(one);
            let flow = &mut counts.flows[id.qp];
            let before = flow.done;
            flow.done += u64::from(id.requests);
            all += flow.done - before;
            for number in before..flow.done {
                self.buffers.check_fetched(self.plan.verbs.op, id.qp, number);
            }
        }
        Ok(all)
    }
}

/// Prepares the next request of a queue pair. Returns its operation, its offset in this end's
/// memory, and its number.
pub fn request<D: Device + ?Sized>(
    plan: &Plan,
    end: &VerbsEnd<D>,
    other: &EndAddress,
    buffers: &mut MessageBuffers,
    qp: usize,
) -> (SendOp, usize, u64) {
    let (number, at) = buffers.next(qp);
    match plan.verbs.op {
        VerbsOp::Send => (end.op(qp), at, number),
        VerbsOp::Write => (SendOp::Write(other.remote(buffers.written_at(qp, number))), at, number),
        VerbsOp::Read => (SendOp::Read(other.remote(at)), buffers.receive_at(qp, number), number),
        VerbsOp::Atomic => {
            let remote = other.remote(buffers.receive_at(qp, 0));
            (SendOp::FetchAdd { remote, add: 1 }, at, number)
        }
    }
}
