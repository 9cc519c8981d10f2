//! What disturbed a measurement: other programs, a host that took cores away from a virtual
//! machine, and cores that were slowed down since they were too hot.
//!
//! ```text
//!   others = busy time of all cores - our time - that of programs we started, which have ended
//! ```
//!
//! Time in interrupts is not counted: it may be caused by ourselves.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::time::Instant;

/// Above this share of a core, a measurement does not count.
const SHARE_MAX: f64 = 0.1;
/// Less time than this is the coarseness of the times.
const SECONDS_MIN: f64 = 0.05;
/// Of the times in `/proc`, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Disturbance {
    /// The time that other programs took, in cores.
    pub others_cores: f64,
    /// The time that the host took, in cores.
    pub stolen_cores: f64,
    /// How often a core was slowed down.
    pub throttled: u64,
    /// The duration of the measurement.
    pub seconds: f64,
}

impl Disturbance {
    pub fn is_too_much(&self) -> bool {
        let share = self.others_cores.max(self.stolen_cores);
        self.throttled > 0 || share > SHARE_MAX && share * self.seconds > SECONDS_MIN
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [others, stolen] = [self.others_cores, self.stolen_cores].map(|share| share * 100.0);
        match (self.throttled, stolen > others) {
            (1.., _) => write!(f, "a core was too hot, and slowed down"),
            (0, true) => write!(f, "the host took {stolen:.0} % of a core"),
            (0, false) => write!(f, "other programs took {others:.0} % of a core"),
        }
    }
}

/// Seconds since the machine, or this process, has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    busy: f64,
    stolen: f64,
    ours: f64,
    throttled: u64,
}

impl Times {
    fn now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let ours = of_process(&read("/proc/self/stat"));
        let [busy, stolen] = of_machine(&read("/proc/stat"));
        let cores = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
        let counts = cores.map(|core| core.path().join("thermal_throttle/core_throttle_count"));
        let counts =
            counts.filter_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
        Self { busy, stolen, ours, throttled: counts.sum() }
    }

    fn since(self, before: Self, seconds: f64) -> Disturbance {
        let others = (self.busy - before.busy) - (self.ours - before.ours);
        let shares = [others, self.stolen - before.stolen].map(|it| (it / seconds).max(0.0));
        let throttled = self.throttled.saturating_sub(before.throttled);
        Disturbance { others_cores: shares[0], stolen_cores: shares[1], throttled, seconds }
    }
}

/// Watches the machine until its end.
pub struct Watch {
    begun: Instant,
    before: Times,
}

#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
impl Watch {
    pub fn start() -> Self {
        Self { before: Times::now(), begun: Instant::now() }
    }

    /// Programs that the measurement started have to have ended, and been waited for; others that
    /// took part took so many seconds.
    pub fn end(&self, of_others: f64) -> Disturbance {
        let mut now = Times::now();
        now.ours += of_others;
        now.since(self.before, self.begun.elapsed().as_secs_f64())
    }
}

/// Busy and stolen seconds, from `user nice system idle iowait irq softirq steal`.
fn of_machine(stat: &str) -> [f64; 2] {
    let of = |nth| seconds(stat.lines().next().unwrap_or_default(), nth);
    [of(1) + of(2) + of(3), of(8)]
}

/// Of a process and of those that it started and has waited for. The name of the program, in
/// parentheses, may contain anything.
fn of_process(stat: &str) -> f64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    (11..15).map(|nth| seconds(after_name, nth)).sum()
}

/// The nth field of a line.
fn seconds(line: &str, nth: usize) -> f64 {
    let ticks = line.split_whitespace().nth(nth).and_then(|field| field.parse::<f64>().ok());
    ticks.unwrap_or_default() / TICKS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn times_are_those_of_the_kernels_columns() {
        let stat = "cpu  100 200 300 4000 50 60 70 80 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        assert_eq!(of_machine(stat), [6.0, 0.8]);
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 100 200 300 400 20 0";
        assert_eq!(of_process(stat), 10.0);
        assert_eq!((of_machine(""), of_process("")), ([0.0; 2], 0.0));
    }

    #[test]
    fn what_others_take_is_what_is_left() {
        let before = Times { busy: 100.0, stolen: 7.0, ours: 30.0, throttled: 3 };
        let after = Times { busy: 103.0, stolen: 7.5, ours: 32.0, throttled: 3 };
        let disturbance = after.since(before, 2.0);
        let expected =
            Disturbance { others_cores: 0.5, stolen_cores: 0.25, throttled: 0, seconds: 2.0 };
        assert_eq!(disturbance, expected);
        assert!(disturbance.is_too_much());
        assert_eq!(disturbance.to_string(), "other programs took 50 % of a core");
        // Our time is written more often than that of the machine.
        let later = Times { ours: 35.0, ..after };
        assert_eq!(later.since(before, 2.0).others_cores, 0.0);
        let quiet = Disturbance { others_cores: 0.05, stolen_cores: 0.0, ..expected };
        assert!(!quiet.is_too_much());
        assert!(!Disturbance { seconds: 0.05, ..disturbance }.is_too_much());
        let hot = Disturbance { throttled: 1, ..quiet };
        assert!(hot.is_too_much() && hot.to_string().contains("too hot"));
    }

    /// Ours that ends counts as ours, which the sum of all times cannot show on a busy machine.
    #[test]
    fn programs_that_we_started_are_ours_once_they_have_ended() {
        let before = Times::now();
        let command = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let mut shell = Command::new("sh");
        let status = shell.args(["-c", command]).stdin(Stdio::null()).status().expect("it runs");
        assert!(status.success());
        assert!(Times::now().ours > before.ours, "{before:?}");
    }
}
