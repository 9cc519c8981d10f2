//! Diagnosis of this machine: findings, each with a verdict and a remedy.
//!
//! The doctor reads /sys and /proc, and needs neither a library nor privileges. The paths of both
//! are arguments, so that a test can simulate any machine. A missing or unreadable file is a
//! finding, never a failure.

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DoctorVerdict {
    Good,
    /// The subject works, but more slowly, or not in all cases.
    Warning,
    Bad,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoctorFinding {
    /// What the finding is about, such as `mlx5_0:1` or `memlock`.
    pub subject: String,
    pub verdict: DoctorVerdict,
    pub found: String,
    /// What to do; empty if nothing is needed.
    pub remedy: Cow<'static, str>,
}

impl fmt::Display for DoctorFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            DoctorVerdict::Good => "ok",
            DoctorVerdict::Warning => "warn",
            DoctorVerdict::Bad => "BAD",
        };
        write!(f, "{verdict:4} {}: {}", self.subject, self.found)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

/// The paths of sysfs and procfs: `/sys` and `/proc`, except in tests.
#[derive(Clone, Debug)]
pub struct Roots {
    pub sys: PathBuf,
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into() }
    }
}

/// Table entries that a finding lists, at most; further entries are only counted.
const LISTED_MAX: usize = 8;

/// The minimum limit of locked memory for the queues of a worker.
const MEMLOCK_BYTES_MIN: u64 = 64 << 20;

/// The bit of the capability that exempts from this limit (`linux/capability.h`).
const CAP_IPC_LOCK: u32 = 14;

/// Runs all checks of files, devices first.
pub fn examine(roots: &Roots) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    devices(roots, &mut findings);
    modules(roots, &mut findings);
    findings.push(memlock(roots));
    findings.push(huge_pages(roots));
    findings.push(governor(roots));
    findings.push(isolation(roots));
    findings
}

/// A finding; drops the remedy if the verdict is good.
pub(crate) fn finding(
    subject: impl Into<String>,
    verdict: DoctorVerdict,
    found: impl Into<String>,
    remedy: impl Into<Cow<'static, str>>,
) -> DoctorFinding {
    let remedy = if verdict == DoctorVerdict::Good { "".into() } else { remedy.into() };
    DoctorFinding { subject: subject.into(), verdict, found: found.into(), remedy }
}

/// The first line of a file; `None` if there is none.
fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

/// The names in a directory, sorted; names that are numbers by value.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_by_key(|name| (name.parse::<u32>().ok(), name.clone()));
    names
}

fn devices(roots: &Roots, findings: &mut Vec<DoctorFinding>) {
    let class = roots.sys.join("class/infiniband");
    let devices = names(&class);
    if devices.is_empty() {
        let remedy = "load the driver of your adapter (mlx5_ib ...), or use `soft:`";
        findings.push(finding("devices", DoctorVerdict::Warning, "no RDMA device", remedy));
    }
    for device in devices {
        let ports = class.join(&device).join("ports");
        for port in names(&ports) {
            let subject = format!("{device}:{port}");
            let port = ports.join(port);
            findings.push(port_state(&subject, &port));
            findings.push(link_layer(&subject, &port));
            let is_used = |value: &str| value.chars().any(|c| !matches!(c, '0' | ':' | 'x'));
            let table = |name: &str| {
                let entries = names(&port.join(name)).into_iter();
                let values = entries.filter_map(|entry| line(&port.join(name).join(entry)));
                values.filter(|value| is_used(value)).collect::<Vec<_>>()
            };
            findings.push(filled(&subject, "GIDs", &table("gids")));
            findings.push(filled(&subject, "P_Keys", &table("pkeys")));
            findings.extend(ipoib(roots, &device, &subject));
        }
    }
}

fn port_state(subject: &str, port: &Path) -> DoctorFinding {
    let state = line(&port.join("state")).unwrap_or_else(|| "unknown".into());
    let (verdict, remedy) = match state.as_str() {
        "4: ACTIVE" => (DoctorVerdict::Good, ""),
        "2: INIT" => {
            (DoctorVerdict::Bad, "no subnet manager has come by: start OpenSM, or enable one")
        }
        "1: DOWN" => (DoctorVerdict::Bad, "plug the cable in, or enable the port at the other end"),
        _ => (DoctorVerdict::Bad, "wait for the subnet manager, then look again"),
    };
    finding(subject, verdict, format!("state {state}"), remedy)
}

