//! What no single value of a configuration shows to be wrong, and what this machine has to have for
//! it. `pollux run` and `pollux check` ask the same questions, here.
//!
//! A device that is missing now is no error: it may come ([`crate::node`] tries again). An error is
//! what would stay wrong however long one waits.

use super::lines::{Step, line_of};
use super::{ConfigError, InterfaceSettings, Mode, NodeConfig, Prefix};
use crate::device::{DeviceName, open};
use crate::interface::gsi::NO_GSI;
use pollux_dataplane::engine::counts::WORKERS_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

/// A rule that a configuration breaks.
#[derive(Debug)]
pub(super) struct Broken {
    /// The value that is wrong.
    path: Vec<Step>,
    reason: String,
}

type Checked = Result<(), Broken>;

impl Broken {
    fn new(path: &[Step], reason: String) -> Self {
        Self { path: path.into(), reason }
    }

    /// The error, with its line.
    pub(super) fn in_file(self, file: &str, text: &str) -> ConfigError {
        ConfigError { file: file.into(), line: line_of(text, &self.path), reason: self.reason }
    }
}

/// Fails with the path of a value if there is a reason to.
fn refuse(path: &[Step], reason: Option<String>) -> Checked {
    reason.map_or(Ok(()), |reason| Err(Broken::new(path, reason)))
}

/// All rules that hold on every machine.
pub(super) fn rules(config: &NodeConfig) -> Checked {
    if config.interfaces.is_empty() {
        let reason = "the configuration has no interface; write [interface.ib0]";
        return Err(Broken::new(&[], reason.into()));
    }
    cores(&config.workers.cores)?;
    let mut whole = Whole::default();
    for (name, interface) in &config.interfaces {
        One { name, interface }.check(&mut whole)?;
    }
    Ok(())
}

fn cores(cores: &[usize]) -> Checked {
    let path = |nth: usize| ["workers".into(), "cores".into(), nth.into()];
    let mut known = BTreeSet::new();
    if let Some(nth) = cores.iter().position(|core| !known.insert(*core)) {
        let core = cores[nth];
        let reason = format!("core {core} is listed twice; give each worker a core of its own");
        return Err(Broken::new(&path(nth), reason));
    }
    let count = cores.len();
    let reason = format!("{count} cores are too many; write at most {WORKERS_MAX}");
    refuse(&path(WORKERS_MAX), (count > WORKERS_MAX).then_some(reason))
}

/// What interfaces have that no other one may have.
#[derive(Default)]
struct Whole<'a> {
    /// Devices and partitions, and the interface there.
    places: BTreeMap<(String, u16), &'a str>,
    /// Addresses that mean the same on every link, and the interface that has it.
    addresses: BTreeMap<IpAddr, &'a str>,
}

/// An interface, as it is checked.
struct One<'a> {
    name: &'a str,
    interface: &'a InterfaceSettings,
}

impl<'a> One<'a> {
    fn check(&self, whole: &mut Whole<'a>) -> Checked {
        self.device(whole)?;
        self.modes()?;
        self.addresses(whole)?;
        self.routers()?;
        self.peers()?;
        self.neighbors()
    }

    /// The way to one of its values.
    fn path<const N: usize>(&self, steps: [Step; N]) -> Vec<Step> {
        let own: [Step; 2] = ["interface".into(), self.name.into()];
        own.into_iter().chain(steps).collect()
    }

    fn device(&self, whole: &mut Whole<'a>) -> Checked {
        let Self { name, interface } = self;
        let (device, pkey) = (&interface.device, interface.pkey);
        let parsed = DeviceName::parse(device);
        let parsed = parsed
            .map_err(|error| Broken::new(&self.path(["device".into()]), error.to_string()))?;
        let other = whole.places.insert((parsed.to_string(), pkey.partition()), name);
        let reason = other.map(|other| {
            format!(
                "{name} and {other} are both at {device:?} in the partition {:#06x}; \
                 change the pkey of one",
                pkey.0
            )
        });
        refuse(&self.path([]), reason)
    }

