//! A topology as text: each switch, from the top level down, with a line for each of its cables.

use super::describe::{Source, conditions, contents};
use super::escape::printable;
use super::graph::Graph;
use super::order::order;
use crate::table::{Cell, Column, table};
use pollux_node::admin::rows::{CableCounters, CabledPort, NodeKind, TopologyNode};

/// A cable at a node.
struct Row {
    cable: CabledPort,
    /// The LID at the other end.
    lid: Option<u16>,
    /// The process at either end.
    process: Option<u32>,
}

pub(crate) fn text(graph: &Graph, source: &Source) -> String {
    let time = source.time.as_ref().map(|time| format!(", {time}")).unwrap_or_default();
    let name = printable(&source.name);
    let mut text =
        format!("{name}{time}: {}\n{}\n", contents(graph), printable(&conditions(graph)));
    for node in order(graph).into_iter().rev().flatten() {
        let row = &graph.nodes[node];
        text += &format!("\n{}\n", heading(row, graph.levels[node]));
        if !row.cables.is_empty() {
            let lines = table(&rows(graph, node), &columns(row));
            text.extend(lines.lines().map(|line| format!("  {line}\n")));
        }
    }
    text
}

/// `leaf1: switch, level 1, LID 3, GUID 0x2c9, 4 of 36 ports linked`
fn heading(row: &TopologyNode, level: usize) -> String {
    let lid = row.lid.map(|lid| format!(", LID {lid}")).unwrap_or_default();
    let level = match row.kind {
        NodeKind::Host => String::new(),
        _ => format!(", level {level}"),
    };
    let TopologyNode { node, kind, guid, ports, cables, .. } = row;
    format!("{node}: {kind}{level}{lid}, GUID {guid}, {} of {ports} ports linked", cables.len())
}

fn rows(graph: &Graph, node: usize) -> Vec<Row> {
    let cables = &graph.nodes[node].cables;
    let row = |cable: &CabledPort| {
        let far = cable.peer_node.and_then(|peer| graph.nodes.get(peer as usize));
        let far_port =
            far.and_then(|far| far.cables.iter().find(|port| Some(port.port) == cable.peer_port));
        Row {
            cable: cable.clone(),
            lid: far_port.and_then(|port| port.lid).or_else(|| far.and_then(|far| far.lid)),
            process: far_port.and_then(|port| port.process).or(cable.process),
        }
    };
    cables.iter().map(row).collect()
}

/// The columns for a node. A running fabric has states and counters too.
fn columns(row: &TopologyNode) -> Vec<Column<Row>> {
    fn count(row: &Row, of: fn(&CableCounters) -> u64) -> String {
        row.cable.counters.as_ref().map(of).cell()
    }
    let mut columns: Vec<Column<Row>> = vec![("port", |row| row.cable.port.cell())];
    let is_live = row.cables.iter().any(|cable| cable.state.is_some());
    if is_live {
        columns.push(("state", |row| row.cable.state.cell()));
    }
    columns.push(("rate", |row| row.cable.rate.cell()));
    columns.push(("peer", |row| row.cable.peer.clone()));
    columns.push(("lid", |row| row.lid.cell()));
    if is_live {
        let live: [Column<Row>; 7] = [
            ("process", |row| row.process.cell()),
            ("sent", |row| count(row, |counters| counters.sent)),
            ("received", |row| count(row, |counters| counters.received)),
            ("bytes_sent", |row| count(row, |counters| counters.bytes_sent)),
            ("bytes_received", |row| count(row, |counters| counters.bytes_received)),
            ("errors", |row| count(row, |counters| counters.errors)),
            ("discards", |row| count(row, |counters| counters.discards)),
        ];
        columns.extend(live);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::graph;
    use super::*;

    #[test]
    fn a_plan_is_a_list_by_switch_from_the_top_down() {
        let source = Source { name: "leaf-spine:2x1x1".into(), time: None };
        let text = text(&graph("leaf-spine:2x1x1"), &source);
        let expected = "\
leaf-spine:2x1x1: 2 hosts, 3 switches, 4 links
all at 4xEDR

spine1: switch, level 2, GUID GUID, 2 of 2 ports linked
  port  rate   peer     lid
  1     4xEDR  leaf1:2  -
  2     4xEDR  leaf2:2  -

leaf1: switch, level 1, GUID GUID, 2 of 2 ports linked
  port  rate   peer      lid
  1     4xEDR  host1:1   -
  2     4xEDR  spine1:1  -
";
        let guid = |line: &str| match line.split_once("GUID ") {
            Some((before, rest)) => {
                format!("{before}GUID GUID{}", &rest[rest.find(',').unwrap_or(0)..])
            }
            None => line.to_owned(),
        };
        let text: Vec<_> = text.lines().map(guid).collect();
        let text = text.join("\n") + "\n";
        assert!(text.starts_with(expected), "{text}");
    }
}
