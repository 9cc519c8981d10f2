//! `pollux show` and `pollux fault`: questions to a running node or fabric, and answers as tables.

use crate::asking::{Wait, ask};
use crate::output::print;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use std::error::Error;
use std::path::PathBuf;

/// What to show.
#[derive(Args)]
pub struct ShowArguments {
    what: What,
    /// The socket of the node or the fabric
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wait: Wait,
}

/// Things that a node or a fabric has.
#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Of a fabric: with their addresses and what they dropped
    Nodes,
    /// With their state, the process at them and counters
    Ports,
    /// Of a fabric: with their rate and state
    Links,
    /// Groups: of a fabric with the ports of switches by which they go, of a node with their state
    Groups,
    /// Of a node: with their state and why, and their addresses
    Interfaces,
    /// Of a node: with their link addresses, and how packets go there
    Neighbors,
    /// Of a node: with their peers and traffic
    Connections,
    /// Of a node: the threads that move packets, and what they did
    Workers,
    /// Of a node: what was dropped, and why
    Drops,
}

/// How workers of a node rest from now on.
#[derive(Args)]
pub struct IdleArguments {
    /// poll, pause or adaptive
    strategy: String,
    /// This one alone, as `show workers` has it
    #[arg(long, value_name = "NUMBER")]
    worker: Option<usize>,
    /// The socket of the node
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    #[command(flatten)]
    wait: Wait,
}

/// What to do about faults.
#[derive(Args)]
pub struct FaultArguments {
    /// The socket of the fabric
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    #[command(flatten)]
    wait: Wait,
    #[command(subcommand)]
    command: FaultCommand,
}

#[derive(Subcommand)]
enum FaultCommand {
    /// Adds a rule, and prints its number
    Add {
        /// [NODE:PORT/]loss=1%,duplicate=..,reorder=..,delay=20us,corrupt=..; or NODE:PORT/down
        rule: String,
    },
    /// Takes a rule away
    Del {
        /// As `add` and `list` print it
        number: u32,
    },
    /// Shows all rules
    List,
}

/// Shows what a node or a fabric has.
pub fn show(arguments: &ShowArguments) -> Result<(), Box<dyn Error>> {
    let (what, columns) = columns(arguments.what);
    let answer = ask(&arguments.socket, &format!("show {what}"), arguments.wait)?;
    // Groups of a node have other things to show than those of a fabric.
    let columns = match answer[0].get("group") {
        Some(_) => "interface group lid state heard why",
        None => columns,
    };
    let columns: Vec<_> = columns.split_whitespace().collect();
    let text = if arguments.json { format!("{answer}\n") } else { table(&answer, &columns) };
    Ok(print(&text)?)
}

/// What a thing is called in a question, and the columns of its table.
const fn columns(what: What) -> (&'static str, &'static str) {
    match what {
        What::Nodes => ("nodes", "node kind guid lid ports drops"),
        What::Ports => ("ports", "port state lid mtu peer process sent received errors discards"),
        What::Links => ("links", "from to rate state"),
        What::Groups => ("groups", "lid ports"),
        What::Interfaces => (
            "interfaces",
            "interface state workers lid mtu addresses dhcp link sent received why waits_for",
        ),
        What::Neighbors => ("neighbors", "interface address state by mtu link why connection"),
        What::Connections => (
            "connections",
            "interface worker peer type state role dialect mtu qpn sent received why",
        ),
        What::Workers => (
            "workers",
            "worker core idle interfaces breaths busy_breaths packets sleeps asleep_ms busy_ms",
        ),
        What::Drops => ("drops", "interface of why count"),
    }
}

/// Changes the faults of a fabric, or shows them.
pub fn fault(arguments: &FaultArguments) -> Result<(), Box<dyn Error>> {
    let socket = arguments.socket.as_deref().ok_or("say which fabric with --socket PATH")?;
    match &arguments.command {
        FaultCommand::Add { rule } => {
            let number = ask(socket, &format!("fault add {rule}"), arguments.wait)?;
            Ok(print(&format!("{number}\n"))?)
        }
        FaultCommand::Del { number } => {
            Ok(ask(socket, &format!("fault del {number}"), arguments.wait).map(drop)?)
        }
        FaultCommand::List => {
            let rules = ask(socket, "fault list", arguments.wait)?;
            Ok(print(&table(&rules, &["number", "rule"]))?)
        }
    }
}

/// Changes how workers of a node rest.
pub fn idle(arguments: &IdleArguments) -> Result<(), Box<dyn Error>> {
    let worker = arguments.worker.map_or(String::new(), |number| number.to_string());
    let question = format!("idle {} {worker}", arguments.strategy);
    Ok(ask(&arguments.socket, &question, arguments.wait).map(drop)?)
}

/// A line for every thing, in columns.
pub fn table(things: &Value, columns: &[&str]) -> String {
    let mut rows = vec![columns.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()];
    for thing in things.as_array().into_iter().flatten() {
        rows.push(columns.iter().map(|name| cell(&thing[*name])).collect());
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..columns.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(" "),
        Value::Object(things) if things.is_empty() => "-".into(),
        Value::Object(things) => things
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
            .join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_has_a_line_for_every_thing() {
        let things = json!([{ "a": 1, "b": null }, { "a": "long", "b": { "x": 2 } }]);
        assert_eq!(table(&things, &["a", "b"]), "a     b\n1     -\nlong  x=2\n");
        assert_eq!(table(&json!([]), &["a"]), "a\n");
    }
}
