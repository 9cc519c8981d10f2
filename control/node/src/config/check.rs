//! Rules across the values of a configuration, and checks of the machine, for `pollux run` and
//! `pollux check`.
//!
//! A missing device is no error: it may appear later ([`crate::node`] retries). Errors are
//! permanent.

use super::acl::ACL_RULES_MAX;
use super::domain::{DEFAULT_DOMAIN, DOMAINS_MAX};
use super::error::{Faults, unknown_table};
use super::host_address::{is_link_local, no_host_reason};
use super::lines::Step;
use super::multicast::multicast;
use super::{
    DEVICE_NAME_BYTES_MAX, InterfaceKind, InterfaceSettings, Management, Mode, NodeConfig,
};
use crate::device::DeviceName;
use pollux_dataplane::engine::counts::WORKERS_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// All rules that hold on every machine.
pub(super) fn rules(config: &NodeConfig) -> Faults {
    let mut faults = Faults::default();
    if config.interfaces.is_empty() {
        faults.add(&[], "the configuration has no interface; write [interface.ib0]".into());
    }
    cores(&config.workers.cores, &mut faults);
    let mut unique = UniqueValues::default();
    for (name, interface) in &config.interfaces {
        InterfaceCheck { name, interface }.check(&mut unique, &mut faults);
    }
    domains(config, &mut faults);
    acls(config, &mut faults);
    routes(config, &mut faults);
    multicast(config, &mut faults);
    faults
}

/// Checks that the named domains exist, and that no two use the same table of the kernel.
fn domains(config: &NodeConfig, faults: &mut Faults) {
    let mut tables = BTreeMap::new();
    let of_router = config.router.and_then(|router| router.kernel_table);
    tables.extend(of_router.map(|table| (table, DEFAULT_DOMAIN)));
    for (nth, (name, domain)) in config.domains.iter().enumerate() {
        let path: [Step; 2] = ["domain".into(), name.as_str().into()];
        let reason = "the default domain has no table; write its kernel_table in [router]";
        faults.refuse(&path, (name == DEFAULT_DOMAIN).then(|| reason.into()));
        let reason = format!("there are too many domains; write at most {}", DOMAINS_MAX - 1);
        faults.refuse(&path, (nth + 1 >= DOMAINS_MAX).then_some(reason));
        let Some(table) = domain.kernel_table else { continue };
        let other = tables.insert(table, name);
        let reason =
            |other| format!("{name} and {other} both have the kernel's table {table}; change one");
        faults.refuse(&[&path[..], &["kernel_table".into()]].concat(), other.map(reason));
    }
    for (name, interface) in &config.interfaces {
        let path = ["interface".into(), name.as_str().into(), "domain".into()];
        faults.refuse(&path, unknown_domain(config, name, &interface.domain));
    }
    for (nth, route) in config.route.iter().enumerate() {
        let what = format!("the route to {}", route.to);
        let path = |key: &'static str| ["route".into(), nth.into(), key.into()];
        faults.refuse(&path("domain"), unknown_domain(config, &what, &route.domain));
        let next = route.next_domain.as_ref();
        let unknown = next.and_then(|next| unknown_domain(config, &what, next));
        faults.refuse(&path("next_domain"), unknown);
    }
}

/// Checks that each rule can match packets, and that the lists that interfaces name exist.
fn acls(config: &NodeConfig, faults: &mut Faults) {
    for (name, rules) in &config.acls {
        let path = |nth: usize, key: &'static str| {
            ["acl".into(), name.as_str().into(), nth.into(), Step::from(key)]
        };
        for (nth, rule) in rules.iter().enumerate() {
            if let Some((key, reason)) = rule.fault() {
                faults.add(&path(nth, key), reason);
            }
        }
        let reason = format!("{name} has too many rules; write at most {ACL_RULES_MAX}");
        faults.refuse(
            &path(ACL_RULES_MAX, "action"),
            (rules.len() > ACL_RULES_MAX).then_some(reason),
        );
    }
    for (name, interface) in &config.interfaces {
        for (key, acl) in [("acl_in", &interface.acl_in), ("acl_out", &interface.acl_out)] {
            let missing = acl.as_ref().filter(|acl| !config.acls.contains_key(*acl));
            let reason = missing.map(|acl| {
                format!("{name} names the list {acl:?}, which does not exist; write [[acl.{acl}]]")
            });
            faults.refuse(&["interface".into(), name.as_str().into(), key.into()], reason);
        }
    }
}

fn unknown_domain(config: &NodeConfig, what: &str, name: &str) -> Option<String> {
    let is_known = name == DEFAULT_DOMAIN || config.domains.contains_key(name);
    (!is_known).then(|| unknown_table(what, "domain", name, &config.domains))
}

