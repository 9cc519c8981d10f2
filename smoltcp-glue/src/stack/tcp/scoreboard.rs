//! The scoreboard of a stream: in flight, arrived, or lost (RFC 6675, with the thresholds of RFC
//! 9002 6.1).
//!
//! ```text
//!          sent              one sent 3 later arrived, or any later one and the time threshold
//!   (new) -------> in flight ------------------------------------------------------> lost
//!                     |  ^                                                             |
//!         acknowledged|  +------------------------ retransmitted ----------------------+
//!                     v
//!                  arrived ------ cumulative ACK ------> (removed)
//! ```
//!
//! Every transmission has a number. So the loss of a retransmission is detected like that of an
//! original: by the arrival of later transmissions. Fewer than three of them count as reordering,
//! until the time threshold. An ACK may show that a lost range has arrived after all. An arrived
//! range becomes lost if the receiver may have discarded data that it had acknowledged selectively.
//! Sequence numbers are compared modulo 2^32, and have to lie within 2^31 of each other.

use pollux_verbs::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// The packet threshold: a transmission is lost when one sent this many later has arrived (RFC 9002
/// 6.1.1).
const OVERTAKEN_BY: u64 = 3;
/// Maximum number of records. Further sends are merged into the last one.
const RECORDS_MAX: usize = 4096;
/// The limit for splits by SACK blocks of a peer. The remaining records are for sends.
const RECORDS_OF_PEER_MAX: usize = RECORDS_MAX / 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordState {
    InFlight,
    Arrived,
    Lost,
}

/// A range of the stream that was sent at once.
#[derive(Clone, Copy, Debug)]
struct Record {
    end: u32,
    number: u64,
    at: Time,
    state: RecordState,
    /// Whether the range was sent before, so that an acknowledgment may be of that transmission.
    is_again: bool,
    /// Whether `at` is the time of transmission.
    is_timed: bool,
}

/// The records that acknowledgments newly report as arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrivals {
    pub(super) bytes: usize,
    pub(super) records: u32,
    /// The round-trip time of the latest record that was sent once, at a known time.
    pub(super) round_trip: Option<Duration>,
    /// The transmission number of that record.
    timed_number: u64,
}

impl Arrivals {
    pub(super) fn and(self, other: Self) -> Self {
        let latest = if other.timed_number >= self.timed_number { other } else { self };
        Self {
            bytes: self.bytes + other.bytes,
            records: self.records + other.records,
            round_trip: latest.round_trip.or(self.round_trip).or(other.round_trip),
            timed_number: latest.timed_number,
        }
    }
}

/// The records that one call of [`Scoreboard::detect_losses`] marked as lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// The number of lost records, from transmission `counted_from` on.
    pub(super) records: u32,
    /// One more than the number of the latest lost transmission; 0 without losses.
    pub(super) end_number: u64,
}

#[derive(Debug)]
pub(super) struct Scoreboard {
    /// The first unacknowledged byte.
    pub(super) first: u32,
    records: VecDeque<Record>,
    pub(super) next_number: u64,
    /// The highest number of a transmission that has arrived.
    latest_arrived: Option<u64>,
    /// Bytes in flight.
    pub(super) in_flight: usize,
    /// Lost bytes.
    pub(super) lost: usize,
}

const fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}

/// Adds `change` bytes to the count of `state`.
const fn count(in_flight: &mut usize, lost: &mut usize, state: RecordState, change: isize) {
    match state {
        RecordState::InFlight => *in_flight = in_flight.wrapping_add_signed(change),
        RecordState::Lost => *lost = lost.wrapping_add_signed(change),
        RecordState::Arrived => {}
    }
}

impl Scoreboard {
    pub(super) const fn new(first: u32) -> Self {
        let records = VecDeque::new();
        Self { first, records, next_number: 0, latest_arrived: None, in_flight: 0, lost: 0 }
    }

    pub(super) fn end(&self) -> u32 {
        self.records.back().map_or(self.first, |record| record.end)
    }

