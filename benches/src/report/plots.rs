//! The plots of a run.

use super::plot::{Axis, Mark, Plot};
use crate::judgement::three_digits;
use crate::plan::{Measured, Plan, What};
use crate::samples::Latency;
use crate::stored::{self, StoredRow, StoredRun};

/// The largest number of sizes whose labels fit on an axis.
const SIZES_AS_TICKS_MAX: usize = 8;

/// All plots of a run: first those of sweeps, then those of each row.
pub fn all(run: &StoredRun) -> Vec<Plot> {
    let of_row = |row| percentiles(row).into_iter().chain([rounds(row)]);
    let with_figures = run.rows.iter().filter(|row| !row.figures.is_empty());
    sweeps(run).into_iter().chain(with_figures.flat_map(of_row)).collect()
}

/// One plot for each group of rows that differ only in message size.
fn sweeps(run: &StoredRun) -> Vec<Plot> {
    let mut sweeps: Vec<(String, Vec<(&Plan, &StoredRow)>)> = Vec::new();
    for (plan, row) in run.rows.iter().filter_map(|row| Some((row.measured()?.0, row))) {
        let kind = plan.kind();
        match sweeps.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, rows)) => rows.push((plan, row)),
            None => sweeps.push((kind, vec![(plan, row)])),
        }
    }
    sweeps.retain(|(_, rows)| rows.len() > 1);
    sweeps.into_iter().map(|(kind, rows)| sweep(kind, &rows)).collect()
}

fn sweep(title: String, rows: &[(&Plan, &StoredRow)]) -> Plot {
    let points =
        rows.iter().filter_map(|(plan, row)| Some((plan.bytes.into(), row.estimate?.median)));
    let line = Mark::Line { points: points.collect(), is_strong: true };
    let dots = rows.iter().filter_map(|(plan, row)| {
        let (estimate, bytes) = (row.estimate?, plan.bytes);
        let text = format!("{bytes} bytes: {estimate} {}", row.unit);
        Some(Mark::Dot { at: (bytes.into(), estimate.median), interval: estimate.interval, text })
    });
    let ticks = rows.iter().filter(|_| rows.len() <= SIZES_AS_TICKS_MAX);
    let ticks = ticks.map(|(plan, _)| (plan.bytes.into(), binary(plan.bytes))).collect();
    Plot {
        title,
        x: Axis { label: "bytes".into(), is_log: true, ticks },
        y: Axis { label: rows[0].1.unit.clone(), is_log: true, ticks: Vec::new() },
        marks: [line].into_iter().chain(dots).collect(),
    }
}

/// Formats a size with a binary prefix: 65536 as 64 Ki.
fn binary(bytes: u32) -> String {
    match bytes {
        whole if whole >= 1 << 20 && whole.is_multiple_of(1 << 20) => format!("{} Mi", whole >> 20),
        whole if whole >= 1 << 10 && whole.is_multiple_of(1 << 10) => format!("{} Ki", whole >> 10),
        other => other.to_string(),
    }
}

/// The latency at each percentile: a line per round, and one for all rounds together.
fn percentiles(row: &StoredRow) -> Option<Plot> {
    // A logarithmic scale, on which each additional nine has the same width.
    let nines = |percent: f64| -(1.0 - percent / 100.0).log10();
    let line = |latency: &Latency, is_strong| {
        let known = latency.percentiles.iter().filter(|one| one.is_of(latency.samples));
        let points = known.map(|one| (nines(one.percent), one.ns));
        Mark::Line { points: points.collect(), is_strong }
    };
    let all = line(&row.latency()?, true);
    let ticks = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999];
    Some(Plot {
        title: format!("{}: percentiles", row.name),
        x: Axis {
            label: "percentile".into(),
            is_log: false,
            ticks: ticks.map(|part| (nines(part), part.to_string())).to_vec(),
        },
        y: Axis { label: row.unit.clone(), is_log: true, ticks: Vec::new() },
        marks: row.latencies().map(|latency| line(latency, false)).chain([all]).collect(),
    })
}

/// The figure of each round, in chronological order.
fn rounds(row: &StoredRow) -> Plot {
    let interval = row.estimate.and_then(|estimate| estimate.interval);
    let dots = row.figures.iter().zip(1u32..).map(|(figure, round)| Mark::Dot {
        at: (round.into(), *figure),
        interval: None,
        text: format!("round {round}: {} {}", three_digits(*figure), row.unit),
    });
    let duration = row.measured().map_or(1.0, |(plan, _)| plan.duration.as_secs_f64());
    // Draw the timeline of a round over the unit interval around the number of the round.
    let courses = row.measured().map_or(Vec::new(), |(plan, _)| {
        let course = |(one, round): (&Measured, u32)| {
            let points = stored::timeline(plan, &one.outcome).into_iter();
            let points =
                points.map(|[at, figure]| (f64::from(round) - 0.5 + at / duration, figure));
            Mark::Line { points: points.collect(), is_strong: false }
        };
        let has_course =
            |mark: &Mark| matches!(mark, Mark::Line { points, .. } if !points.is_empty());
        row.counted().zip(1u32..).map(course).filter(has_course).collect()
    });
    let what = match row.measured().map(|(plan, _)| plan.what) {
        Some(What::Lat) => "median of each round, and mean over time",
        Some(_) => "each round",
        None => "each pair",
    };
    Plot {
        title: format!("{}: {what}", row.name),
        x: Axis {
            label: "round".into(),
            is_log: false,
            ticks: (1..=row.figures.len() as u32)
                .filter(|round| row.figures.len() <= 12 || round % 5 == 0)
                .map(|round| (round.into(), round.to_string()))
                .collect(),
        },
        y: Axis { label: row.unit.clone(), is_log: false, ticks: Vec::new() },
        marks: interval
            .map(|between| Mark::Band { between })
            .into_iter()
            .chain(courses)
            .chain(dots)
            .collect(),
    }
}
