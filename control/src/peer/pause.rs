//! How long a peer is not asked for a connection after an attempt failed, and why it did.
//!
//! A peer that refuses, does not answer, or ends what it has just accepted may offer what it does
//! not keep (RFC 4755 8): the pause doubles, and after `attempts_max` such attempts in a row its
//! traffic goes by datagram for `give_up_for`. A peer whose CM answered but whose queue pair fails,
//! or that says that it is full, is honest and slow: there the pause doubles up to `pause_max`, and
//! nothing is given up. The pause ends early when the peer is heard: when it asks for a connection
//! itself, or announces itself. Even so there are `pause_min` between two attempts.

use super::lane::Attempt;
use super::{Address, Connections, PeerConfig, PeerDrop};
use crate::interface::Worker;
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::RejectReason;
use std::fmt;

/// What an attempt at a connection came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why there is no connection.
    pub why: PeerDrop,
    /// What the peer's REJ said, if it sent one.
    pub rej: Option<RejectReason>,
}

/// Why and until when a peer is not asked for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// What the last attempt came to.
    pub failure: Failure,
    /// When that was.
    pub since: Time,
    /// When the peer may be asked again.
    pub until: Time,
    /// So many attempts failed that traffic goes by datagram for long.
    pub has_given_up: bool,
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

    /// Whether it is what a peer does that offers what it does not keep.
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
            (PeerDrop::Silence, _) => f.write_str("no answer to REQ"),
            (PeerDrop::QueuePair, _) => f.write_str("the queue pair failed"),
            (PeerDrop::PeerEnded, _) => f.write_str("the peer ended it by DREQ"),
            (PeerDrop::BadPrivateData, _) => f.write_str("the private data of REP make no sense"),
            (PeerDrop::Full, _) => f.write_str("too many connections here"),
            (why, _) => f.write_str(crate::drops::Reason::name(why)),
        }
    }
}

impl Pause {
    /// What there is to say of it to people.
    pub fn text(&self, now: Time) -> String {
        let left = self.until.since_start().saturating_sub(now.since_start());
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
    /// Nobody asks the peer for a while, the longer the more attempts failed in a row.
    /// What was heard of the peer since the attempt began counts as if it were heard now: that its
    /// port went down and up again may be why the attempt failed.
    pub(super) fn pause(
        &mut self,
        (now, began): (Time, Time),
        (address, worker): (Address, Worker),
        failure: Failure,
    ) {
        let PeerConfig { pause_min, pause_max, attempts_max, give_up_for, .. } = self.config;
        let heard = self.peers.get(&address).and_then(|peer| peer.heard);
        let Some(lane) = self.lane_mut(address, worker) else { return };
        lane.failures = lane.failures.saturating_add(1);
        lane.refusals = lane.refusals.saturating_add(u32::from(failure.is_refusal()));
        let has_given_up = lane.refusals >= attempts_max;
        let doubled = pause_min.saturating_mul(1 << (lane.failures - 1).min(16));
        if has_given_up {
            (lane.failures, lane.refusals) = (0, 0);
            self.drops.count(PeerDrop::GaveUp);
        }
        let until = now + if has_given_up { give_up_for } else { doubled.min(pause_max) };
        let pause = Pause { failure, since: now, until, has_given_up };
        self.set_attempt(address, worker, Attempt::Paused(pause));
        if heard.is_some_and(|heard| heard >= began) {
            self.end_pauses(now, address);
        }
    }

    /// The peer was heard: it may be asked again, unless that was given up.
    pub(super) fn end_pauses(&mut self, now: Time, address: Address) {
        if let Some(peer) = self.peers.get_mut(&address) {
            peer.heard = Some(now);
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

    /// Why a peer is not asked for a connection of a worker now, and until when.
    pub fn pause_of(&self, peer: &LinkAddress, worker: Worker) -> Option<Pause> {
        match self.attempt(peer.comparison_form(), worker) {
            Attempt::Paused(pause) => Some(pause),
            Attempt::Idle | Attempt::UnderWay(_) => None,
        }
    }
}
