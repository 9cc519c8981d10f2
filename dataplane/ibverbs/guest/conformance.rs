//! The suite of `pollux-verbs` on `rxe0` and `rxe1`, or on `rxe0` and itself.

use crate::differences::rxe_differs;
use pollux_conformance::{Adapters, Factory, Group, Outcome, Side, WaitDecision};
use pollux_verbs::{Device, VerbsError};
use pollux_wire::address::{Gid, Lid};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// The longest time of a case. The longest cases exhaust retries: some seconds in emulation.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Messages longer than this are left out: the guest copies a few megabytes a second.
const MEMORY_BYTES_MAX: u64 = 1 << 20;

struct Rxe {
    devices: Vec<Box<dyn Device + Send>>,
    end: Instant,
    listeners: Vec<UdpSocket>,
}

impl Adapters for Rxe {
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
        false
    }

    fn turn(&mut self) -> WaitDecision {
        if Instant::now() < self.end { WaitDecision::GoOn } else { WaitDecision::GiveUp }
    }

    /// A group of the link. Attaching a queue pair does not join the group in the kernel's IPv6, so
    /// a socket does.
    fn group(&mut self, nth: u8) -> Option<Group> {
        let mut mgid = [0; 16];
        mgid[..2].copy_from_slice(&[0xff, 0x02]);
        mgid[15] = 0x80 + nth;
        for net in ["net0", "net1"] {
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
        MEMORY_BYTES_MAX
    }
}

struct Machine {
    is_one_device: bool,
}

impl Factory for Machine {
    fn name(&self) -> String {
        if self.is_one_device { "rxe, one device".into() } else { "rxe, two devices".into() }
    }

    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError> {
        let names: &[&str] = if self.is_one_device { &["rxe0"] } else { &["rxe0", "rxe1"] };
        let devices = names.iter().map(|name| match pollux_ibverbs::open(name) {
            Ok(opened) => opened.device,
            Err(error) => panic!("{error}"),
        });
        let (devices, end) = (devices.collect(), Instant::now() + TIMEOUT);
        Ok(Box::new(Rxe { devices, end, listeners: Vec::new() }))
    }
}

/// Runs the cases; returns whether only those failed in which rxe is known to be wrong.
pub fn run(is_one_device: bool, filter: &str) -> bool {
    let mut machine = Machine { is_one_device };
    let name = machine.name();
    let (mut wrong, mut differ) = (0, 0);
    let summary = pollux_conformance::run(&mut machine, filter, &mut |report| match (
        &report.outcome,
        rxe_differs(&report.name),
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
