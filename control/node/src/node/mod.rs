//! A node on the machine's clock: worker threads, each with some interfaces of the node, and a
//! thread that answers for all of them at a socket.
//!
//! ```text
//!   thread of `Node::run`              one ring each: questions       worker threads
//!   admin <- `Questions`, `WorkerHandle` --------------------> `WorkerTask`: interfaces, `report`
//!               ^                      answers, notices; a waker            |
//!               +-----------------------------------------------------------+
//! ```
//!
//! The thread that answers sleeps until a question, a notice of a worker or a signal comes. How
//! workers rest is configured ([`pollux_dataplane::engine`]). An interface may have several
//! workers: the primary worker, and secondary workers in other threads
//! ([`crate::interface::SecondaryWorker`]), which pass on only packets for control.

mod opening;
mod questions;
mod report;
mod waker;
mod worker_handle;
mod worker_task;

use crate::admin::Admin;
use crate::config::NodeConfig;
use opening::Interfaces;
use pollux_dataplane::engine;
use pollux_dataplane::engine::counts::Counts;
use pollux_mem::region::MapError;
use pollux_verbs::time::Time;
use questions::Questions;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, ScopedJoinHandle, scope};
use std::time::{Duration, Instant};
use waker::{Woken, waker};
use worker_handle::{Assignment, WorkerHandle, WorkerThread};
use worker_task::WorkerTask;

/// The longest pause between attempts to open a device.
const REOPEN_EVERY: Duration = Duration::from_secs(1);
/// The longest sleep of the thread that answers.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Notices that wait for it, at most.
const NOTICES_MAX: usize = 64;

/// Interfaces that run during [`Node::run`].
pub struct Node {
    handles: Vec<WorkerHandle>,
    threads: Vec<WorkerThread>,
    counts: Counts,
    admin: Option<Admin>,
    questions: Questions,
    notices: Receiver<String>,
    woken: Woken,
    start: Instant,
}

/// The reason for which a node does not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The socket for questions cannot be opened.
    Socket(String, io::Error),
    /// No memory for the counters of workers.
    Counts(MapError),
    /// The system has no thread, or no socket between threads, for the node.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path, error) => write!(f, "cannot listen at the socket {path}: {error}"),
            Self::Counts(error) => write!(f, "no memory for the counters of workers: {error}"),
            Self::System(error) => write!(f, "cannot start the threads of the node: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl Node {
    /// Opens the socket. Worker threads open the devices, once these exist.
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    pub fn new(config: NodeConfig, socket: Option<&Path>) -> Result<Self, StartError> {
        let listen = |path: &Path| {
            let failed = |error| StartError::Socket(path.display().to_string(), error);
            Admin::listen(path).map_err(failed)
        };
        let admin = socket.map(listen).transpose()?;
        let start = Instant::now();
        let now = || Time::START + start.elapsed();
        let assignments = worker_handle::assign(config.interfaces, &config.workers);
        let (counts, writers) = Counts::create(assignments.len()).map_err(StartError::Counts)?;
        let (waker, woken) = waker().map_err(StartError::System)?;
        let (notice_sender, notices) = sync_channel(NOTICES_MAX);
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        let channels = opening::worker_senders(assignments.len());
        for ((assignment, counts), channels) in assignments.into_iter().zip(writers).zip(channels) {
            let Assignment { core, interfaces, secondaries } = assignment;
            let names = interfaces.keys().cloned().chain(secondaries).collect();
            let interfaces = Interfaces::new(now(), interfaces);
            let task = WorkerTask::new(interfaces, channels, notice_sender.clone(), waker.share());
            let (worker, handle) = engine::worker(config.workers.idle, counts, seed());
            handles.push(WorkerHandle::new(core, names, handle));
            threads.push(WorkerThread { worker, task, core });
        }
        let questions = Questions::default();
        Ok(Self { handles, threads, counts, admin, questions, notices, woken, start })
    }

    /// Runs until `is_over`, which is called whenever something happens, also at `wake`; then
    /// leaves groups and ends connections. `say` gets each change of state of an interface.
    pub fn run(
        mut self,
        wake: impl AsFd,
        is_over: impl Fn() -> bool,
        mut say: impl FnMut(&str),
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
                self.handles[number].begin(spawned.thread());
                running.push(spawned);
            }
            // A worker ends early only if it panics, and then the node ends.
            while !is_over() && !running.iter().any(ScopedJoinHandle::is_finished) {
                self.turn(&mut say);
                self.sleep(wake.as_fd());
            }
            self.handles.iter().for_each(WorkerHandle::stop);
            Ok::<_, io::Error>(())
        })?;
        self.notices.try_iter().for_each(|notice| say(&notice));
        Ok(())
    }

    /// Answers questions, and reports notices of workers.
    fn turn(&mut self, say: &mut impl FnMut(&str)) {
        self.woken.clear();
        self.notices.try_iter().for_each(|notice| say(&notice));
        let Self { admin, questions, handles, counts, start, .. } = self;
        if let Some(admin) = admin {
            let now = Time::START + start.elapsed();
            admin.turn(now, &mut |number, question| {
                questions.answer(number, question, handles, counts)
            });
        }
    }

    /// Sleeps until there may be a question or a notice.
    fn sleep(&self, wake: impl AsFd) {
        let now = Time::START + self.start.elapsed();
        let due = self.admin.as_ref().and_then(Admin::due);
        let left = due.map_or(SLEEP_MAX, |due| {
            due.since_start().saturating_sub(now.since_start()).min(SLEEP_MAX)
        });
        let mut fds: Vec<_> = self.admin.iter().flat_map(Admin::poll_fds).collect();
        let wake = wake.as_fd();
        fds.extend([PollFd::new(&self.woken, PollFlags::IN), PollFd::new(&wake, PollFlags::IN)]);
        // The next turn polls everything, so the result does not matter.
        let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
    }
}

/// The body of a worker thread.
fn work(thread: WorkerThread, start: Instant) {
    thread.pin();
    let WorkerThread { mut worker, mut task, .. } = thread;
    worker.run(&mut task, || Time::START + start.elapsed());
}

/// A secret: the seed of the standard library's hashers.
fn seed() -> u64 {
    RandomState::new().hash_one(())
}
