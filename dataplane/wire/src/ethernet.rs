//! Ethernet II frames, with or without a VLAN tag (IEEE 802.3 3.2, IEEE 802.1Q 9; RFC 894, RFC
//! 2464).

use crate::address::Gid;
use crate::layout::{FieldSpec, Layout, WireError, split_header};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The MAC address of an interface or a multicast group.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

codes! {
    /// The protocol of a payload, on Ethernet and on IPoIB (IEEE 802 9.2.1, RFC 4391 6).
    pub struct EtherType(u16) {
        IPV4 = 0x0800,
        ARP = 0x0806,
        RARP = 0x8035,
        IPV6 = 0x86dd,
        /// A VLAN tag follows; it contains the type of the payload (IEEE 802.1Q 9.6).
        VLAN = 0x8100,
        /// An in-band management datagram: an extension of Pollux, with an EtherType reserved for
        /// experiments (IEEE 802 9.2.4).
        IN_BAND_MAD = 0x88b6,
    }
}

layout! {
    /// The header of a frame, without a VLAN tag.
    pub struct EthernetHeader: 14 bytes {
        0:0   48  destination: MacAddress,
        6:0   48  source: MacAddress,
        12:0  16  ether_type: EtherType,
    }
}

layout! {
    /// A VLAN tag, behind an [`EthernetHeader`] of type [`EtherType::VLAN`] (IEEE 802.1Q 9.6).
    pub struct VlanTag: 4 bytes {
        /// From 0 to 7; 7 is the highest.
        0:0    3  priority: u8,
        0:3    1  drop_eligible: bool,
        /// The VLAN ID; 0 if the tag has only a priority.
        0:4   12  vlan: u16,
        2:0   16  ether_type: EtherType,
    }
}

/// The highest VLAN ID; 4095 is reserved.
pub const VLAN_MAX: u16 = 4094;

/// A parsed frame; the VLAN tag, if any, is not part of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetFrame<'a> {
    pub destination: MacAddress,
    pub source: MacAddress,
    pub vlan: Option<u16>,
    /// Values below 1,536 are lengths (IEEE 802.3 3.2.6), not protocols.
    pub ether_type: EtherType,
    /// The payload, including the padding of short frames.
    pub payload: &'a [u8],
}

impl<'a> EthernetFrame<'a> {
    pub const fn header_len(vlan: Option<u16>) -> usize {
        match vlan {
            None => EthernetHeader::LEN,
            Some(_) => EthernetHeader::LEN + VlanTag::LEN,
        }
    }

    /// Parses a frame without its checksum.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        let (header, payload) = EthernetHeader::read(frame)?;
        let EthernetHeader { destination, source, ether_type } = header;
        if ether_type != EtherType::VLAN {
            return Ok(Self { destination, source, vlan: None, ether_type, payload });
        }
        let (VlanTag { vlan, ether_type, .. }, payload) = VlanTag::read(payload)?;
        let vlan = (vlan != 0).then_some(vlan);
        Ok(Self { destination, source, vlan, ether_type, payload })
    }

    /// Writes the header of this frame at the front of `out`; returns the rest.
    #[inline]
    pub fn write_header<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let Self { destination, source, ether_type, .. } = *self;
        let Some(vlan) = self.vlan else {
            return EthernetHeader { destination, source, ether_type }.write(out);
        };
        let header = EthernetHeader { destination, source, ether_type: EtherType::VLAN };
        VlanTag { priority: 0, drop_eligible: false, vlan, ether_type }.write(header.write(out)?)
    }
}

impl MacAddress {
    pub const LEN: usize = 6;
    pub const BROADCAST: Self = Self([0xff; 6]);

    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The MAC address of an IPv6 group: `33:33` and the low 32 bits of the group (RFC 2464 7).
    pub const fn of_group(mgid: Gid) -> Self {
        let [.., a, b, c, d] = mgid.0;
        Self([0x33, 0x33, a, b, c, d])
    }

    /// The MAC address for a multicast address or the limited broadcast address (RFC 1112 6.4, RFC
    /// 2464 7); `None` for all others. A directed broadcast address gives `None` too, because only
    /// its netmask tells it from a unicast address.
    pub const fn of_ip_group(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V4(Ipv4Addr::BROADCAST) => Some(Self::BROADCAST),
            IpAddr::V4(ip) if ip.is_multicast() => {
                let [_, a, b, c] = ip.octets();
                Some(Self([0x01, 0x00, 0x5e, a & 0x7f, b, c]))
            }
            IpAddr::V6(ip) if ip.is_multicast() => Some(Self::of_group(Gid(ip.octets()))),
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        }
    }

    /// Parses hexadecimal bytes separated by colons, such as `02:00:00:00:00:01`.
    pub fn parse_text(text: &str) -> Option<Self> {
        let mut bytes = [0; Self::LEN];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| matches!(part.len(), 1 | 2))?;
            let is_hex = part.bytes().all(|digit| digit.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| is_hex)?;
        }
        parts.next().is_none().then_some(Self(bytes))
    }

    /// The IPv6 interface identifier (RFC 2464 4).
    pub const fn interface_id(self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.0;
        [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
    }

    /// The link-local IPv6 address (RFC 2464 5).
    pub const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f, g, h] = self.interface_id();
        Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}
