//! Messages both ways at the same time: each end sends as many as it can, and receives.

use super::buffers::MessageBuffers;
use super::end::VerbsEnd;
use super::{BATCH, POLLS_IDLE, TIMEOUT, post_batch};
use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::plan::{EndRole, MeasurementOutcome, Plan};
use crate::samples::per_second;
use pollux_verbs::{Completion, Device};
use std::time::Instant;

#[derive(Clone, Copy, Default)]
struct Counts {
    sent: u64,
    done: u64,
    received: u64,
}

impl Counts {
    /// Sends a batch if there is space; collects what is done and what has arrived.
    fn turn<D: Device + ?Sized>(
        &mut self,
        end: &mut VerbsEnd<D>,
        buffers: &mut MessageBuffers,
        sends: bool,
    ) -> Result<(), PerfError> {
        let batch = (BATCH as u64).min(buffers.window() / 2);
        if sends && self.sent - self.done + batch <= buffers.window() {
            post_batch(end, buffers, batch)?;
            self.sent += batch;
        }
        let mut out = [Completion::NOTHING; 64];
        let count = end.poll(&mut out)?;
        for one in &out[..count] {
            if one.kind.is_recv() {
                buffers.check(one, None);
                buffers.receive(end, one.id)?;
                self.received += 1;
            } else {
                self.done += batch;
            }
        }
        Ok(())
    }

    /// Until all of this end is sent, and `expected` messages have arrived or none more does.
    #[expect(clippy::disallowed_methods, reason = "messages may be lost")]
    fn finish<D: Device + ?Sized>(
        &mut self,
        end: &mut VerbsEnd<D>,
        buffers: &mut MessageBuffers,
        expected: u64,
    ) -> Result<(), PerfError> {
        let mut progress = Instant::now();
        while self.done < self.sent || self.received < expected {
            let before = self.done + self.received;
            for _ in 0..POLLS_IDLE {
                self.turn(end, buffers, false)?;
            }
            if self.done + self.received > before {
                progress = Instant::now();
            }
            if progress.elapsed() > TIMEOUT / 10 {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Plays a role. Only a client has an outcome: the messages of both ways.
pub fn play<D: Device + ?Sized>(
    plan: &Plan,
    role: EndRole,
    end: &mut VerbsEnd<D>,
    buffers: &mut MessageBuffers,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    let mut counts = Counts::default();
    if role == EndRole::Client {
        let rate = per_second(plan.duration, || {
            let before = counts.done + counts.received;
            counts.turn(end, buffers, true)?;
            Ok(counts.done + counts.received - before)
        })?;
        exchange.send(&counts.sent)?;
        wait(&mut counts, end, buffers, exchange, false)?;
        let theirs: u64 = exchange.receive()?;
        counts.finish(end, buffers, theirs)?;
        exchange.send(&())?;
        let (sent, received): (u64, u64) = (counts.sent + theirs, exchange.receive()?);
        let received = counts.received + received;
        return Ok(Some(MeasurementOutcome::one_way(plan, rate, sent, received)));
    }
    wait(&mut counts, end, buffers, exchange, true)?;
    let theirs: u64 = exchange.receive()?;
    exchange.send(&counts.sent)?;
    counts.finish(end, buffers, theirs)?;
    // The client may still need this end's device.
    wait(&mut counts, end, buffers, exchange, false)?;
    exchange.receive::<()>()?;
    exchange.send(&counts.received)?;
    Ok(None)
}

/// Goes on until the other end has sent a message.
fn wait<D: Device + ?Sized>(
    counts: &mut Counts,
    end: &mut VerbsEnd<D>,
    buffers: &mut MessageBuffers,
    exchange: &mut Exchange,
    sends: bool,
) -> Result<(), PerfError> {
    while !exchange.is_over() {
        for _ in 0..POLLS_IDLE / 10 {
            counts.turn(end, buffers, sends)?;
        }
        std::thread::yield_now();
    }
    Ok(())
}
