//! `pollux check`: checks a configuration file, and the machine that is to run it.
//!
//! The check has no side effects. It opens the admin socket of a fabric, `/dev/net/tun`, and files
//! of the kernel about adapters and network devices; it opens no port, and sends nothing on a link.
//!
//! An error is permanent: `pollux run` refuses the file. A missing object may appear later, so it
//! is a warning.

use crate::admin::client::{AskError, Client};
use crate::admin::finding::{CheckFinding, CheckReport, CheckSeverity};
use crate::admin::rows::PortStatus;
use crate::config::{ConfigError, FrameAccess, InterfaceKind, InterfaceSettings, NodeConfig};
use crate::device::DeviceName;
use crate::doctor::kernel_forwarding;
use crate::plain::XDP_MTU_MAX;
use pollux_ibverbs::doctor::capabilities;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Timeout for a fabric to list its ports.
const FABRIC_TIMEOUT: Duration = Duration::from_secs(2);
/// Masks of capabilities (capabilities(7)).
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const BPF: u64 = 1 << 39;
/// `ARPHRD_ETHER` and `IFF_UP`, as `type` and `flags` below `/sys/class/net/NAME` show them.
const ETHERNET: &str = "1";
const UP: u32 = 1;

pub fn examine(path: &Path) -> CheckReport {
    let file = path.display().to_string();
    match NodeConfig::open_with_text(path) {
        Err(errors) => {
            let findings =
                errors.iter().map(|error| finding(CheckSeverity::Error, error)).collect();
            CheckReport { file, is_valid: false, interfaces: Vec::new(), findings }
        }
        Ok((config, text)) => {
            let mut examined = Examined { path, text: &text, findings: Vec::new() };
            examined.all(&config);
            let findings = examined.findings;
            let interfaces = config.interfaces.into_keys().collect();
            CheckReport { file, is_valid: true, interfaces, findings }
        }
    }
}

fn finding(severity: CheckSeverity, error: &ConfigError) -> CheckFinding {
    let (line, column, key) = match error.position.clone() {
        Some((line, column, key)) => (Some(line), Some(column), Some(key)),
        None => (None, None, None),
    };
    CheckFinding { severity, line, column, key, message: error.reason.clone() }
}

/// A valid file, and the findings so far.
struct Examined<'a> {
    path: &'a Path,
    text: &'a str,
    findings: Vec<CheckFinding>,
}

