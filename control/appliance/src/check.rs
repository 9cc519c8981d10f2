//! `pollux check`: checks a configuration file, and whether this machine can run it now.

use crate::output::print_value;
use clap::Args;
use pollux_node::admin::finding::{CheckFinding, CheckReport};
use pollux_node::examine::examine;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct CheckArguments {
    /// Configuration file
    config: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Applies the checks of `pollux run`, and looks at devices without opening a port or sending on a
/// link. Exits with 0 if `pollux run` accepts the file. A device that is missing now only gives a
/// warning.
pub fn check(arguments: &CheckArguments) -> Result<ExitCode, Box<dyn Error>> {
    let report = examine(&arguments.config);
    print_value(arguments.json, &report, text)?;
    Ok(if report.is_valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(report: &CheckReport) -> String {
    let CheckReport { file, is_valid, interfaces, findings } = report;
    let mut lines = String::new();
    for CheckFinding { severity, line, column, message, .. } in findings {
        let position = line.zip(*column).map(|(line, column)| format!(":{line}:{column}"));
        lines += &format!("{severity}: {file}{}: {message}\n", position.unwrap_or_default());
    }
    if *is_valid {
        lines += &format!("{file}: valid; interfaces: {}\n", interfaces.join(", "));
    }
    lines
}
