//! A stored run: figures of rows, and where they come from.
//!
//! `pollux-perf ... --json` writes one, and `pollux-perf diff` compares two ([`crate::diff`]).
//! Other programs may read them: [`SCHEMA`] changes when a field does.

use crate::environment::Environment;
use crate::error::PerfError;
use crate::judgement::Estimate;
use crate::plan::{MeasurementOutcome, Plan, What};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::Path;

pub const SCHEMA: &str = "pollux-perf/1";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredRun {
    pub schema: String,
    /// Of this program.
    pub version: String,
    pub environment: Environment,
    /// Of the other host, if there is one.
    pub server_environment: Option<Environment>,
    pub rows: Vec<StoredRow>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredRow {
    /// The same in every run of the same measurement.
    pub name: String,
    pub plan: Plan,
    pub unit: String,
    pub better: Better,
    /// One of each round.
    pub figures: Vec<f64>,
    pub estimate: Option<Estimate>,
    /// All that was measured, of each round.
    pub outcomes: Vec<MeasurementOutcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Less,
    More,
}

/// Why a file is no record; the text says what would be.
#[derive(Debug, thiserror::Error)]
pub enum StoredRunError {
    #[error("{path}: {error}")]
    Unreadable { path: String, error: io::Error },
    #[error("{path}: it is no record of pollux-perf ({error}): write one with --json > {path}")]
    Malformed { path: String, error: serde_json::Error },
    #[error("{path}: it has the schema {schema:?}, and this program reads {SCHEMA:?}")]
    OtherSchema { path: String, schema: String },
}

impl StoredRun {
    pub fn new(environment: Environment, server_environment: Option<Environment>) -> Self {
        let (schema, version) = (SCHEMA.into(), env!("CARGO_PKG_VERSION").into());
        Self { schema, version, environment, server_environment, rows: Vec::new() }
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

    /// A reader never finds half a run.
    pub fn write(&self, path: &Path) -> Result<(), PerfError> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from)?;
        let beside = path.with_extension("json.new");
        let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
        written.map_err(|error| PerfError::Local(format!("{}: {error}", path.display())))
    }
}

impl StoredRow {
    /// Of a plan that was measured in some rounds.
    pub fn new(plan: Plan, outcomes: Vec<MeasurementOutcome>) -> Self {
        let (unit, better) = match plan.what {
            What::Lat => ("ns", Better::Less),
            What::Bw => ("GB/s", Better::More),
            What::Rate => ("M/s", Better::More),
            What::Connect => ("1/s", Better::More),
        };
        let figures: Vec<_> = outcomes.iter().map(|outcome| figure(&plan, outcome)).collect();
        let (unit, estimate) = (unit.into(), Estimate::of(figures.clone()));
        Self { name: plan.to_string(), plan, unit, better, figures, estimate, outcomes }
    }
}

/// What counts of an outcome.
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
