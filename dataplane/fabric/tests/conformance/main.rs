//! The software adapter in the suite of `pollux-verbs`: in virtual time with message bypass, with
//! packets, and with lost, duplicated, late or damaged packets; with tshark as the judge of every
//! packet; in threads by the machine's clock; and at a server of processes.
#![expect(clippy::disallowed_methods, reason = "seeds and cases are asked for by hand")]

mod capture;
#[path = "../common/managed.rs"]
mod managed;
#[path = "../common/net_world.rs"]
#[allow(dead_code, reason = "all processes run")]
mod net_world;
mod nets;
#[path = "../common/pair_world.rs"]
mod pair_world;
mod processes;
#[path = "../common/served.rs"]
mod served;
mod threads;
mod uneven;
mod wired;
mod worlds;

use nets::Nets;
use pollux_conformance::sabotage::{SABOTAGES, SabotagedFactory};
use pollux_conformance::{Factory, Group, Outcome, Report};
use pollux_fabric::link::Wire;
use pollux_fabric::link::fault::Faults;
use pollux_wire::address::{Gid, Lid};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;
use worlds::Worlds;

/// A number from the environment, for runs by hand.
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// A part of the names of the cases to run; all have the empty one.
fn filter() -> String {
    std::env::var("POLLUX_CASES").unwrap_or_default()
}

/// The seeds: as many as `POLLUX_SEEDS`, or this default.
fn seeds(usual: u64) -> RangeInclusive<u64> {
    1..=setting("POLLUX_SEEDS").unwrap_or(usual)
}

/// A multicast group, which the link delivers to both ends.
fn group(nth: u8) -> Group {
    let mut mgid = [0; 16];
    mgid[..2].copy_from_slice(&[0xff, 0x12]);
    mgid[15] = nth;
    Group { mgid: Gid(mgid), mlid: Lid(0xc000 + u16::from(nth)) }
}

/// Keeps a failure, and prints skipped cases.
fn note(name: &str, report: &Report, failures: &mut Vec<String>) {
    match report.outcome {
        Outcome::Passed => {}
        Outcome::Skipped(_) => println!("{report}"),
        Outcome::Failed(_) => failures.push(format!("{name}: {report}")),
    }
}

/// Runs all cases, or those with `POLLUX_CASES` in their name; returns the failures.
fn judge(worlds: &mut impl Factory) -> Vec<String> {
    let mut failures = Vec::new();
    let name = worlds.name();
    let summary = pollux_conformance::run(worlds, &filter(), &mut |report| {
        note(&name, report, &mut failures);
    });
    println!("{name}: {summary}");
    failures
}

/// With an even schedule, and with ten uneven ones (or `POLLUX_SEEDS`), which must differ from each
/// other.
fn judge_schedules(name: &'static str, wire: Wire) {
    let uneven = seeds(10).map(|seed| Worlds::new(name, wire, seed).uneven());
    let (mut runs, mut failures, mut traces) = (0, Vec::new(), BTreeSet::new());
    for mut worlds in std::iter::once(Worlds::new(name, wire, 0)).chain(uneven) {
        failures.extend(judge(&mut worlds));
        traces.insert(worlds.trace.digest());
        runs += 1;
    }
    println!("{name}: {runs} runs, {} of them different", traces.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(traces.len() == runs || !filter().is_empty(), "only {} differ", traces.len());
}

// req: iba-rc, iba-uc, iba-ud, iba-work-queues, iba-memory, iba-migration
#[test]
fn with_message_bypass() {
    judge_schedules("bypass", Wire::default());
}

// req: iba-rc, iba-uc, iba-ud, iba-work-queues, iba-memory, iba-mtu
#[test]
fn with_packets() {
    judge_schedules("packets", Wire { packets_only: true, ..Wire::default() });
}

/// With thirty seeds (or `POLLUX_SEEDS`), or the one in `POLLUX_SEED`.
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
    for seed in setting("POLLUX_SEED").map_or(seeds(30), |seed| seed..=seed) {
        failures.extend(judge(&mut Worlds::new("faults", wire, seed).uneven()));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Across one switch and across a fat tree, as messages and as packets with loss.
// req: iba-switching
#[test]
fn across_switches() {
    let faults = Faults { loss: 2_000, duplication: 2_000, reordering: 2_000, ..Faults::default() };
    let lossy = Faults { delay_max: Duration::from_micros(20), ..faults };
    let mut failures = Vec::new();
    for topology in ["single:2", "fat-tree:4"] {
        for wire in [
            Wire::default(),
            Wire { packets_only: true, ..Wire::default() },
            Wire { faults: lossy, ..Wire::default() },
        ] {
            failures.extend(judge(&mut Nets { topology, wire, seed: 1 }));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Only the seed decides a run.
#[test]
fn a_seed_replays() {
    let trace = |seed| {
        let mut worlds = Worlds::new("replay", Wire::default(), seed).uneven();
        pollux_conformance::run(&mut worlds, "ordering/", &mut |_| {});
        worlds.trace.digest()
    };
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

/// Each sabotage is found, by the cases about it.
#[test]
fn with_sabotage() {
    for &(fault, cases) in SABOTAGES {
        for case in cases {
            let mut worlds = Worlds::new("sabotage", Wire::default(), 0);
            let mut broken = SabotagedFactory::new(&mut worlds, fault);
            let mut failed = None;
            pollux_conformance::run(&mut broken, case, &mut |report| {
                if report.name == *case {
                    failed = Some(matches!(report.outcome, Outcome::Failed(_)));
                }
            });
            assert_eq!(failed, Some(true), "{case} under {fault:?}");
        }
    }
}
