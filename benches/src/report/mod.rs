//! Reports of a stored run: an HTML page with tables, plots and the environment; an SVG drawing of
//! the plots; CSV; and a log of HdrHistogram. The page needs neither network nor scripts, follows
//! the color scheme of the reader's browser, and can be printed.

mod export;
mod plot;
mod plots;
mod table;

use crate::environment::Environment;
use crate::stored::StoredRun;
pub use export::{csv, hdr_log};
use plot::{HEIGHT, WIDTH, escape};
use std::fmt::{self, Write};

const STYLE: &str = include_str!("page.css");
/// The space between the plots of a drawing, which also holds the title above each plot.
const GAP: f64 = 28.0;

/// The HTML page of a run.
pub fn page(run: &StoredRun) -> String {
    let mut page = String::new();
    write(run, &mut page).expect("a string takes all");
    page
}

/// All plots of a run as one SVG drawing.
pub fn svg(run: &StoredRun) -> String {
    let mut svg = String::new();
    draw(run, &mut svg).expect("a string takes all");
    svg
}

fn draw(run: &StoredRun, svg: &mut String) -> fmt::Result {
    let plots = plots::all(run);
    let columns = plots.len().clamp(1, 3);
    let (across, down) = (WIDTH + GAP, HEIGHT + GAP);
    let (width, height) = (columns as f64 * across, plots.len().div_ceil(columns) as f64 * down);
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n<style>\n{STYLE}\
         rect.ground {{ fill: var(--ground); }}\n.title {{ font-weight: 600; }}\n</style>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>"
    )?;
    for (nth, plot) in plots.iter().enumerate() {
        let (x, y) = ((nth % columns) as f64 * across, (nth / columns) as f64 * down);
        let (title, title_y) = (escape(&plot.title), y + 18.0);
        writeln!(svg, "<text class=\"title\" x=\"{}\" y=\"{title_y}\">{title}</text>", x + 4.0)?;
        let y = y + 24.0;
        plot.draw(svg, &format!("x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" "))?;
    }
    writeln!(svg, "</svg>")
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
         that holds them at 95 %. To compare with: {}.</p>",
        escape(&run.environment.cpu),
        escape(&run.environment.program),
        run.controls
    )?;
    table::write(run, page)?;
    writeln!(page, "<h2>Figures</h2>\n<div class=\"plots\">")?;
    for plot in plots::all(run) {
        writeln!(page, "<figure><figcaption>{}</figcaption>", escape(&plot.title))?;
        plot.draw(page, "")?;
        writeln!(page, "</figure>")?;
    }
    writeln!(page, "</div>\n<h2>Environment</h2>")?;
    environment(&run.environment, page)?;
    if !run.peers.is_empty() {
        writeln!(page, "<h2>Programs to compare with</h2>")?;
        run.peers.iter().try_for_each(|peer| writeln!(page, "<p>{}</p>", escape(peer)))?;
    }
    if let Some(server) = &run.server_environment {
        writeln!(page, "<h2>Environment of the server</h2>")?;
        environment(server, page)?;
    }
    writeln!(page, "</body>\n</html>")
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
    use crate::controls::Controls;
    use crate::judgement::{Budget, Estimate};
    use crate::plan::{Layer, Measured, MeasuredTransport, MeasurementOutcome, Plan, What};
    use crate::samples::{self, Latency};
    use crate::stored::{Better, Compared, RowSource, StoredRow};
    use std::time::Duration;

    const CONTROLS: Controls = Controls { copy_bytes_per_second: 10e9, cache_line_ns: None };

    fn latency(median: f64) -> Measured {
        let mut round_trips = samples::histogram();
        for time in (50..=150).map(|percent| median * f64::from(percent) / 50.0) {
            round_trips.record(time as u64).expect("within the bounds");
        }
        let latency = Latency::of(&round_trips, Duration::from_micros(100));
        Measured {
            outcome: MeasurementOutcome::Latency(latency),
            setup_seconds: 0.1,
            cores_busy: [Some(1.0), Some(0.5)],
            disturbance: None,
        }
    }

    fn run(sizes: &[u32]) -> StoredRun {
        let mut run = StoredRun::new(Environment::now(None), CONTROLS);
        run.rows = sizes
            .iter()
            .map(|bytes| {
                let plan = Plan::new(What::Lat, Layer::Verbs, MeasuredTransport::Rc, *bytes);
                let medians = (0..7).map(|round| f64::from(bytes + 100 + round));
                StoredRow::new(plan, medians.map(latency).collect(), false)
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
                let name = format!(">lat of verbs over rc, {bytes} bytes</td>");
                assert!(page.contains(&name), "{page}");
            }
        }
    }

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

    #[test]
    fn a_comparison_has_a_table_of_ratios() {
        let mut run = run(&[]);
        run.rows = vec![StoredRow {
            name: "udp-lat".into(),
            unit: "x".into(),
            better: Better::Less,
            figures: vec![0.5; 7],
            estimate: Estimate::of(vec![0.5; 7]),
            disturbed: 1,
            disturbed_by: Some("the host took 20 % of a core".into()),
            is_spoiled: false,
            source: RowSource::Compared(Compared {
                what: "UDP, 64 bytes".into(),
                unit: "ns".into(),
                ours: vec![100.0; 7],
                peer: vec![200.0; 7],
                reference: "sockperf".into(),
                budget: Budget::AtMost(0.25),
                verdict: Some(Budget::AtMost(0.25).judge(&Estimate::of(vec![0.5; 7]).unwrap())),
                note: None,
            }),
        }];
        let page = page(&run);
        for cell in ["UDP, 64 bytes", "100", "200", "0.500 to 0.500", "&lt;= 0.25", "missed"] {
            assert!(page.contains(&format!("<td>{cell}</td>")), "{cell}: {page}");
        }
        assert_eq!(page.matches("<svg ").count(), 1, "its pairs");
    }

    #[test]
    fn a_drawing_has_all_plots_with_their_titles() {
        let svg = svg(&run(&[64, 4096]));
        assert_eq!(svg.matches("<svg ").count(), 1 + 5);
        assert_eq!(svg.matches("class=\"title\"").count(), 5);
    }
}
