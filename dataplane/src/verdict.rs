//! The verdict on a received packet: local, in transit, or punted to control (the slow path).
//!
//! Packets of the link's own protocols are punted: ARP and RARP, neighbor discovery and multicast
//! membership. Other packets to a local address are passed to sockets, and all others are in
//! transit. An ICMPv6 discovery message to a host beyond the link is also in transit, because
//! routers forward it.

use crate::headers::{Form, PacketHeaders};
use crate::neighbor::keys::{KeyMap, key_of};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Local,
    Punt,
    /// To another node: forwarded, or dropped if forwarding is off.
    Transit,
}

#[derive(Clone, Debug)]
pub struct Destinations {
    ours: KeyMap,
    /// The union of [`bit_of`] of all added addresses. Most other addresses have a bit that is not
    /// in it, which saves the lookup.
    bits: u64,
}

/// ICMPv6 types of neighbor discovery and of multicast listeners (RFC 4861, RFC 2710, RFC 3810).
const PUNTED_ICMPV6: [std::ops::RangeInclusive<u8>; 3] = [130..=132, 133..=137, 143..=143];

impl Destinations {
    pub fn new() -> Self {
        Self { ours: KeyMap::new(0), bits: 0 }
    }

    pub fn insert(&mut self, address: IpAddr) {
        self.ours.insert(key_of(address), 0);
        self.bits |= bit_of(address);
    }

    pub fn remove(&mut self, address: IpAddr) {
        self.ours.remove(key_of(address));
    }

    #[inline]
    pub fn verdict(&self, headers: &PacketHeaders, packet: &[u8]) -> Verdict {
        match headers.destination(packet) {
            Some(destination) if is_punted(headers, packet) => {
                match is_beyond_link(destination) && !self.contains(destination) {
                    true => Verdict::Transit,
                    false => Verdict::Punt,
                }
            }
            Some(destination) if self.contains(destination) => Verdict::Local,
            Some(_) => Verdict::Transit,
            // ARP, RARP and in-band MADs have no IP destination.
            None => Verdict::Punt,
        }
    }

    /// Whether a packet in transit has one of our addresses as its source (RFC 2827 3).
    #[inline]
    pub fn is_spoofed(&self, headers: &PacketHeaders, packet: &[u8]) -> bool {
        let is_ours = |source| self.bits & bit_of(source) != 0 && self.contains(source);
        headers.source(packet).is_some_and(is_ours)
    }

    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ours.find(key_of(address)).is_some()
    }
}

impl Default for Destinations {
    fn default() -> Self {
        Self::new()
    }
}

/// One of 64 bits, chosen by a hash of the address.
#[inline]
fn bit_of(address: IpAddr) -> u64 {
    let low = match address {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) => ip.to_bits() as u32,
    };
    1 << (low.wrapping_mul(0x9e37_79b9) >> 26)
}

/// Whether an IPv6 destination may be a host on another link.
#[cold]
const fn is_beyond_link(destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unicast_link_local(),
    }
}

