//! Forward progress: evidence for the neighbor cache that a peer, and the next hop to it, is still
//! reachable (RFC 4861 7.3.1).
//!
//! A connection makes progress when the peer acknowledges something new, or sends something new:
//! then earlier acknowledgments have arrived. A repetition, or a SYN that anyone can forge, is no
//! progress. A connection reports at most once in [`REPORT_EVERY`], so that a segment costs one
//! comparison of times.

use super::connection::Connection;
use pollux_verbs::time::Time;
use smoltcp::socket::tcp::State;
use std::time::Duration;

/// How often a connection reports progress. Reachability lasts for 15 seconds at least
/// (RFC 4861 10), and the doubt that follows for 5.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Reports that wait to be taken. Those that find no room are made again a second later.
pub(super) const REPORTS_MAX: usize = 256;

impl Connection {
    /// What the peer is to send next, if progress is to be reported now.
    #[inline]
    pub(super) fn before_progress(&self, now: Time) -> Option<u32> {
        (self.progress_due <= now).then(|| self.receive_next())
    }

    /// Whether a segment brought progress, from these first unacknowledged and expected bytes.
    #[cold]
    pub(super) fn has_progressed(&mut self, now: Time, first: u32, expected: u32) -> bool {
        let is_synchronized = !matches!(
            self.state(),
            State::Closed | State::Listen | State::SynSent | State::SynReceived
        );
        let has_moved = self.first() != first || self.receive_next() != expected;
        let has_progressed = is_synchronized && has_moved;
        if has_progressed {
            self.progress_due = now + REPORT_EVERY;
        }
        has_progressed
    }
}
