//! The configuration of a node: a TOML file with a table for each interface.
//!
//! ```toml
//! [workers]
//! cores = [2, 3]                             # a worker thread on each; by default one, not pinned
//! idle = "adaptive"                          # or poll, or pause: `pollux_dataplane::engine::idle`
//!
//! [interface.ib0]
//! device = "mlx5_0:1"                        # see `crate::device`; interfaces may share it
//! management = "umad:mlx5_0:1"               # MADs by libibumad; by default the device chooses
//! pkey = 0xffff                              # the partition; by default this one
//! mode = "auto"                              # ud, rc, uc, or the best that a peer offers
//! mtu = 65520                                # the largest MTU; a link may have a smaller one
//! workers = 2                                # each with its own connections
//! address = ["10.0.0.1/24", "fd00::1/64"]    # or "dhcp"
//! router = ["10.0.0.254"]                    # default routers
//! ipv6 = true
//!
//! [[interface.ib0.peer]]                     # another mode for one peer
//! address = "10.0.0.7"
//! mode = "ud"
//!
//! [[interface.ib0.neighbor]]                 # a static neighbor
//! address = "10.0.0.9"
//! link = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:10:01"
//!
//! [interface.tun0]                           # a TUN device
//! kind = "tun"
//! address = ["192.168.0.1/24"]
//! kernel_address = ["192.168.0.2/24"]        # the address of the kernel's end
//!
//! [router]                                   # forward packets between the interfaces
//!
//! [[route]]
//! to = "10.1.0.0/16"
//! via = ["10.0.0.2", "10.0.0.3"]             # gateways, which share the flows (ECMP)
//!
//! [[route]]
//! to = "10.2.0.0/16"
//! type = "blackhole"                         # or unreachable, or prohibit
//!
//! [[multicast]]                              # packets to a group, forwarded to several interfaces
//! group = "239.1.2.3"
//! source = "10.0.1.9"                        # by default any
//! from = "ib0"
//! to = ["tun0"]
//!
//! [domain.red]                               # a routing domain: interfaces have `domain = "red"`
//!
//! [[acl.web]]                                # a rule of a list: interfaces have `acl_in = "web"`
//! action = "deny"
//! protocol = "tcp"
//! destination_port = 22
//!
//! [telemetry]
//! openmetrics = "127.0.0.1:9111"             # or "unix:PATH"; metrics for Prometheus
//! ```
//!
//! This file parses the values of interfaces and workers; `kinds`, `prefix`, `route`, `multicast`,
//! `domain`, `acl` and `telemetry` parse the values that their names say. `parse` reads a file, and
//! `text` writes one. `check` has the rules across values, and `host_address` those of addresses.
//! `error` has the errors, and `lines` finds the line of an error. [`diff`] compares two
//! configurations.
//!
//! Why an unknown key is an error (which names the nearest known key): if such keys were ignored,
//! an interface with a misspelled key would silently run with the default.

mod acl;
mod check;
pub mod diff;
mod domain;
mod error;
mod host_address;
mod kinds;
mod lines;
mod multicast;
mod parse;
mod prefix;
mod route;
mod telemetry;
mod text;

pub use acl::{AclSettings, AclVerb, RpfMode};
pub use domain::{DEFAULT_DOMAIN, DomainSettings};
pub use error::{ConfigError, ConfigErrors};
pub(crate) use host_address::is_link_local;
pub use kinds::{FrameAccess, InterfaceKind, NeighborLink};
pub use multicast::{MulticastKey, MulticastSettings};
pub use prefix::Prefix;
pub use route::{RouteKind, RouteSettings, RouterSettings};
pub use telemetry::{MetricsAddress, TelemetrySettings};

use crate::device::{DeviceOpenError, Opened, open_managed};
use check::Machine;
use parse::parse;
use pollux_dataplane::engine::idle::Idle;
use pollux_dataplane::ipoib::RECEIVE_MTU_MAX;
use pollux_wire::ip::ipoib::ip_mtu;
use pollux_wire::ip::ipv6::IPV6_MTU_MIN;
use pollux_wire::keys::PKey;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

