//! The order of nodes within their levels, such that few cables cross.
//!
//! The first order is that of names, as people expect. If cables join switches of a level, as in a
//! ring, an order along these cables replaces it if they become shorter. Passes up and down then
//! move nodes to the mean position of their neighbors at the next level. The best order wins; of
//! equal ones, the first. (Sugiyama, Tagawa and Toda, 1981.)

use super::graph::Graph;
use std::cmp::Ordering;

/// The number of passes up and down. Most topologies need two.
const PASSES: usize = 6;

/// The nodes of each level from 1 on, from left to right, without hosts that have a home.
pub(crate) fn order(graph: &Graph) -> Vec<Vec<usize>> {
    let top = graph.levels.iter().copied().max().unwrap_or(0);
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); top];
    let mut nodes: Vec<_> =
        (0..graph.nodes.len()).filter(|node| graph.homes[*node].is_none()).collect();
    nodes.sort_by(|a, b| by_name(graph, *a, *b));
    for node in nodes {
        rows[graph.levels[node] - 1].push(node);
    }
    rows.iter_mut().for_each(|row| along_cables(graph, row));
    let mut best = (cost(graph, &rows), rows.clone());
    for pass in 0..PASSES {
        for step in 1..top {
            let is_up = pass % 2 == 0;
            let (moved, fixed) =
                if is_up { (step, step - 1) } else { (top - 1 - step, top - step) };
            toward_neighbors(graph, &mut rows, moved, fixed);
        }
        let cost = cost(graph, &rows);
        if cost < best.0 {
            best = (cost, rows.clone());
        }
    }
    best.1
}

/// Compares names as people order them: leaf2 before leaf10.
fn by_name(graph: &Graph, a: usize, b: usize) -> Ordering {
    let (one, other) = (&graph.nodes[a], &graph.nodes[b]);
    natural(&one.node, &other.node).then_with(|| one.guid.cmp(&other.guid)).then(a.cmp(&b))
}

fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let ((one, rest), (other, rest_of_b)) = (split_number(a), split_number(b));
        if a.is_empty() || b.is_empty() {
            return a.len().cmp(&b.len());
        }
        let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        let order = match is_number(one) && is_number(other) {
            true => {
                let digits = [one, other].map(|digits| digits.trim_start_matches('0'));
                digits[0].len().cmp(&digits[1].len()).then(digits[0].cmp(digits[1]))
            }
            false => one.cmp(other),
        };
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (rest, rest_of_b);
    }
}

/// Splits a text after its leading digits, or after its leading other characters.
fn split_number(text: &str) -> (&str, &str) {
    let is_digit = text.starts_with(|c: char| c.is_ascii_digit());
    let end = text.find(|c: char| c.is_ascii_digit() != is_digit).unwrap_or(text.len());
    text.split_at(end)
}

/// The position of each node in its row; `None` for hosts that have a home.
pub(crate) fn positions(graph: &Graph, rows: &[Vec<usize>]) -> Vec<Option<usize>> {
    let mut positions = vec![None; graph.nodes.len()];
    for row in rows {
        row.iter().enumerate().for_each(|(at, node)| positions[*node] = Some(at));
    }
    positions
}

/// Sorts a row along the cables within it, if this makes them shorter.
fn along_cables(graph: &Graph, row: &mut Vec<usize>) {
    let before = spans(graph, row);
    if before == 0 {
        return;
    }
    let mut rank = vec![usize::MAX; graph.nodes.len()];
    row.iter().enumerate().for_each(|(at, node)| rank[*node] = at);
    let within = |node: usize| {
        let mut peers: Vec<_> = graph.peers(node).filter(|peer| rank[*peer] < usize::MAX).collect();
        peers.sort_by_key(|peer| rank[*peer]);
        peers.dedup();
        peers
    };
    // A chain is walked from its end.
    let mut starts = row.clone();
    starts.sort_by_key(|node| (within(*node).len(), rank[*node]));
    let (mut walked, mut is_walked) = (Vec::new(), vec![false; graph.nodes.len()]);
    for start in starts {
        let mut next = vec![start];
        while let Some(node) = next.pop() {
            if !std::mem::replace(&mut is_walked[node], true) {
                walked.push(node);
                next.extend(within(node).into_iter().rev());
            }
        }
    }
    if spans(graph, &walked) < before {
        *row = walked;
    }
}

/// The sum of the lengths of cables within a row.
fn spans(graph: &Graph, row: &[usize]) -> usize {
    let positions = positions(graph, std::slice::from_ref(&row.to_vec()));
    let spans = graph.cables.iter().filter_map(|cable| {
        let [a, b] = cable.ends.map(|end| positions[end.node]);
        Some(a?.abs_diff(b?))
    });
    spans.sum()
}

