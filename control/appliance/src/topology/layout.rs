//! The layout of a picture: boxes, and the ends of cables at their edges. It depends only on the
//! graph, so that a fabric has the same picture each time.
//!
//! A block is a switch and its hosts: the hosts of a leaf are below it, those of other switches to
//! the right of it. The blocks of a level form a row, in the order of [`order`]. Each block is as
//! near to the middle of its neighbors below as the other blocks of its level permit.

use super::area::{Area, NodeBox};
use super::graph::Graph;
use super::labels::labels;
use super::lines::{Cabling, Line};
use super::order::{order, positions};
use super::style::{HostStyle, Style, SwitchLook, WIDTH_GOOD};
use std::cmp::Ordering;

const MARGIN: f64 = 14.0;
/// The gap between a switch and its hosts.
const HOST_GAP: f64 = 8.0;
const HOST_GAP_WITH_CABLES: f64 = 44.0;
/// The gap between the switches of a level, if cables join them.
const JOINED_GAP: f64 = 40.0;
const JOINED_GAP_NARROW: f64 = 14.0;
/// The limits of the gap between levels, which grows with the width of the picture.
const LEVEL_GAP_MIN: f64 = 64.0;
const LEVEL_GAP_MAX: f64 = 120.0;
/// The maximum if hosts are squares, with many lines.
const LEVEL_GAP_DENSE_MAX: f64 = 190.0;
/// The maximum by which the gap grows to spread boxes over a level.
const SPREAD_MAX: f64 = 150.0;

pub(crate) struct Layout {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) style: Style,
    /// The name of each node.
    pub(crate) labels: Vec<String>,
    /// The box of each node.
    pub(crate) boxes: Vec<NodeBox>,
    /// Rectangles around switches and their hosts.
    pub(crate) panels: Vec<Area>,
    pub(crate) lines: Vec<Line>,
}

/// A switch and its hosts. In the block of a leaf, the switch is centered.
struct Block {
    node: usize,
    hosts: Vec<usize>,
    size: [f64; 2],
    width: f64,
    height: f64,
    /// The distance from its edge to its boxes.
    inset: f64,
    x: f64,
}

struct Plan<'a> {
    graph: &'a Graph,
    style: Style,
    rows: &'a [Vec<usize>],
    labels: &'a [String],
    cabling: Cabling<'a>,
    /// The hosts of each node, by port.
    hosts: &'a [Vec<usize>],
}

pub(crate) fn layout(graph: &Graph) -> Layout {
    let rows = order(graph);
    let (hosts, labels) = (hosts(graph), labels(graph));
    let hosts_max = hosts.iter().map(Vec::len).max().unwrap_or(0);
    let styles = Style::all(graph, hosts_max);
    let plan = |style| {
        let cabling = Cabling { graph, style, positions: positions(graph, &rows) };
        Plan { graph, style, rows: &rows, labels: &labels, cabling, hosts: &hosts }
    };
    let width = |plan: &Plan<'_>| -> f64 {
        let widths = (0..rows.len()).map(|level| plan.width(&plan.blocks(level, false), level));
        widths.fold(0.0, f64::max)
    };
    let fitting = styles.iter().map(|style| plan(*style)).find(|plan| width(plan) <= WIDTH_GOOD);
    if let Some(plan) = fitting {
        return plan.lay_out(WIDTH_GOOD);
    }
    // No style fits with horizontal names. So names of leaves are vertical, and hosts are squares,
    // in the widest rows that fit or else in the narrowest.
    let cells = styles.iter().filter(|style| !style.has_ports()).map(|style| plan(*style));
    let mut cells: Vec<_> = cells.collect();
    let leaves = |plan: &Plan<'_>| plan.width(&plan.blocks(0, true), 0);
    let at = cells.iter().position(|plan| leaves(plan) <= WIDTH_GOOD);
    let plan = cells.swap_remove(at.unwrap_or(cells.len() - 1));
    let width = leaves(&plan).max(WIDTH_GOOD);
    plan.lay_out(width)
}

/// The hosts of each node, by port.
fn hosts(graph: &Graph) -> Vec<Vec<usize>> {
    (0..graph.nodes.len()).map(|node| hosts_of(graph, node)).collect()
}

fn hosts_of(graph: &Graph, node: usize) -> Vec<usize> {
    let peers = graph.cables_at(node).iter().map(|&cable| {
        let cable = &graph.cables[cable];
        (graph.port(cable.end_at(node)).port, cable.other(node))
    });
    let mut peers: Vec<_> = peers.filter(|(_, peer)| graph.homes[*peer] == Some(node)).collect();
    peers.sort_unstable();
    let mut hosts = Vec::new();
    for (_, peer) in peers {
        if !hosts.contains(&peer) {
            hosts.push(peer);
        }
    }
    hosts
}

