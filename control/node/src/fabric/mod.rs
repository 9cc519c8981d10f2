//! A software fabric in real time: one thread that owns a net, its wires, programs, processes and
//! captures, and that sleeps while it is idle.
//!
//! `PATH` names a fabric: it is the path of its admin socket. Processes open ports
//! (`soft:PATH@NODE[:PORT]`) at the socket `PATH.ports`, by messages that carry file descriptors.
//!
//! 1. [`config`]: the configuration, and errors of the start;
//! 2. `managers`: embedded subnet managers;
//! 3. [`rule`]: fault rules; [`capture`]: a file of all packets;
//! 4. [`report`]: responses at the admin socket ([`crate::admin`]); `cables`: those about the
//!    topology;
//! 5. [`embedded`]: a fabric in its own thread, for one process.

mod cables;
pub mod capture;
pub mod config;
pub mod embedded;
mod managers;
pub mod report;
pub mod rule;

pub use cables::planned;
pub use config::{FabricConfig, FabricStartError, Plug};
pub use embedded::Embedded;
pub use managers::partitions;
pub use pollux_fabric::sm::Partitions;

use crate::admin::Admin;
use capture::Capture;
use config::{find_port, find_ports};
use pollux_fabric::Time;
use pollux_fabric::link::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::process;
use pollux_fabric::sm;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::umad::Sockets;
use pollux_fabric::wire_io::ForeignWire;
use pollux_wire::mad::smp::{MKey, SmKey};
use rule::Rules;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Steps between polls of sockets, while processes have traffic.
const TURNS_PER_LOOK: u32 = 64;

pub struct RunningFabric {
    fabric: pollux_fabric::Fabric,
    rules: Rules,
    capture: Option<Capture>,
    admin: Option<Admin>,
    start: Instant,
}

impl RunningFabric {
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    pub fn new(mut config: FabricConfig) -> Result<Self, FabricStartError> {
        let topology = &mut config.topology;
        let ends = config.wires.iter().map(|plug| find_port(topology, &plug.port, true));
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        ends.iter().for_each(|end| topology.add_ports(*end));
        let mut rules = Rules::default();
        for rule in &config.faults {
            rules.add(topology, rule).map_err(FabricStartError::new)?;
        }
        let granted = config.managers.iter().map(|text| find_ports(topology, text));
        let granted = granted.collect::<Result<Vec<_>, _>>()?;
        let managers = config.partitions.map(|partitions| {
            let m_key = MKey(managers::key(config.m_key));
            let sm_key = SmKey(managers::key(config.sm_key));
            let config =
                sm::SmConfig { partitions, lmc: config.lmc, m_key, sm_key, ..Default::default() };
            managers::managers(topology, &config)
        });
        let mut net = Net::new(Subnet::new(config.topology), config.seed, quick());
        granted.concat().into_iter().for_each(|end| net.grant_management(end));
        let mut wires = Vec::new();
        for (plug, end) in config.wires.iter().zip(ends) {
            let what = format!("the wire {}={}", plug.port, plug.name);
            net.add_foreign(end).map_err(FabricStartError::of(&what))?;
            let wire = ForeignWire::open(end, &plug.address);
            wires.push(wire.map_err(FabricStartError::of(what))?);
        }
        rules.apply(&mut net);
        net.set_paced(config.is_paced);
        let capture = config.capture.as_deref().map(|path| {
            Capture::begin(path, &mut net)
                .map_err(FabricStartError::of(format!("capture {}", path.display())))
        });
        let mut fabric = pollux_fabric::Fabric::new(net);
        fabric.wires = wires;
        let managers = managers.into_iter().flatten();
        managers.for_each(|(at, config)| fabric.start_manager(at, config));
        let programs = config.umad.as_deref().map(|name| {
            Sockets::bind(name).map_err(FabricStartError::of(format!(
                "cannot serve programs as '{name}'; another fabric may use this name"
            )))
        });
        fabric.program_sockets = programs.transpose()?;
        let socket = config.socket.as_deref();
        let admin = socket.map(|path| {
            let failed = FabricStartError::of(format!("socket {}", path.display()));
            Admin::listen(path).map_err(failed)
        });
        let (capture, admin) = (capture.transpose()?, admin.transpose()?);
        let processes = socket.map(|path| {
            let failed = FabricStartError::of(format!("socket {}.ports", path.display()));
            process::Server::bind(path).map_err(failed)
        });
        fabric.processes = processes.transpose()?;
        Ok(Self { fabric, rules, capture, admin, start: Instant::now() })
    }

    /// Runs until `is_over` returns true. It is asked after each sleep; `wake` ends a sleep when it
    /// becomes readable.
    pub fn run(&mut self, wake: impl AsFd, is_over: impl Fn() -> bool) -> io::Result<()> {
        while !is_over() {
            self.answer();
            for _ in 0..TURNS_PER_LOOK {
                let now = self.now();
                self.fabric.step(now)?;
                if !self.fabric.processes.as_ref().is_some_and(process::Server::is_awake) {
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

    fn answer(&mut self) {
        let now = self.now();
        let Some(admin) = &mut self.admin else { return };
        admin.turn(now, &mut |_, request, _| {
            Some(report::respond(request, &mut self.fabric, &mut self.rules).into())
        });
    }

    fn sleep(&mut self, wake: impl AsFd) -> io::Result<()> {
        let now = self.now();
        let due = self.admin.as_ref().and_then(Admin::due);
        let longest = due.map_or(SLEEP_MAX, |due| due.since(now)).min(SLEEP_MAX);
        let longest = self.fabric.prepare_wait(now, longest);
        if let Some(capture) = &mut self.capture
            && longest > Duration::ZERO
        {
            capture.flush()?;
        }
        let mut others: Vec<_> = self.admin.iter().flat_map(Admin::poll_fds).collect();
        let wake = wake.as_fd();
        others.push(PollFd::new(&wake, PollFlags::IN));
        self.fabric.wait(longest, others)
    }
}

/// Links without simulated latency.
fn quick() -> Wire {
    Wire { latency: Duration::ZERO, ..Wire::default() }
}
