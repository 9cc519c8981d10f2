//! Streams: as many messages as may be under way, on all queue pairs in turn, one way or both ways.
//!
//! ```text
//!   client                                       server
//!     posts, and takes completions  ==========>    receives (or its device executes them)
//!     counts of what it posted  -------------->    waits for the rest of it
//!     <--------------------------------------     what it received, and what it posted
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

/// Messages that have not arrived after this time without any other are lost.
const LOSS_TIMEOUT: Duration = Duration::from_millis(250);

pub struct Stream<'a, D: Device + ?Sized> {
    pub plan: &'a Plan,
    pub end: &'a mut VerbsEnd<D>,
    pub other: &'a EndAddress,
    pub buffers: &'a mut MessageBuffers,
}

/// What a queue pair has sent.
#[derive(Clone, Copy, Debug, Default)]
struct FlowCounts {
    posted: u64,
    done: u64,
}

struct Counts {
    /// By queue pair.
    flows: Vec<FlowCounts>,
    /// The queue pair of the next messages.
    next: usize,
    received: u64,
    depth: u64,
    list: u64,
    every: u64,
    /// The messages of a call that go inline.
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
    /// Plays a role. Only a client has an outcome, which is of both ways.
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
            // They are done: the client has their completions. On an unreliable connection, that
            // says nothing of their arrival.
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
        // The client may still need this end's device.
        self.serve(counts, exchange, false)?;
        exchange.receive::<()>()?;
        exchange.send(&counts.received)
    }

    /// Goes on until the other end has sent a message.
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

    /// Until all that was posted is done.
    fn finish_sends(&mut self, counts: &mut Counts) -> Result<(), PerfError> {
        for qp in 0..counts.flows.len() {
            // The last messages may have no completion of their own.
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

    /// Until so many messages have arrived, or no more does.
    fn finish_receives(&mut self, counts: &mut Counts, expected: u64) -> Result<(), PerfError> {
        self.wait_until(counts, LOSS_TIMEOUT, |counts| counts.received >= expected).map(drop)
    }

    /// Whether it is over before a time without progress.
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

    /// Posts to the next queue pair if that has space and so many messages are due; returns how
    /// many it has posted.
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

    /// Polls, and takes what is there; returns how many messages of this end are done.
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

/// The next request of a queue pair: its operation, the offset here, and its number.
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