impl Examined<'_> {
    fn all(&mut self, config: &NodeConfig) {
        for (name, settings) in &config.interfaces {
            match (settings.kind, &settings.shadow) {
                (InterfaceKind::Tun, _) => self.tun(name, "device", &settings.device),
                (InterfaceKind::Ipoib, shadow) => {
                    self.device(name, settings);
                    if let Some(shadow) = shadow {
                        self.tun(name, "shadow", shadow);
                    }
                }
                (InterfaceKind::Ethernet, _) => self.ethernet(name, settings),
            }
            self.addresses(name, settings);
        }
        self.kernel(config, Path::new("/"));
    }

    /// Adds a warning about the value at a path of keys.
    fn warn<const N: usize>(&mut self, path: [&str; N], message: String) {
        let error = ConfigError::of_value("", self.text, &path.map(Into::into), message);
        self.findings.push(finding(CheckSeverity::Warning, &error));
    }

    /// Checks the device, as far as possible without opening it.
    fn device(&mut self, name: &str, settings: &InterfaceSettings) {
        let path = ["interface", name, "device"];
        match DeviceName::parse(&settings.device) {
            Ok(DeviceName::Soft(address)) => {
                let node = &address.node;
                if let Some(message) = self.fabric(&address.path, node, address.port) {
                    self.warn(path, message);
                }
            }
            Ok(DeviceName::Adapter { device, port, .. }) => {
                let adapter = Path::new("/sys/class/infiniband").join(&device);
                let ports = adapter.join("ports").join(port.to_string());
                let state = fs::read_to_string(ports.join("state")).unwrap_or_default();
                if !adapter.exists() {
                    let advice = "the node waits for it; see `pollux doctor`";
                    self.warn(path, format!("there is no adapter {device} now; {advice}"));
                } else if !state.contains("ACTIVE") {
                    let state = state.trim();
                    let advice = "check the cable and the subnet manager";
                    self.warn(path, format!("port {port} of {device} is {state:?}; {advice}"));
                }
            }
            Ok(DeviceName::Private | DeviceName::Null) | Err(_) => {}
        }
    }

    /// The reason why a port of a fabric cannot be opened now.
    fn fabric(&self, path: &Path, node: &str, port: Option<u8>) -> Option<String> {
        let at = path.display();
        let client = Client::new(path, Duration::ZERO).silence_max(FABRIC_TIMEOUT);
        let rows = match client.show::<PortStatus>(&mut |_, _| false) {
            Ok(rows) => rows,
            Err(AskError::Absent(..)) => {
                return Some(format!(
                    "there is no fabric at {at} now; the node waits for it: start one with \
                     `pollux fabric --socket {at}`"
                ));
            }
            Err(error) => return Some(error.to_string()),
        };
        // A GUID may name the node, too. The rows have only names, so the check ends here.
        if node.starts_with("0x") {
            return None;
        }
        let is_it = |row: &&PortStatus| match row.port.rsplit_once(':') {
            Some((of, number)) => of == node && port.is_none_or(|port| number == port.to_string()),
            None => false,
        };
        let Some(row) = rows.iter().find(is_it) else {
            return Some(format!(
                "the fabric at {at} has no such port; list them with `pollux show ports --socket \
                 {at}`"
            ));
        };
        let process = row.process.filter(|process| !is_node_of(*process, self.path))?;
        Some(format!(
            "process {process} has {} open; the node waits until it ends, or name another port",
            row.port
        ))
    }

    /// Checks the kernel's TUN device that `key` names.
    fn tun(&mut self, interface: &str, key: &'static str, name: &str) {
        let path = ["interface", interface, key];
        let device = Path::new("/sys/class/net").join(name);
        if device.exists() && !device.join("tun_flags").exists() {
            let advice = "choose another name";
            let message = format!("the kernel has a device {name} that is no TUN; {advice}");
            self.warn(path, message);
        }
        if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
            let message = format!("/dev/net/tun cannot be opened: {error}; load the module tun");
            self.warn(path, message);
        } else if !has_capability(NET_ADMIN) {
            let message = "a TUN device needs CAP_NET_ADMIN, which this process does not have; run \
                           the node with it";
            self.warn(path, message.into());
        }
    }

    /// Checks an Ethernet device as sysfs shows it, and the capabilities that its frame access
    /// needs.
    fn ethernet(&mut self, interface: &str, settings: &InterfaceSettings) {
        let name = &settings.device;
        let path = |key| ["interface", interface, key];
        let device = Path::new("/sys/class/net").join(name);
        let read = |of: &str| {
            let text = fs::read_to_string(device.join(of)).unwrap_or_default();
            text.trim().trim_start_matches("0x").to_owned()
        };
        let flags = u32::from_str_radix(&read("flags"), 16).unwrap_or_default();
        let mtu = read("mtu").parse::<usize>().unwrap_or_default();
        if !device.exists() {
            let message = format!("there is no network device {name} now; the node waits for it");
            return self.warn(path("device"), message);
        }
        if read("type") != ETHERNET {
            let message = format!("{name} is no device of Ethernet; name another one");
            return self.warn(path("device"), message);
        }
        if flags & UP == 0 {
            let message = format!("{name} is down; `ip link set {name} up`");
            self.warn(path("device"), message);
        }
        let may_use_xdp = [NET_ADMIN, NET_RAW, BPF].into_iter().all(has_capability);
        let access = settings.frames;
        let message = if !has_capability(NET_RAW) {
            "frames need CAP_NET_RAW, which this process does not have; run the node with it".into()
        } else if access == FrameAccess::Packet {
            return;
        } else if !may_use_xdp {
            format!(
                "AF_XDP needs CAP_NET_ADMIN and CAP_BPF, which this process does not have; run the \
                 node with them, or {}",
                no_xdp(access)
            )
        } else if mtu > XDP_MTU_MAX {
            format!(
                "{name} has an MTU of {mtu}, and AF_XDP takes {XDP_MTU_MAX} at most; lower it, \
                 or {}",
                no_xdp(access)
            )
        } else {
            return;
        };
        // If `frames` has its default, the key is usually absent; the finding points to `device`
        // then.
        let key = if access == FrameAccess::Auto { "device" } else { "frames" };
        self.warn(path(key), message);
    }

    /// Warns of addresses that the kernel has, too: programs of this machine reach the kernel at
    /// such an address, not the node.
    fn addresses(&mut self, name: &str, settings: &InterfaceSettings) {
        if settings.shadow.is_some() {
            return;
        }
        let of_kernel = kernel_addresses();
        for prefix in settings.fixed_addresses() {
            if of_kernel.contains(&prefix.ip) {
                let message = format!(
                    "{name} has {}, which the kernel of this machine has, too: its own programs do \
                     not reach the node; change one",
                    prefix.ip
                );
                self.warn(["interface", name, "address"], message);
            }
        }
    }

    /// Warns if the kernel forwards packets although the node uses a routing table of the kernel.
    fn kernel(&mut self, config: &NodeConfig, root: &Path) {
        let on = kernel_forwarding(root);
        if on.is_empty() {
            return;
        }
        let message = format!(
            "the kernel forwards, too; set {} = 0, so that only the node does",
            on.join(" = 0 and ")
        );
        if config.router.is_some_and(|router| router.kernel_table.is_some()) {
            self.warn(["router", "kernel_table"], message.clone());
        }
        for (name, domain) in &config.domains {
            if domain.kernel_table.is_some() {
                self.warn(["domain", name, "kernel_table"], message.clone());
            }
        }
    }
}

