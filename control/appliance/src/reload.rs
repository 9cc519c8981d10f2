//! `pollux reload` and `pollux confirm`: change the configuration of a running node.

use crate::asking::{NodeSocket, seconds};
use crate::output::{note, print_value};
use clap::Args;
use pollux_node::admin::request::AdminRequest;
use pollux_node::admin::rows::ChangeStatus;
use std::error::Error;
use std::time::Duration;

#[derive(Args)]
pub struct ReloadArguments {
    /// Only list the changes
    #[arg(long, conflicts_with = "timeout")]
    dry_run: bool,
    /// Undo the changes after this time, unless `pollux confirm` is run before
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeSocket,
}

#[derive(Args)]
pub struct ConfirmArguments {
    /// Undo the changes now, and do not wait for the timeout
    #[arg(long)]
    undo: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeSocket,
}

/// Makes all changes or none; a dry run only lists them. The command fails if the file has errors
/// or a change fails.
pub fn reload(arguments: &ReloadArguments) -> Result<(), Box<dyn Error>> {
    let ReloadArguments { dry_run, timeout, json, node } = arguments;
    let timeout_ms = timeout.map(|timeout| timeout.as_millis() as u64);
    let request = AdminRequest::Reload { is_trial: *dry_run, timeout_ms };
    let changes: Vec<ChangeStatus> = node.ask(&request)?;
    print_value(*json, &changes[..], lines)?;
    if let (Some(timeout), false) = (timeout, changes.is_empty()) {
        note(&format!(
            "run `pollux confirm --socket {}` within {} s, or this is taken back",
            node.socket.display(),
            timeout.as_secs_f64()
        ));
    }
    Ok(())
}

pub fn confirm(arguments: &ConfirmArguments) -> Result<(), Box<dyn Error>> {
    let ConfirmArguments { undo, json, node } = arguments;
    let changes: Vec<_> = node.ask(&AdminRequest::Confirm { is_undo: *undo })?;
    print_value(*json, &changes[..], lines)
}

fn lines(changes: &[ChangeStatus]) -> String {
    match changes.is_empty() {
        true => "nothing has changed\n".into(),
        false => changes.iter().map(|one| format!("{}\n", one.change)).collect(),
    }
}
