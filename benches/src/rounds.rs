//! Plans measured in rounds, and what people read of them.
//!
//! Each round measures all plans, so that load that comes and goes touches all rows alike.

use crate::environment::Environment;
use crate::error::PerfError;
use crate::judgement::{Estimate, three_digits};
use crate::pair;
use crate::plan::{Layer, MeasurementOutcome, Plan, What};
use crate::remote;
use crate::samples::Latency;
use crate::stored::{StoredRow, StoredRun};
use std::fmt;
use std::time::{Duration, Instant};

/// Where a measurement is.
#[derive(Clone, Debug)]
pub struct RoundsProgress<'a> {
    pub round: u16,
    pub rounds: u16,
    pub plan: &'a Plan,
    /// The time that is left if the rest is as fast as what was measured.
    pub left: Option<Duration>,
}

impl fmt::Display for RoundsProgress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round {} of {}: {}", self.round, self.rounds, self.plan)?;
        match self.left.map(|left| left.as_secs()) {
            Some(left) if left >= 60 => write!(f, ", {} min left", left.div_ceil(60)),
            Some(left) => write!(f, ", {left} s left"),
            None => Ok(()),
        }
    }
}

/// Measures with the other end on this machine, or with the server of another host. What `begun`
/// has of the same plans is not measured again. `report` gets the progress before each measurement,
/// and what was measured so far.
#[expect(clippy::disallowed_methods, reason = "people want to know how long it takes")]
pub fn measure(
    plans: Vec<Plan>,
    rounds: u16,
    server: Option<&str>,
    begun: Option<StoredRun>,
    mut report: impl FnMut(&RoundsProgress<'_>, &StoredRun) -> Result<(), PerfError>,
) -> Result<StoredRun, PerfError> {
    let fifo = plans.first().and_then(|plan| plan.fifo);
    let here = Environment::now(fifo);
    let mut run = begun.unwrap_or_else(|| StoredRun::new(here.clone(), None));
    if !run.environment.is_of_machine(&here) {
        let why = "it was begun on another machine or kernel: begin a new one";
        return Err(PerfError::Plan(why.into()));
    }
    let before = std::mem::take(&mut run.rows);
    let row = |plan: Plan| {
        let row = before.iter().find(|row| row.plan == plan).cloned();
        row.unwrap_or_else(|| StoredRow::new(plan, Vec::new()))
    };
    run.rows = plans.into_iter().map(row).collect();
    let missing = |run: &StoredRun| {
        let missing =
            run.rows.iter().map(|row| usize::from(rounds).saturating_sub(row.outcomes.len()));
        missing.sum::<usize>() as u32
    };
    let (started, all) = (Instant::now(), missing(&run));
    for round in 1..=rounds {
        for nth in 0..run.rows.len() {
            if run.rows[nth].outcomes.len() >= usize::from(round) {
                continue;
            }
            let left = missing(&run);
            let left = (all > left).then(|| started.elapsed() / (all - left) * left);
            report(&RoundsProgress { round, rounds, plan: &run.rows[nth].plan, left }, &run)?;
            let StoredRow { plan, mut outcomes, .. } = run.rows[nth].clone();
            outcomes.push(match server {
                None => pair::run(&plan)?,
                Some(host) => {
                    let (outcome, environment) = remote::measure(&plan, host)?;
                    run.server_environment = Some(environment);
                    outcome
                }
            });
            run.rows[nth] = StoredRow::new(plan, outcomes);
        }
    }
    Ok(run)
}

impl fmt::Display for StoredRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment)?;
        if let Some(server) = &self.server_environment {
            writeln!(f, "at the server: {server}")?;
        }
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

impl fmt::Display for StoredRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, unit, estimate, outcomes, .. } = self;
        let Some(estimate) = estimate else { return Ok(()) };
        match (plan.what, plan.layer) {
            (What::Connect, Layer::Verbs) => {
                return write!(
                    f,
                    "{estimate} queue pairs/s made, set up and destroyed; no packet is sent"
                );
            }
            (What::Connect, _) if plan.program.is_none() => {}
            _ => write!(f, "{:>8} bytes  ", plan.bytes)?,
        }
        match plan.what {
            What::Lat => write!(f, "half a round trip: median {estimate} ns; {}", Tail(outcomes)),
            What::Bw | What::Rate => write!(f, "{estimate} {unit}, {}", losses(plan, outcomes)),
            What::Connect => {
                write!(f, "{estimate} connections/s")?;
                let first = outcomes.iter().filter_map(|outcome| match outcome {
                    MeasurementOutcome::Connections { first, .. } => first.map(|it| it * 1e-3),
                    _ => None,
                });
                let first = Estimate::of(first.collect());
                first.map_or(Ok(()), |first| write!(f, ", the first took {first} us"))
            }
        }
    }
}

/// Percentiles, as medians of those of each round.
struct Tail<'a>(&'a [MeasurementOutcome]);

impl fmt::Display for Tail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latencies = self.0.iter().filter_map(|outcome| match outcome {
            MeasurementOutcome::Latency(latency) => Some(latency),
            _ => None,
        });
        let latencies: Vec<&Latency> = latencies.collect();
        let of = |value: &dyn Fn(&Latency) -> f64| {
            let estimate = Estimate::of(latencies.iter().map(|latency| value(latency)).collect());
            three_digits(estimate.map_or(0.0, |estimate| estimate.median))
        };
        write!(f, "min {}, mean {}", of(&|it| it.min), of(&|it| it.mean))?;
        for (part, _) in latencies.first().map_or(&[][..], |first| &first.percentiles) {
            if *part > 50.0 {
                write!(f, ", {part} %: {}", of(&|it| it.percentile(*part).unwrap_or_default()))?;
            }
        }
        let largest = latencies.iter().map(|latency| latency.max).fold(0.0, f64::max);
        let samples: u64 = latencies.iter().map(|latency| latency.samples).sum();
        let lost: u64 = latencies.iter().map(|latency| latency.lost).sum();
        write!(f, ", max {}; of {samples}, {lost} lost", three_digits(largest))
    }
}

/// Of a stream, bytes are counted.
fn losses(plan: &Plan, outcomes: &[MeasurementOutcome]) -> String {
    let counts = outcomes.iter().map(|outcome| match outcome {
        MeasurementOutcome::OneWay { sent, lost, .. } => [*sent, *lost],
        _ => [0; 2],
    });
    let [sent, lost] = counts.fold([0; 2], |all, one| [all[0] + one[0], all[1] + one[1]]);
    let what = if plan.layer == Layer::Tcp { " bytes" } else { "" };
    format!("{lost} of {sent}{what} lost")
}
