//! Probes whether the peer of an unreliable connection still has it.
//!
//! A reliable queue pair fails when the other end is gone. An unreliable one continues to send
//! after the peer has restarted, or after its port was down and its DREQ was lost. So the CM probes
//! it by a repetition of the message that made the connection (REQ or REP). A peer with the
//! connection answers the repetition (REP or RTU, IBA 12.9.8); one without it sends a REJ or a new
//! REQ.
//!
//! ```text
//!   Idle --sent--> Unanswered --probe_after--> Asked --timeout, probes_max times--> (ends)
//!    ^                |  announced: sooner       |
//!    +-- received ----+--- received, answered ---+
//! ```
//!
//! An idle connection is never probed, nor is one that receives. One that only sends costs a
//! message and its answer every `probe_after`.

use super::{Connections, PeerDrop};
use crate::effects::ConnectionKey;
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use std::time::Duration;

/// The least time between two probes after announcements.
const PROBE_INTERVAL_MIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Probe {
    #[default]
    Idle,
    /// Packets were sent and none received since; or the peer announced itself.
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
            Probe::Idle => self.probe_at(key, now + self.config.probe_after),
            Probe::Unanswered { .. } | Probe::Asked { .. } => {}
        }
    }

    /// The peer has announced itself: it may have restarted.
    pub fn handle_announcement(&mut self, now: Time, link: &LinkAddress) {
        let address = link.comparison_form();
        for key in self.all.keys_of_peer(address) {
            self.probe_soon(now, key);
        }
        self.end_pauses(now, address);
    }

    /// Probes a connection that the peer may have forgotten, now or as soon as the interval allows.
    pub(super) fn probe_soon(&mut self, now: Time, key: ConnectionKey) {
        let Some(connection) = self.all.get(&key) else { return };
        let at = now.max(connection.probed + PROBE_INTERVAL_MIN);
        match connection.probe {
            Probe::Asked { .. } => {}
            Probe::Unanswered { until } => self.probe_at(key, at.min(until)),
            Probe::Idle => self.probe_at(key, at),
        }
    }

    fn probe_at(&mut self, key: ConnectionKey, until: Time) {
        let is_probed =
            self.all.get(&key).is_some_and(|known| known.qp_type == QpType::Uc && known.is_open());
        if is_probed {
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
                connection.probed = now;
                let until = now + self.config.probe_interval;
                self.set_probe(key, Probe::Asked { left, until });
            } else {
                self.suspected.push_back(LinkAddress::parse(&connection.peer));
                self.end(now, key, PeerDrop::Silence);
            }
        }
    }

    /// The next peer that does not answer CM messages: its address may have changed (RFC 4391 9.4).
    pub fn poll_suspected(&mut self) -> Option<LinkAddress> {
        self.suspected.pop_front()
    }
}
