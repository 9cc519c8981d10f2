//! `pollux show topology`: nodes and links of a running fabric, or of a plan such as a dump of a
//! cluster, as text, as JSON, or as a picture.
//!
//! 1. `graph`: nodes, cables and levels; `order`: the order within levels;
//! 2. `style`: the level of detail of a picture; `layout`: its boxes (`area`) and cables (`lines`);
//! 3. `describe`: texts about nodes and cables; `labels`: names in pictures; `escape`: makes names
//!    from other machines safe to print;
//! 4. `text`, `svg` and `page`: the forms of output.

mod area;
mod describe;
mod escape;
mod graph;
mod labels;
mod layout;
mod lines;
mod order;
mod page;
mod style;
mod svg;
mod text;

use crate::asking::{self, Wait};
use crate::output::{note, print, print_value};
use describe::Source;
use graph::Graph;
use pollux_node::admin::client::AskError;
use pollux_node::admin::rows::TopologyNode;
use pollux_node::calendar::now;
use pollux_node::fabric::{config, planned};
use std::error::Error;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopologyForm {
    Text,
    Json,
    Svg,
    Html,
}

/// Shows the topology of the fabric at a socket.
pub(crate) fn show_running(
    socket: &Path,
    wait: Wait,
    form: TopologyForm,
) -> Result<(), Box<dyn Error>> {
    let rows = asking::rows(socket, wait).map_err(|error| match error {
        AskError::Refused(why) => {
            format!("{why}; for its topology, name the socket of a `pollux fabric`")
        }
        error => error.to_string(),
    })?;
    let source = Source { name: socket.display().to_string(), time: Some(now()) };
    show(rows, &source, form)
}

/// Shows the topology of a file or a specification.
pub(crate) fn show_planned(plan: &str, form: TopologyForm) -> Result<(), Box<dyn Error>> {
    // The seed is the default of `pollux fabric`, so that the GUIDs are the same.
    let topology = config::topology(plan, 1, note)?;
    show(planned(&topology), &Source { name: plan.into(), time: None }, form)
}

fn show(
    rows: Vec<TopologyNode>,
    source: &Source,
    form: TopologyForm,
) -> Result<(), Box<dyn Error>> {
    let text = match form {
        TopologyForm::Json => return print_value(true, rows, |_| String::new()),
        TopologyForm::Text => text::text(&Graph::new(rows), source),
        TopologyForm::Svg => {
            let graph = Graph::new(rows);
            svg::picture(&graph, &layout::layout(&graph), Some(source))
        }
        TopologyForm::Html => {
            let graph = Graph::new(rows);
            page::page(&graph, &layout::layout(&graph), source)
        }
    };
    Ok(print(&text)?)
}
