//! The state of an own address: duplicate address detection (RFC 4862 5.4).
//!
//! ```text
//!   Tentative --all solicitations sent, no answer------------------------------> Assigned
//!      |     \--the same, briefly--> Unconfirmed --the retransmit timer passes-----^
//!      | another node has it,           | another node has it
//!      v or is probing it               v
//!    (none)                           (none)
//! ```
//!
//! A tentative address is not used: [`Nd`](super::Nd) does not answer for it, and no packet has it
//! as source. An unconfirmed address is used like an assigned one. At a conflict, [`Nd`](super::Nd)
//! keeps an assigned address and reports the conflict, and gives up any other.
//!
//! Why brief detection: a program waits for its address, as with [IPv4](crate::arp). RFC 4862 5.1
//! leaves the count and the interval of solicitations to configuration. Why not optimistic
//! addresses (RFC 4429): such an address may neither be the source of solicitations nor override
//! the cache entries of neighbors. A restarted interface has a new queue pair, so neighbors could
//! not reach it until detection ends.

use crate::arp::{BRIEF_INTERVAL, BRIEF_PROBES};
use pollux_verbs::time::Time;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DadState {
    Tentative {
        sent: u8,
        until: Time,
        is_brief: bool,
    },
    /// In use after brief detection; given up if another node answers late.
    Unconfirmed {
        until: Time,
    },
    Assigned,
}

impl DadState {
    pub const fn is_ours(&self) -> bool {
        matches!(self, Self::Unconfirmed { .. } | Self::Assigned)
    }

    pub(super) const fn due(&self) -> Option<Time> {
        match *self {
            Self::Tentative { until, .. } | Self::Unconfirmed { until } => Some(until),
            Self::Assigned => None,
        }
    }

    /// Handles a timeout: the new state, and whether to send a solicitation.
    pub(super) fn timed_out(self, now: Time, transmits: u8, interval: Duration) -> (Self, bool) {
        match self {
            Self::Tentative { sent, is_brief: true, .. } if sent < BRIEF_PROBES => {
                let until = now + BRIEF_INTERVAL;
                (Self::Tentative { sent: sent + 1, until, is_brief: true }, true)
            }
            Self::Tentative { is_brief: true, .. } => {
                (Self::Unconfirmed { until: now + interval }, false)
            }
            Self::Tentative { sent, .. } if sent < transmits => {
                let until = now + interval;
                (Self::Tentative { sent: sent + 1, until, is_brief: false }, true)
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
        let tentative = |sent, until| DadState::Tentative { sent, until, is_brief: false };
        let brief = |sent, until| DadState::Tentative { sent, until, is_brief: true };
        for (state, after) in [
            (brief(0, now), (brief(1, now + BRIEF_INTERVAL), true)),
            (brief(2, now), (DadState::Unconfirmed { until: now + second }, false)),
            (DadState::Unconfirmed { until: now }, (DadState::Assigned, false)),
            (tentative(0, now), (tentative(1, now + second), true)),
            (tentative(1, now), (tentative(2, now + second), true)),
            (tentative(2, now), (DadState::Assigned, false)),
            (DadState::Assigned, (DadState::Assigned, false)),
        ] {
            assert_eq!(state.timed_out(now, 2, second), after, "{state:?}");
        }
    }
}
