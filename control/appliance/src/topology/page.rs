//! A topology as one HTML page: the picture, and tables of nodes and of links. The page needs no
//! network and no script, follows the reader's preferred color scheme, and can be printed.

use super::describe::{Source, conditions, contents, grouped, name};
use super::escape::escape;
use super::graph::{Cable, Graph};
use super::layout::Layout;
use super::svg::{legend, picture};
use pollux_node::admin::rows::{CableCounters, NodeKind, TopologyNode};
use std::fmt::{self, Write};

const STYLE: &str = include_str!("page.css");
/// A longer table is collapsed until the reader opens it, so that a page prints on few sheets.
const ROWS_OPEN_MAX: usize = 100;

pub(crate) fn page(graph: &Graph, layout: &Layout, source: &Source) -> String {
    let mut page = String::new();
    write(graph, layout, source, &mut page).expect("a string takes all");
    page
}

fn write(graph: &Graph, layout: &Layout, source: &Source, page: &mut String) -> fmt::Result {
    let title = escape(&source.name);
    let time = match &source.time {
        Some(time) => format!("The running fabric as it was at <b>{}</b>: ", escape(time)),
        None => "A plan, without states and counters: ".into(),
    };
    writeln!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{title} - topology</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>Topology of {title}</h1>\n<p>{time}{}; {}.</p>\n<ul class=\"legend topology\">{}</ul>",
        escape(&contents(graph)),
        escape(&conditions(graph)),
        key(graph)
    )?;
    let arrows = if is_live(graph) { " ↑ and ↓ are packets sent and received." } else { "" };
    writeln!(
        page,
        "<div class=\"picture\">\n{}</div>\n<p class=\"hint\">Point at a node or a link for its \
         details.{arrows}</p>",
        picture(graph, layout, None)
    )?;
    nodes(graph, page)?;
    links(graph, page)?;
    writeln!(page, "</body>\n</html>")
}

/// The legend for the colors of lines and boxes.
fn key(graph: &Graph) -> String {
    let lines = legend(graph).into_iter().map(|(word, class)| {
        format!(
            "<li><svg width=\"22\" height=\"8\" aria-hidden=\"true\">\
             <path class=\"w4 {class}\" d=\"M0 4H22\"/></svg>{word}</li>"
        )
    });
    let is_open = graph.nodes.iter().flat_map(|node| &node.cables).any(|one| one.process.is_some());
    let open = is_open.then(|| {
        "<li><svg width=\"14\" height=\"12\" aria-hidden=\"true\"><g class=\"host active open\">\
         <rect class=\"box\" x=\"1\" y=\"1\" width=\"12\" height=\"10\" rx=\"2\"/></g></svg>open \
         in a process</li>"
            .to_owned()
    });
    lines.chain(open).collect()
}

/// Writes a table, with its heading and its number of rows.
fn table(
    page: &mut String,
    heading: &str,
    columns: &[&str],
    rows: impl ExactSizeIterator<Item = Vec<String>>,
) -> fmt::Result {
    let open = if rows.len() <= ROWS_OPEN_MAX { " open" } else { "" };
    let count = grouped(rows.len() as u64);
    let heads: String = columns.iter().map(|head| format!("<th>{head}</th>")).collect();
    writeln!(
        page,
        "<details{open}>\n<summary><h2>{heading}</h2> <span>{count}</span></summary>\n\
         <div class=\"table\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>"
    )?;
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        writeln!(page, "<tr>{cells}</tr>")?;
    }
    writeln!(page, "</tbody>\n</table></div>\n</details>")
}

fn is_live(graph: &Graph) -> bool {
    let mut cables = graph.nodes.iter().flat_map(|node| &node.cables);
    cables.any(|cable| cable.counters.is_some())
}

fn nodes(graph: &Graph, page: &mut String) -> fmt::Result {
    let is_live = is_live(graph);
    let mut columns = vec!["node", "kind", "level", "LID", "GUID", "ports linked"];
    if is_live {
        columns.extend(["process", "packets sent", "received", "errors", "discards"]);
    }
    let nodes = graph.nodes[..graph.own_nodes].iter().zip(&graph.levels);
    table(page, "Nodes", &columns, nodes.map(|(row, level)| node_cells(row, *level, is_live)))
}

