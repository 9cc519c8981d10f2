//! A run as text: a table for each kind of measurement, and a table of comparisons.

use crate::compare;
use crate::judgement::{Estimate, three_digits};
use crate::plan::{Layer, MeasuredTransport, MeasurementOutcome, Plan, What};
use crate::samples::Latency;
use crate::stored::{StoredRow, StoredRun};
use crate::verbs_plan::VerbsOp;
use std::fmt;

/// An open loop that achieves less than this fraction of its rate is saturated.
const SATURATED_BELOW: f64 = 0.98;

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

/// The heading above the rows of one kind of measurement.
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

/// Prints nothing for the row of a comparison.
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

/// Minimum, mean, percentiles and maximum of all messages of the counted rounds. A percentile with
/// too few messages above it is omitted.
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

/// The number of messages; in an open loop, also the requested and the achieved rate.
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

/// The number of lost messages of a one-way measurement. For TCP, bytes are counted.
fn losses(row: &StoredRow, plan: &Plan) -> String {
    let counts = row.counted().map(|one| match one.outcome {
        MeasurementOutcome::OneWay { sent, lost, .. } => [sent, lost],
        _ => [0; 2],
    });
    let [sent, lost] = counts.fold([0; 2], |all, one| [all[0] + one[0], all[1] + one[1]]);
    let what = if plan.layer == Layer::Tcp { " bytes" } else { "" };
    // No end counts UC writes as they arrive: only the last writes in memory are checked.
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
