//! The changes from one configuration to the next. `pollux reload` applies them; the start of a
//! node applies the changes from an empty configuration. An interface that no change names keeps
//! running.

use super::multicast::multicast_name;
use super::{
    AclSettings, AddressSetting, DEFAULT_DOMAIN, DomainSettings, InterfaceKind, InterfaceSettings,
    Mode, MulticastKey, MulticastSettings, Neighbor, NodeConfig, PeerSettings, Prefix,
    RouteSettings, RouterSettings, RpfMode, TelemetrySettings,
};
use pollux_dataplane::engine::idle::Idle;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Remove(String),
    /// Stops the interface, and starts it with these settings: the keys in the list cannot change
    /// while it runs.
    Restart(String, Box<InterfaceSettings>, Vec<&'static str>),
    Set(String, Setting),
    Add(String, Box<InterfaceSettings>),
    Router(Option<RouterSettings>),
    SetDomain(String, DomainSettings),
    RemoveDomain(String),
    SetAcl(String, Vec<AclSettings>),
    RemoveAcl(String),
    RemoveRoute(String, Prefix),
    SetRoute(RouteSettings),
    RemoveMulticast(MulticastKey),
    SetMulticast(MulticastSettings),
    Telemetry(TelemetrySettings),
    Idle(Idle),
    /// The cores of the worker threads. They take effect when the node starts next.
    Cores(Vec<usize>),
}

/// A setting that can change while the interface runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    RemoveAddress(IpAddr),
    SetAddress(Prefix),
    RemoveRouter(IpAddr),
    AddRouter(IpAddr),
    RemoveNeighbor(IpAddr),
    SetNeighbor(Neighbor),
    /// The mode of peers without a mode of their own. Turning connected mode on or off needs a
    /// restart of the interface.
    SetMode(Mode),
    RemovePeer(IpAddr),
    SetPeer(PeerSettings),
    SetShadow(Option<String>),
    SetDomain(String),
    SetAclIn(Option<String>),
    SetAclOut(Option<String>),
    SetRpf(RpfMode),
    /// The MTU of a TUN device, or the longest packet of an Ethernet interface.
    SetMtu(u32),
    RemoveKernelAddress(IpAddr),
    SetKernelAddress(Prefix),
}

impl Change {
    /// The interface that changes; `None` for a change of the node.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Remove(name)
            | Self::Restart(name, ..)
            | Self::Set(name, _)
            | Self::Add(name, _) => Some(name),
            _ => None,
        }
    }

    /// Whether the change takes effect only when the node starts next.
    pub const fn needs_start(&self) -> bool {
        matches!(self, Self::Cores(_))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remove(name) => write!(f, "{name}: remove"),
            Self::Restart(name, _, keys) => {
                write!(f, "{name}: restart, since it has another {}", keys.join(", "))
            }
            Self::Set(name, setting) => write!(f, "{name}: {setting}"),
            Self::Add(name, settings) => write!(f, "{name}: add, at {}", settings.device),
            Self::Router(router) => {
                let forwards = router.is_some_and(|router| router.forward);
                write!(f, "router: forwarding {}", if forwards { "on" } else { "off" })?;
                write_table(f, router.and_then(|router| router.kernel_table))
            }
            Self::SetDomain(name, DomainSettings { kernel_table }) => {
                write!(f, "domain: {name}")?;
                write_table(f, *kernel_table)
            }
            Self::RemoveDomain(name) => write!(f, "domain: remove {name}"),
            Self::SetAcl(name, rules) => write!(f, "acl: {name}, with {} rules", rules.len()),
            Self::RemoveAcl(name) => write!(f, "acl: remove {name}"),
            Self::RemoveRoute(domain, to) if domain == DEFAULT_DOMAIN => {
                write!(f, "route: remove {to}")
            }
            Self::RemoveRoute(domain, to) => write!(f, "route: remove {to} in {domain}"),
            Self::SetRoute(route) => write!(f, "route: {route}"),
            Self::RemoveMulticast(key) => write!(f, "multicast: remove {}", multicast_name(key)),
            Self::SetMulticast(route) => write!(f, "multicast: {route}"),
            Self::Telemetry(TelemetrySettings { openmetrics: Some(address) }) => {
                write!(f, "telemetry: metrics at {address}")
            }
            Self::Telemetry(TelemetrySettings { openmetrics: None }) => {
                f.write_str("telemetry: no metrics")
            }
            Self::Idle(idle) => write!(f, "workers: idle strategy {}", idle.name()),
            Self::Cores(cores) => {
                let cores: Vec<_> = cores.iter().map(ToString::to_string).collect();
                write!(f, "workers: cores {} with the next start", cores.join(", "))
            }
        }
    }
}

