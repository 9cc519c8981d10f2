//! Detects neighbors that have left for good and neighbors that have moved, for the TCP connections
//! to them.
//!
//! TCP runs in the application's process, so a killed process sends no reset, and its peers would
//! wait for their user timeout. Two signs show that the port of the process has left the subnet:
//! the SA reports the GID out of service (IBA 13.4.8.2, trap 65), or has no path to it.
//!
//! ```text
//!   trap 65 --> the neighbors at the port are probed --no answer--> unresponsive
//!   unresponsive, and trap 65 or no path --> gone
//!   found anew, another link address, or an announcement --> moved
//! ```
//!
//! Why it is not enough that a neighbor is unresponsive: a process that is stopped or busy does not
//! answer either, and continues later. Why trap 65 alone is not enough: if a port is back before
//! three probes have failed, it is the same neighbor with the same connections.

use super::IpoibInterface;
use crate::bounded::RateLimit;
use pollux_verbs::time::Time;
use pollux_wire::address::Gid;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// Reports of moved neighbors per second, in total. Anyone on the link can send announcements, and
/// each report makes TCP probe all connections to the neighbor.
const MOVES_PER_SECOND_MAX: u32 = 64;

/// A change of a neighbor that matters to the connections to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighborChange {
    /// The neighbor does not answer, and its port has left the subnet.
    Gone(IpAddr),
    /// The neighbor may have restarted: it did not answer for a while, has another link address, or
    /// has announced itself.
    Moved(IpAddr),
}

pub(super) struct OutOfService {
    is_watched: bool,
    /// The SA has accepted the subscription to departures since the interface came up.
    is_told: bool,
    moves: RateLimit,
    /// Neighbors that no longer answer, with the GID of their last port.
    unresponsive: BTreeMap<IpAddr, Gid>,
    changes: VecDeque<NeighborChange>,
}

impl Default for OutOfService {
    fn default() -> Self {
        Self {
            is_watched: false,
            is_told: false,
            moves: RateLimit::new(MOVES_PER_SECOND_MAX, MOVES_PER_SECOND_MAX),
            unresponsive: BTreeMap::new(),
            changes: VecDeque::new(),
        }
    }
}

impl OutOfService {
    pub(super) const fn is_watched(&self) -> bool {
        self.is_watched
    }

    pub(super) const fn handle_up(&mut self) {
        self.is_told = false;
    }

    /// Handles a neighbor that has another link address, or has announced itself.
    pub(super) fn handle_moved(&mut self, now: Time, ip: IpAddr) {
        if self.is_watched && self.moves.take(now) {
            self.changes.push_back(NeighborChange::Moved(ip));
        }
    }

    /// Handles a resolved neighbor. If it was unresponsive before, it may have restarted.
    pub(super) fn handle_resolved(&mut self, now: Time, ip: IpAddr) {
        if self.unresponsive.remove(&ip).is_some() {
            self.handle_moved(now, ip);
        }
    }

    pub(super) fn handle_forgotten(&mut self, ip: IpAddr) {
        self.unresponsive.remove(&ip);
    }

    /// Handles a port that has left the subnet: its unresponsive neighbors are gone.
    pub(super) fn handle_departure(&mut self, gid: Gid) {
        let gone: Vec<_> = self.unresponsive.extract_if(.., |_, port| *port == gid).collect();
        if self.is_watched {
            self.changes.extend(gone.into_iter().map(|(ip, _)| NeighborChange::Gone(ip)));
        }
    }
}

impl IpoibInterface {
    /// Starts to report neighbors that are gone or have moved.
    pub fn watch_neighbors(&mut self, now: Time) {
        self.out_of_service.is_watched = true;
        if self.is_up() {
            self.subscribe(now);
        }
        self.pump(now);
    }

    /// The next change. The caller polls until `None`, because the queue has no limit; there are
    /// only a few changes for each neighbor.
    pub fn poll_neighbor_change(&mut self) -> Option<NeighborChange> {
        self.out_of_service.changes.pop_front()
    }

    /// Handles a neighbor that no longer answers. An SA query, sent even if the last one has just
    /// failed, finds whether the port is still in the subnet.
    pub(super) fn handle_unresponsive(&mut self, now: Time, ip: IpAddr, gid: Gid) {
        self.out_of_service.unresponsive.insert(ip, gid);
        self.ask_path(now, gid);
    }

    /// Handles the SA's consent to report departures. Known neighbors may have left before, so each
    /// is probed once.
    pub(super) fn handle_departures_reported(&mut self, now: Time) {
        if !std::mem::replace(&mut self.out_of_service.is_told, true) {
            for ip in self.peers.all.values().flat_map(|peer| &peer.ips) {
                self.neighbors.handle_stale_hint(now, *ip);
            }
        }
    }

    /// Handles the SA's report that a port is out of service: its neighbors are probed, and those
    /// that are unresponsive already are gone.
    pub(super) fn handle_gid_out_of_service(&mut self, now: Time, gid: Gid) {
        self.out_of_service.handle_departure(gid);
        let peers = self.peers.all.values().filter(|peer| peer.link.gid == gid);
        for ip in peers.flat_map(|peer| &peer.ips) {
            self.neighbors.handle_stale_hint(now, *ip);
        }
        self.refresh_path(now, gid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_reported_at_a_limited_rate_and_not_without_a_watch() {
        let ip = IpAddr::from([10, 0, 0, 2]);
        let second = std::time::Duration::from_secs(1);
        for is_watched in [false, true] {
            let mut ports = OutOfService { is_watched, ..OutOfService::default() };
            for turn in 1..=3 {
                for _ in 0..1000 {
                    ports.handle_moved(Time::START + second * turn, ip);
                }
                let reports = std::mem::take(&mut ports.changes).len();
                assert_eq!(reports, if is_watched { MOVES_PER_SECOND_MAX as usize } else { 0 });
            }
        }
    }
}
