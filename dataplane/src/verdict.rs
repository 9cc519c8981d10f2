//! The verdict on a received packet: local, in transit, or punted to control (the slow path).
//!
//! Packets of the link's slow protocols are punted: ARP and RARP, neighbor discovery and multicast
//! membership. Other packets to a local address go to sockets, and all others are in transit.

use crate::neighbor::keys::{KeyMap, key_of};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipoib::EtherType;
use std::net::IpAddr;

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// To a local address or group.
    Local,
    /// To be punted to control.
    Punt,
    /// To another node: forwarded, or dropped if forwarding is off.
    Transit,
}

/// The local addresses and groups.
#[derive(Clone, Debug)]
pub struct Destinations {
    ours: KeyMap,
}

/// ICMPv6 types of neighbor discovery and of multicast listeners (RFC 4861, RFC 2710, RFC 3810).
const PUNTED_ICMPV6: [std::ops::RangeInclusive<u8>; 3] = [130..=132, 133..=137, 143..=143];

impl Destinations {
    /// An empty set.
    pub fn new() -> Self {
        Self { ours: KeyMap::new(0) }
    }

    /// Adds a local address or group.
    pub fn insert(&mut self, address: IpAddr) {
        self.ours.insert(key_of(address), 0);
    }

    /// Removes a local address or group.
    pub fn remove(&mut self, address: IpAddr) {
        self.ours.remove(key_of(address));
    }

    /// The verdict on a packet with at least the minimum header of its type, as received ones have.
    #[inline]
    pub fn verdict(&self, ether_type: EtherType, packet: &[u8]) -> Verdict {
        let (destination, is_punted) = match ether_type {
            EtherType::IPV4 => {
                let Some(&[.., protocol, _, _, _, _, _, _, a, b, c, d]) =
                    packet.first_chunk::<20>()
                else {
                    return Verdict::Punt;
                };
                (IpAddr::from([a, b, c, d]), protocol == IpProtocol::IGMP.0)
            }
            EtherType::IPV6 => {
                let Some(&[_, _, _, _, _, _, next_header, ..]) = packet.first_chunk::<40>() else {
                    return Verdict::Punt;
                };
                let mut destination = [0; 16];
                destination.copy_from_slice(&packet[24..40]);
                (IpAddr::from(destination), is_link_icmpv6(next_header, &packet[40..]))
            }
            _ => return Verdict::Punt,
        };
        if is_punted {
            Verdict::Punt
        } else if self.ours.find(key_of(destination)).is_some() {
            Verdict::Local
        } else {
            Verdict::Transit
        }
    }
}

impl Default for Destinations {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether an IPv6 packet is ICMPv6 for control. MLD reports follow a hop-by-hop header with the
/// router alert (RFC 2710 3), so at most that one extension header is skipped.
fn is_link_icmpv6(next_header: u8, payload: &[u8]) -> bool {
    let icmp = match (IpProtocol(next_header), payload) {
        (IpProtocol::ICMPV6, icmp) => icmp,
        (IpProtocol::HOP_BY_HOP, &[next, units, ..]) if next == IpProtocol::ICMPV6.0 => {
            payload.get((usize::from(units) + 1) * 8..).unwrap_or_default()
        }
        _ => return false,
    };
    icmp.first().is_some_and(|kind| PUNTED_ICMPV6.iter().any(|range| range.contains(kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(protocol: u8, to: [u8; 4]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 9];
        packet.extend(to);
        packet
    }

    fn v6(next_header: u8, to: &str, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, next_header, 64];
        packet.extend([0; 16]);
        let to: std::net::Ipv6Addr = to.parse().unwrap();
        packet.extend(to.octets());
        packet.extend(payload);
        packet
    }

    #[test]
    fn ours_is_what_was_said_to_be() {
        let mut destinations = Destinations::new();
        destinations.insert("10.0.0.1".parse().unwrap());
        destinations.insert("fd00::1".parse().unwrap());
        let verdict = |packet: &[u8]| {
            let ether_type = if packet[0] == 0x45 { EtherType::IPV4 } else { EtherType::IPV6 };
            destinations.verdict(ether_type, packet)
        };
        assert_eq!(verdict(&v4(17, [10, 0, 0, 1])), Verdict::Local);
        assert_eq!(verdict(&v4(17, [10, 0, 0, 2])), Verdict::Transit);
        assert_eq!(verdict(&v6(17, "fd00::1", &[])), Verdict::Local);
        assert_eq!(verdict(&v6(17, "fd00::2", &[])), Verdict::Transit);
        assert_eq!(verdict(&v6(17, "::ffff:10.0.0.1", &[])), Verdict::Local, "mapped addresses");
        let (packet, ours) = (v4(17, [10, 0, 0, 1]), "10.0.0.1".parse().unwrap());
        destinations.remove(ours);
        assert_eq!(destinations.verdict(EtherType::IPV4, &packet), Verdict::Transit);
    }

    #[test]
    fn slow_protocols_are_punted_whomever_they_are_for() {
        let destinations = Destinations::new();
        let verdict = |ether_type, packet: &[u8]| destinations.verdict(ether_type, packet);
        assert_eq!(verdict(EtherType::ARP, &[0; 56]), Verdict::Punt);
        assert_eq!(verdict(EtherType::RARP, &[0; 56]), Verdict::Punt);
        assert_eq!(verdict(EtherType::IPV4, &v4(2, [224, 0, 0, 22])), Verdict::Punt);
        for (kind, punted) in [(133, true), (135, true), (137, true), (130, true), (143, true)]
            .into_iter()
            .chain([(128, false), (129, false), (1, false), (138, false)])
        {
            let expected = if punted { Verdict::Punt } else { Verdict::Transit };
            let plain = v6(58, "ff02::1", &[kind, 0, 0, 0]);
            assert_eq!(verdict(EtherType::IPV6, &plain), expected, "{kind}");
            let behind = v6(0, "ff02::1", &[58, 0, 5, 2, 0, 0, 1, 0, kind, 0, 0, 0]);
            assert_eq!(verdict(EtherType::IPV6, &behind), expected, "{kind} behind a header");
        }
        let beyond = v6(0, "ff02::1", &[58, 255, 5, 2, 0, 0, 1, 0, 135]);
        assert_eq!(verdict(EtherType::IPV6, &beyond), Verdict::Transit, "a length beyond the end");
        assert_eq!(verdict(EtherType::IPV6, &v6(58, "::1", &[])), Verdict::Transit);
    }
}
