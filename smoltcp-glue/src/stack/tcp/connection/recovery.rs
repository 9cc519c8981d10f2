//! Loss recovery of a connection: retransmission, congestion window, and segment size.
//!
//! ```text
//!   acknowledgment --> scoreboard --loss--> smoltcp rewrites all data; the lost part is sent
//!                          |   \--loss--> a smaller window (RFC 5681 3.2, factor 0.7, not 0.5)
//!                          |   \--frequent loss of long segments--> shorter segments (RFC 4821)
//!   timeout ---------------+-> retransmit the last segment (RFC 8985 7), then all
//! ```
//!
//! A connection has no [`Recovery`] until its first SACK or timeout. smoltcp stores the bytes and
//! writes the segments. Its congestion control is off; instead, it is shown a window of the peer
//! that the congestion window limits.

use super::round_trip::RoundTrip;
use super::window::Window;
use crate::stack::mtu::MTU_MAX;
use crate::stack::tcp::scoreboard::{Arrivals, Scoreboard};
use pollux_verbs::time::Time;
use std::time::Duration;

/// An IP MTU that every IP over InfiniBand link carries (RFC 4391 9.1.2).
const MTU_SHORT: u32 = 2044;
/// This many losses among `TRIAL` segments shorten the segments.
const LOST_OF_TRIAL: u32 = 3;
const TRIAL: u32 = 16;
/// This many full segments in a row without a loss lengthen the segments again.
const LENGTHEN_AFTER: u32 = 256;
/// Recovery ends once this many segments have arrived after the last loss.
const RECOVERED_AFTER_LOSS: u32 = 1 << 14;
/// The same after a timeout, which a busy peer causes more often than a loss does.
const RECOVERED_AFTER_TIMEOUT: u32 = 1 << 11;
/// The minimum congestion window, in segments: after a lost one, three more can be in flight, which
/// the detection of the loss needs.
const SEGMENTS_MIN: usize = 4;
/// The assumed delay of the acknowledgment of a single segment: longer than that of this stack.
const ACK_DELAY: Duration = Duration::from_micros(2500);
/// The maximum to which timeouts raise the assumed delay: longer than that of Linux.
const ACK_DELAY_MAX: Duration = Duration::from_millis(50);
/// The assumed round-trip time before the first sample.
const RTT_INITIAL: Duration = Duration::from_millis(1);
/// The minimum retransmission timeout, because a busy peer answers late.
const TIMEOUT_MIN: Duration = Duration::from_micros(500);
const TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// Maximum number of segments in the window for smoltcp, which limits how many it rewrites.
const WALK_SEGMENTS_MAX: usize = 1024;
/// The maximum backoff that remains after an acknowledgment without a round-trip sample, as a
/// binary exponent.
const BACKOFF_KEPT: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Send,
    Drop,
}

/// Adapts the segment size to losses.
#[derive(Debug)]
struct Length {
    limit: u32,
    arrived: u32,
    lost: u32,
    without_loss: u32,
    /// The number of the first transmission with the current limit.
    since: u64,
}

impl Length {
    /// Notes segments that arrived or were lost. `full` of the `arrived` ones had the full length.
    fn note(&mut self, (arrived, full): (u32, u32), lost: u32, next_number: u64) {
        self.without_loss = if lost > 0 { 0 } else { self.without_loss + full };
        (self.arrived, self.lost) = (self.arrived + arrived, self.lost + lost);
        if self.lost >= LOST_OF_TRIAL {
            self.shorten(next_number);
        } else if self.arrived + self.lost >= TRIAL {
            (self.arrived, self.lost) = (0, 0);
        }
        if self.without_loss >= LENGTHEN_AFTER {
            (self.without_loss, self.limit) = (0, (self.limit * 2).min(MTU_MAX));
        }
    }

    fn shorten(&mut self, next_number: u64) {
        self.limit = (self.limit / 2).max(MTU_SHORT);
        (self.arrived, self.lost, self.without_loss) = (0, 0, 0);
        self.since = next_number;
    }
}

