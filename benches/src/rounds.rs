//! Plans measured in rounds.
//!
//! Each round measures all plans, so that load that comes and goes touches all rows alike.

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
    if !run.environment.is_as(&here) {
        let why = "it was begun on another machine or kernel, or by another program: begin a new \
                   one";
        return Err(PerfError::Plan(why.into()));
    }
    let is_planned =
        |row: &&StoredRow| row.measured().is_some_and(|(plan, _)| plans.contains(plan));
    if let Some(other) = run.rows.iter().find(|row| !is_planned(row)) {
        let why = format!(
            "it holds another run, with {:?}: write to another file, or remove it",
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