/// Sorts a row by the mean position of each node's neighbors in another row.
fn toward_neighbors(graph: &Graph, rows: &mut [Vec<usize>], moved: usize, fixed: usize) {
    let positions = positions(graph, &rows[fixed..=fixed]);
    let mean = |at: usize, node: usize| {
        let near: Vec<_> = graph.peers(node).filter_map(|peer| positions[peer]).collect();
        // A node without neighbors there keeps its relative position in the row.
        let own = at as f64 / rows[moved].len() as f64 * rows[fixed].len() as f64;
        if near.is_empty() { own } else { near.iter().sum::<usize>() as f64 / near.len() as f64 }
    };
    let mut means: Vec<_> =
        rows[moved].iter().enumerate().map(|(at, node)| (mean(at, *node), *node)).collect();
    means.sort_by(|a, b| a.0.total_cmp(&b.0));
    rows[moved] = means.into_iter().map(|(_, node)| node).collect();
}

/// The number of crossings between levels, plus the lengths of cables within levels.
fn cost(graph: &Graph, rows: &[Vec<usize>]) -> usize {
    let positions = positions(graph, rows);
    let between = (0..rows.len().saturating_sub(1)).map(|level| {
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for (at, node) in rows[level].iter().enumerate() {
            let above = graph.peers(*node).filter(|peer| graph.levels[*peer] == level + 2);
            pairs.extend(above.filter_map(|peer| Some((at, positions[peer]?))));
        }
        pairs.sort_unstable();
        let ends: Vec<_> = pairs.into_iter().map(|(_, end)| end).collect();
        inversions(&ends, rows[level + 1].len())
    });
    let crossings: usize = between.sum();
    crossings + rows.iter().map(|row| spans(graph, row)).sum::<usize>()
}

/// The number of pairs in the wrong order, counted with a Fenwick tree.
fn inversions(ends: &[usize], count: usize) -> usize {
    let (mut tree, mut inversions) = (vec![0usize; count + 1], 0);
    for (before, end) in ends.iter().enumerate() {
        let (mut index, mut not_above) = (end + 1, 0);
        while index > 0 {
            not_above += tree[index];
            index &= index - 1;
        }
        inversions += before - not_above;
        index = end + 1;
        while index <= count {
            tree[index] += 1;
            index += index & index.wrapping_neg();
        }
    }
    inversions
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::{graph, node};
    use super::*;
    use pollux_node::admin::rows::NodeKind;

    fn names(graph: &Graph) -> Vec<Vec<&str>> {
        let rows = order(graph).into_iter();
        rows.map(|row| row.into_iter().map(|node| &*graph.nodes[node].node).collect()).collect()
    }

    #[test]
    fn numbers_in_names_count() {
        let mut names = ["leaf10", "leaf2", "leaf02", "leaf", "core", "leaf2b", "10", "9"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["9", "10", "core", "leaf", "leaf2", "leaf02", "leaf2b", "leaf10"]);
    }

    #[test]
    fn trees_keep_the_order_of_names() {
        let graph = graph("leaf-spine:12x3x2");
        let expected = |name, count| (1..=count).map(move |nth| format!("{name}{nth}"));
        let rows = names(&graph);
        assert!(rows[0].iter().copied().eq(expected("leaf", 12)), "{rows:?}");
        assert!(rows[1].iter().copied().eq(expected("spine", 3)), "{rows:?}");
    }

    #[test]
    fn aggregation_switches_are_above_their_pods() {
        let graph = graph("fat-tree:6");
        let rows = names(&graph);
        let pods = |row: &[&str]| -> Vec<String> {
            row.iter().map(|name| name.split('-').next().unwrap().to_owned()).collect()
        };
        assert_eq!(pods(&rows[0]), pods(&rows[1]));
    }

    /// The names of the switches do not follow the ring.
    #[test]
    fn a_ring_is_walked_along_its_cables() {
        let ring = ["c", "a", "e", "b", "d"];
        let switch = |at: usize, name: &&str| {
            let [before, after] = [at + 4, at + 1].map(|at| (at % 5) as u32);
            node(name, NodeKind::Switch, &[(1, before, 2), (2, after, 1)])
        };
        let nodes = ring.iter().enumerate().map(|(at, name)| switch(at, name));
        let graph = Graph::new(nodes.collect());
        assert_eq!(names(&graph), [["a", "c", "d", "b", "e"]]);
    }

    /// In the order of names, the cables of two pairs cross.
    #[test]
    fn crossings_are_fewer_than_by_names() {
        use NodeKind::{Host, Switch};
        let nodes = vec![
            node("leaf1", Switch, &[(1, 4, 1), (2, 3, 1)]),
            node("leaf2", Switch, &[(1, 5, 1), (2, 2, 1)]),
            node("spine1", Switch, &[(1, 1, 2)]),
            node("spine2", Switch, &[(1, 0, 2)]),
            node("a", Host, &[(1, 0, 1)]),
            node("b", Host, &[(1, 1, 1)]),
        ];
        let graph = Graph::new(nodes);
        assert_eq!(names(&graph), [["leaf1", "leaf2"], ["spine2", "spine1"]]);
        assert_eq!(inversions(&[1, 0, 2, 1], 3), 2);
    }
}