#[derive(Debug)]
pub(super) struct Recovery {
    board: Scoreboard,
    /// The round-trip time of the SYN.
    opening: Duration,
    round_trip: RoundTrip,
    length: Length,
    window: usize,
    /// The slow start threshold.
    threshold: usize,
    /// Bytes acknowledged in congestion avoidance since the window last grew.
    credit: usize,
    /// The window was already reduced for losses of transmissions before this number.
    reduced_before: u64,
    peer_window: usize,
    has_unsent: bool,
    segment: usize,
    /// The number of segments that still have to arrive before recovery ends.
    until_recovered: u32,
    /// Timeouts since the last acknowledgment.
    timeouts: u32,
    /// Timeouts since the last round-trip sample: an acknowledgment after a retransmission is
    /// ambiguous (RFC 6298 5.7).
    backoff: u32,
    /// The estimated delay of the peer's acknowledgments.
    ack_delay: Duration,
    /// Whether one lost segment may exceed the window, after a timeout.
    may_probe: bool,
    timeout_at: Option<Time>,
    late_at: Option<Time>,
}

impl Recovery {
    /// The recovery of a connection with bytes from `first` to `end` in flight, in segments of this
    /// size. `opening` is the round-trip time of its SYN. With `by_timeout`, a timeout is due now.
    pub(super) fn new(
        now: Time,
        (first, end): (u32, u32),
        (segment, opening): (usize, Duration),
        by_timeout: bool,
    ) -> Self {
        let mut board = Scoreboard::new(first);
        while board.end() != end {
            let left = end.wrapping_sub(board.end());
            let next = board.end().wrapping_add(left.min(segment.max(1) as u32));
            board.record_sent_before(now, next);
        }
        let window = board.outstanding().max(SEGMENTS_MIN * segment);
        let mut recovery = Self {
            board,
            opening,
            round_trip: RoundTrip::default(),
            length: Length { limit: MTU_MAX, arrived: 0, lost: 0, without_loss: 0, since: 0 },
            window,
            threshold: usize::MAX,
            credit: 0,
            reduced_before: 0,
            peer_window: usize::MAX,
            has_unsent: false,
            segment,
            until_recovered: RECOVERED_AFTER_TIMEOUT,
            timeouts: 0,
            backoff: 0,
            ack_delay: ACK_DELAY,
            may_probe: false,
            timeout_at: None,
            late_at: None,
        };
        recovery.restart_timer(now);
        if by_timeout {
            recovery.timeout_at = Some(now);
        }
        recovery
    }

    pub(super) const fn window(&self) -> Window {
        Window { bytes: self.window, threshold: self.threshold }
    }

    /// Continues with an earlier congestion window. Recovery ends as soon as all data is
    /// acknowledged.
    pub(super) fn set_window(&mut self, window: Window, peer_window: usize) {
        (self.window, self.threshold) = (window.bytes, window.threshold);
        (self.peer_window, self.until_recovered) = (peer_window, 0);
        self.set_segment(self.segment);
    }

    pub(super) fn mtu(&self, path_mtu: u32) -> u32 {
        self.length.limit.min(path_mtu)
    }

    pub(super) fn set_segment(&mut self, bytes: usize) {
        self.segment = bytes;
        self.window = self.window.max(SEGMENTS_MIN * bytes);
    }

