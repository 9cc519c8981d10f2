//! Martian addresses, which a packet in transit must not have.

use crate::reason::ForwardDrop;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The reason to drop a packet in transit with these addresses; `None` if they are valid (RFC 1812
/// 5.3.7, RFC 3927 2.7, RFC 4291 2.5).
#[inline]
pub fn martian(source: IpAddr, destination: IpAddr) -> Option<ForwardDrop> {
    let (bad_source, bad_destination) = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            (is_martian_source_v4(source), is_martian_destination_v4(destination))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            (is_martian_source_v6(source), is_martian_destination_v6(destination))
        }
        // No packet has addresses of two families.
        _ => (true, true),
    };
    match (bad_source, bad_destination) {
        (true, _) => Some(ForwardDrop::MartianSource),
        (false, true) => Some(ForwardDrop::MartianDestination),
        (false, false) => None,
    }
}

/// 0.0.0.0/8 ("this network"), loopback, link-local, or class D and E with broadcast.
#[inline]
fn is_martian_source_v4(ip: Ipv4Addr) -> bool {
    let [first, second, ..] = ip.octets();
    matches!(first, 0 | 127 | 224..) || (first, second) == (169, 254)
}

/// 0.0.0.0/8, loopback, link-local, or class E with broadcast. Multicast destinations are valid and
/// have their own routes.
#[inline]
fn is_martian_destination_v4(ip: Ipv4Addr) -> bool {
    let [first, second, ..] = ip.octets();
    matches!(first, 0 | 127 | 240..) || (first, second) == (169, 254)
}

#[inline]
fn is_martian_source_v6(ip: Ipv6Addr) -> bool {
    ip.is_multicast() || is_martian_destination_v6(ip)
}

/// Link-local; IPv4-mapped, which is only for sockets (RFC 4942 2.2); or in ::/96, which has the
/// unspecified address, loopback and the deprecated IPv4-compatible addresses (RFC 4291 2.5.5.1).
#[inline]
fn is_martian_destination_v6(ip: Ipv6Addr) -> bool {
    matches!(ip.to_bits() >> 32, 0 | 0xffff) || ip.is_unicast_link_local()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn martians_are_distinguished_from_others() {
        const NO_SOURCE: Option<ForwardDrop> = Some(ForwardDrop::MartianSource);
        const NO_DESTINATION: Option<ForwardDrop> = Some(ForwardDrop::MartianDestination);
        let why = |source: &str, destination: &str| {
            martian(source.parse().unwrap(), destination.parse().unwrap())
        };
        let is_good = |good: &str, other: &str| {
            assert_eq!([why(good, other), why(other, good)], [None; 2], "{good}");
        };
        let is_bad = |bad: &str, other: &str| {
            let found = [why(bad, other), why(other, bad)];
            assert_eq!(found, [NO_SOURCE, NO_DESTINATION], "{bad}");
        };
        for good in ["10.0.0.1", "100.64.0.1", "192.168.255.255", "223.255.255.255", "1.0.0.0"] {
            is_good(good, "198.51.100.1");
        }
        for bad in
            ["0.0.0.0", "0.1.2.3", "127.0.0.1", "169.254.1.1", "240.0.0.1", "255.255.255.255"]
        {
            is_bad(bad, "198.51.100.1");
        }
        assert_eq!(why("224.0.0.5", "10.0.0.1"), NO_SOURCE);
        assert_eq!(why("10.0.0.1", "239.1.1.1"), None);
        for good in ["2001:db8::1", "fd00::1", "::1:0:0:1", "64:ff9b::1"] {
            is_good(good, "2001:db8::9");
        }
        for bad in ["::", "::1", "::10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "febf::1"] {
            is_bad(bad, "2001:db8::9");
        }
        assert_eq!(why("ff0e::1", "2001:db8::9"), NO_SOURCE);
        assert_eq!(why("2001:db8::9", "ff0e::1"), None);
        assert_eq!(why("10.0.0.1", "2001:db8::9"), NO_SOURCE, "of two families");
    }
}