/// Maximum number of workers of an interface.
pub const INTERFACE_WORKERS_MAX: u8 = 8;
/// Maximum length of a network device name in bytes (`IFNAMSIZ` without the terminating NUL).
const DEVICE_NAME_BYTES_MAX: usize = 15;
/// The largest MTU, which only connections have.
const MTU_MAX: u32 = ip_mtu(RECEIVE_MTU_MAX);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    pub workers: WorkerSettings,
    /// Forwarding settings. Without the table `[router]`, the node does not forward.
    pub router: Option<RouterSettings>,
    /// Routing domains beside the default one, by name.
    #[serde(rename = "domain")]
    pub domains: BTreeMap<String, DomainSettings>,
    #[serde(rename = "acl")]
    pub acls: BTreeMap<String, Vec<AclSettings>>,
    /// Static routes, at most one per domain and prefix.
    pub route: Vec<RouteSettings>,
    pub multicast: Vec<MulticastSettings>,
    pub telemetry: TelemetrySettings,
    #[serde(rename = "interface")]
    pub interfaces: BTreeMap<String, InterfaceSettings>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerSettings {
    /// The core of each worker thread. If the list is empty, one thread runs, which is not pinned.
    pub cores: Vec<usize>,
    #[serde(deserialize_with = "idle", serialize_with = "text::idle")]
    pub idle: Idle,
}

/// A table `[interface.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InterfaceSettings {
    pub kind: InterfaceKind,
    pub device: String,
    /// The transport for the MADs of the port; without one, the device chooses.
    pub management: Option<Management>,
    #[serde(deserialize_with = "partition", serialize_with = "text::partition")]
    pub pkey: PKey,
    pub mode: Mode,
    /// The largest MTU for sending, and for receiving on connections.
    #[serde(deserialize_with = "mtu")]
    pub mtu: u32,
    /// Workers of the interface, each with its own packet memory and its own connections to every
    /// peer. They are distributed to the threads of `[workers]`, so more workers than cores gain
    /// nothing.
    #[serde(deserialize_with = "workers")]
    pub workers: u8,
    pub peer: Vec<PeerSettings>,
    pub address: Vec<AddressSetting>,
    pub router: Vec<IpAddr>,
    pub neighbor: Vec<Neighbor>,
    pub ipv6: bool,
    pub domain: String,
    /// The access control list for arriving packets, both in transit and addressed to the node.
    pub acl_in: Option<String>,
    /// The access control list for packets in transit that leave by the interface.
    pub acl_out: Option<String>,
    pub rpf: RpfMode,
    /// The name of its shadow: a TUN device that represents the interface to routing daemons.
    #[serde(deserialize_with = "shadow_name")]
    pub shadow: Option<String>,
    #[serde(deserialize_with = "kinds::prefixes")]
    pub kernel_address: Vec<Prefix>,
    /// The VLAN whose frames an Ethernet interface uses; without one, it uses untagged frames.
    #[serde(deserialize_with = "kinds::vlan")]
    pub vlan: Option<u16>,
    pub frames: FrameAccess,
}

impl Default for InterfaceSettings {
    fn default() -> Self {
        Self {
            kind: InterfaceKind::default(),
            device: String::new(),
            management: None,
            pkey: PKey::DEFAULT,
            mode: Mode::default(),
            mtu: MTU_MAX,
            workers: 1,
            peer: Vec::new(),
            address: Vec::new(),
            router: Vec::new(),
            neighbor: Vec::new(),
            ipv6: true,
            domain: DEFAULT_DOMAIN.into(),
            acl_in: None,
            acl_out: None,
            rpf: RpfMode::default(),
            shadow: None,
            kernel_address: Vec::new(),
            vlan: None,
            frames: FrameAccess::default(),
        }
    }
}

/// The transport for the MADs of a port, as the key `management` names it: `umad:mlx5_0:1` selects
/// libibumad. The libibumad port has to be the port of the device, although the names may differ:
/// libumad2sim sends the MADs of a port of a software fabric under the name of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Management(String);