    /// Handles a cumulative acknowledgment of `first`, with SACK blocks.
    pub(super) fn handle_ack(
        &mut self,
        now: Time,
        first: u32,
        blocks: impl IntoIterator<Item = (u32, u32)>,
        peer_window: usize,
    ) {
        self.peer_window = peer_window;
        // Half of a round trip: an acknowledgment earlier than that is of an earlier transmission.
        let rtt_min = self.round_trip.smoothed.unwrap_or_default() / 2;
        let outstanding = self.board.outstanding();
        let mut arrivals = self.board.handle_ack(now, first, rtt_min);
        for block in blocks {
            arrivals = arrivals.and(self.board.handle_sack(now, block, rtt_min));
        }
        if arrivals.bytes == 0 {
            return;
        }
        if let Some(round_trip) = arrivals.round_trip {
            self.round_trip.sample(round_trip);
            self.backoff = 0;
            if outstanding <= self.segment && round_trip < ACK_DELAY {
                self.ack_delay = (self.ack_delay / 16 * 15).max(ACK_DELAY);
            }
        }
        (self.timeouts, self.may_probe) = (0, false);
        self.until_recovered = self.until_recovered.saturating_sub(arrivals.records);
        self.backoff = self.backoff.min(BACKOFF_KEPT);
        // Short segments do not show whether long ones are lost.
        let full = arrivals.records.min((arrivals.bytes * 2 / self.segment.max(1)) as u32);
        self.length.note((arrivals.records, full), 0, self.board.next_number);
        self.detect_losses(now);
        self.grow(arrivals, outstanding);
        self.restart_timer(now);
    }

    fn grow(&mut self, arrivals: Arrivals, outstanding: usize) {
        let is_used = outstanding * 2 >= self.window;
        if !is_used || !self.board.has_reached(self.reduced_before) {
            return;
        }
        if self.window >= self.peer_window {
            return;
        }
        if self.window < self.threshold {
            self.window += arrivals.bytes;
            return;
        }
        self.credit += arrivals.bytes;
        if self.credit >= self.window {
            self.credit -= self.window;
            self.window += self.segment;
        }
    }

    fn detect_losses(&mut self, now: Time) {
        let time_threshold = 2 * self.smoothed().max(self.round_trip.latest);
        let (losses, late_at) = self.board.detect_losses(now, time_threshold, self.length.since);
        self.late_at = late_at;
        if losses.end_number > self.reduced_before {
            self.reduce();
        }
        if losses.records > 0 {
            self.until_recovered = RECOVERED_AFTER_LOSS;
            self.length.note((0, 0), losses.records, self.board.next_number);
        }
    }

    fn reduce(&mut self) {
        self.threshold = (self.window / 10 * 7).max(SEGMENTS_MIN * self.segment);
        (self.window, self.credit) = (self.threshold, 0);
        self.reduced_before = self.board.next_number;
    }

    fn smoothed(&self) -> Duration {
        self.round_trip.smoothed.unwrap_or(self.opening.max(RTT_INITIAL))
    }

    pub(super) fn timeout(&self) -> Duration {
        let answer = self.smoothed() * 2 + self.round_trip.variation * 4;
        let delay = if self.is_single() { self.ack_delay } else { Duration::ZERO };
        let timeout =
            answer.max(TIMEOUT_MIN).saturating_mul(1 << self.backoff.max(self.timeouts).min(20));
        (timeout + delay).min(TIMEOUT_MAX)
    }

    fn restart_timer(&mut self, now: Time) {
        let waits = self.board.outstanding() > 0 || self.peer_window == 0 && self.has_unsent;
        self.timeout_at = waits.then_some(now + self.timeout());
    }

    fn is_single(&self) -> bool {
        self.board.outstanding() <= self.segment
    }

    pub(super) fn set_unsent(&mut self, now: Time, has_unsent: bool) {
        self.has_unsent = has_unsent;
        if self.timeout_at.is_none() {
            self.restart_timer(now);
        }
    }

    pub(super) fn is_recovered(&self) -> bool {
        self.until_recovered == 0 && self.board.outstanding() == 0
    }

