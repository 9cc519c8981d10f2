//! A run as data for other programs: as CSV, and as a log for the tools of HdrHistogram.

use crate::plan::{MeasurementOutcome, Plan};
use crate::samples::Latency;
use crate::stored::{StoredRow, StoredRun};
use std::fmt::{Debug, Write};

/// One line per figure of each row. The figures of a comparison with a peer are ratios.
pub fn csv(run: &StoredRun) -> String {
    let mut text = String::from(
        "name,unit,round,figure,what,layer,transport,bytes,messages,lost,p99_ns,p99_9_ns,max_ns\n",
    );
    for row in &run.rows {
        let measured: Vec<_> = row.measured().map_or(Vec::new(), |(plan, _)| {
            row.counted().map(|one| of_outcome(plan, &one.outcome)).collect()
        });
        for (nth, figure) in row.figures.iter().enumerate() {
            let [name, unit] = [&row.name, &row.unit].map(|text| quote(text));
            let rest = measured.get(nth).map_or(",,,,,,,,", String::as_str);
            writeln!(text, "{name},{unit},{},{figure},{rest}", nth + 1)
                .expect("a string takes all");
        }
    }
    text
}

/// The last columns, from `what` to `max_ns`, for one round of a plan.
fn of_outcome(plan: &Plan, outcome: &MeasurementOutcome) -> String {
    let lower = |value: &dyn Debug| format!("{value:?}").to_lowercase();
    let [what, layer, transport] = [lower(&plan.what), lower(&plan.layer), lower(&plan.transport)];
    let rest = match outcome {
        MeasurementOutcome::Latency(latency) => {
            let tail = [99.0, 99.9].map(|percent| {
                let found = latency.percentiles.iter().find(|one| one.percent == percent);
                let found = found.filter(|one| one.is_of(latency.samples));
                found.map(|one| one.ns.to_string()).unwrap_or_default()
            });
            let Latency { samples, lost, max_ns, .. } = latency;
            format!("{samples},{lost},{},{max_ns}", tail.join(","))
        }
        MeasurementOutcome::OneWay { sent, lost, .. } => format!("{sent},{lost},,,"),
        MeasurementOutcome::Connections { .. } => ",,,,".into(),
    };
    format!("{what},{layer},{transport},{},{rest}", plan.bytes)
}

/// Quotes a field if it contains a comma, a quote or a line break (RFC 4180 2).
fn quote(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

/// One interval per round, with its histogram of round trips in nanoseconds. The tag of an interval
/// is the name of its row.
///
/// Start timestamps are the sums of the durations of all earlier intervals, because a stored round
/// has no start time.
pub fn hdr_log(run: &StoredRun) -> String {
    let mut text = String::from(
        "#[Histogram log format version 1.3]\n\"StartTimestamp\",\"Interval_Length\",\
         \"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
    );
    let mut start = 0.0;
    for (row, plan) in run.rows.iter().filter_map(|row| Some((row, row.measured()?.0))) {
        for latency in row.latencies() {
            let (length, tag) = (plan.duration.as_secs_f64(), tag(row));
            let factor = if plan.is_of_whole_round_trips() { 1.0 } else { 2.0 };
            let (max, histogram) = (latency.max_ns * factor, &latency.round_trips);
            writeln!(text, "Tag={tag},{start:.3},{length:.3},{max:.3},{histogram}")
                .expect("a string takes all");
            start += length;
        }
    }
    text
}

/// The name of a row as a tag, in which the log format allows no comma and no space.
fn tag(row: &StoredRow) -> String {
    row.name.replace(',', "").replace(' ', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controls::Controls;
    use crate::environment::Environment;
    use crate::plan::{Layer, Measured, MeasuredTransport, What};
    use crate::samples;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use std::time::Duration;

    #[test]
    fn what_has_a_comma_is_quoted() {
        assert_eq!(quote("GB/s"), "GB/s");
        assert_eq!(quote("lat, \"64\" bytes"), "\"lat, \"\"64\"\" bytes\"");
    }

    #[test]
    fn a_log_is_read_by_the_library_of_its_format() {
        let mut round_trips = samples::histogram();
        (1..=100).for_each(|ns| round_trips.record(ns * 1000).expect("within the bounds"));
        let latency = Latency::of(&round_trips, Duration::ZERO);
        let plan = Plan::new(What::Lat, Layer::Verbs, MeasuredTransport::Rc, 64);
        let measured = || Measured {
            outcome: MeasurementOutcome::Latency(latency.clone()),
            setup_seconds: 0.0,
            cores_busy: [None; 2],
            disturbance: None,
        };
        let controls = Controls { copy_bytes_per_second: 10e9, cache_line_ns: None };
        let mut run = StoredRun::new(Environment::now(None), controls);
        run.rows = vec![StoredRow::new(plan, vec![measured(), measured()], false)];
        let lines = csv(&run);
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(
            lines[1],
            "\"lat of verbs over rc, 64 bytes\",ns,1,25007.5,lat,verbs,rc,64,100,0,,,50015.5"
        );
        let commas = |line: &str| line.replace(", ", "").matches(',').count();
        assert!(lines.iter().all(|line| commas(line) == 12), "{lines:?}");
        let log = hdr_log(&run);
        let entries: Vec<_> =
            IntervalLogIterator::new(log.as_bytes()).filter_map(Result::ok).collect();
        let intervals = entries.iter().filter_map(|entry| match entry {
            LogEntry::Interval(interval) => Some(interval),
            _ => None,
        });
        let intervals: Vec<_> = intervals.collect();
        assert_eq!(intervals.len(), 2, "{log}");
        assert_eq!(
            intervals[1].tag().map(|tag| tag.as_str()),
            Some("lat_of_verbs_over_rc_64_bytes")
        );
        assert_eq!(intervals[1].start_timestamp(), Duration::from_secs(1));
        assert_eq!(intervals[1].encoded_histogram(), latency.round_trips);
    }
}
