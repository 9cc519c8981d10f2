//! Ends on two hosts: a server, which serves one client at a time, and the client's side.
//!
//! ```text
//!   client                                      server
//!     connects over the kernel's TCP ---------->  accepts, and starts a process for it
//!     Hello <---------------------------------->  Hello, with the environment
//!     Plan  ----------------------------------->  checks it
//!           <-----------------------------------  accepts or refuses it
//!           <========= measured messages =======>
//!     hangs up -------------------------------->  the process ends, and the server accepts again
//! ```
//!
//! A failed client does not block the server: the process of a client that hangs up ends after a
//! grace period, even if it still waits for a message. The clocks of the two hosts are not
//! compared: the client measures times, and the receiver counts messages.

use crate::environment::Environment;
use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::pair::{Process, play, prioritize, with_priority};
use crate::plan::{EndRole, Layer, Measured, Plan, ProgramSockets};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Stdio};
use std::time::Duration;

/// The default TCP port of the server.
pub const PORT: u16 = 7_091;
/// The protocol version, which increases with each change of the messages.
const PROTOCOL: u32 = 3;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that the process of a client has to end by itself after the client has hung up.
const GRACE: Duration = Duration::from_secs(1);
/// The interval of keepalive probes. A connection to a dead host fails after three intervals.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// The first message of each end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hello {
    program: String,
    version: String,
    protocol: u32,
    environment: Environment,
    /// The boot ID of the machine. If both ends have the same, they run on one machine.
    boot: String,
}

/// The host of the other end.
#[derive(Clone, Debug)]
pub struct MeasuredServer {
    pub environment: Environment,
    /// The CPU time, in seconds, that the server took on this machine: 0 if it runs on another one.
    pub seconds_here: f64,
}

impl Hello {
    fn of(fifo: Option<u8>) -> Self {
        Self {
            program: "pollux-perf".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: PROTOCOL,
            environment: Environment::now(fifo),
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
        }
    }

    /// Refuses a peer that is another program, or has another protocol version.
    fn check(self) -> Result<Self, PerfError> {
        let Self { program, version, protocol, .. } = &self;
        match (program.as_str(), *protocol) {
            ("pollux-perf", PROTOCOL) => Ok(self),
            ("pollux-perf", other) => Err(PerfError::OtherEnd(format!(
                "pollux-perf {version} there has protocol version {other}, here it is {PROTOCOL}: \
                 run the same version on both hosts"
            ))),
            _ => Err(PerfError::OtherEnd(format!("it is {program}, not pollux-perf"))),
        }
    }
}

/// The settings of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServeConfig {
    /// The device of the server; without it, only kernel sockets can be measured.
    pub device: Option<String>,
    pub core: usize,
    pub fifo: Option<u8>,
}

/// Serves clients one after the other, forever. `report` gets error messages.
pub fn serve(listener: &TcpListener, config: &ServeConfig, mut report: impl FnMut(&str)) {
    loop {
        let served = listener.accept().map_err(PerfError::from).and_then(|(stream, _)| {
            let mut server = Process(start(stream, config)?);
            Ok(server.0.wait()?)
        });
        if let Err(error) = served {
            report(&format!("a client was not served: {error}"));
        }
    }
}

/// Starts the process of a client, which runs [`serve_one`].
fn start(stream: TcpStream, config: &ServeConfig) -> Result<Child, PerfError> {
    let program = std::env::current_exe()?;
    let mut command = with_priority(config.fifo, &program.display().to_string());
    command.arg("serve-one").arg(serde_json::to_string(config).map_err(io::Error::from)?);
    Ok(command.stdin(Stdio::from(OwnedFd::from(stream))).spawn()?)
}

/// Runs the server's end for the client connected to standard input. Returns a description of the
/// client and the plan.
pub fn serve_one(config: &str) -> Result<String, PerfError> {
    let config: ServeConfig =
        serde_json::from_str(config).map_err(|error| PerfError::Plan(error.to_string()))?;
    let stream = TcpStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    prepare(&stream)?;
    let client = stream.try_clone()?;
    std::thread::spawn(move || end_with(&client));
    let (here, from) = (stream.local_addr()?, stream.peer_addr()?);
    let about = |what: &dyn fmt::Display| format!("{from}: {what}");
    let mut exchange = Exchange::new(stream)?;
    let mut play_for = || {
        exchange.swap(&Hello::of(config.fifo))?.check()?;
        let plan = plan_here(exchange.receive()?, &config, here);
        exchange.send(&plan.as_ref().map(drop).map_err(PerfError::to_string))?;
        let plan = plan?;
        let outcome = play(&plan, EndRole::Server, &mut exchange)?;
        exchange.end(outcome).map(|_| plan)
    };
    match play_for() {
        Ok(plan) => Ok(about(&plan)),
        Err(error) => {
            exchange.fail(&error);
            Err(PerfError::Local(about(&error)))
        }
    }
}

