//! A stored run: the figures of its rows, and the measurements that they come from.
//!
//! `pollux-perf ... --json` writes a run, `pollux-perf diff` compares two ([`crate::diff`]), and
//! `pollux-perf report` shows one ([`crate::report`]). For other programs, `pollux-perf schema`
//! prints the JSON schema of the file. Its version, [`SCHEMA`], changes with every change of a
//! field.

use crate::controls::Controls;
use crate::environment::Environment;
use crate::error::PerfError;
use crate::judgement::{Budget, BudgetVerdict, Estimate};
use crate::plan::{Measured, MeasurementOutcome, Plan, What};
use crate::samples::{Latency, Timeline};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::Path;

pub const SCHEMA: &str = "pollux-perf/2";

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StoredRun {
    pub schema: String,
    pub environment: Environment,
    /// The environment of the server, if it ran on another host.
    pub server_environment: Option<Environment>,
    pub controls: Controls,
    /// Times at which an interrupted run was resumed (RFC 3339). Environment and controls are those
    /// of the start.
    #[serde(default)]
    pub resumed_at: Vec<String>,
    /// The peer programs and their versions.
    #[serde(default)]
    pub peers: Vec<String>,
    pub rows: Vec<StoredRow>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StoredRow {
    /// The same in every run of the same measurement.
    pub name: String,
    pub unit: String,
    pub better: Better,
    /// One figure per round or pair. In a comparison with a peer, figures are ratios.
    pub figures: Vec<f64>,
    pub estimate: Option<Estimate>,
    /// The number of disturbed rounds or pairs, which do not count.
    pub disturbed: usize,
    /// The cause of the last disturbance.
    pub disturbed_by: Option<String>,
    /// Whether all rounds were disturbed. The figures are then those of disturbed rounds, and have
    /// no significance.
    pub is_spoiled: bool,
    pub source: RowSource,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowSource {
    /// A plan and all its measurements, disturbed ones included.
    Measured {
        plan: Plan,
        outcomes: Vec<Measured>,
    },
    Compared(Compared),
}

/// A comparison of our figures with those of a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compared {
    /// A description of the measurement.
    pub what: String,
    /// The unit of both sides' figures.
    pub unit: String,
    pub ours: Vec<f64>,
    pub peer: Vec<f64>,
    /// The peer and its options, or another reference; empty without one.
    pub reference: String,
    /// Bounds the ratio of our figure to the peer's; without a peer, our figure itself.
    pub budget: Budget,
    /// `None` if a figure is missing.
    pub verdict: Option<BudgetVerdict>,
    /// Why a figure is missing, or does not count.
    pub note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Less,
    More,
}

/// Why a file cannot be read as a run.
#[derive(Debug, thiserror::Error)]
pub enum StoredRunError {
    #[error("{path}: {error}")]
    Unreadable { path: String, error: io::Error },
    #[error("{path} is no stored run of pollux-perf ({error}): write one with --json > {path}")]
    Malformed { path: String, error: serde_json::Error },
    #[error("{path}: it has the schema {schema:?}, and this program reads {SCHEMA:?}")]
    OtherSchema { path: String, schema: String },
}

impl StoredRun {
    pub fn new(environment: Environment, controls: Controls) -> Self {
        let (schema, server_environment) = (SCHEMA.into(), None);
        let (resumed_at, peers, rows) = (Vec::new(), Vec::new(), Vec::new());
        Self { schema, environment, server_environment, controls, resumed_at, peers, rows }
    }

    pub fn read(path: &Path) -> Result<Self, StoredRunError> {
        let name = path.display().to_string();
        let text = fs::read_to_string(path)
            .map_err(|error| StoredRunError::Unreadable { path: name.clone(), error })?;
        let schema = serde_json::from_str::<Value>(&text).ok();
        let schema = schema.and_then(|record| Some(record["schema"].as_str()?.to_string()));
        if let Some(schema) = schema.filter(|schema| schema != SCHEMA) {
            return Err(StoredRunError::OtherSchema { path: name, schema });
        }
        serde_json::from_str(&text).map_err(|error| StoredRunError::Malformed { path: name, error })
    }

    /// Writes a new file and renames it, so that a reader never finds a partial run.
    pub fn write(&self, path: &Path) -> Result<(), PerfError> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from)?;
        let beside = path.with_extension("json.new");
        let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
        written.map_err(|error| PerfError::Local(format!("{}: {error}", path.display())))
    }
}

impl StoredRow {
    /// The row of a plan, from all its measurements. Disturbed ones count only if `keeps_disturbed`
    /// is set, or if there are no others.
    pub fn new(plan: Plan, outcomes: Vec<Measured>, keeps_disturbed: bool) -> Self {
        let (unit, better) = match plan.what {
            What::Lat => ("ns", Better::Less),
            What::Bw => ("GB/s", Better::More),
            What::Rate => ("M/s", Better::More),
            What::Connect => ("1/s", Better::More),
        };
        let disturbances = outcomes.iter().filter_map(|one| one.disturbance);
        let disturbances: Vec<_> = disturbances.filter(|one| one.is_too_much()).collect();
        let is_spoiled =
            !outcomes.is_empty() && disturbances.len() == outcomes.len() && !keeps_disturbed;
        let counts = |one: &&Measured| is_spoiled || keeps_disturbed || !one.is_disturbed();
        let counted = outcomes.iter().filter(counts);
        let figures: Vec<_> = counted.map(|one| figure(&plan, &one.outcome)).collect();
        let mut estimate = Estimate::of(figures.clone());
        if let Some(estimate) = estimate.as_mut().filter(|_| is_spoiled) {
            estimate.interval = None;
        }
        Self {
            name: plan.to_string(),
            unit: unit.into(),
            better,
            figures,
            estimate,
            disturbed: disturbances.len(),
            disturbed_by: disturbances.last().map(ToString::to_string),
            is_spoiled,
            source: RowSource::Measured { plan, outcomes },
        }
    }

