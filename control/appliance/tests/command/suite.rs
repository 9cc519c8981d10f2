//! The suite of the contract between processes at ports of a running fabric.
//!
//! Ports come up as a subnet manager has them, groups are joined at its administrator, and every
//! case has its adapters anew: the last one's ports go down before. A manager learns of a port once
//! a second, so this takes one case of many; those that `POLLUX_CASES` names a part of, all.

use crate::processes::{BROADCAST, join_group};
use crate::program::Program;
use crate::running::{Running, TIMEOUT};
use pollux_conformance::{Adapters, Factory, Group, Outcome, Side, Summary, WaitDecision};
use pollux_mem::Memory;
use pollux_mem::region::MapError;
use pollux_node::Opened;
use pollux_verbs::{Device, VerbsError};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

/// Pairs of ports at a time, most of which wait.
const PAIRS: u8 = 6;
/// Of so many cases one is run.
const STRIDE: usize = 8;

struct Ports {
    names: [String; 2],
    pair: u8,
}

impl Factory for Ports {
    fn name(&self) -> String {
        "a running fabric".into()
    }

    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError> {
        let mut sides = self.names.each_ref().map(|name| Program::at(name).into_device());
        for side in &mut sides {
            while side.device.async_event().is_some() {}
        }
        let sides = sides.map(Some);
        let (pair, groups, start) = (self.pair, BTreeMap::new(), Instant::now());
        Ok(Box::new(Pair { sides, pair, groups, start }))
    }
}

struct Pair {
    /// Each is there but while it joins a group.
    sides: [Option<Opened>; 2],
    pair: u8,
    groups: BTreeMap<u8, Group>,
    start: Instant,
}

impl Pair {
    fn joined(&mut self, nth: u8) -> Group {
        let mut mgid = BROADCAST;
        mgid.0[12..].copy_from_slice(&[0, 0, self.pair, nth]);
        let mlids = self.sides.each_mut().map(|side| {
            let mut program = Program::over(side.take().expect("it is there"));
            program.begin();
            let mlid = join_group(&mut program, mgid);
            *side = Some(program.into_device());
            mlid
        });
        assert_eq!(mlids[0], mlids[1], "one group has one address");
        Group { mgid, mlid: mlids[0] }
    }
}

impl Adapters for Pair {
    fn device(&mut self, side: Side) -> &mut dyn Device {
        &mut *self.sides[side as usize].as_mut().expect("it is there").device
    }

    fn port(&self, _: Side) -> u8 {
        1
    }

    fn turn(&mut self) -> WaitDecision {
        std::thread::yield_now();
        if self.start.elapsed() < TIMEOUT { WaitDecision::GoOn } else { WaitDecision::GiveUp }
    }

    fn group(&mut self, nth: u8) -> Option<Group> {
        if !self.groups.contains_key(&nth) {
            let group = self.joined(nth);
            self.groups.insert(nth, group);
        }
        self.groups.get(&nth).copied()
    }

    fn memory(&self, bytes: usize) -> Result<Memory, MapError> {
        Memory::shared(bytes)
    }

    fn memory_bytes_max(&self) -> u64 {
        8 << 20
    }
}

// req: iba-rc, iba-uc, iba-ud, iba-work-queues, iba-memory
#[test]
fn the_contract_holds_at_a_running_fabric() {
    let spec = format!("single:{}", 2 * PAIRS);
    let fabric = Running::new("suite", &["--topology", &spec]);
    let filter = std::env::var("POLLUX_CASES").ok();
    let stride = if filter.is_some() { 1 } else { STRIDE };
    let filter = filter.unwrap_or_default();
    let cases = pollux_conformance::cases()
        .filter(|(theme, case)| pollux_conformance::full_name(theme, case).contains(&filter))
        .step_by(stride);
    let (cases, judged) = (Mutex::new(cases), Mutex::new((Summary::default(), Vec::new())));
    std::thread::scope(|scope| {
        for pair in 0..PAIRS {
            let hosts = [1, 2].map(|host| u32::from(pair) * 2 + host);
            let mut ports = Ports { names: hosts.map(|host| fabric.port(host)), pair };
            let (cases, judged) = (&cases, &judged);
            scope.spawn(move || {
                loop {
                    // A lock of its own, so that no other case holds it.
                    let next = cases.lock().expect("nobody panics with the lock").next();
                    let Some((theme, case)) = next else { return };
                    let mut report = pollux_conformance::run_case(&mut ports, theme, case);
                    // Twelve adapters share the processors with a fabric, and a requester whose
                    // peer does not run in time gives up, rightly. Not so the second time.
                    if matches!(report.outcome, Outcome::Failed(_)) {
                        println!("again: {report}");
                        report = pollux_conformance::run_case(&mut ports, theme, case);
                    }
                    let (summary, failed) = &mut *judged.lock().expect("nobody panics with it");
                    summary.count(&report);
                    if matches!(report.outcome, Outcome::Failed(_)) {
                        failed.push(report.to_string());
                    }
                }
            });
        }
    });
    let (summary, failed) = judged.into_inner().expect("nobody panics with the lock");
    println!("a running fabric: {summary}");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
