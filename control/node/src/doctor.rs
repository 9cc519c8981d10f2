//! `pollux doctor`: adapters, and what shadows need (privileges, TUN devices, kernel forwarding).
//!
//! Adapters are opened for a moment; all else is read from files. A missing or unreadable file
//! results in a finding, never in an error.

use pollux_ibverbs::HcaOpenError;
use pollux_ibverbs::doctor::{DoctorFinding, DoctorVerdict, capabilities};
use std::fs;
use std::path::Path;

/// Capabilities: the bit (`linux/capability.h`), the name, and the consequence if it is missing.
const CAPABILITIES: [(u32, &str, &str); 3] = [
    (12, "CAP_NET_ADMIN", "shadows cannot be made"),
    (13, "CAP_NET_RAW", "ports to Ethernet cannot be opened"),
    (14, "CAP_IPC_LOCK", "only as much memory can be locked as `memlock` says"),
];

/// Examines this machine. Findings about adapters come first.
pub fn diagnose() -> Vec<DoctorFinding> {
    let mut findings = pollux_ibverbs::diagnose();
    findings.extend(pollux_ibverbs::adapters().iter().map(|name| work_queues(name)));
    findings.extend(examine(Path::new("/")));
    findings
}

fn examine(root: &Path) -> Vec<DoctorFinding> {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let effective = capabilities(&status);
    let mut findings: Vec<_> = CAPABILITIES.iter().map(|it| capability(effective, *it)).collect();
    findings.push(tun(root));
    findings.push(forwarding(root));
    findings
}

/// Opens an adapter to see whether nodes drive its work queues or use libibverbs.
fn work_queues(adapter: &str) -> DoctorFinding {
    let found = match pollux_mlx5::open(adapter) {
        Ok(_) => "by work queues of our own".into(),
        Err(HcaOpenError::NoDirectRings { reason, .. }) => format!("by libibverbs: {reason}"),
        Err(error) => {
            let remedy = "see `dmesg`; no node can use it";
            return finding(adapter, false, error.to_string(), remedy);
        }
    };
    finding(adapter, true, format!("nodes use it {found}"), "")
}

fn finding(subject: &str, is_good: bool, found: String, remedy: &'static str) -> DoctorFinding {
    let verdict = if is_good { DoctorVerdict::Good } else { DoctorVerdict::Warning };
    let remedy = if is_good { "" } else { remedy };
    DoctorFinding { subject: subject.into(), verdict, found, remedy: remedy.into() }
}

fn capability(effective: u64, (bit, name, lacks): (u32, &str, &str)) -> DoctorFinding {
    let has = effective >> bit & 1 != 0;
    let found = if has { "this process has it".into() } else { format!("without it, {lacks}") };
    let remedy = "run as root, or give it: AmbientCapabilities= in the unit has it already";
    finding(name, has, found, remedy)
}

fn tun(root: &Path) -> DoctorFinding {
    let is_there = root.join("dev/net/tun").exists();
    let found = if is_there { "/dev/net/tun is there" } else { "there is no /dev/net/tun" };
    let remedy = "modprobe tun, or give the container the device: without it there are no shadows";
    finding("TUN", is_there, found.into(), remedy)
}

/// Warns if the kernel forwards packets: with shadows, it would route packets past the node.
fn forwarding(root: &Path) -> DoctorFinding {
    let on = kernel_forwarding(root);
    let found = match &on[..] {
        [] => "the kernel forwards no packets".into(),
        on => format!("the kernel forwards packets ({})", on.join(", ")),
    };
    let remedy = "with shadows, set it to 0: the kernel would forward beside the node";
    finding("kernel forwarding", on.is_empty(), found, remedy)
}

/// The settings by which the kernel forwards packets, as sysctl(8) names them.
pub(crate) fn kernel_forwarding(root: &Path) -> Vec<String> {
    let files = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"];
    let is_on = |file: &&&str| {
        let text = fs::read_to_string(root.join("proc/sys").join(file)).unwrap_or_default();
        !matches!(text.trim(), "" | "0")
    };
    files.iter().filter(is_on).map(|file| file.replace('/', ".")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings below a root with these files.
    fn found(name: &str, files: &[(&str, &str)]) -> Vec<String> {
        let root = std::env::temp_dir().join(format!("pollux-needs-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("there is space");
            fs::write(path, text).expect("there is space");
        }
        let found = examine(&root).iter().map(ToString::to_string).collect();
        let _ = fs::remove_dir_all(&root);
        found
    }

    #[test]
    fn a_machine_with_all_of_it_has_nothing_to_do() {
        let files = [
            ("proc/self/status", "Name:\tpollux\nCapEff:\t0000000000007000\n"),
            ("dev/net/tun", ""),
            ("proc/sys/net/ipv4/ip_forward", "0\n"),
        ];
        assert_eq!(
            found("all", &files),
            [
                "ok   CAP_NET_ADMIN: this process has it",
                "ok   CAP_NET_RAW: this process has it",
                "ok   CAP_IPC_LOCK: this process has it",
                "ok   TUN: /dev/net/tun is there",
                "ok   kernel forwarding: the kernel forwards no packets",
            ]
        );
    }

    #[test]
    fn missing_capabilities_have_a_remedy() {
        let files = [
            ("proc/self/status", "CapEff:\t0000000000002000\n"),
            ("proc/sys/net/ipv4/ip_forward", "1\n"),
            ("proc/sys/net/ipv6/conf/all/forwarding", "1\n"),
        ];
        let found = found("none", &files);
        for (line, part) in found.iter().zip([
            "warn CAP_NET_ADMIN: without it, shadows cannot be made; run as root",
            "ok   CAP_NET_RAW",
            "warn CAP_IPC_LOCK: without it, ",
            "warn TUN: there is no /dev/net/tun; modprobe tun",
            "warn kernel forwarding: the kernel forwards packets \
             (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding); with shadows, set it to 0",
        ]) {
            assert!(line.starts_with(part), "{line}: {part}");
        }
        assert_eq!(found.len(), 5);
    }
}
