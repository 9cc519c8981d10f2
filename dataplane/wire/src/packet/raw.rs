//! Raw packets: no InfiniBand transport, no invariant CRC (IBA 5.3, 9.8.4).

use super::crc::{VCRC_LEN, vcrc};
use super::{Grh, Lnh, Lrh};
use crate::WireError;

layout! {
    /// Raw header: the EtherType of the payload (IBA 5.3).
    pub struct Rwh: 4 bytes {
        2:0   16  ether_type: u16,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawHeader {
    EtherType(Rwh),
    /// An IPv6 header, in place of the GRH.
    Ipv6(Grh),
}

/// A view of a raw packet with valid lengths. The fields of an IPv6 header are not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPacket<'a> {
    pub lrh: Lrh,
    pub header: RawHeader,
    /// The payload. Raw packets have no pad count, so its length is a multiple of four bytes.
    pub payload: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> RawPacket<'a> {
    /// Parses the raw packet at the front of `frame`, which may be longer than the packet.
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        let (lrh, rest) = Lrh::read(frame)?;
        if lrh.lver != 0 {
            return Err(WireError::BadValue { format: "Lrh", field: "lver" });
        }
        let (header, rest) = match lrh.lnh {
            Lnh::RAW => Rwh::read(rest).map(|(rwh, rest)| (RawHeader::EtherType(rwh), rest))?,
            Lnh::IPV6 => Grh::read(rest).map(|(grh, rest)| (RawHeader::Ipv6(grh), rest))?,
            _ => return Err(WireError::BadValue { format: "Lrh", field: "lnh" }),
        };
        let covered_len = lrh.packet_bytes();
        let needed = covered_len + VCRC_LEN;
        if needed > frame.len() {
            return Err(WireError::Truncated { format: "RawPacket", needed, have: frame.len() });
        }
        let payload_len = covered_len
            .checked_sub(frame.len() - rest.len())
            .ok_or(WireError::BadLength { format: "RawPacket" })?;
        Ok(Self { lrh, header, payload: &rest[..payload_len], bytes: &frame[..needed] })
    }

    /// Whether the variant CRC matches: the last link did not corrupt the packet.
    pub fn vcrc_ok(&self) -> bool {
        let (covered, trailer) = self.bytes.split_at(self.bytes.len() - VCRC_LEN);
        vcrc(covered).to_le_bytes() == trailer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::seal_hop;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn frame(lnh: Lnh, header: &[u8], payload: &[u8]) -> Vec<u8> {
        let pkt_len = (Lrh::LEN + header.len() + payload.len()) / 4;
        let lrh = Lrh { lnh, pkt_len: pkt_len as u16, ..Lrh::default() }.emit();
        let mut bytes = [&lrh, header, payload, &[0; VCRC_LEN]].concat();
        seal_hop(&mut bytes);
        bytes
    }

    #[test]
    fn both_kinds_round_trip() {
        let rwh = Rwh { ether_type: 0x0800 };
        let ipv6 = Grh { ip_ver: 6, nxt_hdr: 17, pay_len: 8, ..Grh::default() };
        for (header, bytes) in [
            (RawHeader::EtherType(rwh), frame(Lnh::RAW, &rwh.emit(), b"odd\0")),
            (RawHeader::Ipv6(ipv6), frame(Lnh::IPV6, &ipv6.emit(), b"odd\0")),
        ] {
            let packet = RawPacket::parse(&bytes).unwrap();
            assert!(packet.vcrc_ok());
            assert_eq!((packet.header, packet.payload), (header, &b"odd\0"[..]));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_packet_or_an_error(bytes in vec(any::<u8>(), 0..120)) {
            if let Ok(packet) = RawPacket::parse(&bytes) {
                let _ = packet.vcrc_ok();
            }
        }
    }
}
