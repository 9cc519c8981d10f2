//! Forwarding benchmarks of RFC 2544, for a router between two null ports.
//!
//! - **Throughput** (26.1): the highest rate without loss, for both ports together, found by
//!   bisection; and the highest rate with a loss of at most 0.5 %.
//! - **Latency** (26.2): the time from the arrival of a packet in the queue to the end of the
//!   breath (one poll of the router) that sends it. It is measured for every 64th packet, at the
//!   throughput and at half of it.
//! - **Back-to-back** (26.4): the longest burst to each port without loss, at the rate of a link of
//!   100 Gb/s.
//! - **Recovery** (26.5): after a trial at 110 % of the throughput, a trial at half of the
//!   throughput begins with full queues. The figure is the time until both queues have been empty
//!   and no more packets are lost.
//!
//! A packet that arrives at a full queue is *lost*, as at the adapter of a router. A packet that
//! the router *drops* for a reason makes the measurement fail.
//!
//! A rate passes if one of three trials passes, because the kernel or a hypervisor sometimes takes
//! the core away for longer than a queue can buffer. The longest breath, `breath_max`, shows such a
//! pause. Unlike in the RFC, a trial has the given duration instead of a minute, and the router's
//! own core generates the packets.

use crate::environment::Environment;
use crate::error::PerfError;
use crate::machine::run_pinned;
use crate::null_router::{ForwardPlan, NullRouter, OfferedLoad, Trial};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Bisection steps: the result is exact to 1/128 of the search range.
const SEARCH_STEPS: u32 = 7;
/// Trials of a rate or burst. It passes if one trial passes.
const TRIALS_MAX: u32 = 3;
/// The loss that `throughput_lossy` allows, as a fraction of the packets.
const LOSS_MAX: f64 = 0.005;
/// The rate of the link that bursts arrive on.
const LINK_BITS_PER_SECOND: f64 = 100e9;
/// Ethernet header, check sequence, preamble and interframe gap of a packet.
const LINK_OVERHEAD_BYTES: u16 = 38;
/// The longest burst that is tried.
const BURST_MAX: u64 = 1 << 22;

/// Latency in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LoadLatency {
    /// Packets offered per second, to both ports together.
    pub per_second: f64,
    pub min: f64,
    pub median: f64,
    pub mean: f64,
    /// The 99.9th percentile.
    pub p99_9: f64,
    pub max: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Rfc2544Row {
    pub plan: ForwardPlan,
    /// Packets per second if both queues are always full.
    pub rate_max: f64,
    /// Packets per second without loss.
    pub throughput: f64,
    /// Packets per second with at most 0.5 % of loss.
    pub throughput_lossy: f64,
    /// The latency at `throughput`, and at half of it.
    pub latency: [LoadLatency; 2],
    /// The longest burst to each port without loss, in packets.
    pub back_to_back: u64,
    /// The recovery time in microseconds.
    pub recovery: f64,
    /// The longest breath of all trials, in microseconds.
    pub breath_max: f64,
    pub trials: u32,
}

#[derive(Clone, Debug, Serialize)]
pub struct Rfc2544 {
    pub environment: Environment,
    /// Packets that can wait at each port.
    pub queue: u64,
    pub rows: Vec<Rfc2544Row>,
}

/// Measures each plan. `report` gets progress messages.
pub fn run(
    plans: Vec<ForwardPlan>,
    queue: u64,
    report: impl Fn(&str) + Sync,
) -> Result<Rfc2544, PerfError> {
    let environment = Environment::now(None);
    let row = |plan: ForwardPlan| {
        let core = plan.core;
        run_pinned(core, || Bench::new(plan, queue, &report)?.measure())
    };
    let rows = plans.into_iter().map(row).collect::<Result<_, _>>()?;
    Ok(Rfc2544 { environment, queue, rows })
}

struct Bench<'a> {
    plan: ForwardPlan,
    queue: u64,
    router: NullRouter,
    breath_max: Duration,
    trials: u32,
    report: &'a (dyn Fn(&str) + Sync),
}

impl<'a> Bench<'a> {
    fn new(
        plan: ForwardPlan,
        queue: u64,
        report: &'a (dyn Fn(&str) + Sync),
    ) -> Result<Self, PerfError> {
        let router = NullRouter::new(&plan)?;
        Ok(Self { plan, queue, router, breath_max: Duration::ZERO, trials: 0, report })
    }

    fn measure(mut self) -> Result<Rfc2544Row, PerfError> {
        self.report("highest rate");
        self.router.rate_max(self.plan.duration / 10);
        let rate_max = self.router.rate_max(self.plan.duration);
        let throughput = bisect(0.0, rate_max, |rate| self.passes(rate, 0.0));
        let throughput_lossy = bisect(throughput, rate_max, |rate| self.passes(rate, LOSS_MAX));
        let latency = [throughput, throughput / 2.0].map(|per_second| {
            self.report(&format!("latency at {:.2} Mpps", per_second / 1e6));
            latency(per_second, &self.offer(per_second, 0).latency)
        });
        self.report("back-to-back packets");
        let burst = |burst: f64| (0..TRIALS_MAX).any(|_| self.burst(burst as u64).lost == 0);
        let back_to_back = bisect_burst(BURST_MAX, burst);
        self.report("recovery");
        self.offer(throughput * 1.1, 0);
        let recovered = self.offer(throughput / 2.0, self.queue).recovered;
        self.router.check_drops()?;
        let Self { plan, breath_max, trials, .. } = self;
        Ok(Rfc2544Row {
            plan,
            rate_max,
            throughput,
            throughput_lossy,
            latency,
            back_to_back,
            recovery: micros(recovered),
            breath_max: micros(breath_max),
            trials,
        })
    }

