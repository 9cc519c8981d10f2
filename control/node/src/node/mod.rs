//! A node on the machine's clock: workers, each a thread with some of its interfaces, and the
//! thread that answers for them all at a socket.
//!
//! ```text
//!   thread of `Node::run`          a ring each, for questions        threads of workers
//!   admin <- asking: `Questions` ----------------------------> `Duty`: interfaces, `report`
//!             ^                    answers, news; a waker              |
//!             +--------------------------------------------------------+
//! ```
//!
//! The thread that answers sleeps until somebody asks, a worker has something to say or a signal
//! comes; how workers rest the configuration says ([`pollux_dataplane::engine`]). An interface may
//! have several workers: the one that it belongs to, and secondary workers at others
//! ([`crate::interface::SecondaryWorker`]). Secondary workers pass on only packets for control.

mod asking;
mod desk;
mod duty;
mod opening;
mod report;
mod waker;

use crate::admin::Admin;
use crate::config::NodeConfig;
use asking::Questions;
use desk::{Dealt, Desk, Shift};
use duty::Duty;
use opening::Interfaces;
use pollux_dataplane::engine;
use pollux_dataplane::engine::counts::Counts;
use pollux_mem::region::MapError;
use pollux_verbs::time::Time;
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

/// How often a device is looked for that is gone, at least.
const REOPEN_EVERY: Duration = Duration::from_secs(1);
/// The longest sleep of the thread that answers.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// News that wait for it.
const NEWS_MAX: usize = 64;

/// Interfaces that run while somebody calls [`Node::run`].
pub struct Node {
    desks: Vec<Desk>,
    shifts: Vec<Shift>,
    counts: Counts,
    admin: Option<Admin>,
    questions: Questions,
    news: Receiver<String>,
    woken: Woken,
    start: Instant,
}

/// Why a node does not start: one sentence, and what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// Nobody can ask.
    Socket(String, io::Error),
    /// No memory for what workers count.
    Counts(MapError),
    /// The system gives no thread, or no socket between threads.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path, error) => write!(f, "socket {path}: {error}"),
            Self::Counts(error) => write!(f, "memory for the workers' counters: {error}"),
            Self::System(error) => write!(f, "threads of the node: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl Node {
    /// Opens the socket. Devices are opened by the workers, when they are there.
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    pub fn new(config: NodeConfig, socket: Option<&Path>) -> Result<Self, StartError> {
        let listen = |path: &Path| {
            let failed = |error| StartError::Socket(path.display().to_string(), error);
            Admin::listen(path).map_err(failed)
        };
        let admin = socket.map(listen).transpose()?;
        let start = Instant::now();
        let now = || Time::START + start.elapsed();
        let dealt = desk::deal(config.interfaces, &config.workers);
        let (counts, writers) = Counts::create(dealt.len()).map_err(StartError::Counts)?;
        let (waker, woken) = waker().map_err(StartError::System)?;
        let (teller, news) = sync_channel(NEWS_MAX);
        let (mut desks, mut shifts) = (Vec::new(), Vec::new());
        let ways = opening::colleagues(dealt.len());
        for ((dealt, counts), ways) in dealt.into_iter().zip(writers).zip(ways) {
            let Dealt { core, interfaces, secondaries } = dealt;
            let names = interfaces.keys().cloned().chain(secondaries).collect();
            let interfaces = Interfaces::new(now(), interfaces);
            let duty = Duty::new(interfaces, ways, teller.clone(), waker.share());
            let (worker, handle) = engine::worker(config.workers.idle, counts, seed());
            desks.push(Desk::new(core, names, handle));
            shifts.push(Shift { worker, duty, core });
        }
        let questions = Questions::default();
        Ok(Self { desks, shifts, counts, admin, questions, news, woken, start })
    }

    /// Runs until `is_over` says so, which is asked whenever something happens, also to `wake`; and
    /// takes leave of peers and groups then. `say` hears what becomes of interfaces.
    pub fn run(
        mut self,
        wake: impl AsFd,
        is_over: impl Fn() -> bool,
        mut say: impl FnMut(&str),
    ) -> io::Result<()> {
        let start = self.start;
        let shifts = std::mem::take(&mut self.shifts);
        scope(|scope| {
            let mut threads = Vec::new();
            for (number, shift) in shifts.into_iter().enumerate() {
                let thread = Builder::new().name(format!("worker{number}"));
                let thread = thread.spawn_scoped(scope, move || work(shift, start));
                let thread = thread.inspect_err(|_| self.desks.iter().for_each(Desk::stop))?;
                self.desks[number].begin(thread.thread());
                threads.push(thread);
            }
            // A worker ends before it is to only if it panics, and then the node does.
            while !is_over() && !threads.iter().any(ScopedJoinHandle::is_finished) {
                self.turn(&mut say);
                self.sleep(wake.as_fd());
            }
            self.desks.iter().for_each(Desk::stop);
            Ok::<_, io::Error>(())
        })?;
        self.news.try_iter().for_each(|news| say(&news));
        Ok(())
    }

    /// Answers questions, and says what workers say.
    fn turn(&mut self, say: &mut impl FnMut(&str)) {
        self.woken.clear();
        self.news.try_iter().for_each(|news| say(&news));
        let Self { admin, questions, desks, counts, start, .. } = self;
        if let Some(admin) = admin {
            let now = Time::START + start.elapsed();
            admin.turn(now, &mut |number, question| {
                questions.answer(number, question, desks, counts)
            });
        }
    }

    /// Sleeps until there may be something to answer or to say.
    fn sleep(&self, wake: impl AsFd) {
        let now = Time::START + self.start.elapsed();
        let due = self.admin.as_ref().and_then(Admin::due);
        let left = due.map_or(SLEEP_MAX, |due| {
            due.since_start().saturating_sub(now.since_start()).min(SLEEP_MAX)
        });
        let mut fds: Vec<_> = self.admin.iter().flat_map(Admin::poll_fds).collect();
        let wake = wake.as_fd();
        fds.extend([PollFd::new(&self.woken, PollFlags::IN), PollFd::new(&wake, PollFlags::IN)]);
        // Whatever comes of it, it looks at everything next.
        let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
    }
}

/// What the thread of a worker does.
fn work(shift: Shift, start: Instant) {
    shift.pin();
    let Shift { mut worker, mut duty, .. } = shift;
    worker.run(&mut duty, || Time::START + start.elapsed());
}

/// Something that nobody else knows: the standard library's hashers begin with it.
fn seed() -> u64 {
    RandomState::new().hash_one(())
}
