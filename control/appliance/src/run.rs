//! `pollux run`: runs a node with the interfaces of a configuration file.

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
    /// Admin socket to create, for `pollux show`, `pollux ping` and other commands with --socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Format of the log on standard output
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log: LogFormat,
}

/// Runs a node until SIGINT or SIGTERM; SIGHUP reloads its configuration. The node retries to open
/// a missing device. It reports its state to the service manager that started it, if any.
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
