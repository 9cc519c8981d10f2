//! The tables of a run: measured rows, and rows of comparisons.

use super::plot::escape;
use crate::judgement::{Estimate, three_digits};
use crate::plan::{Measured, MeasurementOutcome};
use crate::samples::Percentile;
use crate::stored::{Compared, StoredRow, StoredRun};
use std::fmt::{self, Write};

const CELL_OF_NUMBER_MAX: usize = 24;

/// Writes the tables that have rows.
pub fn write(run: &StoredRun, page: &mut String) -> fmt::Result {
    let heads = [
        "",
        "median",
        "interval",
        "unit",
        "99 %",
        "99.9 %",
        "max",
        "first message, ns",
        "cores busy",
        "rounds",
        "disturbed",
        "lost",
    ];
    let measured = run.rows.iter().filter_map(|row| Some(cells(row, row.measured()?.1)));
    table(page, &heads, measured)?;
    let heads = [
        "",
        "ours",
        "peer",
        "unit",
        "reference",
        "ratio",
        "interval",
        "budget",
        "",
        "pairs",
        "note",
    ];
    let compared = run.rows.iter().filter_map(|row| Some(cells_of_compared(row, row.compared()?)));
    table(page, &heads, compared)
}

fn table<const N: usize>(
    page: &mut String,
    heads: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> fmt::Result {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    let heads: String = heads.map(|head| format!("<th>{head}</th>")).concat();
    writeln!(page, "<div class=\"table\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>")?;
    for row in rows {
        let cells: String = row.map(|cell| cell_of(&cell)).concat();
        writeln!(page, "<tr>{cells}</tr>")?;
    }
    writeln!(page, "</tbody>\n</table></div>")
}

/// A table cell. Long text may break into lines, numbers may not.
fn cell_of(text: &str) -> String {
    let class = if text.len() > CELL_OF_NUMBER_MAX { " class=\"text\"" } else { "" };
    format!("<td{class}>{}</td>", escape(text))
}

fn cells(row: &StoredRow, outcomes: &[Measured]) -> [String; 12] {
    let digits = |value: Option<f64>| value.map_or("-".into(), three_digits);
    let median = |values: Vec<f64>| Estimate::of(values).map(|estimate| estimate.median);
    let latency = row.latency();
    let tail = |part: f64| {
        let latency = latency.as_ref()?;
        let is_of = |one: &&Percentile| one.percent == part && one.is_of(latency.samples);
        latency.percentiles.iter().find(is_of).map(|one| one.ns)
    };
    let firsts = row.latencies().map(|latency| latency.first_ns).collect();
    let busy = [0, 1].map(|end| {
        let cores = median(row.counted().filter_map(|one| one.cores_busy[end]).collect());
        cores.map_or("-".into(), |cores| format!("{cores:.2}"))
    });
    [
        row.name.clone(),
        digits(row.estimate.map(|estimate| estimate.median)),
        interval(row),
        row.unit.clone(),
        digits(tail(99.0)),
        digits(tail(99.9)),
        digits(latency.as_ref().map(|latency| latency.max_ns)),
        digits(median(firsts)),
        busy.join(" + "),
        format!("{} of {}", row.figures.len(), outcomes.len()),
        disturbed(row),
        row.counted().map(lost).sum::<u64>().to_string(),
    ]
}

fn cells_of_compared(row: &StoredRow, compared: &Compared) -> [String; 11] {
    let Compared { what, unit, ours, peer, reference, budget, verdict, note } = compared;
    let median = |figures: &Vec<f64>| {
        let estimate = Estimate::of(figures.clone());
        estimate.map_or("-".into(), |estimate| three_digits(estimate.median))
    };
    let ratio = row.estimate.filter(|_| !peer.is_empty());
    let disturbed = Some(disturbed(row)).filter(|text| text != "0");
    let notes: Vec<_> = note.clone().into_iter().chain(disturbed).collect();
    [
        what.clone(),
        median(ours),
        median(peer),
        unit.clone(),
        reference.clone(),
        ratio.map_or("-".into(), |estimate| three_digits(estimate.median)),
        interval(row),
        budget.to_string(),
        verdict.map_or("-".into(), |verdict| verdict.to_string()),
        row.figures.len().to_string(),
        notes.join("; "),
    ]
}

fn interval(row: &StoredRow) -> String {
    match row.estimate.and_then(|estimate| estimate.interval) {
        Some([least, most]) => format!("{} to {}", three_digits(least), three_digits(most)),
        None => "-".into(),
    }
}

/// The number of disturbed rounds or pairs, and the cause of the last disturbance.
fn disturbed(row: &StoredRow) -> String {
    match &row.disturbed_by {
        Some(by) => format!("{}: {by}", row.disturbed),
        None => "0".into(),
    }
}

fn lost(one: &Measured) -> u64 {
    match &one.outcome {
        MeasurementOutcome::Latency(latency) => latency.lost,
        MeasurementOutcome::OneWay { lost, .. } => *lost,
        MeasurementOutcome::Connections { .. } => 0,
    }
}