impl Plan<'_> {
    fn has_host_lines(&self) -> bool {
        self.style.hosts == HostStyle::Boxes
    }

    fn blocks(&self, level: usize, is_vertical: bool) -> Vec<Block> {
        let look = match is_vertical {
            true => SwitchLook::Vertical,
            false if self.style.has_ports() && self.is_joined(level) => SwitchLook::WithSides,
            false => SwitchLook::Plain,
        };
        let blocks = self.rows[level].iter().map(|node| self.block(*node, level, look));
        let mut blocks: Vec<_> = blocks.collect();
        // All switches of a level have the same height, so that their hosts begin at one line.
        let most = blocks.iter().map(|block| block.size[1]).fold(0.0, f64::max);
        for block in &mut blocks {
            block.height += most - block.size[1];
            block.size[1] = most;
        }
        blocks
    }

    fn block(&self, node: usize, level: usize, look: SwitchLook) -> Block {
        let hosts = self.hosts[node].clone();
        let name = &self.labels[node];
        let size = self.style.switch_size(name, self.ends_max(node), look);
        let [hosts_width, hosts_height] = self.hosts_size(hosts.len(), level);
        let (width, height) = match (hosts.is_empty(), level) {
            (true, _) => (size[0], size[1]),
            (_, 0) => (size[0].max(hosts_width), size[1] + self.host_gap() + hosts_height),
            _ => (size[0] + self.host_gap() + hosts_width, size[1].max(hosts_height)),
        };
        let panel = if hosts.is_empty() { 0.0 } else { 2.0 * self.style.panel };
        Block {
            node,
            hosts,
            size,
            width: width + panel,
            height: height + panel,
            inset: panel / 2.0,
            x: 0.0,
        }
    }

    fn hosts_size(&self, hosts: usize, level: usize) -> [f64; 2] {
        let (_, width, height) = self.side(level).space(hosts);
        [width, height]
    }

    /// The style of hosts at a level. Above the leaves, hosts are beside their switch, in one
    /// column of names or two of squares.
    fn side(&self, level: usize) -> Style {
        if level == 0 { self.style } else { self.style.beside_switch() }
    }

    fn host_gap(&self) -> f64 {
        if self.has_host_lines() { HOST_GAP_WITH_CABLES } else { HOST_GAP }
    }

    /// The number of cable ends at the top or bottom of a node, whichever has more.
    fn ends_max(&self, node: usize) -> usize {
        let graph = self.graph;
        let (mut above, mut below) = (0, 0);
        for peer in graph.peers(node) {
            match graph.levels[peer].cmp(&graph.levels[node]) {
                Ordering::Less if graph.homes[peer] != Some(node) || self.has_host_lines() => {
                    below += 1;
                }
                Ordering::Less => {}
                _ => above += 1,
            }
        }
        above.max(below)
    }

    fn gap(&self, level: usize) -> f64 {
        match (self.is_joined(level), self.style.has_ports()) {
            (false, _) => self.style.gap,
            (true, true) => JOINED_GAP,
            (true, false) => JOINED_GAP_NARROW,
        }
    }

    /// Whether nodes of a level have cables between each other.
    fn is_joined(&self, level: usize) -> bool {
        let of = |node: &usize| self.graph.peers(*node).any(|peer| self.is_within(peer, level));
        self.rows[level].iter().any(of)
    }

    fn is_within(&self, peer: usize, level: usize) -> bool {
        self.cabling.positions[peer].is_some() && self.graph.levels[peer] == level + 1
    }

    fn width(&self, blocks: &[Block], level: usize) -> f64 {
        let widths: f64 = blocks.iter().map(|block| block.width).sum();
        widths + self.gap(level) * blocks.len().saturating_sub(1) as f64
    }

    fn lay_out(self, width_good: f64) -> Layout {
        let is_wide = |level: usize| self.width(&self.blocks(level, false), level) > width_good;
        let mut levels: Vec<Vec<Block>> =
            (0..self.rows.len()).map(|level| self.blocks(level, is_wide(level))).collect();
        self.place(&mut levels);
        let blocks = || levels.iter().flatten();
        let left = blocks().map(|block| block.x).fold(f64::INFINITY, f64::min);
        let right = blocks().map(|block| block.x + block.width).fold(f64::NEG_INFINITY, f64::max);
        for block in levels.iter_mut().flatten() {
            block.x += MARGIN - left;
        }
        let width = right - left + 2.0 * MARGIN;
        let mut layout = Layout {
            width: if width.is_finite() { width } else { 2.0 * MARGIN },
            height: MARGIN,
            style: self.style,
            labels: self.labels.to_vec(),
            boxes: vec![NodeBox::default(); self.graph.nodes.len()],
            panels: Vec::new(),
            lines: Vec::new(),
        };
        for level in (0..levels.len()).rev() {
            self.put_level(&mut layout, &levels[level], level, is_wide(level));
        }
        layout.lines = self.cabling.lines(&layout.boxes);
        layout
    }

    /// Sets the x of each block: leaves side by side, other blocks above their neighbors.
    fn place(&self, levels: &mut [Vec<Block>]) {
        let mut middles = vec![None; self.graph.nodes.len()];
        let widest = (0..levels.len()).map(|level| self.width(&levels[level], level));
        let widest = widest.fold(0.0, f64::max);
        for (level, row) in levels.iter_mut().enumerate() {
            let own = self.width(row, level);
            let free = (widest * 0.8 - own).max(0.0) / row.len().max(1) as f64;
            let gap = self.gap(level) + if level > 0 { free.min(SPREAD_MAX) } else { 0.0 };
            let mut next = 0.0;
            let wanted: Vec<f64> = row
                .iter()
                .map(|block| {
                    let side_by_side = next;
                    next += block.width + gap;
                    let below = self.graph.peers(block.node).filter_map(|peer| middles[peer]);
                    let (count, sum) =
                        below.fold((0, 0.0), |(count, sum), x: f64| (count + 1, sum + x));
                    if count == 0 {
                        side_by_side
                    } else {
                        sum / f64::from(count) - block.size[0] / 2.0
                    }
                })
                .collect();
            let widths: Vec<_> = row.iter().map(|block| block.width + gap).collect();
            for (block, x) in row.iter_mut().zip(apart(&wanted, &widths)) {
                block.x = x;
            }
            for block in row.iter() {
                middles[block.node] = Some(block.switch_x(level) + block.size[0] / 2.0);
            }
        }
    }

    fn put_level(&self, layout: &mut Layout, row: &[Block], level: usize, is_vertical: bool) {
        layout.height += self.arc_space(level);
        let top = layout.height;
        let heights = row.iter().map(|block| block.height);
        for block in row {
            self.put(layout, block, top, level, is_vertical);
        }
        layout.height += heights.fold(0.0, f64::max);
        layout.height += match level {
            0 => MARGIN,
            _ if self.style.has_ports() => (layout.width / 9.0).clamp(LEVEL_GAP_MIN, LEVEL_GAP_MAX),
            _ => (layout.width / 7.0).clamp(LEVEL_GAP_MIN, LEVEL_GAP_DENSE_MAX),
        };
    }

    /// Places the boxes of a block. The upper edges of all switches of a level are on one line.
    fn put(&self, layout: &mut Layout, block: &Block, y: f64, level: usize, is_vertical: bool) {
        let [width, height] = block.size;
        let area = Area { x: block.switch_x(level), y: y + block.inset, width, height };
        layout.boxes[block.node] = NodeBox { area, is_vertical, is_hosted: false };
        if block.hosts.is_empty() {
            return;
        }
        if !self.has_host_lines() {
            let (width, height) = (block.width, block.height);
            layout.panels.push(Area { x: block.x, y, width, height });
        }
        let style = self.side(level);
        let (columns, hosts_width, _) = style.space(block.hosts.len());
        let [x, y] = match level {
            0 => [area.middle() - hosts_width / 2.0, area.bottom() + self.host_gap()],
            _ => [area.right() + self.host_gap(), area.y],
        };
        let [across, down] = style.pitch();
        for (at, host) in block.hosts.iter().enumerate() {
            let (column, line) = (at % columns, at / columns);
            let area = Area {
                x: x + column as f64 * across,
                y: y + line as f64 * down,
                width: style.host_width,
                height: style.host_height(),
            };
            layout.boxes[*host] = NodeBox { area, is_vertical: false, is_hosted: true };
        }
    }

    /// The height of the highest arc of a level.
    fn arc_space(&self, level: usize) -> f64 {
        let arcs = self.graph.cables.iter().filter_map(|cable| {
            let [a, b] = cable.ends.map(|end| end.node);
            self.cabling.arc(a, b).filter(|_| self.graph.levels[a] == level + 1)
        });
        arcs.fold(0.0, f64::max)
    }
}

