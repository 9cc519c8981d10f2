//! `pollux exec`: runs a program of rdma-core on a ConnectX in software.

use crate::signals::signals;
use clap::Args;
use pollux_node::fabric::Embedded;
use pollux_node::programs::{ProgramEnvironment, find_library};
use rustix::process::{Pid, Signal, kill_process};
use std::error::Error;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};

#[derive(Args)]
pub struct ExecArguments {
    /// Socket of a fabric that runs as `pollux fabric --socket PATH`; without it, the program has a
    /// private fabric of one host
    #[arg(long, value_name = "PATH")]
    fabric: Option<PathBuf>,
    /// The node of the fabric whose adapter the program gets
    #[arg(long, default_value = "host1")]
    node: String,
    /// The name of the adapter
    #[arg(long, value_name = "NAME", default_value = "mlx5_0")]
    device: String,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the program and returns its exit code.
pub fn exec(arguments: &ExecArguments) -> Result<ExitCode, Box<dyn Error>> {
    let library = find_library()?;
    let (wake, _) = signals()?;
    let private = match arguments.fabric {
        Some(_) => None,
        None => Some(Embedded::start("single:1")?),
    };
    let path = match (&arguments.fabric, &private) {
        (Some(path), _) => path.clone(),
        (None, Some(fabric)) => fabric.path(),
        (None, None) => unreachable!("a fabric is given or made"),
    };
    let port = format!("soft:{}@{}", std::path::absolute(path)?.display(), arguments.node);
    let environment = ProgramEnvironment::new(&port, &arguments.device, &library)?;
    let mut program = Command::new(&arguments.program[0]);
    program.args(&arguments.program[1..]);
    program.envs(environment.variables().iter().map(|(name, value)| (name, value)));
    let mut child = program
        .spawn()
        .map_err(|error| format!("{}: {error}", arguments.program[0].to_string_lossy()))?;
    let pid = Pid::from_child(&child);
    // The child is not waited for before `wait` returns, so the number is its own until then.
    std::thread::spawn(move || {
        while matches!((&wake).read(&mut [0]), Ok(1)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    });
    let status = child.wait()?;
    Ok(exit_code(status))
}

/// As a shell has it: the program's own code, or 128 and the number of the signal that ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(code as u8)
}
