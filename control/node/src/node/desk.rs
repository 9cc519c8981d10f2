//! A worker of a node, as whoever answers for the node sees it: which core it has, and what it has
//! to do there.
//!
//! Interfaces are dealt by their devices, one after the other to each worker in turn: those at one
//! device share a port, and stay together. Secondary workers of an interface go to the threads
//! after that of its primary worker;
//! where there are fewer workers than an interface is to have, one does the work of several.

use super::asking::Question;
use super::duty::Duty;
use crate::config::{InterfaceSettings, WorkerSettings};
use core_affinity::CoreId;
use pollux_dataplane::engine::idle::Idle;
use pollux_dataplane::engine::{Handle, Worker};
use std::collections::{BTreeMap, BTreeSet};
use std::thread::Thread;

/// What a worker is commanded by.
pub(super) struct Desk {
    core: Option<usize>,
    interfaces: Vec<String>,
    handle: Handle<Question>,
    /// Once it runs.
    thread: Option<Thread>,
}

/// What goes to its thread.
pub(super) struct Shift {
    pub(super) worker: Worker<Question>,
    pub(super) duty: Duty,
    pub(super) core: Option<usize>,
}

impl Desk {
    pub(super) fn new(
        core: Option<usize>,
        interfaces: Vec<String>,
        handle: Handle<Question>,
    ) -> Self {
        Self { core, interfaces, handle, thread: None }
    }

    pub(super) fn core(&self) -> Option<usize> {
        self.core
    }

    pub(super) fn interfaces(&self) -> &[String] {
        &self.interfaces
    }

    pub(super) fn idle(&self) -> Idle {
        self.handle.idle()
    }

    /// It runs there.
    pub(super) fn begin(&mut self, thread: &Thread) {
        self.thread = Some(thread.clone());
    }

    pub(super) fn set_idle(&self, idle: Idle) {
        self.handle.set_idle(idle);
        self.call();
    }

    /// Asks it; `None` if it has too much to do already.
    pub(super) fn ask(&mut self, question: Question) -> Option<()> {
        self.handle.command(question).ok()?;
        self.call();
        Some(())
    }

    pub(super) fn stop(&self) {
        self.handle.stop();
        self.call();
    }

    /// Ends its nap. A sleep at a device ends by itself, and soon.
    fn call(&self) {
        self.thread.iter().for_each(Thread::unpark);
    }
}

impl Shift {
    /// Puts the thread where it is to be. If it cannot be there, that is said, and it is elsewhere.
    pub(super) fn pin(&self) {
        if let Some(core) = self.core
            && !core_affinity::set_for_current(CoreId { id: core })
        {
            self.duty.say(format!("a worker cannot be on core {core} alone: the system refuses"));
        }
    }
}

/// What a worker is to do.
#[derive(Default)]
pub(super) struct Dealt {
    pub(super) core: Option<usize>,
    pub(super) interfaces: BTreeMap<String, InterfaceSettings>,
    /// Interfaces of others that it has a secondary worker of.
    pub(super) secondaries: BTreeSet<String>,
}

/// The interfaces of each worker: as many workers as there are cores, but none without anything to
/// do.
pub(super) fn deal(
    interfaces: BTreeMap<String, InterfaceSettings>,
    workers: &WorkerSettings,
) -> Vec<Dealt> {
    let cores: Vec<_> = match workers.cores[..] {
        [] => vec![None],
        ref cores => cores.iter().copied().map(Some).collect(),
    };
    let with_core = |core| Dealt { core, ..Dealt::default() };
    let mut dealt: Vec<_> = cores.into_iter().map(with_core).collect();
    let count = dealt.len();
    let mut turns = BTreeMap::new();
    for (name, settings) in interfaces {
        let turn = turns.len() % count;
        let turn = *turns.entry(settings.device.clone()).or_insert(turn);
        for secondary in 1..usize::from(settings.workers).min(count) {
            dealt[(turn + secondary) % count].secondaries.insert(name.clone());
        }
        dealt[turn].interfaces.insert(name, settings);
    }
    // Those that have something to do come before all others.
    dealt.retain(|one| !one.interfaces.is_empty() || !one.secondaries.is_empty());
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;

    #[test]
    fn interfaces_are_dealt_by_device_and_nobody_has_nothing_to_do() {
        let text = |name: &str, device: &str, pkey| {
            format!("[interface.{name}]\ndevice = {device:?}\npkey = {pkey}\n")
        };
        let text = [
            text("a", "soft:/x@host1", 1),
            text("b", "soft:/x@host2", 1),
            text("c", "soft:/x@host1", 2),
            text("d", "soft:/x@host3", 1),
        ];
        let interfaces = NodeConfig::read("f", &text.concat()).unwrap().interfaces;
        let dealt = |cores: &[usize]| {
            let workers = WorkerSettings { cores: cores.into(), idle: Idle::Poll };
            let names = |all: BTreeMap<String, _>| all.into_keys().collect::<String>();
            let dealt = deal(interfaces.clone(), &workers).into_iter();
            dealt.map(|one| (one.core, names(one.interfaces))).collect::<Vec<_>>()
        };
        let of = |core, names: &str| (core, names.into());
        assert_eq!(dealt(&[]), [of(None, "abcd")]);
        assert_eq!(dealt(&[4, 2]), [of(Some(4), "acd"), of(Some(2), "b")]);
        let four = [of(Some(0), "ac"), of(Some(1), "b"), of(Some(2), "d")];
        assert_eq!(dealt(&[0, 1, 2, 3]), four);
    }

    #[test]
    fn secondary_workers_go_to_the_threads_after_the_primary() {
        let dealt = |cores: &[usize]| {
            let text = "[interface.a]\ndevice = 'soft:/x@host1'\nworkers = 3\n\
                        [interface.b]\ndevice = 'soft:/x@host2'\nworkers = 2\n";
            let interfaces = NodeConfig::read("f", text).unwrap().interfaces;
            let workers = WorkerSettings { cores: cores.into(), idle: Idle::Poll };
            let dealt = deal(interfaces, &workers).into_iter();
            let words = |one: Dealt| {
                let primaries = one.interfaces.into_keys().collect::<String>();
                primaries + "+" + &one.secondaries.into_iter().collect::<String>()
            };
            dealt.map(words).collect::<Vec<_>>()
        };
        assert_eq!(dealt(&[]), ["ab+"], "one does it all");
        assert_eq!(dealt(&[0, 1]), ["a+b", "b+a"]);
        assert_eq!(dealt(&[0, 1, 2, 3, 4]), ["a+", "b+a", "+ab"]);
    }
}
