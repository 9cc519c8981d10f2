//! Latency histograms and rates.
//!
//! In a closed loop the next message is sent when the one before is answered, and one clock reading
//! ends a round trip and begins the next. In an open loop messages are scheduled at fixed times;
//! latency counts from the scheduled send time, so a pause of the machine shows in every message
//! that it delayed and not in one only (coordinated omission).

use crate::error::PerfError;
use base64::prelude::{BASE64_STANDARD, Engine};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Excluded from the results: it fills caches and opens connections.
const WARM_UP: Duration = Duration::from_millis(100);
const NANOSECONDS_MAX: u64 = 60_000_000_000;
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    pub samples: u64,
    /// Messages that were lost and sent again, including those of the warm-up.
    pub lost: u64,
    /// Until the first message was answered, which is before the warm-up: both ways, with all that
    /// had to be found and opened for it.
    pub first_ns: f64,
    pub min_ns: f64,
    pub mean_ns: f64,
    pub percentiles: Vec<Percentile>,
    pub max_ns: f64,
    /// Whole round trips in nanoseconds: a histogram of HdrHistogram, as its logs have it (V2,
    /// deflated, in base 64).
    pub round_trips: String,
}

/// That many of all messages took so long or less.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Percentile {
    pub percent: f64,
    pub ns: f64,
}

impl Latency {
    /// `None` unless [`Latency::percentiles`] has it.
    pub fn percentile(&self, wanted: f64) -> Option<f64> {
        self.percentiles.iter().find(|one| one.percent == wanted).map(|one| one.ns)
    }

    pub fn of(round_trips: &Histogram<u64>, first: Duration) -> Self {
        let half = |nanoseconds: u64| nanoseconds as f64 / 2.0;
        let at =
            |percent| Percentile { percent, ns: half(round_trips.value_at_percentile(percent)) };
        Self {
            samples: round_trips.len(),
            lost: 0,
            first_ns: first.as_nanos() as f64,
            min_ns: half(round_trips.min()),
            mean_ns: round_trips.mean() / 2.0,
            percentiles: PERCENTILES.map(at).to_vec(),
            max_ns: half(round_trips.max()),
            round_trips: encode(round_trips),
        }
    }
}

impl Latency {
    /// Of messages that are not sent back: not half of their round trips.
    pub fn of_whole_round_trips(mut self) -> Self {
        for time in [&mut self.min_ns, &mut self.mean_ns, &mut self.max_ns] {
            *time *= 2.0;
        }
        self.percentiles.iter_mut().for_each(|one| one.ns *= 2.0);
        self
    }
}

fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    let written = V2DeflateSerializer::new().serialize(histogram, &mut bytes);
    written.expect("a vector takes all");
    BASE64_STANDARD.encode(bytes)
}

/// A histogram of nanoseconds, with three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, NANOSECONDS_MAX, 3).expect("the bounds are such")
}

/// The sender of a message is awake for this time before the message is due.
const AWAKE: Duration = Duration::from_micros(500);

/// Runs round trips for a duration: in a closed loop, or in an open loop at `per_second`.
#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
pub fn ping_pong(
    duration: Duration,
    per_second: Option<u32>,
    mut round: impl FnMut() -> Result<(), PerfError>,
) -> Result<Latency, PerfError> {
    let begun = Instant::now();
    round()?;
    let first = begun.elapsed();
    while begun.elapsed() < WARM_UP {
        round()?;
    }
    let mut round_trips = histogram();
    let interval = per_second.map(|rate| Duration::from_secs(1) / rate);
    let mut due = Instant::now();
    let end = due + duration;
    loop {
        if interval.is_some() {
            wait_until(due);
        }
        round()?;
        let now = Instant::now();
        round_trips.saturating_record(now.duration_since(due).as_nanos() as u64);
        due = interval.map_or(now, |interval| due + interval);
        // Every message scheduled within the duration counts, late ones included.
        if due >= end {
            return Ok(Latency::of(&round_trips, first));
        }
    }
}

/// Sleeps until shortly before a message is due, then spins. A thread that spins through all pauses
/// uses up the real-time share of each second, and the kernel stops it for 50 ms.
#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
fn wait_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if left > 2 * AWAKE {
        std::thread::sleep(left - AWAKE);
    }
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}

