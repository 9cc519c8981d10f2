//! RDMA write and read, and atomics: the client accesses the memory of the server, which only keeps
//! its device running. In a latency of writes both ends write, and each waits until the message of
//! the other is in its memory.
//!
//! Both have the same slots, so that an offset is that of the same slot at the other end.

use super::buffers::MessageBuffers;
use super::end::{EndAddress, VerbsEnd};
use super::{BATCH, POLLS_IDLE, TIMEOUT, serve_until_over};
use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::plan::{EndRole, MeasurementOutcome, Plan, VerbsOp, What};
use crate::samples::{Latency, per_second, ping_pong};
use pollux_verbs::{Completion, Data, Device, SendFlags, SendOp, SendRequest};
use std::time::Instant;

/// Plays a role. Only a client has an outcome.
pub fn play<D: Device + ?Sized>(
    plan: &Plan,
    role: EndRole,
    (end, other): (&mut VerbsEnd<D>, &EndAddress),
    buffers: &mut MessageBuffers,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    let mut access = MemoryAccess { plan, end, other, buffers };
    match (role, plan.what, plan.op) {
        (EndRole::Client, What::Lat, VerbsOp::Write) => access.ping().map(Some),
        (EndRole::Client, What::Lat, _) => access.one_by_one().map(Some),
        (EndRole::Client, ..) => access.stream(exchange).map(Some),
        (EndRole::Server, What::Lat, VerbsOp::Write) => access.pong(exchange).map(|()| None),
        (EndRole::Server, What::Lat, _) => {
            serve_until_over(access.end, exchange)?;
            Ok(None)
        }
        (EndRole::Server, ..) => {
            serve_until_over(access.end, exchange)?;
            let done: u64 = exchange.receive()?;
            access.buffers.check_written(plan.op, done);
            exchange.send(&done)?;
            Ok(None)
        }
    }
}

struct MemoryAccess<'a, D: Device + ?Sized> {
    plan: &'a Plan,
    end: &'a mut VerbsEnd<D>,
    other: &'a EndAddress,
    buffers: &'a mut MessageBuffers,
}

impl<D: Device + ?Sized> MemoryAccess<'_, D> {
    /// The request with a number: its operation, the offset here, and its bytes.
    fn request(&mut self, number: u64) -> (SendOp, usize, u32) {
        let (buffers, bytes) = (&mut *self.buffers, self.plan.bytes);
        let remote = |at: usize| self.other.remote(at);
        match self.plan.op {
            VerbsOp::Send => unreachable!("it accesses no memory"),
            VerbsOp::Write => {
                let at = buffers.write(number);
                (SendOp::Write(remote(buffers.written_at(number))), at, bytes)
            }
            VerbsOp::Read => {
                let at = buffers.receive_at(number);
                (SendOp::Read(remote(buffers.send_at(number))), at, bytes)
            }
            VerbsOp::Atomic => {
                let counter = remote(buffers.receive_at(0));
                (SendOp::FetchAdd { remote: counter, add: 1 }, buffers.send_at(number), 8)
            }
        }
    }

    fn post(&mut self, number: u64, flags: SendFlags) -> Result<(), PerfError> {
        let (op, at, bytes) = self.request(number);
        let sge = [self.end.sge(at, bytes)];
        let request = SendRequest { id: 0, op, flags, data: Data::Sges(&sge) };
        Ok(self.end.device.post_send(self.end.qps[0], &[request])?)
    }

    /// Until a request is done, one after the other.
    #[expect(clippy::disallowed_methods, reason = "requests may be lost")]
    fn one_by_one(&mut self) -> Result<MeasurementOutcome, PerfError> {
        let mut number = 0;
        let latency = ping_pong(self.plan.duration, self.plan.per_second, || {
            self.post(number, SendFlags::SIGNALED)?;
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
            self.buffers.check_fetched(self.plan.op, number);
            number += 1;
            Ok(())
        })?;
        Ok(MeasurementOutcome::Latency(latency.of_whole_round_trips()))
    }

    /// Waits for the message with a number in this memory. `false` if `is_over` is true before.
    fn wait_for(
        &mut self,
        number: u64,
        mut is_over: impl FnMut() -> bool,
    ) -> Result<bool, PerfError> {
        for poll in 1u32.. {
            if self.buffers.has_arrived(number) {
                return Ok(true);
            }
            // This end's device executes the writes of the other, and completes those of this one.
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
        let mut number = 0;
        let latency: Latency = ping_pong(self.plan.duration, self.plan.per_second, || {
            number += 1;
            self.post(number, flags(number))?;
            let mut posted_at = None;
            let is_late = || posted_at.get_or_insert_with(Instant::now).elapsed() > TIMEOUT;
            match self.wait_for(number, is_late)? {
                true => self.buffers.check_arrived(number),
                false => return Err(not_done()),
            }
            Ok(())
        })?;
        Ok(MeasurementOutcome::Latency(latency))
    }

    fn pong(&mut self, exchange: &mut Exchange) -> Result<(), PerfError> {
        let mut number = 1;
        while self.wait_for(number, || exchange.is_over())? {
            self.post(number, flags(number))?;
            self.buffers.check_arrived(number);
            number += 1;
        }
        Ok(())
    }

    /// In batches, of which only the last request is signaled.
    fn stream(&mut self, exchange: &mut Exchange) -> Result<MeasurementOutcome, PerfError> {
        let window = self.buffers.window();
        let batch = (BATCH as u64).min(window / 2);
        let (mut posted, mut done) = (0, 0);
        let rate = per_second(self.plan.duration, || {
            if posted - done + batch <= window {
                for nth in 1..=batch {
                    let flags = if nth == batch { SendFlags::SIGNALED } else { SendFlags::NONE };
                    self.post(posted + nth - 1, flags)?;
                }
                posted += batch;
            }
            let before = done;
            done = self.collect(done, batch)?;
            Ok(done - before)
        })?;
        while done < posted {
            done = self.collect(done, batch)?;
        }
        exchange.send(&posted)?;
        Ok(MeasurementOutcome::one_way(self.plan, rate, posted, exchange.receive()?))
    }

    /// Polls batches that are done; returns how many requests are.
    fn collect(&mut self, done: u64, batch: u64) -> Result<u64, PerfError> {
        let batches = self.end.poll(&mut [Completion::NOTHING; 16])? as u64;
        let all = done + batches * batch;
        (done..all).for_each(|number| self.buffers.check_fetched(self.plan.op, number));
        Ok(all)
    }
}

/// Now and then one is signaled, so that the queue does not fill.
fn flags(number: u64) -> SendFlags {
    if number.is_multiple_of(BATCH as u64) { SendFlags::SIGNALED } else { SendFlags::NONE }
}

fn not_done() -> PerfError {
    PerfError::OtherEnd(format!("a request was not done for {TIMEOUT:?}"))
}