impl Management {
    pub fn port(&self) -> &str {
        &self.0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Datagrams. An interface with this mode accepts no connections.
    #[default]
    Ud,
    Rc,
    Uc,
    /// The best service that the peer offers.
    Auto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSettings {
    pub address: IpAddr,
    pub mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSetting {
    Fixed(Prefix),
    Dhcp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neighbor {
    /// The IP address. It is not resolved, since `link` is given.
    pub address: IpAddr,
    pub link: NeighborLink,
}

impl InterfaceSettings {
    pub fn open_device(&self) -> Result<Opened, DeviceOpenError> {
        open_managed(&self.device, self.management.as_ref().map(Management::port))
    }

    pub fn fixed_addresses(&self) -> impl Iterator<Item = &Prefix> {
        self.address.iter().filter_map(|address| match address {
            AddressSetting::Fixed(prefix) => Some(prefix),
            AddressSetting::Dhcp => None,
        })
    }

    pub fn uses_dhcp(&self) -> bool {
        self.address.contains(&AddressSetting::Dhcp)
    }
}

impl NodeConfig {
    /// Reads a file, and checks that this build can run it on this machine.
    pub fn open(path: &Path) -> Result<Self, ConfigErrors> {
        Self::open_with_text(path).map(|(config, _)| config)
    }

    pub fn open_with_text(path: &Path) -> Result<(Self, String), ConfigErrors> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let reason = format!("cannot read the configuration: {error}");
            ConfigErrors::from(ConfigError::of_file(&file, reason))
        })?;
        let config = Self::read(&file, &text)?;
        Machine::this().check(&config).in_file(&file, &text)?;
        Ok((config, text))
    }

    /// Parses `text`, without checks of the machine. Errors name `file`.
    pub fn read(file: &str, text: &str) -> Result<Self, ConfigErrors> {
        let mut config = parse(file, text)?;
        config.name_devices();
        check::rules(&config).in_file(file, text)?;
        Ok(config)
    }
}

display_as_serialized!(AclVerb FrameAccess InterfaceKind Mode RouteKind RpfMode);

/// Returns the value, or an error with this advice if there is none.
fn valid<T, E: de::Error>(value: Option<T>, advice: impl FnOnce() -> String) -> Result<T, E> {
    value.ok_or_else(|| E::custom(advice()))
}

fn idle<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Idle, D::Error> {
    let name = String::deserialize(deserializer)?;
    valid(Idle::named(&name), || {
        format!("{name:?} is not an idle strategy; write poll, pause or adaptive")
    })
}

fn mtu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let mtu = u32::deserialize(deserializer)?;
    valid((IPV6_MTU_MIN..=MTU_MAX).contains(&mtu).then_some(mtu), || {
        format!("mtu {mtu} is out of range; write {IPV6_MTU_MIN} to {MTU_MAX}")
    })
}

fn workers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let workers = u32::deserialize(deserializer)?;
    let count = u8::try_from(workers).ok();
    valid(count.filter(|count| (1..=INTERFACE_WORKERS_MAX).contains(count)), || {
        format!("workers {workers} is out of range; write 1 to {INTERFACE_WORKERS_MAX}")
    })
}

fn is_device_name(name: &str) -> bool {
    (1..=DEVICE_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(&byte))
        && name != "."
        && name != ".."
}

fn shadow_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let advice = format!(
        "shadow {name:?} is no name of a network device; write 1 to {DEVICE_NAME_BYTES_MAX} \
         letters and digits"
    );
    valid(is_device_name(&name).then_some(Some(name)), || advice)
}

fn partition<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PKey, D::Error> {
    let p_key = PKey(u16::deserialize(deserializer)?);
    valid(p_key.is_valid().then(|| p_key.full()), || {
        "pkey 0 is invalid; write 0xffff for the default partition".into()
    })
}

impl<'de> Deserialize<'de> for Management {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let port = text.strip_prefix("umad:").map(pollux_ibverbs::parse_name);
        let port = port.and_then(Result::ok).map(|(device, port)| format!("{device}:{port}"));
        valid(port.map(Self), || {
            format!(
                "{text:?} is no management; write umad:NAME[:PORT], as in umad:mlx5_0:1, or omit \
                 the key"
            )
        })
    }
}

impl<'de> Deserialize<'de> for AddressSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let setting = match text.as_str() {
            "dhcp" => Some(Self::Dhcp),
            text => Prefix::parse_address(text).map(Self::Fixed),
        };
        valid(setting, || {
            format!(
                "{text:?} is not an address with a prefix; write 10.0.0.1/24, fd00::1/64 or dhcp"
            )
        })
    }
}

#[cfg(test)]
mod tests;
