//! A node on the machine's clock: one control thread, and worker threads.
//!
//! ```text
//!   control thread: `Node::run`                                 worker threads, all alike
//!   MADs, port events --> `Interfaces` ==commands, frames==> `WorkerTask`: workers of interfaces
//!   admin socket -------> `requests`   <==events, packets==        |
//!   metrics <------------ `metrics`                                |
//!                              ^                            queue pairs, packets
//!                              +-- counters in shared memory ------+
//! ```
//!
//! The control thread owns every protocol of every interface, opens devices, and answers requests.
//! It sleeps until a worker, a client or a signal wakes it, or a timer is due; a worker wakes it
//! only if it sleeps. The idle strategy of workers is configured ([`pollux_dataplane::engine`]).
//!
//! The control thread sleeps until one of its descriptors is ready: ports, the wakers of workers,
//! the admin socket, metrics and the kernel. It polls periodically only if a device has no
//! descriptor.

mod captures;
mod changes;
mod drop_counts;
mod ipoib_rows;
mod kernel_link;
mod kinds;
mod metrics;
mod metrics_listener;
pub mod notice;
mod opening;
mod outage;
mod report;
mod requests;
mod routing;
mod supervision;
mod trace;
mod trace_filters;
pub mod waker;
mod worker_handle;
mod worker_port;
mod worker_task;

use crate::admin::Admin;
use crate::config::{ConfigErrors, NodeConfig};
use crate::service::ServiceManager;
use captures::Captures;
use changes::{Changed, ReloadKind, Running};
use kernel_link::KernelLink;
use metrics_listener::MetricsListener;
use notice::NodeNotice;
use opening::Interfaces;
use outage::Outage;
use pollux_control::thread_check::mark_worker_thread;
use pollux_dataplane::engine;
use pollux_dataplane::engine::counts::CountsSegment;
use pollux_mem::region::MapError;
use pollux_verbs::time::Time;
use report::Pings;
use routing::Routing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, ScopedJoinHandle, scope};
use std::time::{Duration, Instant, SystemTime};
use supervision::Supervision;
use waker::{Woken, waker};
use worker_handle::{AssignedThreads, Assignment, WorkerHandle, WorkerThread};
use worker_task::WorkerTask;

const REOPEN_EVERY: Duration = Duration::from_secs(1);
/// The longest sleep of the control thread without interfaces.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The pause after a step without anything to do, while the node ends.
const STEP_PAUSE: Duration = Duration::from_micros(20);
/// Maximum number of steps of all interfaces before requests are handled.
const STEPS_MAX: usize = 64;
const NOTICES_MAX: usize = 64;
/// The longest time for sending accepted packets when the node ends, and for an interface to leave
/// its link.
const SEND_MAX: Duration = Duration::from_millis(500);
const LEAVE_MAX: Duration = Duration::from_secs(1);

pub struct NodeRunner {
    interfaces: Interfaces,
    assignment: Assignment,
    handles: Vec<WorkerHandle>,
    threads: Vec<WorkerThread>,
    counts: CountsSegment,
    admin: Option<Admin>,
    metrics: MetricsListener,
    pings: Pings,
    captures: Captures,
    running: Running,
    routing: Routing,
    kernel: KernelLink,
    supervision: Supervision,
    notices: Receiver<NodeNotice>,
    woken: Woken,
    start: Instant,
    /// `start`, in seconds since 1970.
    start_seconds: f64,
}

pub struct ConfigSource {
    config: NodeConfig,
    /// The file that a reload reads.
    file: Option<PathBuf>,
}

impl ConfigSource {
    pub fn file(path: &Path) -> Result<Self, ConfigErrors> {
        // The path stays valid if the process changes its working directory.
        let file = std::path::absolute(path).unwrap_or_else(|_| path.into());
        Ok(Self { config: NodeConfig::open(path)?, file: Some(file) })
    }
}

