//! What is known of one neighbor, and how that changes: reachability as RFC 4861 7.3 has it, for
//! both families.
//!
//! ```text
//!              Use                 answer
//!    (none) --------> Incomplete ----------> Reachable <------------+
//!       |               |  ^  \--unasked--+    |  time               | answer, or
//!       | mention       |  |              |    v                     | confirmed from above
//!       +---------------|--|--------------+-> Stale --Use--> Delay --+
//!                       |  |                   |               | time
//!        nobody answers |  |    no answer      | idle          v
//!                       |  +-------------------|------------ Probe --answer--> Reachable
//!                       v                      v
//!                     Failed --idle-------> (none)
//! ```
//!
//! Why a Probe without an answer asks everyone, where RFC 4861 has the entry deleted: a peer whose
//! queue pair number changed does not hear what goes to the old one (RFC 4391 9.4), and traffic is
//! waiting. Why Failed, which RFC 4861 has not: an address that nobody has must not cost a
//! broadcast for every packet to it, so the next question waits longer each time.
//!
//! Another port says that it has the address: the known one is asked, soon and a few times, before
//! that is believed (Probe with a rival). Why not at once, as RFC 826 and RFC 4861 7.2.5 would have
//! it: a forged announcement would take a neighbor's packets, and end its connections. An address
//! that moves, as with bonding or a virtual IP, is not answered for at its old port, and so moves
//! within half a second. Another queue pair of the same port is believed at once: that is a
//! neighbor that began anew (RFC 4391 9.4).
//!
//! Permanent entries were configured and hear nobody.

use super::NeighborConfig;
use crate::bounded::Rate;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use std::time::Duration;

/// What is known of a neighbor, with the moments at which that changes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Everyone was asked; packets wait.
    Incomplete {
        /// How often everyone was asked.
        asked: u8,
        /// How often the time to ask came, also when others had used up what may be broadcast.
        rounds: u8,
        /// When to ask again or give up.
        until: Time,
        /// How often in a row nobody answered.
        failures: u32,
    },
    /// It answered, or something above heard from it.
    Reachable {
        /// Where.
        address: LinkAddress,
        /// How long that counts.
        until: Time,
    },
    /// It was there once, and nobody sent since.
    Stale {
        /// Where.
        address: LinkAddress,
        /// When it is forgotten, unless it is used; without that, never.
        until: Option<Time>,
        /// It was heard to be there when it was asked, and did not only say so.
        is_confirmed: bool,
    },
    /// It is used again, and something above may yet hear from it.
    Delay {
        /// Where.
        address: LinkAddress,
        /// When it is asked whether it is still there.
        until: Time,
    },
    /// It was asked whether it is still there.
    Probe {
        /// Where.
        address: LinkAddress,
        /// How often it was asked.
        asked: u8,
        /// When to ask again or give up.
        until: Time,
        /// Who says that it has the address now.
        rival: Option<LinkAddress>,
    },
    /// Nobody answered. Until some time nobody is asked again.
    Failed {
        /// How often in a row.
        failures: u32,
        /// When asking makes sense again.
        until: Time,
        /// When it is forgotten.
        forget: Time,
    },
    /// It was configured.
    Permanent {
        /// Where.
        address: LinkAddress,
    },
}

/// What can happen to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Somebody sends to it.
    Use,
    /// The time of its state is over.
    Due,
    /// It says who it is, because it was asked or because it changed.
    Answer { address: Option<LinkAddress>, solicited: bool, override_cached: bool },
    /// It asked something and said who it is.
    Mention { address: LinkAddress },
    /// Something above heard from it, which it could not have without hearing us.
    Confirmation,
    /// Something above has doubts.
    Suspicion,
}

/// Whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Everyone,
    At(LinkAddress),
    /// Everyone, when that may be again.
    Later,
}

/// What becomes of an entry: its next state, or none when it is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) next: Option<State>,
    pub(super) ask: Option<Ask>,
}

impl From<State> for Step {
    fn from(next: State) -> Self {
        Self { next: Some(next), ask: None }
    }
}

impl State {
    /// Where the neighbor is, as far as is known.
    pub const fn address(&self) -> Option<LinkAddress> {
        match *self {
            Self::Incomplete { .. } | Self::Failed { .. } => None,
            Self::Reachable { address, .. }
            | Self::Stale { address, .. }
            | Self::Delay { address, .. }
            | Self::Probe { address, .. }
            | Self::Permanent { address } => Some(address),
        }
    }

    /// When something happens to it by itself.
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

    /// Its name.
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

