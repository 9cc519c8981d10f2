//! Texts about a topology, its nodes and its cables, for all forms of output.

use super::graph::{Cable, CableEnd, CableHealth, Graph};
use pollux_node::admin::rows::{CableCounters, NodeKind};
use std::collections::BTreeMap;

/// The origin of a topology.
pub(crate) struct Source {
    /// The socket of a fabric, a file or a specification.
    pub(crate) name: String,
    /// When the fabric had this topology, in UTC; `None` for a plan.
    pub(crate) time: Option<String>,
}

/// The numbers of nodes and links: `3 hosts, 1 switch, 3 links`.
pub(crate) fn contents(graph: &Graph) -> String {
    let own = &graph.nodes[..graph.own_nodes];
    let of_kind = |kind| own.iter().filter(|node| node.kind == kind).count();
    let counts = [
        plural(of_kind(NodeKind::Host), "host", "hosts"),
        plural(of_kind(NodeKind::Switch), "switch", "switches"),
        plural(of_kind(NodeKind::Router), "router", "routers"),
        plural(graph.cables.len(), "link", "links"),
    ];
    let counts: Vec<_> = counts.into_iter().flatten().collect();
    counts.join(", ")
}

fn plural(count: usize, one: &str, many: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{} {many}", grouped(count as u64))),
    }
}

/// The rates of links, and their states: `all at 4xEDR; 46 active, 2 down`.
pub(crate) fn conditions(graph: &Graph) -> String {
    let rates = rates(graph);
    let rates: Vec<String> = match &rates[..] {
        [(rate, _)] => vec![format!("all at {rate}")],
        rates => rates
            .iter()
            .map(|(rate, count)| format!("{} at {rate}", grouped(*count as u64)))
            .collect(),
    };
    let mut states: BTreeMap<CableHealth, usize> = BTreeMap::new();
    for cable in &graph.cables {
        *states.entry(graph.health(cable)).or_default() += 1;
    }
    states.remove(&CableHealth::Unknown);
    let is_one = states.len() == 1;
    let states = states.into_iter().map(|(health, count)| {
        let count = if is_one { "all".to_owned() } else { grouped(count as u64) };
        format!("{count} {}", word(health))
    });
    let parts = [rates.join(", "), states.collect::<Vec<_>>().join(", ")];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("; ")
}

pub(crate) fn word(health: CableHealth) -> &'static str {
    match health {
        CableHealth::Unknown => "planned",
        CableHealth::Active => "active",
        CableHealth::Waiting => "waiting",
        CableHealth::Down => "down",
    }
}

/// The rates of links, with the most frequent one first.
pub(crate) fn rates(graph: &Graph) -> Vec<(&str, usize)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for cable in &graph.cables {
        if let Some(rate) = &graph.port(cable.ends[0]).rate {
            *counts.entry(rate).or_default() += 1;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

/// The details of a node, on several lines.
pub(crate) fn node(graph: &Graph, node: usize) -> String {
    let row = &graph.nodes[node];
    if graph.is_external(node) {
        let peer = row.cables.first().map_or("", |cable| &cable.peer);
        return format!("{} at {peer}", row.node);
    }
    let lid = row.lid.map_or("no LID".into(), |lid| format!("LID {lid}"));
    let cables = row.cables.len();
    let mut text = format!(
        "{}\n{}, {lid}, GUID {}\n{cables} of {} ports linked",
        row.node, row.kind, row.guid, row.ports
    );
    for cable in row.cables.iter().filter(|_| row.kind != NodeKind::Switch) {
        let process = cable.process.map(|id| format!(", open in process {id}"));
        text += &format!("\nport {}: {}", cable.port, state_and_rate(graph, node, cable.port));
        text += &process.unwrap_or_default();
        text +=
            &cable.counters.map(|counters| format!(", {}", traffic(counters))).unwrap_or_default();
    }
    text
}

fn state_and_rate(graph: &Graph, node: usize, port: u8) -> String {
    let cables = &graph.nodes[node].cables;
    let Some(cable) = cables.iter().find(|cable| cable.port == port) else { return String::new() };
    let words = [&cable.state, &cable.rate].into_iter().flatten();
    let words: Vec<_> = words
        .map(String::as_str)
        .chain([&*format!("to {}", cable.peer)])
        .map(str::to_owned)
        .collect();
    words.join(" ")
}

/// The details of a cable, on several lines.
pub(crate) fn cable(graph: &Graph, cable: &Cable) -> String {
    let [a, b] = cable.ends;
    let rate = graph.port(a).rate.as_ref().map(|rate| format!(", {rate}"));
    let mut text = format!("{} to {}{}", name(graph, a), name(graph, b), rate.unwrap_or_default());
    for end in cable.ends {
        let port = graph.port(end);
        let state = port.state.as_ref().map(|state| format!("\n{}: {state}", name(graph, end)));
        text += &state.unwrap_or_default();
        text +=
            &port.counters.map(|counters| format!(", {}", traffic(counters))).unwrap_or_default();
    }
    text
}

/// NODE:PORT, or the state of a wire.
pub(crate) fn name(graph: &Graph, end: CableEnd) -> String {
    let node = &graph.nodes[end.node].node;
    match graph.is_external(end.node) {
        true => node.clone(),
        false => format!("{node}:{}", graph.port(end).port),
    }
}

fn traffic(counters: CableCounters) -> String {
    let CableCounters { sent, received, bytes_sent, bytes_received, errors, discards } = counters;
    let [sent, received, bytes_sent, bytes_received] =
        [sent, received, bytes_sent, bytes_received].map(grouped);
    format!(
        "sent {sent} packets of {bytes_sent} bytes, received {received} of {bytes_received}, \
         {errors} errors, {discards} discards"
    )
}

/// A number with a comma between groups of three digits.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let comma = |at: usize| at > 0 && (digits.len() - at).is_multiple_of(3);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        text.extend(comma(at).then_some(','));
        text.push(digit);
    }
    text
}

/// A number with three digits: 1234567 is 1.23M.
pub(crate) fn short(count: u64) -> String {
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::graph;
    use super::*;

    #[test]
    fn counts_are_readable() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        let short = [0, 999, 1000, 12_345, 999_499, 999_500, 1_234_567].map(short);
        assert_eq!(short, ["0", "999", "1.00k", "12.3k", "999k", "1.00M", "1.23M"]);
    }

    #[test]
    fn a_topology_is_summed_up_in_a_line() {
        assert_eq!(contents(&graph("single:1")), "1 host, 1 switch, 1 link");
        let routed = graph("routed:2x3");
        assert_eq!(contents(&routed), "5 hosts, 2 switches, 1 router, 7 links");
        assert_eq!(conditions(&routed), "all at 4xEDR");
        assert_eq!(
            contents(&graph("leaf-spine:63x16x16")),
            "1,008 hosts, 79 switches, 2,016 links"
        );
    }
}
