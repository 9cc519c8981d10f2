//! The engine: the poll loop of a worker, which idles when there is nothing to do.
//!
//! ```text
//!           +------------------------------ Again, Pause <-------------+
//!           v                                                          |
//!   now -> breathe: completions in, verdicts, batches out, receives -> how long was it idle?
//!           ^   housekeeping: counters out, commands in                |
//!           +------------- woken <- wait <- look once more <- arm <----+ Sleep
//! ```
//!
//! 1. [`Work`]: the queues that a worker polls. One poll iteration is a *breath*;
//! 2. [`idle`]: the idle strategy, which can change while the worker runs;
//! 3. [`counts`]: the worker's counters, in memory that other processes can read;
//! 4. [`echo`]: the smallest possible work, for measurements.
//!
//! A worker has no thread and no clock of its own. [`Worker::turn`] takes the time and returns the
//! next step. [`Worker::run`] repeats this on the caller's thread until the worker has ended. It
//! reads the clock once per turn.
//!
//! Why housekeeping runs at random intervals: otherwise, workers that started together would always
//! do it at the same time, and other periodic events could always fall just after it. A worker also
//! does housekeeping before each sleep, so its published counters are current. One housekeeping
//! handles at most 16 commands. Further commands wait for the next one, even over a sleep.
//!
//! How a worker stops: after [`Handle::stop`] it keeps breathing until its work reports that its
//! queues are drained and it has deregistered ([`Work::end`]), or until a timeout.

pub mod counts;
pub mod echo;
pub mod idle;
#[cfg(test)]
mod tests;

use counts::{CountsWriter, WorkerCounts};
use idle::{AWAKE, Idle, Yields};
use pollux_mem::mpsc::{self, Receiver, Sender};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// Housekeeping runs at intervals between 0.5 and 1.5 of this.
const HOUSEKEEPING_EVERY: Duration = Duration::from_millis(1);
pub const COMMANDS_MAX: usize = 64;
/// The maximum number of commands that one housekeeping handles.
const COMMANDS_AT_ONCE: usize = 16;
pub const END_MAX: Duration = Duration::from_secs(1);

/// The work of a worker: queues that it polls in batches.
pub trait Work {
    type Command;

    /// Receives and sends one batch each. Returns whether there was anything to do.
    fn breathe(&mut self, now: Time) -> bool;

    fn housekeeping(&mut self, now: Time);

    /// The number of packets received and sent since the start.
    fn packets(&mut self) -> u64;

    fn poll_timeout(&self) -> Option<Time>;

    /// Executes a command of the control thread, between two poll iterations.
    fn handle_command(&mut self, now: Time, command: Self::Command);

    /// Arms the devices to wake the worker. Returns whether they can. If so, the worker breathes
    /// once more before it sleeps.
    fn arm(&mut self) -> bool;

    /// Sleeps until a device wakes the worker, at most for `longest`.
    fn wait(&mut self, longest: Duration);

    /// Continues the shutdown, after a breath. Returns whether it is complete.
    fn end(&mut self, now: Time) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Again,
    /// Another breath after a yield of this core to other threads.
    Yield,
    /// Another breath after a short pause for the sibling hyperthread and the power budget.
    Pause,
    /// A sleep of at most this duration, then [`Worker::woken`].
    Sleep(Duration),
    Over,
}

#[derive(Debug)]
struct Shared {
    idle: AtomicU8,
    is_stopping: AtomicBool,
}

pub struct Handle<C> {
    shared: Arc<Shared>,
    commands: Sender<C>,
}

pub struct Worker<C> {
    shared: Arc<Shared>,
    commands: Receiver<C>,
    counts: WorkerCounts,
    published: CountsWriter,
    rng: SeededRng,
    state: State,
    /// The time of the first housekeeping.
    started: Option<Time>,
    /// The start of the last turn, and whether it was busy.
    last: Option<(Time, bool)>,
    idle_since: Option<Time>,
    yields: Yields,
    /// The devices were armed before the last breath.
    is_armed: bool,
    housekeeping_due: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// The worker is stopping, and is over at `until` at the latest.
    Ending {
        until: Time,
    },
    Over,
}

/// Creates a worker with an idle strategy, and its handle. The worker publishes its counters to
/// `published`.
pub fn worker<C>(idle: Idle, published: CountsWriter, seed: u64) -> (Worker<C>, Handle<C>) {
    let (sender, receiver) = mpsc::ring(COMMANDS_MAX).expect("a power of two");
    let idle = AtomicU8::new(idle as u8);
    let shared = Arc::new(Shared { idle, is_stopping: AtomicBool::new(false) });
    let handle = Handle { shared: Arc::clone(&shared), commands: sender };
    let worker = Worker {
        shared,
        commands: receiver,
        counts: WorkerCounts::default(),
        published,
        rng: SeededRng::new(seed),
        state: State::Running,
        started: None,
        last: None,
        idle_since: None,
        yields: Yields::default(),
        is_armed: false,
        housekeeping_due: Time::START,
    };
    (worker, handle)
}

