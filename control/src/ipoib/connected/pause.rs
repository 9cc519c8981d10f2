//! Pauses after failed attempts to connect to a peer.
//!
//! A peer that refuses, does not answer, or ends a new connection may not support what it offers
//! (RFC 4755 8). The pause doubles, and after `attempts_max` such attempts in a row, traffic to it
//! uses datagrams for `give_up_for`. If the queue pair fails or the peer has too many connections,
//! the pause only doubles, up to `pause_max`. The pause ends early when the peer opens a connection
//! or announces itself, but not before `pause_min`.

use super::{Address, Connections, PeerConfig, PeerDrop};
use crate::bounded::Backoff;
use crate::effects::{ConnectionKey, WorkerId};
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::RejectReason;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub why: PeerDrop,
    /// The reason in the peer's REJ, if it sent one.
    pub rej: Option<RejectReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    pub failure: Failure,
    pub since: Time,
    pub until: Time,
    /// Too many attempts were refused, so the pause lasts for `give_up_for`.
    pub has_given_up: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Attempt {
    #[default]
    Idle,
    UnderWay(ConnectionKey),
    Paused(Pause),
}

impl Attempt {
    pub(super) const fn due(self) -> Option<Time> {
        match self {
            Self::Paused(pause) => Some(pause.until),
            Self::Idle | Self::UnderWay(_) => None,
        }
    }
}

impl From<PeerDrop> for Failure {
    fn from(why: PeerDrop) -> Self {
        Self { why, rej: None }
    }
}

impl Failure {
    pub(super) const fn rejected(reason: RejectReason) -> Self {
        Self { why: PeerDrop::Refused, rej: Some(reason) }
    }

    /// Whether the failure suggests that the peer does not support what it offers.
    const fn is_refusal(self) -> bool {
        match (self.why, self.rej) {
            (PeerDrop::QueuePair | PeerDrop::Full, _) => false,
            (_, Some(reason)) => !matches!(
                reason,
                RejectReason::NO_QP | RejectReason::NO_EEC | RejectReason::NO_RESOURCES
            ),
            _ => true,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.why, self.rej) {
            (_, Some(reason)) => match reason.name() {
                Some(name) => write!(f, "REJ {}, {name}", reason.0),
                None => write!(f, "REJ {}", reason.0),
            },
            (PeerDrop::NoResponse, _) => f.write_str("no answer to REQ"),
            (PeerDrop::QueuePair, _) => f.write_str("the queue pair failed"),
            (PeerDrop::PeerEnded, _) => f.write_str("the peer ended it by DREQ"),
            (PeerDrop::BadPrivateData, _) => f.write_str("invalid private data in REP"),
            (PeerDrop::Full, _) => f.write_str("too many connections here"),
            (why, _) => f.write_str(why.name()),
        }
    }
}

impl Pause {
    pub fn text(&self, now: Time) -> String {
        let left = self.until.since(now);
        let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        let attempts = if self.has_given_up {
            "too many connection attempts"
        } else {
            "last connection attempt"
        };
        format!("{attempts} failed ({}), retry in {seconds} s", self.failure)
    }
}

impl Connections {
    /// Pauses attempts, with exponential backoff. If the peer announced itself since the start of
    /// the attempt, the pause ends early: the attempt may have failed because the peer's port went
    /// down and up again.
    pub(super) fn pause(
        &mut self,
        (now, began): (Time, Time),
        (address, worker): (Address, WorkerId),
        failure: Failure,
    ) {
        let PeerConfig { pause_min, pause_max, attempts_max, give_up_for, .. } = self.config;
        let backoff = Backoff { min: pause_min, max: pause_max };
        let heard = self.peers.get(&address).and_then(|peer| peer.last_seen);
        let Some(attempts) = self.attempts_mut(address, worker) else { return };
        attempts.failures = attempts.failures.saturating_add(1);
        attempts.refusals = attempts.refusals.saturating_add(u32::from(failure.is_refusal()));
        let has_given_up = attempts.refusals >= attempts_max;
        let pause = backoff.pause(attempts.failures);
        if has_given_up {
            (attempts.failures, attempts.refusals) = (0, 0);
            self.drops.count(PeerDrop::GaveUp);
        }
        let until = now + if has_given_up { give_up_for } else { pause };
        let pause = Pause { failure, since: now, until, has_given_up };
        self.set_attempt(address, worker, Attempt::Paused(pause));
        if heard.is_some_and(|heard| heard >= began) {
            self.end_pauses(now, address);
        }
    }

    /// Ends the pauses of a peer that announced itself or opened a connection, but not before
    /// `pause_min`, and not those of a peer that was given up.
    pub(super) fn end_pauses(&mut self, now: Time, address: Address) {
        if let Some(peer) = self.peers.get_mut(&address) {
            peer.last_seen = Some(now);
        }
        for worker in self.workers() {
            let Attempt::Paused(pause) = self.attempt(address, worker) else { continue };
            let until = pause.until.min(now.max(pause.since + self.config.pause_min));
            if pause.has_given_up || until == pause.until {
                continue;
            }
            let attempt = match until <= now {
                true => Attempt::Idle,
                false => Attempt::Paused(Pause { until, ..pause }),
            };
            self.set_attempt(address, worker, attempt);
        }
    }

    /// The pause of a worker's attempts to connect to a peer, with its reason and end.
    pub fn pause_of(&self, peer: &LinkAddress, worker: WorkerId) -> Option<Pause> {
        match self.attempt(peer.comparison_form(), worker) {
            Attempt::Paused(pause) => Some(pause),
            Attempt::Idle | Attempt::UnderWay(_) => None,
        }
    }
}
