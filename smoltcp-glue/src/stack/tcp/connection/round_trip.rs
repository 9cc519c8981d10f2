//! The round-trip time of a connection (RFC 6298 2), for reports.
//!
//! One segment is timed at a time, at most one in [`TIMED_EVERY`], so that the others cost one
//! comparison. A retransmission ends the timing, because its acknowledgment is ambiguous (RFC 6298
//! 3). Loss recovery times all segments, and has its own estimate.

use pollux_verbs::time::Time;
use std::time::Duration;

const TIMED_EVERY: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrip {
    pub(super) smoothed: Option<Duration>,
    pub(super) variation: Duration,
    pub(super) latest: Duration,
}

impl RoundTrip {
    pub(super) fn sample(&mut self, took: Duration) {
        self.latest = took;
        let Some(smoothed) = self.smoothed else {
            (self.smoothed, self.variation) = (Some(took), took / 2);
            return;
        };
        self.variation = (self.variation * 3 + smoothed.abs_diff(took)) / 4;
        self.smoothed = Some((smoothed * 7 + took) / 8);
    }
}

#[derive(Debug, Default)]
pub(super) struct RoundTripTimer {
    pub(super) round_trip: RoundTrip,
    /// The sequence number after the timed segment, and when it was sent.
    timed: Option<(u32, Time)>,
    due: Time,
}

impl RoundTripTimer {
    /// Notes that new data was sent, up to `end`.
    #[inline]
    pub(super) fn note_sent(&mut self, now: Time, end: u32) {
        if self.due <= now {
            self.timed.get_or_insert((end, now));
            self.due = now + TIMED_EVERY;
        }
    }

    #[inline]
    pub(super) const fn is_timing(&self) -> bool {
        self.timed.is_some()
    }

    /// Notes that all data before `first` is acknowledged.
    #[cold]
    pub(super) fn note_acknowledged(&mut self, now: Time, first: u32) {
        let is_acknowledged =
            |(end, _): &mut (u32, Time)| first.wrapping_sub(*end).cast_signed() >= 0;
        if let Some((_, since)) = self.timed.take_if(is_acknowledged) {
            self.round_trip.sample(now.since(since));
        }
    }

    pub(super) const fn note_retransmitted(&mut self) {
        self.timed = None;
    }
}
