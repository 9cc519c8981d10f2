//! A worker with scripted work, in virtual time.

use super::counts::CountsSegment;
use super::idle::{NAP_MAX, SLEEP_MAX};
use super::*;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

const TURN: Duration = Duration::from_micros(1);

#[derive(Default)]
struct Script {
    /// Breaths that will be busy.
    busy: u32,
    due: Option<Time>,
    can_wake: bool,
    /// Packets that arrive just after the devices are armed.
    arrives_armed: u32,
    /// Accepted packets that are not sent; a breath sends one.
    accepted: u32,
    hangs: bool,
    /// Handled commands.
    commands: Vec<(Time, u32)>,
    armed: u32,
    housekeepings: u32,
    packets: u64,
}

impl Work for Script {
    type Command = u32;

    fn breathe(&mut self, _: Time) -> bool {
        let is_busy = self.busy > 0;
        self.busy = self.busy.saturating_sub(1);
        self.accepted = self.accepted.saturating_sub(1);
        self.packets += 32 * u64::from(is_busy);
        is_busy
    }

    fn housekeeping(&mut self, _: Time) {
        self.housekeepings += 1;
    }

    fn packets(&mut self) -> u64 {
        self.packets
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    fn handle_command(&mut self, now: Time, command: u32) {
        self.commands.push((now, command));
    }

    fn arm(&mut self) -> bool {
        self.armed += 1;
        self.busy += std::mem::take(&mut self.arrives_armed);
        self.can_wake
    }

    fn wait(&mut self, _: Duration) {}

    fn end(&mut self, _: Time) -> bool {
        self.accepted == 0 && !self.hangs
    }
}

struct Bench {
    worker: Worker<u32>,
    handle: Handle<u32>,
    counts: CountsSegment,
    work: Script,
    now: Time,
}

fn begin(idle: Idle, work: Script) -> Bench {
    let (counts, mut writers) = CountsSegment::create(1).unwrap();
    let (worker, handle) = worker(idle, writers.remove(0), 7);
    Bench { worker, handle, counts, work, now: Time::START }
}

impl Bench {
    fn turn(&mut self) -> Turn {
        self.now = self.now + TURN;
        self.worker.turn(self.now, &mut self.work)
    }

    /// The first turn that is not [`Turn::Again`].
    fn next_rest(&mut self) -> Turn {
        let turns = (0..100_000).map(|_| self.turn());
        turns
            .into_iter()
            .find(|turn| !matches!(turn, Turn::Again | Turn::Yield))
            .unwrap_or(Turn::Again)
    }

    fn next_sleep(&mut self) -> Duration {
        match self.next_rest() {
            Turn::Sleep(longest) => longest,
            other => panic!("{other:?}"),
        }
    }

