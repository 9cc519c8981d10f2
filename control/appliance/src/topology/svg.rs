//! A picture of a topology as SVG. Colors are CSS classes, which follow the reader's preferred
//! color scheme. A node or link below the pointer shows its details.

use super::area::{Area, NodeBox};
use super::describe::{self, Source, conditions, contents, rates, short};
use super::escape::escape;
use super::graph::{CableHealth, Graph};
use super::layout::Layout;
use super::lines::{Line, LineEnd, Side};
use super::style::{BOX_HEIGHT, HostStyle, host_name, switch_name};
use pollux_node::admin::rows::{CableCounters, CabledPort, NodeKind};
use std::fmt::{self, Write};

const STYLE: &str = include_str!("picture.css");
/// The space above and below a standalone picture.
const HEAD: f64 = 52.0;
const FOOT: f64 = 34.0;
const CAPTION_CHAR: f64 = 7.2;
const LEGEND_ITEM: f64 = 86.0;
/// With more lines than this, lines are thinner, and have no additional area for the pointer.
const LINES_THICK_MAX: usize = 300;
/// If at most this many links have another rate than the most frequent one, it is written at them.
const RATES_WRITTEN_MAX: usize = 40;

/// The picture. With a source, it is standalone, and has a caption and a legend.
pub(crate) fn picture(graph: &Graph, layout: &Layout, source: Option<&Source>) -> String {
    let mut svg = String::new();
    let rates = rates(graph);
    let common = rates.first().map_or("", |(rate, _)| *rate);
    let is_written =
        rates.iter().skip(1).map(|(_, count)| count).sum::<usize>() <= RATES_WRITTEN_MAX;
    let common = is_written.then_some(common);
    Picture { graph, layout, common }.write(source, &mut svg).expect("a string takes all");
    svg
}

/// The states that a legend explains, with the classes of their lines.
pub(crate) fn legend(graph: &Graph) -> Vec<(&'static str, &'static str)> {
    let is_live = graph.cables.iter().any(|cable| graph.health(cable) != CableHealth::Unknown);
    let all = [CableHealth::Active, CableHealth::Waiting, CableHealth::Down];
    all.into_iter().filter(|_| is_live).map(|one| (describe::word(one), class(one))).collect()
}

fn class(health: CableHealth) -> &'static str {
    match health {
        CableHealth::Unknown => "planned",
        CableHealth::Active => "active",
        CableHealth::Waiting => "waiting",
        CableHealth::Down => "down",
    }
}

/// A class for the width of a line, by its rate.
fn width_class(port: &CabledPort) -> &'static str {
    match port.megabits {
        None | Some(..20_000) => "w1",
        Some(..100_000) => "w2",
        Some(..200_000) => "w3",
        Some(_) => "w4",
    }
}

struct Picture<'a> {
    graph: &'a Graph,
    layout: &'a Layout,
    /// The most frequent rate, if others are written at their links.
    common: Option<&'a str>,
}

