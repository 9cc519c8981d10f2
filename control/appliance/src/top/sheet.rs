//! A view as headings and cells, for tables, JSON and the screen, with sorting and filtering of
//! rows.

use super::View;
use super::sample::SampleChange;
use crate::table::Cell;
use pollux_node::admin::rows::{
    ConnectionStatus, InterfaceStatus, NeighborStatus, RouteStatus, WorkerStatus,
};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub enum SheetCell {
    Text(String),
    Count(u64),
    /// A number per second, a percentage or a ratio.
    Rate(f64),
    /// Bytes per second.
    Bytes(f64),
    /// A rate that is an alarm unless it is 0.
    Alarm(f64),
}

#[derive(Clone, Debug)]
pub struct Sheet {
    pub view: View,
    pub headings: Vec<&'static str>,
    pub rows: Vec<Vec<SheetCell>>,
}

impl SheetCell {
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Rate(rate) | Self::Alarm(rate) => scaled(*rate, ""),
            Self::Bytes(rate) => scaled(*rate, "B"),
        }
    }

    pub fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Count(count) => json!(count),
            Self::Rate(rate) | Self::Bytes(rate) | Self::Alarm(rate) => json!(rate),
        }
    }

    /// Whether it is aligned to the right of its column.
    pub const fn is_number(&self) -> bool {
        !matches!(self, Self::Text(_))
    }

    fn compare(&self, other: &Self) -> Ordering {
        let number = |cell: &Self| match cell {
            Self::Text(_) => None,
            Self::Count(count) => Some(*count as f64),
            Self::Rate(rate) | Self::Bytes(rate) | Self::Alarm(rate) => Some(*rate),
        };
        match (number(self), number(other)) {
            // Numbers in descending order, texts in ascending order.
            (Some(one), Some(other)) => other.total_cmp(&one),
            _ => self.text().cmp(&other.text()),
        }
    }
}

/// A number with a unit prefix, such as 1.5M.
fn scaled(value: f64, unit: &str) -> String {
    let prefixes = [(1e9, "G"), (1e6, "M"), (1e4, "k")];
    match prefixes.iter().find(|(least, _)| value >= *least) {
        Some((1e4, prefix)) => format!("{:.1}{prefix}{unit}", value / 1e3),
        Some((least, prefix)) => format!("{:.1}{prefix}{unit}", value / least),
        None if value.fract() == 0.0 => format!("{value:.0}{unit}"),
        None => format!("{value:.1}{unit}"),
    }
}

impl Sheet {
    /// Sorts by a column: numbers in descending order, texts in ascending order.
    pub fn sort(&mut self, column: usize, is_reversed: bool) {
        self.rows.sort_by(|one, other| {
            let (Some(one), Some(other)) = (one.get(column), other.get(column)) else {
                return Ordering::Equal;
            };
            let order = one.compare(other);
            if is_reversed { order.reverse() } else { order }
        });
    }

    /// Keeps only rows with a cell that contains this text.
    pub fn filter(&mut self, text: &str) {
        self.rows.retain(|row| row.iter().any(|cell| cell.text().contains(text)));
    }
}

/// The rows of a view other than the overview.
pub fn sheet(view: View, change: &SampleChange) -> Sheet {
    match view {
        View::Overview | View::Interfaces => interfaces(change),
        View::Workers => workers(change),
        View::Neighbors => neighbors(change),
        View::Connections => connections(change),
        View::Routes => routes(change),
        View::Drops => drops(change),
    }
}

fn text(value: &impl Cell) -> SheetCell {
    SheetCell::Text(value.cell())
}