impl From<NodeConfig> for ConfigSource {
    fn from(config: NodeConfig) -> Self {
        Self { config, file: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Run,
    Reload,
    /// Leave the subnet and return from [`NodeRunner::run`].
    End,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("cannot listen at the socket {0}: {1}")]
    Socket(String, io::Error),
    #[error("no memory for the counters of workers: {0}")]
    Counts(MapError),
    #[error("cannot start the threads of the node: {0}")]
    System(io::Error),
}

impl NodeRunner {
    /// Listens at the admin socket. [`NodeRunner::run`] starts the threads and opens the devices.
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    pub fn new(source: impl Into<ConfigSource>, socket: Option<&Path>) -> Result<Self, StartError> {
        let ConfigSource { config, file } = source.into();
        let listen = |path: &Path| {
            let failed = |error| StartError::Socket(path.display().to_string(), error);
            Admin::listen(path).map_err(failed)
        };
        let admin = socket.map(listen).transpose()?;
        let start = Instant::now();
        let start_seconds = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
        let now = || Time::START + start.elapsed();
        let mut assignment = Assignment::new(&config.interfaces, &config.workers);
        let (counts, writers) =
            CountsSegment::create(assignment.cores.len()).map_err(StartError::Counts)?;
        let (waker, woken) = waker().map_err(StartError::System)?;
        let (notice_sender, notices) = sync_channel(NOTICES_MAX);
        let flow_seed = seed();
        let (routing, kernel) =
            (Routing::new(assignment.cores.len(), flow_seed), KernelLink::new());
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        for (&core, counts) in assignment.cores.iter().zip(writers) {
            let (worker_waker, worker_woken) = waker::waker().map_err(StartError::System)?;
            let (notices, routes) = (notice_sender.clone(), routing.reader());
            let number = handles.len();
            let task =
                WorkerTask::new(notices, waker.share(), worker_woken, routes, number, flow_seed);
            let (worker, handle) = engine::worker(config.workers.idle, counts, seed());
            handles.push(WorkerHandle::new(core, handle, worker_waker));
            threads.push(WorkerThread { worker, task, core });
        }
        let (mut interfaces, mut running) = (Interfaces::new(waker), Running::new(file, &config));
        let (all, assigned, all_handles) = (&mut interfaces, &mut assignment, &mut handles[..]);
        let mut changed = Changed { interfaces: all, assignment: assigned, handles: all_handles };
        running.start(now(), &config, &mut changed);
        Ok(Self {
            interfaces,
            assignment,
            handles,
            threads,
            counts,
            admin,
            metrics: MetricsListener::default(),
            pings: Pings::new(),
            captures: Captures::default(),
            running,
            routing,
            kernel,
            supervision: Supervision::default(),
            notices,
            woken,
            start,
            start_seconds,
        })
    }

    /// Makes the node report its state to a service manager, and take over the descriptors that an
    /// earlier process stored there.
    pub fn supervised_by(mut self, manager: ServiceManager) -> Self {
        self.supervision = Supervision::new(self.now(), manager, &mut self.kernel);
        self.running.manager = Arc::clone(&self.supervision.socket);
        self
    }

    /// Runs until `next_order` returns [`Order::End`]; then leaves groups and ends connections.
    /// `next_order` is called after each wake-up; `wake` causes one when it becomes readable. `say`
    /// gets each change of state.
    pub fn run(
        mut self,
        wake: impl AsFd,
        next_order: impl Fn() -> Order,
        mut say: impl FnMut(&NodeNotice),
    ) -> io::Result<()> {
        let start = self.start;
        let threads = std::mem::take(&mut self.threads);
        scope(|scope| {
            let mut running = Vec::new();
            for (number, thread) in threads.into_iter().enumerate() {
                let builder = Builder::new().name(format!("worker{number}"));
                let spawned = builder.spawn_scoped(scope, move || work(thread, start));
                let spawned =
                    spawned.inspect_err(|_| self.handles.iter().for_each(WorkerHandle::stop))?;
                running.push(spawned);
            }
            let is_broken = || running.iter().any(ScopedJoinHandle::is_finished);
            let control = catch_unwind(AssertUnwindSafe(|| {
                self.control(wake.as_fd(), next_order, is_broken, &mut say);
            }));
            // Also after a panic: the threads are joined before the panic continues.
            self.handles.iter().for_each(WorkerHandle::stop);
            control.unwrap_or_else(|panic| resume_unwind(panic));
            Ok::<_, io::Error>(())
        })?;
        self.notices.try_iter().for_each(|notice| say(&notice));
        Ok(())
    }

