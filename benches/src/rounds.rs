//! Plans measured in rounds, and what people read of them.
//!
//! Each round measures all plans, so that load that comes and goes touches all rows alike.

use crate::compare;
use crate::controls::Controls;
use crate::disturbance::Watch;
use crate::environment::Environment;
use crate::error::PerfError;
use crate::judgement::{Estimate, three_digits};
use crate::pair;
use crate::plan::{Layer, Measured, MeasurementOutcome, Plan, What};
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
        match self.round > self.rounds {
            true => write!(f, "again, since something disturbed it: {}", self.plan)?,
            false => write!(f, "round {} of {}: {}", self.round, self.rounds, self.plan)?,
        }
        match self.left.map(|left| left.as_secs()) {
            Some(left) if left >= 60 => write!(f, ", {} min left", left.div_ceil(60)),
            Some(left) => write!(f, ", {left} s left"),
            None => Ok(()),
        }
    }
}

/// How plans are measured in rounds.
#[derive(Clone, Copy, Debug)]
pub struct RoundsConfig<'a> {
    /// Rounds that are wanted, of each plan.
    pub rounds: u16,
    /// The host of the other end, if that is not this machine.
    pub server: Option<&'a str>,
    /// Whether rounds count that something disturbed. Otherwise they are measured again, at most as
    /// often as rounds are wanted.
    pub keeps_disturbed: bool,
}

impl RoundsConfig<'_> {
    /// Whether a plan has to be measured in an attempt, of which there are twice as many as rounds.
    fn is_due(&self, attempt: u16, row: &StoredRow) -> bool {
        let outcomes = row.measured().map_or(&[][..], |(_, outcomes)| outcomes);
        let counted = outcomes.iter().filter(|one| self.keeps_disturbed || !one.is_disturbed());
        outcomes.len() < usize::from(attempt) && counted.count() < usize::from(self.rounds)
    }

    /// What is still to be measured if nothing disturbs it.
    fn missing(&self, run: &StoredRun) -> u32 {
        let of = |row: &StoredRow| {
            let attempts = 1..=2 * self.rounds;
            let counted = attempts.filter(|attempt| self.is_due(*attempt, row)).count();
            counted.min(usize::from(self.rounds)) as u32
        };
        run.rows.iter().map(of).sum()
    }
}

/// Measures with the other end on this machine, or with the server of another host. What `begun`
/// has of the same plans is not measured again. `report` gets the progress before each measurement,
/// and what was measured so far.
#[expect(clippy::disallowed_methods, reason = "people want to know how long it takes")]
pub fn measure(
    plans: Vec<Plan>,
    config: &RoundsConfig<'_>,
    begun: Option<StoredRun>,
    mut report: impl FnMut(&RoundsProgress<'_>, &StoredRun) -> Result<(), PerfError>,
) -> Result<StoredRun, PerfError> {
    let (fifo, cores) = plans.first().map_or((None, [0; 2]), |plan| (plan.fifo, plan.cores));
    let here = Environment::now(fifo);
    let mut run = begun.unwrap_or_else(|| StoredRun::new(here.clone(), Controls::measure(cores)));
    if !run.environment.is_of_machine(&here) {
        let why = "it was begun on another machine or kernel: begin a new one";
        return Err(PerfError::Plan(why.into()));
    }
    let before = std::mem::take(&mut run.rows);
    let is_of = |row: &&StoredRow, plan: &Plan| row.measured().is_some_and(|(it, _)| it == plan);
    let outcomes = |plan: &Plan| {
        let row = before.iter().find(|row| is_of(row, plan));
        row.and_then(StoredRow::measured).map_or(Vec::new(), |(_, outcomes)| outcomes.to_vec())
    };
    let row = |plan: Plan, outcomes| StoredRow::new(plan, outcomes, config.keeps_disturbed);
    run.rows = plans.iter().map(|plan| row(plan.clone(), outcomes(plan))).collect();
    let (started, mut done) = (Instant::now(), 0);
    for attempt in 1..=2 * config.rounds {
        for (nth, plan) in plans.iter().enumerate() {
            if !config.is_due(attempt, &run.rows[nth]) {
                continue;
            }
            let left = (done > 0).then(|| started.elapsed() / done * config.missing(&run));
            let (round, rounds) = (attempt, config.rounds);
            report(&RoundsProgress { round, rounds, plan, left }, &run)?;
            let (measured, environment) = watched(plan, config.server)?;
            run.server_environment = environment.or(run.server_environment);
            let mut outcomes = run.rows[nth].measured().map_or(Vec::new(), |it| it.1.to_vec());
            outcomes.push(measured);
            run.rows[nth] = row(plan.clone(), outcomes);
            done += 1;
        }
    }
    Ok(run)
}

/// Measures once, and watches the machine meanwhile; with the environment of the server, if that is
/// another host.
fn watched(
    plan: &Plan,
    server: Option<&str>,
) -> Result<(Measured, Option<Environment>), PerfError> {
    let watch = Watch::start();
    let (measured, environment, others) = match server {
        None => (pair::run(plan)?, None, 0.0),
        Some(host) => {
            let (measured, server) = remote::measure(plan, host)?;
            (measured, Some(server.environment), server.seconds_here)
        }
    };
    Ok((Measured { disturbance: Some(watch.end(others)), ..measured }, environment))
}

impl fmt::Display for StoredRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment)?;
        if let Some(server) = &self.server_environment {
            writeln!(f, "at the server: {server}")?;
        }
        writeln!(f, "{}", self.controls)?;
        let mut kind = String::new();
        for (row, plan) in self.rows.iter().filter_map(|row| Some((row, row.measured()?.0))) {
            if plan.kind() != kind {
                kind = plan.kind();
                writeln!(f, "{kind}:")?;
            }
            writeln!(f, "{row}")?;
        }
        write!(f, "{}", compare::RatioTable(&self.rows))
    }
}

