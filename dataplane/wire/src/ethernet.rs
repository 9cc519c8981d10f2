//! Ethernet, as far as adapters that speak RoCE need it (IEEE 802.3 3.2; RFC 2464 7).

use crate::address::Gid;
use crate::ip::ipoib::EtherType;
use crate::layout::{Field, FieldSpec, Layout, WireError, split_header};
use core::fmt;

/// The address of an interface, or of a group of them.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

layout! {
    /// What a frame begins with.
    pub struct EthernetHeader: 14 bytes {
        /// Who is to get it.
        0:0   48  destination: MacAddress,
        /// Who sent it.
        6:0   48  source: MacAddress,
        /// What follows.
        12:0  16  ether_type: EtherType,
    }
}

impl MacAddress {
    /// Length in bytes.
    pub const LEN: usize = 6;
    /// Everybody.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it names a group, or everybody.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Where packets to a group of IPv6 go: its low 32 bits count (RFC 2464 7).
    pub const fn of_group(mgid: Gid) -> Self {
        let [.., a, b, c, d] = mgid.0;
        Self([0x33, 0x33, a, b, c, d])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacAddress({self})")
    }
}

impl Field for MacAddress {
    const WIDTH_MAX: usize = 48;
    #[inline(always)]
    fn load(bytes: &[u8], bit: usize, width: usize) -> Self {
        Self(Field::load(bytes, bit, width))
    }
    #[inline(always)]
    fn store(self, bytes: &mut [u8], bit: usize, width: usize) {
        self.0.store(bytes, bit, width);
    }
}

/// By itself it is what ARP has for a hardware address.
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
    fn header_by_hand() {
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
    fn a_group_has_the_low_bytes_of_its_gid() {
        let group: Ipv6Addr = "ff02::1:ff00:1234".parse().unwrap();
        let mac = MacAddress::of_group(Gid(group.octets()));
        assert_eq!(mac, MacAddress([0x33, 0x33, 0xff, 0, 0x12, 0x34]));
        assert!(mac.is_group());
    }
}
