//! Measures plans repeatedly, in rounds.
//!
//! Each round measures every plan once, so that varying load affects all rows alike.

use crate::controls::Controls;
use crate::disturbance::Watch;
use crate::environment::Environment;
use crate::error::PerfError;
use crate::pair;
use crate::plan::{Measured, Plan};
use crate::remote;
use crate::stored::{StoredRow, StoredRun};
use std::fmt;
use std::time::{Duration, Instant};

/// The progress before a measurement.
#[derive(Clone, Debug)]
pub struct RoundsProgress<'a> {
    pub round: u16,
    pub rounds: u16,
    pub plan: &'a Plan,
    /// The estimated remaining time, from the mean duration so far; `None` at the start.
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

#[derive(Clone, Copy, Debug)]
pub struct RoundsConfig<'a> {
    /// The number of rounds per plan.
    pub rounds: u16,
    /// The host of the server; `None` for both ends on this machine.
    pub server: Option<&'a str>,
    /// Whether disturbed rounds count. If not, a plan is measured again for each disturbed round,
    /// up to twice `rounds` in all.
    pub keeps_disturbed: bool,
}

impl RoundsConfig<'_> {
    /// Whether to measure a plan in this attempt. Attempts are counted from 1 to twice `rounds`.
    fn is_due(&self, attempt: u16, row: &StoredRow) -> bool {
        let outcomes = row.measured().map_or(&[][..], |(_, outcomes)| outcomes);
        let counted = outcomes.iter().filter(|one| self.keeps_disturbed || !one.is_disturbed());
        outcomes.len() < usize::from(attempt) && counted.count() < usize::from(self.rounds)
    }

    /// The number of remaining measurements, if none is disturbed.
    fn missing(&self, run: &StoredRun) -> u32 {
        let of = |row: &StoredRow| {
            let attempts = 1..=2 * self.rounds;
            let counted = attempts.filter(|attempt| self.is_due(*attempt, row)).count();
            counted.min(usize::from(self.rounds)) as u32
        };
        run.rows.iter().map(of).sum()
    }
}

/// Measures plans in rounds. `begun` is an interrupted run of the same plans, whose measurements
/// are kept. `report` is called before each measurement, with the progress and the run so far.
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
    if !run.environment.is_as(&here) {
        let why = "the stored run is of another machine or kernel, or of another version of \
                   pollux-perf: start a new run in another file";
        return Err(PerfError::Plan(why.into()));
    }
    let is_planned =
        |row: &&StoredRow| row.measured().is_some_and(|(plan, _)| plans.contains(plan));
    if let Some(other) = run.rows.iter().find(|row| !is_planned(row)) {
        let why = format!(
            "the file has another run, with the row {:?}: write to another file, or remove it",
            other.name
        );
        return Err(PerfError::Plan(why));
    }
    if !run.rows.is_empty() {
        run.resumed_at.push(here.begun_at);
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

/// Measures a plan once, and watches the machine for disturbances. Returns the environment of a
/// server on another host, too.
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
