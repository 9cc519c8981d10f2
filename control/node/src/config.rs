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
//! A key that is none is an error which names the nearest that is one: a misspelt key that is
//! passed over would show as an interface that does what nobody asked for.

use pollux_dataplane::engine::counts::WORKERS_MAX;
use pollux_dataplane::engine::idle::Idle;
use pollux_dataplane::ipoib::RECEIVE_MTU_MAX;
use pollux_wire::ip::ipoib::ip_mtu;
use pollux_wire::ip::ipv6::IPV6_MTU_MIN;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::keys::PKey;
use serde::{Deserialize, Deserializer, de};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

/// Workers of one interface, at most: an adapter in software has no more places at a port.
pub const SIDES_MAX: u8 = 8;

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
    /// Neighbours that are not asked for.
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

/// An address, and how much of it all neighbours have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the prefix.
    pub len: u8,
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
    /// The configuration in a file.
    pub fn open(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::read(&file, &text),
            Err(error) => {
                let reason = format!("the configuration cannot be read: {error}");
                Err(ConfigError { file, line: 0, reason })
            }
        }
    }

    /// The configuration in a text, which errors call by the name of its file.
    pub fn read(file: &str, text: &str) -> Result<Self, ConfigError> {
        let config = toml::from_str::<Self>(text).map_err(|error| {
            let line = error.span().map_or(0, |span| line_of(text, span.start));
            let reason = explain(error.message());
            ConfigError { file: file.into(), line, reason }
        })?;
        config.check().map_err(|(key, reason)| {
            let line = text.find(&key).map_or(0, |at| line_of(text, at));
            ConfigError { file: file.into(), line, reason }
        })?;
        Ok(config)
    }

    /// What no single value shows to be wrong: where, and why.
    fn check(&self) -> Result<(), (String, String)> {
        self.workers.check().map_err(|reason| ("cores".into(), reason))?;
        let mut places = BTreeMap::new();
        for (name, interface) in &self.interfaces {
            let header = format!("interface.{name}");
            let place = (&interface.device, interface.pkey.partition());
            if let Some(other) = places.insert(place, name) {
                let (device, pkey) = (&interface.device, interface.pkey.0);
                let reason = format!(
                    "{name} and {other} are both at {device:?} in the partition {pkey:#06x}; \
                     give one of them another pkey"
                );
                return Err((header, reason));
            }
            let connects = interface.peer.iter().find(|peer| peer.mode != Mode::Ud);
            if let (Mode::Ud, Some(peer)) = (interface.mode, connects) {
                let ip = peer.address;
                let reason = format!(
                    "{name} has the mode ud and so no connections, but {ip} another one; \
                     give {name} the mode auto, and others than {ip} ud"
                );
                return Err((header, reason));
            }
            let v6 = interface.fixed_addresses().find(|prefix| prefix.ip.is_ipv6());
            if let (false, Some(prefix)) = (interface.ipv6, v6) {
                let reason = format!("{name} has {}, but ipv6 = false; take one away", prefix.ip);
                return Err((header, reason));
            }
        }
        Ok(())
    }
}

impl WorkerSettings {
    fn check(&self) -> Result<(), String> {
        let mut cores = BTreeSet::new();
        if let Some(twice) = self.cores.iter().find(|core| !cores.insert(**core)) {
            return Err(format!("core {twice} stands there twice; each worker needs its own"));
        }
        let count = self.cores.len();
        let is_fine = count <= WORKERS_MAX;
        is_fine.then_some(()).ok_or(format!("{count} cores; write at most {WORKERS_MAX}"))
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
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
            format!("there is no key `{unknown}`; did you mean `{nearest}`?")
        }
        _ => format!("there is no key `{unknown}` here; there are {}", known.join(", ")),
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
        de::Error::custom(format!("{name:?} is no way to rest; write poll, pause or adaptive"))
    })
}

fn mtu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let mtu = u32::deserialize(deserializer)?;
    match (IPV6_MTU_MIN..=longest()).contains(&mtu) {
        true => Ok(mtu),
        false => Err(de::Error::custom(format!(
            "packets of {mtu} octets are none that an interface is for; write {IPV6_MTU_MIN} to {}",
            longest()
        ))),
    }
}

fn workers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let workers = u32::deserialize(deserializer)?;
    let count = u8::try_from(workers).ok().filter(|count| (1..=SIDES_MAX).contains(count));
    count.ok_or_else(|| {
        de::Error::custom(format!("{workers} workers of one interface; write 1 to {SIDES_MAX}"))
    })
}

fn partition<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PKey, D::Error> {
    let p_key = PKey(u16::deserialize(deserializer)?);
    match p_key.is_valid() {
        true => Ok(p_key.full()),
        false => Err(de::Error::custom("0 names no partition; the default one is 0xffff")),
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
                "{text:?} is no address with a prefix; write 10.0.0.1/24, fd00::1/64 or dhcp"
            ))
        })
    }
}

