//! Our figures and those of the peers: interleaved, on the same cores, as ratios of several pairs.
//!
//! The load of a machine changes from second to second, so figures of two programs compare only if
//! both ran at about the same time. Each run takes every case once, our measurement and then the
//! peer's; a row is the median of the ratios of these pairs, with the smallest and the largest.

pub mod cases;

use crate::environment::Environment;
use crate::peers::RunConfig;
use crate::samples::{median, spread, spread_text};
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
    /// The median of the ratios of all pairs.
    pub ratio: Option<f64>,
    /// The smallest and the largest of what is judged.
    pub range: Option<[f64; 2]>,
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
    /// Of each run, unless it failed.
    figures: Vec<Option<Vec<f64>>>,
    note: Option<String>,
}

impl SideSamples {
    fn add(&mut self, figures: Figures) {
        let figures = figures.map_err(|why| self.note = Some(why));
        self.figures.push(figures.ok());
    }

    /// Whether all runs have failed: the next one will, too.
    fn has_failed(&self) -> bool {
        !self.figures.is_empty() && self.figures.iter().all(Option::is_none)
    }

    /// The figures of a row.
    fn of(&self, row: usize) -> impl Iterator<Item = Option<f64>> {
        self.figures.iter().map(move |run| run.as_ref()?.get(row).copied())
    }
}

/// Measures all cases `runs` times. `report` gets progress messages.
pub fn compare(config: &RunConfig, runs: u32, mut report: impl FnMut(&str)) -> Comparison {
    let environment = Environment::now(config.fifo);
    let mut samples: Vec<[SideSamples; 2]> = CASES.iter().map(|_| Default::default()).collect();
    for run in 1..=runs {
        for (case, [ours, peers]) in CASES.iter().zip(&mut samples) {
            report(&format!("run {run} of {runs}: {}", case.rows[0].what));
            if !ours.has_failed() {
                ours.add((case.ours)(config));
            }
            if let Some(measure) = case.peer
                && !peers.has_failed()
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
    let all = |side: &SideSamples| side.of(nth).flatten().collect::<Vec<_>>();
    let pairs = ours.of(nth).zip(peer.of(nth));
    let ratios: Vec<_> = pairs.filter_map(|(ours, peer)| Some(ours? / peer?)).collect();
    let judged = if case.peer.is_some() { ratios.clone() } else { all(ours) };
    let [middle, least, most] = spread(judged.clone());
    let has_figure = !judged.is_empty();
    Judged {
        id: row.id,
        what: row.what,
        ours: median(all(ours)),
        peer: median(all(peer)),
        unit: row.unit,
        ratio: median(ratios),
        range: has_figure.then_some([least, most]),
        budget: row.budget.to_string(),
        pass: has_figure.then(|| row.budget.is_met(middle)),
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
            let ratio = row.ratio.zip(row.range);
            let ratio = ratio.map_or("-".into(), |(ratio, [least, most])| {
                format!("{} x", spread_text([ratio, least, most], 2))
            });
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
        let figures = figures.iter().map(|figure| Some(vec![*figure])).collect();
        SideSamples { figures, note: note.map(Into::into) }
    }

    fn case() -> &'static ComparisonCase {
        CASES.iter().find(|case| case.peer.is_some()).expect("there are peers")
    }

    #[test]
    fn a_row_is_the_median_of_the_ratios_of_pairs() {
        let case = case();
        let both = [side(&[3.0, 1.0, 2.0], None), side(&[6.0, 4.0, 1.0], None)];
        let row = Row { budget: Budget::AtMost(0.5), ..case.rows[0] };
        let judged = judge(case, &row, 0, &both);
        assert_eq!((judged.ours, judged.peer, judged.ratio), (Some(2.0), Some(4.0), Some(0.5)));
        assert_eq!(judged.range, Some([0.25, 2.0]));
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
