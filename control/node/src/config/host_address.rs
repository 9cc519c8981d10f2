//! Addresses that no host can have, and addresses of link scope.

use super::Prefix;
use std::net::IpAddr;

/// The reason why no host can have an address, whatever its prefix.
pub(super) fn no_host_reason(ip: IpAddr) -> Option<String> {
    let why = match ip {
        IpAddr::V4(ip) => match ip.octets()[0] {
            0 => "0.0.0.0/8 means this network (RFC 1122 3.2.1.3)",
            127 => "127.0.0.0/8 never leaves a host (RFC 1122 3.2.1.3)",
            224..=239 => "it is a multicast address (RFC 1112 4)",
            240.. => "240.0.0.0/4 is reserved or the broadcast address (RFC 1112 4, RFC 919 7)",
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

impl Prefix {
    /// The reason why no host can have this address. The network, broadcast and anycast addresses
    /// of the prefix have one, too.
    pub fn no_host_reason(&self) -> Option<String> {
        let Self { ip, len } = self;
        let of_network = || match ip {
            // A /31 has two hosts (RFC 3021).
            IpAddr::V4(ip) if *len < 31 => {
                let (hosts, network) = (u32::MAX >> len, self.network());
                match ip.to_bits() & hosts {
                    0 => Some(format!("it is the network {network} itself")),
                    bits if bits == hosts => {
                        Some(format!("it is the broadcast address of {network}"))
                    }
                    _ => None,
                }
            }
            // A /127 has two hosts, too (RFC 6164).
            IpAddr::V6(ip) if *len < 127 => {
                let is_anycast = *self == self.network();
                is_anycast.then(|| format!("all routers of {ip}/{len} have it (RFC 4291 2.6.1)"))
            }
            _ => None,
        };
        no_host_reason(*ip).or_else(of_network)
    }
}

pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
