//! The level of detail of a picture: a style for each size of a topology, from boxes with names and
//! port numbers to a small square for each host.

use super::graph::Graph;

/// The width of a picture that a wide screen shows without shrinking it.
pub(crate) const WIDTH_GOOD: f64 = 1280.0;
pub(crate) const BOX_HEIGHT: f64 = 52.0;
/// The side of a square that stands for a host.
pub(crate) const CELL: f64 = 9.0;
const CELL_PITCH: f64 = 11.0;
const LIST_ROW: f64 = 18.0;
const LIST_PITCH: f64 = 21.0;
/// The width of a character of a name.
const NAME_CHAR: f64 = 6.9;
/// The distance between cable ends at a box that has port numbers.
pub(crate) const PORT_PITCH: f64 = 18.0;
/// Boxes do not become wider for more cables than this.
const PORTS_WIDE_MAX: usize = 16;
const SWITCH_NAME_MAX: usize = 24;
const HOST_NAME_MAX: usize = 16;
const VERTICAL_NAME_MAX: usize = 18;
const VERTICAL_WIDTH: f64 = 17.0;
/// Maximum number of rows of hosts below a switch.
const LIST_ROWS_MAX: usize = 20;
const CELL_ROWS_MAX: usize = 24;
/// The minimum width of a host with counters.
const COUNTERS_WIDTH: f64 = 44.0;
/// The additional height of a host with counters.
const COUNTERS_HEIGHT: f64 = 16.0;
/// The additional width for port numbers at the left and right of a box.
const SIDE_PORTS: f64 = 22.0;

/// How hosts are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostStyle {
    /// Boxes in a row, each with its cables.
    Boxes,
    /// Names in this many columns.
    Names(usize),
    /// Squares in this many columns.
    Cells(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SwitchLook {
    Plain,
    /// With port numbers at the left and right.
    WithSides,
    /// With a name that is written from bottom to top.
    Vertical,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) hosts: HostStyle,
    /// The width of a host.
    pub(crate) host_width: f64,
    /// The gap between blocks of a level.
    pub(crate) gap: f64,
    /// The width of the border around a switch and hosts without lines.
    pub(crate) panel: f64,
    host_height: f64,
}

impl Style {
    /// All styles for a topology, the most detailed one first.
    pub(crate) fn all(graph: &Graph, hosts_max: usize) -> Vec<Self> {
        let names = (0..graph.nodes.len()).filter(|node| graph.homes[*node].is_some());
        let is_live = |node: &usize| graph.nodes[*node].cables.iter().any(|c| c.counters.is_some());
        let is_live = names.clone().any(|node| is_live(&node));
        let names = names.map(|node| name_width(&graph.nodes[node].node, HOST_NAME_MAX));
        let name_width = names.fold(30.0, f64::max);
        let box_width = if is_live { name_width.max(COUNTERS_WIDTH) } else { name_width };
        let box_height = BOX_HEIGHT + if is_live { COUNTERS_HEIGHT } else { 0.0 };
        let of = |hosts| match hosts {
            HostStyle::Boxes => Self::new(hosts, [box_width + 10.0, box_height], 20.0, 0.0),
            HostStyle::Names(_) => Self::new(hosts, [name_width + 18.0, LIST_ROW], 20.0, 6.0),
            HostStyle::Cells(_) => Self::new(hosts, [CELL, CELL], 4.0, 2.0),
        };
        let columns = |rows_max: usize, most: usize| {
            let least = hosts_max.div_ceil(rows_max).max(1);
            (least..=most.max(least)).rev()
        };
        // The side of a square that contains all hosts.
        let square = (1..).find(|side| side * side >= hosts_max).unwrap_or(1);
        let boxes = (hosts_max <= LIST_ROWS_MAX).then_some(HostStyle::Boxes);
        let names = columns(LIST_ROWS_MAX, square).map(HostStyle::Names);
        let cells = columns(CELL_ROWS_MAX, square).map(HostStyle::Cells);
        boxes.into_iter().chain(names).chain(cells).map(of).collect()
    }

    fn new(hosts: HostStyle, [host_width, host_height]: [f64; 2], gap: f64, panel: f64) -> Self {
        Self { hosts, host_width, gap, panel, host_height }
    }

    /// The same with one column of names, or two of squares.
    pub(crate) fn beside_switch(&self) -> Self {
        match self.hosts {
            HostStyle::Cells(_) => Self { hosts: HostStyle::Cells(2), ..*self },
            _ => Self { hosts: HostStyle::Names(1), host_height: LIST_ROW, ..*self },
        }
    }

