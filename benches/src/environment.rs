//! The environment of a measurement: the properties of a machine that decide figures.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    pub cpu: String,
    pub cores: usize,
    pub is_virtual: bool,
    /// None in most virtual machines.
    pub governor: String,
    pub isolated: String,
    /// Reserved huge pages, and the policy of transparent ones.
    pub huge_pages: String,
    pub clock: String,
    pub kernel: String,
    /// The load averages of one, five and fifteen minutes.
    pub load: String,
    pub fifo: Option<u8>,
    /// The percentage of each second that the kernel lets real-time threads run, if there is a
    /// limit: those that poll are stopped for the rest of it, 50 ms by default.
    pub real_time_percent: Option<u32>,
}

impl Environment {
    pub fn now(fifo: Option<u8>) -> Self {
        let read = |path: &str| match fs::read_to_string(path) {
            Ok(text) if !text.trim().is_empty() => text.trim().to_string(),
            _ => "none".into(),
        };
        let cpuinfo = read("/proc/cpuinfo");
        let of = |key: &str| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
        };
        let cpu = "/sys/devices/system/cpu";
        let pages = read("/proc/sys/vm/nr_hugepages");
        let transparent = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let clocks = "/sys/devices/system/clocksource/clocksource0";
        let load = read("/proc/loadavg");
        let micros =
            |name| read(&format!("/proc/sys/kernel/sched_rt_{name}_us")).parse::<u32>().ok();
        Self {
            cpu: of("model name").unwrap_or(std::env::consts::ARCH).into(),
            cores: core_affinity::get_core_ids().map_or(0, |cores| cores.len()),
            is_virtual: of("flags").is_some_and(|flags| flags.contains("hypervisor")),
            governor: read(&format!("{cpu}/cpu0/cpufreq/scaling_governor")),
            isolated: read(&format!("{cpu}/isolated")),
            huge_pages: format!("{pages}, transparent: {transparent}"),
            clock: read(&format!("{clocks}/current_clocksource")),
            kernel: read("/proc/sys/kernel/osrelease"),
            load: load.split(' ').take(3).collect::<Vec<_>>().join(" "),
            fifo,
            real_time_percent: percent(micros("runtime"), micros("period")),
        }
    }
}

impl Environment {
    /// Whether both are of one machine, as far as figures depend on it.
    pub fn is_of_machine(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.cpu.clone(), it.cores, it.kernel.clone(), it.clock.clone());
        of(self) == of(other)
    }

    /// Names and values, for people.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let kind = if self.is_virtual { "virtual" } else { "in hardware" };
        let fifo = self.fifo.map_or("ordinary".into(), |fifo| format!("SCHED_FIFO {fifo}"));
        let real_time = self.real_time_percent.map(|percent| format!("{percent} % of each second"));
        vec![
            ("processor", self.cpu.clone()),
            ("cores", format!("{}, {kind}", self.cores)),
            ("kernel", self.kernel.clone()),
            ("clock", self.clock.clone()),
            ("governor", self.governor.clone()),
            ("isolated cores", self.isolated.clone()),
            ("huge pages", self.huge_pages.clone()),
            ("load before", self.load.clone()),
            ("priority", fifo),
            ("limit of real time", real_time.unwrap_or("none".into())),
        ]
    }
}

/// The part of a period; `None` without a limit, which is written as -1.
fn percent(part: Option<u32>, period: Option<u32>) -> Option<u32> {
    let (part, period) = (part?, period?);
    (part < period).then(|| (u64::from(part) * 100 / u64::from(period)) as u32)
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_virtual { "virtual " } else { "" };
        writeln!(f, "{} {kind}cores, {}, kernel {}", self.cores, self.cpu, self.kernel)?;
        let Self { governor, isolated, huge_pages, clock, load, .. } = self;
        writeln!(f, "governor {governor}, isolated {isolated}, huge pages {huge_pages}")?;
        let fifo = self.fifo.map_or("ordinary".into(), |fifo| format!("SCHED_FIFO {fifo}"));
        write!(f, "clock {clock}, load {load}, priority {fifo}")?;
        match self.real_time_percent.filter(|_| self.fifo.is_some()) {
            Some(percent) => write!(
                f,
                "\nthe kernel stops real-time threads after {percent} % of each second: \
                 sysctl kernel.sched_rt_runtime_us=-1"
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_an_environment() {
        let environment = Environment { real_time_percent: None, ..Environment::now(Some(50)) };
        assert!(environment.cores > 0 && !environment.cpu.is_empty());
        assert!(environment.load.split(' ').count() == 3, "{environment}");
        assert!(environment.to_string().ends_with("SCHED_FIFO 50"), "{environment}");
    }

    #[test]
    fn the_limit_of_real_time_threads_is_shown_with_a_priority() {
        let percent = percent(Some(950_000), Some(1_000_000));
        assert_eq!(percent, Some(95));
        assert_eq!(super::percent(None, Some(1_000_000)), None, "-1 is no limit");
        assert_eq!(super::percent(Some(1_000_000), Some(1_000_000)), None);
        let limited = |fifo| Environment { real_time_percent: percent, ..Environment::now(fifo) };
        assert!(limited(Some(50)).to_string().contains("after 95 % of each second"));
        assert!(!limited(None).to_string().contains('%'));
    }
}
