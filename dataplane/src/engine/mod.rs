//! The engine: a worker's loop, which breathes what it is given and rests when there is nothing.
//!
//! ```text
//!           +------------------------------ Again, Pause <-------------+
//!           v                                                          |
//!   now -> breathe: completions in, verdicts, batches out, receives -> how long was it silent?
//!           ^   now and then: counters out, commands in                |
//!           +------------- woken <- wait <- look once more <- arm <----+ Sleep
//! ```
//!
//! 1. [`Work`]: what a worker breathes: all that it polls, and shares with nobody;
//! 2. [`idle`]: how it rests; a value that anybody may change while it runs;
//! 3. [`counts`]: what it counts, in memory that other processes can read;
//! 4. [`echo`]: the least that it can do, for measuring.
//!
//! A worker has no thread and no clock of its own: [`Worker::turn`] is told what time it is and
//! says what to do next, and [`Worker::run`] does that until it is over, on whatever thread it is
//! called. One reading of the clock a turn is all that it needs.
//!
//! Why housekeeping comes at random intervals: workers that began together would else look after
//! their counters and commands together for ever, and whatever else has a period might always come
//! just behind. Before a worker sleeps it keeps house in any case: what it says of itself is whole
//! then, and no command that was there waits for its sleep to end.
//!
//! How it stops: it is asked to ([`Handle::stop`]), and goes on breathing until its work says that
//! everything accepted is on its way and leave is taken ([`Work::end`]), or it takes too long.

pub mod counts;
pub mod echo;
pub mod idle;
#[cfg(test)]
mod tests;

use counts::{CountsWriter, WorkerCounts};
use idle::{AWAKE, Idle};
use pollux_mem::spsc::{self, Consumer, Producer};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// House is kept at intervals between half of this and one and a half.
const HOUSE_EVERY: Duration = Duration::from_millis(1);
/// Commands that wait for a worker, at most.
pub const COMMANDS_MAX: usize = 64;
/// Commands that it takes at a time.
const COMMANDS_AT_ONCE: usize = 16;
/// How long the end may take.
pub const END_MAX: Duration = Duration::from_secs(1);

/// What a worker does: queues, of which it takes and gives a batch at a time.
pub trait Work {
    /// What it can be told, in housekeeping.
    type Command;

    /// Takes what has come and sends what is to go, a batch of each; says whether that was
    /// anything.
    fn breathe(&mut self, now: Time) -> bool;

    /// Does what need not be done in every breath.
    fn keep_house(&mut self, now: Time);

    /// Packets that came and went since it began.
    fn packets(&mut self) -> u64;

    /// When there is something to do though nothing comes.
    fn poll_timeout(&self) -> Option<Time>;

    /// Does what it is told.
    fn handle_command(&mut self, now: Time, command: Self::Command);

    /// Sees to it that whatever comes from now on wakes the sleeper, and says whether that can be;
    /// if so, there is another breath before it sleeps.
    fn arm(&mut self) -> bool;

    /// Sleeps until something comes, if that can be, and not longer than this.
    fn wait(&mut self, longest: Duration);

    /// Goes on with taking leave, after a breath; says whether it is over.
    fn end(&mut self, now: Time) -> bool;
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Another breath.
    Again,
    /// The same, after the core's sibling and its power supply had a moment.
    Pause,
    /// A sleep of at most this, and then [`Worker::woken`].
    Sleep(Duration),
    /// Nothing: it has ended.
    Over,
}

/// What the worker and whoever commands it share.
#[derive(Debug)]
struct Shared {
    idle: AtomicU8,
    is_stopping: AtomicBool,
}

/// By which a worker is commanded, from any one thread.
pub struct Handle<C> {
    shared: Arc<Shared>,
    commands: Producer<C>,
}

/// One worker.
pub struct Worker<C> {
    shared: Arc<Shared>,
    commands: Consumer<C>,
    counts: WorkerCounts,
    published: CountsWriter,
    rng: SeededRng,
    state: State,
    /// When the last turn began, and whether it was busy.
    last: Option<(Time, bool)>,
    /// Since when there was nothing to do.
    silent_since: Option<Time>,
    /// Devices are to wake it, and one look was to be taken since.
    is_armed: bool,
    house_due: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// It was asked to stop: until then.
    Ending {
        until: Time,
    },
    Over,
}

/// A worker that rests so, and what commands it. It publishes what it counts there.
pub fn worker<C>(idle: Idle, published: CountsWriter, seed: u64) -> (Worker<C>, Handle<C>) {
    let (producer, consumer) = spsc::ring(COMMANDS_MAX).expect("a power of two");
    let idle = AtomicU8::new(idle as u8);
    let shared = Arc::new(Shared { idle, is_stopping: AtomicBool::new(false) });
    let handle = Handle { shared: Arc::clone(&shared), commands: producer };
    let worker = Worker {
        shared,
        commands: consumer,
        counts: WorkerCounts::default(),
        published,
        rng: SeededRng::new(seed),
        state: State::Running,
        last: None,
        silent_since: None,
        is_armed: false,
        house_due: Time::START,
    };
    (worker, handle)
}

