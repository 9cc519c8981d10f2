//! `pollux show`, `pollux idle` and `pollux fault`: queries to a running node or fabric, and
//! answers as tables.

use crate::asking::{Wait, ask};
use crate::output::print;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use std::error::Error;
use std::path::PathBuf;

/// Arguments of `pollux show`.
#[derive(Args)]
pub struct ShowArguments {
    /// The table to show
    what: What,
    /// Socket of the node or fabric
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wait: Wait,
}

/// A table of a node or a fabric.
#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Fabric: nodes, with GUIDs, LIDs and drop counters
    Nodes,
    /// Fabric: ports, with state, attached process and counters
    Ports,
    /// Fabric: links, with rate and state
    Links,
    /// Fabric: multicast groups, with the switch ports in their trees; node: groups, with state
    Groups,
    /// Node: interfaces, with state and its reason, addresses and counters
    Interfaces,
    /// Node: neighbors, with state, link address, and transport of packets to them
    Neighbors,
    /// Node: connections, with peer, state and counters
    Connections,
    /// Node: worker threads, with core, idle strategy and counters
    Workers,
    /// Node: drop counters, by reason
    Drops,
}

/// Arguments of `pollux idle`.
#[derive(Args)]
pub struct IdleArguments {
    /// Idle strategy: poll, pause or adaptive
    strategy: String,
    /// Change only this worker, numbered as in `show workers` [default: all]
    #[arg(long, value_name = "NUMBER")]
    worker: Option<usize>,
    /// Socket of the node
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    #[command(flatten)]
    wait: Wait,
}

/// Arguments of `pollux fault`.
#[derive(Args)]
pub struct FaultArguments {
    /// Socket of the fabric
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    #[command(flatten)]
    wait: Wait,
    #[command(subcommand)]
    command: FaultCommand,
}

#[derive(Subcommand)]
enum FaultCommand {
    /// Add a rule, and print its number
    Add {
        /// [NODE:PORT/]loss=1%,duplicate=..,reorder=..,delay=20us,corrupt=..; or NODE:PORT/down
        rule: String,
    },
    /// Remove a rule
    Del {
        /// Number of the rule, as printed by `add` and `list`
        number: u32,
    },
    /// List all rules
    List,
}

/// Runs `pollux show`.
pub fn show(arguments: &ShowArguments) -> Result<(), Box<dyn Error>> {
    let (what, columns) = columns(arguments.what);
    let answer = ask(&arguments.socket, &format!("show {what}"), arguments.wait)?;
    // Groups of a node have other columns than groups of a fabric.
    let columns = match answer[0].get("group") {
        Some(_) => "interface group lid state receives why",
        None => columns,
    };
    let columns: Vec<_> = columns.split_whitespace().collect();
    let text = if arguments.json { format!("{answer}\n") } else { table(&answer, &columns) };
    Ok(print(&text)?)
}

/// The name of a table in a query, and its columns.
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

/// Runs `pollux fault`.
pub fn fault(arguments: &FaultArguments) -> Result<(), Box<dyn Error>> {
    let socket = arguments
        .socket
        .as_deref()
        .ok_or("no socket given; name the fabric's socket with --socket PATH")?;
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

/// Runs `pollux idle`.
pub fn idle(arguments: &IdleArguments) -> Result<(), Box<dyn Error>> {
    let worker = arguments.worker.map_or(String::new(), |number| number.to_string());
    let question = format!("idle {} {worker}", arguments.strategy);
    Ok(ask(&arguments.socket, &question, arguments.wait).map(drop)?)
}

/// A table: one line per object, in aligned columns.
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
    fn a_table_has_a_line_for_every_object() {
        let things = json!([{ "a": 1, "b": null }, { "a": "long", "b": { "x": 2 } }]);
        assert_eq!(table(&things, &["a", "b"]), "a     b\n1     -\nlong  x=2\n");
        assert_eq!(table(&json!([]), &["a"]), "a\n");
    }
}