fn write_table(f: &mut fmt::Formatter<'_>, kernel_table: Option<u32>) -> fmt::Result {
    kernel_table.map_or(Ok(()), |table| write!(f, ", with routes of the kernel's table {table}"))
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoveAddress(ip) => write!(f, "remove address {ip}"),
            Self::SetAddress(prefix) => write!(f, "address {prefix}"),
            Self::RemoveRouter(ip) => write!(f, "remove router {ip}"),
            Self::AddRouter(ip) => write!(f, "router {ip}"),
            Self::RemoveNeighbor(ip) => write!(f, "remove static neighbor {ip}"),
            Self::SetNeighbor(neighbor) => write!(f, "static neighbor {}", neighbor.address),
            Self::SetMode(mode) => write!(f, "mode {mode}"),
            Self::RemovePeer(ip) => write!(f, "peer {ip} with the mode of the interface"),
            Self::SetPeer(PeerSettings { address, mode }) => {
                write!(f, "peer {address} with mode {mode}")
            }
            Self::SetShadow(Some(name)) => write!(f, "shadow {name}"),
            Self::SetShadow(None) => write!(f, "no shadow"),
            Self::SetDomain(name) => write!(f, "domain {name}"),
            Self::SetAclIn(Some(name)) => write!(f, "acl_in {name}"),
            Self::SetAclIn(None) => write!(f, "no acl_in"),
            Self::SetAclOut(Some(name)) => write!(f, "acl_out {name}"),
            Self::SetAclOut(None) => write!(f, "no acl_out"),
            Self::SetRpf(mode) => write!(f, "rpf {mode}"),
            Self::SetMtu(mtu) => write!(f, "mtu {mtu}"),
            Self::RemoveKernelAddress(ip) => write!(f, "remove kernel_address {ip}"),
            Self::SetKernelAddress(prefix) => write!(f, "kernel_address {prefix}"),
        }
    }
}

