//! The kinds of interfaces, the keys that each kind has, and the values of some of them.

use super::{InterfaceSettings, NodeConfig, Prefix, valid};
use pollux_wire::ethernet::{MacAddress, VLAN_MAX};
use pollux_wire::ip::link_address::LinkAddress;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceKind {
    #[default]
    Ipoib,
    /// A TUN device. The kernel is at its other end.
    Tun,
    /// An Ethernet device, or one of its VLANs.
    Ethernet,
}

/// How an Ethernet interface receives and sends frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameAccess {
    /// The best access that the device and the process allow.
    #[default]
    Auto,
    /// AF_XDP in the driver, without copies by the kernel.
    ZeroCopy,
    /// AF_XDP in the driver.
    Native,
    /// AF_XDP after the driver, in the network stack of the kernel.
    Generic,
    /// Packet sockets.
    Packet,
}

/// The link address of a static neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighborLink {
    Ipoib(LinkAddress),
    Ethernet(MacAddress),
}

impl NeighborLink {
    pub const fn ipoib(self) -> Option<LinkAddress> {
        match self {
            Self::Ipoib(address) => Some(address),
            Self::Ethernet(_) => None,
        }
    }

    pub const fn ethernet(self) -> Option<MacAddress> {
        match self {
            Self::Ethernet(address) => Some(address),
            Self::Ipoib(_) => None,
        }
    }

    pub(super) const fn kind(self) -> InterfaceKind {
        match self {
            Self::Ethernet(_) => InterfaceKind::Ethernet,
            Self::Ipoib(_) => InterfaceKind::Ipoib,
        }
    }
}

impl Serialize for NeighborLink {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Ipoib(address) => {
                let bytes = address.emit().map(|byte| format!("{byte:02x}"));
                serializer.serialize_str(&bytes.join(":"))
            }
            Self::Ethernet(address) => serializer.collect_str(address),
        }
    }
}

impl<'de> Deserialize<'de> for NeighborLink {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
        let bytes: Option<Vec<u8>> = bytes.collect();
        let bytes = bytes.unwrap_or_default();
        if let Ok(bytes) = <[u8; LinkAddress::LEN]>::try_from(&bytes[..]) {
            return Ok(Self::Ipoib(LinkAddress::parse(&bytes)));
        }
        valid(MacAddress::parse_text(&text).map(Self::Ethernet), || {
            format!(
                "{text:?} is not a link address; write its 20 bytes, or the 6 of Ethernet, as \
                 `ip neighbor` does, aa:bb:..."
            )
        })
    }
}

pub(super) fn vlan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    let number = u16::deserialize(deserializer)?;
    valid((1..=VLAN_MAX).contains(&number).then_some(Some(number)), || {
        format!(
            "vlan {number} is out of range; write 1 to {VLAN_MAX}, or omit the key for untagged \
             frames"
        )
    })
}

impl InterfaceSettings {
    /// A key that interfaces of this kind do not have, but that has a value other than its default.
    pub(super) fn unsupported_key(&self) -> Option<&'static str> {
        let default = Self::default();
        let of_infiniband = [
            ("management", self.management != default.management),
            ("pkey", self.pkey != default.pkey),
            ("mode", self.mode != default.mode),
            ("peer", self.peer != default.peer),
            ("shadow", self.shadow != default.shadow),
        ];
        let of_links =
            [("neighbor", self.neighbor != default.neighbor), ("ipv6", self.ipv6 != default.ipv6)];
        let of_tun = [("kernel_address", self.kernel_address != default.kernel_address)];
        let of_ethernet =
            [("vlan", self.vlan != default.vlan), ("frames", self.frames != default.frames)];
        let foreign: &[&[_]] = match self.kind {
            InterfaceKind::Ipoib => &[&of_tun, &of_ethernet],
            InterfaceKind::Tun => &[&of_infiniband, &of_links, &of_ethernet],
            InterfaceKind::Ethernet => &[&of_infiniband, &of_tun],
        };
        foreign.iter().copied().flatten().find(|(_, is_set)| *is_set).map(|(key, _)| *key)
    }
}

impl NodeConfig {
    /// Sets `device` of a TUN interface to the name of the interface, if it is empty.
    pub(super) fn name_devices(&mut self) {
        let tuns = self.interfaces.iter_mut().filter(|(_, one)| one.kind == InterfaceKind::Tun);
        for (name, one) in tuns.filter(|(_, one)| one.device.is_empty()) {
            one.device.clone_from(name);
        }
    }
}

pub(super) fn prefixes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Prefix>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let parse = |text: &String| {
        valid(Prefix::parse_address(text), || {
            format!("{text:?} is not an address with a prefix; write 10.0.0.1/24 or fd00::1/64")
        })
    };
    texts.iter().map(parse).collect()
}
