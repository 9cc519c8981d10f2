//! The software adapter against the suite of `pollux-verbs`, in virtual time: with the shortcut,
//! with packets, and with packets that get lost, come twice, late or damaged.
#![expect(clippy::disallowed_methods, reason = "seeds and cases are asked for by hand")]

use pollux_fabric::link::fault::Faults;
use pollux_fabric::link::world::{Wire, World, WorldLink};
use pollux_fabric::{Adapter, Port, SoftDevice};
use pollux_verbs::conformance::sabotage::{SABOTAGES, SabotagedFactory};
use pollux_verbs::conformance::{self, Adapters, Factory, Group, Outcome, Side, Turn};
use pollux_verbs::{Device, VerbsError};
use pollux_wire::address::{Gid, Guid, Lid};
use pollux_wire::keys::PKey;
use std::time::Duration;

/// More than any case that goes well needs.
const TURNS_MAX: u32 = 1_000_000;

/// A number from the environment, for runs by hand.
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

struct Virtual {
    world: World,
    devices: [SoftDevice<WorldLink>; 2],
    turns: u32,
}

impl Adapters for Virtual {
    fn device(&mut self, side: Side) -> &mut dyn Device {
        &mut self.devices[side as usize]
    }

    fn port(&self, _: Side) -> u8 {
        1
    }

    fn turn(&mut self) -> Turn {
        self.turns += 1;
        if self.turns < TURNS_MAX && self.world.step() { Turn::GoOn } else { Turn::GiveUp }
    }

    fn group(&mut self, nth: u8) -> Option<Group> {
        let mut mgid = [0; 16];
        mgid[..2].copy_from_slice(&[0xff, 0x12]);
        mgid[15] = nth;
        Some(Group { mgid: Gid(mgid), mlid: Lid(0xc000 + u16::from(nth)) })
    }

    fn set_pkeys(&mut self, side: Side, pkeys: &[PKey]) -> bool {
        self.devices[side as usize].adapter_mut().port_mut().pkeys = pkeys.to_vec();
        true
    }

    fn memory_octets_max(&self) -> u64 {
        setting("POLLUX_MEMORY_OCTETS").unwrap_or(64 << 20)
    }
}

struct Worlds {
    name: &'static str,
    wire: Wire,
    seed: u64,
}

impl Factory for Worlds {
    fn name(&self) -> String {
        format!("{} (seed {})", self.name, self.seed)
    }

    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError> {
        let (world, links) = World::new(self.seed, self.wire);
        let mut lids = 1..;
        let devices = links.map(|link| {
            let lid = lids.next().unwrap_or_default();
            let port = Port::active(Lid(lid), Guid(u64::from(lid)));
            SoftDevice::new(format!("soft{lid}"), Adapter::new(port), link)
        });
        Ok(Box::new(Virtual { world, devices, turns: 0 }))
    }

    fn is_lossy(&self) -> bool {
        !self.wire.faults.are_none()
    }
}

/// Runs all cases, or those that `POLLUX_CASES` names a part of; gives the failures.
fn judge(worlds: &mut Worlds) -> Vec<String> {
    let filter = std::env::var("POLLUX_CASES").unwrap_or_default();
    let mut failures = Vec::new();
    let name = worlds.name();
    let summary = conformance::run(worlds, &filter, &mut |report| match report.outcome {
        Outcome::Passed => {}
        Outcome::Skipped(_) => println!("{report}"),
        Outcome::Failed(_) => failures.push(format!("{name}: {report}")),
    });
    println!("{name}: {summary}");
    failures
}

// req: iba-rc, iba-uc, iba-ud, iba-work-queues, iba-memory
#[test]
fn with_the_shortcut() {
    let failures = judge(&mut Worlds { name: "shortcut", wire: Wire::default(), seed: 1 });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

// req: iba-rc, iba-uc, iba-ud, iba-work-queues, iba-memory, iba-mtu
#[test]
fn with_packets() {
    let wire = Wire { packets_only: true, ..Wire::default() };
    let failures = judge(&mut Worlds { name: "packets", wire, seed: 1 });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// With thirty seeds, or as many as `POLLUX_SEEDS` says.
#[test]
fn with_faults() {
    let faults = Faults {
        loss: 10_000,
        duplication: 10_000,
        reordering: 10_000,
        corruption: 2_000,
        delay_max: Duration::from_micros(50),
    };
    let wire = Wire { faults, ..Wire::default() };
    let mut failures = Vec::new();
    for seed in 1..=setting("POLLUX_SEEDS").unwrap_or(30) {
        failures.extend(judge(&mut Worlds { name: "faults", wire, seed }));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What is broken is found, and by the cases that are about it.
#[test]
fn with_sabotage() {
    for &(fault, cases) in SABOTAGES {
        for case in cases {
            let mut worlds = Worlds { name: "sabotage", wire: Wire::default(), seed: 1 };
            let mut broken = SabotagedFactory::new(&mut worlds, fault);
            let mut failed = None;
            conformance::run(&mut broken, case, &mut |report| {
                if report.name == *case {
                    failed = Some(matches!(report.outcome, Outcome::Failed(_)));
                }
            });
            assert_eq!(failed, Some(true), "{case} under {fault:?}");
        }
    }
}
