//! The environment of a measurement: the properties of the machine that affect the figures.

use pollux_node::calendar::{rfc_3339, since_epoch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// Version and commit of this program.
    pub program: String,
    /// By RFC 3339, in UTC.
    pub begun_at: String,
    pub host: String,
    pub cpu: String,
    pub cores: usize,
    pub is_virtual: bool,
    /// The frequency governor; `none` in most virtual machines.
    pub governor: String,
    /// Whether cores are hardware threads that share a physical core.
    pub smt: String,
    /// The NUMA nodes.
    pub numa: String,
    pub isolated: String,
    /// Reserved huge pages, and the policy of transparent ones.
    pub huge_pages: String,
    pub clock: String,
    pub kernel: String,
    /// The active mitigations of speculative execution vulnerabilities.
    pub mitigations: Vec<String>,
    /// Vendor and version of the machine's firmware.
    pub firmware: String,
    /// Hardware adapters, with their firmware and the rate of each port.
    pub adapters: Vec<String>,
    /// The load averages of one, five and fifteen minutes.
    pub load: String,
    pub fifo: Option<u8>,
    /// The percentage of each second that real-time threads may run, if the kernel has a limit. It
    /// stops a polling thread for the rest of the second, by default 50 ms.
    pub real_time_percent: Option<u32>,
}

/// The trimmed text of a file; `none` if it is empty or cannot be read.
fn read(path: impl AsRef<Path>) -> String {
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => text.trim().to_string(),
        _ => "none".into(),
    }
}

/// The sorted names of a folder's entries.
fn names(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

impl Environment {
    pub fn now(fifo: Option<u8>) -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let of = |key: &str| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
        };
        let cpu = "/sys/devices/system/cpu";
        let dmi = |name: &str| read(format!("/sys/class/dmi/id/{name}"));
        let pages = read("/proc/sys/vm/nr_hugepages");
        let transparent = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let clocks = "/sys/devices/system/clocksource/clocksource0";
        let load = read("/proc/loadavg");
        let micros =
            |name| read(format!("/proc/sys/kernel/sched_rt_{name}_us")).parse::<u32>().ok();
        Self {
            program: concat!(env!("CARGO_PKG_VERSION"), " at ", env!("POLLUX_COMMIT")).into(),
            begun_at: rfc_3339(since_epoch()),
            host: read("/proc/sys/kernel/hostname"),
            cpu: of("model name").unwrap_or(std::env::consts::ARCH).into(),
            cores: core_affinity::get_core_ids().map_or(0, |cores| cores.len()),
            is_virtual: of("flags").is_some_and(|flags| flags.contains("hypervisor")),
            governor: read(format!("{cpu}/cpu0/cpufreq/scaling_governor")),
            smt: read(format!("{cpu}/smt/control")),
            numa: read("/sys/devices/system/node/online"),
            isolated: read(format!("{cpu}/isolated")),
            huge_pages: format!("{pages}, transparent: {transparent}"),
            clock: read(format!("{clocks}/current_clocksource")),
            kernel: read("/proc/sys/kernel/osrelease"),
            mitigations: mitigations(Path::new(cpu)),
            firmware: format!("{} {}", dmi("bios_vendor"), dmi("bios_version")),
            adapters: adapters(Path::new("/sys/class/infiniband")),
            load: load.split(' ').take(3).collect::<Vec<_>>().join(" "),
            fifo,
            real_time_percent: percent(micros("runtime"), micros("period")),
        }
    }
}

fn mitigations(cpu: &Path) -> Vec<String> {
    let folder = cpu.join("vulnerabilities");
    let of = |name: &String| {
        let text = read(folder.join(name));
        Some(format!("{name}: {}", text.strip_prefix("Mitigation: ")?))
    };
    names(&folder).iter().filter_map(of).collect()
}

fn adapters(folder: &Path) -> Vec<String> {
    let of = |name: &String| {
        let adapter = folder.join(name);
        let rate = |port: &String| read(adapter.join("ports").join(port).join("rate"));
        let rates: Vec<_> = names(adapter.join("ports")).iter().map(rate).collect();
        format!("{name}: firmware {}, {}", read(adapter.join("fw_ver")), rates.join(", "))
    };
    names(folder).iter().map(of).collect()
}

impl Environment {
    /// Whether figures of both environments belong to one run: the program, processor, number of
    /// cores, kernel and clock source are equal.
    pub fn is_as(&self, other: &Self) -> bool {
        let of = |it: &Self| {
            (it.program.clone(), it.cpu.clone(), it.cores, it.kernel.clone(), it.clock.clone())
        };
        of(self) == of(other)
    }

    /// Names and values for a report.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let kind = if self.is_virtual { "virtual" } else { "in hardware" };
        let fifo = self.fifo.map_or("ordinary".into(), |fifo| format!("SCHED_FIFO {fifo}"));
        let real_time = self.real_time_percent.map(|percent| format!("{percent} % of each second"));
        let list = |all: &[String]| match all {
            [] => "none".into(),
            all => all.join("; "),
        };
        vec![
            ("begun at", self.begun_at.clone()),
            ("pollux-perf", self.program.clone()),
            ("host", self.host.clone()),
            ("processor", self.cpu.clone()),
            ("cores", format!("{}, {kind}", self.cores)),
            ("SMT", self.smt.clone()),
            ("NUMA nodes", self.numa.clone()),
            ("kernel", self.kernel.clone()),
            ("mitigations", list(&self.mitigations)),
            ("firmware", self.firmware.clone()),
            ("adapters", list(&self.adapters)),
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

/// `part` in percent of `period`. `None` without a limit: the kernel writes that as -1, which is
/// not a `u32`.
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
