//! An address of ours on its way from wished to held (RFC 5227).
//!
//! ```text
//!   Probing --nobody has it--> Announcing --said often enough--> Held
//!      |                            |                             |
//!      +---------- conflict --------+---- conflict, if we cede ---+--> (none)
//! ```
//!
//! While it is probed it is not ours: nothing is answered or sent for it. One that is held is
//! defended once in a while, and either kept (a server must stay where its clients look) or ceded.

use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use std::time::Duration;

const PROBE_WAIT: Duration = Duration::from_secs(1);
const PROBES: u8 = 3;
const PROBE_INTERVAL_MIN: Duration = Duration::from_secs(1);
const PROBE_INTERVAL_SPREAD: Duration = Duration::from_secs(1);
const ANNOUNCE_WAIT: Duration = Duration::from_secs(2);
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// How far an address of ours is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnState {
    /// Others are asked whether they have it.
    Probing {
        /// How often they were.
        sent: u8,
        /// When to go on.
        until: Time,
    },
    /// Others are told.
    Announcing {
        /// How often they were.
        sent: u8,
        /// When to go on.
        until: Time,
    },
    /// It is ours.
    Held {
        /// When it was defended last.
        defended: Option<Time>,
    },
}

/// What to say about an address when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    Probe,
    Announcement,
}

/// What a conflict comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// It was ours: say so again.
    Defend,
    /// Said lately; nothing.
    Bear,
    /// It is not ours, or not any more.
    Cede,
}

impl OwnState {
    /// Begins with a random wait, so that nodes that start together do not ask together.
    pub(super) fn probing(now: Time, rng: &mut SeededRng) -> Self {
        Self::Probing { sent: 0, until: now + rng.duration(PROBE_WAIT) }
    }

    pub(super) const fn announcing(now: Time) -> Self {
        Self::Announcing { sent: 0, until: now }
    }

    /// Whether it may be used.
    pub const fn is_ours(&self) -> bool {
        !matches!(self, Self::Probing { .. })
    }

    pub(super) const fn due(&self) -> Option<Time> {
        match *self {
            Self::Probing { until, .. } | Self::Announcing { until, .. } => Some(until),
            Self::Held { .. } => None,
        }
    }

    /// Its time has come: what it is then, and what to say.
    pub(super) fn timed_out(self, now: Time, rng: &mut SeededRng) -> (Self, Option<Say>) {
        match self {
            Self::Probing { sent, .. } if sent < PROBES => {
                let sent = sent + 1;
                let wait = match sent {
                    PROBES => ANNOUNCE_WAIT,
                    _ => PROBE_INTERVAL_MIN + rng.duration(PROBE_INTERVAL_SPREAD),
                };
                (Self::Probing { sent, until: now + wait }, Some(Say::Probe))
            }
            Self::Probing { .. } => Self::announcing(now).timed_out(now, rng),
            Self::Announcing { sent, .. } if sent + 1 < ANNOUNCEMENTS => {
                let until = now + ANNOUNCE_INTERVAL;
                (Self::Announcing { sent: sent + 1, until }, Some(Say::Announcement))
            }
            Self::Announcing { .. } => (Self::Held { defended: None }, Some(Say::Announcement)),
            held @ Self::Held { .. } => (held, None),
        }
    }

    /// Somebody else has it too (RFC 5227 2.1.1, 2.4).
    pub(super) fn conflict(&mut self, now: Time, cedes: bool) -> Conflict {
        match self {
            Self::Probing { .. } => Conflict::Cede,
            Self::Held { defended: Some(at) } if now < *at + DEFEND_INTERVAL => {
                if cedes {
                    Conflict::Cede
                } else {
                    Conflict::Bear
                }
            }
            Self::Announcing { .. } | Self::Held { .. } => {
                *self = Self::Held { defended: Some(now) };
                Conflict::Defend
            }
        }
    }
}
