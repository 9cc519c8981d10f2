//! `pollux top`: what a running node does now, by rates between two samples of its tables.
//!
//! ```text
//!   admin socket --> sample: rows of tables --two of them--> sheet: a view as columns and cells
//!                                                              |
//!                    without a terminal: a table, or JSON <----+----> screen, in terminal
//! ```
//!
//! A sampler thread asks the node, so that keys work even if the node hangs.

mod sample;
mod screen;
mod sheet;
mod terminal;
mod warnings;

use crate::asking::{Wait, seconds};
use crate::output::print;
use crate::table::aligned;
use clap::{Args, ValueEnum};
use sample::{Sample, SampleChange};
use serde_json::{Map, Value, json};
use sheet::{Sheet, SheetCell, sheet};
use std::error::Error;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;
use warnings::warnings;

#[derive(Args)]
pub struct TopArguments {
    /// Socket of the node
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The first view
    #[arg(long, default_value = "overview")]
    view: View,
    /// Time between two samples
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Print the view once as a table, as without a terminal
    #[arg(long)]
    once: bool,
    /// Print the view once as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wait: Wait,
}

/// A view, by the keys 1 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum View {
    /// Traffic, load and drops together
    Overview,
    /// Interfaces, with rates both ways
    Interfaces,
    /// Worker threads, with their load
    Workers,
    /// Neighbors, with their states
    Neighbors,
    /// Connections, with rates both ways
    Connections,
    /// Routes, counted by their origin
    Routes,
    /// Drop counters, the fastest first
    Drops,
}

impl View {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

pub fn top(arguments: &TopArguments) -> Result<(), Box<dyn Error>> {
    let TopArguments { socket, view, interval, once, json, wait } = arguments;
    if *once || *json || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let first = Sample::take(socket, *wait, *view)?;
        #[expect(clippy::disallowed_methods, reason = "rates are between two moments")]
        std::thread::sleep(*interval);
        let change = SampleChange::between(Some(&first), Sample::take(socket, *wait, *view)?);
        return Ok(print(&if *json { as_json(*view, &change) } else { as_text(*view, &change) })?);
    }
    terminal::run(arguments)
}

/// The sheets of a view. The overview has those of three views.
fn sheets(view: View, change: &SampleChange) -> Vec<Sheet> {
    match view {
        View::Overview => {
            [View::Interfaces, View::Workers, View::Drops].map(|view| sheet(view, change)).into()
        }
        _ => vec![sheet(view, change)],
    }
}

fn as_text(view: View, change: &SampleChange) -> String {
    let cells = |row: &Vec<SheetCell>| row.iter().map(SheetCell::text).collect();
    let text = |sheet: &Sheet| aligned(&sheet.headings, sheet.rows.iter().map(cells));
    let all: Vec<_> = sheets(view, change).iter().map(text).collect();
    let warnings: Vec<_> = warnings(change).iter().map(|line| format!("{line}\n")).collect();
    let separate = if warnings.is_empty() { "" } else { "\n" };
    format!("{}{separate}{}", all.join("\n"), warnings.concat())
}

fn as_json(view: View, change: &SampleChange) -> String {
    let row = |sheet: &Sheet, row: &Vec<SheetCell>| {
        let cells = sheet.headings.iter().zip(row);
        cells.map(|(heading, cell)| ((*heading).to_owned(), cell.json())).collect::<Map<_, _>>()
    };
    let rows = |sheet: &Sheet| -> Value {
        sheet.rows.iter().map(|cells| Value::Object(row(sheet, cells))).collect()
    };
    let all = sheets(view, change);
    let all: Map<_, _> = all.iter().map(|one| (one.view.name(), rows(one))).collect();
    let object = json!({ "seconds": change.seconds, "views": all, "warnings": warnings(change) });
    format!("{object}\n")
}
