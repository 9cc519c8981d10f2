//! `pollux trace`: the path of a packet through the tables of a running node; no packet is sent.

use crate::asking::NodeSocket;
use crate::columns::Columns;
use crate::output::print_value;
use crate::table::table;
use clap::Args;
use pollux_node::admin::request::{AdminRequest, TraceRequest};
use pollux_node::admin::route::TraceStep;
use std::error::Error;
use std::net::IpAddr;

/// Arguments of `pollux trace`.
#[derive(Args)]
pub struct TraceArguments {
    /// Destination of the packet
    address: IpAddr,
    /// Source of the packet
    #[arg(long, value_name = "ADDRESS")]
    from: Option<IpAddr>,
    /// Interface where it arrives [default: the node sends it itself]
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeSocket,
}

/// Prints a line for each step, with its result and the reason.
pub fn trace(arguments: &TraceArguments) -> Result<(), Box<dyn Error>> {
    let TraceArguments { address, from, interface, json, node } = arguments;
    let request = TraceRequest { address: *address, source: *from, interface: interface.clone() };
    let steps: Vec<_> = node.ask(&AdminRequest::Trace(request))?;
    print_value(*json, steps, |steps| table(&steps, TraceStep::COLUMNS))
}
