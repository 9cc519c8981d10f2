//! `pollux run` and `pollux check`: run a node by its configuration, or validate that.

use crate::output::{print, say};
use crate::signals::signals;
use clap::Args;
use pollux_node::config::NodeConfig;
use pollux_node::node::Node;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Arguments of `pollux run`.
#[derive(Args)]
pub struct RunArguments {
    /// Configuration file: TOML, with a table [interface.NAME] for each interface
    config: PathBuf,
    /// Listen here for `pollux show`, `pollux ping` and `pollux idle`
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Arguments of `pollux check`.
#[derive(Args)]
pub struct CheckArguments {
    /// Configuration file
    config: PathBuf,
}

/// Runs a node until a signal ends it. The node waits for missing devices.
pub fn run(arguments: &RunArguments) -> Result<(), Box<dyn Error>> {
    let config = NodeConfig::open(&arguments.config)?;
    let (wake, is_over) = signals()?;
    let node = Node::new(config, arguments.socket.as_deref())?;
    say("node: running");
    node.run(wake, || is_over.load(Ordering::Relaxed), say)?;
    say("node: over");
    Ok(())
}

/// Applies the checks of `run`. A device that is missing now is no error.
pub fn check(arguments: &CheckArguments) -> Result<(), Box<dyn Error>> {
    let config = NodeConfig::open(&arguments.config)?;
    let names: Vec<_> = config.interfaces.keys().map(String::as_str).collect();
    let (file, names) = (arguments.config.display(), names.join(", "));
    Ok(print(&format!("{file}: valid; interfaces: {names}\n"))?)
}
