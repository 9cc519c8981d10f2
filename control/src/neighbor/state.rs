//! The state of a neighbor entry: reachability (RFC 4861 7.3), for both families.
//!
//! ```text
//!              Use                 answer
//!    (none) --------> Incomplete ----------> Reachable <------------+
//!       |               |  ^  \--unasked--+    |  time               | answer, or
//!       | its request   |  |              |    v                     | confirmed from above
//!       +---------------|--|--------------+-> Stale --Use--> Delay --+
//!                       |  |                   |               | time
//!        no answer      |  |    no answer      | idle          v
//!                       |  +-------------------|------------ Probe --answer--> Reachable
//!                       v                      v
//!                     Failed --idle-------> (none)
//! ```
//!
//! Why an unanswered Probe leads to Incomplete, where RFC 4861 deletes the entry: a peer with a new
//! QPN does not receive packets to the old one (RFC 4391 9.4), and there is traffic for it, so the
//! request is repeated by multicast. Why Failed, which RFC 4861 does not have: packets to an unused
//! address must not cause a broadcast each. After each failure, the next request waits longer.
//!
//! If another port claims the IP address, the known port is probed a few times before the claim is
//! accepted (Probe with a rival). Why not at once, as in RFC 826 and RFC 4861 7.2.5: a forged
//! announcement would redirect the packets for a neighbor, and end its connections. If an address
//! has moved, as with bonding or a virtual IP, its old port does not answer, and the claim is
//! accepted within half a second. A claim of another queue pair of the same port is accepted at
//! once: the neighbor has restarted (RFC 4391 9.4).
//!
//! Permanent entries are configured and ignore claims.

