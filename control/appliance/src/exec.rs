//! `pollux exec`: runs a program of rdma-core on a ConnectX in software.

use crate::asking::{self, Wait};
use crate::output;
use crate::signals::signals;
use clap::Args;
use pollux_node::admin::rows::PortDetails;
use pollux_node::config::Prefix;
use pollux_node::fabric::Embedded;
use pollux_node::programs::{MissingParts, ProgramEnvironment, find_library, port_request};
use rustix::process::{Pid, Signal, kill_process};
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often the files with the state and the counters of the port, for the program, are updated.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// The same while the subnet manager brings the port up.
const REFRESH_SETTLING_EVERY: Duration = Duration::from_millis(100);

#[derive(Args)]
pub struct ExecArguments {
    /// Socket of a fabric that runs as `pollux fabric --socket PATH`; without it, the program has a
    /// private fabric of one host
    #[arg(long, value_name = "PATH")]
    fabric: Option<PathBuf>,
    #[command(flatten)]
    wait: Wait,
    /// The node of the fabric whose adapter the program gets
    #[arg(long, default_value = "host1")]
    node: String,
    /// The name of the adapter
    #[arg(long, value_name = "NAME", default_value = "mlx5_0")]
    device: String,
    /// An IP address of the host, by which programs connect with librdmacm, as in 10.0.0.1/24; may
    /// be given several times
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    address: Vec<Prefix>,
    /// After the program has ended, list its requests to the adapter that are not implemented
    #[arg(long)]
    doctor: bool,
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
    let (socket, request) = port_request(&port)?;
    let _: PortDetails = asking::ask(&socket, arguments.wait, &request)?;
    let mut environment =
        ProgramEnvironment::with_addresses(&port, &arguments.device, &library, &arguments.address)?;
    if arguments.doctor {
        environment.note_missing();
    }
    let mut program = Command::new(&arguments.program[0]);
    program.args(&arguments.program[1..]);
    program.envs(environment.variables().iter().map(|(name, value)| (name, value)));
    let child = program
        .spawn()
        .map_err(|error| format!("{}: {error}", arguments.program[0].to_string_lossy()))?;
    let pid = Pid::from_child(&child);
    // The process ID belongs to the child until `wait` has reaped it.
    std::thread::spawn(move || {
        while matches!((&wake).read(&mut [0]), Ok(1)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    });
    let status = wait(child, &environment)?;
    if arguments.doctor {
        report(&environment.missing());
    }
    Ok(exit_code(status))
}

fn address(text: &str) -> Result<Prefix, String> {
    let prefix = Prefix::parse_address(text)
        .ok_or("write an address with its prefix, as 10.0.0.1/24 or fd00::1/64")?;
    match prefix.no_host_reason() {
        None => Ok(prefix),
        Some(reason) => Err(format!("no host can have it: {reason}; write a host's address")),
    }
}

/// Waits for the program, and keeps the files of its port up to date meanwhile.
fn wait(mut child: Child, environment: &ProgramEnvironment) -> io::Result<ExitStatus> {
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut next = REFRESH_EVERY;
            while ended.recv_timeout(next) == Err(RecvTimeoutError::Timeout) {
                let is_settled = environment.refresh();
                next = if is_settled { REFRESH_EVERY } else { REFRESH_SETTLING_EVERY };
            }
        });
        let status = child.wait();
        drop(end);
        status
    })
}

fn report(missing: &MissingParts) {
    if !missing.is_opened {
        output::note("the program did not open the adapter");
    }
    for (request, count) in &missing.requests {
        let times = if *count == 1 { "once" } else { &*format!("{count} times") };
        output::note(&format!("missing, asked for {times}: {request}"));
    }
    if missing.requests.is_empty() {
        output::note("nothing was missing");
    }
}

/// The exit code, as shells report it: the program's own, or 128 plus the number of the signal that
/// ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(code as u8)
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn an_address_is_one_that_a_host_can_have() {
        assert!(address("10.0.0.1/24").is_ok() && address("fd00::1/64").is_ok());
        for (text, reason) in [
            ("10.0.0.1", "10.0.0.1/24"),
            ("10.0.0.1/0", "10.0.0.1/24"),
            ("10.0.0.0/24", "network"),
            ("10.0.0.255/24", "broadcast"),
            ("224.0.0.1/24", "multicast"),
            ("fd00::/64", "all routers"),
        ] {
            let error = address(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
