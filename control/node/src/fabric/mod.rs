//! A software fabric on the machine's clock: one thread that owns a net, its wires, the programs
//! and processes at it and its captures, and that sleeps while nothing happens.
//!
//! A fabric is known by one path. Questions come to a socket of that name, and processes that want
//! a port (`soft:PATH@NODE[:PORT]`) to `PATH.ports` beside it, which has other rules: messages with
//! descriptors in place of lines.
//!
//! 1. [`config`]: what it is to be, and why it cannot be;
//! 2. `managers`: who manages its subnets, unless others do;
//! 3. [`rule`]: faults; [`capture`]: every packet in a file;
//! 4. [`report`]: what it answers at its socket ([`crate::admin`]);
//! 5. [`embedded`]: one that runs in a thread of its own, for programs that want no other one.

pub mod capture;
pub mod config;
pub mod embedded;
mod managers;
pub mod report;
pub mod rule;

pub use config::{Config, Plug, StartError};
pub use embedded::Embedded;
pub use managers::partitions;
pub use pollux_fabric::sm::Partitions;

use crate::admin::Admin;
use capture::Capture;
use config::{place, places};
use pollux_fabric::Time;
use pollux_fabric::link::world::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::process;
use pollux_fabric::sm;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::umad::{Clients, Server};
use pollux_fabric::wire_io::ForeignWire;
use pollux_wire::mad::smp::{MKey, SmKey};
use report::Neighbors;
use rule::Rules;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Turns without a look at what sleeping would look at, while processes have traffic.
const TURNS_PER_LOOK: u32 = 64;

/// A fabric that runs while somebody calls [`Fabric::run`].
pub struct Fabric {
    server: Server,
    processes: Option<process::Server>,
    wires: Vec<ForeignWire>,
    rules: Rules,
    capture: Option<Capture>,
    admin: Option<Admin>,
    start: Instant,
}

impl Fabric {
    /// Builds it, and opens all that it is found by.
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    pub fn new(mut config: Config) -> Result<Self, StartError> {
        let topology = &mut config.topology;
        let ends = config.wires.iter().map(|plug| place(topology, &plug.place, true));
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        ends.iter().for_each(|end| topology.add_ports(*end));
        let mut rules = Rules::default();
        for rule in &config.faults {
            rules.add(topology, rule).map_err(StartError::new)?;
        }
        let granted = config.managers.iter().map(|text| places(topology, text));
        let granted = granted.collect::<Result<Vec<_>, _>>()?;
        let managers = config.partitions.map(|partitions| {
            let m_key = MKey(managers::key(config.m_key));
            let sm_key = SmKey(managers::key(config.sm_key));
            let config =
                sm::Config { partitions, lmc: config.lmc, m_key, sm_key, ..Default::default() };
            managers::managers(topology, &config)
        });
        let mut net = Net::new(Subnet::new(config.topology), config.seed, quick());
        granted.concat().into_iter().for_each(|end| net.grant_management(end));
        let mut wires = Vec::new();
        for (plug, end) in config.wires.iter().zip(ends) {
            let what = format!("the wire {}={}", plug.place, plug.name);
            net.add_foreign(end).map_err(|error| StartError::new(format!("{what}: {error}")))?;
            let wire = ForeignWire::open(end, &plug.address);
            wires.push(wire.map_err(|error| StartError::new(format!("{what}: {error}")))?);
        }
        rules.apply(&mut net);
        let failed = |what: String| move |error| StartError::new(format!("{what}: {error}"));
        let capture = config.capture.as_deref().map(|path| {
            Capture::begin(path, &mut net).map_err(failed(format!("capture {}", path.display())))
        });
        let mut clients = Clients::at(net);
        let managers = managers.into_iter().flatten();
        managers.for_each(|(at, config)| clients.start_manager(at, config));
        let server = match &config.umad {
            Some(name) => Server::bind(name, clients).map_err(failed(format!(
                "cannot serve programs as '{name}'; another fabric may use this name"
            )))?,
            None => Server::without_name(clients),
        };
        let socket = config.socket.as_deref();
        let admin = socket
            .map(|path| Admin::listen(path).map_err(failed(format!("socket {}", path.display()))));
        let (capture, admin) = (capture.transpose()?, admin.transpose()?);
        let processes = socket.map(|path| {
            let failed = failed(format!("socket {}.ports", path.display()));
            process::Server::bind(path).map_err(failed)
        });
        let processes = processes.transpose()?;
        Ok(Self { server, processes, wires, rules, capture, admin, start: Instant::now() })
    }