    /// The plan and all its measurements; `None` for a comparison.
    pub fn measured(&self) -> Option<(&Plan, &[Measured])> {
        match &self.source {
            RowSource::Measured { plan, outcomes } => Some((plan, outcomes)),
            RowSource::Compared(_) => None,
        }
    }

    /// The measurements that count, in the order of [`StoredRow::figures`].
    pub fn counted(&self) -> impl Iterator<Item = &Measured> {
        let outcomes = self.measured().map_or(&[][..], |(_, outcomes)| outcomes);
        let all = self.figures.len() == outcomes.len();
        outcomes.iter().filter(move |one| all || !one.is_disturbed())
    }

    /// The latencies of the measurements that count.
    pub fn latencies(&self) -> impl Iterator<Item = &Latency> {
        self.counted().filter_map(|one| match &one.outcome {
            MeasurementOutcome::Latency(latency) => Some(latency),
            _ => None,
        })
    }

    /// The latency of all messages together, of the measurements that count.
    pub fn latency(&self) -> Option<Latency> {
        Latency::merged(self.latencies(), self.measured()?.0.is_of_whole_round_trips())
    }

    pub fn compared(&self) -> Option<&Compared> {
        match &self.source {
            RowSource::Measured { .. } => None,
            RowSource::Compared(compared) => Some(compared),
        }
    }
}

/// The timeline of a round, in the unit of its row.
pub fn timeline(plan: &Plan, outcome: &MeasurementOutcome) -> Timeline {
    let scaled = |timeline: &Timeline, by: f64| {
        timeline.iter().map(|[at, figure]| [*at, figure * by]).collect()
    };
    match outcome {
        MeasurementOutcome::Latency(latency) => latency.timeline.clone(),
        MeasurementOutcome::OneWay { timeline, .. } if plan.what == What::Rate => {
            scaled(timeline, 1e-6)
        }
        MeasurementOutcome::OneWay { timeline, bytes, .. } => {
            scaled(timeline, f64::from(*bytes) * 1e-9)
        }
        MeasurementOutcome::Connections { .. } => Vec::new(),
    }
}

/// The figure of an outcome, in the unit of its row. For latencies, it is the median.
fn figure(plan: &Plan, outcome: &MeasurementOutcome) -> f64 {
    match outcome {
        MeasurementOutcome::Latency(latency) => latency.percentile(50.0).unwrap_or_default(),
        MeasurementOutcome::OneWay { per_second, .. } if plan.what == What::Rate => {
            per_second * 1e-6
        }
        MeasurementOutcome::OneWay { per_second, bytes, .. } => {
            per_second * f64::from(*bytes) * 1e-9
        }
        MeasurementOutcome::Connections { per_second, .. } => *per_second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disturbance::Disturbance;
    use crate::plan::{Layer, MeasuredTransport};

    fn measured(per_second: f64, others_cores: f64) -> Measured {
        let disturbance =
            Disturbance { others_cores, stolen_cores: 0.0, throttled: 0, seconds: 1.0 };
        Measured {
            outcome: MeasurementOutcome::Connections { per_second, first_ns: None },
            setup_seconds: 0.0,
            cores_busy: [None; 2],
            disturbance: Some(disturbance),
        }
    }

    #[test]
    fn a_disturbed_round_does_not_count_unless_there_are_no_others() {
        let plan = Plan::new(What::Connect, Layer::Verbs, MeasuredTransport::Rc, 64);
        let row = |others: [f64; 7], keeps| {
            let outcomes = others.into_iter().zip(1..).map(|(it, nth)| measured(nth.into(), it));
            StoredRow::new(plan.clone(), outcomes.collect(), keeps)
        };
        let mixed = [0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0];
        let one = row(mixed, false);
        assert_eq!((one.figures.len(), one.disturbed), (6, 1));
        assert_eq!(one.disturbed_by.as_deref(), Some("other programs took 50 % of a core"));
        assert!(one.estimate.is_some_and(|estimate| estimate.interval.is_some()));
        assert_eq!(row(mixed, true).figures.len(), 7);
        let all = row([0.5; 7], false);
        assert_eq!((all.figures.len(), all.disturbed, all.is_spoiled), (7, 7, true));
        assert_eq!(all.estimate, Some(Estimate { median: 4.0, interval: None }));
        let kept = row([0.5; 7], true).estimate.expect("there are figures");
        assert!(kept.interval.is_some());
        assert!(!one.is_spoiled && !row([0.5; 7], true).is_spoiled);
    }
}
