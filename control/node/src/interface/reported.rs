//! Neighbors whose use, or progress by TCP, a worker reported to control a moment ago.

use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// How often control gets the use of a neighbor: states of neighbors last for seconds.
const USE_EVERY: Duration = Duration::from_millis(100);
/// Reported neighbors that are remembered, at most.
const REPORTED_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Reported {
    neighbors: BTreeSet<IpAddr>,
    until: Time,
}

impl Reported {
    pub(crate) fn is_due(&mut self, now: Time, neighbor: IpAddr) -> bool {
        if self.until <= now {
            self.neighbors.clear();
            self.until = now + USE_EVERY;
        }
        self.neighbors.len() == REPORTED_MAX || self.neighbors.insert(neighbor)
    }
}
