//! Compares Pollux with peer programs, in pairs of measurements on the same cores.
//!
//! The load of a machine changes from second to second, so the figures of two programs are
//! comparable only if both ran at about the same time. Each run measures every case once, as a
//! pair. Our program is first in odd runs and the peer in even runs, because the second program of
//! a pair finds warm caches and a higher clock frequency. A row is the median of the ratios of its
//! pairs, with an interval ([`crate::judgement`]).
//!
//! A disturbed pair does not count, and is measured again ([`crate::disturbance`]). An impossible
//! figure, such as a throughput above the rate at which a core copies memory, does not count
//! either.

pub mod cases;

use crate::controls::Controls;
use crate::disturbance::{Disturbance, Watch};
use crate::environment::Environment;
use crate::judgement::{Budget, DECIDING_MIN, Estimate, three_digits};
use crate::peers::{self, RunConfig};
use crate::stored::{Better, Compared, RowSource, StoredRow, StoredRun};
use cases::{CASES, ComparisonCase, Figures, Row};
use std::fmt;

/// Runs per requested pair, at most. The additional runs replace disturbed pairs.
const RUNS_PER_PAIR_MAX: u32 = 2;
/// A throughput above this multiple of the copy rate of a core is impossible.
const COPIES_MAX: f64 = 1.25;

/// The results of a case.
#[derive(Default)]
struct CaseSamples {
    /// Undisturbed pairs of our figures and the peer's; `None` for a side that gave none.
    pairs: Vec<[Option<Vec<f64>>; 2]>,
    /// The last error of each side.
    notes: [Option<String>; 2],
    disturbances: Vec<Disturbance>,
}

impl CaseSamples {
    /// Whether a side failed in all undisturbed runs. It is not measured again.
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

    /// The figures of both sides for a row, of each pair.
    fn of(&self, row: usize) -> impl Iterator<Item = [Option<f64>; 2]> {
        let figure = move |side: &Option<Vec<f64>>| side.as_ref()?.get(row).copied();
        self.pairs.iter().map(move |[ours, peer]| [figure(ours), figure(peer)])
    }
}

