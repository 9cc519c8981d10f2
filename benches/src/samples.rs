//! How long round trips took, and how what is counted goes on in time.
//!
//! In a closed loop a message goes out when the one before was answered, and one reading of the
//! clock ends one round trip and begins the next. In an open loop messages fall due at fixed times;
//! one that waits because an answer is late counts from when it was due, so a pause of the machine
//! shows in every message that it held up and not only in one (coordinated omission).

use crate::error::PerfError;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What does not count, at the beginning: caches, ways and connections come to be.
const WARM_UP: Duration = Duration::from_millis(100);
/// The longest round trip that is told from longer ones.
const NANOSECONDS_MAX: u64 = 60_000_000_000;
/// Which percentiles are kept.
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999];

/// Half of what round trips took, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Round trips.
    pub samples: u64,
    /// The shortest.
    pub min: f64,
    /// All of them together, by their number.
    pub mean: f64,
    /// What so many parts of a hundred did not exceed.
    pub percentiles: Vec<(f64, f64)>,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// The percentile, which is one of those that are kept.
    pub fn percentile(&self, wanted: f64) -> Option<f64> {
        self.percentiles.iter().find(|(part, _)| *part == wanted).map(|(_, value)| *value)
    }

    fn of(round_trips: &Histogram<u64>) -> Self {
        let half = |nanoseconds: u64| nanoseconds as f64 / 2.0;
        let at = |part: f64| (part, half(round_trips.value_at_percentile(part)));
        Self {
            samples: round_trips.len(),
            min: half(round_trips.min()),
            mean: round_trips.mean() / 2.0,
            percentiles: PERCENTILES.map(at).to_vec(),
            max: half(round_trips.max()),
        }
    }
}

/// Goes to and fro for so long, and counts each round. With so many a second each falls due at its
/// time.
#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
pub fn ping_pong(
    duration: Duration,
    per_second: Option<u32>,
    mut round: impl FnMut() -> Result<(), PerfError>,
) -> Result<Latency, PerfError> {
    let warm = Instant::now() + WARM_UP;
    while Instant::now() < warm {
        round()?;
    }
    let mut round_trips =
        Histogram::new_with_bounds(1, NANOSECONDS_MAX, 3).expect("the bounds are such");
    let interval = per_second.map(|rate| Duration::from_secs(1) / rate);
    let mut due = Instant::now();
    let end = due + duration;
    loop {
        while interval.is_some() && Instant::now() < due {
            std::hint::spin_loop();
        }
        round()?;
        let now = Instant::now();
        round_trips.saturating_record(now.duration_since(due).as_nanos() as u64);
        due = interval.map_or(now, |interval| due + interval);
        // All that fell due in time counts, also what is late.
        if due >= end {
            return Ok(Latency::of(&round_trips));
        }
    }
}

/// Does something for so long, and says how many times a second it was done; each call says how
/// many times it was.
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
        // A machine that others keep busy may have done nothing yet.
        if elapsed >= duration && count > 0 {
            return Ok(count as f64 / elapsed.as_secs_f64());
        }
    }
}

/// The value in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_half_of_round_trips() {
        let mut round_trips = Histogram::new_with_bounds(1, NANOSECONDS_MAX, 3).expect("bounds");
        (1..=1000).for_each(|round| round_trips.record(round * 2).expect("within the bounds"));
        let latency = Latency::of(&round_trips);
        assert_eq!((latency.samples, latency.min, latency.max), (1000, 1.0, 1000.0));
        assert_eq!(latency.percentile(50.0), Some(500.0));
        assert_eq!(latency.percentile(90.0), Some(900.0));
        assert_eq!(latency.percentile(12.5), None);
    }

    #[test]
    fn a_pause_shows_in_every_message_that_it_held_up() {
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

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(Vec::new()), None);
    }
}