impl Picture<'_> {
    fn write(&self, source: Option<&Source>, svg: &mut String) -> fmt::Result {
        let Layout { width, height, lines, .. } = self.layout;
        let caption = source.map(|source| self.caption(source));
        let longest = caption.iter().flatten().map(|line| line.chars().count()).max();
        let legend_width = legend(self.graph).len() as f64 * LEGEND_ITEM;
        let text_width = longest.map_or(0.0, |longest| longest as f64 * CAPTION_CHAR);
        let text_width = if source.is_some() { text_width.max(legend_width) + 28.0 } else { 0.0 };
        let full = width.max(text_width);
        let [left, top] = [(width - full) / 2.0, if source.is_some() { -HEAD } else { 0.0 }];
        let full_height = height - top + if source.is_some() { FOOT } else { 0.0 };
        let [left, top, full, full_height] = [left, top, full, full_height].map(Number);
        let dense = if lines.len() > LINES_THICK_MAX { " dense" } else { "" };
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"topology{dense}\" \
             viewBox=\"{left} {top} {full} {full_height}\" width=\"{full}\" \
             height=\"{full_height}\" style=\"--natural: {full}px\" role=\"img\">\n\
             <title>{}</title>\n<style>\n{STYLE}</style>",
            escape(&contents(self.graph))
        )?;
        if let Some(caption) = caption {
            writeln!(
                svg,
                "<rect class=\"ground\" x=\"{left}\" y=\"{top}\" width=\"{full}\" \
                 height=\"{full_height}\"/>"
            )?;
            for (line, y) in caption.iter().zip([-30.0, -12.0]) {
                let (x, y) = (Number(left.0 + 14.0), Number(y));
                writeln!(
                    svg,
                    "<text class=\"caption\" x=\"{x}\" y=\"{y}\">{}</text>",
                    escape(line)
                )?;
            }
            self.legend(left.0, svg)?;
        }
        for panel in &self.layout.panels {
            rect(svg, "panel", *panel, 5.0)?;
        }
        let mut lines: Vec<_> = lines.iter().collect();
        // Cables in the worst state are drawn last, on top.
        lines.sort_by_key(|line| self.health(line));
        lines.iter().try_for_each(|line| self.line(line, svg))?;
        (0..self.graph.nodes.len()).try_for_each(|node| self.node(node, svg))?;
        lines.iter().try_for_each(|line| self.ports(line, svg))?;
        writeln!(svg, "</svg>")
    }

    fn caption(&self, source: &Source) -> [String; 2] {
        let time = source.time.as_ref().map(|time| format!(", {time}"));
        let first = format!("{}{}", source.name, time.unwrap_or_default());
        [first, format!("{}: {}", contents(self.graph), conditions(self.graph))]
    }

    fn legend(&self, left: f64, svg: &mut String) -> fmt::Result {
        let y = self.layout.height + 12.0;
        for (nth, (word, class)) in legend(self.graph).into_iter().enumerate() {
            let x = left + 14.0 + LEGEND_ITEM * nth as f64;
            let [from, to, text, line, base] = [x, x + 18.0, x + 24.0, y, y + 4.0].map(Number);
            writeln!(
                svg,
                "<path class=\"w3 {class}\" d=\"M{from} {line}H{to}\"/>\
                 <text class=\"small\" x=\"{text}\" y=\"{base}\">{word}</text>"
            )?;
        }
        Ok(())
    }

    fn health(&self, line: &Line) -> CableHealth {
        self.graph.health(&self.graph.cables[line.cable])
    }

    fn line(&self, line: &Line, svg: &mut String) -> fmt::Result {
        let cable = &self.graph.cables[line.cable];
        let port = self.graph.port(cable.ends[0]);
        let class = format!("{} {}", width_class(port), class(self.health(line)));
        let rate = self.common.and_then(|common| port.rate.as_ref().filter(|rate| *rate != common));
        let other = if rate.is_some() { " other" } else { "" };
        let title = escape(&describe::cable(self.graph, cable));
        let path = path(line);
        write!(svg, "<g class=\"link{other}\"><title>{title}</title>")?;
        write!(svg, "<path class=\"{class}\" d=\"{path}\"/>")?;
        if self.layout.lines.len() <= LINES_THICK_MAX {
            write!(svg, "<path class=\"hit\" d=\"{path}\"/>")?;
        }
        if let Some(rate) = rate {
            let [a, b] = line.ends;
            // The rates of cables side by side are at two heights.
            let part = match line.arc {
                None => 0.36 + 0.28 * f64::from(port.port % 2),
                Some(_) => 0.5,
            };
            let x = Number(a.x + (b.x - a.x) * part);
            let y = Number(a.y + (b.y - a.y) * part - line.arc.unwrap_or(0.0) + 3.5);
            let rate = escape(rate);
            write!(svg, "<text class=\"small mid halo\" x=\"{x}\" y=\"{y}\">{rate}</text>")?;
        }
        writeln!(svg, "</g>")
    }

    /// Squares and numbers of ports, over the boxes.
    fn ports(&self, line: &Line, svg: &mut String) -> fmt::Result {
        let cable = &self.graph.cables[line.cable];
        for (end, of) in line.ends.iter().zip(cable.ends).filter(|(end, _)| end.has_number) {
            let port = self.graph.port(of);
            let class = class(CableHealth::of(port));
            let LineEnd { x, y, side, .. } = *end;
            rect(
                svg,
                &format!("port {class}"),
                Area { x: x - 2.5, y: y - 2.5, width: 5.0, height: 5.0 },
                1.0,
            )?;
            if self.graph.is_external(of.node) {
                continue;
            }
            let (x, y, anchor) = match side {
                Side::Top => (x, y + 11.5, "mid"),
                Side::Bottom => (x, y - 5.0, "mid"),
                Side::Left => (x + 5.0, y + 3.0, ""),
                Side::Right => (x - 5.0, y + 3.0, "end"),
            };
            let (x, y) = (Number(x), Number(y));
            writeln!(
                svg,
                "<text class=\"number {anchor}\" x=\"{x}\" y=\"{y}\">{}</text>",
                port.port
            )?;
        }
        Ok(())
    }

    fn node(&self, node: usize, svg: &mut String) -> fmt::Result {
        let NodeBox { area, is_vertical, is_hosted } = self.layout.boxes[node];
        let row = &self.graph.nodes[node];
        let kind = match row.kind {
            _ if self.graph.is_external(node) => "external",
            NodeKind::Host => "host",
            NodeKind::Switch => "switch",
            NodeKind::Router => "router",
        };
        let health = row.cables.iter().map(CableHealth::of).max().unwrap_or(CableHealth::Unknown);
        let is_open = row.cables.iter().any(|cable| cable.process.is_some());
        let mut class = match row.kind {
            NodeKind::Host => format!("node {kind} {}", class(health)),
            _ => format!("node {kind}"),
        };
        let is_cell = is_hosted && matches!(self.layout.style.hosts, HostStyle::Cells(_));
        class += if is_open { " open" } else { "" };
        class += if is_cell { " cell" } else { "" };
        write!(
            svg,
            "<g class=\"{class}\"><title>{}</title>",
            escape(&describe::node(self.graph, node))
        )?;
        rect(svg, "box", area, if is_cell { 1.5 } else { 4.0 })?;
        let texts: Vec<(String, &str)> = if is_cell { Vec::new() } else { self.texts(node) };
        let middle = Number(area.middle());
        if is_vertical {
            let (x, y) = (Number(area.middle() + 4.0), Number(area.bottom() - 7.0));
            let name = escape(&switch_name(&self.layout.labels[node], true));
            write!(
                svg,
                "<text class=\"name\" transform=\"translate({x} {y}) rotate(-90)\">{name}</text>"
            )?;
        } else {
            let lines = texts.len() as f64;
            let first = match is_hosted && area.height >= BOX_HEIGHT {
                // The upper edge belongs to the number of the port.
                true => area.y + 24.0,
                false => area.y + area.height / 2.0 - (lines - 1.0) * 6.0 + 4.0,
            };
            for (nth, (text, class)) in texts.iter().enumerate() {
                let y = Number(first + nth as f64 * 12.0);
                write!(
                    svg,
                    "<text class=\"{class} mid\" x=\"{middle}\" y=\"{y}\">{}</text>",
                    escape(text)
                )?;
            }
        }
        writeln!(svg, "</g>")
    }

    /// The lines of text in a box, with their classes.
    fn texts(&self, node: usize) -> Vec<(String, &'static str)> {
        let row = &self.graph.nodes[node];
        let is_host = row.kind == NodeKind::Host;
        let name = &self.layout.labels[node];
        let name = if is_host { host_name(name) } else { switch_name(name, false) };
        let mut texts = vec![(name, "name")];
        if self.layout.boxes[node].area.height < BOX_HEIGHT || self.graph.is_external(node) {
            return texts;
        }
        texts.extend(row.lid.map(|lid| (format!("lid {lid}"), "small")));
        let counters: Vec<_> = row.cables.iter().filter_map(|cable| cable.counters).collect();
        if is_host && !counters.is_empty() {
            let sum = |of: fn(&CableCounters) -> u64| {
                short(counters.iter().map(of).fold(0, u64::saturating_add))
            };
            texts.push((format!("↑{}", sum(|one| one.sent)), "small"));
            texts.push((format!("↓{}", sum(|one| one.received)), "small"));
        }
        texts
    }
}

