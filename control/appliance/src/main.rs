//! The command `pollux`.
//!
//! `demo` shows what there is; `run` runs a node and `fabric` a software fabric until a signal ends
//! it; `show`, `ping`, `idle` and `fault` ask a running one. What it prints is for people, unless
//! `--json` asks for the other.

#![forbid(unsafe_code)]

mod asking;
mod demo;
mod fabric;
mod output;
mod ping;
mod run;
mod show;
mod signals;

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
    /// Shows all of it in this process alone, in a few seconds: a good first command.
    Demo(demo::Arguments),
    /// Runs a software fabric until it is interrupted.
    Fabric(fabric::Arguments),
    /// Runs a node: interfaces of IP over InfiniBand, as a file says.
    Run(run::RunArguments),
    /// Checks a configuration file for all that `run` would refuse.
    Check(run::CheckArguments),
    /// Asks whether somebody answers a running node.
    Ping(ping::Arguments),
    /// Shows what a running node or fabric consists of.
    Show(show::ShowArguments),
    /// Changes how workers of a running node rest when there is nothing to do.
    Idle(show::IdleArguments),
    /// Makes links of a running fabric bad, or good again.
    Fault(show::FaultArguments),
}

fn main() -> ExitCode {
    let well = |()| ExitCode::SUCCESS;
    let (result, failure) = match Arguments::parse().command {
        Command::Demo(arguments) => (demo::demo(&arguments).map(well), 1),
        Command::Fabric(arguments) => (fabric::run(arguments).map(well), 1),
        Command::Run(arguments) => (run::run(&arguments).map(well), 1),
        Command::Check(arguments) => (run::check(&arguments).map(well), 1),
        // As ping has it: 1 says that nobody answered.
        Command::Ping(arguments) => (ping::ping(&arguments), 2),
        Command::Show(arguments) => (show::show(&arguments).map(well), 1),
        Command::Idle(arguments) => (show::idle(&arguments).map(well), 1),
        Command::Fault(arguments) => (show::fault(&arguments).map(well), 1),
    };
    result.unwrap_or_else(|error| match error.downcast_ref::<output::OutputError>() {
        Some(error) if error.is_reader_gone() => ExitCode::from(output::READER_GONE),
        _ => {
            output::note(&error.to_string());
            ExitCode::from(failure)
        }
    })
}
