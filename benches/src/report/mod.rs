//! A stored run as one page of HTML: a table, plots and the environment. It needs no network and no
//! script, follows the colors that the reader prefers, and prints.

mod plot;

use crate::environment::Environment;
use crate::judgement::{Estimate, three_digits};
use crate::plan::{MeasurementOutcome, What};
use crate::samples::Latency;
use crate::stored::{StoredRow, StoredRun};
use plot::{Axis, Mark, Plot, escape};
use std::fmt::{self, Write};

/// More sizes would not have space on their axis.
const SIZES_AS_TICKS_MAX: usize = 8;
const STYLE: &str = include_str!("page.css");

/// The page of a run.
pub fn page(run: &StoredRun) -> String {
    let mut page = String::new();
    write(run, &mut page).expect("a string takes all");
    page
}

fn write(run: &StoredRun, page: &mut String) -> fmt::Result {
    let title = match &run.rows[..] {
        [row] => row.name.clone(),
        rows => format!("{} measurements", rows.len()),
    };
    let title = escape(&title);
    writeln!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{title} - pollux-perf</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>{title}</h1>\n<p>{}, measured by pollux-perf {}. Medians of rounds, with the interval \
         that holds them at 95 %.</p>",
        escape(&run.environment.cpu),
        escape(&run.version)
    )?;
    table(run, page)?;
    writeln!(page, "<h2>Figures</h2>\n<div class=\"plots\">")?;
    sweeps(run).iter().try_for_each(|plot| write!(page, "{plot}"))?;
    for row in &run.rows {
        percentiles(row).map_or(Ok(()), |plot| write!(page, "{plot}"))?;
        write!(page, "{}", rounds(row))?;
    }
    writeln!(page, "</div>\n<h2>Environment</h2>")?;
    environment(&run.environment, page)?;
    if let Some(server) = &run.server_environment {
        writeln!(page, "<h2>Environment of the server</h2>")?;
        environment(server, page)?;
    }
    writeln!(page, "</body>\n</html>")
}

fn table(run: &StoredRun, page: &mut String) -> fmt::Result {
    let heads = ["", "median", "interval", "unit", "99 %", "99.9 %", "max", "rounds", "lost"];
    let heads: String = heads.map(|head| format!("<th>{head}</th>")).concat();
    writeln!(page, "<div class=\"table\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>")?;
    for row in &run.rows {
        let interval = row.estimate.and_then(|estimate| estimate.interval);
        let interval = interval
            .map(|[least, most]| format!("{} to {}", three_digits(least), three_digits(most)));
        let tail = |part: f64| tail(row, part);
        let most = latencies(row).map(|latency| latency.max).reduce(f64::max);
        let cells = [
            row.name.clone(),
            row.estimate.map_or("-".into(), |estimate| three_digits(estimate.median)),
            interval.unwrap_or("-".into()),
            row.unit.clone(),
            tail(99.0),
            tail(99.9),
            most.map_or("-".into(), three_digits),
            row.figures.len().to_string(),
            lost(row).to_string(),
        ];
        let cells: String = cells.map(|cell| format!("<td>{}</td>", escape(&cell))).concat();
        writeln!(page, "<tr>{cells}</tr>")?;
    }
    writeln!(page, "</tbody>\n</table></div>")
}

fn latencies(row: &StoredRow) -> impl Iterator<Item = &Latency> {
    row.outcomes.iter().filter_map(|outcome| match outcome {
        MeasurementOutcome::Latency(latency) => Some(latency),
        _ => None,
    })
}

/// The median of the percentiles of the rounds.
fn tail(row: &StoredRow, part: f64) -> String {
    let values = latencies(row).filter_map(|latency| latency.percentile(part));
    let estimate = Estimate::of(values.collect());
    estimate.map_or("-".into(), |estimate| three_digits(estimate.median))
}

fn lost(row: &StoredRow) -> u64 {
    let lost = row.outcomes.iter().map(|outcome| match outcome {
        MeasurementOutcome::Latency(latency) => latency.lost,
        MeasurementOutcome::OneWay { lost, .. } => *lost,
        MeasurementOutcome::Connections { .. } => 0,
    });
    lost.sum()
}

/// Rows that differ in their size alone.
fn sweeps(run: &StoredRun) -> Vec<Plot> {
    let mut sweeps: Vec<(String, Vec<&StoredRow>)> = Vec::new();
    for row in &run.rows {
        let kind = row.plan.kind();
        match sweeps.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, rows)) => rows.push(row),
            None => sweeps.push((kind, vec![row])),
        }
    }
    sweeps.retain(|(_, rows)| rows.len() > 1);
    sweeps.into_iter().map(|(kind, rows)| sweep(kind, &rows)).collect()
}

