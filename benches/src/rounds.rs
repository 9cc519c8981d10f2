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
use crate::plan::{Layer, Measured, MeasuredTransport, MeasurementOutcome, Plan, What};
use crate::remote;
use crate::samples::Latency;
use crate::stored::{StoredRow, StoredRun};
use crate::verbs_plan::VerbsOp;
use std::fmt;
use std::time::{Duration, Instant};

/// An open loop with less than this part of its rate is saturated.
const SATURATED_BELOW: f64 = 0.98;

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

impl fmt::Display for StoredRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment)?;
        if let Some(server) = &self.server_environment {
            writeln!(f, "at the server: {server}")?;
        }
        if !self.resumed_at.is_empty() {
            writeln!(f, "interrupted; resumed at {}", self.resumed_at.join(", "))?;
        }
        writeln!(f, "{}", self.controls)?;
        let mut kind = String::new();
        for (row, plan) in self.rows.iter().filter_map(|row| Some((row, row.measured()?.0))) {
            if plan.kind() != kind {
                kind = plan.kind();
                writeln!(f, "{kind}{}", Heads(plan))?;
            }
            writeln!(f, "{row}")?;
        }
        write!(f, "{}", compare::RatioTable(&self.rows))
    }
}

const PERCENTILES: [f64; 5] = [90.0, 99.0, 99.9, 99.99, 99.999];

/// What is above the rows of a kind.
struct Heads<'a>(&'a Plan);

impl fmt::Display for Heads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.what != What::Lat {
            return f.write_str(":");
        }
        let what = match (self.0.per_second, self.0.is_of_whole_round_trips()) {
            (Some(_), _) => "from when it was due until it is done",
            (None, true) => "until it is done",
            (None, false) => "half a round trip",
        };
        writeln!(f, ", {what}, in ns:")?;
        write!(f, "{:>8}  {:>24}  {:>7} {:>7}", "bytes", "median of rounds", "min", "mean")?;
        PERCENTILES.iter().try_for_each(|percent| write!(f, " {:>8}", format!("{percent} %")))?;
        write!(f, " {:>8}", "max")
    }
}

/// Nothing for a row that was not measured by a plan.
impl fmt::Display for StoredRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(((plan, outcomes), estimate)) = self.measured().zip(self.estimate) else {
            return Ok(());
        };
        let unit = &self.unit;
        write!(f, "{:>8}  ", plan.bytes)?;
        match plan.what {
            What::Lat => {
                let latency = self.latency();
                writeln!(f, "{:>24}  {}", estimate.to_string(), Tail(latency.as_ref()))?;
                write!(f, "{:>10}{}", "", samples(plan, latency.as_ref()))?;
            }
            What::Bw => {
                let bits = estimate.scaled(8.0);
                write!(f, "{estimate} {unit}, {bits} Gb/s, {}", losses(self, plan))?;
            }
            What::Rate => write!(f, "{estimate} {unit}, {}", losses(self, plan))?,
            What::Connect => write!(f, "{estimate} connections/s")?,
        }
        let firsts = self.counted().filter_map(|one| match &one.outcome {
            MeasurementOutcome::Latency(latency) => Some(latency.first_ns),
            MeasurementOutcome::Connections { first_ns, .. } => *first_ns,
            MeasurementOutcome::OneWay { .. } => None,
        });
        if let Some(first) = Estimate::of(firsts.map(|ns| ns * 1e-3).collect()) {
            write!(f, "; the first took {} us", three_digits(first.median))?;
        }
        let busy = [0, 1].map(|end| {
            let cores = self.counted().filter_map(|one| one.cores_busy[end]);
            Estimate::of(cores.collect()).map(|estimate| format!("{:.2}", estimate.median))
        });
        if let [Some(client), Some(server)] = busy {
            write!(f, "; cores busy: client {client}, server {server}")?;
        }
        match &self.disturbed_by {
            Some(by) if self.is_spoiled => {
                write!(
                    f,
                    "; no interval: all {} rounds are disturbed, the last since {by}",
                    outcomes.len()
                )
            }
            Some(by) => write!(
                f,
                "; {} of {} rounds count: {} are disturbed, the last since {by}",
                self.figures.len(),
                outcomes.len(),
                self.disturbed
            ),
            None => Ok(()),
        }
    }
}

/// Of the messages of all rounds that count; none of what there are too few messages for.
struct Tail<'a>(Option<&'a Latency>);

impl fmt::Display for Tail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(latency) = self.0 else { return Ok(()) };
        let [min, mean] = [latency.min_ns, latency.mean_ns].map(three_digits);
        write!(f, "{min:>7} {mean:>7}")?;
        for percent in PERCENTILES {
            let found = latency.percentiles.iter().find(|one| one.percent == percent);
            let found = found.filter(|one| one.is_of(latency.samples));
            write!(f, " {:>8}", found.map_or("-".into(), |one| three_digits(one.ns)))?;
        }
        write!(f, " {:>8}", three_digits(latency.max_ns))
    }
}

/// How many messages there were; in an open loop, beside how many there should be.
fn samples(plan: &Plan, latency: Option<&Latency>) -> String {
    let Some(latency) = latency else { return "no messages".into() };
    let again = match latency.lost {
        0 => String::new(),
        lost => format!(", {lost} sent again after no answer"),
    };
    let rate = plan.per_second.zip(latency.achieved_per_second).map(|(asked, achieved)| {
        let is_saturated = achieved < f64::from(asked) * SATURATED_BELOW;
        let saturated = if is_saturated { ": saturated" } else { "" };
        format!(", asked for {asked}/s, answered {}/s{saturated}", three_digits(achieved))
    });
    format!("{} messages{}{again}", latency.samples, rate.unwrap_or_default())
}

/// Of a stream, bytes are counted.
fn losses(row: &StoredRow, plan: &Plan) -> String {
    let counts = row.counted().map(|one| match one.outcome {
        MeasurementOutcome::OneWay { sent, lost, .. } => [sent, lost],
        _ => [0; 2],
    });
    let [sent, lost] = counts.fold([0; 2], |all, one| [all[0] + one[0], all[1] + one[1]]);
    let what = if plan.layer == Layer::Tcp { " bytes" } else { "" };
    // Nobody counts what arrives in memory.
    let is_unknown = plan.verbs.op == VerbsOp::Write && plan.transport == MeasuredTransport::Uc;
    let least = if is_unknown { "at least " } else { "" };
    let late = row.counted().filter_map(|one| match one.outcome {
        MeasurementOutcome::OneWay { late_max_ns, .. } => late_max_ns,
        _ => None,
    });
    let late = late.reduce(f64::max);
    let late = late.map(|late| format!(", sent {} us late at most", three_digits(late * 1e-3)));
    let depth = (plan.layer == Layer::Verbs).then(|| {
        let (verbs, bytes) = (&plan.verbs, plan.bytes);
        format!("; depth {}, {} a call", verbs.depth(bytes), verbs.post_list(bytes))
    });
    let [late, depth] = [late, depth].map(Option::unwrap_or_default);
    format!("{least}{lost} of {sent}{what} lost{late}{depth}")
}