impl NodeConfig {
    /// The changes that turn this configuration into `new`, in an order in which they can be
    /// applied.
    pub fn diff(&self, new: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        let gone = self.interfaces.keys().filter(|name| !new.interfaces.contains_key(*name));
        changes.extend(gone.cloned().map(Change::Remove));
        for (name, settings) in &new.interfaces {
            let Some(old) = self.interfaces.get(name) else { continue };
            let keys = old.fixed_keys(settings);
            if keys.is_empty() {
                let settings = old.diff(settings).into_iter();
                changes.extend(settings.map(|setting| Change::Set(name.clone(), setting)));
            } else {
                changes.push(Change::Restart(name.clone(), Box::new(settings.clone()), keys));
            }
        }
        let new_ones = new.interfaces.iter();
        let new_ones = new_ones.filter(|(name, _)| !self.interfaces.contains_key(*name));
        changes
            .extend(new_ones.map(|(name, one)| Change::Add(name.clone(), Box::new(one.clone()))));
        if self.router != new.router {
            changes.push(Change::Router(new.router));
        }
        let (old, next) = (&self.domains, &new.domains);
        compare(&mut changes, old, next, Change::RemoveDomain, Change::SetDomain);
        compare(&mut changes, &self.acls, &new.acls, Change::RemoveAcl, Change::SetAcl);
        let is_same = |one: &RouteSettings, other: &RouteSettings| {
            (&one.domain, one.to) == (&other.domain, other.to)
        };
        let remove = |one: &RouteSettings| Change::RemoveRoute(one.domain.clone(), one.to);
        let lists = [&self.route[..], &new.route];
        compare_lists(&mut changes, lists, is_same, remove, Change::SetRoute);
        let is_same = |one: &MulticastSettings, other: &MulticastSettings| one.key() == other.key();
        let remove = |one: &MulticastSettings| Change::RemoveMulticast(one.key());
        let lists = [&self.multicast[..], &new.multicast];
        compare_lists(&mut changes, lists, is_same, remove, Change::SetMulticast);
        if self.telemetry != new.telemetry {
            changes.push(Change::Telemetry(new.telemetry.clone()));
        }
        if self.workers.idle != new.workers.idle {
            changes.push(Change::Idle(new.workers.idle));
        }
        if self.workers.cores != new.workers.cores {
            changes.push(Change::Cores(new.workers.cores.clone()));
        }
        changes
    }

    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Remove(name) => drop(self.interfaces.remove(name)),
            Change::Restart(name, settings, _) | Change::Add(name, settings) => {
                self.interfaces.insert(name.clone(), (**settings).clone());
            }
            Change::Set(name, setting) => {
                if let Some(settings) = self.interfaces.get_mut(name) {
                    settings.apply(setting);
                }
            }
            Change::Router(router) => self.router = *router,
            Change::SetDomain(name, domain) => _ = self.domains.insert(name.clone(), *domain),
            Change::RemoveDomain(name) => drop(self.domains.remove(name)),
            Change::SetAcl(name, rules) => _ = self.acls.insert(name.clone(), rules.clone()),
            Change::RemoveAcl(name) => drop(self.acls.remove(name)),
            Change::RemoveRoute(domain, to) => {
                self.route.retain(|route| (&route.domain, route.to) != (domain, *to));
            }
            Change::SetRoute(route) => {
                self.route.retain(|known| (&known.domain, known.to) != (&route.domain, route.to));
                self.route.push(route.clone());
            }
            Change::RemoveMulticast(key) => self.multicast.retain(|one| one.key() != *key),
            Change::SetMulticast(route) => {
                self.multicast.retain(|one| one.key() != route.key());
                self.multicast.push(route.clone());
            }
            Change::Telemetry(telemetry) => self.telemetry.clone_from(telemetry),
            Change::Idle(idle) => self.workers.idle = *idle,
            Change::Cores(cores) => self.workers.cores.clone_from(cores),
        }
    }
}

