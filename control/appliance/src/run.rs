//! `pollux run` and `pollux check`: from a configuration to a node that runs.

use crate::output::{print, say};
use crate::signals::signals;
use clap::Args;
use pollux_node::config::NodeConfig;
use pollux_node::node::Node;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// What to run.
#[derive(Args)]
pub struct RunArguments {
    /// What the node is to be: TOML, a table [interface.NAME] for each interface
    config: PathBuf,
    /// Where `pollux show` and `pollux ping` find it
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// What to look at.
#[derive(Args)]
pub struct CheckArguments {
    /// The configuration
    config: PathBuf,
}

/// Runs a node until a signal ends it. Devices that are missing it waits for.
pub fn run(arguments: &RunArguments) -> Result<(), Box<dyn Error>> {
    let config = NodeConfig::open(&arguments.config)?;
    let (wake, is_over) = signals()?;
    let node = Node::new(config, arguments.socket.as_deref())?;
    say("node: running");
    node.run(wake, || is_over.load(Ordering::Relaxed), say)?;
    say("node: over");
    Ok(())
}

/// Checks what `run` checks before it starts. A device that is missing now may come.
pub fn check(arguments: &CheckArguments) -> Result<(), Box<dyn Error>> {
    let config = NodeConfig::open(&arguments.config)?;
    let names: Vec<_> = config.interfaces.keys().map(String::as_str).collect();
    let (file, names) = (arguments.config.display(), names.join(", "));
    Ok(print(&format!("{file}: good; interfaces: {names}\n"))?)
}