    pub(super) fn due(&self) -> Option<Time> {
        [self.timeout_at, self.late_at].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.late_at.is_some_and(|due| due <= now) {
            self.detect_losses(now);
        }
        if self.timeout_at.is_none_or(|due| due > now) {
            return;
        }
        self.timeouts += 1;
        self.may_probe = true;
        self.until_recovered = self.until_recovered.max(RECOVERED_AFTER_TIMEOUT);
        if self.peer_window == 0 {
            // A window probe of one byte.
            if self.board.outstanding() == 0 {
                self.board.record_unsent(now, self.board.first.wrapping_add(1));
            }
            self.board.lose_all(false);
            return self.restart_timer(now);
        }
        self.backoff += 1;
        if self.is_single() {
            self.ack_delay = (self.ack_delay * 2).min(ACK_DELAY_MAX);
        }
        if self.timeouts == 1 {
            self.board.lose_last();
        } else {
            self.board.lose_all(self.timeouts > 3);
            self.reduce();
            self.window = SEGMENTS_MIN * self.segment;
            self.length.shorten(self.board.next_number);
        }
        self.restart_timer(now);
    }

    /// Whether there is a loss to retransmit within the window.
    pub(super) const fn has_lost(&self) -> bool {
        self.board.lost > 0 && (self.may_probe || self.board.in_flight < self.window)
    }

    pub(super) fn decide(&mut self, now: Time, start: u32, end: u32) -> Verdict {
        let is_new = end.wrapping_sub(self.board.end()).cast_signed() > 0;
        // smoltcp retransmits into a closed window after enough duplicate acknowledgments.
        let reaches = end.wrapping_sub(self.board.first) as usize;
        let is_beyond = reaches > self.peer_window.max(1) && end.wrapping_sub(start) > 1;
        let is_due = self.has_lost() && self.board.has_lost_within(start, end);
        // In LAST-ACK, smoltcp accepts no window update, so it may exceed the congestion window.
        let busy = self.board.in_flight + end.wrapping_sub(start) as usize;
        let is_too_much = !is_due && busy > self.window.max(self.segment);
        if is_new && (is_beyond || is_too_much) {
            self.board.record_unsent(now, end);
            return Verdict::Drop;
        }
        if !(is_new || is_due) {
            return Verdict::Drop;
        }
        let was_idle = self.board.outstanding() == 0;
        self.board.record_sent(now, start, end);
        self.may_probe = false;
        if self.timeouts == 0 || was_idle {
            self.restart_timer(now);
        }
        Verdict::Send
    }

    /// The window for smoltcp: the outstanding bytes, plus the unused part of the congestion window
    /// in full segments. If there is a loss, rounding must not cut the outstanding bytes, which
    /// smoltcp rewrites.
    pub(super) fn window_limit(&self) -> WindowLimit {
        let busy = self.board.in_flight + self.board.lost;
        let unused = self.window.saturating_sub(busy) / self.segment.max(1) * self.segment;
        let (sent, most) = (self.board.outstanding(), WALK_SEGMENTS_MAX * self.segment.max(1));
        let least = if self.board.lost > 0 { sent.min(most) } else { 0 };
        WindowLimit { bytes: (sent + unused).min(most), least }
    }
}