fn node_cells(row: &TopologyNode, level: usize, is_live: bool) -> Vec<String> {
    let level = if row.kind == NodeKind::Host { 0 } else { level };
    let mut cells = vec![
        row.node.clone(),
        row.kind.to_string(),
        level.to_string(),
        row.lid.map_or("-".into(), |lid| lid.to_string()),
        row.guid.clone(),
        format!("{} of {}", row.cables.len(), row.ports),
    ];
    if is_live {
        let process = row.cables.iter().find_map(|cable| cable.process);
        cells.push(process.map_or("-".into(), |id| id.to_string()));
        let counters: Vec<_> = row.cables.iter().filter_map(|cable| cable.counters).collect();
        let sums: [fn(&CableCounters) -> u64; 4] =
            [|one| one.sent, |one| one.received, |one| one.errors, |one| one.discards];
        let sum = |of: fn(&CableCounters) -> u64| {
            grouped(counters.iter().map(of).fold(0, u64::saturating_add))
        };
        cells.extend(sums.map(sum));
    }
    cells
}

fn links(graph: &Graph, page: &mut String) -> fmt::Result {
    let is_live = is_live(graph);
    let mut columns = vec!["from", "to", "rate"];
    if is_live {
        columns.extend([
            "state",
            "packets sent",
            "received",
            "bytes sent",
            "received",
            "errors",
            "discards",
        ]);
    }
    let rows = graph.cables.iter().map(|cable| link_cells(graph, cable, is_live));
    table(page, "Links", &columns, rows)?;
    if is_live {
        writeln!(
            page,
            "<p class=\"hint\">Packets and bytes are those of the first end; errors and discards \
             are those of both ends.</p>"
        )?;
    }
    Ok(())
}

fn link_cells(graph: &Graph, cable: &Cable, is_live: bool) -> Vec<String> {
    let [a, b] = cable.ends.map(|end| graph.port(end));
    let [from, to] = cable.ends.map(|end| name(graph, end));
    let mut cells = vec![from, to, a.rate.clone().unwrap_or("-".into())];
    if is_live {
        let [one, other] = [a, b].map(|port| port.state.clone().unwrap_or("-".into()));
        cells.push(if one == other { one } else { format!("{one}, {other}") });
        let [first, second] = [a, b].map(|port| port.counters.unwrap_or_default());
        let CableCounters { sent, received, bytes_sent, bytes_received, errors, discards } = first;
        let errors = errors.saturating_add(second.errors);
        let discards = discards.saturating_add(second.discards);
        let counts = [sent, received, bytes_sent, bytes_received, errors, discards];
        cells.extend(counts.map(grouped));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::{graph, node};
    use super::super::layout::layout;
    use super::*;

    fn page_of(graph: &Graph) -> String {
        let source = Source { name: "a & b".into(), time: Some("2026-11-28".into()) };
        page(graph, &layout(graph), &source)
    }

    /// A browser loads nothing and runs nothing.
    #[test]
    fn a_page_needs_no_network_and_no_script() {
        let page = page_of(&graph("fat-tree:4"));
        let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for word in ["http:", "https:", "<script", "@import", "url(", "src="] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
        assert!(page.contains("Topology of a &amp; b") && page.contains("<b>2026-11-28</b>"));
    }

    #[test]
    fn a_page_lists_all_nodes_and_links() {
        let graph = graph("routed:1x2");
        let page = page_of(&graph);
        let rows = page.matches("<tr>").count();
        assert_eq!(rows, 2 + graph.nodes.len() + graph.cables.len());
        assert!(page.contains("<td>switch1:1</td><td>host1:1</td><td>4xEDR</td>"), "{page}");
    }

    #[test]
    fn names_cannot_be_elements() {
        let hosts = [(1, "<script>"), (0, "b")];
        let hosts = hosts.map(|(peer, name)| node(name, NodeKind::Host, &[(1, peer, 1)]));
        assert!(!page_of(&Graph::new(hosts.to_vec())).contains("<script"));
    }

    /// A browser opens the page of a cluster of a thousand hosts at once.
    #[test]
    fn a_page_of_a_large_cluster_is_below_two_megabytes() {
        let page = page_of(&graph("leaf-spine:63x16x16"));
        assert!(page.len() < 2_000_000, "{} bytes", page.len());
    }
}