/// A heading, and its cell in a row.
type SheetColumn<R> = (&'static str, fn(&SampleChange, &R) -> SheetCell);

fn of_rows<R>(view: View, change: &SampleChange, rows: &[R], columns: &[SheetColumn<R>]) -> Sheet {
    let headings = columns.iter().map(|(heading, _)| *heading).collect();
    let cells = |row| columns.iter().map(|(_, cell)| cell(change, row)).collect();
    Sheet { view, headings, rows: rows.iter().map(cells).collect() }
}

fn interfaces(change: &SampleChange) -> Sheet {
    let columns: [SheetColumn<InterfaceStatus>; 8] = [
        ("interface", |_, row| text(&row.interface)),
        ("state", |_, row| text(&row.state)),
        ("mtu", |_, row| text(&row.mtu)),
        ("in/s", |change, row| SheetCell::Rate(change.interface_rate(row, |row| row.received))),
        ("in_bytes/s", |change, row| {
            SheetCell::Bytes(change.interface_rate(row, |row| row.bytes_received))
        }),
        ("out/s", |change, row| SheetCell::Rate(change.interface_rate(row, |row| row.sent))),
        ("out_bytes/s", |change, row| {
            SheetCell::Bytes(change.interface_rate(row, |row| row.bytes_sent))
        }),
        ("why", |_, row| text(&row.why)),
    ];
    of_rows(View::Interfaces, change, &change.now.interfaces, &columns)
}

fn workers(change: &SampleChange) -> Sheet {
    const fn ratio(part: f64, of: f64) -> SheetCell {
        SheetCell::Rate(if of > 0.0 { part / of } else { 0.0 })
    }
    let columns: [SheetColumn<WorkerStatus>; 10] = [
        ("worker", |_, row| SheetCell::Count(row.worker as u64)),
        ("core", |_, row| text(&row.core)),
        ("idle", |_, row| text(&row.idle)),
        ("busy_%", |change, row| SheetCell::Rate(change.busy_percent(row))),
        ("packets/s", |change, row| SheetCell::Rate(change.worker_rate(row, |row| row.packets))),
        ("ns/packet", |change, row| {
            let busy_ns = 1e6 * change.worker_rate(row, |row| row.busy_ms);
            ratio(busy_ns, change.worker_rate(row, |row| row.packets))
        }),
        ("batch", |change, row| {
            let packets = change.worker_rate(row, |row| row.packets);
            ratio(packets, change.worker_rate(row, |row| row.busy_breaths))
        }),
        ("breaths/s", |change, row| SheetCell::Rate(change.worker_rate(row, |row| row.breaths))),
        ("sleeps/s", |change, row| SheetCell::Rate(change.worker_rate(row, |row| row.sleeps))),
        ("interfaces", |_, row| text(&row.interfaces)),
    ];
    of_rows(View::Workers, change, &change.now.workers, &columns)
}

fn neighbors(change: &SampleChange) -> Sheet {
    let columns: [SheetColumn<NeighborStatus>; 8] = [
        ("interface", |_, row| text(&row.interface)),
        ("address", |_, row| text(&row.address)),
        ("state", |_, row| text(&row.state)),
        ("by", |_, row| text(&row.by)),
        ("mtu", |_, row| text(&row.mtu)),
        ("pending", |_, row| SheetCell::Count(row.pending as u64)),
        ("seconds", |_, row| SheetCell::Count(row.seconds)),
        ("why", |_, row| text(row.connection.as_ref().unwrap_or(&row.why))),
    ];
    of_rows(View::Neighbors, change, &change.now.neighbors, &columns)
}

fn connections(change: &SampleChange) -> Sheet {
    let columns: [SheetColumn<ConnectionStatus>; 10] = [
        ("interface", |_, row| text(&row.interface)),
        ("worker", |_, row| SheetCell::Count(row.worker as u64)),
        ("type", |_, row| text(&row.qp_type)),
        ("state", |_, row| text(&row.state)),
        ("mtu", |_, row| SheetCell::Count(row.mtu.into())),
        ("in/s", |change, row| SheetCell::Rate(change.connection_rate(row, |row| row.received))),
        ("out/s", |change, row| SheetCell::Rate(change.connection_rate(row, |row| row.sent))),
        ("seconds", |_, row| SheetCell::Count(row.seconds)),
        ("peer", |_, row| text(&row.peer)),
        ("why", |_, row| text(&row.why)),
    ];
    of_rows(View::Connections, change, &change.now.connections, &columns)
}

fn routes(change: &SampleChange) -> Sheet {
    let headings = vec!["domain", "source", "family", "routes", "active", "change/s"];
    let family = |row: &RouteStatus| if row.to.contains(':') { "ipv6" } else { "ipv4" };
    let all = &change.now.routes;
    let key = |row: &RouteStatus| (row.domain.clone(), row.source.clone(), family(row));
    let mut counts = BTreeMap::<_, (u64, u64)>::new();
    for row in all {
        let (count, active) = counts.entry(key(row)).or_default();
        *count += 1;
        *active += u64::from(row.is_active);
    }
    let rows = counts.into_iter().map(|((domain, source, of), (count, active))| {
        let is_of =
            |row: &RouteStatus| (&row.domain, &row.source, family(row)) == (&domain, &source, of);
        let before = change.routes_before(is_of).unwrap_or(count);
        let rate = if change.seconds > 0.0 {
            (count as f64 - before as f64) / change.seconds
        } else {
            0.0
        };
        vec![
            text(&domain),
            text(&source),
            SheetCell::Text(of.into()),
            SheetCell::Count(count),
            SheetCell::Count(active),
            SheetCell::Rate(rate),
        ]
    });
    Sheet { view: View::Routes, headings, rows: rows.collect() }
}

/// The counters that are not zero: those that indicate faults first, then by rate, then by count.
fn drops(change: &SampleChange) -> Sheet {
    let headings = vec!["interface", "of", "why", "drops/s", "count"];
    let mut all: Vec<_> = change.now.drops.iter().filter(|row| row.count > 0).collect();
    all.sort_by(|one, other| {
        let rates = change.drop_rate(other).total_cmp(&change.drop_rate(one));
        one.usual.cmp(&other.usual).then(rates).then(other.count.cmp(&one.count))
    });
    let rows = all.into_iter().map(|row| {
        let rate = change.drop_rate(row);
        vec![
            text(&row.interface),
            text(&row.of),
            text(&row.why),
            if row.usual { SheetCell::Rate(rate) } else { SheetCell::Alarm(rate) },
            SheetCell::Count(row.count),
        ]
    });
    Sheet { view: View::Drops, headings, rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_sort_by_their_size() {
        for (value, text) in
            [(0.0, "0"), (7.25, "7.2"), (9999.0, "9999"), (12_345.0, "12.3k"), (2.5e9, "2.5G")]
        {
            assert_eq!(SheetCell::Rate(value).text(), text);
        }
        let row = |name: &str, rate| vec![SheetCell::Text(name.into()), SheetCell::Bytes(rate)];
        let rows = vec![row("b", 9000.0), row("a", 12_000.0), row("c", 0.0)];
        let mut sheet = Sheet { view: View::Drops, headings: vec!["name", "rate"], rows };
        let order = |sheet: &Sheet| sheet.rows.iter().map(|row| row[0].text()).collect::<String>();
        sheet.sort(0, false);
        assert_eq!(order(&sheet), "abc");
        sheet.sort(1, true);
        assert_eq!(order(&sheet), "cba");
        sheet.filter("12.0k");
        assert_eq!(order(&sheet), "a");
    }
}
