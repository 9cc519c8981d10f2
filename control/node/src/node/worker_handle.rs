//! The handle of a worker thread: its core, its interfaces, and a ring for new ports.
//!
//! Devices are assigned to threads round-robin. Worker 0 of an interface runs in the thread of its
//! device, and the other workers run in the threads after it, in order. If an interface has more
//! workers than there are threads, a thread runs several of them.

use super::notice::NodeNotice;
use super::opening::WorkerThreads;
use super::routing::Routing;
use super::waker::Waker;
use super::worker_port::WorkerPort;
use super::worker_task::WorkerTask;
use crate::config::{InterfaceSettings, WorkerSettings};
use crate::interface::port_driver::memory::WorkerMemory;
use core_affinity::CoreId;
use pollux_dataplane::engine::idle::Idle;
use pollux_dataplane::engine::{Handle, Worker};
use pollux_mem::pool::PoolError;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) struct WorkerHandle {
    pub(super) core: Option<usize>,
    /// The names of interfaces with workers in the thread, for reports.
    pub(super) interfaces: Vec<String>,
    handle: Handle<Box<WorkerPort>>,
    waker: Waker,
    /// The packet memory of the ports of the thread; more than one only if ports were added later.
    memories: Vec<Arc<WorkerMemory>>,
}

pub(super) struct WorkerThread {
    pub(super) worker: Worker<Box<WorkerPort>>,
    pub(super) task: WorkerTask,
    pub(super) core: Option<usize>,
}

impl WorkerHandle {
    pub(super) const fn new(
        core: Option<usize>,
        handle: Handle<Box<WorkerPort>>,
        waker: Waker,
    ) -> Self {
        Self { core, interfaces: Vec::new(), handle, waker, memories: Vec::new() }
    }

    pub(super) fn idle(&self) -> Idle {
        self.handle.idle()
    }

    pub(super) fn set_idle(&self, idle: Idle) {
        self.handle.set_idle(idle);
        self.wake();
    }

    /// Sends a port to the thread. If the ring has no space, the port is dropped, and its interface
    /// fails.
    pub(super) fn add(&mut self, port: WorkerPort) {
        let _ = self.handle.command(Box::new(port));
        self.wake();
    }

    /// Packet memory with space for another port. Frees unused memory before it allocates more.
    fn memory(&mut self, connects: bool) -> Result<Arc<WorkerMemory>, PoolError> {
        let found = self.memories.iter().find(|memory| memory.has_room(connects)).map(Arc::clone);
        if let Some(memory) = found {
            return Ok(memory);
        }
        self.memories.retain(|memory| Arc::strong_count(memory) > 1);
        let memory = WorkerMemory::new(self.interfaces.len(), connects)?;
        self.memories.push(Arc::clone(&memory));
        Ok(memory)
    }

    pub(super) fn stop(&self) {
        self.handle.stop();
        self.wake();
    }

    pub(super) fn wake(&self) {
        self.waker.wake_if_asleep();
    }
}

impl WorkerThread {
    /// Pins the thread to its core. If this fails, a notice says so, and the thread runs on any
    /// core.
    pub(super) fn pin(&self) {
        if let Some(core) = self.core
            && !core_affinity::set_for_current(CoreId { id: core })
        {
            let message = format!("a worker cannot be pinned to core {core}, and runs on any core");
            self.task.notify(NodeNotice::warning("workers", message));
        }
    }
}

/// The worker threads, as they are used when an interface is set up.
pub(super) struct AssignedThreads<'a> {
    pub(super) assignment: &'a Assignment,
    pub(super) handles: &'a mut [WorkerHandle],
    pub(super) routing: &'a mut Routing,
}

impl WorkerThreads for AssignedThreads<'_> {
    fn memory(
        &mut self,
        interface: &str,
        worker: u8,
        connects: bool,
    ) -> Result<Arc<WorkerMemory>, PoolError> {
        self.handles[self.assignment.thread(interface, worker)].memory(connects)
    }

    fn distribute(&mut self, interface: &str, ports: Vec<WorkerPort>) {
        let id = self.routing.port(interface);
        for mut port in ports {
            port.set_port(id);
            self.handles[self.assignment.thread(interface, port.number())].add(port);
        }
    }
}

/// The threads of a node, and which of them has worker 0 of each interface.
pub(super) struct Assignment {
    pub(super) cores: Vec<Option<usize>>,
    pub(super) first: BTreeMap<String, usize>,
    /// The thread of each device.
    turns: BTreeMap<String, usize>,
}