fn link_layer(subject: &str, port: &Path) -> DoctorFinding {
    let layer = line(&port.join("link_layer")).unwrap_or_else(|| "unknown".into());
    let is_infiniband = layer == "InfiniBand";
    let verdict = if is_infiniband { DoctorVerdict::Good } else { DoctorVerdict::Warning };
    let remedy = "IP over InfiniBand has no subnet here; only Pollux's own extension works";
    finding(subject, verdict, format!("link layer {layer}"), remedy)
}

fn filled(subject: &str, what: &str, values: &[String]) -> DoctorFinding {
    if values.is_empty() {
        let remedy = "is the port up, and is the subnet manager done?";
        return finding(subject, DoctorVerdict::Bad, format!("no {what}"), remedy);
    }
    let mut text = values[..values.len().min(LISTED_MAX)].join(", ");
    if values.len() > LISTED_MAX {
        text += &format!(" and {} more", values.len() - LISTED_MAX);
    }
    finding(subject, DoctorVerdict::Good, format!("{what} {text}"), "")
}

/// The kernel's IPoIB interface on this device, if there is one.
fn ipoib(roots: &Roots, device: &str, subject: &str) -> Option<DoctorFinding> {
    let nets = roots.sys.join("class/infiniband").join(device).join("device/net");
    let hardware = |net: &String| line(&nets.join(net).join("type"));
    let net = names(&nets).into_iter().find(|net| hardware(net).as_deref() == Some("32"))?;
    let remedy = "both can run side by side, with addresses of their own";
    Some(finding(
        subject,
        DoctorVerdict::Warning,
        format!("the kernel's ib_ipoib has {net}"),
        remedy,
    ))
}

fn modules(roots: &Roots, findings: &mut Vec<DoctorFinding>) {
    let uverbs = "modprobe ib_uverbs: without it no program reaches an adapter";
    let umad = "modprobe ib_umad: without it there is no subnet administration";
    for (name, class, remedy) in
        [("ib_uverbs", "infiniband_verbs", uverbs), ("ib_umad", "infiniband_mad", umad)]
    {
        // With the software adapter, the class exists without the module; only reading its files
        // shows that.
        let has_class = line(&roots.sys.join("class").join(class).join("abi_version")).is_some();
        let (verdict, found) = match (is_loaded(roots, name), has_class) {
            (true, _) => (DoctorVerdict::Good, "loaded"),
            (false, true) => (DoctorVerdict::Good, "not loaded, and its class is there"),
            (false, false) => (DoctorVerdict::Bad, "not loaded"),
        };
        findings.push(finding(name, verdict, found, remedy));
    }
    let taken = is_loaded(roots, CM_MODULE);
    let verdict = if taken { DoctorVerdict::Warning } else { DoctorVerdict::Good };
    let found = match taken {
        true => "the kernel has the CM class: on InfiniBand, interfaces of mode ud only",
        false => "the kernel leaves the CM class to programs",
    };
    findings.push(finding(CM_MODULE, verdict, found, cm_advice(roots)));
}

/// The module that answers CM requests for the kernel.
const CM_MODULE: &str = "ib_cm";

fn is_loaded(roots: &Roots, module: &str) -> bool {
    roots.sys.join("module").join(module).is_dir() || users(roots, module).is_some()
}

/// The modules that use a module; `None` if it is not loaded.
fn users(roots: &Roots, module: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(roots.proc.join("modules")).ok()?;
    let words = text.lines().map(|line| line.split(' '));
    let mut words = words.into_iter().find(|words| words.clone().next() == Some(module))?;
    let users = words.nth(3).unwrap_or_default().split(',');
    Some(users.filter(|user| !matches!(*user, "" | "-")).map(str::to_owned).collect())
}

