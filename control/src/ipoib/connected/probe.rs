//! Probes whether a peer still has a connection.
//!
//! An unreliable queue pair continues to send after the peer has restarted, or after the peer's
//! port was down and its DREQ was lost. A reliable queue pair fails, but only after all retries,
//! and what is sent meanwhile is lost. So the CM probes an unreliable connection that sends and
//! does not receive, and either type when the peer announces itself. A probe repeats the message
//! that made the connection (REQ or REP). A peer with the connection answers the repetition (REP or
//! RTU, IBA 12.9.8); a peer without it sends a REJ or a REP for a new connection.
//!
//! ```text
//!   Idle --sent--> Unanswered --probe_after--> Asked --timeout, probes_max times--> (ends)
//!    ^                |  announced: sooner       |
//!    +-- received ----+--- received, answered ---+
//! ```
//!
//! Without an announcement, neither an idle connection nor one that receives is probed. A
//! connection that only sends costs a message and its answer every `probe_after`.
//!
//! Reliable connections to Linux are not probed, because Linux does not answer a repetition.
//! Reliable connections younger than a second are not probed either: these probes would double the
//! messages when many nodes start at the same time.

use super::{Connections, PeerDrop};
use crate::effects::ConnectionKey;
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::ipoib::Dialect;
use std::time::Duration;

/// The interval of probes after announcements, and the number of probes that may come early: a node
/// that starts announces each of its addresses twice.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBES_EARLY_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Probe {
    #[default]
    Idle,
    /// Packets were sent and none received since, or the peer announced itself.
    Unanswered { until: Time },
    /// A probe was sent.
    Asked {
        /// Probes left.
        left: u8,
        until: Time,
    },
}

impl Probe {
    const fn due(self) -> Option<Time> {
        match self {
            Self::Idle => None,
            Self::Unanswered { until } | Self::Asked { until, .. } => Some(until),
        }
    }
}

impl Connections {
    pub(super) fn handle_used(&mut self, now: Time, key: ConnectionKey, has_received: bool) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        connection.used = now;
        match connection.probe {
            _ if has_received => self.set_probe(key, Probe::Idle),
            Probe::Idle if connection.qp_type == QpType::Uc => {
                self.probe_at(key, now + self.config.probe_after);
            }
            _ => {}
        }
    }

    /// Handles an announcement of a peer, which may have restarted: probes its connections, and
    /// ends pauses.
    pub fn handle_announcement(&mut self, now: Time, link: &LinkAddress) {
        let address = link.comparison_form();
        for key in self.all.keys_of_peer(address) {
            self.probe_soon(now, key);
        }
        self.end_pauses(now, address);
    }

    /// Probes a connection that the peer may have lost, now or as soon as the rate allows.
    pub(super) fn probe_soon(&mut self, now: Time, key: ConnectionKey) {
        let Some(connection) = self.all.get(&key) else { return };
        let is_new = now < connection.since + PROBE_INTERVAL;
        if connection.qp_type == QpType::Rc && (is_new || connection.dialect == Dialect::Linux) {
            return;
        }
        let early = PROBE_INTERVAL * PROBES_EARLY_MAX;
        let at = now.max(Time::START + connection.probes_until.since_start().saturating_sub(early));
        match connection.probe {
            Probe::Asked { .. } => {}
            Probe::Unanswered { until } => self.probe_at(key, at.min(until)),
            Probe::Idle => self.probe_at(key, at),
        }
    }

    fn probe_at(&mut self, key: ConnectionKey, until: Time) {
        if self.all.get(&key).is_some_and(|it| it.is_open()) {
            self.set_probe(key, Probe::Unanswered { until });
        }
    }

    pub(super) fn set_probe(&mut self, key: ConnectionKey, probe: Probe) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        let before = std::mem::replace(&mut connection.probe, probe);
        before.due().map(|due| self.probes.remove(&(due, key)));
        probe.due().map(|due| self.probes.insert((due, key)));
    }

    pub(super) fn handle_probes(&mut self, now: Time) {
        while let Some(&(due, key)) = self.probes.first().filter(|(due, _)| *due <= now) {
            self.probes.remove(&(due, key));
            let Some(connection) = self.all.get_mut(&key) else { continue };
            let left = match connection.probe {
                Probe::Asked { left, .. } => left.checked_sub(1),
                _ => self.config.probes_max.checked_sub(1),
            };
            if let Some(left) = left.filter(|_| self.cm.probe(now, key).is_ok()) {
                connection.probes_until = connection.probes_until.max(now) + PROBE_INTERVAL;
                let until = now + self.config.probe_interval;
                self.set_probe(key, Probe::Asked { left, until });
            } else {
                self.suspected.push_back(LinkAddress::parse(&connection.peer));
                self.end(now, key, PeerDrop::NoResponse);
            }
        }
    }

    /// The next peer that does not answer CM messages: its link address may have changed (RFC 4391
    /// 9.4).
    pub fn poll_suspected(&mut self) -> Option<LinkAddress> {
        self.suspected.pop_front()
    }
}