/// Whether a packet belongs to one of the link's own protocols.
#[inline]
fn is_punted(headers: &PacketHeaders, packet: &[u8]) -> bool {
    match (headers.protocol, headers.form) {
        (IpProtocol::IGMP, _) => headers.ether_type == EtherType::IPV4,
        (IpProtocol::ICMPV6, Form::Plain | Form::Extended) => {
            let kind = headers.payload(packet).first();
            kind.is_some_and(|kind| PUNTED_ICMPV6.iter().any(|range| range.contains(kind)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::ip::ipv4::Ipv4Header;

    fn verdict(destinations: &Destinations, packet: &[u8]) -> Verdict {
        destinations.verdict(&PacketHeaders::parse_ip(packet).unwrap(), packet)
    }

    fn v4(protocol: u8, to: [u8; 4]) -> Vec<u8> {
        let mut packet = vec![0; Ipv4Header::LEN];
        let (protocol, destination) = (IpProtocol(protocol), to.into());
        let header = Ipv4Header { protocol, destination, ttl: 64, ..Default::default() };
        header.write_packet(&[], 0, &mut packet).unwrap();
        packet
    }

    fn v6(next_header: u8, to: &str, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next_header, 64];
        packet.extend([0; 16]);
        let to: std::net::Ipv6Addr = to.parse().unwrap();
        packet.extend(to.octets());
        packet.extend(payload);
        packet
    }

    #[test]
    fn added_addresses_are_local() {
        let mut destinations = Destinations::new();
        destinations.insert("10.0.0.1".parse().unwrap());
        destinations.insert("fd00::1".parse().unwrap());
        let of = |packet: &[u8]| verdict(&destinations, packet);
        assert_eq!(of(&v4(17, [10, 0, 0, 1])), Verdict::Local);
        assert_eq!(of(&v4(17, [10, 0, 0, 2])), Verdict::Transit);
        assert_eq!(of(&v6(17, "fd00::1", &[])), Verdict::Local);
        assert_eq!(of(&v6(17, "fd00::2", &[])), Verdict::Transit);
        assert_eq!(of(&v6(17, "::ffff:10.0.0.1", &[])), Verdict::Local, "mapped addresses");
        let (packet, ours) = (v4(17, [10, 0, 0, 1]), "10.0.0.1".parse().unwrap());
        destinations.remove(ours);
        assert_eq!(verdict(&destinations, &packet), Verdict::Transit);
    }

    #[test]
    fn a_received_packet_with_our_source_is_spoofed() {
        let mut destinations = Destinations::new();
        let is_spoofed = |destinations: &Destinations, last: u8| {
            let mut packet = [0; Ipv4Header::LEN];
            let (source, destination) = ([10, 0, 0, last].into(), [10, 9, 9, 9].into());
            let header = Ipv4Header { source, destination, ttl: 64, ..Default::default() };
            header.write_packet(&[], 0, &mut packet).unwrap();
            destinations.is_spoofed(&PacketHeaders::parse_ip(&packet).unwrap(), &packet)
        };
        assert!((0..=255).all(|last| !is_spoofed(&destinations, last)));
        for last in [7, 9, 200] {
            destinations.insert([10, 0, 0, last].into());
        }
        let found: Vec<_> = (0..=255).filter(|last| is_spoofed(&destinations, *last)).collect();
        assert_eq!(found, [7, 9, 200]);
        destinations.remove([10, 0, 0, 9].into());
        assert!(!is_spoofed(&destinations, 9));
    }

    #[test]
    fn link_protocols_are_punted_whatever_their_destination() {
        let destinations = Destinations::new();
        for ether_type in [EtherType::ARP, EtherType::RARP] {
            let headers = PacketHeaders::parse(ether_type, &[0; 56]).unwrap();
            assert_eq!(destinations.verdict(&headers, &[0; 56]), Verdict::Punt);
        }
        let of = |packet: &[u8]| verdict(&destinations, packet);
        assert_eq!(of(&v4(2, [224, 0, 0, 22])), Verdict::Punt);
        for (kind, punted) in [(133, true), (135, true), (137, true), (130, true), (143, true)]
            .into_iter()
            .chain([(128, false), (129, false), (1, false), (138, false)])
        {
            let expected = if punted { Verdict::Punt } else { Verdict::Transit };
            let plain = v6(58, "ff02::1", &[kind, 0, 0, 0]);
            assert_eq!(of(&plain), expected, "{kind}");
            let behind = v6(0, "ff02::1", &[58, 0, 5, 2, 0, 0, 1, 0, kind, 0, 0, 0]);
            assert_eq!(of(&behind), expected, "{kind} behind a header");
        }
        let beyond = v6(0, "ff02::1", &[58, 255, 5, 2, 0, 0, 1, 0, 135]);
        assert_eq!(of(&beyond), Verdict::Transit, "a length beyond the end");
        assert_eq!(of(&v6(58, "::1", &[])), Verdict::Transit);
        let to_other = v6(58, "fd00::2", &[135, 0, 0, 0]);
        assert_eq!(of(&to_other), Verdict::Transit, "to a host of another link");
        assert_eq!(of(&v6(58, "fe80::2", &[136, 0, 0, 0])), Verdict::Punt);
        let mut destinations = Destinations::new();
        destinations.insert("fd00::2".parse().unwrap());
        assert_eq!(verdict(&destinations, &to_other), Verdict::Punt, "to a local address");
    }
}
