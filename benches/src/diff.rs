//! Significant changes from one stored run to another.
//!
//! Each row is tested by the ranks of its figures (the Mann-Whitney U test). The test gives the
//! probability that two samples of the same distribution differ at least as much as these. The
//! probability is exact, not approximated by a normal distribution, so it holds for few rounds and
//! for equal values. At a level of 5 %, one in twenty unchanged rows would count as changed, so the
//! probabilities are corrected for the number of rows (Holm).

use crate::judgement::three_digits;
use crate::stored::{Better, StoredRow, StoredRun};
use serde::Serialize;
use std::fmt;

/// The probability, at most, that any row counts as changed although nothing changed.
const ERROR_MAX: f64 = 0.05;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    pub rows: Vec<DiffRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffRow {
    pub name: String,
    pub unit: String,
    /// The medians, of the first run and of the second.
    pub medians: [Option<f64>; 2],
    /// The change of the median in percent.
    pub change_percent: Option<f64>,
    /// The probability of such a difference by chance, corrected for the number of rows; `None` if
    /// one run does not have the row.
    pub probability: Option<f64>,
    pub movement: Movement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Movement {
    NotMoved,
    /// Undecided: with so few rounds, even the largest difference is not significant if only this
    /// row changed.
    TooFewRounds,
    /// Undecided: in one run, all rounds were disturbed.
    Disturbed,
    Better,
    Worse,
    /// Only the second run has the row.
    New,
    /// Only the first run has the row.
    Gone,
}

/// Compares two runs. A change below `least_percent` does not count, even if it is significant.
pub fn diff(before: &StoredRun, after: &StoredRun, least_percent: f64) -> Diff {
    let find = |record: &StoredRun, name: &str| -> Option<StoredRow> {
        record.rows.iter().find(|row| row.name == name).cloned()
    };
    let both = |row: &StoredRow| (Some(row.clone()), find(after, &row.name));
    let mut pairs: Vec<_> = before.rows.iter().map(both).collect();
    let is_new = |row: &&StoredRow| find(before, &row.name).is_none();
    pairs.extend(after.rows.iter().filter(is_new).map(|row| (None, Some(row.clone()))));
    let probabilities = pairs.iter().map(|pair| match pair {
        (Some(before), Some(after)) => Some(probability(&before.figures, &after.figures)),
        _ => None,
    });
    let probabilities = correct(probabilities.collect());
    // The correction multiplies the smallest probability by the number of rows.
    let count = probabilities.iter().flatten().count() as f64;
    let rows = pairs.iter().zip(probabilities);
    let rows = rows.map(|(pair, chance)| compare(pair, chance, count, least_percent));
    Diff { rows: rows.collect() }
}

fn compare(
    (before, after): &(Option<StoredRow>, Option<StoredRow>),
    probability: Option<f64>,
    count: f64,
    least_percent: f64,
) -> DiffRow {
    let median = |row: &Option<StoredRow>| Some(row.as_ref()?.estimate?.median);
    let medians = [median(before), median(after)];
    let change_percent = match medians {
        [Some(before), Some(after)] if before != 0.0 => Some((after / before - 1.0) * 100.0),
        _ => None,
    };
    let some = before.as_ref().or(after.as_ref()).expect("one run has the row");
    let is_spoiled = [before, after].into_iter().flatten().any(|row| row.is_spoiled);
    let is_certain = !is_spoiled && probability.is_some_and(|probability| probability <= ERROR_MAX);
    let movement = match (before, after, change_percent) {
        (None, ..) => Movement::New,
        (_, None, _) => Movement::Gone,
        (.., Some(change)) if is_certain && change.abs() >= least_percent => {
            match (change > 0.0) == (some.better == Better::More) {
                true => Movement::Better,
                false => Movement::Worse,
            }
        }
        _ if is_spoiled => Movement::Disturbed,
        (Some(before), Some(after), Some(change))
            if change.abs() >= least_percent
                && least_probability(before, after) * count > ERROR_MAX =>
        {
            Movement::TooFewRounds
        }
        _ => Movement::NotMoved,
    };
    let (name, unit) = (some.name.clone(), some.unit.clone());
    DiffRow { name, unit, medians, change_percent, probability, movement }
}

/// The smallest probability that samples of these sizes can have: all values of one sample are
/// above all values of the other.
fn least_probability(before: &StoredRow, after: &StoredRow) -> f64 {
    let (one, other) = (before.figures.len(), after.figures.len());
    let ways = (1..=one).map(|nth| (other + nth) as f64 / nth as f64).product::<f64>();
    (2.0 / ways).min(1.0)
}

/// The two-sided probability that two samples of the same distribution differ in their ranks at
/// least as much as these.
fn probability(one: &[f64], other: &[f64]) -> f64 {
    let mut pooled: Vec<(f64, bool)> = one.iter().map(|value| (*value, true)).collect();
    pooled.extend(other.iter().map(|value| (*value, false)));
    pooled.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Ranks are doubled to stay integers: equal values get the mean of their ranks.
    let mut ranks = Vec::new();
    for group in pooled.chunk_by(|a, b| a.0 == b.0) {
        let first = ranks.len();
        ranks.extend(group.iter().map(|(_, is_one)| (2 * first + group.len() + 1, *is_one)));
    }
    let sum: usize = ranks.iter().filter(|(_, is_one)| *is_one).map(|(rank, _)| rank).sum();
    let sums = sums_of(ranks.iter().map(|(rank, _)| *rank), one.len());
    let all: f64 = sums.iter().sum();
    let low: f64 = sums[..=sum].iter().sum();
    let high: f64 = sums[sum..].iter().sum();
    (2.0 * low.min(high) / all).min(1.0)
}

/// For each sum, the number of ways to take `chosen` of the ranks so that they add up to it.
fn sums_of(ranks: impl Iterator<Item = usize> + Clone, chosen: usize) -> Vec<f64> {
    let total: usize = ranks.clone().sum();
    let mut ways = vec![vec![0.0; total + 1]; chosen + 1];
    ways[0][0] = 1.0;
    for rank in ranks {
        for count in (1..=chosen).rev() {
            for sum in rank..=total {
                ways[count][sum] += ways[count - 1][sum - rank];
            }
        }
    }
    ways.swap_remove(chosen)
}

/// Holm's correction: multiplies the smallest of n probabilities by n, the next by n - 1, and so
/// on, and keeps their order.
fn correct(probabilities: Vec<Option<f64>>) -> Vec<Option<f64>> {
    let mut order: Vec<_> =
        (0..probabilities.len()).filter(|nth| probabilities[*nth].is_some()).collect();
    order.sort_by(|a, b| probabilities[*a].partial_cmp(&probabilities[*b]).expect("numbers"));
    let mut corrected = probabilities;
    let mut least = 0.0f64;
    for (done, nth) in order.iter().enumerate() {
        corrected[*nth] = corrected[*nth].map(|one| {
            least = least.max(one * (order.len() - done) as f64).min(1.0);
            least
        });
    }
    corrected
}

impl Diff {
    pub fn is_worse(&self) -> bool {
        self.rows.iter().any(|row| row.movement == Movement::Worse)
    }

    /// Whether a row is undecided, or missing from the second run.
    pub fn is_incomplete(&self) -> bool {
        let incomplete = [Movement::TooFewRounds, Movement::Disturbed, Movement::Gone];
        self.rows.iter().any(|row| incomplete.contains(&row.movement))
    }

    fn count(&self, movement: Movement) -> usize {
        self.rows.iter().filter(|row| row.movement == movement).count()
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moved = self.rows.iter().filter(|row| row.movement != Movement::NotMoved);
        for row in moved {
            let median = |nth: usize| row.medians[nth].map_or("-".into(), three_digits);
            let DiffRow { name, unit, change_percent, probability, movement, .. } = row;
            write!(f, "{movement}: {name}: {} -> {} {unit}", median(0), median(1))?;
            if let (Some(change), Some(probability)) = (change_percent, probability) {
                write!(f, ", {change:+.1} %, p = {}", three_digits(*probability))?;
            }
            writeln!(f)?;
        }
        let kinds = [Movement::Worse, Movement::Better, Movement::New, Movement::Gone];
        let unknown = [Movement::Disturbed, Movement::TooFewRounds].map(|kind| self.count(kind));
        match (kinds.map(|kind| self.count(kind)), unknown) {
            ([0, 0, 0, 0], [0, 0]) => match self.rows.len() {
                1 => writeln!(f, "nothing moved, in 1 row"),
                rows => writeln!(f, "nothing moved, in {rows} rows"),
            },
            ([worse, better, new, gone], [disturbed, few]) => writeln!(
                f,
                "of {} rows, {worse} worse, {better} better, {new} new, {gone} gone, \
                 {disturbed} disturbed, {few} with too few rounds to say",
                self.rows.len()
            ),
        }
    }
}

impl fmt::Display for Movement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotMoved => "not moved",
            Self::TooFewRounds => "too few rounds to say",
            Self::Disturbed => "disturbed",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::New => "new",
            Self::Gone => "gone",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controls::Controls;
    use crate::environment::Environment;
    use crate::judgement::Estimate;
    use crate::plan::{Layer, MeasuredTransport, Plan, What};
    use crate::stored::RowSource;

    const CONTROLS: Controls = Controls { copy_bytes_per_second: 10e9, cache_line_ns: None };

    fn record(rows: &[(&str, Better, &[f64])]) -> StoredRun {
        let mut record = StoredRun::new(Environment::now(None), CONTROLS);
        let row = |(name, better, figures): &(&str, Better, &[f64])| StoredRow {
            name: (*name).into(),
            unit: "ns".into(),
            better: *better,
            figures: figures.to_vec(),
            estimate: Estimate::of(figures.to_vec()),
            disturbed: 0,
            disturbed_by: None,
            is_spoiled: false,
            source: RowSource::Measured {
                plan: Plan::new(What::Lat, Layer::Verbs, MeasuredTransport::Rc, 64),
                outcomes: Vec::new(),
            },
        };
        record.rows = rows.iter().map(row).collect();
        record
    }

    const FAST: [f64; 7] = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0];
    const SLOW: [f64; 7] = [20.0, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0];

    /// Expected values are those of published tables of the test.
    #[test]
    fn probabilities_are_those_of_tables() {
        let close = |one: f64, other: f64| (one - other).abs() < 1e-9;
        assert!(close(probability(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 2.0 / 20.0));
        assert!(close(probability(&[1.0, 2.0, 4.0], &[3.0, 5.0, 6.0]), 4.0 / 20.0));
        assert!(close(probability(&FAST, &SLOW), 2.0 / 3432.0));
        assert!(close(probability(&SLOW, &FAST), 2.0 / 3432.0));
        assert!(close(probability(&[1.0; 5], &[1.0; 5]), 1.0), "all the same");
        // 1, 2, 2 out of 1, 2, 2, 2, 3, 3: 3 of 20 subsets have this rank sum, and none has less.
        assert!(close(probability(&[1.0, 2.0, 2.0], &[2.0, 3.0, 3.0]), 6.0 / 20.0));
    }

    #[test]
    fn probabilities_are_corrected_for_their_number() {
        let corrected = correct(vec![Some(0.01), None, Some(0.04), Some(0.02), Some(0.9)]);
        assert_eq!(corrected, [Some(0.04), None, Some(0.08), Some(0.06), Some(0.9)]);
    }

    #[test]
    fn a_run_has_not_moved_from_itself() {
        let run = record(&[("a", Better::Less, &FAST), ("b", Better::More, &SLOW)]);
        let diff = diff(&run, &run, 0.0);
        assert_eq!(diff.to_string(), "nothing moved, in 2 rows\n");
        assert!(!diff.is_worse());
    }

    #[test]
    fn what_moved_is_named_with_its_direction() {
        let before = record(&[
            ("lat", Better::Less, &FAST),
            ("bw", Better::More, &FAST),
            ("old", Better::Less, &FAST),
        ]);
        let after = record(&[
            ("lat", Better::Less, &SLOW),
            ("bw", Better::More, &SLOW),
            ("new", Better::Less, &FAST),
        ]);
        let diff = diff(&before, &after, 2.0);
        let movements: Vec<_> = diff.rows.iter().map(|row| row.movement).collect();
        assert_eq!(movements, [Movement::Worse, Movement::Better, Movement::Gone, Movement::New]);
        assert!(diff.is_worse());
        let text = diff.to_string();
        assert!(text.starts_with("worse: lat: 13.0 -> 23.0 ns, +76.9 %, p = 0.00117"), "{text}");
        assert!(
            text.contains(
                "of 4 rows, 1 worse, 1 better, 1 new, 1 gone, 0 disturbed, 0 with too few"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_row_that_was_disturbed_in_all_rounds_says_nothing() {
        let (before, mut after) =
            (record(&[("lat", Better::Less, &FAST)]), record(&[("lat", Better::Less, &SLOW)]));
        after.rows[0].is_spoiled = true;
        let diff = diff(&before, &after, 0.0);
        assert!(!diff.is_worse());
        assert!(diff.to_string().contains("0 gone, 1 disturbed"), "{diff}");
        assert!(diff.is_incomplete());
    }

    #[test]
    fn a_change_that_is_small_or_may_be_chance_is_no_movement() {
        let run = |figures: &[f64]| record(&[("lat", Better::Less, figures)]);
        let before = run(&FAST);
        assert!(!diff(&before, &run(&SLOW), 80.0).is_worse(), "below the least");
        assert!(diff(&before, &run(&SLOW), 70.0).is_worse());
        let few = diff(&run(&FAST[..3]), &run(&SLOW[..3]), 2.0);
        assert!(!few.is_worse() && few.is_incomplete(), "of three each");
        assert!(few.to_string().starts_with("too few rounds to say: lat: 11.0 -> 21.0"), "{few}");
        assert!(!diff(&before, &run(&FAST), 2.0).is_incomplete());
    }
}