impl<C> Handle<C> {
    /// Sets the idle strategy from the next turn on.
    pub fn set_idle(&self, idle: Idle) {
        // Relaxed: neither this value nor the flag in [`Handle::stop`] orders other accesses.
        self.shared.idle.store(idle as u8, Ordering::Relaxed);
    }

    pub fn idle(&self) -> Idle {
        self.shared.idle()
    }

    /// Sends a command, or returns it if the queue is full. This does not wake a sleeping worker,
    /// which handles the command after its sleep.
    pub fn command(&mut self, command: C) -> Result<(), C> {
        self.commands.push(command)
    }

    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn idle(&self) -> Idle {
        Idle::of(self.idle.load(Ordering::Relaxed))
    }
}

impl<C> Worker<C> {
    pub fn run(&mut self, work: &mut impl Work<Command = C>, mut clock: impl FnMut() -> Time) {
        loop {
            match self.turn(clock(), work) {
                Turn::Again => {}
                Turn::Yield => std::thread::yield_now(),
                Turn::Pause => idle::pause(),
                Turn::Sleep(longest) => {
                    work.wait(longest);
                    self.woken(clock());
                }
                Turn::Over => return,
            }
        }
    }

    #[inline]
    pub fn turn(&mut self, now: Time, work: &mut impl Work<Command = C>) -> Turn {
        self.count_time(now);
        self.yields.end(now);
        let is_busy = work.breathe(now);
        self.last = Some((now, is_busy));
        self.counts.breaths += 1;
        self.counts.busy_breaths += u64::from(is_busy);
        if self.housekeeping_due <= now {
            self.housekeeping(now, work);
        }
        if self.state != State::Running {
            return self.continue_ending(now, work);
        }
        if is_busy {
            (self.idle_since, self.is_armed) = (Some(now), false);
            return Turn::Again;
        }
        self.rest(now, work)
    }

    pub fn woken(&mut self, now: Time) {
        let slept = self.last.map_or(Duration::ZERO, |(then, _)| now.since(then));
        self.counts.sleeps += 1;
        self.counts.asleep_nanos += slept.as_nanos() as u64;
        (self.last, self.housekeeping_due) = (None, now);
    }

    pub fn counts(&self) -> &WorkerCounts {
        &self.counts
    }

    /// Adds the time since the last turn to the busy time, if that turn was busy.
    #[inline]
    fn count_time(&mut self, now: Time) {
        if let Some((then, true)) = self.last {
            self.counts.busy_nanos += now.since(then).as_nanos() as u64;
        }
    }

    /// Chooses the step after an idle breath.
    fn rest(&mut self, now: Time, work: &mut impl Work<Command = C>) -> Turn {
        let idle_time = now.since(*self.idle_since.get_or_insert(now));
        match self.shared.idle() {
            Idle::Poll => Turn::Again,
            Idle::Pause if idle_time < AWAKE => Turn::Again,
            Idle::Pause => Turn::Pause,
            Idle::Adaptive if idle_time < AWAKE && self.yields.begin(now) => Turn::Yield,
            Idle::Adaptive => self.fall_asleep(now, idle_time, work),
        }
    }

    /// Arms the devices. Sleeps if they are armed already and the breath since then was idle, too,
    /// or if they cannot wake the worker.
    fn fall_asleep(
        &mut self,
        now: Time,
        idle_time: Duration,
        work: &mut impl Work<Command = C>,
    ) -> Turn {
        let is_armed = std::mem::take(&mut self.is_armed);
        if !is_armed && work.arm() {
            self.is_armed = true;
            return Turn::Again;
        }
        self.housekeeping(now, work);
        let longest = idle::sleep_max(is_armed, idle_time, now, work.poll_timeout());
        let is_stopping = self.state != State::Running;
        if is_stopping || longest.is_zero() { Turn::Again } else { Turn::Sleep(longest) }
    }

    #[cold]
    fn housekeeping(&mut self, now: Time, work: &mut impl Work<Command = C>) {
        for command in self.commands.drain(COMMANDS_AT_ONCE) {
            work.handle_command(now, command);
        }
        let is_stopping = self.shared.is_stopping.load(Ordering::Relaxed);
        if is_stopping && self.state == State::Running {
            self.state = State::Ending { until: now + END_MAX };
        }
        work.housekeeping(now);
        self.counts.packets = work.packets();
        let started = *self.started.get_or_insert(now);
        self.counts.running_nanos = now.since(started).as_nanos() as u64;
        self.published.write(&self.counts);
        self.housekeeping_due =
            now + HOUSEKEEPING_EVERY / 2 + self.rng.duration(HOUSEKEEPING_EVERY);
    }

    #[cold]
    fn continue_ending(&mut self, now: Time, work: &mut impl Work<Command = C>) -> Turn {
        if let State::Ending { until } = self.state {
            if !work.end(now) && now < until {
                return Turn::Again;
            }
            self.state = State::Over;
            self.housekeeping(now, work);
        }
        Turn::Over
    }
}