    fn modes(&self) -> Checked {
        let Self { name, interface } = self;
        let connects = interface.peer.iter().position(|peer| peer.mode != Mode::Ud);
        let (Mode::Ud, Some(nth)) = (interface.mode, connects) else { return Ok(()) };
        let peer = &interface.peer[nth];
        let (ip, mode) = (peer.address, peer.mode.name());
        let reason = format!(
            "peer {ip} wants mode {mode}, but {name} has mode \"ud\"; set {name} to \"auto\", \
             and other peers than {ip} to \"ud\""
        );
        Err(Broken::new(&self.path(["peer".into(), nth.into(), "mode".into()]), reason))
    }

    fn addresses(&self, whole: &mut Whole<'a>) -> Checked {
        let Self { name, interface } = self;
        let mut own = BTreeSet::new();
        for (nth, address) in interface.address.iter().enumerate() {
            let super::AddressSetting::Fixed(prefix) = address else { continue };
            let path = self.path(["address".into(), nth.into()]);
            let ip = prefix.ip;
            let no_host = no_host_of(prefix).map(|what| {
                format!("{name} cannot have {ip}/{}: {what}; write a host's address", prefix.len)
            });
            refuse(&path, no_host)?;
            let with_v6 = format!("{name} has {ip}, but ipv6 = false; remove one of them");
            refuse(&path, (ip.is_ipv6() && !interface.ipv6).then_some(with_v6))?;
            let twice = format!("{name} has {ip} twice; remove one");
            refuse(&path, (!own.insert(ip)).then_some(twice))?;
            if !is_of_its_link(ip) {
                let other = whole.addresses.insert(ip, name);
                let reason = |other| format!("{name} and {other} both have {ip}; change one");
                refuse(&path, other.map(reason))?;
            }
        }
        Ok(())
    }

    fn routers(&self) -> Checked {
        for (nth, ip) in self.interface.router.iter().enumerate() {
            self.is_another_host("router", nth, *ip)?;
        }
        self.is_each_once("router", self.interface.router.iter().copied())
    }

    fn peers(&self) -> Checked {
        let addresses = || self.interface.peer.iter().map(|peer| peer.address);
        for (nth, ip) in addresses().enumerate() {
            self.is_another_host("peer", nth, ip)?;
        }
        self.is_each_once("peer", addresses())
    }

    fn neighbors(&self) -> Checked {
        let addresses = || self.interface.neighbor.iter().map(|one| one.address);
        for (nth, ip) in addresses().enumerate() {
            self.is_another_host("neighbor", nth, ip)?;
        }
        self.is_each_once("neighbor", addresses())
    }

    /// Another node may have this address.
    fn is_another_host(&self, what: &str, nth: usize, ip: IpAddr) -> Checked {
        let name = self.name;
        let own = || self.interface.fixed_addresses().any(|prefix| prefix.ip == ip);
        let why = no_host(ip).or_else(|| own().then(|| format!("{name} itself has it")));
        let reason =
            why.map(|why| format!("{ip} cannot be a {what} of {name}: {why}; change or remove it"));
        refuse(&self.path([what.into(), nth.into()]), reason)
    }

    /// No address stands in a list twice.
    fn is_each_once(&self, what: &str, addresses: impl Iterator<Item = IpAddr>) -> Checked {
        let mut known = BTreeSet::new();
        let mut all = addresses.enumerate();
        let twice = all.find(|(_, ip)| !known.insert(*ip));
        let Some((nth, ip)) = twice else { return Ok(()) };
        let reason = format!("{} has the {what} {ip} twice; remove one", self.name);
        Err(Broken::new(&self.path([what.into(), nth.into()]), reason))
    }
}