    pub(super) fn outstanding(&self) -> usize {
        self.end().wrapping_sub(self.first) as usize
    }

    /// Whether this transmission or a later one has arrived.
    pub(super) fn has_reached(&self, number: u64) -> bool {
        self.latest_arrived.is_some_and(|latest| latest >= number)
    }

    pub(super) fn record_sent(&mut self, now: Time, start: u32, end: u32) {
        self.write(now, (start, end), true, RecordState::InFlight);
    }

    /// Records bytes up to `end` as sent at an unknown time.
    pub(super) fn record_sent_before(&mut self, now: Time, end: u32) {
        self.write(now, (self.end(), end), false, RecordState::InFlight);
    }

    /// Records bytes up to `end` as lost, although they were not sent.
    pub(super) fn record_unsent(&mut self, now: Time, end: u32) {
        self.write(now, (self.end(), end), false, RecordState::Lost);
    }

    /// Records a transmission. If there are too many records to split one, all of that record
    /// counts as sent; its unsent part is detected as lost later.
    fn write(&mut self, now: Time, (start, end): (u32, u32), is_timed: bool, state: RecordState) {
        let number = self.next_number;
        self.next_number += 1;
        let new_from = self.end();
        let (start, _) = self.split(start, RECORDS_MAX);
        let (_, split_end) = self.split(end, RECORDS_MAX);
        self.each_within(start, split_end, |record, _| {
            if record.state != RecordState::Arrived {
                (record.state, record.is_again) = (RecordState::InFlight, true);
                (record.number, record.at, record.is_timed) = (number, now, true);
            }
        });
        if distance(new_from, end) > 0 {
            self.push(Record { end, number, at: now, state, is_again: false, is_timed });
        }
    }

    /// Adds a record; if there are too many, it absorbs the last one.
    fn push(&mut self, record: Record) {
        if self.records.len() >= RECORDS_MAX
            && let Some(last) = self.records.pop_back()
        {
            let bytes = last.end.wrapping_sub(self.end()) as isize;
            count(&mut self.in_flight, &mut self.lost, last.state, -bytes);
        }
        let bytes = record.end.wrapping_sub(self.end()) as isize;
        count(&mut self.in_flight, &mut self.lost, record.state, bytes);
        self.records.push_back(record);
    }

    /// Splits the record at `at`, if there are fewer than `records_max`. Returns the range of the
    /// record that still contains `at`, or `(at, at)` if that is a boundary.
    fn split(&mut self, at: u32, records_max: usize) -> (u32, u32) {
        let index = self.records.partition_point(|record| distance(record.end, at) >= 0);
        let begin = index.checked_sub(1).map_or(self.first, |before| self.records[before].end);
        let Some(record) = self.records.get(index).copied() else { return (at, at) };
        if begin == at || distance(self.first, at) <= 0 {
            return (at, at);
        }
        if self.records.len() >= records_max {
            return (begin, record.end);
        }
        self.records.insert(index, Record { end: at, ..record });
        (at, at)
    }

    /// Applies `what` to each record that lies within a range.
    fn each_within(&mut self, start: u32, end: u32, mut what: impl FnMut(&mut Record, usize)) {
        let Self { records, first, in_flight, lost, .. } = self;
        let index = records.partition_point(|record| distance(record.end, start) >= 0);
        let mut begin = index.checked_sub(1).map_or(*first, |before| records[before].end);
        for record in records.range_mut(index..) {
            if distance(record.end, end) < 0 {
                break;
            }
            let is_within = distance(start, begin) >= 0;
            let bytes = record.end.wrapping_sub(std::mem::replace(&mut begin, record.end)) as usize;
            if !is_within {
                continue;
            }
            let before = record.state;
            what(record, bytes);
            let bytes = bytes as isize;
            count(in_flight, lost, before, -bytes);
            count(in_flight, lost, record.state, bytes);
        }
    }