use super::NeighborConfig;
use crate::bounded::{Backoff, RateLimit};
use crate::link::InterfaceAddress;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State<L = LinkAddress> {
    Incomplete {
        asked: u8,
        /// Periods of the request timer, including those without a request because of the broadcast
        /// limit.
        rounds: u8,
        /// The time of the next request, or of the failure.
        until: Time,
        failures: u32,
    },
    Reachable {
        address: L,
        until: Time,
    },
    Stale {
        address: L,
        /// When the entry is removed if it stays unused; `None`: never.
        until: Option<Time>,
        /// An answer confirmed the address; otherwise it was only claimed.
        is_confirmed: bool,
    },
    Delay {
        address: L,
        /// When the neighbor is probed.
        until: Time,
    },
    Probe {
        address: L,
        asked: u8,
        /// The time of the next request, or of the failure.
        until: Time,
        /// Another port's link address, which claims the IP address.
        rival: Option<L>,
    },
    /// The resolution failed.
    Failed {
        failures: u32,
        /// From this time on, a use starts the next resolution.
        until: Time,
        /// When the entry is removed.
        forget: Time,
    },
    Permanent {
        address: L,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input<L> {
    Use,
    Due,
    Answer {
        address: Option<L>,
        solicited: bool,
        override_cached: bool,
    },
    Request {
        address: L,
    },
    Confirmation,
    /// An upper protocol suspects that the neighbor is unreachable.
    StaleHint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask<L> {
    Everyone,
    At(L),
    /// A broadcast that the broadcast limit delays.
    Later,
}

/// The next state of an entry, or `None` when it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step<L> {
    pub(super) next: Option<State<L>>,
    pub(super) ask: Option<Ask<L>>,
}

impl<L> From<State<L>> for Step<L> {
    fn from(next: State<L>) -> Self {
        Self { next: Some(next), ask: None }
    }
}

impl<L: InterfaceAddress> State<L> {
    pub const fn address(&self) -> Option<L> {
        match *self {
            Self::Incomplete { .. } | Self::Failed { .. } => None,
            Self::Reachable { address, .. }
            | Self::Stale { address, .. }
            | Self::Delay { address, .. }
            | Self::Probe { address, .. }
            | Self::Permanent { address } => Some(address),
        }
    }

    pub const fn due(&self) -> Option<Time> {
        match *self {
            Self::Incomplete { until, .. }
            | Self::Reachable { until, .. }
            | Self::Delay { until, .. }
            | Self::Probe { until, .. } => Some(until),
            Self::Failed { forget, .. } => Some(forget),
            Self::Stale { until, .. } => until,
            Self::Permanent { .. } => None,
        }
    }

    pub const fn name(&self) -> &'static str {
        match self {
            Self::Incomplete { .. } => "incomplete",
            Self::Reachable { .. } => "reachable",
            Self::Stale { .. } => "stale",
            Self::Delay { .. } => "delay",
            Self::Probe { .. } => "probe",
            Self::Failed { .. } => "failed",
            Self::Permanent { .. } => "permanent",
        }
    }

    pub const fn waits_for(&self) -> &'static str {
        match self {
            Self::Incomplete { .. } => "a reply to a multicast request",
            Self::Reachable { .. } => "the end of the reachable time",
            Self::Stale { .. } => "a packet to send",
            Self::Delay { .. } => "a confirmation from an upper protocol",
            Self::Probe { rival: None, .. } => "an answer from the neighbor",
            Self::Probe { rival: Some(_), .. } => {
                "an answer from the neighbor: another one claims its address"
            }
            Self::Failed { .. } => "a packet to send, after a pause",
            Self::Permanent { .. } => "nothing",
        }
    }

    const fn with_address(self, address: L) -> Self {
        match self {
            Self::Reachable { until, .. } => Self::Reachable { address, until },
            Self::Stale { until, is_confirmed, .. } => Self::Stale { address, until, is_confirmed },
            Self::Delay { until, .. } => Self::Delay { address, until },
            Self::Probe { asked, until, rival, .. } => Self::Probe { address, asked, until, rival },
            same => same,
        }
    }

    pub(super) fn after(self, now: Time, input: Input<L>, rules: &mut Rules<'_>) -> Step<L> {
        match (self, input) {
            (Self::Permanent { .. }, _) => self.into(),
            (_, Input::Use) => self.used(now, rules),
            (_, Input::Due) => self.timed_out(now, rules),
            (_, Input::Answer { address, solicited, override_cached }) => match self.address() {
                None => Self::found(now, address, solicited, rules).unwrap_or(self).into(),
                Some(known) => {
                    self.answered(now, known, address, solicited, override_cached, rules)
                }
            },
            (_, Input::Request { address }) => match self.address() {
                Some(known) if known.is_same(&address) => self.with_address(address).into(),
                Some(known) => self.claimed_by(now, known, address, rules),
                None => rules.stale(now, address, false).into(),
            },
            (_, Input::Confirmation) => match self.address() {
                Some(address) => rules.reachable(now, address).into(),
                None => self.into(),
            },
            (
                Self::Reachable { address, .. }
                | Self::Stale { address, .. }
                | Self::Delay { address, .. },
                Input::StaleHint,
            ) => rules.probe(now, address, 0, None),
            (_, Input::StaleHint) => self.into(),
        }
    }

    fn used(self, now: Time, rules: &mut Rules<'_>) -> Step<L> {
        match self {
            Self::Stale { address, .. } => {
                Self::Delay { address, until: now + rules.config.delay_before_probe }.into()
            }
            Self::Failed { failures, until, .. } if now >= until => {
                rules.incomplete(now, 0, 0, failures)
            }
            _ => self.into(),
        }
    }

    fn timed_out(self, now: Time, rules: &mut Rules<'_>) -> Step<L> {
        let config = rules.config;
        match self {
            Self::Incomplete { asked, rounds, failures, .. } => {
                // Requests that the broadcast limit delays do not count as unanswered, but the
                // number of timer periods is limited too.
                let is_over = asked >= config.broadcasts_max
                    || rounds >= config.broadcasts_max.saturating_mul(ROUNDS_PER_BROADCAST);
                match is_over {
                    true => rules.failed(now, failures.saturating_add(1)).into(),
                    false => rules.incomplete(now, asked, rounds, failures),
                }
            }
            Self::Reachable { address, .. } => rules.stale(now, address, true).into(),
            Self::Delay { address, .. } => rules.probe(now, address, 0, None),
            Self::Probe { address, asked, rival, .. } if asked < config.probes_max => {
                rules.probe(now, address, asked, rival)
            }
            Self::Probe { rival: Some(rival), .. } => rules.stale(now, rival, false).into(),
            // The neighbor is unreachable (RFC 4861 7.3.3). With one failure counted, other routers
            // are preferred.
            Self::Probe { rival: None, .. } => rules.incomplete(now, 0, 0, 1),
            Self::Stale { .. } | Self::Failed { .. } => Step { next: None, ask: None },
            Self::Permanent { .. } => self.into(),
        }
    }

    /// The state after the first address of a neighbor (RFC 4861 7.2.5); an answer without an
    /// address is ignored.
    fn found(
        now: Time,
        address: Option<L>,
        solicited: bool,
        rules: &mut Rules<'_>,
    ) -> Option<Self> {
        let address = address?;
        Some(match solicited {
            true => rules.reachable(now, address),
            false => rules.stale(now, address, false),
        })
    }

    /// Handles a claim by another interface: probes the known one, unless both are of one port.
    fn claimed_by(self, now: Time, known: L, rival: L, rules: &mut Rules<'_>) -> Step<L> {
        match self {
            _ if rival.is_same_port(&known) => rules.stale(now, rival, false).into(),
            // The known address is being probed; if it does not answer, the latest rival is
            // accepted.
            Self::Probe { address, asked, until, rival: Some(_) } => {
                Self::Probe { address, asked, until, rival: Some(rival) }.into()
            }
            _ if !rules.contests.take(now) => self.into(),
            _ => rules.probe(now, known, 0, Some(rival)),
        }
    }

    /// Handles an answer for a neighbor with a known address (RFC 4861 7.2.5). Addresses that
    /// differ only in flags count as the same.
    fn answered(
        self,
        now: Time,
        known: L,
        address: Option<L>,
        solicited: bool,
        override_cached: bool,
        rules: &mut Rules<'_>,
    ) -> Step<L> {
        let address = address.unwrap_or(known);
        let is_other = !address.is_same(&known);
        match (is_other, override_cached, solicited) {
            (true, false, _) => match self {
                Self::Reachable { .. } => rules.stale(now, known, true).into(),
                _ => self.into(),
            },
            (true, true, true) if address.is_same_port(&known) => {
                rules.reachable(now, address).into()
            }
            (true, true, _) => self.claimed_by(now, known, address, rules),
            (false, _, true) => rules.reachable(now, address).into(),
            (false, _, false) => self.with_address(address).into(),
        }
    }
}

