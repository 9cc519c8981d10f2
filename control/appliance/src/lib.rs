//! The command `pollux`, as a library: for the program, and for `examples/pages`, which generates
//! the manual pages and shell completions.
//!
//! `demo` is a demonstration in one process; `check` examines a configuration, and `config` prints
//! one; `run` runs a node, and `fabric` a software fabric, until a signal ends it; `reload` changes
//! the configuration of a running node; `show` (with `topology` and the commands `idle` and
//! `fault`), `top`, `ping`, `route`, `trace` and `capture` send requests to a running node or
//! fabric; `exec` runs a program of rdma-core; `doctor` examines the machine. Output is text, or
//! JSON with `--json`.
//!
//! The commands share these modules: `asking` sends requests; `table` and `columns` format rows;
//! `output` prints; `log` prints the notices of a node; `pcapng` writes capture files; `signals`
//! and `descriptors` set up signals and the limit of file descriptors.

#![forbid(unsafe_code)]

mod asking;
mod capture;
mod check;
mod columns;
mod config;
mod demo;
mod descriptors;
mod doctor;
mod exec;
mod fabric;
mod log;
mod output;
mod pcapng;
mod ping;
mod reload;
mod route;
mod run;
mod show;
mod signals;
mod table;
mod top;
mod topology;
mod trace;

use clap::{CommandFactory, Parser, Subcommand};
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
    Demo(demo::DemoArguments),
    /// Run a software fabric until a signal ends it.
    Fabric(fabric::FabricArguments),
    /// Run a node: the IP over InfiniBand interfaces of a configuration file.
    Run(run::RunArguments),
    /// Validate a configuration file with the rules of `run`, and look for what it needs.
    Check(check::CheckArguments),
    /// Print the configuration of a running node, or of a file, with or without defaults.
    Config(config::ConfigArguments),
    /// Send ICMP echo requests from a running node.
    Ping(ping::PingArguments),
    /// Show the runtime state of a node or fabric.
    Show(show::ShowArguments),
    /// Watch a running node: rates of its interfaces, workers, connections, routes and drops.
    Top(top::TopArguments),
    /// Add, remove or replace routes of a running node, or show the route to an address.
    Route(route::RouteArguments),
    /// Show the path of a packet through the tables of a running node, with the reasons.
    Trace(trace::TraceArguments),
    /// Capture packets that a running node receives, sends or drops.
    Capture(capture::CaptureArguments),
    /// Have a running node read its configuration file again, and make the changes.
    Reload(reload::ReloadArguments),
    /// Keep the changes of a reload with a timeout, or take them back.
    Confirm(reload::ConfirmArguments),
    /// Change the idle strategy of the workers of a running node.
    Idle(show::IdleArguments),
    /// Add, remove or list link faults of a running fabric.
    Fault(show::FaultArguments),
    /// Run an unmodified RDMA program on a ConnectX in software.
    Exec(exec::ExecArguments),
    /// Examine this machine: adapters, libraries, kernel modules and limits, with what to do.
    Doctor(doctor::DoctorArguments),
}

pub fn command() -> clap::Command {
    Arguments::command()
}

pub fn run_command() -> ExitCode {
    let success = |()| ExitCode::SUCCESS;
    let (result, failure) = match Arguments::parse().command {
        Command::Demo(arguments) => (demo::demo(&arguments).map(success), 1),
        Command::Fabric(arguments) => (fabric::run(arguments).map(success), 1),
        Command::Run(arguments) => (run::run(&arguments).map(success), 1),
        Command::Check(arguments) => (check::check(&arguments), 1),
        Command::Config(arguments) => (config::config(&arguments).map(success), 1),
        // As in ping(8): 1 means no reply, 2 another error.
        Command::Ping(arguments) => (ping::ping(&arguments), 2),
        Command::Top(arguments) => (top::top(&arguments).map(success), 1),
        Command::Show(arguments) => (show::show(&arguments).map(success), 1),
        Command::Route(arguments) => (route::route(&arguments).map(success), 1),
        Command::Trace(arguments) => (trace::trace(&arguments).map(success), 1),
        Command::Capture(arguments) => (capture::capture(&arguments).map(success), 1),
        Command::Reload(arguments) => (reload::reload(&arguments).map(success), 1),
        Command::Confirm(arguments) => (reload::confirm(&arguments).map(success), 1),
        Command::Idle(arguments) => (show::idle(&arguments).map(success), 1),
        Command::Fault(arguments) => (show::fault(&arguments).map(success), 1),
        Command::Exec(arguments) => (exec::exec(&arguments), 1),
        Command::Doctor(arguments) => (doctor::doctor(&arguments).map(success), 1),
    };
    result.unwrap_or_else(|error| match error.downcast_ref::<output::OutputError>() {
        Some(error) if error.is_reader_gone() => ExitCode::from(output::READER_GONE),
        _ => {
            output::note(&error.to_string());
            ExitCode::from(failure)
        }
    })
}