    /// Handles a cumulative acknowledgment. If it arrives within `rtt_min` of a retransmission, it
    /// counts as that of the original.
    pub(super) fn handle_ack(&mut self, now: Time, to: u32, rtt_min: Duration) -> Arrivals {
        let to = if distance(self.end(), to) > 0 { self.end() } else { to };
        if distance(self.first, to) <= 0 {
            return Arrivals::default();
        }
        // The split needs no limit, because a record is removed afterwards.
        self.split(to, usize::MAX);
        let arrivals = self.mark_arrived(now, self.first, to, rtt_min);
        while self.records.front().is_some_and(|record| distance(record.end, to) >= 0) {
            self.records.pop_front();
        }
        self.first = to;
        arrivals
    }

    /// Handles a SACK block (RFC 2018 3). A block of unsent data is ignored.
    pub(super) fn handle_sack(
        &mut self,
        now: Time,
        (left, right): (u32, u32),
        rtt_min: Duration,
    ) -> Arrivals {
        let is_within = distance(self.first, left) >= 0
            && distance(left, right) > 0
            && distance(right, self.end()) >= 0;
        match is_within {
            true => {
                self.split(left, RECORDS_OF_PEER_MAX);
                self.split(right, RECORDS_OF_PEER_MAX);
                self.mark_arrived(now, left, right, rtt_min)
            }
            false => Arrivals::default(),
        }
    }

    fn mark_arrived(&mut self, now: Time, left: u32, right: u32, rtt_min: Duration) -> Arrivals {
        let mut arrivals = Arrivals::default();
        let mut latest = self.latest_arrived;
        self.each_within(left, right, |record, bytes| {
            if record.state == RecordState::Arrived {
                return;
            }
            record.state = RecordState::Arrived;
            arrivals.bytes += bytes;
            arrivals.records += 1;
            // A quick acknowledgment of a retransmission may be of the original.
            let elapsed = Duration::from_nanos(now.nanos().saturating_sub(record.at.nanos()));
            if !record.is_again || elapsed >= rtt_min {
                latest = latest.max(Some(record.number));
            }
            if !record.is_again && record.is_timed && record.number >= arrivals.timed_number {
                (arrivals.timed_number, arrivals.round_trip) = (record.number, Some(elapsed));
            }
        });
        self.latest_arrived = latest;
        arrivals
    }

    /// Detects losses by the packet threshold and by the time threshold. Also returns when more
    /// records may be lost. Counts losses from transmission `counted_from` on.
    pub(super) fn detect_losses(
        &mut self,
        now: Time,
        time_threshold: Duration,
        counted_from: u64,
    ) -> (Losses, Option<Time>) {
        let (mut losses, mut again_at) = (Losses::default(), None::<Time>);
        let Some(latest) = self.latest_arrived else { return (losses, again_at) };
        self.each_within(self.first, self.end(), |record, _| {
            if record.state != RecordState::InFlight || record.number >= latest {
                return;
            }
            let due = record.at + time_threshold;
            if record.number + OVERTAKEN_BY <= latest || due <= now {
                record.state = RecordState::Lost;
                losses.records += u32::from(record.number >= counted_from);
                losses.end_number = losses.end_number.max(record.number + 1);
            } else {
                again_at = again_at.into_iter().chain([due]).min();
            }
        });
        (losses, again_at)
    }

    /// Marks the last record that has not arrived as lost, for a tail loss probe.
    pub(super) fn lose_last(&mut self) {
        let waiting = |record: &&Record| record.state != RecordState::Arrived;
        let Some(last) = self.records.iter().rev().find(waiting).map(|last| last.end) else {
            return;
        };
        self.each_within(self.first, self.end(), |record, _| {
            if record.end == last {
                record.state = RecordState::Lost;
            }
        });
    }

    /// Marks everything in flight as lost. With `with_arrived`, marks arrived data too, which the
    /// peer may have discarded (RFC 2018 8).
    pub(super) fn lose_all(&mut self, with_arrived: bool) {
        self.each_within(self.first, self.end(), |record, _| {
            if record.state == RecordState::InFlight || with_arrived {
                record.state = RecordState::Lost;
            }
        });
    }

