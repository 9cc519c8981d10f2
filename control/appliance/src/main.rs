//! The command `pollux`.
//!
//! `demo` is a demonstration in one process; `run` runs a node and `fabric` a software fabric until
//! a signal ends it; `show`, `ping`, `idle` and `fault` query a running one. Output is for people,
//! or JSON with `--json`.

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
    /// Show a whole fabric and three hosts in one process, in a few seconds: a good first command.
    Demo(demo::Arguments),
    /// Run a software fabric until a signal ends it.
    Fabric(fabric::Arguments),
    /// Run a node: the IP over InfiniBand interfaces of a configuration file.
    Run(run::RunArguments),
    /// Validate a configuration file, with the same rules as `run`.
    Check(run::CheckArguments),
    /// Send ICMP echo requests from a running node.
    Ping(ping::Arguments),
    /// Show the runtime state of a node or fabric.
    Show(show::ShowArguments),
    /// Change the idle strategy of the workers of a running node.
    Idle(show::IdleArguments),
    /// Add, remove or list link faults of a running fabric.
    Fault(show::FaultArguments),
}

fn main() -> ExitCode {
    let success = |()| ExitCode::SUCCESS;
    let (result, failure) = match Arguments::parse().command {
        Command::Demo(arguments) => (demo::demo(&arguments).map(success), 1),
        Command::Fabric(arguments) => (fabric::run(arguments).map(success), 1),
        Command::Run(arguments) => (run::run(&arguments).map(success), 1),
        Command::Check(arguments) => (run::check(&arguments).map(success), 1),
        // As in ping(8): 1 means no reply, 2 another error.
        Command::Ping(arguments) => (ping::ping(&arguments), 2),
        Command::Show(arguments) => (show::show(&arguments).map(success), 1),
        Command::Idle(arguments) => (show::idle(&arguments).map(success), 1),
        Command::Fault(arguments) => (show::fault(&arguments).map(success), 1),
    };
    result.unwrap_or_else(|error| match error.downcast_ref::<output::OutputError>() {
        Some(error) if error.is_reader_gone() => ExitCode::from(output::READER_GONE),
        _ => {
            output::note(&error.to_string());
            ExitCode::from(failure)
        }
    })
}