debug_by_display!(MacAddress);
number_field!(MacAddress([u8; 6]));

/// The hardware address of ARP on Ethernet.
impl Layout for MacAddress {
    const NAME: &'static str = "MacAddress";
    const LEN: usize = Self::LEN;
    const FIELDS: &'static [FieldSpec] = &[FieldSpec { name: "bytes", bit: 0, width: 48 }];

    fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        split_header(Self::NAME, bytes).map(|(own, rest)| (Self(*own), rest))
    }

    fn write<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], WireError> {
        let have = out.len();
        let no_room = WireError::NoRoom { format: Self::NAME, needed: Self::LEN, have };
        let (own, rest) = out.split_first_chunk_mut().ok_or(no_room)?;
        *own = self.0;
        Ok(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv6Addr;
    use std::format;

    #[test]
    fn header_matches_bytes_made_by_hand() {
        let bytes = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6];
        let header = EthernetHeader {
            destination: MacAddress::BROADCAST,
            source: MacAddress([2, 0, 0, 0, 0, 1]),
            ether_type: EtherType::ARP,
        };
        assert_eq!((EthernetHeader::parse(&bytes), header.emit()), (header, bytes));
        assert!(header.destination.is_group() && !header.source.is_group());
        assert_eq!(format!("{}", header.source), "02:00:00:00:00:01");
    }

    #[test]
    fn a_tag_matches_bytes_made_by_hand() {
        let mut bytes = [0; 22];
        let frame = EthernetFrame {
            destination: MacAddress([2, 0, 0, 0, 0, 9]),
            source: MacAddress([2, 0, 0, 0, 0, 1]),
            vlan: Some(0x123),
            ether_type: EtherType::IPV4,
            payload: &[0; 4],
        };
        assert_eq!(frame.write_header(&mut bytes).unwrap().len(), 4);
        assert_eq!(bytes[12..18], [0x81, 0, 0x01, 0x23, 8, 0]);
        assert_eq!(EthernetFrame::parse(&bytes), Ok(frame));
        assert_eq!(EthernetFrame::header_len(frame.vlan), 18);
        bytes[14] = 0xa0;
        bytes[15] = 0;
        let parsed = EthernetFrame::parse(&bytes).unwrap();
        assert_eq!((parsed.vlan, parsed.ether_type), (None, EtherType::IPV4), "only a priority");
        let plain = EthernetFrame { vlan: None, ..frame };
        assert_eq!(plain.write_header(&mut bytes).unwrap().len(), 8);
        assert_eq!(bytes[12..14], [8, 0]);
    }

    #[test]
    fn frames_that_are_too_short_are_refused() {
        let tagged = [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x81, 0, 0, 1, 8, 0];
        for len in 0..18 {
            assert!(EthernetFrame::parse(&tagged[..len]).is_err(), "{len}");
        }
        assert!(EthernetFrame::parse(&tagged).unwrap().payload.is_empty());
    }

    #[test]
    fn groups_of_ip_have_their_addresses() {
        let of = |ip: &str| MacAddress::of_ip_group(ip.parse().unwrap());
        let mac = |text| MacAddress::parse_text(text);
        assert_eq!(of("224.129.2.3"), mac("01:00:5e:01:02:03"));
        assert_eq!(of("255.255.255.255"), Some(MacAddress::BROADCAST));
        assert_eq!(of("ff02::1:ff00:1234"), mac("33:33:ff:00:12:34"));
        assert_eq!((of("10.0.0.255"), of("fe80::1")), (None, None));
    }

    #[test]
    fn an_address_reads_as_it_prints() {
        let mac = MacAddress([2, 0, 0x5e, 0xff, 0, 0x1a]);
        assert_eq!(MacAddress::parse_text(&format!("{mac}")), Some(mac));
        for wrong in
            ["", "02:00:5e:ff:00", "02:00:5e:ff:00:1a:", "02:00:5e:ff:00:+a", "2:0:5e:ff:0:100"]
        {
            assert_eq!(MacAddress::parse_text(wrong), None, "{wrong}");
        }
        assert_eq!(mac.link_local(), "fe80::5eff:feff:1a".parse::<Ipv6Addr>().unwrap());
    }

    #[test]
    fn a_group_has_the_low_bytes_of_its_gid() {
        let group: Ipv6Addr = "ff02::1:ff00:1234".parse().unwrap();
        let mac = MacAddress::of_group(Gid(group.octets()));
        assert_eq!(mac, MacAddress([0x33, 0x33, 0xff, 0, 0x12, 0x34]));
        assert!(mac.is_group());
    }
}
