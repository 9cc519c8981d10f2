//! Our figures and those of the peers: interleaved, on the same cores, as ratios of several pairs.
//!
//! The load of a machine changes from second to second, so figures of two programs compare only if
//! both ran at about the same time. Each run takes every case once: first ours and then the peer's
//! in one run, the other way round in the next, because the second of two finds another machine
//! (warm caches, a clock that has risen). A row is the median of the ratios of these pairs, with
//! its interval ([`crate::judgement`]).
//!
//! A pair that something disturbed does not count, and is measured again ([`crate::disturbance`]);
//! nor does a figure that cannot be, such as a throughput above that of copying.

pub mod cases;

use crate::disturbance::{Disturbance, Watch};
use crate::environment::Environment;
use crate::judgement::{BudgetVerdict, DECIDING_MIN, Estimate, three_digits};
use crate::machine;
use crate::peers::RunConfig;
use cases::{CASES, ComparisonCase, Figures, Row};
use serde::Serialize;
use std::fmt;

/// Runs for each pair that is wanted, at most: the others make up for disturbed ones.
const RUNS_PER_PAIR_MAX: u32 = 2;
/// How much faster than the machine copies a throughput may seem.
const COPIES_MAX: f64 = 1.25;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    pub id: &'static str,
    pub what: &'static str,
    pub ours: Option<f64>,
    pub peer: Option<f64>,
    pub unit: &'static str,
    /// The median of the ratios of all pairs; without a peer, that of our figures.
    pub ratio: Option<f64>,
    /// Of that median, with a confidence of 95 %.
    pub interval: Option<[f64; 2]>,
    /// Those that count.
    pub pairs: usize,
    /// Those that something disturbed.
    pub disturbed: usize,
    /// The bound of the ratio.
    pub budget: String,
    /// `None` if a figure is missing.
    pub verdict: Option<BudgetVerdict>,
    /// The peer and its options, or another reference.
    pub reference: &'static str,
    /// Why a figure is missing, or does not count.
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub environment: Environment,
    /// Bytes per second that a core of this machine copies.
    pub copy_bytes_per_second: f64,
    /// Pairs that were wanted.
    pub pairs: u32,
    pub rows: Vec<Judged>,
}

/// The pairs of a case. Without a figure of one side, a pair has that of the other.
#[derive(Default)]
struct CaseSamples {
    pairs: Vec<[Option<Vec<f64>>; 2]>,
    /// Why a side has no figure.
    notes: [Option<String>; 2],
    disturbances: Vec<Disturbance>,
}

impl CaseSamples {
    /// Whether a side has failed in all undisturbed runs: it will in the next one, too.
    fn has_failed(&self, side: usize) -> bool {
        let has_figure = |pair: &[Option<_>; 2]| pair[side].is_some();
        !self.pairs.is_empty() && !self.pairs.iter().any(has_figure)
    }

    fn add(&mut self, figures: [Option<Figures>; 2], disturbance: Disturbance) {
        let mut side = 0;
        let pair = figures.map(|figures| {
            let figures =
                figures.and_then(|it| it.map_err(|why| self.notes[side] = Some(why)).ok());
            side += 1;
            figures
        });
        match disturbance.is_too_much() {
            true => self.disturbances.push(disturbance),
            false => self.pairs.push(pair),
        }
    }

    /// The figures of a row, of both sides.
    fn of(&self, row: usize) -> impl Iterator<Item = [Option<f64>; 2]> {
        let figure = move |side: &Option<Vec<f64>>| side.as_ref()?.get(row).copied();
        self.pairs.iter().map(move |[ours, peer]| [figure(ours), figure(peer)])
    }
}

/// Measures all cases until each has so many pairs. `report` gets progress messages.
pub fn compare(config: &RunConfig, pairs: u32, mut report: impl FnMut(&str)) -> Comparison {
    let environment = Environment::now(config.fifo);
    let copy = machine::run_pinned(config.cores[0], machine::copy);
    let mut samples: Vec<_> = CASES.iter().map(|_| CaseSamples::default()).collect();
    for run in 1..=pairs * RUNS_PER_PAIR_MAX {
        for (case, samples) in CASES.iter().zip(&mut samples) {
            if samples.pairs.len() < pairs as usize {
                report(&format!("run {run} of {pairs}: {}", case.rows[0].what));
                let disturbance = measure(case, samples, (config, copy), run.is_multiple_of(2));
                if disturbance.is_too_much() {
                    report(&format!("  does not count: {disturbance}"));
                }
            }
        }
    }
    let rows = CASES.iter().zip(&samples);
    let rows = rows.flat_map(|(case, samples)| {
        (0..).zip(case.rows).map(|(nth, row)| judge(case, row, nth, samples))
    });
    Comparison { environment, copy_bytes_per_second: copy, pairs, rows: rows.collect() }
}