    /// The columns of this many hosts, and the width and height of the space that they take.
    pub(crate) fn space(&self, hosts: usize) -> (usize, f64, f64) {
        let pitch = self.pitch();
        let columns = match self.hosts {
            HostStyle::Boxes => hosts.max(1),
            HostStyle::Names(columns) | HostStyle::Cells(columns) => columns,
        };
        // Leaves out columns that this number of rows does not need.
        let rows = hosts.div_ceil(columns);
        let columns = hosts.div_ceil(rows.max(1));
        let free = [pitch[0] - self.host_width, pitch[1] - self.host_height];
        let size = |count: usize, pitch: f64, free: f64| (count as f64 * pitch - free).max(0.0);
        (columns, size(columns, pitch[0], free[0]), size(rows, pitch[1], free[1]))
    }

    /// The distance from a host to the next one, across and down.
    pub(crate) fn pitch(&self) -> [f64; 2] {
        match self.hosts {
            HostStyle::Boxes => [self.host_width + 10.0, self.host_height],
            HostStyle::Names(_) => [self.host_width + 5.0, LIST_PITCH],
            HostStyle::Cells(_) => [CELL_PITCH, CELL_PITCH],
        }
    }

    pub(crate) fn host_height(&self) -> f64 {
        self.host_height
    }

    /// Whether boxes of switches show port numbers.
    pub(crate) fn has_ports(&self) -> bool {
        !matches!(self.hosts, HostStyle::Cells(_))
    }

    /// The size of a switch with this many cable ends at one side.
    pub(crate) fn switch_size(&self, name: &str, ends: usize, look: SwitchLook) -> [f64; 2] {
        if look == SwitchLook::Vertical {
            return [VERTICAL_WIDTH, name_width(name, VERTICAL_NAME_MAX) + 14.0];
        }
        let sides = if look == SwitchLook::WithSides { SIDE_PORTS } else { 0.0 };
        let name = name_width(name, SWITCH_NAME_MAX) + 16.0 + sides;
        let (ports, height) = match self.has_ports() {
            true => (ends.min(PORTS_WIDE_MAX) as f64 * PORT_PITCH + 6.0, BOX_HEIGHT),
            false => (0.0, 24.0),
        };
        [name.max(ports).max(44.0), height]
    }
}

/// The name of a switch, shortened to fit its box.
pub(crate) fn switch_name(name: &str, is_vertical: bool) -> String {
    shortened(name, if is_vertical { VERTICAL_NAME_MAX } else { SWITCH_NAME_MAX })
}

pub(crate) fn host_name(name: &str) -> String {
    shortened(name, HOST_NAME_MAX)
}

fn name_width(name: &str, max: usize) -> f64 {
    let widths = shortened(name, max).chars().map(char_width).sum::<usize>();
    widths as f64 * NAME_CHAR
}

/// Cuts a name that is longer than `max`, and adds an ellipsis.
fn shortened(name: &str, max: usize) -> String {
    if name.chars().map(char_width).sum::<usize>() <= max {
        return name.into();
    }
    let mut width = 1;
    let kept = name.chars().take_while(|c| {
        width += char_width(*c);
        width <= max
    });
    kept.chain(['…']).collect()
}

/// Characters of East Asian scripts, and pictures, are twice as wide as others.
fn char_width(c: char) -> usize {
    1 + usize::from(c >= '\u{1100}' && !('\u{2000}'..'\u{2e80}').contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened_by_their_width() {
        assert_eq!(host_name("node001 HCA-1"), "node001 HCA-1");
        assert_eq!(host_name("a-name-of-seventeen"), "a-name-of-seven…");
        assert_eq!(host_name("計算機計算機計算機計算機"), "計算機計算機計…");
        assert_eq!(switch_name("MF0;leaf01:MQM8700/U1/S1", false).chars().count(), 24);
    }

    #[test]
    fn hosts_fill_their_columns() {
        let style = |hosts| Style::new(hosts, [50.0, LIST_ROW], 20.0, 6.0);
        assert_eq!(style(HostStyle::Names(4)).space(9), (3, 160.0, 60.0));
        assert_eq!(style(HostStyle::Boxes).space(2).0, 2);
        assert_eq!(style(HostStyle::Names(4)).space(0), (0, 0.0, 0.0));
    }
}