    /// Runs control until an order ends it, and then makes interfaces leave. A worker thread ends
    /// early (`is_broken`) only if it panics; the node ends then, too.
    fn control(
        &mut self,
        wake: BorrowedFd<'_>,
        next_order: impl Fn() -> Order,
        is_broken: impl Fn() -> bool,
        say: &mut impl FnMut(&NodeNotice),
    ) {
        while !is_broken() {
            match next_order() {
                Order::Run => {}
                Order::Reload => self.reload(say),
                Order::End => break,
            }
            if !self.turn(say) {
                self.sleep(wake);
            }
        }
        self.supervision.socket.stopping();
        self.leave(is_broken);
    }

    /// Reads the configuration file again. A file with errors changes nothing.
    fn reload(&mut self, say: &mut impl FnMut(&NodeNotice)) {
        let now = self.now();
        let Self { interfaces, assignment, handles, running, .. } = self;
        let mut changed = Changed { interfaces, assignment, handles };
        match running.reload(now, ReloadKind::Final, &mut changed) {
            Ok(changes) if changes.is_empty() => {
                say(&NodeNotice::info("reload", "nothing has changed"));
            }
            Ok(_) => {}
            Err(why) => {
                say(&NodeNotice::warning("reload", format!("nothing was changed: {why}")));
            }
        }
    }

    fn now(&self) -> Time {
        Time::START + self.start.elapsed()
    }

    /// Steps interfaces, responds to requests and reports notices. Returns whether there may be
    /// more to do at once.
    fn turn(&mut self, say: &mut impl FnMut(&NodeNotice)) -> bool {
        self.woken.clear();
        let now = self.now();
        let is_busy = self.step_interfaces() | self.interfaces.share_addresses(now);
        let Self { interfaces, assignment, handles, running, .. } = self;
        running.handle_timeout(now, &mut Changed { interfaces, assignment, handles });
        let Self { kernel, running, interfaces, routing, .. } = self;
        kernel.update(now, &running.config, interfaces, say);
        routing.update(now, &running.config, interfaces, kernel);
        self.notices.try_iter().for_each(|notice| say(&notice));
        self.interfaces.all.iter_mut().for_each(|(name, named)| {
            // The state before the first attempt to open the interface is not reported.
            let state = named.state();
            if !matches!(named.interface, Err(Outage::Pending))
                && Some(&state) != named.noted.as_ref()
            {
                say(&named.notice(name, &state));
                let noted = named.noted.as_ref().map(|noted| noted.name);
                named.state_changes += u64::from(noted != Some(state.name));
                named.noted = Some(state);
            }
        });
        let now = self.now();
        self.captures.handle_timeout(now);
        if let Some(mut admin) = self.admin.take() {
            admin.turn(now, &mut |number, request, from| self.respond(now, number, request, from));
            self.admin = Some(admin);
        }
        self.running.notices.drain(..).for_each(|notice| say(&notice));
        self.turn_metrics(now, say);
        self.supervision.update(self.now(), &self.interfaces, &self.kernel, &self.counts);
        is_busy
    }

