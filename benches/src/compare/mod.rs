//! Our figures and those of the peers: interleaved, on the same cores, as medians of several pairs.
//!
//! The load of a machine changes from second to second, so figures of two programs compare only if
//! both ran at about the same time. Each run takes every case once, our measurement and then the
//! peer's; a row is the ratio of the two medians.

pub mod cases;

use crate::environment::Environment;
use crate::peers::RunConfig;
use crate::samples::median;
use cases::{Budget, CASES, ComparisonCase, Figures, Row};
use serde::Serialize;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    pub id: &'static str,
    pub what: &'static str,
    pub ours: Option<f64>,
    pub peer: Option<f64>,
    pub unit: &'static str,
    pub ratio: Option<f64>,
    /// The bound of the ratio; without a peer, of our figure.
    pub budget: String,
    /// `None` if a figure is missing.
    pub pass: Option<bool>,
    /// The peer and its options, or another reference.
    pub reference: &'static str,
    /// Why a figure is missing.
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub environment: Environment,
    /// Pairs of each median.
    pub runs: u32,
    pub rows: Vec<Judged>,
}

/// The figures of one side of a case in all runs.
#[derive(Default)]
struct SideSamples {
    figures: Vec<Vec<f64>>,
    note: Option<String>,
}

impl SideSamples {
    fn add(&mut self, figures: Figures) {
        match figures {
            Ok(figures) => self.figures.push(figures),
            Err(why) => self.note = Some(why),
        }
    }

    fn median(&self, row: usize) -> Option<f64> {
        median(self.figures.iter().filter_map(|run| run.get(row)).copied().collect())
    }
}

/// Measures all cases `runs` times. `report` gets progress messages.
pub fn compare(config: &RunConfig, runs: u32, mut report: impl FnMut(&str)) -> Comparison {
    let environment = Environment::now(config.fifo);
    let mut samples: Vec<[SideSamples; 2]> = CASES.iter().map(|_| Default::default()).collect();
    for run in 1..=runs {
        for (case, [ours, peers]) in CASES.iter().zip(&mut samples) {
            report(&format!("run {run} of {runs}: {}", case.rows[0].what));
            // A missing program will be missing in the next run, too.
            if run == 1 || !ours.figures.is_empty() {
                ours.add((case.ours)(config));
            }
            if let Some(measure) = case.peer
                && (run == 1 || !peers.figures.is_empty())
            {
                peers.add(measure(config));
            }
        }
    }
    let rows = CASES.iter().zip(&samples);
    let rows = rows.flat_map(|(case, samples)| {
        (0..).zip(case.rows).map(|(nth, row)| judge(case, row, nth, samples))
    });
    Comparison { environment, runs, rows: rows.collect() }
}

fn judge(case: &ComparisonCase, row: &Row, nth: usize, [ours, peer]: &[SideSamples; 2]) -> Judged {
    let notes = [(&ours.note, "ours"), (&peer.note, case.reference)];
    let notes: Vec<_> = notes
        .iter()
        .filter_map(|(note, of)| note.as_ref().map(|note| format!("{of}: {note}")))
        .collect();
    let (ours, peer) = (ours.median(nth), peer.median(nth));
    let ratio = ours.zip(peer).map(|(ours, peer)| ours / peer);
    let judged = if case.peer.is_some() { ratio } else { ours };
    Judged {
        id: row.id,
        what: row.what,
        ours,
        peer,
        unit: row.unit,
        ratio,
        budget: row.budget.to_string(),
        pass: judged.map(|value| row.budget.is_met(value)),
        reference: case.reference,
        note: (!notes.is_empty()).then(|| notes.join("; ")),
    }
}

impl Comparison {
    /// Rows that have a peer, but no figure of it.
    pub fn without_peer(&self) -> impl Iterator<Item = &Judged> {
        let has_peer = |row: &&Judged| !row.reference.is_empty();
        self.rows.iter().filter(has_peer).filter(|row| row.peer.is_none())
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment)?;
        writeln!(f, "medians of {} pairs\n", self.runs)?;
        writeln!(f, "| what | ours | peer | reference | ratio | budget | |")?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        let number = |value: Option<f64>| match value {
            None => "-".into(),
            Some(value) if value >= 100.0 => format!("{value:.0}"),
            Some(value) => format!("{value:.2}"),
        };
        for row in &self.rows {
            let verdict = match row.pass {
                Some(true) => "met",
                Some(false) => "missed",
                None => "-",
            };
            let (ours, peer) = (number(row.ours), number(row.peer));
            let ratio = row.ratio.map_or("-".into(), |ratio| format!("{ratio:.2} x"));
            let Judged { what, unit, reference, budget, .. } = row;
            writeln!(
                f,
                "| {what} | {ours} {unit} | {peer} | {reference} | {ratio} | {budget} | {verdict} |"
            )?;
        }
        let noted = self.rows.iter().filter_map(|row| Some((row.id, row.note.as_ref()?)));
        for (id, note) in noted {
            write!(f, "\n{id}: {note}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "<= {bound}"),
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(figures: &[f64], note: Option<&str>) -> SideSamples {
        let figures = figures.iter().map(|figure| vec![*figure]).collect();
        SideSamples { figures, note: note.map(Into::into) }
    }

    fn case() -> &'static ComparisonCase {
        CASES.iter().find(|case| case.peer.is_some()).expect("there are peers")
    }

    #[test]
    fn a_row_is_the_ratio_of_medians() {
        let case = case();
        let both = [side(&[3.0, 1.0, 2.0], None), side(&[4.0, 40.0, 0.4], None)];
        let row = Row { budget: Budget::AtMost(0.5), ..case.rows[0] };
        let judged = judge(case, &row, 0, &both);
        assert_eq!((judged.ours, judged.peer, judged.ratio), (Some(2.0), Some(4.0), Some(0.5)));
        assert_eq!((judged.pass, judged.note), (Some(true), None));
        let row = Row { budget: Budget::AtLeast(0.6), ..row };
        assert_eq!(judge(case, &row, 0, &both).pass, Some(false));
    }

    #[test]
    fn a_missing_figure_is_noted_and_not_judged() {
        let case = case();
        let both = [side(&[1.0], None), side(&[], Some("it is not installed"))];
        let judged = judge(case, &case.rows[0], 0, &both);
        assert_eq!((judged.peer, judged.ratio, judged.pass), (None, None, None));
        assert!(judged.note.is_some_and(|note| note.contains("it is not installed")));
    }

    #[test]
    fn every_row_has_a_name_of_its_own_and_all_fields() {
        let rows: Vec<Judged> = CASES
            .iter()
            .flat_map(|case| (0..).zip(case.rows).map(move |(nth, row)| (case, nth, row)))
            .map(|(case, nth, row)| judge(case, row, nth, &Default::default()))
            .collect();
        let names: std::collections::BTreeSet<_> = rows.iter().map(|row| row.id).collect();
        assert_eq!(names.len(), rows.len());
        let comparison = Comparison { environment: Environment::now(None), runs: 1, rows };
        let value = serde_json::to_value(&comparison).expect("it is JSON");
        for row in value["rows"].as_array().expect("there are rows") {
            let row = row.as_object().expect("a row is an object");
            for field in ["id", "ours", "peer", "unit", "ratio", "budget", "pass"] {
                assert!(row.contains_key(field), "{field} is missing: {row:?}");
            }
        }
        let cases = CASES.iter().filter(|case| case.peer.is_some());
        let with_peer: usize = cases.map(|case| case.rows.len()).sum();
        assert_eq!(comparison.without_peer().count(), with_peer);
    }
}
