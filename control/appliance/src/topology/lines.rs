//! The lines of cables: their ends at the edges of boxes, and arcs between nodes of a level.

use super::area::{Area, NodeBox};
use super::graph::{Cable, Graph};
use super::style::{BOX_HEIGHT, HostStyle, PORT_PITCH, Style};
use std::cmp::Ordering;

const ARC_MIN: f64 = 26.0;
const ARC_STEP: f64 = 10.0;
const ARC_MAX: f64 = 140.0;

/// A cable that is drawn as a line. The cable between a host and its home is drawn only if hosts
/// are boxes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) cable: usize,
    pub(crate) ends: [LineEnd; 2],
    /// The height of an arc between two nodes of a level.
    pub(crate) arc: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LineEnd {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) side: Side,
    /// Whether there is space for the number of the port.
    pub(crate) has_number: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Top,
    Bottom,
    Left,
    Right,
}

/// The input of the lines, besides the boxes.
pub(crate) struct Cabling<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) style: Style,
    /// The position of each node in its level.
    pub(crate) positions: Vec<Option<usize>>,
}

impl Cabling<'_> {
    /// The height of the arc between two nodes of a level that are not side by side.
    pub(crate) fn arc(&self, a: usize, b: usize) -> Option<f64> {
        if self.graph.levels[a] != self.graph.levels[b] || self.is_side_by_side(a, b) {
            return None;
        }
        let span = self.positions[a]?.abs_diff(self.positions[b]?);
        Some((ARC_MIN + ARC_STEP * span as f64).min(ARC_MAX))
    }

    fn is_side_by_side(&self, a: usize, b: usize) -> bool {
        let [Some(one), Some(other)] = [a, b].map(|node| self.positions[node]) else {
            return false;
        };
        self.graph.levels[a] == self.graph.levels[b] && one.abs_diff(other) == 1
    }

    /// The lines of all cables that have one.
    pub(crate) fn lines(&self, boxes: &[NodeBox]) -> Vec<Line> {
        let graph = self.graph;
        let has_line = |cable: &Cable| {
            let [a, b] = cable.ends.map(|end| end.node);
            let is_home = graph.homes[a] == Some(b) || graph.homes[b] == Some(a);
            !is_home || self.style.hosts == HostStyle::Boxes
        };
        let cables = graph.cables.iter().enumerate().filter(|(_, cable)| has_line(cable));
        let cables: Vec<_> = cables.collect();
        // By node and side, in the order along the side.
        let mut ends: Vec<(usize, Side, [f64; 3], usize, usize)> = Vec::new();
        for (line, (_, cable)) in cables.iter().enumerate() {
            for (at, end) in cable.ends.iter().enumerate() {
                let other = cable.ends[1 - at].node;
                let (side, group) = self.side_of(boxes, end.node, other, at);
                let far = boxes[other].area.middle();
                let far = if group == 1.0 { far } else { -far };
                // Sorting by port keeps cables between the same two boxes from crossing.
                let port = graph.port(cable.ends[0]).port;
                ends.push((end.node, side, [group, far, f64::from(port)], line, at));
            }
        }
        ends.sort_by(|a, b| {
            let keys = a.2.iter().zip(&b.2).map(|(a, b)| a.total_cmp(b));
            (a.0, a.1).cmp(&(b.0, b.1)).then(keys.fold(Ordering::Equal, Ordering::then))
        });
        let none = LineEnd { x: 0.0, y: 0.0, side: Side::Top, has_number: false };
        let line = |(cable, of): &(usize, &Cable)| {
            let [a, b] = of.ends.map(|end| end.node);
            Line { cable: *cable, ends: [none; 2], arc: self.arc(a, b) }
        };
        let mut lines: Vec<_> = cables.iter().map(line).collect();
        for side in ends.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            for (nth, (node, which, _, line, at)) in side.iter().enumerate() {
                let end = self.end(boxes[*node].area, *which, nth, side.len());
                lines[*line].ends[*at] = end;
            }
        }
        lines
    }

    /// The side of a node where a cable to another node ends, and its group there: arcs to the
    /// left, cables to other levels, arcs to the right.
    fn side_of(&self, boxes: &[NodeBox], node: usize, other: usize, at: usize) -> (Side, f64) {
        let [own, far] = [node, other].map(|node| boxes[node].area);
        let is_right = (far.middle(), at) > (own.middle(), 1 - at);
        let is_beside = self.graph.levels[node].abs_diff(self.graph.levels[other]) > 1
            && (self.graph.homes[node] == Some(other) || self.graph.homes[other] == Some(node));
        if is_beside || self.is_side_by_side(node, other) {
            return (if is_right { Side::Right } else { Side::Left }, 1.0);
        }
        if self.arc(node, other).is_some() {
            return (Side::Top, if is_right { 2.0 } else { 0.0 });
        }
        (if far.y > own.y { Side::Bottom } else { Side::Top }, 1.0)
    }

    /// The `nth` of the ends at a side.
    fn end(&self, area: Area, side: Side, nth: usize, count: usize) -> LineEnd {
        let is_flat = matches!(side, Side::Top | Side::Bottom);
        let length = if is_flat { area.width } else { area.height };
        let most = if is_flat { 2.0 * PORT_PITCH } else { 14.0 };
        let pitch = ((length - 4.0) / count as f64).min(most);
        let offset = (nth as f64 - (count - 1) as f64 / 2.0) * pitch;
        let (middle_x, middle_y) = (area.middle() + offset, area.y + area.height / 2.0 + offset);
        let (x, y) = match side {
            Side::Top => (middle_x, area.y),
            Side::Bottom => (middle_x, area.bottom()),
            Side::Left => (area.x, middle_y),
            Side::Right => (area.right(), middle_y),
        };
        let is_free = pitch >= if is_flat { PORT_PITCH - 4.0 } else { 10.0 };
        let has_number = self.style.has_ports() && is_free && area.height >= BOX_HEIGHT;
        LineEnd { x, y, side, has_number }
    }
}