/// A window for smoltcp, before it is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowLimit {
    pub(super) bytes: usize,
    /// The minimum, after rounding to the window scale.
    pub(super) least: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: usize = 1000;
    const WINDOW: usize = 100_000;
    const NOW: Time = Time::START;

    /// A recovery with segments of 1000 bytes in flight.
    fn recovery(segments: u32) -> Recovery {
        Recovery::new(NOW, (0, segments * 1000), (SEGMENT, Duration::ZERO), false)
    }

    fn due(recovery: &Recovery) -> Time {
        recovery.due().expect("a segment is in flight")
    }

    #[test]
    fn only_lost_and_new_segments_are_sent() {
        let mut it = recovery(8);
        it.handle_ack(NOW, 1000, [(2000, 6000)], WINDOW);
        assert!(it.has_lost());
        let verdicts: Vec<_> =
            (1..8).map(|nth| it.decide(NOW, nth * 1000, nth * 1000 + 1000)).collect();
        let sent = verdicts.iter().map(|verdict| *verdict == Verdict::Send);
        assert!(sent.eq([true, false, false, false, false, false, false]), "{verdicts:?}");
        assert!(!it.has_lost());
        assert_eq!(it.decide(NOW, 8000, 9000), Verdict::Send);
        assert_eq!(it.decide(NOW, 1000, 2000), Verdict::Drop, "it is in flight again");
    }

    #[test]
    fn the_window_is_reduced_once_per_round_trip() {
        let mut it = recovery(20);
        let before = it.window;
        it.handle_ack(NOW, 1000, [(2000, 10_000)], WINDOW);
        assert_eq!(it.window, before / 10 * 7);
        it.handle_ack(NOW, 1000, [(11_000, 20_000)], WINDOW);
        assert_eq!(it.window, before / 10 * 7, "the same round trip");
        // New data waits until the window has space for full segments.
        let WindowLimit { bytes, least } = it.window_limit();
        assert_eq!((bytes, least), (19_000 + 12_000, 19_000));
    }

    #[test]
    fn timeouts_retransmit_the_last_segment_then_all_with_backoff() {
        let mut it = recovery(8);
        it.handle_timeout(due(&it));
        assert_eq!((it.board.lost, it.window_limit().least), (SEGMENT, 8 * SEGMENT));
        assert_eq!(it.decide(due(&it), 6000, 7000), Verdict::Drop);
        assert_eq!(it.decide(due(&it), 7000, 8000), Verdict::Send);
        let mut last = NOW;
        for nth in 0..20 {
            let now = due(&it);
            it.handle_timeout(now);
            assert_eq!(it.board.lost, 8 * SEGMENT, "{nth}");
            let waits = due(&it).nanos() - now.nanos();
            assert!(waits >= last.nanos() && waits <= TIMEOUT_MAX.as_nanos() as u64);
            last = Time::from_nanos(waits);
        }
        assert_eq!((it.window, it.mtu(MTU_MAX)), (SEGMENTS_MIN * SEGMENT, MTU_SHORT));
        it.handle_ack(due(&it), 8000, [], WINDOW);
        assert_eq!((it.board.lost, it.due()), (0, None));
    }

    #[test]
    fn a_closed_window_is_no_sign_of_loss() {
        let mut it = recovery(8);
        it.handle_ack(NOW, 0, [], 0);
        for _ in 0..20 {
            it.handle_timeout(due(&it));
            assert_eq!(it.decide(due(&it), 0, 1), Verdict::Send, "a window probe of one byte");
        }
        assert_eq!((it.window, it.mtu(MTU_MAX)), (8 * SEGMENT, MTU_MAX));
        assert_eq!(it.decide(due(&it), 8000, 9000), Verdict::Drop, "the window is closed");
        it.handle_ack(due(&it), 8000, [], WINDOW);
        assert!(it.has_lost(), "withheld data are to be sent");
        assert_eq!(it.decide(due(&it), 8000, 9000), Verdict::Send);
    }

    #[test]
    fn segments_are_shortened_by_losses_and_lengthened_again() {
        let mut length = Length { limit: MTU_MAX, arrived: 0, lost: 0, without_loss: 0, since: 0 };
        // One loss in ten segments is not enough.
        for _ in 0..100 {
            length.note((9, 9), 1, 0);
        }
        assert_eq!(length.limit, MTU_MAX);
        for _ in 0..6 {
            length.note((4, 4), 3, 7);
        }
        assert_eq!((length.limit, length.since), (MTU_SHORT, 7));
        length.note((LENGTHEN_AFTER, 0), 0, 9);
        assert_eq!(length.limit, MTU_SHORT, "short segments do not count");
        length.note((LENGTHEN_AFTER, LENGTHEN_AFTER), 0, 9);
        assert_eq!(length.limit, 2 * MTU_SHORT);
        (0..9).for_each(|_| length.note((LENGTHEN_AFTER, LENGTHEN_AFTER), 0, 9));
        assert_eq!(length.limit, MTU_MAX);
    }
}