impl Assignment {
    /// Assigns interfaces to threads: one thread per core, except that no thread is without
    /// interfaces.
    pub(super) fn new(
        interfaces: &BTreeMap<String, InterfaceSettings>,
        workers: &WorkerSettings,
    ) -> Self {
        let mut cores: Vec<_> = match workers.cores[..] {
            [] => vec![None],
            ref cores => cores.iter().copied().map(Some).collect(),
        };
        let count = cores.len();
        let mut all = Self { cores: Vec::new(), first: BTreeMap::new(), turns: BTreeMap::new() };
        interfaces.iter().for_each(|(name, settings)| all.add_among(count, name, settings));
        // Threads are filled in order, so the empty ones are the last.
        let last = interfaces
            .iter()
            .map(|(name, settings)| (all.first[name] + usize::from(settings.workers)).min(count));
        cores.truncate(last.max().unwrap_or(0));
        Self { cores, ..all }
    }

    pub(super) fn add(&mut self, name: &str, settings: &InterfaceSettings) {
        self.add_among(self.cores.len(), name, settings);
    }

    fn add_among(&mut self, threads: usize, name: &str, settings: &InterfaceSettings) {
        let next = self.turns.len() % threads;
        let turn = *self.turns.entry(settings.device.clone()).or_insert(next);
        self.first.insert(name.into(), turn);
    }

    pub(super) fn thread(&self, interface: &str, worker: u8) -> usize {
        let first = self.first.get(interface).copied().unwrap_or(0);
        (first + usize::from(worker)) % self.cores.len()
    }

    /// The interfaces with workers in a thread.
    pub(super) fn interfaces(
        &self,
        thread: usize,
        interfaces: &BTreeMap<String, InterfaceSettings>,
    ) -> Vec<String> {
        let here = interfaces.iter().filter(|(name, settings)| {
            (0..settings.workers).any(|worker| self.thread(name, worker) == thread)
        });
        here.map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;

    /// The core of each thread, and the interfaces there: in capitals where worker 0 is.
    fn assignments(text: &str, cores: &[usize]) -> Vec<(Option<usize>, String)> {
        let interfaces = NodeConfig::read("f", text).unwrap().interfaces;
        let workers = WorkerSettings { cores: cores.into(), idle: Idle::Poll };
        let all = Assignment::new(&interfaces, &workers);
        let names = |thread| {
            let name = |name: String| match all.first[&name] == thread {
                true => name.to_uppercase(),
                false => name,
            };
            all.interfaces(thread, &interfaces).into_iter().map(name).collect()
        };
        all.cores.iter().enumerate().map(|(thread, core)| (*core, names(thread))).collect()
    }

    fn of(core: impl Into<Option<usize>>, names: &str) -> (Option<usize>, String) {
        (core.into(), names.into())
    }

    #[test]
    fn interfaces_are_assigned_by_device_and_no_thread_is_without_any() {
        let text = |name: &str, device: &str, pkey| {
            format!("[interface.{name}]\ndevice = {device:?}\npkey = {pkey}\n")
        };
        let text = [
            text("a", "soft:/x@host1", 1),
            text("b", "soft:/x@host2", 1),
            text("c", "soft:/x@host1", 2),
            text("d", "soft:/x@host3", 1),
        ];
        let assignments = |cores| assignments(&text.concat(), cores);
        assert_eq!(assignments(&[]), [of(None, "ABCD")]);
        assert_eq!(assignments(&[4, 2]), [of(4, "ACD"), of(2, "B")]);
        assert_eq!(assignments(&[0, 1, 2, 3]), [of(0, "AC"), of(1, "B"), of(2, "D")]);
    }

    #[test]
    fn workers_go_to_the_threads_after_the_first() {
        let text = "[interface.a]\ndevice = 'soft:/x@host1'\nworkers = 3\n\
                    [interface.b]\ndevice = 'soft:/x@host2'\nworkers = 2\n";
        assert_eq!(assignments(text, &[]), [of(None, "AB")], "one does it all");
        assert_eq!(assignments(text, &[0, 1]), [of(0, "Ab"), of(1, "aB")]);
        assert_eq!(assignments(text, &[0, 1, 2, 3, 4]), [of(0, "A"), of(1, "aB"), of(2, "ab")]);
    }
}