    /// What it is now.
    pub fn net(&mut self) -> &Net {
        self.server.clients().net()
    }

    /// Runs until `is_over` says so, which is asked whenever something happens, also to `wake`.
    pub fn run(&mut self, wake: impl AsFd, is_over: impl Fn() -> bool) -> io::Result<()> {
        while !is_over() {
            self.answer();
            for _ in 0..TURNS_PER_LOOK {
                self.turn()?;
                if !self.processes.as_ref().is_some_and(process::Server::is_awake) {
                    break;
                }
            }
            self.sleep(wake.as_fd())?;
        }
        self.capture.as_mut().map_or(Ok(()), Capture::flush)
    }

    fn now(&self) -> Time {
        Time::START + self.start.elapsed()
    }

    /// Answers questions.
    fn answer(&mut self) {
        let now = self.now();
        let Some(admin) = &mut self.admin else { return };
        let net = self.server.clients().net_mut();
        admin.turn(now, &mut |_, question| {
            if let Some(processes) = &mut self.processes {
                processes.settle(net);
            }
            let neighbors = Neighbors { wires: &self.wires, processes: self.processes.as_ref() };
            Some(report::answer(question, net, &neighbors, &mut self.rules))
        });
    }

    /// Takes what has come from outside, lets happen what comes of it, and sends what leaves.
    fn turn(&mut self) -> io::Result<()> {
        let now = self.now();
        let net = self.server.clients().net_mut();
        self.wires.iter_mut().for_each(|wire| wire.receive(now, net));
        if let Some(processes) = &mut self.processes {
            processes.receive(now, net);
        }
        self.server.turn(now)?;
        let net = self.server.clients().net_mut();
        self.wires.iter_mut().for_each(|wire| wire.send(now, net));
        if let Some(processes) = &mut self.processes {
            processes.send(now, net);
        }
        Ok(())
    }

    fn sleep(&mut self, wake: impl AsFd) -> io::Result<()> {
        let (now, net) = (self.now(), self.server.clients().net());
        let until = |due: Time| due.since_start().saturating_sub(now.since_start());
        let due = self.wires.iter().filter_map(ForeignWire::due);
        let due = due.chain(self.admin.as_ref().and_then(Admin::due)).min();
        let mut longest = due.map_or(SLEEP_MAX, until).min(SLEEP_MAX);
        // Of what a stream does not take, poll says when it does; datagrams go in batches.
        let waits = |wire: &ForeignWire| wire.is_batched() && net.has_foreign(wire.end());
        if self.wires.iter().any(waits) {
            longest = Duration::ZERO;
        }
        if let Some(processes) = &mut self.processes {
            longest = processes.sleep(longest);
        }
        if let Some(capture) = &mut self.capture
            && longest > Duration::ZERO
        {
            capture.flush()?;
        }
        let mut others: Vec<_> = self.wires.iter().filter_map(ForeignWire::poll_fd).collect();
        others.extend(self.admin.iter().flat_map(Admin::poll_fds));
        others.extend(self.processes.iter().flat_map(process::Server::poll_fds));
        let wake = wake.as_fd();
        others.push(PollFd::new(&wake, PollFlags::IN));
        self.server.wait_beside(now, longest, others)?;
        if let Some(processes) = &mut self.processes {
            processes.wake();
        }
        Ok(())
    }
}

/// Links that cost no time but the machine's.
fn quick() -> Wire {
    Wire { latency: Duration::ZERO, ..Wire::default() }
}