    /// What it waits for.
    pub const fn waits_for(&self) -> &'static str {
        match self {
            Self::Incomplete { .. } => "an answer to everyone's question",
            Self::Reachable { .. } => "doubt by the clock",
            Self::Stale { .. } => "a packet to send",
            Self::Delay { .. } => "a confirmation from above",
            Self::Probe { rival: None, .. } => "an answer from the neighbor",
            Self::Probe { rival: Some(_), .. } => {
                "an answer from the neighbor, whose address another one claims"
            }
            Self::Failed { .. } => "a packet to send, after a pause",
            Self::Permanent { .. } => "nothing",
        }
    }

    const fn with_address(self, address: LinkAddress) -> Self {
        match self {
            Self::Reachable { until, .. } => Self::Reachable { address, until },
            Self::Stale { until, is_confirmed, .. } => Self::Stale { address, until, is_confirmed },
            Self::Delay { until, .. } => Self::Delay { address, until },
            Self::Probe { asked, until, rival, .. } => Self::Probe { address, asked, until, rival },
            same => same,
        }
    }

    /// What becomes of it.
    pub(super) fn after(self, now: Time, input: Input, rules: &mut Rules<'_>) -> Step {
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
            (_, Input::Mention { address }) => match self.address() {
                Some(known) if known.is_same_interface(&address) => {
                    self.with_address(address).into()
                }
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
                Input::Suspicion,
            ) => rules.probe(now, address, 0, None),
            (_, Input::Suspicion) => self.into(),
        }
    }

    fn used(self, now: Time, rules: &mut Rules<'_>) -> Step {
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

    fn timed_out(self, now: Time, rules: &mut Rules<'_>) -> Step {
        let config = rules.config;
        match self {
            Self::Incomplete { asked, rounds, failures, .. } => {
                // Broadcasts that others used up are no fault of the neighbor, but there is an
                // end to waiting for them too.
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
            Self::Probe { rival: None, .. } => rules.incomplete(now, 0, 0, 0),
            Self::Stale { .. } | Self::Failed { .. } => Step { next: None, ask: None },
            Self::Permanent { .. } => self.into(),
        }
    }

    /// The first address of a neighbor (RFC 4861 7.2.5): one without is no answer.
    fn found(
        now: Time,
        address: Option<LinkAddress>,
        solicited: bool,
        rules: &mut Rules<'_>,
    ) -> Option<Self> {
        let address = address?;
        Some(match solicited {
            true => rules.reachable(now, address),
            false => rules.stale(now, address, false),
        })
    }

    /// Another interface says that it has the address. The known one is asked, unless both are one
    /// port's.
    fn claimed_by(
        self,
        now: Time,
        known: LinkAddress,
        rival: LinkAddress,
        rules: &mut Rules<'_>,
    ) -> Step {
        match self {
            _ if rival.gid == known.gid => rules.stale(now, rival, false).into(),
            // The question is under way; the last who claims it gets it.
            Self::Probe { address, asked, until, rival: Some(_) } => {
                Self::Probe { address, asked, until, rival: Some(rival) }.into()
            }
            _ if !rules.contests.take(now) => self.into(),
            _ => rules.probe(now, known, 0, Some(rival)),
        }
    }

    /// An answer where an address is known already (RFC 4861 7.2.5). Other flags of the same
    /// interface are no other address.
    fn answered(
        self,
        now: Time,
        known: LinkAddress,
        address: Option<LinkAddress>,
        solicited: bool,
        override_cached: bool,
        rules: &mut Rules<'_>,
    ) -> Step {
        let address = address.unwrap_or(known);
        let is_other = !address.is_same_interface(&known);
        match (is_other, override_cached, solicited) {
            (true, false, _) => match self {
                Self::Reachable { .. } => rules.stale(now, known, true).into(),
                _ => self.into(),
            },
            (true, true, true) if address.gid == known.gid => rules.reachable(now, address).into(),
            (true, true, _) => self.claimed_by(now, known, address, rules),
            (false, _, true) => rules.reachable(now, address).into(),
            (false, _, false) => self.with_address(address).into(),
        }
    }
}

/// How often the time to ask may come for each time that everyone is asked.
const ROUNDS_PER_BROADCAST: u8 = 4;

/// What states are made by.
pub(super) struct Rules<'a> {
    pub(super) config: &'a NeighborConfig,
    pub(super) rng: &'a mut SeededRng,
    pub(super) broadcasts: &'a mut Rate,
    pub(super) contests: &'a mut Rate,
}

impl Rules<'_> {
    /// Asks everyone, if that may be now.
    pub(super) fn incomplete(&mut self, now: Time, asked: u8, rounds: u8, failures: u32) -> Step {
        let may_ask = self.broadcasts.take(now);
        let next = State::Incomplete {
            asked: asked + u8::from(may_ask),
            rounds: rounds + 1,
            until: now + self.config.retry_after,
            failures,
        };
        Step { next: Some(next), ask: Some(if may_ask { Ask::Everyone } else { Ask::Later }) }
    }

    fn probe(
        &mut self,
        now: Time,
        address: LinkAddress,
        asked: u8,
        rival: Option<LinkAddress>,
    ) -> Step {
        let config = self.config;
        let is_contest = rival.is_some();
        let after = if is_contest { config.contest_retry_after } else { config.retry_after };
        let until = now + after;
        let next = State::Probe { address, asked: asked + 1, until, rival };
        Step { next: Some(next), ask: Some(Ask::At(address)) }
    }

    /// For half to one and a half times the base, so that neighbors do not doubt in step
    /// (RFC 4861 6.3.2).
    fn reachable(&mut self, now: Time, address: LinkAddress) -> State {
        let base = self.config.reachable_for;
        State::Reachable { address, until: now + base / 2 + self.rng.duration(base) }
    }

    pub(super) fn stale(&mut self, now: Time, address: LinkAddress, is_confirmed: bool) -> State {
        let until = self.config.idle_for.map(|idle_for| now + idle_for);
        State::Stale { address, until, is_confirmed }
    }

    fn failed(&mut self, now: Time, failures: u32) -> State {
        let config = self.config;
        let doubled = config.pause_min.saturating_mul(1 << (failures - 1).min(16));
        let pause = doubled.min(config.pause_max);
        let until = now + pause;
        // Remembered for twice the pause, so that whoever goes on sending is not asked for anew.
        State::Failed { failures, until, forget: until + pause.max(Duration::from_secs(1)) }
    }
}