fn path(line: &Line) -> String {
    let [a, b] = line.ends;
    let [x, y, to_x, to_y] = [a.x, a.y, b.x, b.y].map(Number);
    match line.arc {
        None => format!("M{x} {y}L{to_x} {to_y}"),
        Some(arc) => {
            // The curve reaches three quarters of the height of its control points.
            let [up, to_up] = [a.y, b.y].map(|y| Number(y - arc / 0.75));
            format!("M{x} {y}C{x} {up} {to_x} {to_up} {to_x} {to_y}")
        }
    }
}

fn rect(svg: &mut String, class: &str, area: Area, round: f64) -> fmt::Result {
    let [x, y, width, height, round] = [area.x, area.y, area.width, area.height, round].map(Number);
    writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" \
         rx=\"{round}\"/>"
    )
}

/// A number that is printed with at most one decimal.
#[derive(Clone, Copy)]
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round() as i64;
        match tenths % 10 {
            0 => write!(f, "{}", tenths / 10),
            _ => write!(f, "{}", tenths as f64 / 10.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::{graph, node};
    use super::super::layout::layout;
    use super::*;

    fn svg(graph: &Graph) -> String {
        let source = Source { name: "a <b>".into(), time: None };
        picture(graph, &layout(graph), Some(&source))
    }

    #[test]
    fn every_node_and_link_is_in_the_picture() {
        for spec in ["single:3", "ring:5", "torus:3x3", "fat-tree:4", "routed:1x2"] {
            let graph = graph(spec);
            let svg = svg(&graph);
            assert_eq!(svg.matches("<g class=\"node ").count(), graph.nodes.len(), "{spec}");
            assert_eq!(svg.matches("<g class=\"link").count(), graph.cables.len(), "{spec}");
            assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
            assert!(svg.contains("a &lt;b&gt;"));
        }
    }

    #[test]
    fn a_topology_has_the_same_bytes_each_time() {
        for spec in ["ring:9", "fat-tree:6", "leaf-spine:63x16x16"] {
            assert_eq!(svg(&graph(spec)), svg(&graph(spec)), "{spec}");
        }
    }

    #[test]
    fn names_cannot_be_elements() {
        let hosts = [(1, "</title><script>"), (0, "b\" onload=\"x")];
        let hosts = hosts.map(|(peer, name)| node(name, NodeKind::Host, &[(1, peer, 1)]));
        let svg = svg(&Graph::new(hosts.to_vec()));
        assert!(!svg.contains("<script") && !svg.contains("\" onload"), "{svg}");
        assert_eq!(svg.matches("<title>").count(), svg.matches("</title>").count());
    }

    #[test]
    fn rates_that_differ_are_written_at_their_links() {
        let mut graph = graph("single:3");
        let cable = graph.cables[1].ends[0];
        graph.nodes[cable.node].cables[cable.index].rate = Some("1xSDR".into());
        assert!(svg(&graph).contains(">1xSDR</text>"));
        assert!(!svg(&graph).contains(">4xEDR</text>"));
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 1.0, -2.5, 3.04, 3.05, 1e6].map(|one| Number(one).to_string());
        assert_eq!(texts, ["0", "1", "-2.5", "3", "3.1", "1000000"]);
    }
}