/// Calls `some` for a duration; returns the sum of its results per second.
#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
pub fn per_second(
    duration: Duration,
    mut some: impl FnMut() -> Result<u64, PerfError>,
) -> Result<f64, PerfError> {
    let warm = Instant::now() + WARM_UP;
    while Instant::now() < warm {
        some()?;
    }
    let (begun, mut count) = (Instant::now(), 0);
    loop {
        count += some()?;
        let elapsed = begun.elapsed();
        // On a busy machine nothing may have been counted yet.
        if elapsed >= duration && count > 0 {
            return Ok(count as f64 / elapsed.as_secs_f64());
        }
    }
}

/// The times of a stream's messages.
#[derive(Debug)]
pub struct Schedule {
    begun: Instant,
    per_second: Option<f64>,
    late_max: Duration,
}

impl Schedule {
    /// Without a rate, any number is due at any time.
    #[expect(clippy::disallowed_methods, reason = "this is what is measured")]
    pub fn new(per_second: Option<u32>) -> Self {
        let per_second = per_second.map(f64::from);
        Self { begun: Instant::now(), per_second, late_max: Duration::ZERO }
    }

    /// How many more are due by now, after those that were sent.
    pub fn due(&mut self, sent: u64) -> u64 {
        self.per_second.map_or(u64::MAX, |rate| self.due_after(sent, rate, self.begun.elapsed()))
    }

    fn due_after(&mut self, sent: u64, rate: f64, elapsed: Duration) -> u64 {
        // The first is due at the beginning.
        let due = ((elapsed.as_secs_f64() * rate) as u64 + 1).saturating_sub(sent);
        if due > 0 && elapsed > WARM_UP {
            let late = elapsed.saturating_sub(Duration::from_secs_f64(sent as f64 / rate));
            self.late_max = self.late_max.max(late);
        }
        due
    }

    /// How late a message was at most, since the warm-up; `None` without a rate.
    pub fn late_max(&self) -> Option<Duration> {
        self.per_second.map(|_| self.late_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;

    #[test]
    fn latency_is_half_of_round_trips() {
        let mut round_trips = Histogram::new_with_bounds(1, NANOSECONDS_MAX, 3).expect("bounds");
        (1..=1000).for_each(|round| round_trips.record(round * 2).expect("within the bounds"));
        let latency = Latency::of(&round_trips, Duration::from_micros(7));
        assert_eq!((latency.samples, latency.min_ns, latency.max_ns), (1000, 1.0, 1000.0));
        assert_eq!(latency.percentile(50.0), Some(500.0));
        assert_eq!(latency.percentile(90.0), Some(900.0));
        assert_eq!((latency.percentile(12.5), latency.first_ns), (None, 7000.0));
        let kept = BASE64_STANDARD.decode(&latency.round_trips).expect("it is base 64");
        let kept: Histogram<u64> =
            Deserializer::new().deserialize(&mut &kept[..]).expect("it is a histogram");
        assert_eq!(kept, round_trips);
    }

    #[test]
    fn a_stream_that_was_held_up_sends_what_it_missed_and_says_how_late_it_was() {
        let mut schedule = Schedule::new(Some(1000));
        let mut sent = 0;
        let mut after = |milliseconds: u64| {
            let due = schedule.due_after(sent, 1000.0, Duration::from_millis(milliseconds));
            sent += due;
            (due, schedule.late_max())
        };
        assert_eq!(after(0), (1, Some(Duration::ZERO)));
        assert_eq!(after(90), (90, Some(Duration::ZERO)), "in the warm-up");
        assert_eq!(after(101), (11, Some(Duration::from_millis(10))));
        assert_eq!(after(102), (1, Some(Duration::from_millis(10))));
        assert_eq!(after(132), (30, Some(Duration::from_millis(29))));
        assert_eq!((after(132).0, sent), (0, 133));
        assert_eq!((Schedule::new(None).due(7), Schedule::new(None).late_max()), (u64::MAX, None));
    }

    #[test]
    fn a_pause_shows_in_every_message_that_it_delayed() {
        let pause = Duration::from_millis(20);
        let (mut is_warm, mut paused) = (None::<Instant>, false);
        #[expect(clippy::disallowed_methods, reason = "the round is one pause of the machine")]
        let round = || {
            let begun = *is_warm.get_or_insert_with(Instant::now);
            if !paused && begun.elapsed() > WARM_UP + pause {
                paused = true;
                std::thread::sleep(pause);
            }
            Ok(())
        };
        let latency = ping_pong(4 * pause, Some(10_000), round).expect("nothing fails");
        let held_up = latency.percentile(90.0).expect("it is kept");
        // Of 800 messages 200 were due in the pause, nine in ten of them a tenth of it before its
        // end or more.
        assert!(held_up * 2.0 > pause.as_nanos() as f64 / 10.0, "{latency:?}");
    }
}
