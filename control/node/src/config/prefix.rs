//! Prefixes: an address and a length.

use serde::{Deserialize, Deserializer, de};
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

    /// The same without host bits.
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

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.len)
    }
}

pub(super) fn network<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Prefix, D::Error> {
    let text = String::deserialize(deserializer)?;
    Prefix::parse(&text).ok_or_else(|| {
        de::Error::custom(format!(
            "{text:?} is not a prefix; write 10.1.0.0/16, or 0.0.0.0/0 for all"
        ))
    })
}
