//! The suite of `pollux-verbs` on two adapters, or on one and itself.

use crate::differences::{self, Difference};
use pollux_conformance::{Adapters, Factory, Group, Outcome, Side, WaitDecision};
use pollux_ibverbs::{HcaOpenError, OpenedHca};
use pollux_verbs::{Device, VerbsError};
use pollux_wire::address::{Gid, Lid};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// The kind of adapters, and their driver.
pub struct Backend {
    pub name: &'static str,
    /// The devices of both sides.
    pub devices: [&'static str; 2],
    pub open: fn(&str) -> Result<OpenedHca, HcaOpenError>,
    pub is_one_subnet: bool,
    /// The longest time of a case.
    pub timeout: Duration,
    /// Longer messages are left out.
    pub memory_bytes_max: u64,
    /// Network interfaces that join multicast groups.
    pub net_devices: &'static [&'static str],
    pub differences: &'static [Difference],
}

pub const RXE: Backend = Backend {
    name: "rxe",
    devices: ["rxe0", "rxe1"],
    open: pollux_ibverbs::open,
    is_one_subnet: false,
    // The longest cases exhaust retries: some seconds in emulation.
    timeout: Duration::from_secs(3),
    // The guest copies a few megabytes a second.
    memory_bytes_max: 1 << 20,
    net_devices: &["net0", "net1"],
    differences: differences::OF_RXE,
};

/// One adapter opened twice, through libmlx5.
pub const CONNECTX: Backend = Backend {
    name: "connectx",
    devices: ["mlx5_0", "mlx5_0"],
    open: pollux_ibverbs::open,
    is_one_subnet: true,
    // Far above the need on a busy machine.
    timeout: Duration::from_secs(30),
    memory_bytes_max: 8 << 20,
    net_devices: &[],
    differences: differences::OF_LIBMLX5,
};

struct Opened {
    backend: &'static Backend,
    devices: Vec<Box<dyn Device + Send>>,
    end: Instant,
    listeners: Vec<UdpSocket>,
}

impl Adapters for Opened {
    fn device(&mut self, side: Side) -> &mut dyn Device {
        let nth = if self.is_one_device() { 0 } else { side as usize };
        self.devices[nth].as_mut()
    }

    fn port(&self, _: Side) -> u8 {
        1
    }

    fn is_one_device(&self) -> bool {
        self.devices.len() == 1
    }

    fn is_one_subnet(&self) -> bool {
        self.backend.is_one_subnet
    }

    fn turn(&mut self) -> WaitDecision {
        // An adapter in software may be a thread of this process.
        std::thread::yield_now();
        if Instant::now() < self.end { WaitDecision::GoOn } else { WaitDecision::GiveUp }
    }

    /// A group of the link. Attaching a queue pair does not join the group in the kernel's IPv6, so
    /// a socket does.
    fn group(&mut self, nth: u8) -> Option<Group> {
        let mut mgid = [0; 16];
        mgid[..2].copy_from_slice(&[0xff, 0x02]);
        mgid[15] = 0x80 + nth;
        for net in self.backend.net_devices {
            let index = std::fs::read_to_string(format!("/sys/class/net/{net}/ifindex")).ok()?;
            let socket = UdpSocket::bind("[::]:0").ok()?;
            socket.join_multicast_v6(&mgid.into(), index.trim().parse().ok()?).ok()?;
            self.listeners.push(socket);
        }
        Some(Group { mgid: Gid(mgid), mlid: Lid(0xc000 + u16::from(nth)) })
    }

    fn objects_max(&self) -> u32 {
        1 << 10
    }

    fn memory_bytes_max(&self) -> u64 {
        self.backend.memory_bytes_max
    }
}

struct Machine {
    backend: &'static Backend,
    is_one_device: bool,
}

impl Factory for Machine {
    fn name(&self) -> String {
        let devices = if self.is_one_device { "one device" } else { "two devices" };
        format!("{}, {devices}", self.backend.name)
    }

    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError> {
        let backend = self.backend;
        let names: &[&str] =
            if self.is_one_device { &backend.devices[..1] } else { &backend.devices };
        let devices = names.iter().map(|name| match (backend.open)(name) {
            Ok(opened) => opened.device,
            Err(error) => panic!("{error}"),
        });
        let (devices, end) = (devices.collect(), Instant::now() + backend.timeout);
        Ok(Box::new(Opened { backend, devices, end, listeners: Vec::new() }))
    }
}

/// Runs the cases; returns whether only those failed in which the adapters are known to be wrong.
pub fn run(backend: &'static Backend, is_one_device: bool, filter: &str) -> bool {
    let mut machine = Machine { backend, is_one_device };
    let name = machine.name();
    let (mut wrong, mut differ) = (0, 0);
    let summary = pollux_conformance::run(&mut machine, filter, &mut |report| match (
        &report.outcome,
        differences::find(backend.differences, &report.name),
    ) {
        (Outcome::Failed(text), Some(known)) if known.explains(text) => {
            println!("SKIP {}: {}", report.name, known.reason);
            differ += 1;
        }
        (Outcome::Failed(_), known) => {
            println!("{report}");
            if known.is_some() {
                println!("     it is on the list, but for another reason");
            }
            wrong += 1;
        }
        (Outcome::Passed, Some(_)) => {
            println!("FAIL {}: it passes now; take it off the list", report.name);
            wrong += 1;
        }
        (Outcome::Passed, None) => {}
        (Outcome::Skipped(_), _) => println!("{report}"),
    });
    println!(
        "{name}: {} passed, {} skipped, {differ} differ, {wrong} failed",
        summary.passed, summary.skipped
    );
    wrong == 0
}