/// Whether the arguments of a process name this file. Such a process is a node with this
/// configuration, so the port that it holds is no conflict.
fn is_node_of(process: u32, file: &Path) -> bool {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let arguments = fs::read(folder.join("cmdline")).unwrap_or_default();
    let Ok(file) = file.canonicalize() else { return false };
    let cwd = folder.join("cwd").canonicalize().unwrap_or_default();
    let mut arguments = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    arguments.any(|one| cwd.join(&*one).canonicalize().is_ok_and(|path| path == file))
}

/// Advice for a device where AF_XDP is not possible.
const fn no_xdp(access: FrameAccess) -> &'static str {
    match access {
        FrameAccess::Auto => "the node uses packet sockets, whose frames the kernel sees, too",
        _ => "set frames = \"packet\"",
    }
}

fn has_capability(bit: u64) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    capabilities(&status) & bit != 0
}

/// The addresses of the kernel's network devices (proc_net(5)).
fn kernel_addresses() -> Vec<IpAddr> {
    let v4 = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let v6 = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut all: Vec<IpAddr> = local_leaves(&v4).collect();
    let v6 = v6.lines().filter_map(|line| u128::from_str_radix(line.split(' ').next()?, 16).ok());
    all.extend(v6.map(|bits| IpAddr::from(Ipv6Addr::from_bits(bits))));
    all
}

/// The kernel's own addresses in its FIB trie: a leaf `|-- IP`, followed by `/32 host LOCAL`.
fn local_leaves(trie: &str) -> impl Iterator<Item = IpAddr> {
    let leaves = trie.lines().zip(trie.lines().skip(1));
    leaves
        .filter(|(_, next)| next.trim() == "/32 host LOCAL")
        .filter_map(|(leaf, _)| leaf.trim().strip_prefix("|-- ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_of_the_kernel_are_found_in_its_trie() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                    |-- 10.0.0.0\n           /24 link UNICAST\n           |-- 10.0.0.7\n\
                    /32 host LOCAL\n           |-- 10.0.0.255\n              /32 link BROADCAST\n";
        let found: Vec<_> = local_leaves(trie).collect();
        assert_eq!(found, [IpAddr::from([10, 0, 0, 7])]);
    }

    #[test]
    fn forwarding_of_the_kernel_is_found_for_both_families_and_all_domains() {
        let text = "[router]\nkernel_table = 254\n[domain.red]\nkernel_table = 100\n\
                    [domain.blue]\n[interface.ib0]\ndevice = 'soft:f@host1'\n";
        let config = NodeConfig::read("f", text).expect("it is valid");
        let root = std::env::temp_dir().join(format!("pollux-forwards-{}", std::process::id()));
        let file = root.join("proc/sys/net/ipv6/conf/all/forwarding");
        fs::create_dir_all(file.parent().expect("a folder")).expect("there is space");
        let mut found = |forwards: &str| {
            fs::write(&file, forwards).expect("there is space");
            let mut examined = Examined { path: Path::new("f"), text, findings: Vec::new() };
            examined.kernel(&config, &root);
            examined.findings.iter().map(|one| (one.line, one.message.clone())).collect()
        };
        let message = "the kernel forwards, too; set net.ipv6.conf.all.forwarding = 0, so that \
                       only the node does";
        let expected: Vec<_> = [2, 4].map(|line| (Some(line), message.to_owned())).into();
        let both: [Vec<_>; 2] = ["1\n", "0\n"].map(&mut found);
        let _ = fs::remove_dir_all(&root);
        assert_eq!(both, [expected, Vec::new()]);
    }
}
