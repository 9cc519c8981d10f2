//! The state of an own address, from configured to held: address conflict detection (RFC 5227).
//!
//! ```text
//!   Probing --no conflict----> Announcing --announced often enough--> Held
//!      |                        ^    |                                |
//!      | conflict     not probed|    +---- conflict: announce again --+--> Held
//!      v                        |    | conflict, not probed or briefly
//!    (none)                  (none) <+
//! ```
//!
//! An address in Probing is not used: ARP does not answer for it, and no packet has it as source.
//! An address that is announced without full probes is given up at a conflict during the
//! announcements. After full probes, or once held, an address is never given up, because clients
//! rely on it; it is defended at most once per interval.
//!
//! Why brief probes: a program waits for its address, and the probes of RFC 5227 take four to seven
//! seconds. A defense arrives within milliseconds: it takes a broadcast, a path query by the holder
//! and a datagram. The announcements detect a holder that answers later or missed the probes.

use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use std::time::Duration;

/// The number of brief probes, and the wait for a defense after each.
pub const BRIEF_PROBES: u8 = 2;
pub const BRIEF_INTERVAL: Duration = Duration::from_millis(20);
const PROBE_WAIT: Duration = Duration::from_secs(1);
const PROBES: u8 = 3;
const PROBE_INTERVAL_MIN: Duration = Duration::from_secs(1);
const PROBE_INTERVAL_SPREAD: Duration = Duration::from_secs(1);
const ANNOUNCE_WAIT: Duration = Duration::from_secs(2);
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
/// The wait before a ceded address is probed again. The random part keeps two nodes that ceded the
/// address to each other from probing at the same time again.
const RETRY_WAIT: Duration = Duration::from_secs(20);
const RETRY_SPREAD: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnState {
    Probing {
        sent: u8,
        until: Time,
        is_brief: bool,
    },
    Announcing {
        sent: u8,
        until: Time,
        /// Full probes found no other node, so a conflict is defended.
        is_alone: bool,
    },
    Held {
        defended: Option<Time>,
    },
}

/// How an address is probed before it is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probes {
    None,
    Brief,
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcdPacket {
    Probe,
    Announcement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    Defend,
    /// The last defense was less than `DEFEND_INTERVAL` ago.
    Ignore,
    Cede,
}

impl OwnState {
    /// The first state of a new address. A random wait before full probes keeps nodes that start
    /// together from probing together.
    pub(super) fn first(now: Time, probes: Probes, rng: &mut SeededRng) -> Self {
        match probes {
            Probes::None => Self::announcing(now, false),
            Probes::Brief => Self::Probing { sent: 0, until: now, is_brief: true },
            Probes::Full => {
                let until = now + rng.duration(PROBE_WAIT);
                Self::Probing { sent: 0, until, is_brief: false }
            }
        }
    }

    /// The first state of an address that was ceded to another node.
    pub(super) fn waiting(now: Time, rng: &mut SeededRng) -> Self {
        let until = now + RETRY_WAIT + rng.duration(RETRY_SPREAD);
        Self::Probing { sent: 0, until, is_brief: false }
    }

    /// The first of the announcing states: the address is in use.
    const fn announcing(now: Time, is_alone: bool) -> Self {
        Self::Announcing { sent: 0, until: now, is_alone }
    }

    pub const fn is_ours(&self) -> bool {
        !matches!(self, Self::Probing { .. })
    }

    pub(super) const fn due(&self) -> Option<Time> {
        match *self {
            Self::Probing { until, .. } | Self::Announcing { until, .. } => Some(until),
            Self::Held { .. } => None,
        }
    }

