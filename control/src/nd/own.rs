//! The state of an own address: duplicate address detection (RFC 4862 5.4).
//!
//! ```text
//!   Tentative --all solicitations sent, no answer--> Assigned
//!      |
//!      | another node has it, or is probing it
//!      v
//!    (none)
//! ```
//!
//! A tentative address is not used: no answers, no packets. Conflicts are handled in
//! [`Nd`](super::Nd): a tentative address is given up, an assigned one is kept and reported.

use pollux_verbs::time::Time;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DadState {
    Tentative { sent: u8, until: Time },
    Assigned,
}

impl DadState {
    pub const fn is_ours(&self) -> bool {
        matches!(self, Self::Assigned)
    }

    pub(super) const fn due(&self) -> Option<Time> {
        match *self {
            Self::Tentative { until, .. } => Some(until),
            Self::Assigned => None,
        }
    }

    /// Handles a timeout: the new state, and whether to send a solicitation.
    pub(super) fn timed_out(self, now: Time, transmits: u8, interval: Duration) -> (Self, bool) {
        match self {
            Self::Tentative { sent, .. } if sent < transmits => {
                (Self::Tentative { sent: sent + 1, until: now + interval }, true)
            }
            _ => (Self::Assigned, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_assigned_after_all_solicitations() {
        let (now, second) = (Time::START, Duration::from_secs(1));
        let tentative = |sent, until| DadState::Tentative { sent, until };
        for (state, after) in [
            (tentative(0, now), (tentative(1, now + second), true)),
            (tentative(1, now), (tentative(2, now + second), true)),
            (tentative(2, now), (DadState::Assigned, false)),
            (DadState::Assigned, (DadState::Assigned, false)),
        ] {
            assert_eq!(state.timed_out(now, 2, second), after, "{state:?}");
        }
    }
}