fn routes(config: &NodeConfig, faults: &mut Faults) {
    let mut known = BTreeSet::new();
    for (nth, route) in config.route.iter().enumerate() {
        let path = |key: &'static str| ["route".into(), nth.into(), key.into()];
        if let Some((key, reason)) = route.fault() {
            faults.add(&path(key), reason);
        }
        if !known.insert((&route.domain, route.to)) {
            let reason = format!("there are two routes to {}; write all gateways in one", route.to);
            faults.add(&path("to"), reason);
        }
    }
    // A worker sends only by its own queue pairs, so each thread needs a worker of each interface.
    let threads = config.workers.cores.len().max(1);
    let forwards = config.router.is_some_and(|router| router.forward);
    let few = config.interfaces.iter().find(|(_, one)| usize::from(one.workers) < threads);
    if let Some((name, one)) = few.filter(|_| forwards) {
        let reason = format!(
            "a router needs a worker of each interface on each core, but {name} has {} for \
             {threads} cores; write workers = {threads}",
            one.workers
        );
        faults.add(&["interface".into(), name.as_str().into(), "workers".into()], reason);
    }
}

fn cores(cores: &[usize], faults: &mut Faults) {
    let path = |nth: usize| ["workers".into(), "cores".into(), nth.into()];
    let mut known = BTreeSet::new();
    if let Some(nth) = cores.iter().position(|core| !known.insert(*core)) {
        let core = cores[nth];
        let reason = format!("core {core} is listed twice; give each worker a core of its own");
        faults.add(&path(nth), reason);
    }
    let count = cores.len();
    let reason = format!("{count} cores are too many; write at most {WORKERS_MAX}");
    faults.refuse(&path(WORKERS_MAX), (count > WORKERS_MAX).then_some(reason));
}

