//! Limits the rate of a worker's reports to control about the use of neighbors, or TCP progress.

use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// Interval of reports about one neighbor. The states of neighbors last for seconds.
const USE_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of neighbors that are remembered. Beyond it, every report is sent.
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
