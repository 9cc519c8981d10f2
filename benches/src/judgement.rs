//! Statistics of repeated measurements: the median, its confidence interval, and the verdict on a
//! budget.
//!
//! The interval depends only on the order of the values. Each value is below the true median with
//! probability 1/2, so the number of values below it has a binomial distribution. The kth smallest
//! and kth largest values therefore enclose the median with a known probability. Why not a mean and
//! a standard deviation: run times are skewed, and one pause of the machine can outweigh all other
//! values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The probability, at most, that an interval does not contain the median.
const ERROR_MAX: f64 = 0.05;

/// The minimum number of values for an interval. The smallest and largest of five values enclose
/// the median with a probability of only 94 %.
pub const DECIDING_MIN: u32 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    pub median: f64,
    /// The confidence interval of the median at 95 % or more; `None` for fewer than
    /// [`DECIDING_MIN`] values.
    pub interval: Option<[f64; 2]>,
}

impl Estimate {
    /// Returns `None` without values.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (last, rank) = (values.len().checked_sub(1)?, rank(values.len()));
        let median = f64::midpoint(values[last / 2], values[last.div_ceil(2)]);
        let interval = rank.map(|rank| [values[rank], values[last - rank]]);
        Some(Self { median, interval })
    }

    /// The same as [`Self::of`], for values that are not empty.
    ///
    /// # Panics
    /// If there are no values.
    pub fn of_rounds(values: Vec<f64>) -> Self {
        Self::of(values).expect("there is a round")
    }

    /// The estimate multiplied by a factor, to convert its unit.
    pub fn scaled(self, by: f64) -> Self {
        let interval = self.interval.map(|ends| ends.map(|end| end * by));
        Self { median: self.median * by, interval }
    }
}

/// The number of smallest values, and also of largest values, that are outside of the interval.
fn rank(count: usize) -> Option<usize> {
    // The probability that exactly, or at most, `below` values are below the median.
    let mut exactly = 0.5f64.powi(count as i32);
    let mut at_most = exactly;
    let mut outside = None;
    for below in 0..count {
        if 2.0 * at_most > ERROR_MAX {
            break;
        }
        outside = Some(below);
        exactly *= (count - below) as f64 / (below + 1) as f64;
        at_most += exactly;
    }
    outside
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    AtMost(f64),
    AtLeast(f64),
    /// Both ends included.
    Within([f64; 2]),
}

impl Budget {
    /// The smallest and the largest value that meet the budget.
    const fn range(self) -> [f64; 2] {
        match self {
            Self::AtMost(bound) => [f64::NEG_INFINITY, bound],
            Self::AtLeast(bound) => [bound, f64::INFINITY],
            Self::Within(range) => range,
        }
    }

    /// The budget is met if the whole interval is within the budget's range, and missed if it is
    /// entirely outside. Otherwise it is not decided.
    pub fn judge(self, estimate: &Estimate) -> BudgetVerdict {
        let ([low, high], Some([least, most])) = (self.range(), estimate.interval) else {
            return BudgetVerdict::NotDecided;
        };
        if low <= least && most <= high {
            BudgetVerdict::Met
        } else if most < low || high < least {
            BudgetVerdict::Missed
        } else {
            BudgetVerdict::NotDecided
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "<= {bound}"),
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
            Self::Within([low, high]) => write!(f, "{low} to {high}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BudgetVerdict {
    Met,
    Missed,
    /// The bound is within the interval, or there are too few values for an
    /// interval.
    NotDecided,
}

impl fmt::Display for BudgetVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::NotDecided => "not decided",
        })
    }
}

/// Formats a number with at least three significant digits, so that small values do not read as
/// zero.
pub fn three_digits(value: f64) -> String {
    let magnitude = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    format!("{value:.*}", (2 - magnitude).clamp(0, 12) as usize)
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&three_digits(self.median))?;
        match self.interval.map(|ends| ends.map(three_digits)) {
            Some([least, most]) => write!(f, " ({least} to {most})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_verbs::rng::SeededRng;

    fn estimate(values: impl IntoIterator<Item = u32>) -> Estimate {
        Estimate::of(values.into_iter().map(f64::from).collect()).expect("there are values")
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(Estimate::of(Vec::new()), None);
        assert_eq!(estimate([3, 1, 2]).median, 2.0);
        assert_eq!(estimate([4, 1, 3, 2]).median, 2.5);
    }

    /// Expected values are the critical values of the two-sided sign test at 5 %, from published
    /// tables.
    #[test]
    fn intervals_have_the_ranks_of_tables() {
        let ranks = [1, 5, 6, 8, 9, 11, 12, 15, 20, 25, 30, 40, 50].map(rank);
        let expected =
            [None, None, Some(0), Some(0), Some(1), Some(1), Some(2), Some(3), Some(5), Some(7)];
        assert_eq!(ranks[..10], expected);
        assert_eq!(ranks[10..], [Some(9), Some(13), Some(17)]);
        assert_eq!(estimate(1..=7).interval, Some([1.0, 7.0]));
        assert_eq!(estimate(1..=20).interval, Some([6.0, 15.0]));
        assert_eq!(estimate(1..DECIDING_MIN).interval, None);
        assert!(estimate(1..=DECIDING_MIN).interval.is_some());
    }

    /// Draws from a skewed distribution, as run times have, and counts how many of 1,000 intervals
    /// contain its median.
    #[test]
    fn an_interval_holds_the_median_as_often_as_it_says() {
        let mut rng = SeededRng::new(1);
        for count in [6, 7, 20] {
            let mut value = || {
                let uniform = (rng.below(1 << 20) + 1) as f64 / f64::from(1 << 20);
                100.0 - 30.0 * uniform.ln()
            };
            let median = 100.0 - 30.0 * 0.5f64.ln();
            let mut interval = || Estimate::of((0..count).map(|_| value()).collect())?.interval;
            let holds = |[least, most]: [f64; 2]| least <= median && median <= most;
            let held = (0..1000).filter(|_| interval().is_some_and(holds)).count();
            assert!((950..1000).contains(&held), "{held} of 1,000 with {count} values");
        }
    }

    #[test]
    fn a_budget_within_the_interval_is_not_decided() {
        let at_most = |bound| Budget::AtMost(bound).judge(&estimate(10..=16));
        assert_eq!([9.0, 10.0, 13.0, 15.9, 16.0].map(at_most), {
            use BudgetVerdict::{Met, Missed, NotDecided};
            [Missed, NotDecided, NotDecided, NotDecided, Met]
        });
        assert_eq!(Budget::AtLeast(10.0).judge(&estimate(10..=16)), BudgetVerdict::Met);
        assert_eq!(Budget::AtLeast(10.5).judge(&estimate(10..=16)), BudgetVerdict::NotDecided);
        let within = |range| Budget::Within(range).judge(&estimate(10..=16));
        assert_eq!(within([10.0, 16.0]), BudgetVerdict::Met);
        assert_eq!(within([17.0, 20.0]), BudgetVerdict::Missed);
        assert_eq!(within([12.0, 14.0]), BudgetVerdict::NotDecided, "it is on both sides");
        assert_eq!(
            Budget::AtMost(99.0).judge(&estimate([1, 1, 1])),
            BudgetVerdict::NotDecided,
            "of 3"
        );
    }

    #[test]
    fn no_figure_but_zero_reads_as_zero() {
        let texts = [0.0, 0.004_321, 0.5, 1.0, 12.345, 999.6, 1234.5].map(three_digits);
        assert_eq!(texts, ["0.00", "0.00432", "0.500", "1.00", "12.3", "1000", "1234"]);
    }
}