impl InterfaceSettings {
    /// The keys that differ and cannot change while an interface runs.
    fn fixed_keys(&self, new: &Self) -> Vec<&'static str> {
        let connects = |settings: &Self| settings.mode != Mode::Ud;
        let is_plain = new.kind != InterfaceKind::Ipoib;
        let differ = [
            ("kind", self.kind != new.kind),
            ("device", self.device != new.device),
            ("management", self.management != new.management),
            ("pkey", self.pkey != new.pkey),
            ("mode", connects(self) != connects(new)),
            ("mtu", self.mtu != new.mtu && !is_plain),
            ("workers", self.workers != new.workers),
            ("DHCP setting", self.uses_dhcp() != new.uses_dhcp()),
            ("ipv6", self.ipv6 != new.ipv6),
            ("vlan", self.vlan != new.vlan),
            ("frames", self.frames != new.frames),
        ];
        differ.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
    }

    fn diff(&self, new: &Self) -> Vec<Setting> {
        let mut settings = Vec::new();
        let addresses = |one: &Self| by(one.fixed_addresses().copied(), |prefix| prefix.ip);
        let set = |_, prefix| Setting::SetAddress(prefix);
        compare(&mut settings, &addresses(self), &addresses(new), Setting::RemoveAddress, set);
        let routers = |one: &Self| by(one.router.iter().copied(), |ip| *ip);
        let set = |_, ip| Setting::AddRouter(ip);
        compare(&mut settings, &routers(self), &routers(new), Setting::RemoveRouter, set);
        let neighbors = |one: &Self| by(one.neighbor.iter().copied(), |one| one.address);
        let set = |_, neighbor| Setting::SetNeighbor(neighbor);
        compare(&mut settings, &neighbors(self), &neighbors(new), Setting::RemoveNeighbor, set);
        settings.extend((self.mode != new.mode).then_some(Setting::SetMode(new.mode)));
        let peers = |one: &Self| by(one.peer.iter().copied(), |one| one.address);
        let set = |_, peer| Setting::SetPeer(peer);
        compare(&mut settings, &peers(self), &peers(new), Setting::RemovePeer, set);
        let others = [
            (self.shadow != new.shadow, Setting::SetShadow(new.shadow.clone())),
            (self.domain != new.domain, Setting::SetDomain(new.domain.clone())),
            (self.acl_in != new.acl_in, Setting::SetAclIn(new.acl_in.clone())),
            (self.acl_out != new.acl_out, Setting::SetAclOut(new.acl_out.clone())),
            (self.rpf != new.rpf, Setting::SetRpf(new.rpf)),
            (self.mtu != new.mtu, Setting::SetMtu(new.mtu)),
        ];
        let others = others.into_iter().filter_map(|(differs, set)| differs.then_some(set));
        settings.extend(others);
        let kernel = |one: &Self| by(one.kernel_address.iter().copied(), |prefix| prefix.ip);
        let set = |_, prefix| Setting::SetKernelAddress(prefix);
        compare(&mut settings, &kernel(self), &kernel(new), Setting::RemoveKernelAddress, set);
        settings
    }

    pub fn apply(&mut self, setting: &Setting) {
        match *setting {
            Setting::RemoveAddress(ip) => self.address.retain(|one| !one.is(ip)),
            Setting::SetAddress(prefix) => {
                self.address.retain(|one| !one.is(prefix.ip));
                self.address.push(AddressSetting::Fixed(prefix));
            }
            Setting::RemoveRouter(ip) => self.router.retain(|one| *one != ip),
            Setting::AddRouter(ip) => self.router.push(ip),
            Setting::RemoveNeighbor(ip) => self.neighbor.retain(|one| one.address != ip),
            Setting::SetNeighbor(neighbor) => {
                self.neighbor.retain(|one| one.address != neighbor.address);
                self.neighbor.push(neighbor);
            }
            Setting::SetMode(mode) => self.mode = mode,
            Setting::RemovePeer(ip) => self.peer.retain(|one| one.address != ip),
            Setting::SetPeer(peer) => {
                self.peer.retain(|one| one.address != peer.address);
                self.peer.push(peer);
            }
            Setting::SetShadow(ref shadow) => self.shadow.clone_from(shadow),
            Setting::SetDomain(ref domain) => self.domain.clone_from(domain),
            Setting::SetAclIn(ref acl) => self.acl_in.clone_from(acl),
            Setting::SetAclOut(ref acl) => self.acl_out.clone_from(acl),
            Setting::SetRpf(mode) => self.rpf = mode,
            Setting::SetMtu(mtu) => self.mtu = mtu,
            Setting::RemoveKernelAddress(ip) => self.kernel_address.retain(|one| one.ip != ip),
            Setting::SetKernelAddress(prefix) => {
                self.kernel_address.retain(|one| one.ip != prefix.ip);
                self.kernel_address.push(prefix);
            }
        }
    }
}

impl AddressSetting {
    fn is(&self, ip: IpAddr) -> bool {
        matches!(self, Self::Fixed(prefix) if prefix.ip == ip)
    }
}

fn by<T>(values: impl Iterator<Item = T>, ip: impl Fn(&T) -> IpAddr) -> BTreeMap<IpAddr, T> {
    values.map(|value| (ip(&value), value)).collect()
}

/// Appends the removals of missing keys, then the values that are new or differ.
fn compare<K: Ord + Clone, V: Clone + PartialEq, C>(
    changes: &mut Vec<C>,
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    remove: impl Fn(K) -> C,
    set: impl Fn(K, V) -> C,
) {
    changes.extend(old.keys().filter(|key| !new.contains_key(key)).cloned().map(remove));
    let others = new.iter().filter(|(key, value)| old.get(key) != Some(value));
    changes.extend(others.map(|(key, value)| set(key.clone(), value.clone())));
}

