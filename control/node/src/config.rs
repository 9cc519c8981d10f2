//! What a node is to be, as a file says: TOML, a table for each interface.
//!
//! ```toml
//! [workers]
//! cores = [2, 3]                             # a thread on each; without this, one anywhere
//! idle = "adaptive"                          # or poll, or pause: `pollux_dataplane::engine::idle`
//!
//! [interface.ib0]
//! device = "mlx5_0:1"                        # as `crate::device` opens it; several may share it
//! pkey = 0xffff                              # the partition; the default one without this
//! mode = "auto"                              # ud, rc, uc, or the best that a peer offers
//! mtu = 65520                                # the longest packet; what a link takes is often less
//! workers = 2                                # that move its packets, each by its own connections
//! address = ["10.0.0.1/24", "fd00::1/64"]    # or "dhcp", to ask a server
//! router = ["10.0.0.254"]                    # where everything else goes
//! ipv6 = true
//!
//! [[interface.ib0.peer]]                     # is treated otherwise
//! address = "10.0.0.7"
//! mode = "ud"
//!
//! [[interface.ib0.neighbor]]                 # is not asked for
//! address = "10.0.0.9"
//! link = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:10:01"
//! ```
//!
//! `read` takes a file apart, `check` looks for what no single value shows to be wrong, and `lines`
//! finds the line that an error is about.
//!
//! A key that is none is an error which names the nearest that is one: a misspelt key that is
//! passed over would show as an interface that does what nobody asked for.

mod check;
mod lines;

use check::Machine;
use pollux_dataplane::engine::idle::Idle;
use pollux_dataplane::ipoib::RECEIVE_MTU_MAX;
use pollux_wire::ip::ipoib::ip_mtu;
use pollux_wire::ip::ipv6::IPV6_MTU_MIN;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::keys::PKey;
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

/// Workers of one interface, at most: an adapter in software has no more places at a port.
pub const INTERFACE_WORKERS_MAX: u8 = 8;

/// What a node is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Who works for them.
    #[serde(default)]
    pub workers: WorkerSettings,
    /// Its interfaces, by name.
    #[serde(default, rename = "interface")]
    pub interfaces: BTreeMap<String, InterfaceSettings>,
}

/// The threads that move packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSettings {
    /// The core of each; without any, there is one thread that runs wherever it is let.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// How they rest.
    #[serde(default, deserialize_with = "idle")]
    pub idle: Idle,
}

/// What an interface is to be.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceSettings {
    /// The device's name.
    pub device: String,
    /// The partition.
    #[serde(default = "default_partition", deserialize_with = "partition")]
    pub pkey: PKey,
    /// How packets go to its peers.
    #[serde(default)]
    pub mode: Mode,
    /// The longest packet that is sent, and that connections bring.
    #[serde(default = "longest", deserialize_with = "mtu")]
    pub mtu: u32,
    /// Workers that move its packets, each with packet memory of its own, and with connections of
    /// its own to every peer. They are dealt to the threads of `[workers]`, so more of them than
    /// cores there gain nothing. A port in software has places for eight, of all partitions.
    #[serde(default = "alone", deserialize_with = "workers")]
    pub workers: u8,
    /// Peers to which they go otherwise.
    #[serde(default)]
    pub peer: Vec<PeerSettings>,
    /// Its addresses.
    #[serde(default)]
    pub address: Vec<AddressSetting>,
    /// Default routers.
    #[serde(default)]
    pub router: Vec<IpAddr>,
    /// Neighbors that are not asked for.
    #[serde(default)]
    pub neighbor: Vec<Neighbor>,
    /// Whether it speaks IPv6.
    #[serde(default = "yes")]
    pub ipv6: bool,
}

/// How packets go to peers that offer more than datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By datagram. An interface with this mode offers nothing else either.
    #[default]
    Ud,
    /// By reliable connection.
    Rc,
    /// By unreliable connection.
    Uc,
    /// By the best connection that the peer offers.
    Auto,
}

impl Mode {
    /// As a file writes it.
    const fn name(self) -> &'static str {
        match self {
            Self::Ud => "ud",
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Auto => "auto",
        }
    }
}

/// A peer that is treated otherwise than the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSettings {
    /// An address that leads to it.
    pub address: IpAddr,
    /// How packets go there.
    pub mode: Mode,
}

/// Where an address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSetting {
    /// It is this one.
    Fixed(Prefix),
    /// A DHCP server gives it.
    Dhcp,
}

/// An address, and how much of it all neighbors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the prefix.
    pub len: u8,
}

impl Prefix {
    /// Whether an address is in the network of this one.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.ip, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let hosts = u32::MAX.checked_shr(self.len.into()).unwrap_or(0);
                (own.to_bits() ^ ip.to_bits()) & !hosts == 0
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                let hosts = u128::MAX.checked_shr(self.len.into()).unwrap_or(0);
                (own.to_bits() ^ ip.to_bits()) & !hosts == 0
            }
            _ => false,
        }
    }
}

/// Who has an address, though nobody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neighbor {
    /// The address.
    pub address: IpAddr,
    /// Who has it.
    #[serde(deserialize_with = "link_address")]
    pub link: LinkAddress,
}

/// Why a file is no configuration: one sentence that says where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    line: usize,
    reason: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.reason),
            line => write!(f, "{}:{line}: {}", self.file, self.reason),
        }
    }
}

