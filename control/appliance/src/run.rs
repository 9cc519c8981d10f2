//! `pollux run`: runs a node by its configuration.

use crate::descriptors;
use crate::log::{LogFormat, log};
use crate::signals::NodeSignals;
use clap::Args;
use pollux_node::node::notice::NodeNotice;
use pollux_node::node::{ConfigSource, NodeRunner};
use pollux_node::service::ServiceManager;
use std::error::Error;
use std::path::PathBuf;

#[derive(Args)]
pub struct RunArguments {
    /// Configuration file: TOML, with a table [interface.NAME] for each interface
    config: PathBuf,
    /// Listen here for `pollux show`, `pollux ping`, `pollux idle` and `pollux reload`
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Format of the lines that say what happens: for people, or a JSON object for each
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log: LogFormat,
}

/// Runs a node until a signal ends it; SIGHUP has it read its configuration again. The node waits
/// for missing devices, and reports its state to a service manager that started it.
pub fn run(arguments: &RunArguments) -> Result<(), Box<dyn Error>> {
    descriptors::raise_limit();
    let source = ConfigSource::file(&arguments.config)?;
    let manager = ServiceManager::from_environment()?;
    let signals = NodeSignals::catch()?;
    let node = NodeRunner::new(source, arguments.socket.as_deref())?.supervised_by(manager);
    let say = |notice: &NodeNotice| log(arguments.log, notice);
    say(&NodeNotice::info("node", "running"));
    node.run(signals.wake(), || signals.next_order(), say)?;
    say(&NodeNotice::info("node", "over"));
    Ok(())
}
