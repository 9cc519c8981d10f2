//! Idle strategies of a worker. The strategy may change at any turn.
//!
//! | strategy | after [`AWAKE`] idle | for |
//! |---|---|---|
//! | [`Idle::Poll`] | polls on | the lowest latency, on a dedicated core |
//! | [`Idle::Pause`] | pauses between breaths | the same, with a sibling hyperthread |
//! | [`Idle::Adaptive`] | sleeps until a device wakes it; yields before | low cost when idle |
//!
//! A device without a descriptor is polled between naps. A nap is at most a sixteenth of the idle
//! time before it, which bounds the added latency; after a long idle time, naps take [`NAP_MAX`].
//!
//! Beside a program that computes, a yield gives the core away for a whole slice of time, and a
//! packet that arrives meanwhile waits. A thread that sleeps runs as soon as it is woken. So after
//! a yield that took long, [`Yields`] refuses more of them for a while, and the worker sleeps.

use pollux_verbs::time::Time;
use std::time::Duration;

/// Polling time after the last busy breath: about a round trip to a peer that has to be woken.
pub const AWAKE: Duration = Duration::from_micros(200);
pub const NAP_MAX: Duration = Duration::from_millis(2);
/// A shorter nap takes as long as this.
const NAP_MIN: Duration = Duration::from_micros(20);
/// The idle time before a nap, in units of the nap.
const NAP_PART: u32 = 16;
pub const SLEEP_MAX: Duration = Duration::from_millis(100);
/// A slice of time takes longer; other threads of ours have handled what they woke for.
const YIELD_MAX: Duration = Duration::from_millis(2);
/// How long no yield follows one that took long.
const NO_YIELD: Duration = Duration::from_millis(100);
/// Spin-loop hints of a pause, 40 to 140 cycles each.
const HINTS: u32 = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Idle {
    Poll = 0,
    Pause = 1,
    #[default]
    Adaptive = 2,
}

impl Idle {
    /// In the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Poll, Self::Pause, Self::Adaptive];

    /// The strategy of a number; the default if there is none.
    pub(super) fn of(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Pause => "pause",
            Self::Adaptive => "adaptive",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|idle| idle.name() == name)
    }
}

/// Whether a thread may yield its core, by what the last yields have cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Yields {
    begun: Option<Time>,
    refused_until: Option<Time>,
}

impl Yields {
    /// Whether to yield now; [`Yields::end`] follows then.
    pub fn begin(&mut self, now: Time) -> bool {
        let is_short = self.refused_until.is_none_or(|until| until <= now);
        self.begun = is_short.then_some(now);
        is_short
    }

    #[inline]
    pub fn end(&mut self, now: Time) {
        if let Some(begun) = self.begun.take()
            && now > begun + YIELD_MAX
        {
            self.refused_until = Some(now + NO_YIELD);
        }
    }
}

/// The length of a sleep after an idle time, at most until the next timer.
pub(super) fn sleep_max(
    is_woken: bool,
    idle_time: Duration,
    now: Time,
    due: Option<Time>,
) -> Duration {
    let longest = match is_woken {
        true => SLEEP_MAX,
        false => (idle_time / NAP_PART).clamp(NAP_MIN, NAP_MAX),
    };
    due.map_or(longest, |due| longest.min(due.since(now)))
}

pub(super) fn pause() {
    (0..HINTS).for_each(|_| std::hint::spin_loop());
}