impl std::error::Error for ConfigError {}

impl InterfaceSettings {
    /// Addresses that are known from the beginning.
    pub fn fixed_addresses(&self) -> impl Iterator<Item = &Prefix> {
        self.address.iter().filter_map(|address| match address {
            AddressSetting::Fixed(prefix) => Some(prefix),
            AddressSetting::Dhcp => None,
        })
    }

    /// Whether a DHCP server is asked for one more.
    pub fn asks_for_address(&self) -> bool {
        self.address.contains(&AddressSetting::Dhcp)
    }
}

impl NodeConfig {
    /// The configuration in a file, which this build can run on this machine.
    pub fn open(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let reason = format!("cannot read the configuration: {error}");
            ConfigError { file: file.clone(), line: 0, reason }
        })?;
        Self::read(&file, &text)?.on(&Machine::this(), &file, &text)
    }

    /// The configuration in a text, which errors call by the name of its file. Whether this machine
    /// has what it names is not looked at.
    pub fn read(file: &str, text: &str) -> Result<Self, ConfigError> {
        let config = toml::from_str::<Self>(text).map_err(|error| {
            let line = error.span().map_or(0, |span| lines::line_at(text, span.start));
            let reason = explain(error.message());
            ConfigError { file: file.into(), line, reason }
        })?;
        check::rules(&config).map_err(|broken| broken.in_file(file, text))?;
        Ok(config)
    }

    /// The same configuration, if this machine can run it.
    fn on(self, machine: &Machine, file: &str, text: &str) -> Result<Self, ConfigError> {
        machine.check(&self).map_err(|broken| broken.in_file(file, text))?;
        Ok(self)
    }
}

/// A message of the parser, with the nearest known key for one that is not known.
fn explain(message: &str) -> String {
    let mut words = message.split('`');
    let (Some("unknown field "), Some(unknown)) = (words.next(), words.next()) else {
        return message.trim_end().replace('\n', "; ");
    };
    let known: Vec<_> = words.skip(1).step_by(2).collect();
    let nearest = known.iter().min_by_key(|known| distance(known, unknown));
    match nearest {
        Some(nearest) if distance(nearest, unknown) <= 1 + unknown.len() / 3 => {
            format!("unknown key `{unknown}`; did you mean `{nearest}`?")
        }
        _ => format!("unknown key `{unknown}`; the keys here are {}", known.join(", ")),
    }
}

/// How many letters have to be put in, taken out or changed to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<_> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (nth, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], nth + 1);
        for (at, known) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *known);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

const fn yes() -> bool {
    true
}

const fn default_partition() -> PKey {
    PKey::DEFAULT
}

const fn longest() -> u32 {
    ip_mtu(RECEIVE_MTU_MAX)
}

const fn alone() -> u8 {
    1
}

fn idle<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Idle, D::Error> {
    let name = String::deserialize(deserializer)?;
    Idle::named(&name).ok_or_else(|| {
        de::Error::custom(format!(
            "{name:?} is not an idle strategy; write poll, pause or adaptive"
        ))
    })
}

fn mtu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let mtu = u32::deserialize(deserializer)?;
    match (IPV6_MTU_MIN..=longest()).contains(&mtu) {
        true => Ok(mtu),
        false => Err(de::Error::custom(format!(
            "mtu {mtu} is out of range; write {IPV6_MTU_MIN} to {}",
            longest()
        ))),
    }
}

fn workers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let workers = u32::deserialize(deserializer)?;
    let count =
        u8::try_from(workers).ok().filter(|count| (1..=INTERFACE_WORKERS_MAX).contains(count));
    count.ok_or_else(|| {
        de::Error::custom(format!(
            "workers {workers} is out of range; write 1 to {INTERFACE_WORKERS_MAX}"
        ))
    })
}

fn partition<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PKey, D::Error> {
    let p_key = PKey(u16::deserialize(deserializer)?);
    match p_key.is_valid() {
        true => Ok(p_key.full()),
        false => {
            Err(de::Error::custom("pkey 0 is invalid; write 0xffff for the default partition"))
        }
    }
}

impl<'de> Deserialize<'de> for AddressSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "dhcp" {
            return Ok(Self::Dhcp);
        }
        let parts = text
            .split_once('/')
            .and_then(|(ip, len)| Some(Prefix { ip: ip.parse().ok()?, len: len.parse().ok()? }));
        let bits = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
        let prefix = parts.filter(|prefix| (1..=bits(prefix.ip)).contains(&prefix.len));
        prefix.map(Self::Fixed).ok_or_else(|| {
            de::Error::custom(format!(
                "{text:?} is not an address with a prefix; write 10.0.0.1/24, fd00::1/64 or dhcp"
            ))
        })
    }
}

fn link_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LinkAddress, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
    let bytes: Option<Vec<u8>> = bytes.collect();
    let bytes = bytes.and_then(|bytes| <[u8; LinkAddress::LEN]>::try_from(bytes).ok());
    bytes.map(|bytes| LinkAddress::parse(&bytes)).ok_or_else(|| {
        de::Error::custom(format!(
            "{text:?} is not a link address; write its 20 bytes as `ip neighbor` does, aa:bb:..."
        ))
    })
}

#[cfg(test)]
mod tests;
