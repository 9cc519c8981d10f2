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

/// The header between LRH and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawHeader {
    EtherType(Rwh),
    /// IPv6, whose own header serves as GRH.
    Ipv6(Grh),
}

/// A view of a raw packet with valid headers. An IPv6 header is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPacket<'a> {
    pub lrh: Lrh,
    pub header: RawHeader,
    /// The payload, in whole words: raw packets have no pad count.
    pub payload: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> RawPacket<'a> {
    /// Looks at a frame that begins with a raw packet. The frame may be longer: PktLen rules.
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

    /// Whether it is as the last hop sent it.
    pub fn vcrc_ok(&self) -> bool {
        let (covered, trailer) = self.bytes.split_at(self.bytes.len() - VCRC_LEN);
        vcrc(covered).to_le_bytes() == trailer
    }
}

impl RawHeader {
    /// Writes a raw packet with this `payload`, padded to whole words, and returns its length.
    /// Computes LNH, PktLen and the variant CRC.
    pub fn emit(&self, lrh: Lrh, payload: &[u8], out: &mut [u8]) -> Result<usize, WireError> {
        let (lnh, header_len) = match self {
            Self::EtherType(_) => (Lnh::RAW, Rwh::LEN),
            Self::Ipv6(_) => (Lnh::IPV6, Grh::LEN),
        };
        let covered_len = Lrh::LEN + header_len + payload.len().next_multiple_of(4);
        if covered_len / 4 > Lrh::PKT_LEN_MAX {
            return Err(WireError::BadLength { format: "RawPacket" });
        }
        let (have, needed) = (out.len(), covered_len + VCRC_LEN);
        if have < needed {
            return Err(WireError::NoRoom { format: "RawPacket", needed, have });
        }
        let room = Lrh { lnh, pkt_len: (covered_len / 4) as u16, ..lrh }.write(out)?;
        let room = match self {
            Self::EtherType(rwh) => rwh.write(room)?,
            Self::Ipv6(grh) => grh.write(room)?,
        };
        let (filled, pad) = room.split_at_mut(payload.len());
        filled.copy_from_slice(payload);
        pad[..covered_len - Lrh::LEN - header_len - payload.len()].fill(0);
        super::headers::seal_hop(&mut out[..needed]);
        Ok(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Lid;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn both_kinds_survive() {
        let lrh = Lrh { dlid: Lid(2), slid: Lid(1), ..Lrh::default() };
        let ipv6 = Grh { ip_ver: 6, nxt_hdr: 17, pay_len: 8, ..Grh::default() };
        for header in [RawHeader::EtherType(Rwh { ether_type: 0x0800 }), RawHeader::Ipv6(ipv6)] {
            let mut out = [0xee; 80];
            let len = header.emit(lrh, b"odd", &mut out).unwrap();
            let packet = RawPacket::parse(&out[..len]).unwrap();
            assert!(packet.vcrc_ok());
            assert_eq!((packet.header, packet.payload), (header, &b"odd\0"[..]));
            assert_eq!(
                header.emit(lrh, b"odd", &mut out[..len - 1]).unwrap_err().reason(),
                "no_room"
            );
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