/// The remedy if another agent has the CM class. At each port only one agent can receive the
/// requests of a class: the kernel's agent, or that of one process.
pub fn cm_advice(roots: &Roots) -> String {
    if !is_loaded(roots, CM_MODULE) {
        return "another process takes the requests of this class at the port, perhaps another \
                node; end it (fuser -v /dev/infiniband/umad*)"
            .into();
    }
    // The users of a module come first, because a module in use cannot be unloaded.
    let mut modules = Vec::new();
    let mut next = vec![CM_MODULE.to_owned()];
    while let Some(module) = next.pop() {
        modules.retain(|known| *known != module);
        next.extend(users(roots, &module).unwrap_or_default());
        modules.push(module);
    }
    modules.reverse();
    let modules = modules.join(" ");
    format!("the kernel's ib_cm has it; free it with `modprobe -r {modules}`, or use mode ud")
}

fn memlock(roots: &Roots) -> DoctorFinding {
    let text = fs::read_to_string(roots.proc.join("self/limits")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3)).unwrap_or("unknown");
    let is_enough =
        soft == "unlimited" || soft.parse::<u64>().is_ok_and(|bytes| bytes >= MEMLOCK_BYTES_MIN);
    let status = fs::read_to_string(roots.proc.join("self/status")).unwrap_or_default();
    let is_exempt = !is_enough && capabilities(&status) >> CAP_IPC_LOCK & 1 != 0;
    let verdict = if is_enough || is_exempt { DoctorVerdict::Good } else { DoctorVerdict::Bad };
    let remedy = "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit";
    let mut found = format!("{soft} bytes may be locked");
    if is_exempt {
        found += ", and with CAP_IPC_LOCK as many as there are";
    }
    finding("memlock", verdict, found, remedy)
}