/// Nothing for a row that was not measured by a plan.
impl fmt::Display for StoredRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(((plan, outcomes), estimate)) = self.measured().zip(self.estimate) else {
            return Ok(());
        };
        let unit = &self.unit;
        match (plan.what, plan.layer) {
            (What::Connect, Layer::Tcp) if plan.program.is_none() => {}
            _ => write!(f, "{:>8} bytes  ", plan.bytes)?,
        }
        match plan.what {
            What::Lat => {
                let whole = plan.is_of_whole_round_trips();
                let of = if whole { "until it is done" } else { "half a round trip" };
                write!(f, "{of}: median {estimate} ns; {}", Tail(outcomes))?;
            }
            What::Bw | What::Rate => write!(f, "{estimate} {unit}, {}", losses(plan, outcomes))?,
            What::Connect => {
                write!(f, "{estimate} connections/s")?;
                let first = outcomes.iter().filter_map(|one| match one.outcome {
                    MeasurementOutcome::Connections { first_ns, .. } => Some(first_ns? * 1e-3),
                    _ => None,
                });
                if let Some(first) = Estimate::of(first.collect()) {
                    write!(f, ", the first took {first} us")?;
                }
            }
        }
        let busy = [0, 1].map(|end| {
            let cores = outcomes.iter().filter_map(|one| one.cores_busy[end]);
            Estimate::of(cores.collect()).map(|estimate| format!("{:.2}", estimate.median))
        });
        if let [Some(client), Some(server)] = busy {
            write!(f, "; cores busy: client {client}, server {server}")?;
        }
        match &self.disturbed_by {
            Some(by) => {
                write!(
                    f,
                    "; disturbed: {} of {}, the last since {by}",
                    self.disturbed,
                    outcomes.len()
                )
            }
            None => Ok(()),
        }
    }
}

/// Percentiles, as medians of those of each round.
struct Tail<'a>(&'a [Measured]);

impl fmt::Display for Tail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latencies = self.0.iter().filter_map(|one| match &one.outcome {
            MeasurementOutcome::Latency(latency) => Some(latency),
            _ => None,
        });
        let latencies: Vec<&Latency> = latencies.collect();
        let of = |value: &dyn Fn(&Latency) -> f64| {
            let estimate = Estimate::of(latencies.iter().map(|latency| value(latency)).collect());
            three_digits(estimate.map_or(0.0, |estimate| estimate.median))
        };
        write!(f, "min {}, mean {}", of(&|it| it.min_ns), of(&|it| it.mean_ns))?;
        for one in latencies.first().map_or(&[][..], |first| &first.percentiles) {
            let part = one.percent;
            if part > 50.0 {
                write!(f, ", {part} %: {}", of(&|it| it.percentile(part).unwrap_or_default()))?;
            }
        }
        let largest = latencies.iter().map(|latency| latency.max_ns).fold(0.0, f64::max);
        let samples: u64 = latencies.iter().map(|latency| latency.samples).sum();
        let lost: u64 = latencies.iter().map(|latency| latency.lost).sum();
        write!(f, ", max {}; of {samples}, {lost} lost", three_digits(largest))?;
        write!(f, "; the first one took {} us", of(&|it| it.first_ns * 1e-3))
    }
}

/// Of a stream, bytes are counted.
fn losses(plan: &Plan, outcomes: &[Measured]) -> String {
    let counts = outcomes.iter().map(|one| match one.outcome {
        MeasurementOutcome::OneWay { sent, lost, .. } => [sent, lost],
        _ => [0; 2],
    });
    let [sent, lost] = counts.fold([0; 2], |all, one| [all[0] + one[0], all[1] + one[1]]);
    let what = if plan.layer == Layer::Tcp { " bytes" } else { "" };
    let late = outcomes.iter().filter_map(|one| match one.outcome {
        MeasurementOutcome::OneWay { late_max_ns, .. } => late_max_ns,
        _ => None,
    });
    let late = late.reduce(f64::max);
    let late = late.map(|late| format!(", sent {} us late at most", three_digits(late * 1e-3)));
    format!("{lost} of {sent}{what} lost{}", late.unwrap_or_default())
}