/// Does the same as [`compare`], for lists, and keeps their order.
fn compare_lists<V: Clone + PartialEq>(
    changes: &mut Vec<Change>,
    [old, new]: [&[V]; 2],
    is_same: impl Fn(&V, &V) -> bool,
    remove: impl Fn(&V) -> Change,
    set: impl Fn(V) -> Change,
) {
    let is_gone = |one: &&V| !new.iter().any(|other| is_same(one, other));
    changes.extend(old.iter().filter(is_gone).map(remove));
    changes.extend(new.iter().filter(|one| !old.contains(one)).cloned().map(set));
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_verbs::rng::SeededRng;

    fn read(text: &str) -> NodeConfig {
        NodeConfig::read("test", text).expect("a configuration")
    }

    fn random_multicast(rng: &mut SeededRng) -> String {
        let mut text = String::new();
        for (from, to) in [("ib0", "ib1"), ("ib1", "ib2"), ("ib2", "ib3")] {
            let others = ["", "source = \"10.0.1.9\"\n", "ttl_threshold = 9\n"];
            let other = others[rng.below(3) as usize];
            if rng.below(2) == 0 {
                text += &format!(
                    "[[multicast]]\ngroup = \"239.1.2.3\"\nfrom = {from:?}\nto = [{to:?}]\n{other}"
                );
            }
        }
        text
    }

    /// A configuration with settings chosen by a seed.
    fn random(rng: &mut SeededRng) -> NodeConfig {
        let mut text = String::new();
        if rng.below(2) == 0 {
            text +=
                ["[workers]\ncores = [0]\n", "[workers]\nidle = \"poll\"\n"][rng.below(2) as usize];
        }
        let routers =
            ["", "[router]\n", "[router]\nforward = false\n", "[router]\nkernel_table = 254\n"];
        text += routers[rng.below(4) as usize];
        let addresses = ["127.0.0.1:9111", "[::1]:9111", "unix:/run/metrics.sock"];
        let address = addresses.get(rng.below(4) as usize);
        text += &address.map_or(String::new(), |it| format!("[telemetry]\nopenmetrics = {it:?}\n"));
        for to in ["10.1.0.0/16", "fd01::/64", "10.1.0.0/16\"\ndomain = \"red"] {
            let hows =
                ["", "via = [\"10.0.0.2\"]", "type = \"prohibit\"", "next_domain = \"blue\""];
            let how = hows[rng.below(4) as usize];
            if how.is_empty() {
                continue;
            }
            text += &format!("[[route]]\nto = \"{to}\"\n{how}\n");
        }
        text += &random_multicast(rng);
        for domain in ["", "[domain.red]\n", "[domain.blue]\nkernel_table = 7\n", "[domain.blue]\n"]
        {
            if rng.below(2) == 0 && !text.contains(domain.lines().next().unwrap_or("[")) {
                text += domain;
            }
        }
        for rule in ["[[acl.a]]\naction = \"deny\"\n", "[[acl.b]]\naction = \"reject\"\n"] {
            text += &rule.repeat(rng.below(3) as usize);
        }
        for nth in (0..3).filter(|_| rng.below(3) > 0).chain([3]).collect::<Vec<_>>() {
            let mut pick =
                |choices: &[&str]| choices[rng.below(choices.len() as u64) as usize].to_owned();
            text += &format!("[interface.ib{nth}]\ndevice = \"soft:x@host{nth}\"\n");
            text += &pick(&["", "", "kind = \"tun\"\n", "kind = \"ethernet\"\n"]);
            text += &pick(&["", "vlan = 7\n", "frames = \"packet\"\n"]);
            let kernel = ["[]", "[\"10.7.0.1/24\"]", "[\"10.7.0.1/16\", \"10.7.0.2/16\"]"];
            text += &format!("kernel_address = {}\n", pick(&kernel));
            text += &pick(&["", "pkey = 0x8001\n"]);
            let mode = pick(&["ud", "rc", "uc", "auto"]);
            text += &format!("mode = {mode:?}\n");
            text += &pick(&["", "mtu = 4000\n"]);
            text += &pick(&["", "workers = 2\n"]);
            text += &pick(&["", "ipv6 = false\n"]);
            text += &pick(&["", "domain = \"red\"\n", "domain = \"blue\"\n"]);
            text += &pick(&["", "acl_in = \"a\"\n", "acl_out = \"a\"\nacl_in = \"b\"\n"]);
            text += &pick(&["", "rpf = \"loose\"\n", "rpf = \"strict\"\n"]);
            text += &pick(&["", "shadow = \"s0\"\n", "shadow = \"s1\"\n"]);
            text += &random_address(nth, &mut pick);
            text += &pick(&[
                "",
                "router = [\"10.9.0.254\"]\n",
                "router = [\"10.9.0.253\", \"10.9.0.254\"]\n",
            ]);
            if mode != "ud" {
                text += &match pick(&["none", "ud", "rc"]).as_str() {
                    "none" => String::new(),
                    mode => format!(
                        "[[interface.ib{nth}.peer]]\naddress = \"10.{nth}.0.7\"\nmode = {mode:?}\n"
                    ),
                };
            }
        }
        // Not `NodeConfig::read`: the random values may break rules across values.
        toml::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Addresses of an interface, or none.
    fn random_address(nth: usize, pick: &mut impl FnMut(&[&str]) -> String) -> String {
        let (first, second) = (format!("10.{nth}.0.1"), format!("10.{nth}.0.2"));
        let len = pick(&["/24", "/16", "/8"]);
        match pick(&["none", "one", "two", "dhcp"]).as_str() {
            "one" => format!("address = [\"{first}{len}\"]\n"),
            "two" => format!("address = [\"{second}/24\", \"{first}{len}\"]\n"),
            "dhcp" => "address = [\"dhcp\"]\n".into(),
            _ => String::new(),
        }
    }

    /// The configuration with sorted lists: their order does not matter.
    fn sorted(mut config: NodeConfig) -> NodeConfig {
        for one in config.interfaces.values_mut() {
            one.address.sort_by_key(|one| format!("{one:?}"));
            one.router.sort();
            one.kernel_address.sort();
            one.peer.sort_by_key(|one| one.address);
        }
        config.route.sort_by_key(|one| (one.domain.clone(), one.to.ip));
        config.multicast.sort_by_key(|one| (one.key(), one.to.clone()));
        config
    }

    #[test]
    fn applied_changes_make_the_new_configuration() {
        let mut rng = SeededRng::new(7);
        for _ in 0..2000 {
            let (mut old, new) = (random(&mut rng), random(&mut rng));
            assert_eq!(old.diff(&old), []);
            for change in old.diff(&new) {
                old.apply(&change);
            }
            assert_eq!(sorted(old), sorted(new));
        }
    }

    #[test]
    fn a_start_adds_all_interfaces() {
        let new =
            read("[interface.ib0]\ndevice = \"soft:\"\n[interface.ib1]\ndevice = \"null:\"\n");
        let changes = NodeConfig::default().diff(&new);
        let message: Vec<_> = changes.iter().map(ToString::to_string).collect();
        assert_eq!(message, ["ib0: add, at soft:", "ib1: add, at null:"]);
    }

    #[test]
    fn settings_of_a_running_interface_restart_nothing() {
        let old = read(
            "[interface.ib0]\ndevice = \"soft:\"\nmode = \"rc\"\nrouter = [\"10.0.0.254\"]\n\
             address = [\"10.0.0.1/24\", \"10.0.1.1/24\"]\n",
        );
        let new = read(
            "[workers]\nidle = \"poll\"\n[interface.ib0]\ndevice = \"soft:\"\nmode = \"auto\"\n\
             address = [\"10.0.2.1/24\", \"10.0.0.1/16\"]\n\
             [[interface.ib0.peer]]\naddress = \"10.0.0.7\"\nmode = \"ud\"\n",
        );
        let message: Vec<_> = old.diff(&new).iter().map(ToString::to_string).collect();
        assert_eq!(
            message,
            [
                "ib0: remove address 10.0.1.1",
                "ib0: address 10.0.0.1/16",
                "ib0: address 10.0.2.1/24",
                "ib0: remove router 10.0.0.254",
                "ib0: mode auto",
                "ib0: peer 10.0.0.7 with mode ud",
                "workers: idle strategy poll",
            ]
        );
    }

    #[test]
    fn fixed_settings_restart_an_interface() {
        let old =
            read("[interface.ib0]\ndevice = \"soft:\"\n[interface.ib1]\ndevice = \"null:\"\n");
        let new = read(
            "[workers]\ncores = [0]\n\
             [interface.ib0]\ndevice = \"soft:\"\nmode = \"rc\"\nmtu = 9000\n",
        );
        let message: Vec<_> = old.diff(&new).iter().map(ToString::to_string).collect();
        assert_eq!(
            message,
            [
                "ib1: remove",
                "ib0: restart, since it has another mode, mtu",
                "workers: cores 0 with the next start",
            ]
        );
    }
}