/// The effective capabilities in a process status, as a bit mask (proc_pid_status(5)).
pub fn capabilities(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn huge_pages(roots: &Roots) -> DoctorFinding {
    let text = fs::read_to_string(roots.proc.join("meminfo")).unwrap_or_default();
    let count = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (total, free) = (count("HugePages_Total"), count("HugePages_Free"));
    let verdict = if free.is_some_and(|free| free > 0) {
        DoctorVerdict::Good
    } else {
        DoctorVerdict::Warning
    };
    let found = format!("{} huge pages free of {}", free.unwrap_or(0), total.unwrap_or(0));
    let remedy = "sysctl vm.nr_hugepages=64; without them buffers lie on smaller pages, slower";
    finding("huge pages", verdict, found, remedy)
}

fn governor(roots: &Roots) -> DoctorFinding {
    let path = roots.sys.join("devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let (verdict, found) = match line(&path) {
        None => (DoctorVerdict::Good, "the kernel does not change the clock".into()),
        Some(name) if name == "performance" => (DoctorVerdict::Good, name),
        Some(name) => (DoctorVerdict::Warning, name),
    };
    let remedy = "cpupower frequency-set -g performance: a clock that changes spoils latencies";
    finding("CPU governor", verdict, found, remedy)
}

fn isolation(roots: &Roots) -> DoctorFinding {
    let isolated = line(&roots.sys.join("devices/system/cpu/isolated")).unwrap_or_default();
    let verdict = if isolated.is_empty() { DoctorVerdict::Warning } else { DoctorVerdict::Good };
    let found = if isolated.is_empty() { "no CPU is isolated".into() } else { isolated };
    let remedy = "boot with isolcpus= for the workers' CPUs, or expect a long tail";
    finding("CPU isolation", verdict, found, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of files, which is removed when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("pollux-doctor-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn examine(&self) -> Vec<String> {
            let roots = Roots { sys: self.0.join("sys"), proc: self.0.join("proc") };
            examine(&roots).iter().map(ToString::to_string).collect()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_good_machine_has_nothing_to_do() {
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        let file = |name: &str| format!("{port}/{name}");
        let tree = Tree::new(
            "good",
            &[
                (&file("state"), "4: ACTIVE\n"),
                (&file("link_layer"), "InfiniBand\n"),
                (&file("gids/0"), "fe80:0000:0000:0000:0002:c903:0000:1001\n"),
                (&file("gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n"),
                (&file("pkeys/0"), "0xffff\n"),
                (&file("pkeys/1"), "0x0000\n"),
                ("proc/modules", "ib_uverbs 1 0 - Live 0x0\nib_umad 1 0 - Live 0x0\n"),
                ("proc/self/limits", "Max locked memory         unlimited  unlimited  bytes\n"),
                ("proc/meminfo", "HugePages_Total:      64\nHugePages_Free:       60\n"),
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
                ("sys/devices/system/cpu/isolated", "2-3\n"),
            ],
        );
        assert_eq!(
            tree.examine(),
            [
                "ok   mlx5_0:1: state 4: ACTIVE",
                "ok   mlx5_0:1: link layer InfiniBand",
                "ok   mlx5_0:1: GIDs fe80:0000:0000:0000:0002:c903:0000:1001",
                "ok   mlx5_0:1: P_Keys 0xffff",
                "ok   ib_uverbs: loaded",
                "ok   ib_umad: loaded",
                "ok   ib_cm: the kernel leaves the CM class to programs",
                "ok   memlock: unlimited bytes may be locked",
                "ok   huge pages: 60 huge pages free of 64",
                "ok   CPU governor: performance",
                "ok   CPU isolation: 2-3",
            ]
        );
    }

    #[test]
    fn a_process_that_may_lock_memory_needs_no_limit() {
        let limits = ("proc/self/limits", "Max locked memory         8388608  8388608  bytes\n");
        for (mask, begin) in [("0000000000004000", "ok   "), ("0000000000003fff", "BAD  ")] {
            let status = format!("CapEff:\t{mask}\n");
            let found = Tree::new(mask, &[limits, ("proc/self/status", &status)]).examine();
            let line = found.iter().find(|line| line.contains("memlock")).unwrap();
            assert!(line.starts_with(begin), "{line}");
        }
    }

    #[test]
    fn every_finding_has_a_remedy() {
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        let tree = Tree::new(
            "bad",
            &[
                (&format!("{port}/state"), "2: INIT\n"),
                (&format!("{port}/link_layer"), "Ethernet\n"),
                ("sys/class/infiniband/mlx5_0/device/net/ib0/type", "32\n"),
                (
                    "proc/modules",
                    "rdma_ucm 1 0 - Live 0x0\nib_ipoib 1 0 - Live 0x0\n\
                     rdma_cm 1 1 rdma_ucm, Live 0x0\nib_cm 1 2 rdma_cm,ib_ipoib, Live 0x0\n",
                ),
                ("proc/self/limits", "Max locked memory         8388608  8388608  bytes\n"),
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ],
        );
        let found = tree.examine();
        for part in [
            "BAD  mlx5_0:1: state 2: INIT; no subnet manager",
            "warn mlx5_0:1: link layer Ethernet; ",
            "BAD  mlx5_0:1: no GIDs; ",
            "BAD  mlx5_0:1: no P_Keys; ",
            "warn mlx5_0:1: the kernel's ib_ipoib has ib0; ",
            "BAD  ib_uverbs: not loaded; modprobe",
            "BAD  ib_umad: not loaded; modprobe",
            "warn ib_cm: the kernel has the CM class: on InfiniBand, interfaces of mode ud only; ",
            "BAD  memlock: 8388608 bytes may be locked; ulimit",
            "warn huge pages: 0 huge pages free of 0; ",
            "warn CPU governor: powersave; ",
            "warn CPU isolation: no CPU is isolated; ",
        ] {
            assert!(found.iter().any(|line| line.starts_with(part)), "{part}: {found:#?}");
        }
        let free = "free it with `modprobe -r rdma_ucm rdma_cm ib_ipoib ib_cm`, or use mode ud";
        assert!(found.iter().any(|line| line.ends_with(free)), "{found:#?}");
    }

    #[test]
    fn classes_without_modules_are_as_good() {
        let abi = |class| (format!("sys/class/{class}/abi_version"), "6\n");
        let [verbs, mads] = ["infiniband_verbs", "infiniband_mad"].map(abi);
        let found = Tree::new("classes", &[(&verbs.0, verbs.1), (&mads.0, mads.1)]).examine();
        for module in ["ib_uverbs", "ib_umad"] {
            let line = format!("ok   {module}: not loaded, and its class is there");
            assert!(found.contains(&line), "{found:#?}");
        }
    }

    #[test]
    fn a_machine_that_shows_nothing_is_no_reason_to_fail() {
        let found = Tree::new("empty", &[]).examine();
        assert!(found.iter().any(|line| line.starts_with("warn devices: no RDMA device; ")));
    }
}
