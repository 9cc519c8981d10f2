//! Prefixes: an address and a length.

use super::valid;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    pub ip: IpAddr,
    pub len: u8,
}

impl Prefix {
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, len) = text.split_once('/')?;
        let prefix = Self { ip: ip.parse().ok()?, len: len.parse().ok()? };
        let bits = if prefix.ip.is_ipv4() { 32 } else { 128 };
        (prefix.len <= bits).then_some(prefix)
    }

    /// Parses an address with the prefix length of its link, which cannot be 0.
    pub fn parse_address(text: &str) -> Option<Self> {
        Self::parse(text).filter(|prefix| prefix.len > 0)
    }

    /// The prefix without host bits.
    pub fn network(&self) -> Self {
        let ip = match self.ip {
            IpAddr::V4(ip) => {
                let hosts = u32::MAX.checked_shr(self.len.into()).unwrap_or(0);
                Ipv4Addr::from(ip.to_bits() & !hosts).into()
            }
            IpAddr::V6(ip) => {
                let hosts = u128::MAX.checked_shr(self.len.into()).unwrap_or(0);
                Ipv6Addr::from(ip.to_bits() & !hosts).into()
            }
        };
        Self { ip, len: self.len }
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        self.ip.is_ipv4() == ip.is_ipv4() && Self { ip, len: self.len }.network() == self.network()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.len)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        valid(Self::parse(&text), || {
            format!("{text:?} is not a prefix; write 10.1.0.0/16, or 0.0.0.0/0 for all")
        })
    }
}

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
