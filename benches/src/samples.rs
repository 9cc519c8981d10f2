//! Latency histograms and rates.
//!
//! A closed loop sends the next message when the previous one is answered. One clock reading ends a
//! round trip and begins the next. An open loop schedules messages at fixed times, and measures
//! each latency from the scheduled send time. A pause of the machine therefore shows in every
//! message that it delays, not only in one: this avoids coordinated omission.
//!
//! A latency of messages in a closed loop is half a round trip. Latencies of an open loop, of reads
//! and of atomics are whole round trips.

use crate::error::PerfError;
use base64::prelude::{BASE64_STANDARD, Engine};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Time before each measurement that fills caches and opens connections. Results exclude it.
const WARM_UP: Duration = Duration::from_millis(100);
const NANOSECONDS_MAX: u64 = 60_000_000_000;
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    pub samples: u64,
    /// Messages that were lost and sent again, including those of the warm-up.
    pub lost: u64,
    /// In an open loop, the number of messages that were answered per second.
    #[serde(default)]
    pub achieved_per_second: Option<f64>,
    /// The mean of each part of the measurement, in nanoseconds.
    #[serde(default)]
    pub timeline: Timeline,
    /// The round trip of the first message, before the warm-up. It includes address resolution and
    /// connection setup.
    pub first_ns: f64,
    pub min_ns: f64,
    pub mean_ns: f64,
    pub percentiles: Vec<Percentile>,
    pub max_ns: f64,
    /// Whole round trips in nanoseconds: a histogram in the format of HdrHistogram logs (V2,
    /// deflated, base64).
    pub round_trips: String,
}

/// The latency that `percent` of all messages did not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Percentile {
    pub percent: f64,
    pub ns: f64,
}

impl Latency {
    /// A percentile in nanoseconds; `None` if [`Latency::percentiles`] does not contain it.
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
            achieved_per_second: None,
            timeline: Timeline::new(),
            first_ns: first.as_nanos() as f64,
            min_ns: half(round_trips.min()),
            mean_ns: round_trips.mean() / 2.0,
            percentiles: PERCENTILES.map(at).to_vec(),
            max_ns: half(round_trips.max()),
            round_trips: encode(round_trips),
        }
    }
}

/// A percentile above 75 % is meaningful only with at least this many messages above it.
const ABOVE_MIN: f64 = 10.0;

impl Percentile {
    /// Whether the percentile is meaningful for this number of messages.
    pub fn is_of(&self, samples: u64) -> bool {
        let above = samples as f64 * (100.0 - self.percent) / 100.0;
        self.percent <= 75.0 || above + 1e-6 >= ABOVE_MIN
    }
}

impl Latency {
    /// Merges the histograms of several rounds. With `is_whole`, latencies are whole round trips,
    /// otherwise halves. Returns `None` without rounds, or if a histogram is malformed.
    pub fn merged<'a>(rounds: impl Iterator<Item = &'a Self>, is_whole: bool) -> Option<Self> {
        let (mut all, mut lost, mut first, mut achieved) = (histogram(), 0, None, Vec::new());
        for round in rounds {
            let bytes = BASE64_STANDARD.decode(&round.round_trips).ok()?;
            let round_trips: Histogram<u64> =
                Deserializer::new().deserialize(&mut &bytes[..]).ok()?;
            all.add(&round_trips).ok()?;
            lost += round.lost;
            achieved.extend(round.achieved_per_second);
            first.get_or_insert(Duration::from_nanos(round.first_ns as u64));
        }
        // The lowest rate of all rounds.
        let achieved_per_second = achieved.into_iter().reduce(f64::min);
        let merged = Self { lost, achieved_per_second, ..Self::of(&all, first?) };
        Some(if is_whole { merged.of_whole_round_trips() } else { merged })
    }

    /// Converts half round trips to whole ones: for an open loop, and for reads and atomics, to
    /// which the other end sends no message of its own.
    pub fn of_whole_round_trips(mut self) -> Self {
        for time in [&mut self.min_ns, &mut self.mean_ns, &mut self.max_ns] {
            *time *= 2.0;
        }
        self.percentiles.iter_mut().for_each(|one| one.ns *= 2.0);
        self.timeline.iter_mut().for_each(|[_, mean]| *mean *= 2.0);
        self
    }
}

fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    let written = V2DeflateSerializer::new().serialize(histogram, &mut bytes);
    written.expect("a vector takes all");
    BASE64_STANDARD.encode(bytes)
}

/// An empty histogram of nanoseconds, with three significant digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, NANOSECONDS_MAX, 3).expect("the bounds are such")
}

/// A sender that has slept spins for this time before a message is due.
const AWAKE: Duration = Duration::from_micros(500);

/// A measured value over time. A measurement is divided into parts; each has its middle, in seconds
/// since the start of the measurement, and its value: a mean latency, or a rate.
pub type Timeline = Vec<[f64; 2]>;

/// The number of parts of a measurement.
const PARTS: u32 = 20;

/// Builds a [`Timeline`].
struct Course {
    /// The round divided by [`PARTS`].
    part: Duration,
    /// The start of the current part, since the start of the round.
    begun: Duration,
    /// The number of values in the current part.
    count: u64,
    /// The sum of values in the current part.
    sum: u64,
    timeline: Timeline,
}

impl Course {
    fn new(duration: Duration) -> Self {
        let timeline = Vec::with_capacity(PARTS as usize + 1);
        Self { part: duration / PARTS, begun: Duration::ZERO, count: 0, sum: 0, timeline }
    }

    /// Adds a value. At the end of a part, `figure` computes its figure from the sum and the count
    /// of its values, and its duration in seconds.
    fn add(&mut self, elapsed: Duration, value: u64, figure: impl Fn(f64, f64, f64) -> f64) {
        self.count += 1;
        self.sum += value;
        let seconds = elapsed.saturating_sub(self.begun);
        if seconds >= self.part {
            let middle = self.begun + seconds / 2;
            let figure = figure(self.sum as f64, self.count as f64, seconds.as_secs_f64());
            self.timeline.push([middle.as_secs_f64(), figure]);
            (self.begun, self.count, self.sum) = (elapsed, 0, 0);
        }
    }
}

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
    let (begun, mut course) = (Instant::now(), Course::new(duration));
    let mut due = begun;
    let end = due + duration;
    loop {
        if interval.is_some() {
            wait_until(due);
        }
        round()?;
        let now = Instant::now();
        let took = now.duration_since(due).as_nanos() as u64;
        round_trips.saturating_record(took);
        course.add(now.duration_since(begun), took, |sum, count, _| sum / count / 2.0);
        due = interval.map_or(now, |interval| due + interval);
        // Every message scheduled within the duration counts, even if it is sent later.
        if due >= end {
            let latency = Latency { timeline: course.timeline, ..Latency::of(&round_trips, first) };
            return Ok(match interval {
                // A latency includes the wait before sending, so half of it has no meaning.
                Some(_) => Latency {
                    achieved_per_second: Some(
                        latency.samples as f64 / begun.elapsed().as_secs_f64(),
                    ),
                    ..latency.of_whole_round_trips()
                },
                None => latency,
            });
        }
    }
}

/// Sleeps until shortly before a message is due, then spins. Why not spin all the time: a real-time
/// thread that always spins exceeds its share of each second (`sched_rt_runtime_us`). The kernel
/// then stops it, by default for 50 ms. At 1,000 messages per second and more there is no time to
/// sleep, so such a thread does spin all the time.
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

#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRate {
    pub per_second: f64,
    pub timeline: Timeline,
}

/// Calls `some` repeatedly for a duration, after a warm-up. Returns the sum of its results per
/// second.
#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
pub fn per_second(
    duration: Duration,
    mut some: impl FnMut() -> Result<u64, PerfError>,
) -> Result<MeasuredRate, PerfError> {
    let warm = Instant::now() + WARM_UP;
    while Instant::now() < warm {
        some()?;
    }
    let (begun, mut count, mut course) = (Instant::now(), 0, Course::new(duration));
    loop {
        let some = some()?;
        count += some;
        let elapsed = begun.elapsed();
        course.add(elapsed, some, |sum, _, seconds| sum / seconds);
        // On a busy machine, the count may still be 0 after the duration.
        if elapsed >= duration && count > 0 {
            let per_second = count as f64 / elapsed.as_secs_f64();
            return Ok(MeasuredRate { per_second, timeline: course.timeline });
        }
    }
}

