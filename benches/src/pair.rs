//! Two ends that are measured against each other: two pinned threads, or two pinned processes.
//!
//! ```text
//!   conductor -- starts --> asks     --- what is measured ---> answers
//!       ^                    |  \------- exchange -----------/
//!       +---- outcome -------+
//! ```
//!
//! Processes are this program again, with the hidden command `part`: the plan is an argument, the
//! stream of the [`Exchange`] is standard input, and the outcome comes by standard output.

use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::plan::{Layer, Plan};
use crate::samples::Latency;
use crate::{sockets, verbs};
use pollux_node::fabric::Embedded;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// The part that an end plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// It begins, and measures.
    Asks,
    /// It does as it is asked.
    Answers,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Half of round trips.
    Latency(Latency),
    /// Messages of so many bytes that came, in a second; and how many of those sent did not.
    OneWay {
        /// How many came in a second.
        per_second: f64,
        /// Bytes of each.
        bytes: u32,
        /// How many were sent, with those that do not count.
        sent: u64,
        /// How many of them did not come.
        lost: u64,
    },
    /// Connections that were made and ended.
    Connections {
        /// In a second.
        per_second: f64,
    },
}

impl Outcome {
    /// Messages one way, of which the other end had so many.
    pub fn one_way(plan: &Plan, per_second: f64, sent: u64, came: u64) -> Self {
        let lost = sent.saturating_sub(came);
        let per_second = per_second * came as f64 / sent.max(1) as f64;
        Self::OneWay { per_second, bytes: plan.bytes, sent, lost }
    }

    /// Bytes in a second, if it is they that were counted.
    pub fn bytes_per_second(&self) -> Option<f64> {
        match self {
            Self::OneWay { per_second, bytes, .. } => Some(per_second * f64::from(*bytes)),
            _ => None,
        }
    }
}

/// Carries out a plan.
pub fn run(plan: &Plan) -> Result<Outcome, PerfError> {
    plan.check()?;
    let needs_fabric = plan.devices.is_none() && (plan.layer != Layer::Verbs || plan.processes);
    let fabric = needs_fabric.then(|| Embedded::start("single:2")).transpose()?;
    let devices = fabric.as_ref().map(|fabric| ["host1", "host2"].map(|host| fabric.port(host)));
    let plan = &Plan { devices: plan.devices.clone().or(devices), ..plan.clone() };
    if plan.processes { in_processes(plan) } else { in_threads(plan) }
}

fn in_threads(plan: &Plan) -> Result<Outcome, PerfError> {
    let (near, far) = UnixStream::pair()?;
    let [mut first, mut second] = match plan.devices {
        None => verbs::end::devices(false).map(Some),
        Some(_) => [None, None],
    };
    let mut play = |side, stream: UnixStream| {
        let device = if side == Side::Asks { first.take() } else { second.take() };
        move || {
            pin(plan, side);
            let exchange = &mut Exchange::new(stream)?;
            match device {
                Some(device) => verbs::play(plan, side, Box::new(device), 1, exchange),
                None => play_by_name(plan, side, exchange),
            }
        }
    };
    let (asks, answers) = (play(Side::Asks, near), play(Side::Answers, far));
    std::thread::scope(|scope| {
        let asks = scope.spawn(asks);
        let answers = scope.spawn(answers);
        let outcome = asks.join().expect("who asks does not panic");
        // Who answers fails first where both do, and the other only hears that it is gone.
        answers.join().expect("who answers does not panic")?;
        Ok(outcome?.expect("who asks has an outcome"))
    })
}

fn pin(plan: &Plan, side: Side) {
    core_affinity::set_for_current(core_affinity::CoreId { id: plan.cores[side as usize] });
}

fn play_by_name(
    plan: &Plan,
    side: Side,
    exchange: &mut Exchange,
) -> Result<Option<Outcome>, PerfError> {
    let Some(devices) = &plan.devices else {
        return Err(PerfError::Plan("an end without a device".into()));
    };
    let name = &devices[side as usize];
    match plan.layer {
        Layer::Verbs => {
            let opened = pollux_node::open(name)?;
            verbs::play(plan, side, opened.device, opened.port, exchange)
        }
        Layer::Udp | Layer::Tcp => sockets::play(plan, side, name, exchange),
    }
}

// ---------------------------------------------------------------- processes

fn in_processes(plan: &Plan) -> Result<Outcome, PerfError> {
    let (near, far) = UnixStream::pair()?;
    let mut answers = Process(part(plan, Side::Answers, far, Stdio::null())?);
    let mut asks = Process(part(plan, Side::Asks, near, Stdio::piped())?);
    let mut said = String::new();
    if let Some(stdout) = &mut asks.0.stdout {
        stdout.read_to_string(&mut said)?;
    }
    let went_well = [asks.0.wait()?, answers.0.wait()?].iter().all(|status| status.success());
    match serde_json::from_str(&said) {
        Ok(outcome) if went_well => Ok(outcome),
        _ => Err(PerfError::OtherEnd("a process that measures failed; see above".into())),
    }
}

fn part(plan: &Plan, side: Side, stream: UnixStream, stdout: Stdio) -> io::Result<Child> {
    let program = std::env::current_exe()?;
    let mut command = prioritised(plan.fifo, &program.display().to_string());
    command.arg("part").arg(serde_json::to_string(&(side, plan))?);
    command.stdin(Stdio::from(OwnedFd::from(stream))).stdout(stdout).spawn()
}

/// A program with a real-time priority, or without one.
pub fn prioritised(fifo: Option<u8>, program: &str) -> Command {
    match fifo {
        None => Command::new(program),
        Some(priority) => {
            let mut command = Command::new("chrt");
            command.args(["-f", &priority.to_string(), program]);
            command
        }
    }
}

/// Plays a part in a process that [`run`] started, as its argument says.
pub fn play_part(argument: &str) -> Result<(), PerfError> {
    let (side, plan): (Side, Plan) =
        serde_json::from_str(argument).map_err(|error| PerfError::Plan(error.to_string()))?;
    pin(&plan, side);
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    if let Some(outcome) = play_by_name(&plan, side, &mut Exchange::new(stream)?)? {
        println!("{}", serde_json::to_string(&outcome).map_err(io::Error::from)?);
    }
    Ok(())
}

/// A process that does not outlive us.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
