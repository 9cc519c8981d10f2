//! An address of ours on its way from tentative to assigned: duplicate address detection (RFC 4862
//! 5.4).

use pollux_verbs::time::Time;
use std::time::Duration;

/// How far an address of ours is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnState {
    /// Others are asked whether they have it; nothing is answered or sent for it.
    Tentative {
        /// How often they were.
        sent: u8,
        /// When to go on.
        until: Time,
    },
    /// It is ours.
    Assigned,
}

impl OwnState {
    /// Whether it may be used.
    pub const fn is_ours(&self) -> bool {
        matches!(self, Self::Assigned)
    }

    pub(super) const fn due(&self) -> Option<Time> {
        match *self {
            Self::Tentative { until, .. } => Some(until),
            Self::Assigned => None,
        }
    }

    /// Its time has come: what it is then, and whether to ask the others.
    pub(super) fn timed_out(self, now: Time, transmits: u8, interval: Duration) -> (Self, bool) {
        match self {
            Self::Tentative { sent, .. } if sent < transmits => {
                (Self::Tentative { sent: sent + 1, until: now + interval }, true)
            }
            _ => (Self::Assigned, false),
        }
    }
}