/// Measures all cases until each has `pairs` undisturbed pairs, but in at most twice as many runs.
/// `report` gets progress messages.
pub fn compare(config: &RunConfig, pairs: u32, mut report: impl FnMut(&str)) -> StoredRun {
    let controls = Controls::measure(config.cores);
    let mut stored = StoredRun::new(Environment::now(config.fifo), controls);
    let mut samples: Vec<_> = CASES.iter().map(|_| CaseSamples::default()).collect();
    for run in 1..=pairs * RUNS_PER_PAIR_MAX {
        for (case, samples) in CASES.iter().zip(&mut samples) {
            if samples.pairs.len() < pairs as usize {
                report(&format!("run {run}, for {pairs} pairs: {}", case.rows[0].what));
                let copy = controls.copy_bytes_per_second;
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
    (stored.rows, stored.peers) = (rows.collect(), peers::versions());
    stored
}

/// Measures one pair, without sides that always fail. Returns how disturbed the machine was.
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
    let disturbance = watch.end(0.0);
    samples.add(figures, disturbance);
    disturbance
}

/// Refuses impossible figures: zero, negative, infinite, or above the copy rate of a core.
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

fn judge(case: &ComparisonCase, row: &Row, nth: usize, samples: &CaseSamples) -> StoredRow {
    let notes = ["ours", case.reference].into_iter().zip(&samples.notes);
    let notes = notes.filter_map(|(of, note)| Some(format!("{of}: {}", note.as_ref()?)));
    let notes: Vec<_> = notes.collect();
    let of_side = |side: usize| samples.of(nth).filter_map(|pair| pair[side]).collect::<Vec<f64>>();
    let figures: Vec<f64> = match case.peer {
        None => of_side(0),
        Some(_) => samples.of(nth).filter_map(|[ours, peer]| Some(ours? / peer?)).collect(),
    };
    let estimate = Estimate::of(figures.clone());
    StoredRow {
        name: row.id.into(),
        unit: if case.peer.is_some() { RATIO } else { row.unit }.into(),
        better: match row.budget {
            Budget::AtMost(_) | Budget::Within(_) => Better::Less,
            Budget::AtLeast(_) => Better::More,
        },
        figures,
        estimate,
        disturbed: samples.disturbances.len(),
        disturbed_by: samples.disturbances.last().map(ToString::to_string),
        is_spoiled: false,
        source: RowSource::Compared(Compared {
            what: row.what.into(),
            unit: row.unit.into(),
            ours: of_side(0),
            peer: of_side(1),
            reference: case.reference.into(),
            budget: row.budget,
            verdict: estimate.map(|estimate| row.budget.judge(&estimate)),
            note: (!notes.is_empty()).then(|| notes.join("; ")),
        }),
    }
}

/// The unit of ratios.
const RATIO: &str = "x";

/// The names of the rows whose peer gave no figure.
pub fn without_peer(run: &StoredRun) -> Vec<&str> {
    let lacks = |row: &&StoredRow| {
        row.compared().is_some_and(|it| !it.reference.is_empty() && it.peer.is_empty())
    };
    run.rows.iter().filter(lacks).map(|row| row.name.as_str()).collect()
}

/// Prints the rows of comparisons as a Markdown table, and their notes below it. Without such rows,
/// prints nothing.
pub struct RatioTable<'a>(pub &'a [StoredRow]);

impl fmt::Display for RatioTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compared = || self.0.iter().filter_map(|row| Some((row, row.compared()?)));
        let Some(pairs) = compared().map(|(row, _)| row.figures.len()).max() else {
            return Ok(());
        };
        write!(f, "medians of {pairs} pairs")?;
        match pairs < DECIDING_MIN as usize {
            true => writeln!(f, ", which decide nothing: that takes {DECIDING_MIN}\n")?,
            false => writeln!(f, ", and the interval of each ratio at 95 %\n")?,
        }
        writeln!(f, "| what | ours | peer | reference | ratio | budget | |")?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        for (row, compared) in compared() {
            let Compared { what, unit, reference, budget, .. } = compared;
            let median = |figures: &Vec<f64>| {
                let estimate = Estimate::of(figures.clone());
                estimate.map_or("-".into(), |estimate| three_digits(estimate.median))
            };
            let [ours, peer] = [&compared.ours, &compared.peer].map(median);
            let ratio = row.estimate.filter(|_| row.unit == RATIO);
            let ratio = ratio.map_or("-".into(), |estimate| estimate.to_string());
            let verdict = compared.verdict.map_or("-".into(), |verdict| verdict.to_string());
            writeln!(
                f,
                "| {what} | {ours} {unit} | {peer} | {reference} | {ratio} | {budget} | {verdict} |"
            )?;
        }
        for (row, compared) in compared() {
            if let Some(note) = &compared.note {
                write!(f, "\n{}: {note}", row.name)?;
            }
            if let Some(by) = &row.disturbed_by {
                write!(f, "\n{}: pairs that do not count: {}, ", row.name, row.disturbed)?;
                write!(f, "the last since {by}")?;
            }
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::BudgetVerdict;

    const QUIET: Disturbance =
        Disturbance { others_cores: 0.01, stolen_cores: 0.0, throttled: 0, seconds: 1.0 };
    const LOUD: Disturbance = Disturbance { others_cores: 0.5, ..QUIET };

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

    fn verdict(row: &StoredRow) -> Option<BudgetVerdict> {
        row.compared().expect("it is compared").verdict
    }

    #[test]
    fn a_row_is_the_median_of_the_ratios_of_pairs_and_decided_by_its_interval() {
        let case = case();
        let pairs = [[3.0, 6.0], [1.0, 4.0], [2.0, 1.0], [2.0, 4.0], [1.0, 2.0], [3.0, 6.0]];
        let judge_by = |budget| judge(case, &Row { budget, ..case.rows[0] }, 0, &samples(&pairs));
        let row = judge_by(Budget::AtMost(0.5));
        assert_eq!(row.estimate, Some(Estimate { median: 0.5, interval: Some([0.25, 2.0]) }));
        assert_eq!((row.figures.len(), row.disturbed), (6, 0));
        let compared = row.compared().expect("it is compared");
        assert_eq!((compared.ours[2], compared.peer[2]), (2.0, 1.0));
        assert_eq!(verdict(&row), Some(BudgetVerdict::NotDecided));
        assert_eq!(verdict(&judge_by(Budget::AtMost(2.0))), Some(BudgetVerdict::Met));
        assert_eq!(verdict(&judge_by(Budget::AtLeast(2.5))), Some(BudgetVerdict::Missed));
    }

    #[test]
    fn a_disturbed_pair_does_not_count_and_is_noted() {
        let case = case();
        let mut samples = samples(&[[1.0, 1.0]]);
        samples.add([Some(Ok(vec![9.0])), Some(Ok(vec![1.0]))], LOUD);
        let row = judge(case, &case.rows[0], 0, &samples);
        assert_eq!((&row.figures[..], row.disturbed), (&[1.0][..], 1));
        let text = RatioTable(&[row]).to_string();
        let noted = "pairs that do not count: 1, the last since other programs took 50 %";
        assert!(text.contains(noted), "{text}");
        assert!(text.contains("1 pairs, which decide nothing: that takes 6"), "{text}");
    }

    #[test]
    fn a_missing_figure_is_noted_and_not_judged() {
        let case = case();
        let mut samples = CaseSamples::default();
        assert!(!samples.has_failed(1));
        samples.add([Some(Ok(vec![1.0])), Some(Err("it is not installed".into()))], QUIET);
        assert!(samples.has_failed(1) && !samples.has_failed(0));
        let row = judge(case, &case.rows[0], 0, &samples);
        assert_eq!((row.estimate, verdict(&row)), (None, None));
        assert!(RatioTable(&[row]).to_string().contains("it is not installed"));
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
    fn every_row_has_a_name_of_its_own_and_none_has_a_figure_without_a_measurement() {
        let rows = CASES
            .iter()
            .flat_map(|case| (0..).zip(case.rows).map(move |(nth, row)| (case, nth, row)))
            .map(|(case, nth, row)| judge(case, row, nth, &Default::default()));
        let controls = Controls { copy_bytes_per_second: 1.0, cache_line_ns: None };
        let mut run = StoredRun::new(Environment::now(None), controls);
        run.rows = rows.collect();
        let names: std::collections::BTreeSet<_> = run.rows.iter().map(|row| &row.name).collect();
        assert_eq!(names.len(), run.rows.len());
        assert!(run.rows.iter().all(|row| row.estimate.is_none() && verdict(row).is_none()));
        let cases = CASES.iter().filter(|case| case.peer.is_some());
        let with_peer: usize = cases.map(|case| case.rows.len()).sum();
        assert_eq!(without_peer(&run).len(), with_peer);
    }
}