/// The limit of timer periods per multicast request, because the broadcast limit may delay
/// requests.
const ROUNDS_PER_BROADCAST: u8 = 4;

pub(super) struct Rules<'a> {
    pub(super) config: &'a NeighborConfig,
    pub(super) rng: &'a mut SeededRng,
    pub(super) broadcasts: &'a mut RateLimit,
    pub(super) contests: &'a mut RateLimit,
}

impl Rules<'_> {
    pub(super) fn incomplete<L>(
        &mut self,
        now: Time,
        asked: u8,
        rounds: u8,
        failures: u32,
    ) -> Step<L> {
        let may_ask = self.broadcasts.take(now);
        let next = State::Incomplete {
            asked: asked + u8::from(may_ask),
            rounds: rounds + 1,
            until: now + self.config.retry_after,
            failures,
        };
        Step { next: Some(next), ask: Some(if may_ask { Ask::Everyone } else { Ask::Later }) }
    }

    fn probe<L: Copy>(&mut self, now: Time, address: L, asked: u8, rival: Option<L>) -> Step<L> {
        let config = self.config;
        let is_contest = rival.is_some();
        let after = if is_contest { config.contest_retry_after } else { config.retry_after };
        let until = now + after;
        let next = State::Probe { address, asked: asked + 1, until, rival };
        Step { next: Some(next), ask: Some(Ask::At(address)) }
    }

    /// Randomized to 0.5 to 1.5 times the base, so that entries do not expire together (RFC 4861
    /// 6.3.2).
    fn reachable<L>(&mut self, now: Time, address: L) -> State<L> {
        let base = self.config.reachable_for;
        State::Reachable { address, until: now + base / 2 + self.rng.duration(base) }
    }

    pub(super) fn stale<L>(&mut self, now: Time, address: L, is_confirmed: bool) -> State<L> {
        let until = self.config.idle_for.map(|idle_for| now + idle_for);
        State::Stale { address, until, is_confirmed }
    }

    fn failed<L>(&mut self, now: Time, failures: u32) -> State<L> {
        let backoff = Backoff { min: self.config.pause_min, max: self.config.pause_max };
        let pause = backoff.pause(failures);
        let until = now + pause;
        // Kept as long again as the pause, and at least a second, so that continued sending does
        // not restart the backoff.
        State::Failed { failures, until, forget: until + pause.max(Duration::from_secs(1)) }
    }
}
