//! Text tables: aligned columns, a line of headings and one for each row.

use pollux_node::admin::rows::{
    ConnectionRole, NeighborState, NeighborTransport, NodeKind, ServiceDialect,
};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A column of a table: its heading, and its cell in a row.
pub type Column<R> = (&'static str, fn(&R) -> String);

pub fn table<R>(rows: &[R], columns: &[Column<R>]) -> String {
    let headings: Vec<_> = columns.iter().map(|(heading, _)| *heading).collect();
    let cells = |row: &R| columns.iter().map(|(_, cell)| cell(row)).collect();
    aligned(&headings, rows.iter().map(cells))
}

/// A heading and rows of cells, in aligned columns.
pub fn aligned(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let first = headings.iter().map(|heading| (*heading).to_owned()).collect();
    let lines: Vec<Vec<_>> = std::iter::once(first).chain(rows).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<_> = (0..headings.len()).map(|column| width(column).unwrap_or(0)).collect();
    let text = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    lines.iter().map(text).collect()
}

/// A value in a table. `None`, empty lists and empty maps are a dash, so that no cell is empty.
pub trait Cell {
    fn cell(&self) -> String;
}

macro_rules! as_displayed {
    ($($value:ty)*) => {
        $(impl Cell for $value {
            fn cell(&self) -> String {
                self.to_string()
            }
        })*
    };
}
as_displayed!(
    String u8 u16 u32 u64 usize bool IpAddr
    ConnectionRole NeighborState NeighborTransport NodeKind ServiceDialect
);

impl Cell for f64 {
    fn cell(&self) -> String {
        format!("{self:.1}")
    }
}

impl<T: Cell> Cell for Option<T> {
    fn cell(&self) -> String {
        self.as_ref().map_or_else(|| "-".into(), Cell::cell)
    }
}

impl Cell for Vec<String> {
    fn cell(&self) -> String {
        if self.is_empty() { "-".into() } else { self.join(" ") }
    }
}

impl Cell for BTreeMap<String, u64> {
    fn cell(&self) -> String {
        let counts: Vec<_> = self.iter().map(|(name, count)| format!("{name}={count}")).collect();
        if counts.is_empty() { "-".into() } else { counts.join(" ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_every_row() {
        struct Row(String, Option<u32>);
        let columns: [Column<Row>; 2] = [("a", |row| row.0.cell()), ("b", |row| row.1.cell())];
        let rows = [Row("1".into(), None), Row("long".into(), Some(2))];
        assert_eq!(table(&rows, &columns), "a     b\n1     -\nlong  2\n");
        assert_eq!(table(&[], &columns), "a  b\n");
        let counts = [("x".to_owned(), 2), ("y".to_owned(), 3)];
        assert_eq!(BTreeMap::from(counts).cell(), "x=2 y=3");
        assert_eq!(BTreeMap::new().cell(), "-");
        assert_eq!(vec!["x".to_owned(), "y".into()].cell(), "x y");
        assert_eq!(Vec::<String>::new().cell(), "-");
    }
}
