//! The names in a picture. Names of switches are shown without their common prefix and suffix.
//!
//! Managed switches have names of the form `MF0;NAME:MODEL/UNIT`, which begin and end alike.

use super::graph::Graph;
use pollux_node::admin::rows::NodeKind;

/// If no name of a switch is longer than this, all names are left as they are.
const LENGTH_MIN: usize = 16;
/// Common parts end and begin at one of these.
const SEPARATORS: [char; 4] = [';', ':', '/', ' '];

/// The name of each node in a picture.
pub(crate) fn labels(graph: &Graph) -> Vec<String> {
    let is_switch = |node: &usize| graph.nodes[*node].kind == NodeKind::Switch;
    let switches: Vec<_> = (0..graph.nodes.len()).filter(is_switch).collect();
    let names: Vec<_> = switches.iter().map(|node| &*graph.nodes[*node].node).collect();
    let (prefix, suffix) = common(&names);
    let is_long = names.iter().any(|name| name.chars().count() > LENGTH_MIN);
    let label = |node: usize| {
        let name = &graph.nodes[node].node;
        let end = name.len() - suffix;
        let name = if is_switch(&node) && is_long { &name[prefix..end] } else { name };
        name.to_owned()
    };
    (0..graph.nodes.len()).map(label).collect()
}

/// The lengths of the parts that all names begin and end with.
fn common(names: &[&str]) -> (usize, usize) {
    let [first, others @ ..] = names else { return (0, 0) };
    if others.is_empty() {
        return (0, 0);
    }
    let ends = first.match_indices(SEPARATORS).map(|(at, separator)| at + separator.len());
    let is_prefix = |end: &usize| others.iter().all(|name| name.starts_with(&first[..*end]));
    let prefix = ends.filter(is_prefix).max().unwrap_or(0);
    let starts = first.match_indices(SEPARATORS).map(|(at, _)| at);
    let is_suffix = |at: &usize| others.iter().all(|name| name.ends_with(&first[*at..]));
    let suffix = starts.filter(is_suffix).map(|at| first.len() - at).max().unwrap_or(0);
    // A part of each name has to remain.
    let shortest = names.iter().map(|name| name.len()).min().unwrap_or(0);
    if prefix + suffix < shortest { (prefix, suffix) } else { (0, 0) }
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::node;
    use super::*;

    fn of(names: &[&str]) -> Vec<String> {
        let nodes = names.iter().map(|name| node(name, NodeKind::Switch, &[]));
        labels(&Graph::new(nodes.collect()))
    }

    #[test]
    fn common_parts_of_long_names_are_left_out() {
        let names = ["MF0;sw-leaf01:MQM8700/U1", "MF0;sw-leaf02:MQM8700/U1"];
        assert_eq!(of(&names), ["sw-leaf01", "sw-leaf02"]);
        let names = ["MF0;spine:CS7500/L01/U1", "MF0;spine:CS7500/L02/U1"];
        assert_eq!(of(&names), ["L01", "L02"]);
        let names = ["a switch of one model", "a switch of one model"];
        assert_eq!(of(&names), names);
        assert_eq!(of(&["pod1:leaf", "pod2:leaf"]), ["pod1:leaf", "pod2:leaf"]);
        assert_eq!(of(&["MF0;alone:MQM8700/U1"]), ["MF0;alone:MQM8700/U1"]);
        assert_eq!(of(&["é;one é of a long name é", "é;two é of a long name é"]), ["one", "two"]);
    }
}
