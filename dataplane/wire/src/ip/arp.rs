//! Address resolution: ARP, RARP and inverse ARP over InfiniBand (RFC 826, 903, 2390; RFC 4391
//! 9.2), and over Ethernet.
//!
//! The packet is generic over the hardware address: that of RFC 4391, of the draft of 2001, or of
//! Ethernet. A receiver that accepts several forms checks [`ArpHeader::hardware_len`] first.
//!
//! The target hardware address of a request has no meaning (RFC 4391 9.2). It is parsed, but
//! callers must not use it.

use super::link_address::{DraftLinkAddress, LinkAddress};
use crate::ethernet::{EtherType, MacAddress};
use crate::layout::{Layout, WireError};
use core::net::Ipv4Addr;

layout! {
    pub struct ArpHeader: 8 bytes {
        0:0   16  hardware_type: HardwareType,
        2:0   16  protocol_type: EtherType,
        4:0    8  hardware_len: u8,
        5:0    8  protocol_len: u8,
        6:0   16  operation: ArpOperation,
    }
}

codes! {
    pub struct HardwareType(u16) {
        ETHERNET = 1,
        INFINIBAND = 32,
    }
}

/// A hardware address of Ethernet or IPoIB.
pub trait HardwareAddress: Layout {
    const TYPE: HardwareType;
}

impl HardwareAddress for LinkAddress {
    const TYPE: HardwareType = HardwareType::INFINIBAND;
}

impl HardwareAddress for DraftLinkAddress {
    const TYPE: HardwareType = HardwareType::INFINIBAND;
}

impl HardwareAddress for MacAddress {
    const TYPE: HardwareType = HardwareType::ETHERNET;
}

codes! {
    pub struct ArpOperation(u16) {
        REQUEST = 1,
        REPLY = 2,
        /// RARP (RFC 903).
        REVERSE_REQUEST = 3,
        REVERSE_REPLY = 4,
        /// InARP (RFC 2390).
        INVERSE_REQUEST = 8,
        INVERSE_REPLY = 9,
    }
}

/// An ARP packet for IPv4 with hardware addresses of type `A`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket<A> {
    pub operation: ArpOperation,
    pub sender_hardware: A,
    pub sender_protocol: Ipv4Addr,
    /// The link address of the target; meaningless in a request.
    pub target_hardware: A,
    pub target_protocol: Ipv4Addr,
}

impl<A: HardwareAddress> ArpPacket<A> {
    pub const LEN: usize = ArpHeader::LEN + 2 * (A::LEN + 4);

    const HEADER: ArpHeader = ArpHeader {
        hardware_type: A::TYPE,
        protocol_type: EtherType::IPV4,
        hardware_len: A::LEN as u8,
        protocol_len: 4,
        operation: ArpOperation(0),
    };

    /// Parses a packet with IPv4 and `A` addresses at the front of `bytes`; ignores the padding
    /// behind it.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let (header, rest) = ArpHeader::read(bytes)?;
        let ArpHeader { operation, .. } = header;
        if header != (ArpHeader { operation, ..Self::HEADER }) {
            return Err(WireError::BadValue { format: "ArpPacket", field: "address kinds" });
        }
        let (sender_hardware, rest) = A::read(rest)?;
        let (sender_protocol, rest) = ProtocolAddress::read(rest)?;
        let (target_hardware, rest) = A::read(rest)?;
        let (target_protocol, _) = ProtocolAddress::read(rest)?;
        Ok(Self {
            operation,
            sender_hardware,
            sender_protocol: sender_protocol.ip,
            target_hardware,
            target_protocol: target_protocol.ip,
        })
    }

    pub fn write<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], WireError> {
        let out = ArpHeader { operation: self.operation, ..Self::HEADER }.write(out)?;
        let out = self.sender_hardware.write(out)?;
        let out = ProtocolAddress { ip: self.sender_protocol }.write(out)?;
        let out = self.target_hardware.write(out)?;
        ProtocolAddress { ip: self.target_protocol }.write(out)
    }
}