    fn turn_metrics(&mut self, now: Time, say: &mut impl FnMut(&NodeNotice)) {
        let mut metrics = std::mem::take(&mut self.metrics);
        metrics.update(now, self.running.config.telemetry.openmetrics.as_ref(), say);
        metrics.turn(now, &mut |format| self.metrics(format));
        self.metrics = metrics;
    }

    /// Steps interfaces until there is nothing to do, but at most [`STEPS_MAX`] times. Returns
    /// whether there may be more to do.
    fn step_interfaces(&mut self) -> bool {
        let mut steps = 0;
        while steps < STEPS_MAX && self.step_once() {
            steps += 1;
        }
        steps == STEPS_MAX
    }

    fn step_once(&mut self) -> bool {
        let now = self.now();
        let Self { interfaces, assignment, handles, routing, kernel, .. } = self;
        let threads = &mut AssignedThreads { assignment, handles, routing };
        let is_busy = interfaces.step(now, threads)
            | kernel.step(now, interfaces)
            | routing.carry(now, interfaces);
        for (name, named) in &mut interfaces.all {
            let Ok(interface) = &mut named.interface else { continue };
            let notified = interface.take_notified();
            (0..u32::BITS as u8).filter(|worker| notified >> worker & 1 > 0).for_each(|worker| {
                handles[assignment.thread(name, worker)].wake();
            });
        }
        is_busy
    }

    fn sleep(&mut self, wake: impl AsFd) {
        self.woken.fall_asleep();
        self.interfaces.arm();
        if self.step_once() {
            return;
        }
        let longest =
            self.interfaces.sleep_max().map_or(SLEEP_MAX, |longest| longest.min(SLEEP_MAX));
        let (now, wake) = (self.now(), wake.as_fd());
        let admin = self.admin.as_ref();
        let Self { interfaces, kernel, routing, metrics, supervision, running, captures, .. } =
            self;
        let timers = [
            interfaces.poll_timeout(),
            kernel.poll_timeout(),
            routing.poll_timeout(),
            metrics.poll_timeout(),
            supervision.poll_timeout(),
            running.poll_timeout(),
            captures.poll_timeout(),
        ];
        let due = admin.and_then(Admin::due).into_iter().chain(timers.into_iter().flatten());
        let left = due.min().map_or(longest, |due| due.since(now).min(longest));
        let mut fds: Vec<_> = admin.iter().flat_map(|admin| admin.poll_fds()).collect();
        fds.extend([PollFd::new(&self.woken, PollFlags::IN), PollFd::new(&wake, PollFlags::IN)]);
        fds.extend(self.interfaces.poll_fds());
        fds.extend(self.kernel.poll_fds());
        fds.extend(self.metrics.poll_fds());
        // The next turn polls everything, so the result does not matter.
        let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
    }

    /// Leaves the subnet in order, so that peers need no timeout. Gives up after some time, or if a
    /// worker has ended.
    fn leave(&mut self, is_broken: impl Fn() -> bool) {
        let end = self.now() + SEND_MAX;
        while !is_broken() && self.now() < end {
            if self.interfaces.running().all(|one| one.is_drained()) {
                break;
            }
            self.step_or_pause();
        }
        let now = self.now();
        self.interfaces.running().for_each(|one| one.leave(now));
        let end = now + LEAVE_MAX;
        while !is_broken() && self.now() < end {
            if self.interfaces.running().all(|one| one.has_left()) {
                break;
            }
            self.step_or_pause();
        }
        self.interfaces.all.clear();
    }

    fn step_or_pause(&mut self) {
        if !self.step_once() {
            self.woken.sleep(STEP_PAUSE);
        }
    }
}

fn work(thread: WorkerThread, start: Instant) {
    thread.pin();
    mark_worker_thread();
    let WorkerThread { mut worker, mut task, .. } = thread;
    worker.run(&mut task, || Time::START + start.elapsed());
}

/// A secret seed, from the random keys of the standard library's hashers.
fn seed() -> u64 {
    RandomState::new().hash_one(())
}
