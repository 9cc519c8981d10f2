//! The two ends of a measurement: two pinned threads, or two pinned processes.
//!
//! ```text
//!   `run` -- starts --> client --- measured messages ---> server
//!       ^                |  \----- `Exchange` ----------/
//!       +--- outcome ----+
//! ```
//!
//! A process runs this program with the hidden subcommand `part`. Its argument is the plan, its
//! standard input is the stream of the [`Exchange`], and its standard output is the outcome.

use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::null_router::ForwardPlan;
use crate::plan::{
    EndRole, Layer, Measured, MeasurementOutcome, Plan, ProgramSockets, RouterPlan, What,
};
use crate::{forward, programs, sockets, verbs};
use pollux_node::fabric::Embedded;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// Measures a plan once, on this machine.
pub fn run(plan: &Plan) -> Result<Measured, PerfError> {
    plan.check()?;
    if let Some(router) = &plan.router {
        return forwarding(plan, router);
    }
    let needs_fabric = plan.devices.is_none()
        && plan.program != Some(ProgramSockets::Kernel)
        && (plan.layer != Layer::Verbs || plan.processes || plan.what == What::Connect);
    let fabric = needs_fabric.then(|| Embedded::start("single:2")).transpose()?;
    let devices = fabric.as_ref().map(|fabric| ["host1", "host2"].map(|host| fabric.port(host)));
    let plan = &Plan { devices: plan.devices.clone().or(devices), ..plan.clone() };
    if plan.processes { in_processes(plan) } else { in_threads(plan) }
}

/// Measures a router, in this process.
fn forwarding(plan: &Plan, router: &RouterPlan) -> Result<Measured, PerfError> {
    let forward = ForwardPlan::new(router.routes as usize, plan.cores[0], plan.duration);
    let forward = ForwardPlan {
        flows: router.flows.map_or(forward.flows, |flows| flows as usize),
        bytes: plan.bytes as u16,
        ipv6: router.ipv6,
        ..forward
    };
    let per_second = forward::rate(&forward)?;
    let sent = (per_second * plan.duration.as_secs_f64()) as u64;
    Ok(Measured {
        outcome: MeasurementOutcome::one_way(plan, per_second, sent, sent),
        setup_seconds: 0.0,
        cores_busy: [None; 2],
        disturbance: None,
    })
}

fn in_threads(plan: &Plan) -> Result<Measured, PerfError> {
    let (near, far) = UnixStream::pair()?;
    let [mut first, mut second] = match plan.layer {
        Layer::Verbs if plan.devices.is_none() => verbs::end::devices(false).map(Some),
        _ => [None, None],
    };
    let mut play = |role, stream: UnixStream| {
        let device = if role == EndRole::Client { first.take() } else { second.take() };
        move || {
            let exchange = &mut Exchange::new(stream)?;
            let outcome = match device {
                Some(device) => {
                    pin(plan, role);
                    verbs::play(plan, role, Box::new(device), 1, exchange)
                }
                None => play(plan, role, exchange),
            };
            exchange.end(outcome?)
        }
    };
    let (client, server) = (play(EndRole::Client, near), play(EndRole::Server, far));
    std::thread::scope(|scope| {
        let client = scope.spawn(client);
        let server = scope.spawn(server);
        let outcome = client.join().expect("the client does not panic");
        // If the server fails, the client fails as a consequence: return the error of the server.
        server.join().expect("the server does not panic")?;
        Ok(outcome?.expect("a client has an outcome").0)
    })
}

/// Pins the thread of an end to the core of the end. Threads that it starts inherit the core.
fn pin(plan: &Plan, role: EndRole) {
    core_affinity::set_for_current(core_affinity::CoreId { id: plan.cores[role as usize] });
}

/// Runs one end in this thread, on the device that the plan names.
pub fn play(
    plan: &Plan,
    role: EndRole,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    pin(plan, role);
    match (plan.program, plan.layer) {
        (Some(sockets), _) => programs::play(plan, role, sockets, exchange),
        (None, Layer::Verbs) if plan.what == What::Connect => {
            let opened = pollux_node::open(plan.device(role)?)?;
            verbs::connection::play(plan, role, opened, exchange)
        }
        (None, Layer::Verbs) => {
            let opened = pollux_node::open(plan.device(role)?)?;
            verbs::play(plan, role, opened.device, opened.port, exchange)
        }
        (None, Layer::Forward) => Err(PerfError::Plan("a router has no ends".into())),
        (None, Layer::Udp | Layer::Tcp) => sockets::play(plan, role, plan.device(role)?, exchange),
    }
}

fn in_processes(plan: &Plan) -> Result<Measured, PerfError> {
    let (near, far) = UnixStream::pair()?;
    let mut server = Process(part(plan, EndRole::Server, far, Stdio::null())?);
    let mut client = Process(part(plan, EndRole::Client, near, Stdio::piped())?);
    let mut output = String::new();
    if let Some(stdout) = &mut client.0.stdout {
        stdout.read_to_string(&mut output)?;
    }
    // Wait for the server only if the client succeeded: otherwise it may never end, and is killed.
    let has_succeeded = client.0.wait()?.success() && server.0.wait()?.success();
    match serde_json::from_str(&output) {
        Ok(measured) if has_succeeded => Ok(measured),
        _ => Err(PerfError::Local("a measuring process failed; see its error above".into())),
    }
}

fn part(plan: &Plan, role: EndRole, stream: UnixStream, stdout: Stdio) -> io::Result<Child> {
    let program = std::env::current_exe()?;
    let mut command = with_priority(plan.fifo, &program.display().to_string());
    command.arg("part").arg(serde_json::to_string(&(role, plan))?);
    command.stdin(Stdio::from(OwnedFd::from(stream))).stdout(stdout).spawn()
}

pub fn with_priority(fifo: Option<u8>, program: &str) -> Command {
    match fifo {
        None => Command::new(program),
        Some(priority) => {
            let mut command = Command::new("chrt");
            command.args(["-f", &priority.to_string(), program]);
            command
        }
    }
}

/// Sets the real-time priority (SCHED_FIFO) of a process or thread with this ID.
pub fn prioritize(fifo: u8, process: impl AsRef<OsStr>) -> Result<(), PerfError> {
    let mut chrt = Command::new("chrt");
    chrt.args(["-f", "-p", &fifo.to_string()]).arg(process).stdout(Stdio::null());
    match chrt.status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(PerfError::Plan("cannot set the priority: run as root, or omit --fifo".into())),
    }
}

/// Runs the end of a process that [`run`] started, with the argument of the process.
pub fn play_part(argument: &str) -> Result<(), PerfError> {
    let (role, plan): (EndRole, Plan) =
        serde_json::from_str(argument).map_err(|error| PerfError::Plan(error.to_string()))?;
    let stream = io::stdin().as_fd().try_clone_to_owned()?;
    let mut exchange = Exchange::new(stream)?;
    let outcome = play(&plan, role, &mut exchange)?;
    if let Some((measured, _)) = exchange.end(outcome)? {
        println!("{}", serde_json::to_string(&measured).map_err(io::Error::from)?);
    }
    Ok(())
}

/// Kills the child process on drop.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