layout! {
    /// The protocol address of an ARP packet. Only IPv4 is supported.
    pub struct ProtocolAddress: 4 bytes {
        0:0   32  ip: Ipv4Addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Gid, Guid, Lid, Qpn};
    use crate::ip::link_address::{DraftLinkAddress, LinkAddress};
    use crate::keys::QKey;
    use proptest::prelude::*;

    const GID: Gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1001));

    /// A request from 10.0.0.1 for 10.0.0.2.
    const REQUEST: [u8; 56] = [
        0x00, 0x20, 0x08, 0x00, 0x14, 0x04, 0x00, 0x01, //
        0x80, 0x00, 0x00, 0x48, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, //
        0x00, 0x02, 0xc9, 0x03, 0x00, 0x00, 0x10, 0x01, 10, 0, 0, 1, //
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
    ];

    fn request() -> ArpPacket<LinkAddress> {
        ArpPacket {
            operation: ArpOperation::REQUEST,
            sender_hardware: LinkAddress { rc: true, uc: false, qpn: Qpn(0x48), gid: GID },
            sender_protocol: Ipv4Addr::new(10, 0, 0, 1),
            target_hardware: LinkAddress::default(),
            target_protocol: Ipv4Addr::new(10, 0, 0, 2),
        }
    }

    #[test]
    fn request_as_linux_sends_it() {
        assert_eq!(ArpPacket::parse(&REQUEST), Ok(request()));
        let mut out = [0; 56];
        assert!(request().write(&mut out).unwrap().is_empty());
        assert_eq!(out, REQUEST);
        assert_eq!(ArpPacket::<LinkAddress>::LEN, 56);
    }

    #[test]
    fn the_draft_has_longer_addresses_and_takes_only_those() {
        let hardware = DraftLinkAddress {
            lid: Lid(3),
            rc: true,
            qpn: Qpn(0x48),
            q_key: QKey(0x0b1b),
            gid: GID,
            ..DraftLinkAddress::default()
        };
        let packet = ArpPacket {
            operation: ArpOperation::REPLY,
            sender_hardware: hardware,
            sender_protocol: Ipv4Addr::new(10, 0, 0, 1),
            target_hardware: DraftLinkAddress { lid: Lid(4), ..hardware },
            target_protocol: Ipv4Addr::new(10, 0, 0, 2),
        };
        let mut out = [0; ArpPacket::<DraftLinkAddress>::LEN];
        packet.write(&mut out).unwrap();
        assert_eq!((out.len(), out[4]), (68, 26));
        assert_eq!(ArpPacket::parse(&out), Ok(packet));
        assert!(ArpPacket::<LinkAddress>::parse(&out).is_err());
        assert!(ArpPacket::<DraftLinkAddress>::parse(&REQUEST).is_err());
    }

    #[test]
    fn a_reply_on_ethernet_has_short_addresses() {
        let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
        let packet = ArpPacket {
            operation: ArpOperation::REPLY,
            sender_hardware: mac(1),
            sender_protocol: Ipv4Addr::new(10, 0, 0, 1),
            target_hardware: mac(2),
            target_protocol: Ipv4Addr::new(10, 0, 0, 2),
        };
        let mut out = [0; ArpPacket::<MacAddress>::LEN];
        packet.write(&mut out).unwrap();
        assert_eq!(out[..14], [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 1]);
        assert_eq!(out[14..], [10, 0, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, 2]);
        assert_eq!(ArpPacket::parse(&out), Ok(packet));
    }

    #[test]
    fn other_kinds_of_addresses_and_short_packets_are_refused() {
        for byte in [0, 1, 2, 3, 4, 5] {
            let mut other = REQUEST;
            other[byte] ^= 1;
            assert!(ArpPacket::<LinkAddress>::parse(&other).is_err(), "byte {byte}");
        }
        for len in 0..REQUEST.len() {
            assert!(ArpPacket::<LinkAddress>::parse(&REQUEST[..len]).is_err());
            assert!(request().write(&mut std::vec![0; len]).is_err());
        }
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = ArpPacket::<LinkAddress>::parse(&bytes);
            let _ = ArpPacket::<DraftLinkAddress>::parse(&bytes);
        }
    }
}