#[derive(Default)]
struct UniqueValues<'a> {
    /// The interface at each device and partition.
    partitions: BTreeMap<(String, u16), &'a str>,
    /// For each port of an adapter, an interface there and whether libibverbs drives the adapter.
    drivers: BTreeMap<(String, u8), (&'a str, bool)>,
    /// For each device, an interface there and its management.
    management: BTreeMap<String, (&'a str, Option<&'a Management>)>,
    /// The interface with each address in a domain. Link-local addresses are left out.
    addresses: BTreeMap<(&'a str, IpAddr), &'a str>,
    /// The interface with each name of a shadow or TUN device.
    shadows: BTreeMap<&'a str, &'a str>,
    /// The interface at each Ethernet device and VLAN.
    ethernet: BTreeMap<(&'a str, Option<u16>), &'a str>,
}

struct InterfaceCheck<'a> {
    name: &'a str,
    interface: &'a InterfaceSettings,
}

impl<'a> InterfaceCheck<'a> {
    fn check(&self, unique: &mut UniqueValues<'a>, faults: &mut Faults) {
        self.keys(faults);
        match self.interface.kind {
            InterfaceKind::Ipoib => self.device(unique, faults),
            InterfaceKind::Tun => self.tun_device(unique, faults),
            InterfaceKind::Ethernet => self.ethernet_device(unique, faults),
        }
        self.management(unique, faults);
        self.modes(faults);
        self.addresses(unique, faults);
        self.shadow(unique, faults);
        self.other_hosts("router", self.interface.router.clone(), faults);
        let peers = self.interface.peer.iter().map(|peer| peer.address);
        self.other_hosts("peer", peers.collect(), faults);
        self.neighbors(faults);
    }

    fn path<const N: usize>(&self, steps: [Step; N]) -> Vec<Step> {
        let own: [Step; 2] = ["interface".into(), self.name.into()];
        own.into_iter().chain(steps).collect()
    }

    fn keys(&self, faults: &mut Faults) {
        let Self { name, interface } = self;
        let Some(key) = interface.unsupported_key() else { return };
        let kind = interface.kind;
        let reason = format!("{name} has kind \"{kind}\", which has no key `{key}`; remove it");
        faults.add(&self.path([key.into()]), reason);
    }

    fn tun_device(&self, unique: &mut UniqueValues<'a>, faults: &mut Faults) {
        let advice = format!("\"tun0\", or up to {DEVICE_NAME_BYTES_MAX} letters and digits");
        self.device_name(&advice, faults);
        self.kernel_device("device", &self.interface.device, unique, faults);
        self.no_dhcp(faults);
        self.kernel_addresses(faults);
    }

    /// Checks that no other interface uses the same VLAN of the device, or its untagged frames.
    fn ethernet_device(&self, unique: &mut UniqueValues<'a>, faults: &mut Faults) {
        let Self { name, interface } = self;
        let device = interface.device.as_str();
        self.device_name("\"eth0\", as `ip link` shows it", faults);
        let other = unique.ethernet.insert((device, interface.vlan), name);
        let reason = |other| {
            format!(
                "{other} and {name} both have the same VLAN, or the untagged frames, of \
                 {device:?}; set another `vlan` in one of them"
            )
        };
        faults.refuse(&self.path(["device".into()]), other.map(reason));
        self.no_dhcp(faults);
    }

    fn device_name(&self, advice: &str, faults: &mut Faults) {
        let device = &self.interface.device;
        let reason = format!("{device:?} is no name of a network device; write device = {advice}");
        let is_wrong = !super::is_device_name(device);
        faults.refuse(&self.path(["device".into()]), is_wrong.then_some(reason));
    }

    fn no_dhcp(&self, faults: &mut Faults) {
        let Self { name, interface } = self;
        let dhcp = interface.address.iter().position(|one| *one == super::AddressSetting::Dhcp);
        let Some(nth) = dhcp else { return };
        let kind = interface.kind;
        let reason = format!("{name} has kind \"{kind}\", which has no DHCP; write its address");
        faults.add(&self.path(["address".into(), nth.into()]), reason);
    }

    fn kernel_addresses(&self, faults: &mut Faults) {
        let Self { name, interface } = self;
        for (nth, prefix) in interface.kernel_address.iter().enumerate() {
            self.is_another_host("kernel_address", nth, prefix.ip, faults);
            let reason = prefix
                .no_host_reason()
                .map(|what| format!("the kernel's end of {name} cannot have {prefix}: {what}"));
            faults.refuse(&self.path(["kernel_address".into(), nth.into()]), reason);
        }
        let addresses = interface.kernel_address.iter().map(|prefix| prefix.ip);
        self.is_each_once("kernel_address", addresses, faults);
    }

    fn device(&self, unique: &mut UniqueValues<'a>, faults: &mut Faults) {
        let Self { name, interface } = self;
        let missing =
            format!("{name} has no device; write device = \"mlx5_0:1\", or kind = \"tun\"");
        let path = self.path(["device".into()]);
        faults.refuse(&path, interface.device.is_empty().then_some(missing));
        let (device, pkey) = (&interface.device, interface.pkey);
        let parsed = match DeviceName::parse(device) {
            Ok(parsed) => parsed,
            Err(error) => return faults.add(&path, error.to_string()),
        };
        let other = unique.partitions.insert((parsed.to_string(), pkey.partition()), name);
        let reason = other.map(|other| {
            format!(
                "{name} and {other} are both at {device:?} in the partition {:#06x}; \
                 change the pkey of one",
                pkey.0
            )
        });
        faults.refuse(&self.path([]), reason);
        let DeviceName::Adapter { device, port, is_verbs } = parsed else { return };
        let subject = format!("{device}:{port}");
        let (other, others) = *unique.drivers.entry((device, port)).or_insert((name, is_verbs));
        let reason = format!(
            "{other} and {name} are both at {subject}, one of them by `verbs:`; write it in both \
             or in none"
        );
        faults.refuse(&path, (is_verbs != others).then_some(reason));
    }

    /// Checks that all interfaces at a port have the same management.
    fn management(&self, unique: &mut UniqueValues<'a>, faults: &mut Faults) {
        let Self { name, interface } = self;
        let (device, own) = (interface.device.clone(), interface.management.as_ref());
        let (other, others) = *unique.management.entry(device).or_insert((name, own));
        let reason = format!(
            "{other} and {name} are both at {:?}, but differ in management; write the same in both",
            interface.device
        );
        faults.refuse(&self.path(["management".into()]), (own != others).then_some(reason));
    }

    fn shadow(&self, unique: &mut UniqueValues<'a>, faults: &mut Faults) {
        if let Some(shadow) = &self.interface.shadow {
            self.kernel_device("shadow", shadow, unique, faults);
        }
    }

    /// Checks that no other interface makes a device of this name in the kernel.
    fn kernel_device(
        &self,
        key: &str,
        device: &'a str,
        unique: &mut UniqueValues<'a>,
        faults: &mut Faults,
    ) {
        let name = self.name;
        let other = unique.shadows.insert(device, name);
        let reason =
            |other| format!("{other} and {name} both have the device {device:?}; change one");
        faults.refuse(&self.path([key.into()]), other.map(reason));
    }

    fn modes(&self, faults: &mut Faults) {
        let Self { name, interface } = self;
        let connects = interface.peer.iter().position(|peer| peer.mode != Mode::Ud);
        let (Mode::Ud, Some(nth)) = (interface.mode, connects) else { return };
        let peer = &interface.peer[nth];
        let (ip, mode) = (peer.address, peer.mode);
        let reason = format!(
            "peer {ip} wants mode {mode}, but {name} has mode \"ud\"; set {name} to \"auto\", \
             and other peers than {ip} to \"ud\""
        );
        faults.add(&self.path(["peer".into(), nth.into(), "mode".into()]), reason);
    }

    fn addresses(&self, unique: &mut UniqueValues<'a>, faults: &mut Faults) {
        let Self { name, interface } = self;
        let mut own = BTreeSet::new();
        for (nth, address) in interface.address.iter().enumerate() {
            let super::AddressSetting::Fixed(prefix) = address else { continue };
            let path = self.path(["address".into(), nth.into()]);
            let ip = prefix.ip;
            let no_host = prefix.no_host_reason().map(|what| {
                format!("{name} cannot have {ip}/{}: {what}; write a host's address", prefix.len)
            });
            faults.refuse(&path, no_host);
            let with_v6 = format!("{name} has {ip}, but ipv6 = false; remove one of them");
            faults.refuse(&path, (ip.is_ipv6() && !interface.ipv6).then_some(with_v6));
            let twice = format!("{name} has {ip} twice; remove one");
            faults.refuse(&path, (!own.insert(ip)).then_some(twice));
            if !is_link_local(ip) {
                let other = unique.addresses.insert((&interface.domain, ip), name);
                let reason = |other| format!("{name} and {other} both have {ip}; change one");
                faults.refuse(&path, other.map(reason));
            }
        }
    }

    fn neighbors(&self, faults: &mut Faults) {
        let Self { name, interface } = self;
        let addresses = interface.neighbor.iter().map(|one| one.address);
        self.other_hosts("neighbor", addresses.collect(), faults);
        let kind = interface.kind;
        let foreign = interface.neighbor.iter().position(|one| one.link.kind() != kind);
        let Some(nth) = foreign else { return };
        let bytes = if kind == InterfaceKind::Ethernet { 6 } else { 20 };
        let reason = format!("{name} has kind \"{kind}\", whose link addresses have {bytes} bytes");
        faults.add(&self.path(["neighbor".into(), nth.into(), "link".into()]), reason);
    }

    /// Checks that other hosts can have the addresses of a list, and that no address occurs twice.
    fn other_hosts(&self, what: &str, addresses: Vec<IpAddr>, faults: &mut Faults) {
        for (nth, ip) in addresses.iter().enumerate() {
            self.is_another_host(what, nth, *ip, faults);
        }
        self.is_each_once(what, addresses.into_iter(), faults);
    }

    fn is_another_host(&self, what: &str, nth: usize, ip: IpAddr, faults: &mut Faults) {
        let name = self.name;
        let own = || self.interface.fixed_addresses().any(|prefix| prefix.ip == ip);
        let why = no_host_reason(ip).or_else(|| own().then(|| format!("{name} itself has it")));
        let reason =
            why.map(|why| format!("{ip} cannot be a {what} of {name}: {why}; change or remove it"));
        faults.refuse(&self.path([what.into(), nth.into()]), reason);
    }

    fn is_each_once(
        &self,
        what: &str,
        addresses: impl Iterator<Item = IpAddr>,
        faults: &mut Faults,
    ) {
        let mut known = BTreeSet::new();
        let mut all = addresses.enumerate();
        let twice = all.find(|(_, ip)| !known.insert(*ip));
        let Some((nth, ip)) = twice else { return };
        let reason = format!("{} has the {what} {ip} twice; remove one", self.name);
        faults.add(&self.path([what.into(), nth.into()]), reason);
    }
}

pub(super) struct Machine {
    pub(super) cores: Vec<usize>,
    /// Whether this build can open hardware adapters.
    pub(super) opens_adapters: bool,
}

impl Machine {
    pub(super) fn this() -> Self {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let cores = cores.into_iter().map(|core| core.id).collect();
        Self { cores, opens_adapters: pollux_ibverbs::OPENS_ADAPTERS }
    }

    pub(super) fn check(&self, config: &NodeConfig) -> Faults {
        let mut faults = Faults::default();
        for (nth, core) in config.workers.cores.iter().enumerate() {
            let there = &self.cores;
            let reason = format!(
                "core {core} is not available; choose cores in [workers] from {there:?}, or omit \
                 `cores`"
            );
            let path = ["workers".into(), "cores".into(), nth.into()];
            faults.refuse(&path, (!there.contains(core)).then_some(reason));
        }
        if self.opens_adapters {
            return faults;
        }
        let ports = config.interfaces.iter().filter(|(_, one)| one.kind == InterfaceKind::Ipoib);
        for (name, interface) in ports {
            let device = &interface.device;
            let (key, device) = match (&interface.management, DeviceName::parse(device)) {
                (Some(management), _) => ("management", management.port().to_owned()),
                (None, Ok(DeviceName::Adapter { .. })) => ("device", device.clone()),
                (None, _) => continue,
            };
            let reason = pollux_ibverbs::HcaOpenError::NotBuilt { device }.to_string();
            let one = InterfaceCheck { name, interface };
            faults.add(&one.path([key.into()]), reason);
        }
        faults
    }
}