fn link_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LinkAddress, D::Error> {
    let text = String::deserialize(deserializer)?;
    let octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16).ok());
    let octets: Option<Vec<u8>> = octets.collect();
    let octets = octets.and_then(|octets| <[u8; LinkAddress::LEN]>::try_from(octets).ok());
    octets.map(|octets| LinkAddress::parse(&octets)).ok_or_else(|| {
        de::Error::custom(format!(
            "{text:?} is no link address; write its 20 octets as `ip neighbour` does, aa:bb:..."
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::address::Qpn;

    const WHOLE: &str = r#"
[interface.ib0]
device = "soft:/run/fabric@host1"
pkey = 0x8001
mode = "rc"
address = ["10.0.0.1/24", "fd00::1/64"]
router = ["10.0.0.254"]

[[interface.ib0.neighbor]]
address = "10.0.0.9"
link = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:10:01"
"#;

    fn refusal(text: &str) -> String {
        NodeConfig::read("node.toml", text).expect_err("it is refused").to_string()
    }

    #[test]
    fn a_file_says_what_a_node_is() {
        let config = NodeConfig::read("node.toml", WHOLE).unwrap();
        let ib0 = &config.interfaces["ib0"];
        assert_eq!((ib0.pkey, ib0.mode, ib0.ipv6), (PKey(0x8001), Mode::Rc, true));
        let v6 = Prefix { ip: "fd00::1".parse().unwrap(), len: 64 };
        assert_eq!(ib0.address[1], AddressSetting::Fixed(v6));
        assert!(!ib0.asks_for_address());
        let asking = NodeConfig::read("f", &WHOLE.replace("fd00::1/64", "dhcp")).unwrap();
        let ib0 = &asking.interfaces["ib0"];
        assert_eq!((ib0.fixed_addresses().count(), ib0.asks_for_address()), (1, true));
        let link = ib0.neighbor[0].link;
        assert_eq!((link.rc, link.qpn, link.gid.0[15]), (true, Qpn(0x48), 1));
        let least = NodeConfig::read("f", "[interface.a]\ndevice = 'mlx5_0'").unwrap();
        assert_eq!(least.interfaces["a"].pkey, PKey::DEFAULT);
    }

    #[test]
    fn workers_have_cores_of_their_own_and_rest_as_they_are_told() {
        let workers = |text: &str| {
            let text = format!("[workers]\n{text}\n{WHOLE}");
            NodeConfig::read("node.toml", &text).map(|config| config.workers)
        };
        let none = workers("").unwrap();
        assert_eq!((none.cores.len(), none.idle), (0, Idle::Adaptive));
        let both = workers("cores = [2, 3]\nidle = \"poll\"").unwrap();
        assert_eq!((both.cores, both.idle), (vec![2, 3], Idle::Poll));
        let refusal = |text: &str| workers(text).unwrap_err().to_string();
        let twice = "node.toml:2: core 2 stands there twice; each worker needs its own";
        assert_eq!(refusal("cores = [2, 3, 2]"), twice);
        let said = refusal("idle = \"sleepy\"");
        assert!(said.starts_with("node.toml:2: ") && said.contains("poll, pause or adaptive"));
        assert!(refusal("core = [2]").contains("did you mean `cores`?"));
    }

    #[test]
    fn a_misspelt_key_is_refused_with_the_nearest_known_one() {
        let misspelt = WHOLE.replace("router", "ruoter");
        let expected = "node.toml:7: there is no key `ruoter`; did you mean `router`?";
        assert_eq!(refusal(&misspelt), expected);
        let stranger = "[interface.ib0]\ndevice = 'a'\nbandwidth = 1\n";
        let said = refusal(stranger);
        assert!(said.starts_with("node.toml:3: there is no key `bandwidth` here"), "{said}");
        assert!(refusal("[interfaces.a]").contains("did you mean `interface`"));
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_line_and_the_right_form() {
        let said = refusal(&WHOLE.replace("fd00::1/64", "fd00::1/129"));
        assert!(said.starts_with("node.toml:6: ") && said.contains("write 10.0.0.1/24"), "{said}");
        let said = refusal(&WHOLE.replace("80:00:00:48", "80:00:00"));
        assert!(said.starts_with("node.toml:11: ") && said.contains("20 octets"), "{said}");
        assert!(refusal(&WHOLE.replace("0x8001", "0")).contains("the default one is 0xffff"));
        assert!(refusal("[interface.ib0]\npkey = 1").contains("device"));
        let twice = format!("{WHOLE}[interface.ib1]\ndevice = 'soft:/run/fabric@host1'\n");
        let child = NodeConfig::read("f", &twice).expect("another partition of the same port");
        assert_eq!(child.interfaces["ib1"].pkey, PKey::DEFAULT);
        let said = refusal(&format!("{twice}pkey = 1\n"));
        assert!(said.starts_with("node.toml:12: ib1 and ib0 are both at"), "{said}");
        let mixed = WHOLE.replace("pkey = 0x8001", "ipv6 = false");
        assert!(refusal(&mixed).contains("has fd00::1, but ipv6 = false"));
        let said = refusal(&WHOLE.replace("pkey = 0x8001", "mtu = 65521"));
        assert!(said.starts_with("node.toml:4: ") && said.contains("1280 to 65520"), "{said}");
        let workers = |count: &str| WHOLE.replace("pkey = 0x8001", &format!("workers = {count}"));
        assert_eq!(NodeConfig::read("f", &workers("8")).unwrap().interfaces["ib0"].workers, 8);
        for count in ["0", "9", "300"] {
            let said = refusal(&workers(count));
            assert!(said.starts_with("node.toml:4: ") && said.contains("write 1 to 8"), "{said}");
        }
        let peer = format!("{WHOLE}[[interface.ib0.peer]]\naddress = '10.0.0.7'\nmode = 'uc'\n");
        let config = NodeConfig::read("node.toml", &peer).unwrap();
        assert_eq!(config.interfaces["ib0"].peer[0].mode, Mode::Uc);
        let said = refusal(&peer.replace("mode = \"rc\"", "mode = \"ud\""));
        assert!(said.starts_with("node.toml:2: ib0 has the mode ud"), "{said}");
        assert!(refusal(&peer.replace("'uc'", "'tcp'")).contains("`tcp`"));
    }
}
