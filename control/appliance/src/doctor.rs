//! `pollux doctor`: what this machine lacks for nodes on adapters, and what to do. It succeeds
//! whatever it finds.

use crate::output::print;
use clap::Args;
use pollux_node::{DoctorFinding, DoctorVerdict, diagnose};
use serde_json::{Value, json};
use std::error::Error;

/// Arguments of `pollux doctor`.
#[derive(Args)]
pub struct Arguments {
    /// Print JSON instead of lines
    #[arg(long)]
    json: bool,
}

/// Runs `pollux doctor`.
pub fn doctor(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let findings = diagnose();
    let text = match arguments.json {
        true => format!("{}\n", Value::from_iter(findings.iter().map(object))),
        false => findings.iter().map(|finding| format!("{finding}\n")).collect(),
    };
    Ok(print(&text)?)
}

fn object(finding: &DoctorFinding) -> Value {
    let verdict = match finding.verdict {
        DoctorVerdict::Good => "good",
        DoctorVerdict::Warning => "warning",
        DoctorVerdict::Bad => "bad",
    };
    let DoctorFinding { subject, found, remedy, .. } = finding;
    json!({ "subject": subject, "verdict": verdict, "found": found, "remedy": remedy })
}