    fn report(&self, what: &str) {
        let ForwardPlan { routes, flows, bytes, .. } = self.plan;
        (self.report)(&format!("{routes} routes, {flows} flows, {bytes} bytes: {what}"));
    }

    /// Whether the loss at this rate is at most the fraction `loss_max`, in one of several trials.
    fn passes(&mut self, per_second: f64, loss_max: f64) -> bool {
        (0..TRIALS_MAX).any(|_| {
            let Trial { forwarded, lost, .. } = self.offer(per_second, 0);
            let loss = lost as f64 / (forwarded + lost).max(1) as f64;
            let percent = loss * 100.0;
            self.report(&format!("{:.2} Mpps, {percent:.3} % lost", per_second / 1e6));
            loss <= loss_max
        })
    }

    /// Offers packets at this rate, half of them to each port.
    fn offer(&mut self, per_second: f64, backlog: u64) -> Trial {
        let load = OfferedLoad { backlog, ..OfferedLoad::new(per_second / 2.0, self.queue) };
        self.trial(load)
    }

    /// Offers a burst to each port.
    fn burst(&mut self, packets_max: u64) -> Trial {
        let bits = 8.0 * f64::from(self.plan.bytes + LINK_OVERHEAD_BYTES);
        let load = OfferedLoad::new(LINK_BITS_PER_SECOND / bits, self.queue);
        self.trial(OfferedLoad { packets_max, ..load })
    }

    fn trial(&mut self, load: OfferedLoad) -> Trial {
        let trial = self.router.offer(load, self.plan.duration);
        self.breath_max = self.breath_max.max(trial.breath_max);
        self.trials += 1;
        trial
    }
}

/// The highest rate that passes, between `low`, which is assumed to pass, and `high`.
fn bisect(low: f64, high: f64, mut passes: impl FnMut(f64) -> bool) -> f64 {
    if passes(high) {
        return high;
    }
    let (mut low, mut high) = (low, high);
    for _ in 0..SEARCH_STEPS {
        let middle = f64::midpoint(low, high);
        match passes(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// The largest burst that passes, exact to one eighth, between 1, which is assumed to pass, and
/// `max`.
fn bisect_burst(max: u64, mut passes: impl FnMut(f64) -> bool) -> u64 {
    let mut low = 1;
    while low < max && passes((low * 2) as f64) {
        low *= 2;
    }
    let mut step = low / 2;
    while low < max && step > low / 16 {
        low += if passes((low + step) as f64) { step } else { 0 };
        step /= 2;
    }
    low
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn latency(per_second: f64, nanos: &Histogram<u64>) -> LoadLatency {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    LoadLatency {
        per_second,
        min: micros(nanos.min()),
        median: micros(nanos.value_at_percentile(50.0)),
        mean: nanos.mean() / 1e3,
        p99_9: micros(nanos.value_at_percentile(99.9)),
        max: micros(nanos.max()),
    }
}

impl fmt::Display for Rfc2544 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment)?;
        writeln!(
            f,
            "one core forwards between two null ports and writes the packets itself; a queue of {} \
             at each port; Mpps of both ports, latency in us",
            self.queue
        )?;
        writeln!(
            f,
            "{:>8} {:>7} {:>5} | {:>6} {:>7} {:>9} | {:>21} | {:>21} | {:>8} {:>11} {:>10}",
            "routes",
            "flows",
            "bytes",
            "max",
            "no loss",
            "0.5% loss",
            "median, 99.9 %, max",
            "the same at half load",
            "burst",
            "recovery us",
            "breath max"
        )?;
        for row in &self.rows {
            let mpps = |rate: f64| format!("{:.2}", rate / 1e6);
            let latency = row.latency.map(|LoadLatency { median, p99_9, max, .. }| {
                format!("{median:.1} {p99_9:.1} {max:.1}")
            });
            let ForwardPlan { routes, flows, bytes, .. } = row.plan;
            writeln!(
                f,
                "{routes:>8} {flows:>7} {bytes:>5} | {:>6} {:>7} {:>9} | {:>21} | {:>21} | {:>8} \
                 {:>11.1} {:>10.1}",
                mpps(row.rate_max),
                mpps(row.throughput),
                mpps(row.throughput_lossy),
                latency[0],
                latency[1],
                row.back_to_back,
                row.recovery,
                row.breath_max
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_finds_the_edge() {
        let found = bisect(0.0, 100.0, |rate| rate <= 40.0);
        assert!((39.0..=40.0).contains(&found), "{found}");
        assert_eq!(bisect(0.0, 100.0, |_| true), 100.0);
        assert_eq!(bisect(0.0, 100.0, |_| false), 0.0);
        let found = bisect_burst(1 << 20, |packets| packets <= 3000.0);
        assert!((2625..=3000).contains(&found), "{found}");
        assert_eq!(bisect_burst(1 << 20, |_| true), 1 << 20);
        assert_eq!(bisect_burst(1 << 20, |_| false), 1);
    }
}
