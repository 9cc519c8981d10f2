//! The idle strategies of a worker. The strategy may change at any turn.
//!
//! | strategy | after [`AWAKE`] idle | for |
//! |---|---|---|
//! | [`Idle::Poll`] | polls on | the lowest latency, on a dedicated core |
//! | [`Idle::Pause`] | pauses between breaths | the same, with a sibling hyperthread |
//! | [`Idle::Adaptive`] | sleeps until a device wakes it; yields before | low cost when idle |
//!
//! A device without a wake-up descriptor is polled between naps. A nap takes at most a sixteenth of
//! the idle time before it, which bounds the added latency. After a long idle time, naps take
//! [`NAP_MAX`].
//!
//! On a core shared with a computing program, a yield gives the core away for a whole time slice,
//! and a packet that arrives meanwhile waits. In contrast, a sleeping thread runs as soon as it is
//! woken. So after a yield that took long, [`Yields`] refuses further ones for a while, and the
//! worker sleeps.

use pollux_verbs::time::Time;
use std::time::Duration;

/// How long a worker keeps polling after the last busy breath: about a round trip to a peer that
/// has to be woken.
pub const AWAKE: Duration = Duration::from_micros(200);
pub const NAP_MAX: Duration = Duration::from_millis(2);
/// The shortest nap: the kernel takes this long for a shorter one, too.
const NAP_MIN: Duration = Duration::from_micros(20);
/// The ratio of the idle time before a nap to the nap.
const NAP_PART: u32 = 16;
pub const SLEEP_MAX: Duration = Duration::from_millis(100);
/// The longest yield that is not taken for the time slice of another program. Other threads of ours
/// finish what they woke for within this time.
const YIELD_MAX: Duration = Duration::from_millis(2);
/// How long yields are refused after one that took long.
const NO_YIELD: Duration = Duration::from_millis(100);
/// The number of spin-loop hints of a pause, of 40 to 140 cycles each.
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
    /// All strategies, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Poll, Self::Pause, Self::Adaptive];

    /// The strategy with this number; the default if there is none.
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

/// Decides whether a thread may yield its core, by the time that the last yields took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Yields {
    begun: Option<Time>,
    refused_until: Option<Time>,
}

impl Yields {
    /// Whether to yield now. If so, the caller calls [`Yields::end`] after the yield.
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

/// The maximum length of a sleep after this idle time. It ends at the next timer at the latest.
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