/// Waits until the client hangs up, then ends this process after [`GRACE`].
#[expect(clippy::disallowed_methods, reason = "what still waits has failed")]
fn end_with(client: &TcpStream) {
    let mut hang_up = [PollFd::new(client, PollFlags::RDHUP)];
    while !matches!(poll(&mut hang_up, None), Ok(1)) {}
    std::thread::sleep(GRACE);
    eprintln!("pollux-perf: the client has hung up in the middle");
    std::process::exit(1);
}

/// The client's plan with the device, core, priority and address of this host.
fn plan_here(plan: Plan, config: &ServeConfig, here: SocketAddr) -> Result<Plan, PerfError> {
    plan.check()?;
    let device = match (&config.device, plan.program) {
        (_, Some(ProgramSockets::Kernel)) => String::new(),
        (Some(device), _) => device.clone(),
        (None, _) => {
            let why = "the server was started without --device: it measures --sockets kernel only";
            return Err(PerfError::Plan(why.into()));
        }
    };
    let devices = Some([String::new(), device]);
    let (fifo, cores, host) = (config.fifo, [config.core; 2], Some(here.ip()));
    Ok(Plan { devices, fifo, cores, host, processes: true, ..plan })
}

/// Measures a plan with a server on another host. Runs the client's end in this thread. Of
/// `plan.devices`, only the client's is used.
pub fn measure(plan: &Plan, server: &str) -> Result<(Measured, MeasuredServer), PerfError> {
    plan.check()?;
    if plan.layer == Layer::Forward {
        let why = "--layer forward has no other end: omit --connect";
        return Err(PerfError::Plan(why.into()));
    }
    if plan.devices.is_none() && plan.program != Some(ProgramSockets::Kernel) {
        let why = "--connect needs the --device of this end, but for --sockets kernel";
        return Err(PerfError::Plan(why.into()));
    }
    plan.fifo.map_or(Ok(()), |fifo| prioritize(fifo, std::process::id().to_string()))?;
    let mut exchange = Exchange::new(connect(server)?)?;
    let mine = Hello::of(plan.fifo);
    let theirs = exchange.swap(&mine).map_err(|error| {
        PerfError::OtherEnd(format!("{server}: {error}; it may be serving another client"))
    });
    let theirs = theirs?.check()?;
    exchange.send(plan)?;
    let answer: Result<(), String> = exchange.receive()?;
    answer.map_err(PerfError::OtherEnd)?;
    // Only one end runs in this process, so its CPU usage is that of the process.
    let plan = &Plan { processes: true, ..plan.clone() };
    let outcome = play(plan, EndRole::Client, &mut exchange)?;
    let (measured, report) = exchange.end(outcome)?.expect("a client has an outcome");
    let is_here = theirs.boot == mine.boot;
    let seconds_here = if is_here { report.process_seconds } else { 0.0 };
    Ok((measured, MeasuredServer { environment: theirs.environment, seconds_here }))
}

fn connect(server: &str) -> Result<TcpStream, PerfError> {
    let is_with_port = server.parse::<SocketAddr>().is_ok() || server.matches(':').count() == 1;
    let found = match is_with_port {
        true => server.to_socket_addrs(),
        false => (server, PORT).to_socket_addrs(),
    };
    let refuse = |error: io::Error| {
        PerfError::OtherEnd(format!(
            "{server}: {error}; on that host, run pollux-perf serve --listen ADDRESS"
        ))
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for at in found.map_err(refuse)? {
        match TcpStream::connect_timeout(&at, CONNECT_TIMEOUT) {
            Ok(stream) => {
                prepare(&stream)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(refuse(last))
}

/// Disables the Nagle algorithm, and enables keepalive probes, which detect a dead host.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, 2)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_named_with_a_remedy() {
        let hello = Hello::of(None);
        assert!(hello.clone().check().is_ok());
        let error = Hello { protocol: 9, ..hello.clone() }.check().expect_err("it is another");
        assert!(error.to_string().contains("run the same version on both hosts"), "{error}");
        let error = Hello { program: "ssh".into(), ..hello }.check().expect_err("it is another");
        assert!(error.to_string().contains("ssh, not pollux-perf"), "{error}");
    }
}