    pub(super) fn timed_out(self, now: Time, rng: &mut SeededRng) -> (Self, Option<AcdPacket>) {
        match self {
            Self::Probing { sent, is_brief, .. }
                if sent < if is_brief { BRIEF_PROBES } else { PROBES } =>
            {
                let sent = sent + 1;
                let wait = match sent {
                    _ if is_brief => BRIEF_INTERVAL,
                    PROBES => ANNOUNCE_WAIT,
                    _ => PROBE_INTERVAL_MIN + rng.duration(PROBE_INTERVAL_SPREAD),
                };
                let until = now + wait;
                (Self::Probing { sent, until, is_brief }, Some(AcdPacket::Probe))
            }
            Self::Probing { is_brief, .. } => Self::announcing(now, !is_brief).timed_out(now, rng),
            Self::Announcing { sent, is_alone, .. } if sent + 1 < ANNOUNCEMENTS => {
                let (sent, until) = (sent + 1, now + ANNOUNCE_INTERVAL);
                (Self::Announcing { sent, until, is_alone }, Some(AcdPacket::Announcement))
            }
            Self::Announcing { .. } => {
                (Self::Held { defended: None }, Some(AcdPacket::Announcement))
            }
            held @ Self::Held { .. } => (held, None),
        }
    }

    /// Handles a conflict (RFC 5227 2.1.1, 2.4).
    pub(super) fn conflict(&mut self, now: Time) -> Conflict {
        match self {
            Self::Probing { .. } | Self::Announcing { is_alone: false, .. } => Conflict::Cede,
            Self::Held { defended: Some(at) } if now < *at + DEFEND_INTERVAL => Conflict::Ignore,
            Self::Announcing { .. } | Self::Held { .. } => {
                *self = Self::Held { defended: Some(now) };
                Conflict::Defend
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn every_state_and_event() {
        let (now, until) = (Time::START + Duration::from_secs(100), Time::START);
        let late = Some(Time::START + Duration::from_secs(99));
        let states = [
            OwnState::Probing { sent: 0, until, is_brief: false },
            OwnState::Probing { sent: PROBES - 1, until, is_brief: false },
            OwnState::Probing { sent: PROBES, until, is_brief: false },
            OwnState::Probing { sent: 0, until, is_brief: true },
            OwnState::Probing { sent: BRIEF_PROBES, until, is_brief: true },
            OwnState::Announcing { sent: 0, until, is_alone: true },
            OwnState::Announcing { sent: ANNOUNCEMENTS - 1, until, is_alone: true },
            OwnState::Announcing { sent: 0, until, is_alone: false },
            OwnState::Announcing { sent: ANNOUNCEMENTS - 1, until, is_alone: false },
            OwnState::Held { defended: None },
            OwnState::Held { defended: Some(Time::START) },
            OwnState::Held { defended: late },
        ];
        let mut table = String::new();
        for state in states {
            let (after, say) = state.timed_out(now, &mut SeededRng::new(1));
            let mut contested = state;
            let conflict = contested.conflict(now);
            writeln!(table, "{}", short(state, now)).unwrap();
            writeln!(table, "    time: {}, {say:?}", short(after, now)).unwrap();
            writeln!(table, "    conflict: {}, {conflict:?}", short(contested, now)).unwrap();
        }
        assert!(table == include_str!("own.txt"), "{table}");
    }

    /// A state with its times in seconds relative to `now`.
    fn short(state: OwnState, now: Time) -> String {
        let until = |until: Time| match until <= now {
            true => "due".into(),
            false => format!("{:.1} s", until.since(now).as_secs_f32()),
        };
        match state {
            OwnState::Probing { sent, until: at, is_brief } => {
                let how = if is_brief { " briefly" } else { "" };
                format!("probing {sent}{how}, {}", until(at))
            }
            OwnState::Announcing { sent, until: at, is_alone } => {
                let others = if is_alone { "" } else { " to others that may have it" };
                format!("announcing {sent}{others}, {}", until(at))
            }
            OwnState::Held { defended: None } => "held".into(),
            OwnState::Held { defended: Some(at) } => {
                format!("held, defended {} s ago", now.since(at).as_secs())
            }
        }
    }
}
