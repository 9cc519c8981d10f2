//! How a worker rests: a value, which may be another one at any turn.
//!
//! | strategy | after [`AWAKE`] without anything to do | for |
//! |---|---|---|
//! | [`Idle::Poll`] | it goes on | the lowest latency, on a core that nobody else wants |
//! | [`Idle::Pause`] | a moment between breaths | the same, with a sibling on the same core |
//! | [`Idle::Adaptive`] | it sleeps until something comes | a node that costs little when idle |
//!
//! A device that wakes nobody (an adapter in software has nothing that would) is looked at in naps.
//! None is longer than a sixteenth of the silence before it: so what comes after a silence comes at
//! most that much later, and a node that was idle for long naps [`NAP_MAX`] at a time.

use super::time_between;
use pollux_verbs::time::Time;
use std::time::Duration;

/// How long a worker polls after it last had something to do. To be woken costs about as much.
pub const AWAKE: Duration = Duration::from_micros(100);
/// The longest nap.
pub const NAP_MAX: Duration = Duration::from_millis(2);
/// The shortest: a shorter one takes as long.
const NAP_MIN: Duration = Duration::from_micros(20);
/// A nap's part of the silence before it.
const NAP_PART: u32 = 16;
/// The longest sleep from which a device wakes: commands do not.
pub const SLEEP_MAX: Duration = Duration::from_millis(50);
/// A pause: so many hints to the core, some 40 to 140 cycles each.
const HINTS: u32 = 8;

/// A strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Idle {
    /// It polls, whatever that costs.
    Poll = 0,
    /// It polls with pauses.
    Pause = 1,
    /// It polls, and then sleeps.
    #[default]
    Adaptive = 2,
}

impl Idle {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Poll, Self::Pause, Self::Adaptive];

    /// The strategy of this number; the gentlest if there is none.
    pub(super) fn of(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Pause => "pause",
            Self::Adaptive => "adaptive",
        }
    }

    /// The strategy of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|idle| idle.name() == name)
    }
}

/// How long to sleep after so long a silence: not beyond what is due.
pub(super) fn sleep_max(
    is_woken: bool,
    silent: Duration,
    now: Time,
    due: Option<Time>,
) -> Duration {
    let longest = match is_woken {
        true => SLEEP_MAX,
        false => (silent / NAP_PART).clamp(NAP_MIN, NAP_MAX),
    };
    due.map_or(longest, |due| longest.min(time_between(now, due)))
}

/// A moment for the sibling.
pub(super) fn pause() {
    (0..HINTS).for_each(|_| std::hint::spin_loop());
}
