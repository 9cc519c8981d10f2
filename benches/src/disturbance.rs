//! Detects disturbances of a measurement: CPU time of other programs, CPU time that a hypervisor
//! steals from the virtual machine, and thermal throttling.
//!
//! ```text
//!   others = busy time of all cores - our time - time of our child processes that have ended
//! ```
//!
//! Busy time excludes interrupts, because our own traffic may cause them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::time::Instant;

/// The share of a core that others may take without disturbing a measurement.
const SHARE_MAX: f64 = 0.1;
/// CPU time up to this does not disturb either: the times in `/proc` are coarse.
const SECONDS_MIN: f64 = 0.05;
/// The unit of the times in `/proc` (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Disturbance {
    /// The CPU time of other programs, in cores.
    pub others_cores: f64,
    /// The CPU time that the hypervisor gave to others, in cores.
    pub stolen_cores: f64,
    /// The number of times that a core was throttled.
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

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    /// CPU seconds of all programs since the machine started.
    busy: f64,
    /// CPU seconds that the hypervisor gave to others, since the machine started.
    stolen: f64,
    /// CPU seconds of this process and of its children that have ended.
    ours: f64,
    /// Throttling events of all cores.
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

/// Watches the machine between [`Watch::start`] and [`Watch::end`].
pub struct Watch {
    begun: Instant,
    before: Times,
}

#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
impl Watch {
    pub fn start() -> Self {
        Self { before: Times::now(), begun: Instant::now() }
    }

    /// Child processes of the measurement must have ended, and the caller must have waited for
    /// them: only then do their times count as ours. `of_others` is the CPU time, in seconds, of
    /// other processes that took part in the measurement.
    pub fn end(&self, of_others: f64) -> Disturbance {
        let mut now = Times::now();
        now.ours += of_others;
        now.since(self.before, self.begun.elapsed().as_secs_f64())
    }
}

/// Busy and stolen seconds of `/proc/stat`, whose first line has the columns `user nice system idle
/// iowait irq softirq steal`.
fn of_machine(stat: &str) -> [f64; 2] {
    let of = |nth| seconds(stat.lines().next().unwrap_or_default(), nth);
    [of(1) + of(2) + of(3), of(8)]
}

/// CPU seconds of a process and of its children that it has waited for, from `/proc/self/stat`. The
/// second column is the program name in parentheses, which may itself contain spaces and
/// parentheses.
fn of_process(stat: &str) -> f64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    (11..15).map(|nth| seconds(after_name, nth)).sum()
}

/// The nth field of a line, in seconds; 0 if it is missing.
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
        // The kernel updates our time more often than the time of the machine.
        let later = Times { ours: 35.0, ..after };
        assert_eq!(later.since(before, 2.0).others_cores, 0.0);
        let quiet = Disturbance { others_cores: 0.05, stolen_cores: 0.0, ..expected };
        assert!(!quiet.is_too_much());
        assert!(!Disturbance { seconds: 0.05, ..disturbance }.is_too_much());
        let hot = Disturbance { throttled: 1, ..quiet };
        assert!(hot.is_too_much() && hot.to_string().contains("too hot"));
    }

    /// Checks our time directly: on a busy machine, the difference of all times proves nothing.
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
