//! `pollux config show`: the configuration of a running node, or of a file, as TOML that `pollux
//! check` accepts.

use crate::asking::{Wait, ask};
use crate::output::print_value;
use clap::{Args, Subcommand};
use pollux_node::admin::reply::ConfigText;
use pollux_node::admin::request::AdminRequest;
use pollux_node::config::NodeConfig;
use std::error::Error;
use std::path::PathBuf;

#[derive(Args)]
pub struct ConfigArguments {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Print the configuration of a running node, or of a file
    Show(ConfigShowArguments),
}

#[derive(Args)]
struct ConfigShowArguments {
    /// Configuration file, in place of a running node
    #[arg(conflicts_with = "socket")]
    config: Option<PathBuf>,
    /// Also print the keys that have their defaults
    #[arg(long)]
    effective: bool,
    /// Print JSON, with the name of the file
    #[arg(long)]
    json: bool,
    /// Socket of the node
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    wait: Wait,
}

pub fn config(arguments: &ConfigArguments) -> Result<(), Box<dyn Error>> {
    let ConfigCommand::Show(arguments) = &arguments.command;
    let ConfigShowArguments { config, effective, socket, .. } = arguments;
    let shown = match (config, socket) {
        (Some(file), _) => {
            let toml = NodeConfig::open(file)?.to_toml(*effective);
            ConfigText { file: Some(file.display().to_string()), toml }
        }
        (None, Some(socket)) => {
            ask(socket, arguments.wait, &AdminRequest::Config { has_defaults: *effective })?
        }
        (None, None) => return Err("name a file, or a node's socket with --socket PATH".into()),
    };
    print_value(arguments.json, shown, |shown| shown.toml)
}
