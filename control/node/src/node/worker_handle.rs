//! The handle of a worker thread: its core, its interfaces, and a ring to send questions by.
//!
//! Interfaces are assigned by their devices, round-robin: interfaces at one device share a port,
//! and stay together. Secondary workers of an interface go to the threads after that of its primary
//! worker. With fewer threads than workers of an interface, a thread does the work of several.

use super::questions::Question;
use super::worker_task::WorkerTask;
use crate::config::{InterfaceSettings, WorkerSettings};
use core_affinity::CoreId;
use pollux_dataplane::engine::idle::Idle;
use pollux_dataplane::engine::{Handle, Worker};
use std::collections::{BTreeMap, BTreeSet};
use std::thread::Thread;

/// Controls a worker thread.
pub(super) struct WorkerHandle {
    core: Option<usize>,
    interfaces: Vec<String>,
    handle: Handle<Question>,
    /// The thread, once it runs.
    thread: Option<Thread>,
}

/// Everything that its thread needs.
pub(super) struct WorkerThread {
    pub(super) worker: Worker<Question>,
    pub(super) task: WorkerTask,
    pub(super) core: Option<usize>,
}

impl WorkerHandle {
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

    /// Its thread runs.
    pub(super) fn begin(&mut self, thread: &Thread) {
        self.thread = Some(thread.clone());
    }

    pub(super) fn set_idle(&self, idle: Idle) {
        self.handle.set_idle(idle);
        self.wake();
    }

    /// Sends a question; `None` if its ring is full.
    pub(super) fn ask(&mut self, question: Question) -> Option<()> {
        self.handle.command(question).ok()?;
        self.wake();
        Some(())
    }

    pub(super) fn stop(&self) {
        self.handle.stop();
        self.wake();
    }

    /// Unparks the thread. A sleep at a device ends by itself, and soon.
    fn wake(&self) {
        self.thread.iter().for_each(Thread::unpark);
    }
}

impl WorkerThread {
    /// Pins the thread to its core. A failure is a notice, and the thread runs anywhere.
    pub(super) fn pin(&self) {
        if let Some(core) = self.core
            && !core_affinity::set_for_current(CoreId { id: core })
        {
            self.task.notify(format!("a worker cannot run on core {core}: the system refuses"));
        }
    }
}

/// The interfaces and secondary workers of a worker thread.
#[derive(Default)]
pub(super) struct Assignment {
    pub(super) core: Option<usize>,
    pub(super) interfaces: BTreeMap<String, InterfaceSettings>,
    /// Interfaces of other threads that it has a secondary worker of.
    pub(super) secondaries: BTreeSet<String>,
}

/// Assigns interfaces to worker threads: one thread for each core, but none without anything to
/// do.
pub(super) fn assign(
    interfaces: BTreeMap<String, InterfaceSettings>,
    workers: &WorkerSettings,
) -> Vec<Assignment> {
    let cores: Vec<_> = match workers.cores[..] {
        [] => vec![None],
        ref cores => cores.iter().copied().map(Some).collect(),
    };
    let with_core = |core| Assignment { core, ..Assignment::default() };
    let mut assignments: Vec<_> = cores.into_iter().map(with_core).collect();
    let count = assignments.len();
    let mut turns = BTreeMap::new();
    for (name, settings) in interfaces {
        let turn = turns.len() % count;
        let turn = *turns.entry(settings.device.clone()).or_insert(turn);
        for secondary in 1..usize::from(settings.workers).min(count) {
            assignments[(turn + secondary) % count].secondaries.insert(name.clone());
        }
        assignments[turn].interfaces.insert(name, settings);
    }
    // Threads are filled in order, so the empty ones are the last.
    assignments.retain(|one| !one.interfaces.is_empty() || !one.secondaries.is_empty());
    assignments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;

    #[test]
    fn interfaces_are_assigned_by_device_and_no_worker_is_without_any() {
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
        let assignments = |cores: &[usize]| {
            let workers = WorkerSettings { cores: cores.into(), idle: Idle::Poll };
            let names = |all: BTreeMap<String, _>| all.into_keys().collect::<String>();
            let assignments = assign(interfaces.clone(), &workers).into_iter();
            assignments.map(|one| (one.core, names(one.interfaces))).collect::<Vec<_>>()
        };
        let of = |core, names: &str| (core, names.into());
        assert_eq!(assignments(&[]), [of(None, "abcd")]);
        assert_eq!(assignments(&[4, 2]), [of(Some(4), "acd"), of(Some(2), "b")]);
        let four = [of(Some(0), "ac"), of(Some(1), "b"), of(Some(2), "d")];
        assert_eq!(assignments(&[0, 1, 2, 3]), four);
    }

    #[test]
    fn secondary_workers_go_to_the_threads_after_the_primary() {
        let assignments = |cores: &[usize]| {
            let text = "[interface.a]\ndevice = 'soft:/x@host1'\nworkers = 3\n\
                        [interface.b]\ndevice = 'soft:/x@host2'\nworkers = 2\n";
            let interfaces = NodeConfig::read("f", text).unwrap().interfaces;
            let workers = WorkerSettings { cores: cores.into(), idle: Idle::Poll };
            let assignments = assign(interfaces, &workers).into_iter();
            let words = |one: Assignment| {
                let primaries = one.interfaces.into_keys().collect::<String>();
                primaries + "+" + &one.secondaries.into_iter().collect::<String>()
            };
            assignments.map(words).collect::<Vec<_>>()
        };
        assert_eq!(assignments(&[]), ["ab+"], "one does it all");
        assert_eq!(assignments(&[0, 1]), ["a+b", "b+a"]);
        assert_eq!(assignments(&[0, 1, 2, 3, 4]), ["a+", "b+a", "+ab"]);
    }
}