impl<C> Handle<C> {
    /// How the worker rests from its next turn on.
    pub fn set_idle(&self, idle: Idle) {
        // Relaxed: it orders nothing but itself, as the flag below.
        self.shared.idle.store(idle as u8, Ordering::Relaxed);
    }

    /// How it rests.
    pub fn idle(&self) -> Idle {
        self.shared.idle()
    }

    /// Tells it something; gives that back if too much waits already. A worker whose thread sleeps
    /// hears it when that wakes.
    pub fn command(&mut self, command: C) -> Result<(), C> {
        self.commands.push(command)
    }

    /// Asks it to end.
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
    /// Turns until it is over.
    pub fn run(&mut self, work: &mut impl Work<Command = C>, mut clock: impl FnMut() -> Time) {
        loop {
            match self.turn(clock(), work) {
                Turn::Again => {}
                Turn::Pause => idle::pause(),
                Turn::Sleep(longest) => {
                    work.wait(longest);
                    self.woken(clock());
                }
                Turn::Over => return,
            }
        }
    }

    /// One breath, and what goes with it.
    #[inline]
    pub fn turn(&mut self, now: Time, work: &mut impl Work<Command = C>) -> Turn {
        self.count_time(now);
        let is_busy = work.breathe(now);
        self.last = Some((now, is_busy));
        self.counts.breaths += 1;
        self.counts.busy_breaths += u64::from(is_busy);
        if self.house_due <= now {
            self.keep_house(now, work);
        }
        if self.state != State::Running {
            return self.go_on_ending(now, work);
        }
        if is_busy {
            (self.silent_since, self.is_armed) = (Some(now), false);
            return Turn::Again;
        }
        self.rest(now, work)
    }

    /// The sleep is over.
    pub fn woken(&mut self, now: Time) {
        let slept = self.last.map_or(Duration::ZERO, |(then, _)| time_between(then, now));
        self.counts.sleeps += 1;
        self.counts.asleep_nanos += slept.as_nanos() as u64;
        (self.last, self.house_due) = (None, now);
    }

    /// What it has counted.
    pub fn counts(&self) -> &WorkerCounts {
        &self.counts
    }

    /// The time since the last turn was its.
    #[inline]
    fn count_time(&mut self, now: Time) {
        if let Some((then, true)) = self.last {
            self.counts.busy_nanos += time_between(then, now).as_nanos() as u64;
        }
    }

    /// What to do after a breath in which nothing happened.
    fn rest(&mut self, now: Time, work: &mut impl Work<Command = C>) -> Turn {
        let silent = time_between(*self.silent_since.get_or_insert(now), now);
        match self.shared.idle() {
            _ if silent < AWAKE => Turn::Again,
            Idle::Poll => Turn::Again,
            Idle::Pause => Turn::Pause,
            Idle::Adaptive => self.fall_asleep(now, silent, work),
        }
    }

    /// Sleeps, once devices are to wake it and nothing had come before they knew.
    fn fall_asleep(
        &mut self,
        now: Time,
        silent: Duration,
        work: &mut impl Work<Command = C>,
    ) -> Turn {
        let is_armed = std::mem::take(&mut self.is_armed);
        if !is_armed && work.arm() {
            self.is_armed = true;
            return Turn::Again;
        }
        self.keep_house(now, work);
        let longest = idle::sleep_max(is_armed, silent, now, work.poll_timeout());
        let is_called = self.state != State::Running;
        if is_called || longest.is_zero() { Turn::Again } else { Turn::Sleep(longest) }
    }

    /// Commands in, counters out.
    #[cold]
    fn keep_house(&mut self, now: Time, work: &mut impl Work<Command = C>) {
        for command in self.commands.drain(COMMANDS_AT_ONCE) {
            work.handle_command(now, command);
        }
        let is_called = self.shared.is_stopping.load(Ordering::Relaxed);
        if is_called && self.state == State::Running {
            self.state = State::Ending { until: now + END_MAX };
        }
        work.keep_house(now);
        self.counts.packets = work.packets();
        self.published.write(&self.counts);
        self.house_due = now + HOUSE_EVERY / 2 + self.rng.duration(HOUSE_EVERY);
    }

    /// Ends without a rest: it is not for long.
    #[cold]
    fn go_on_ending(&mut self, now: Time, work: &mut impl Work<Command = C>) -> Turn {
        if let State::Ending { until } = self.state {
            if !work.end(now) && now < until {
                return Turn::Again;
            }
            self.state = State::Over;
            self.keep_house(now, work);
        }
        Turn::Over
    }
}

fn time_between(then: Time, now: Time) -> Duration {
    now.since_start().saturating_sub(then.since_start())
}