/// Why no host has an address, if none can.
fn no_host(ip: IpAddr) -> Option<String> {
    let why = match ip {
        IpAddr::V4(ip) => match ip.octets()[0] {
            0 => "0.0.0.0/8 means this network (RFC 1122 3.2.1.3)",
            127 => "127.0.0.0/8 never leaves a host (RFC 1122 3.2.1.3)",
            224..=239 => "it is a multicast address (RFC 1112 4)",
            240.. => "240.0.0.0/4 is reserved, or everybody's (RFC 1112 4)",
            _ => return None,
        },
        IpAddr::V6(ip) if ip.is_unspecified() => "it is the unspecified address (RFC 4291 2.5.2)",
        IpAddr::V6(ip) if ip.is_loopback() => "it never leaves a host (RFC 4291 2.5.3)",
        IpAddr::V6(ip) if ip.is_multicast() => "it is a multicast address (RFC 4291 2.7)",
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => {
            "it is an IPv4 address in the form of IPv6 (RFC 4291 2.5.5.2)"
        }
        IpAddr::V6(_) => return None,
    };
    Some(why.into())
}

/// The same of an address whose prefix is known: some mean all of a network, or its routers.
fn no_host_of(Prefix { ip, len }: &Prefix) -> Option<String> {
    let of_network = || match ip {
        // Of two addresses in a prefix both are hosts (RFC 3021).
        IpAddr::V4(ip) if *len < 31 => {
            let hosts = u32::MAX >> len;
            let network = Ipv4Addr::from_bits(ip.to_bits() & !hosts);
            match ip.to_bits() & hosts {
                0 => Some(format!("it is the network {network}/{len} itself")),
                bits if bits == hosts => {
                    Some(format!("it is the broadcast address of {network}/{len}"))
                }
                _ => None,
            }
        }
        // And so they are here (RFC 6164).
        IpAddr::V6(ip) if *len < 127 => {
            let is_anycast = ip.to_bits() & (u128::MAX >> len) == 0;
            is_anycast.then(|| format!("all routers of {ip}/{len} have it (RFC 4291 2.6.1)"))
        }
        _ => None,
    };
    no_host(*ip).or_else(of_network)
}

/// Whether an address means another host on every link.
fn is_of_its_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// What a machine and this build have for a configuration.
pub(super) struct Machine {
    /// Cores that this process may use.
    pub(super) cores: Vec<usize>,
    /// This build can open adapters in hardware.
    pub(super) opens_adapters: bool,
    /// Whether an adapter is here whose management is not for programs.
    pub(super) lacks_gsi: fn(&str) -> bool,
}

impl Machine {
    /// This one.
    pub(super) fn this() -> Self {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let cores = cores.into_iter().map(|core| core.id).collect();
        let lacks_gsi = |name: &str| {
            let can = open(name).map(|opened| opened.device.attributes().can);
            can.is_ok_and(|can| can.subnet && !can.gsi)
        };
        Self { cores, opens_adapters: pollux_ibverbs::OPENS_ADAPTERS, lacks_gsi }
    }

    /// Fails with what is not here.
    pub(super) fn check(&self, config: &NodeConfig) -> Checked {
        let wanted = &config.workers.cores;
        let missing = wanted.iter().position(|core| !self.cores.contains(core));
        if let Some(nth) = missing {
            let (core, there) = (wanted[nth], &self.cores);
            let reason = format!(
                "core {core} is not available; choose cores in [workers] from {there:?}, or omit \
                 `cores`"
            );
            return Err(Broken::new(&["workers".into(), "cores".into(), nth.into()], reason));
        }
        for (name, interface) in &config.interfaces {
            let Ok(DeviceName::Adapter { .. }) = DeviceName::parse(&interface.device) else {
                continue;
            };
            let device = interface.device.clone();
            let reason = match (self.opens_adapters, (self.lacks_gsi)(&device)) {
                (false, _) => pollux_ibverbs::OpenError::NotBuilt { device }.to_string(),
                (true, true) => format!("{device}: this adapter has no {NO_GSI}"),
                (true, false) => continue,
            };
            let one = One { name, interface };
            return Err(Broken::new(&one.path(["device".into()]), reason));
        }
        Ok(())
    }
}