    /// Whether a range contains lost bytes.
    pub(super) fn has_lost_within(&self, start: u32, end: u32) -> bool {
        let index = self.records.partition_point(|record| distance(record.end, start) >= 0);
        let mut begin = index.checked_sub(1).map_or(self.first, |before| self.records[before].end);
        for record in self.records.range(index..) {
            if distance(begin, end) <= 0 {
                break;
            }
            if record.state == RecordState::Lost {
                return true;
            }
            begin = record.end;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Shortly before sequence numbers wrap.
    const FIRST: u32 = u32::MAX - 2500;
    const LATE: Duration = Duration::from_millis(1);
    const NOW: Time = Time::START;

    const fn at(bytes: u32) -> u32 {
        FIRST.wrapping_add(bytes)
    }

    /// A scoreboard with segments of 1000 bytes in flight.
    fn flight(segments: u32) -> Scoreboard {
        let mut board = Scoreboard::new(FIRST);
        (0..segments).for_each(|nth| board.record_sent(NOW, at(nth * 1000), at((nth + 1) * 1000)));
        board
    }

    /// A SACK of segments `from..to`.
    fn select(board: &mut Scoreboard, from: u32, to: u32) -> Arrivals {
        board.handle_sack(NOW, (at(from * 1000), at(to * 1000)), Duration::ZERO)
    }

    fn lost_now(board: &mut Scoreboard) -> u32 {
        board.detect_losses(NOW, LATE, 0).0.records
    }

    #[test]
    fn two_later_arrivals_are_reordering_and_three_a_loss() {
        let mut board = flight(6);
        for (nth, is_lost) in [(1, false), (2, false), (3, true)] {
            assert_eq!(select(&mut board, nth, nth + 1).bytes, 1000);
            assert_eq!(lost_now(&mut board), u32::from(is_lost), "after {nth}");
        }
        assert!(board.has_lost_within(at(0), at(1)) && board.has_lost_within(at(999), at(5000)));
        assert!(!board.has_lost_within(at(1000), at(6000)));
        assert_eq!((board.in_flight, board.lost), (2000, 1000));
        // The segment was only late.
        board.handle_ack(NOW, at(4000), Duration::ZERO);
        assert_eq!((board.outstanding(), board.in_flight, board.lost), (2000, 2000, 0));
        assert!(!board.has_lost_within(at(0), at(6000)));
    }

    #[test]
    fn a_late_transmission_is_lost_by_the_time_threshold() {
        let mut board = flight(2);
        assert_eq!(board.detect_losses(NOW + 2 * LATE, LATE, 0), (Losses::default(), None));
        select(&mut board, 1, 2);
        assert_eq!(board.detect_losses(NOW, LATE, 0), (Losses::default(), Some(NOW + LATE)));
        let (losses, again_at) = board.detect_losses(NOW + LATE, LATE, 0);
        assert_eq!((losses.records, losses.end_number, again_at), (1, 1, None));
        assert_eq!(board.lost, 1000);
    }

    #[test]
    fn a_retransmission_is_lost_by_later_transmissions() {
        let mut board = flight(4);
        select(&mut board, 1, 4);
        assert_eq!(lost_now(&mut board), 1);
        board.record_sent(NOW, at(0), at(1000));
        assert_eq!((lost_now(&mut board), board.lost, board.in_flight), (0, 0, 1000));
        for nth in 4..7 {
            board.record_sent(NOW, at(nth * 1000), at((nth + 1) * 1000));
            select(&mut board, nth, nth + 1);
            assert_eq!(lost_now(&mut board), u32::from(nth == 6));
        }
        assert_eq!(board.lost, 1000);
    }

    #[test]
    fn a_quick_acknowledgment_is_of_the_original() {
        let mut board = flight(2);
        board.lose_last();
        board.record_sent(NOW, at(1000), at(2000));
        let arrivals = board.handle_ack(NOW, at(2000), Duration::from_nanos(1));
        assert_eq!((arrivals.bytes, arrivals.records, arrivals.timed_number), (2000, 2, 0));
        assert!(board.has_reached(0) && !board.has_reached(2), "it may be the first of the two");
    }

    #[test]
    fn duplicate_acknowledgments_count_once() {
        let mut board = flight(4);
        assert_eq!(select(&mut board, 1, 3).bytes, 2000);
        assert_eq!(select(&mut board, 1, 3), Arrivals::default());
        assert_eq!(select(&mut board, 0, 4).bytes, 2000);
        assert_eq!(board.handle_ack(NOW, at(4000), Duration::ZERO), Arrivals::default());
        assert_eq!((board.first, board.outstanding()), (at(4000), 0));
        assert_eq!(board.handle_ack(NOW, at(1000), Duration::ZERO), Arrivals::default());
        assert_eq!(board.first, at(4000), "an old acknowledgment changes nothing");
    }

    #[test]
    fn a_timeout_loses_the_last_record_and_then_all() {
        let mut board = flight(3);
        select(&mut board, 2, 3);
        board.lose_last();
        assert!(board.has_lost_within(at(1000), at(2000)), "the last that has not arrived");
        assert_eq!(board.lost, 1000);
        board.lose_all(false);
        assert_eq!((board.lost, board.in_flight), (2000, 0));
        board.lose_all(true);
        assert_eq!(board.lost, 3000, "a peer may discard data of SACK blocks");
    }

    #[test]
    fn sack_blocks_of_unsent_data_are_ignored() {
        let mut board = flight(2);
        for (left, right) in [(0, 2001), (1500, 1000), (1000, 1000), (3000, 4000), (u32::MAX, 500)]
        {
            let block = (at(left), at(right));
            assert_eq!(board.handle_sack(NOW, block, Duration::ZERO), Arrivals::default());
        }
        assert_eq!(board.in_flight, 2000);
        // An acknowledgment of unsent data counts up to the end of the sent data.
        assert_eq!(board.handle_ack(NOW, at(9000), Duration::ZERO).bytes, 2000);
        assert_eq!(board.first, at(2000));
    }

    #[test]
    fn records_have_a_limit() {
        let bytes = 4 * RECORDS_MAX as u32;
        let mut board = Scoreboard::new(FIRST);
        board.record_sent(NOW, FIRST, at(bytes));
        for nth in (1..bytes).step_by(2) {
            board.handle_sack(NOW, (at(nth), at(nth + 1)), Duration::ZERO);
        }
        assert_eq!(board.records.len(), RECORDS_OF_PEER_MAX);
        for nth in bytes..bytes + 1000 {
            board.record_sent(NOW, at(nth), at(nth + 1));
            board.handle_sack(NOW, (at(nth), at(nth + 1)), Duration::ZERO);
        }
        assert!(board.records.len() <= RECORDS_MAX, "{}", board.records.len());
        assert_eq!(board.outstanding(), bytes as usize + 1000);
    }

    /// Bytes in flight and lost bytes, counted from the records.
    fn counted(board: &Scoreboard) -> (usize, usize) {
        let (mut in_flight, mut lost, mut begin) = (0, 0, board.first);
        for record in &board.records {
            let bytes = record.end.wrapping_sub(std::mem::replace(&mut begin, record.end));
            match record.state {
                RecordState::InFlight => in_flight += bytes as usize,
                RecordState::Lost => lost += bytes as usize,
                RecordState::Arrived => {}
            }
        }
        (in_flight, lost)
    }

    #[test]
    fn a_full_scoreboard_merges_records_and_keeps_its_counts() {
        let messages = RECORDS_MAX as u32 + 500;
        let (mut board, end) = (Scoreboard::new(FIRST), messages * 10);
        (0..messages).for_each(|nth| board.record_sent(NOW, at(nth * 10), at(nth * 10 + 10)));
        assert_eq!(board.records.len(), RECORDS_MAX);
        board.lose_all(false);
        assert_eq!((board.in_flight, board.lost), (0, end as usize));
        // Segments start and end anywhere in merged records.
        for start in (0..end).step_by(1013) {
            let (start, end) = (at(start), at((start + 1013).min(end)));
            board.record_sent(NOW, start, end);
            assert!(!board.has_lost_within(start, end));
            assert_eq!((board.in_flight, board.lost), counted(&board));
        }
        assert_eq!(board.lost, 0);
        // Further sends are merged into the last record, also into a lost one.
        board.lose_last();
        board.record_unsent(NOW, at(end + 7));
        board.record_sent(NOW, at(end + 7), at(end + 11));
        assert_eq!((board.in_flight, board.lost), counted(&board));
        assert_eq!((board.outstanding(), board.records.len()), (end as usize + 11, RECORDS_MAX));
        // An acknowledgment may end anywhere too.
        for to in [5, end - 3] {
            board.handle_ack(NOW, at(to), Duration::ZERO);
            assert_eq!((board.in_flight, board.lost), counted(&board));
            assert_eq!(board.outstanding(), (end + 11 - to) as usize);
        }
    }

    /// A model with a record for every byte.
    #[derive(Default)]
    struct Bytes {
        first: u32,
        all: Vec<(RecordState, u64)>,
        number: u64,
        latest: Option<u64>,
    }

    impl Bytes {
        fn send(&mut self, from: u32, to: u32) {
            let (number, to) = (self.number, to as usize);
            self.number += 1;
            let new_from = self.all.len();
            self.all.resize(new_from.max(to), (RecordState::InFlight, number));
            for byte in &mut self.all[(from as usize).min(to)..to] {
                if byte.0 != RecordState::Arrived {
                    *byte = (RecordState::InFlight, number);
                }
            }
        }

        fn arrive(&mut self, from: u32, to: u32) {
            for byte in &mut self.all[from as usize..to as usize] {
                if byte.0 != RecordState::Arrived {
                    byte.0 = RecordState::Arrived;
                    self.latest = self.latest.max(Some(byte.1));
                }
            }
        }

        fn detect_losses(&mut self) {
            let Some(latest) = self.latest else { return };
            for byte in &mut self.all[self.first as usize..] {
                if byte.0 == RecordState::InFlight && byte.1 + OVERTAKEN_BY <= latest {
                    byte.0 = RecordState::Lost;
                }
            }
        }

        fn count(&self, state: RecordState) -> usize {
            self.all[self.first as usize..].iter().filter(|byte| byte.0 == state).count()
        }
    }

    proptest! {
        #[test]
        fn a_scoreboard_agrees_with_a_model_of_every_byte(
            steps in prop::collection::vec((0..6_u8, any::<u16>(), 1..40_u32), 1..200),
        ) {
            let (mut board, mut bytes) = (Scoreboard::new(FIRST), Bytes::default());
            for (what, offset, len) in steps {
                let (first, end) = (bytes.first, bytes.all.len() as u32);
                let from = first + u32::from(offset) % (end - first + 1);
                let to = end.min(from + len);
                match what {
                    0 | 1 => {
                        board.record_sent(NOW, at(end), at(end + len));
                        bytes.send(end, end + len);
                    }
                    2 => {
                        board.record_sent(NOW, at(from), at(from + len));
                        bytes.send(from, from + len);
                    }
                    3 | 4 if to > from => {
                        board.handle_sack(NOW, (at(from), at(to)), Duration::ZERO);
                        bytes.arrive(from, to);
                    }
                    5 => {
                        board.handle_ack(NOW, at(from), Duration::ZERO);
                        bytes.arrive(first, from);
                        bytes.first = from;
                    }
                    _ => {}
                }
                board.detect_losses(NOW, LATE, 0);
                bytes.detect_losses();
                prop_assert_eq!(board.first, at(bytes.first));
                prop_assert_eq!(board.end(), at(bytes.all.len() as u32));
                prop_assert_eq!(board.in_flight, bytes.count(RecordState::InFlight));
                prop_assert_eq!(board.lost, bytes.count(RecordState::Lost));
            }
        }
    }
}
