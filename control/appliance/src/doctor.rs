//! `pollux doctor`: lists what this machine lacks for nodes on adapters, and what to do. The
//! command fails if a finding prevents such nodes from running.

use crate::output::print_value;
use clap::Args;
use pollux_node::{DoctorFinding, DoctorVerdict, diagnose};
use serde_json::{Value, json};
use std::error::Error;

#[derive(Args)]
pub struct DoctorArguments {
    /// Print JSON instead of lines
    #[arg(long)]
    json: bool,
}

pub fn doctor(arguments: &DoctorArguments) -> Result<(), Box<dyn Error>> {
    let findings = diagnose();
    let objects: Vec<_> = findings.iter().map(object).collect();
    let text = |_| findings.iter().map(|finding| format!("{finding}\n")).collect();
    print_value(arguments.json, objects, text)?;
    match findings.iter().filter(|finding| finding.verdict == DoctorVerdict::Bad).count() {
        0 => Ok(()),
        1 => Err("one finding stops nodes on adapters".into()),
        count => Err(format!("{count} findings stop nodes on adapters").into()),
    }
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
