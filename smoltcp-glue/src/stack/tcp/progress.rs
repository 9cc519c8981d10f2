//! Forward progress: evidence for the neighbor cache that a peer, and the next hop to it, is still
//! reachable (RFC 4861 7.3.1).
//!
//! A connection makes progress when the peer acknowledges new data, or sends new data, which shows
//! that earlier acknowledgments have arrived. A repeated segment, or a SYN, which anyone can forge,
//! is not progress. A connection reports at most once in [`REPORT_EVERY`], so that a segment costs
//! one comparison of times.

use super::connection::Connection;
use pollux_verbs::time::Time;
use smoltcp::socket::tcp::State;
use std::time::Duration;

/// The minimum interval between reports of a connection. Reachability lasts for at least 15 seconds
/// (RFC 4861 10), and the delay before a probe for 5.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of queued reports.
pub(super) const REPORTS_MAX: usize = 256;

impl Connection {
    /// The next expected sequence number, if the next report is due.
    #[inline]
    pub(super) fn before_progress(&self, now: Time) -> Option<u32> {
        (self.progress_due <= now).then(|| self.receive_next())
    }

    /// Whether a segment made progress. `first` and `expected` are the first unacknowledged and the
    /// next expected sequence number before it.
    #[cold]
    pub(super) fn has_progressed(&mut self, now: Time, first: u32, expected: u32) -> bool {
        let is_synchronized = !matches!(
            self.state(),
            State::Closed | State::Listen | State::SynSent | State::SynReceived
        );
        let has_moved = self.snd_una() != first || self.receive_next() != expected;
        let has_progressed = is_synchronized && has_moved;
        if has_progressed {
            self.progress_due = now + REPORT_EVERY;
        }
        has_progressed
    }
}
