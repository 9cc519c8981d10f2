//! The congestion window of a connection after loss recovery (RFC 5681).
//!
//! ```text
//!   loss recovery --no loss for long--> kept window --more to send than that--> loss recovery
//!                                        |  ^
//!                                        +--+ idle: back to the initial window
//! ```
//!
//! smoltcp's congestion control is off from the first recovery on. The window at the end of
//! recovery is kept. A connection with more to send than that re-enters recovery until all data has
//! arrived. So a connection with a window as large as its peer's costs one comparison, and an idle
//! connection restarts with the initial window (RFC 5681 4.1).

use super::Connection;
use crate::stack::tcp::engine::{At, Engine};
use std::time::Duration;

/// A connection that has sent nothing for this long is idle: smoltcp's minimum retransmission
/// timeout.
const IDLE: Duration = Duration::from_millis(200);
/// The initial window (RFC 6928 2): ten segments, but at most this many bytes or two segments,
/// whichever is more.
const INITIAL_SEGMENTS: usize = 10;
const INITIAL_BYTES: usize = 14_600;

/// The congestion window and the slow start threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) bytes: usize,
    pub(super) threshold: usize,
}

impl Window {
    fn after_idle(self, segment: usize) -> Self {
        let initial = (INITIAL_SEGMENTS * segment).min(INITIAL_BYTES.max(2 * segment));
        // RFC 7661 4.4.3 and RFC 2861 3: slow start up to three quarters of the previous window.
        let threshold = self.threshold.max(self.bytes / 4 * 3);
        Self { bytes: self.bytes.min(initial), threshold }
    }
}

impl Connection {
    /// Re-enters recovery with the kept window, if there is more to send.
    #[cold]
    pub(super) fn reenter_recovery(&mut self, at: At, engine: &mut Engine) {
        let segment = self.segment(at.mtu);
        let is_idle = !self.is_waiting() && at.now > self.loss_recovery.sent_at + IDLE;
        let Some(window) = &mut self.loss_recovery.window_kept else { return };
        if is_idle {
            *window = window.after_idle(segment);
        }
        let window = *window;
        if self.has_unsent() && self.unacknowledged() > window.bytes {
            self.begin_within(at, window, engine);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_restarts_with_the_initial_window() {
        let wide = Window { bytes: 1 << 20, threshold: 1 << 16 };
        for (segment, bytes) in [(536, 5360), (1460, 14_600), (2004, 14_600), (65_480, 130_960)] {
            let window = wide.after_idle(segment);
            assert_eq!(window, Window { bytes, threshold: 3 << 18 }, "segments of {segment}");
            assert_eq!(window.after_idle(segment), window);
        }
        let narrow = Window { bytes: 3000, threshold: usize::MAX };
        assert_eq!(narrow.after_idle(2004), narrow);
    }
}