impl Block {
    fn switch_x(&self, level: usize) -> f64 {
        match level {
            0 => self.x + (self.width - self.size[0]) / 2.0,
            _ => self.x + self.inset,
        }
    }
}

/// The positions nearest to the wanted ones that keep their order and do not overlap. A group that
/// would overlap is placed at the mean of its wanted positions (pool adjacent violators).
fn apart(wanted: &[f64], widths: &[f64]) -> Vec<f64> {
    // The sum and the number of positions of each group. From each position, the widths before it
    // are subtracted.
    let mut groups: Vec<(f64, usize)> = Vec::new();
    let mut before = 0.0;
    let mean = |group: &(f64, usize)| group.0 / group.1 as f64;
    for (x, width) in wanted.iter().zip(widths) {
        groups.push((x - before, 1));
        before += width;
        while let [.., a, b] = &groups[..]
            && mean(a) > mean(b)
        {
            let joined = (a.0 + b.0, a.1 + b.1);
            groups.pop();
            groups.pop();
            groups.push(joined);
        }
    }
    let means = groups.iter().flat_map(|group| std::iter::repeat_n(mean(group), group.1));
    let mut before = 0.0;
    means
        .zip(widths)
        .map(|(x, width)| {
            let x = x + before;
            before += width;
            x
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::graph;
    use super::*;

    fn is_apart(a: Area, b: Area) -> bool {
        let free = 0.5;
        a.right() + free < b.x
            || b.right() + free < a.x
            || a.bottom() + free < b.y
            || b.bottom() + free < a.y
    }

    const SPECS: [&str; 14] = [
        "single:1",
        "single:3",
        "single:40",
        "single:254",
        "ring:2",
        "ring:3",
        "ring:12",
        "torus:4x4",
        "fat-tree:4",
        "fat-tree:8",
        "leaf-spine:63x16x16",
        "leaf-spine:2x16x3",
        "routed:2x3",
        "fat-tree:16",
    ];

    #[test]
    fn no_box_overlaps_another_and_all_are_inside() {
        for spec in SPECS {
            let graph = graph(spec);
            let Layout { width, height, boxes, panels, .. } = layout(&graph);
            assert_eq!(boxes.len(), graph.nodes.len());
            for (nth, one) in boxes.iter().enumerate() {
                let area = one.area;
                assert!(area.width > 0.0 && area.x > 0.0 && area.y > 0.0, "{spec}: {area:?}");
                assert!(area.right() < width && area.bottom() < height, "{spec}: {area:?}");
                for other in &boxes[..nth] {
                    assert!(is_apart(area, other.area), "{spec}: {area:?} {:?}", other.area);
                }
            }
            for (nth, panel) in panels.iter().enumerate() {
                assert!(panels[..nth].iter().all(|one| is_apart(*one, *panel)), "{spec}");
            }
        }
    }

    #[test]
    fn lines_end_at_the_edges_of_their_boxes() {
        for spec in SPECS {
            let graph = graph(spec);
            let Layout { boxes, lines, .. } = layout(&graph);
            for line in lines {
                for (end, cable) in line.ends.iter().zip(graph.cables[line.cable].ends) {
                    let area = boxes[cable.node].area;
                    assert!(area.x <= end.x && end.x <= area.right(), "{spec}: {end:?}");
                    assert!(area.y <= end.y && end.y <= area.bottom(), "{spec}: {end:?}");
                }
            }
        }
    }

    #[test]
    fn hosts_are_below_their_leaf_and_switches_above_by_level() {
        for spec in SPECS {
            let graph = graph(spec);
            let boxes = layout(&graph).boxes;
            for (node, peer) in
                (0..boxes.len()).flat_map(|node| graph.peers(node).map(move |peer| (node, peer)))
            {
                let [own, far] = [node, peer].map(|node| boxes[node].area);
                if graph.levels[node] < graph.levels[peer] {
                    assert!(own.y > far.bottom(), "{spec}");
                }
            }
        }
    }

    #[test]
    fn small_fabrics_have_boxes_and_large_ones_squares() {
        let style = |spec| layout(&graph(spec)).style.hosts;
        assert_eq!(style("single:3"), HostStyle::Boxes);
        assert_eq!(style("fat-tree:4"), HostStyle::Boxes);
        assert!(matches!(style("single:100"), HostStyle::Names(_)));
        assert!(matches!(style("leaf-spine:63x16x16"), HostStyle::Cells(_)));
        assert!(layout(&graph("leaf-spine:63x16x16")).width < 1.5 * WIDTH_GOOD);
    }

    #[test]
    fn positions_are_the_nearest_that_do_not_overlap() {
        assert_eq!(apart(&[0.0, 50.0], &[10.0, 10.0]), [0.0, 50.0]);
        assert_eq!(apart(&[0.0, 0.0], &[10.0, 10.0]), [-5.0, 5.0]);
        assert_eq!(apart(&[0.0, 1.0, 100.0], &[10.0, 10.0, 5.0]), [-4.5, 5.5, 100.0]);
        assert_eq!(apart(&[], &[]), [0.0; 0]);
    }
}
