//! Source address selection (RFC 6724 5).
//!
//! Only the rules that can distinguish addresses of one interface are here: equality with the
//! destination, scope, deprecation, label, and longest prefix. The same rules serve IPv4, with the
//! scopes of RFC 6724 3.2.

use super::{Address, AddressState};
use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The scope of an address, in the numbers of multicast scopes (RFC 6724 3.1, 3.2).
pub(super) fn scope(ip: IpAddr) -> u8 {
    const LINK_LOCAL: u8 = 2;
    const SITE_LOCAL: u8 = 5;
    const GLOBAL: u8 = 14;
    match ip {
        IpAddr::V4(ip) if ip.is_loopback() || ip.is_link_local() => LINK_LOCAL,
        IpAddr::V6(ip) if ip.is_multicast() => ip.octets()[1] & 0x0f,
        IpAddr::V6(ip) if ip.is_loopback() || ip.is_unicast_link_local() => LINK_LOCAL,
        IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfec0 => SITE_LOCAL,
        _ => GLOBAL,
    }
}

/// The default policy table (RFC 6724 2.1) without its precedences: prefix, its length, label.
const LABELS: [(Ipv6Addr, u8, u8); 8] = [
    (Ipv6Addr::LOCALHOST, 128, 0),
    (Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(), 96, LABEL_OF_V4),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, 2),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, 5),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, 13),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, 11),
    (Ipv6Addr::new(0x3ffe, 0, 0, 0, 0, 0, 0, 0), 16, 12),
    (Ipv6Addr::UNSPECIFIED, 96, 3),
];
const LABEL_OF_V4: u8 = 4;
const LABEL_OF_OTHERS: u8 = 1;

fn label(ip: IpAddr) -> u8 {
    if ip.is_ipv4() {
        return LABEL_OF_V4;
    }
    let row = LABELS.iter().find(|(prefix, len, _)| common_bits((*prefix).into(), ip) >= *len);
    row.map_or(LABEL_OF_OTHERS, |&(_, _, label)| label)
}

/// The number of equal leading bits; 0 for different families.
pub(super) fn common_bits(one: IpAddr, other: IpAddr) -> u8 {
    let equal = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    };
    equal as u8
}

/// Whether `ip` is in a prefix; `len` is in bits.
pub(crate) fn is_in(ip: IpAddr, (prefix, len): (IpAddr, u8)) -> bool {
    prefix.is_ipv4() == ip.is_ipv4() && common_bits(prefix, ip) >= len
}

pub(crate) fn choose<'a>(
    candidates: impl Iterator<Item = &'a Address>,
    destination: IpAddr,
) -> Option<IpAddr> {
    let usable = candidates
        .filter(|one| one.state.may_be_source() && one.ip.is_ipv4() == destination.is_ipv4());
    usable.max_by_key(|one| merit(one, destination)).map(|one| one.ip)
}

/// The sort key of a candidate, by the rules in their order. Among equals, the address added first
/// wins.
fn merit(one: &Address, destination: IpAddr) -> impl Ord + use<> {
    let (own, theirs) = (scope(one.ip), scope(destination));
    // Rule 2: the narrowest scope that covers the destination's, else the widest.
    let reach = match own >= theirs {
        true => (true, u8::MAX - own),
        false => (false, own),
    };
    let common = common_bits(one.ip, destination).min(one.prefix_len);
    (
        one.ip == destination,
        reach,
        one.state != AddressState::Deprecated,
        label(one.ip) == label(destination),
        common,
        Reverse(one.number),
    )
}

/// Whether `ip` is the limited broadcast address, or the broadcast address of a subnet of one of
/// `addresses`.
pub(crate) fn is_broadcast<'a>(
    mut addresses: impl Iterator<Item = &'a Address>,
    ip: Ipv4Addr,
) -> bool {
    let of_subnet = |one: &Address| match one.ip {
        IpAddr::V4(own) => subnet_broadcast(own, one.prefix_len),
        IpAddr::V6(_) => None,
    };
    ip.is_broadcast() || addresses.any(|one| of_subnet(one) == Some(ip))
}

/// The broadcast address of a subnet (RFC 919); `None` for prefixes of 31 and 32 bits (RFC 3021).
pub(crate) fn subnet_broadcast(ip: Ipv4Addr, prefix_len: u8) -> Option<Ipv4Addr> {
    let host_bits = u32::MAX.checked_shr(u32::from(prefix_len))?;
    (prefix_len < 31).then(|| Ipv4Addr::from_bits(ip.to_bits() | host_bits))
}
