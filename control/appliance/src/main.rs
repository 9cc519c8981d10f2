//! The command `pollux`.
//!
//! So far: `fabric` runs a software fabric until a signal ends it, `show` and `fault` ask a running
//! one. What it prints is for people, unless `--json` asks for the other.

#![forbid(unsafe_code)]

mod fabric;
mod show;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// IP over InfiniBand in userspace, and an InfiniBand fabric in software.
#[derive(Parser)]
#[command(name = "pollux", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a software fabric until it is interrupted.
    Fabric(fabric::Arguments),
    /// Shows what a running fabric consists of.
    Show(show::ShowArguments),
    /// Makes links of a running fabric bad, or good again.
    Fault(show::FaultArguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Fabric(arguments) => fabric::run(arguments),
        Command::Show(arguments) => show::show(&arguments),
        Command::Fault(arguments) => show::fault(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pollux: {error}");
            ExitCode::FAILURE
        }
    }
}