fn sweep(title: String, rows: &[&StoredRow]) -> Plot {
    let bytes = |row: &StoredRow| f64::from(row.plan.bytes);
    let points = rows.iter().filter_map(|row| Some((bytes(row), row.estimate?.median)));
    let line = Mark::Line { points: points.collect(), is_strong: true };
    let dots = rows.iter().filter_map(|row| {
        let estimate = row.estimate?;
        let text = format!("{} bytes: {estimate} {}", row.plan.bytes, row.unit);
        Some(Mark::Dot { at: (bytes(row), estimate.median), interval: estimate.interval, text })
    });
    let ticks = rows.iter().filter(|_| rows.len() <= SIZES_AS_TICKS_MAX);
    let ticks = ticks.map(|row| (bytes(row), binary(row.plan.bytes))).collect();
    Plot {
        title,
        x: Axis { label: "bytes".into(), is_log: true, ticks },
        y: Axis { label: rows[0].unit.clone(), is_log: true, ticks: Vec::new() },
        marks: [line].into_iter().chain(dots).collect(),
    }
}

/// 65536 is 64 Ki.
fn binary(bytes: u32) -> String {
    match bytes {
        whole if whole >= 1 << 20 && whole.is_multiple_of(1 << 20) => format!("{} Mi", whole >> 20),
        whole if whole >= 1 << 10 && whole.is_multiple_of(1 << 10) => format!("{} Ki", whole >> 10),
        other => other.to_string(),
    }
}

/// The latency at each percentile, of each round, and the median of all.
fn percentiles(row: &StoredRow) -> Option<Plot> {
    // So that each nine has the same width.
    let nines = |percent: f64| -(1.0 - percent / 100.0).log10();
    let first = latencies(row).next()?;
    let of_round = |latency: &Latency| {
        let points = latency.percentiles.iter().map(|(part, value)| (nines(*part), *value));
        Mark::Line { points: points.collect(), is_strong: false }
    };
    let middle = first.percentiles.iter().filter_map(|(part, _)| {
        let values = latencies(row).filter_map(|latency| latency.percentile(*part));
        Some((nines(*part), Estimate::of(values.collect())?.median))
    });
    let middle = Mark::Line { points: middle.collect(), is_strong: true };
    let ticks = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999];
    Some(Plot {
        title: format!("{}: percentiles", row.name),
        x: Axis {
            label: "percentile".into(),
            is_log: false,
            ticks: ticks.map(|part| (nines(part), part.to_string())).to_vec(),
        },
        y: Axis { label: row.unit.clone(), is_log: true, ticks: Vec::new() },
        marks: latencies(row).map(of_round).chain([middle]).collect(),
    })
}

/// The figure of each round, in the order of time.
fn rounds(row: &StoredRow) -> Plot {
    let interval = row.estimate.and_then(|estimate| estimate.interval);
    let dots = row.figures.iter().zip(1u32..).map(|(figure, round)| Mark::Dot {
        at: (round.into(), *figure),
        interval: None,
        text: format!("round {round}: {} {}", three_digits(*figure), row.unit),
    });
    let what = match row.plan.what {
        What::Lat => "median of each round",
        _ => "each round",
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
        marks: interval.map(|between| Mark::Band { between }).into_iter().chain(dots).collect(),
    }
}

fn environment(environment: &Environment, page: &mut String) -> fmt::Result {
    writeln!(page, "<dl>")?;
    for (name, value) in environment.rows() {
        writeln!(page, "<dt>{name}</dt><dd>{}</dd>", escape(&value))?;
    }
    writeln!(page, "</dl>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Layer, MeasuredTransport, Plan};

    fn latency(median: f64) -> MeasurementOutcome {
        let percentiles = [50.0, 90.0, 99.0, 99.9].into_iter().zip([1.0, 1.5, 2.0, 9.0]);
        MeasurementOutcome::Latency(Latency {
            samples: 1000,
            lost: 1,
            min: median / 2.0,
            mean: median,
            percentiles: percentiles.map(|(part, factor)| (part, factor * median)).collect(),
            max: median * 100.0,
        })
    }

    fn run(sizes: &[u32]) -> StoredRun {
        let mut run = StoredRun::new(Environment::now(None), None);
        run.rows = sizes
            .iter()
            .map(|bytes| {
                let plan = Plan::new(What::Lat, Layer::Verbs, MeasuredTransport::Rc, *bytes);
                let medians = (0..7).map(|round| f64::from(bytes + 100 + round));
                StoredRow::new(plan, medians.map(latency).collect())
            })
            .collect();
        run
    }

    #[test]
    fn every_row_has_its_plots_and_a_sweep_has_one_more() {
        for (sizes, plots) in [(&[64][..], 2), (&[64, 4096, 65_536], 7)] {
            let page = page(&run(sizes));
            assert_eq!(page.matches("<svg ").count(), plots, "{sizes:?}");
            assert_eq!(page.matches("</svg>").count(), plots);
            assert!(!page.contains("NaN") && !page.contains("inf\""), "{page}");
            for bytes in sizes {
                assert!(page.contains(&format!("<td>lat of verbs over rc, {bytes} bytes</td>")));
            }
        }
    }

    /// Nothing is loaded, and nothing runs.
    #[test]
    fn a_page_needs_no_network_and_no_script() {
        let page = page(&run(&[64]));
        for word in ["http:", "https:", "<script", "@import", "url(", "src="] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
    }

    #[test]
    fn texts_of_a_run_cannot_be_elements() {
        let mut run = run(&[64]);
        run.environment.cpu = "<script>alert(1)</script>".into();
        assert!(!page(&run).contains("<script>"));
    }
}
