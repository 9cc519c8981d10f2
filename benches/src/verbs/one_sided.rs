//! Latencies of RDMA writes, RDMA reads and atomics. For reads and atomics, the client accesses the
//! memory of the server, which only polls its device. For writes, both ends write in turn, and each
//! waits until the message of the other end appears in its memory.
//!
//! Both ends have the same memory layout, so a slot has the same offset at both ends.

use super::buffers::MessageBuffers;
use super::end::{EndAddress, VerbsEnd};
use super::stream::request;
use super::{POLLS_IDLE, TIMEOUT, flags, not_done};
use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::plan::{EndRole, MeasurementOutcome, Plan};
use crate::samples::{Latency, ping_pong};
use crate::verbs_plan::VerbsOp;
use pollux_verbs::{Completion, Device, SendFlags};
use std::time::Instant;

/// One end of a latency measurement with RDMA writes, RDMA reads or atomics.
pub struct RemoteAccess<'a, D: Device + ?Sized> {
    pub plan: &'a Plan,
    pub end: &'a mut VerbsEnd<D>,
    pub other: &'a EndAddress,
    pub buffers: &'a mut MessageBuffers,
}

impl<D: Device + ?Sized> RemoteAccess<'_, D> {
    /// Runs one end. Only the client returns an outcome.
    pub fn play(
        mut self,
        role: EndRole,
        exchange: &mut Exchange,
    ) -> Result<Option<MeasurementOutcome>, PerfError> {
        match (role, self.plan.verbs.op) {
            (EndRole::Client, VerbsOp::Write) => self.ping().map(Some),
            (EndRole::Client, _) => self.one_by_one().map(Some),
            (EndRole::Server, VerbsOp::Write) => self.pong(exchange).map(|()| None),
            (EndRole::Server, _) => self.serve(exchange).map(|()| None),
        }
    }

    /// The queue pair of the message with a number, and the message's number on that queue pair.
    fn turn(&self, number: u64) -> (usize, u64) {
        let qps = u64::from(self.plan.verbs.qps);
        ((number % qps) as usize, number / qps)
    }

    /// The number of the first message, which is message 1 of the first queue pair. Zeroed memory
    /// may look like message 0.
    fn first(&self) -> u64 {
        self.plan.verbs.qps.into()
    }

    /// Posts the next request of a queue pair.
    fn post(&mut self, qp: usize, flags: SendFlags) -> Result<(), PerfError> {
        let (op, at, _) = request(self.plan, self.end, self.other, self.buffers, qp);
        self.end.post_from((qp, op, flags), &self.buffers.memory, (at, self.plan.bytes))
    }

    /// Measures reads or atomics, one at a time.
    #[expect(clippy::disallowed_methods, reason = "requests may be lost")]
    fn one_by_one(&mut self) -> Result<MeasurementOutcome, PerfError> {
        let mut number = 0;
        let latency = ping_pong(self.plan.duration, self.plan.per_second, || {
            let (qp, number_there) = self.turn(number);
            self.post(qp, SendFlags::SIGNALED)?;
            let (mut out, mut posted_at) = ([Completion::NOTHING], None);
            for poll in 1u32.. {
                if self.end.poll(&mut out)? == 1 {
                    break;
                }
                if poll.is_multiple_of(POLLS_IDLE) {
                    std::thread::yield_now();
                    if posted_at.get_or_insert_with(Instant::now).elapsed() > TIMEOUT {
                        return Err(not_done());
                    }
                }
            }
            self.buffers.check_fetched(self.plan.verbs.op, qp, number_there);
            number += 1;
            Ok(())
        })?;
        Ok(MeasurementOutcome::Latency(match self.plan.per_second {
            Some(_) => latency,
            None => latency.of_whole_round_trips(),
        }))
    }

    /// Waits until the message with a number appears in this end's memory. Returns `false` if
    /// `is_over` returns true first.
    fn wait_for(
        &mut self,
        (qp, number): (usize, u64),
        mut is_over: impl FnMut() -> bool,
    ) -> Result<bool, PerfError> {
        for poll in 1u32.. {
            if self.buffers.has_arrived(qp, number) {
                return Ok(true);
            }
            // Polling makes the device execute the other end's writes and complete this end's
            // writes.
            self.end.poll(&mut [Completion::NOTHING; 4])?;
            if poll.is_multiple_of(POLLS_IDLE) {
                std::thread::yield_now();
                if is_over() {
                    break;
                }
            }
        }
        Ok(false)
    }

    #[expect(clippy::disallowed_methods, reason = "messages may be lost")]
    fn ping(&mut self) -> Result<MeasurementOutcome, PerfError> {
        let mut number = self.first();
        let latency: Latency = ping_pong(self.plan.duration, self.plan.per_second, || {
            let (qp, number_there) = self.turn(number);
            self.post(qp, flags(number_there))?;
            number += 1;
            let mut posted_at = None;
            let is_late = || posted_at.get_or_insert_with(Instant::now).elapsed() > TIMEOUT;
            match self.wait_for((qp, number_there), is_late)? {
                true => self.buffers.check_arrived(qp, number_there),
                false => return Err(not_done()),
            }
            Ok(())
        })?;
        Ok(MeasurementOutcome::Latency(latency))
    }

    fn pong(&mut self, exchange: &mut Exchange) -> Result<(), PerfError> {
        let mut number = self.first();
        loop {
            let (qp, number_there) = self.turn(number);
            if !self.wait_for((qp, number_there), || exchange.is_over())? {
                return Ok(());
            }
            self.post(qp, flags(number_there))?;
            self.buffers.check_arrived(qp, number_there);
            number += 1;
        }
    }

    /// Polls the device, which executes the client's requests, until the client has finished.
    fn serve(&mut self, exchange: &mut Exchange) -> Result<(), PerfError> {
        while !exchange.is_over() {
            for _ in 0..POLLS_IDLE {
                self.end.poll(&mut [Completion::NOTHING; 4])?;
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}