    fn wake_after(&mut self, slept: Duration) {
        self.now = self.now + slept;
        self.worker.woken(self.now);
    }
}

#[test]
fn the_idle_strategy_can_change_while_a_worker_runs() {
    let mut bench = begin(Idle::Poll, Script { can_wake: true, ..Script::default() });
    assert_eq!((bench.next_rest(), bench.work.armed), (Turn::Again, 0));
    bench.handle.set_idle(Idle::Pause);
    assert_eq!(bench.turn(), Turn::Pause);
    bench.handle.set_idle(Idle::Adaptive);
    assert_eq!((bench.handle.idle(), bench.turn()), (Idle::Adaptive, Turn::Again));
    assert_eq!((bench.turn(), bench.work.armed), (Turn::Sleep(SLEEP_MAX), 1));
    for idle in Idle::ALL {
        assert_eq!((Idle::named(idle.name()), Idle::of(idle as u8)), (Some(idle), idle));
        // With any strategy, a worker polls on for a while after a busy breath.
        bench.handle.set_idle(idle);
        bench.work.busy = 1;
        let mut again = (0..100).map(|_| bench.turn());
        assert!(again.all(|turn| matches!(turn, Turn::Again | Turn::Yield)), "{idle:?}");
    }
    assert_eq!(Idle::named("sleep"), None);
}

#[test]
fn a_packet_between_the_last_poll_and_the_sleep_is_not_missed() {
    let script = Script { can_wake: true, arrives_armed: 1, ..Script::default() };
    let mut bench = begin(Idle::Adaptive, script);
    while bench.work.armed == 0 {
        assert!(matches!(bench.turn(), Turn::Again | Turn::Yield));
    }
    assert_eq!(bench.turn(), Turn::Again, "it receives the packet");
    assert_eq!((bench.next_sleep(), bench.work.armed), (SLEEP_MAX, 2), "and arms again");
    // After a wake-up the device is armed again, even if nothing was received.
    bench.wake_after(TURN);
    assert_eq!((bench.next_sleep(), bench.work.armed), (SLEEP_MAX, 3));
}

/// On a core shared with a computing program, each yield gives the core away for a time slice.
#[test]
fn a_worker_does_not_yield_for_a_while_after_a_yield_that_took_long() {
    let mut bench = begin(Idle::Adaptive, Script { can_wake: true, ..Script::default() });
    let slice = Duration::from_millis(3);
    assert_eq!(bench.turn(), Turn::Yield);
    bench.now = bench.now + slice;
    let begun = bench.now;
    let mut yields = 0;
    while bench.now < begun + Duration::from_secs(1) {
        // A packet arrives each millisecond.
        bench.work.busy = 1;
        loop {
            match bench.turn() {
                Turn::Sleep(_) => break bench.wake_after(Duration::from_millis(1)),
                Turn::Yield => (yields += 1, bench.now = bench.now + slice).0,
                _ => {}
            }
        }
    }
    assert!((8..=11).contains(&yields), "{yields} yields in a second");
}

#[test]
fn a_worker_sleeps_until_its_next_timer() {
    let mut bench = begin(Idle::Adaptive, Script { can_wake: true, ..Script::default() });
    bench.work.due = Some(Time::START + Duration::from_millis(2));
    let longest = bench.next_sleep();
    assert_eq!(Some(bench.now + longest), bench.work.due);
    bench.wake_after(longest);
    assert_eq!(bench.next_rest(), Turn::Again, "the timer is due");
}

#[test]
fn naps_are_a_bounded_part_of_the_idle_time() {
    let mut bench = begin(Idle::Adaptive, Script { busy: 1, ..Script::default() });
    bench.turn();
    let begun = bench.now;
    let mut before = Duration::ZERO;
    while bench.now < begun + Duration::from_secs(1) {
        let nap = bench.next_sleep();
        let silent = bench.now.since(begun);
        assert!(nap >= before && nap <= (silent / 16).max(Duration::from_micros(20)), "{nap:?}");
        bench.wake_after(nap);
        before = nap;
    }
    assert_eq!(before, NAP_MAX);
    bench.work.busy = 1;
    let woken = bench.now;
    bench.turn();
    assert!(bench.next_sleep() < NAP_MAX / 50, "a busy breath shortens the next nap");
    assert!(bench.now >= woken + AWAKE);
    let (counts, all) = (*bench.worker.counts(), bench.now.since(Time::START));
    let asleep = Duration::from_nanos(counts.asleep_nanos);
    assert!(asleep < all && asleep * 100 > all * 95, "{asleep:?} of {all:?}");
}

#[test]
fn housekeeping_runs_at_random_intervals() {
    let mut bench = begin(Idle::Poll, Script::default());
    let mut intervals = BTreeSet::new();
    for number in 0..200 {
        bench.handle.command(number).unwrap();
        while bench.work.commands.len() <= number as usize {
            bench.turn();
        }
    }
    for both in bench.work.commands.windows(2) {
        let between = both[1].0.since(both[0].0);
        assert!(between >= HOUSEKEEPING_EVERY / 2 && between <= HOUSEKEEPING_EVERY * 3 / 2 + TURN);
        intervals.insert(between);
    }
    assert!(intervals.len() > 100, "{}", intervals.len());
    assert_eq!(bench.work.housekeepings, 200);
    assert!(bench.work.commands.iter().map(|one| one.1).eq(0..200), "in their order");
    for number in 0..COMMANDS_MAX as u32 {
        bench.handle.command(number).unwrap();
    }
    assert_eq!(bench.handle.command(7), Err(7), "the queue is full");
}

#[test]
fn commands_are_handled_before_a_sleep_and_after_it() {
    let mut bench = begin(Idle::Adaptive, Script { can_wake: true, ..Script::default() });
    bench.handle.command(1).unwrap();
    bench.next_sleep();
    assert_eq!(bench.work.commands.len(), 1);
    bench.handle.command(2).unwrap();
    bench.wake_after(TURN);
    bench.turn();
    assert_eq!(bench.work.commands.len(), 2);
    assert_eq!(bench.worker.counts().sleeps, 1);
}

#[test]
fn a_worker_ends_when_it_is_drained_or_after_a_timeout() {
    let mut bench = begin(Idle::Adaptive, Script { can_wake: true, ..Script::default() });
    bench.next_sleep();
    bench.work.accepted = 50;
    bench.handle.stop();
    bench.wake_after(TURN);
    assert_eq!((bench.next_rest(), bench.work.accepted), (Turn::Over, 0));
    assert_eq!(bench.turn(), Turn::Over);

    let mut bench = begin(Idle::Poll, Script { hangs: true, ..Script::default() });
    bench.handle.stop();
    let turns = (0..2_000_000).find(|_| bench.turn() == Turn::Over).expect("it ends");
    assert!(TURN * turns >= END_MAX && TURN * turns < END_MAX + 2 * HOUSEKEEPING_EVERY);
}

#[test]
fn busy_and_sleeping_time_are_counted() {
    let mut bench =
        begin(Idle::Adaptive, Script { busy: 500, can_wake: true, ..Script::default() });
    bench.next_sleep();
    bench.wake_after(Duration::from_millis(20));
    bench.turn();
    let counts = *bench.worker.counts();
    assert_eq!((counts.busy_breaths, counts.packets), (500, 16_000));
    assert_eq!(counts.busy_nanos, 500_000);
    assert!(counts.running_nanos > counts.busy_nanos + counts.asleep_nanos, "{counts:?}");
    assert_eq!((counts.sleeps, counts.asleep_nanos), (1, 20_000_000));
    assert_eq!(bench.counts.read().collect::<Vec<_>>(), [Some(counts)]);
}

const ROLE: &str = "POLLUX_ENGINE_READER";

#[test]
fn another_process_reads_the_counters() {
    let mut bench = begin(Idle::Adaptive, Script { busy: 3, can_wake: true, ..Script::default() });
    bench.next_sleep();
    let fd = bench.counts.as_fd().try_clone_to_owned().unwrap();
    let name = "engine::tests::the_other_process_reads_the_memory";
    let reader = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::from(fd))
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&reader.stdout);
    assert!(output.contains(&format!("{:?}", bench.worker.counts())), "{output}");
    let fd = bench.counts.as_fd().try_clone_to_owned().unwrap();
    let segment = pollux_mem::Segment::from_fd(fd, 1..=1 << 20).unwrap();
    assert!(segment.map().is_err(), "a reader must not map it writable");
    let other = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(CountsSegment::open(other.into()).is_err(), "a file is no shared memory");
    let segment = pollux_mem::Segment::create("other", 4096).unwrap();
    assert!(matches!(CountsSegment::open(segment.into_fd()), Ok(None)));
}

/// The other process.
#[test]
#[expect(clippy::disallowed_methods, reason = "the environment tells the process its role")]
fn the_other_process_reads_the_memory() {
    if std::env::var(ROLE).is_ok() {
        let counts = CountsSegment::open(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
        let counts = counts.unwrap().expect("the counters");
        println!("{:?}", counts.read().next().unwrap().expect("no write is in progress"));
    }
}