/// The send times of a stream's messages.
#[derive(Debug)]
pub struct Schedule {
    begun: Instant,
    per_second: Option<f64>,
    late_max: Duration,
}

impl Schedule {
    /// Without a rate, messages are always due.
    #[expect(clippy::disallowed_methods, reason = "this is what is measured")]
    pub fn new(per_second: Option<u32>) -> Self {
        let per_second = per_second.map(f64::from);
        Self { begun: Instant::now(), per_second, late_max: Duration::ZERO }
    }

    /// The number of messages that are due now, beyond `sent`.
    pub fn due(&mut self, sent: u64) -> u64 {
        self.per_second.map_or(u64::MAX, |rate| self.due_after(sent, rate, self.begun.elapsed()))
    }

    /// The number of due messages to send at the end of the stream; 0 without a rate.
    pub fn left(&mut self, sent: u64) -> u64 {
        if self.per_second.is_some() { self.due(sent) } else { 0 }
    }

    fn due_after(&mut self, sent: u64, rate: f64, elapsed: Duration) -> u64 {
        // The first message is due at the start.
        let due = ((elapsed.as_secs_f64() * rate) as u64 + 1).saturating_sub(sent);
        if due > 0 && elapsed > WARM_UP {
            let late = elapsed.saturating_sub(Duration::from_secs_f64(sent as f64 / rate));
            self.late_max = self.late_max.max(late);
        }
        due
    }

    /// The largest delay of a message after its due time, without the warm-up; `None` without a
    /// rate.
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
    fn a_course_has_each_part_once_and_a_pause_in_the_middle_of_its_own() {
        let mut course = Course::new(Duration::from_secs(2));
        let times = (0..=2000).step_by(10).filter(|time| !(505..905).contains(time));
        for time in times {
            course.add(Duration::from_millis(time), 7, |sum, count, seconds| {
                assert!((sum / count - 7.0).abs() < 1e-9);
                count / seconds
            });
        }
        let parts = course.timeline;
        assert_eq!(parts.len(), 16);
        assert!(
            parts.iter().all(|[at, rate]| *rate > 99.0 || (0.4..0.9).contains(at)),
            "{parts:?}"
        );
        let pause = parts.iter().find(|[_, rate]| *rate < 30.0).expect("it shows");
        assert!((0.5..0.9).contains(&pause[0]), "{parts:?}");
    }

    #[test]
    fn rounds_together_are_their_messages_together() {
        let round = |times: std::ops::RangeInclusive<u64>| {
            let mut round_trips = histogram();
            times.for_each(|time| round_trips.record(time * 2).expect("within the bounds"));
            Latency { lost: 1, ..Latency::of(&round_trips, Duration::from_micros(7)) }
        };
        let rounds = [round(1..=100), round(901..=1000)];
        let merged = Latency::merged(rounds.iter(), false).expect("there are two");
        assert_eq!((merged.samples, merged.lost, merged.min_ns), (200, 2, 1.0));
        assert_eq!((merged.percentile(50.0), merged.percentile(75.0)), (Some(100.0), Some(950.0)));
        let whole = Latency::merged(rounds.iter(), true).expect("there are two");
        assert_eq!(whole.percentile(50.0), Some(200.0));
        assert_eq!(Latency::merged([].into_iter(), false), None);
    }

    #[test]
    fn percentiles_need_messages_above_them() {
        let at = |percent| Percentile { percent, ns: 0.0 };
        assert!(at(50.0).is_of(1) && at(90.0).is_of(100) && at(99.999).is_of(1_000_000));
        assert!(!at(90.0).is_of(99) && !at(99.9).is_of(9_999));
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
        assert_eq!(Schedule::new(None).left(7), 0);
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
        // 200 of 800 messages fall due in the pause. 180 of them, more than 10 % of all messages,
        // wait for at least a tenth of it.
        assert!(held_up > pause.as_nanos() as f64 / 10.0, "{latency:?}");
        assert!(latency.max_ns >= pause.as_nanos() as f64, "{latency:?}");
        assert!(latency.achieved_per_second.is_some_and(|rate| rate <= 10_500.0), "{latency:?}");
    }
}