/// Measures a pair.
fn measure(
    case: &ComparisonCase,
    samples: &mut CaseSamples,
    (config, copy): (&RunConfig, f64),
    peer_is_first: bool,
) -> Disturbance {
    let watch = Watch::start();
    let mut figures = [None, None];
    let order = if peer_is_first { [1, 0] } else { [0, 1] };
    for side in order.into_iter().filter(|side| !samples.has_failed(*side)) {
        let measure = [Some(case.ours), case.peer][side];
        figures[side] = measure.map(|measure| check(case.rows, copy, measure(config)?));
    }
    let disturbance = watch.end();
    samples.add(figures, disturbance);
    disturbance
}

/// Refuses figures that cannot be.
fn check(rows: &[Row], copy: f64, figures: Vec<f64>) -> Figures {
    for (row, figure) in rows.iter().zip(&figures) {
        if !figure.is_normal() || *figure < 0.0 {
            return Err(format!("impossible: {figure} {}", row.unit));
        }
        let copied = copy * 1e-9;
        if row.unit == "GB/s" && *figure > copied * COPIES_MAX {
            let figure = three_digits(*figure);
            return Err(format!("impossible: {figure} GB/s, where a core copies {copied:.1}"));
        }
    }
    Ok(figures)
}

fn judge(case: &ComparisonCase, row: &Row, nth: usize, samples: &CaseSamples) -> Judged {
    let notes = ["ours", case.reference].into_iter().zip(&samples.notes);
    let notes = notes.filter_map(|(of, note)| Some(format!("{of}: {}", note.as_ref()?)));
    let disturbed = samples.disturbances.last();
    let disturbed = disturbed.map(|last| {
        format!("pairs that do not count: {}, the last since {last}", samples.disturbances.len())
    });
    let notes: Vec<_> = notes.chain(disturbed).collect();
    let of_side = |side: usize| {
        let figures = samples.of(nth).filter_map(|pair| pair[side]);
        Some(Estimate::of(figures.collect())?.median)
    };
    let judged: Vec<f64> = match case.peer {
        None => samples.of(nth).filter_map(|[ours, _]| ours).collect(),
        Some(_) => samples.of(nth).filter_map(|[ours, peer]| Some(ours? / peer?)).collect(),
    };
    let pairs = judged.len();
    let estimate = Estimate::of(judged);
    Judged {
        id: row.id,
        what: row.what,
        ours: of_side(0),
        peer: of_side(1),
        unit: row.unit,
        ratio: estimate.map(|estimate| estimate.median),
        interval: estimate.and_then(|estimate| estimate.interval),
        pairs,
        disturbed: samples.disturbances.len(),
        budget: row.budget.to_string(),
        verdict: estimate.map(|estimate| row.budget.judge(&estimate)),
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
        write!(f, "medians of {} pairs", self.pairs)?;
        match self.pairs < DECIDING_MIN {
            true => writeln!(f, ", which decide nothing: that takes {DECIDING_MIN}\n")?,
            false => writeln!(f, ", and the interval of each ratio at 95 %\n")?,
        }
        writeln!(f, "| what | ours | peer | reference | ratio | budget | |")?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        let number = |value: Option<f64>| value.map_or("-".into(), three_digits);
        for row in &self.rows {
            let verdict = row.verdict.map_or("-".into(), |verdict| verdict.to_string());
            let (ours, peer) = (number(row.ours), number(row.peer));
            let interval = row.interval.map(|ends| ends.map(three_digits));
            let interval = interval.map(|[least, most]| format!(" ({least} to {most})"));
            let ratio = row.ratio.filter(|_| !row.reference.is_empty());
            let ratio = ratio.map(|ratio| format!("{} x", three_digits(ratio)));
            let ratio = ratio.map_or("-".into(), |it| it + &interval.unwrap_or_default());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::Budget;

    const QUIET: Disturbance = Disturbance { others: 0.01, stolen: 0.0, seconds: 1.0 };
    const LOUD: Disturbance = Disturbance { others: 0.5, stolen: 0.0, seconds: 1.0 };

    fn samples(pairs: &[[f64; 2]]) -> CaseSamples {
        let mut samples = CaseSamples::default();
        for pair in pairs {
            samples.add(pair.map(|figure| Some(Ok(vec![figure]))), QUIET);
        }
        samples
    }

    fn case() -> &'static ComparisonCase {
        CASES.iter().find(|case| case.peer.is_some()).expect("there are peers")
    }

    #[test]
    fn a_row_is_the_median_of_the_ratios_of_pairs_and_decided_by_its_interval() {
        let case = case();
        let pairs = [[3.0, 6.0], [1.0, 4.0], [2.0, 1.0], [2.0, 4.0], [1.0, 2.0], [3.0, 6.0]];
        let judge_by = |budget| judge(case, &Row { budget, ..case.rows[0] }, 0, &samples(&pairs));
        let judged = judge_by(Budget::AtMost(0.5));
        assert_eq!((judged.ours, judged.peer, judged.ratio), (Some(2.0), Some(4.0), Some(0.5)));
        assert_eq!((judged.interval, judged.pairs), (Some([0.25, 2.0]), 6));
        assert_eq!((judged.verdict, judged.note), (Some(BudgetVerdict::NotDecided), None));
        assert_eq!(judge_by(Budget::AtMost(2.0)).verdict, Some(BudgetVerdict::Met));
        assert_eq!(judge_by(Budget::AtLeast(2.5)).verdict, Some(BudgetVerdict::Missed));
    }

    #[test]
    fn a_disturbed_pair_does_not_count_and_is_noted() {
        let case = case();
        let mut samples = samples(&[[1.0, 1.0]]);
        samples.add([Some(Ok(vec![9.0])), Some(Ok(vec![1.0]))], LOUD);
        let judged = judge(case, &case.rows[0], 0, &samples);
        assert_eq!((judged.ratio, judged.pairs, judged.disturbed), (Some(1.0), 1, 1));
        let note = judged.note.expect("it is noted");
        assert!(
            note.contains("pairs that do not count: 1, the last since other programs took 50 %"),
            "{note}"
        );
    }

    #[test]
    fn a_missing_figure_is_noted_and_not_judged() {
        let case = case();
        let mut samples = CaseSamples::default();
        assert!(!samples.has_failed(1));
        samples.add([Some(Ok(vec![1.0])), Some(Err("it is not installed".into()))], QUIET);
        assert!(samples.has_failed(1) && !samples.has_failed(0));
        let judged = judge(case, &case.rows[0], 0, &samples);
        assert_eq!((judged.peer, judged.ratio, judged.verdict), (None, None, None));
        assert!(judged.note.is_some_and(|note| note.contains("it is not installed")));
    }

    #[test]
    fn a_figure_that_cannot_be_is_refused() {
        let row = |unit| [Row { id: "", what: "", unit, budget: Budget::AtMost(1.0) }];
        let check = |unit, figure| check(&row(unit), 10e9, vec![figure]);
        for figure in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(check("ns", figure).is_err(), "{figure}");
        }
        assert_eq!(check("GB/s", 12.0), Ok(vec![12.0]));
        let error = check("GB/s", 13.0).expect_err("it is faster than memory");
        assert_eq!(error, "impossible: 13.0 GB/s, where a core copies 10.0");
        assert_eq!(check("ns", 13.0), Ok(vec![13.0]));
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
        let environment = Environment::now(None);
        let comparison = Comparison { environment, copy_bytes_per_second: 1.0, pairs: 1, rows };
        let value = serde_json::to_value(&comparison).expect("it is JSON");
        for row in value["rows"].as_array().expect("there are rows") {
            let row = row.as_object().expect("a row is an object");
            for field in ["id", "ours", "peer", "unit", "ratio", "interval", "budget", "verdict"] {
                assert!(row.contains_key(field), "{field} is missing: {row:?}");
            }
        }
        let cases = CASES.iter().filter(|case| case.peer.is_some());
        let with_peer: usize = cases.map(|case| case.rows.len()).sum();
        assert_eq!(comparison.without_peer().count(), with_peer);
        assert!(comparison.to_string().contains("1 pairs, which decide nothing: that takes 6"));
    }
}
