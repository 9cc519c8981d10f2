//! RoCEv2: InfiniBand transport behind IP and UDP (IBA A17).
//!
//! ```text
//! native   LRH  GRH            BTH  extended headers  payload  pad  ICRC  VCRC
//! RoCEv2        IPv4 | IPv6  UDP  BTH  extended headers  payload  pad  ICRC
//! ```
//!
//! The IP header replaces the GRH, and IPv4 addresses are GIDs in the form ::ffff:a.b.c.d. There
//! are no LIDs: a native packet that is converted from RoCEv2 has source and destination LID 0.
//! Conversions compute new CRCs. [`write_ip`] converts to RoCEv2; [`RocePacket`] is the checked
//! view of a received packet, and converts it to native.

use core::net::{Ipv4Addr, Ipv6Addr};
use pollux_wire::WireError;
use pollux_wire::address::Gid;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use pollux_wire::ip::udp::{UdpDatagram, UdpHeader};
use pollux_wire::packet::crc::{ICRC_LEN, VCRC_LEN};
use pollux_wire::packet::{Bth, Grh, Lnh, Lrh, PACKET_LEN_MAX, Packet, seal};

/// The UDP destination port of RoCEv2 (IANA).
pub const UDP_PORT: u16 = 4791;

/// The GID of a port that has this IPv4 address (IBA A17.4.5.2).
pub const fn gid_of_ipv4(address: Ipv4Addr) -> Gid {
    Gid(address.to_ipv6_mapped().octets())
}

/// The IPv4 address of a GID in the form ::ffff:a.b.c.d; `None` for any other GID.
pub const fn ipv4_of_gid(gid: Gid) -> Option<Ipv4Addr> {
    Ipv6Addr::from_octets(gid.0).to_ipv4_mapped()
}

/// The longest IP packet, in bytes: IP and UDP headers are not longer than LRH and GRH.
pub const IP_LEN_MAX: usize = PACKET_LEN_MAX;

/// The UDP source port of a flow, in the dynamic range: the flow label's 20 bits, folded to 14 (IBA
/// A17.9.2).
pub const fn source_port(flow_label: u32) -> u16 {
    0xc000 | (flow_label ^ flow_label >> 14) as u16 & 0x3fff
}

/// The ICRC of an IP packet, up to its last pad byte; `None` if the packet is not RoCEv2.
///
/// The CRC covers eight bytes of ones in place of the absent LRH. The fields of the IP header that
/// routers change, the UDP checksum, and the BTH's byte of congestion bits count as ones (IBA
/// A17.3.3).
pub fn icrc(covered: &[u8]) -> Option<u32> {
    const HEADERS: usize = UdpHeader::LEN + Bth::LEN;
    const V4: usize = Ipv4Header::LEN + HEADERS;
    const V6: usize = Ipv6Header::LEN + HEADERS;
    match covered.first()? {
        // IHL is 5: with IPv4 options, UDP and BTH would be at other offsets.
        0x45 => {
            let (head, rest) = covered.split_first_chunk::<V4>()?;
            Some(masked::<V4>(*head, &[1..2, 8..9, 10..12], rest))
        }
        0x60..=0x6f => {
            let (head, rest) = covered.split_first_chunk::<V6>()?;
            let mut head = *head;
            head[0] = 0x6f;
            Some(masked::<V6>(head, &[1..4, 7..8], rest))
        }
        _ => None,
    }
}

/// The CRC of `head`, which ends with UDP and BTH headers, and of `rest`. The bytes of `head` in
/// the ranges `ones` count as ones, and so do the variant bytes of UDP and BTH.
fn masked<const N: usize>(mut head: [u8; N], ones: &[core::ops::Range<usize>], rest: &[u8]) -> u32 {
    let bth = N - Bth::LEN;
    let common = [bth - 2..bth, bth + 4..bth + 5];
    for range in ones.iter().chain(&common) {
        head[range.clone()].fill(0xff);
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[0xff; Lrh::LEN]);
    hasher.update(&head);
    hasher.update(rest);
    hasher.finalize()
}

/// Writes a native packet as a RoCEv2 packet; returns its length. The packet is IPv4 if the GIDs
/// are IPv4 addresses, else IPv6. The CRCs of the native packet are not checked.
pub fn write_ip(packet: &Packet<'_>, out: &mut [u8]) -> Result<usize, WireError> {
    let no_grh = WireError::BadValue { format: "RocePacket", field: "grh" };
    let grh = packet.grh().ok_or(no_grh)?;
    let transport = &packet.bytes()[Lrh::LEN + Grh::LEN..];
    let transport = &transport[..transport.len() - VCRC_LEN];
    let ip_len = if ipv4_of_gid(grh.dgid).is_some() { Ipv4Header::LEN } else { Ipv6Header::LEN };
    let payload = write_ip_header(&grh, UdpHeader::LEN + transport.len(), out)?;
    let udp = UdpHeader {
        source_port: source_port(flow_of(&grh, &packet.bth())),
        destination_port: UDP_PORT,
        ..UdpHeader::default()
    };
    udp.write_datagram(transport.len(), payload)?.copy_from_slice(transport);
    let len = ip_len + UdpHeader::LEN + transport.len();
    let (covered, trailer) = out[..len].split_at_mut(len - ICRC_LEN);
    let icrc = icrc(covered).ok_or(WireError::BadLength { format: "RocePacket" })?;
    trailer.copy_from_slice(&icrc.to_le_bytes());
    Ok(len)
}

/// The flow label, or the destination QPN if the flow label is 0.
fn flow_of(grh: &Grh, bth: &Bth) -> u32 {
    if grh.flow_label == 0 { bth.dest_qp.0 } else { grh.flow_label }
}

/// Writes the IP header; returns the space for its payload.
fn write_ip_header<'a>(
    grh: &Grh,
    payload_len: usize,
    out: &'a mut [u8],
) -> Result<&'a mut [u8], WireError> {
    let (dscp, ecn) = (grh.tclass >> 2, grh.tclass & 3);
    match (ipv4_of_gid(grh.sgid), ipv4_of_gid(grh.dgid)) {
        (Some(source), Some(destination)) => {
            let header = Ipv4Header {
                dscp,
                ecn,
                dont_fragment: true,
                ttl: grh.hop_lmt,
                protocol: IpProtocol::UDP,
                source,
                destination,
                ..Ipv4Header::default()
            };
            header.write_packet(&[], payload_len, out)
        }
        (None, None) => {
            let header = Ipv6Header {
                dscp,
                ecn,
                flow_label: grh.flow_label,
                next_header: IpProtocol::UDP,
                hop_limit: grh.hop_lmt,
                source: Ipv6Addr::from(grh.sgid.0),
                destination: Ipv6Addr::from(grh.dgid.0),
                ..Ipv6Header::default()
            };
            header.write_packet(payload_len, out)
        }
        // One GID is an IPv4 address, but not the other.
        _ => Err(WireError::BadValue { format: "RocePacket", field: "gids" }),
    }
}

/// A RoCEv2 packet with valid lengths and a valid ICRC.
#[derive(Clone, Copy, Debug)]
pub struct RocePacket<'a> {
    grh: Grh,
    /// BTH to ICRC.
    transport: &'a [u8],
}

impl<'a> RocePacket<'a> {
    /// Parses the payload of an Ethernet frame of this type; `None` if it is not RoCEv2.
    ///
    /// The UDP checksum is not checked: most senders omit it, and the ICRC protects the packet.
    pub fn parse(ether_type: EtherType, bytes: &'a [u8]) -> Result<Option<Self>, WireError> {
        let (grh, bytes, payload) = match ether_type {
            EtherType::IPV4 => {
                let packet = Ipv4Packet::parse(bytes)?;
                let header = packet.header();
                if header.protocol != IpProtocol::UDP || header.is_fragment() {
                    return Ok(None);
                }
                if !packet.checksum_ok() {
                    return Err(WireError::BadChecksum { format: "Ipv4Header" });
                }
                let len = usize::from(header.total_length);
                (grh_of_v4(&header), &bytes[..len], packet.payload())
            }
            EtherType::IPV6 => {
                let packet = Ipv6Packet::parse(bytes)?;
                let header = packet.header();
                if header.next_header != IpProtocol::UDP {
                    return Ok(None);
                }
                let len = Ipv6Header::LEN + packet.payload().len();
                (grh_of_v6(&header), &bytes[..len], packet.payload())
            }
            _ => return Ok(None),
        };
        let datagram = UdpDatagram::parse(payload)?;
        if datagram.header().destination_port != UDP_PORT {
            return Ok(None);
        }
        let bad_length = WireError::BadLength { format: "RocePacket" };
        let transport = datagram.payload();
        if transport.len() + UdpHeader::LEN != payload.len() {
            return Err(bad_length);
        }
        let (covered, trailer) = bytes.split_last_chunk::<ICRC_LEN>().ok_or(bad_length)?;
        if icrc(covered).ok_or(bad_length)?.to_le_bytes() != *trailer {
            return Err(WireError::BadChecksum { format: "RocePacket" });
        }
        let grh = Grh { pay_len: transport.len() as u16, ..grh };
        Ok(Some(Self { grh, transport }))
    }

    /// The IP header, as a GRH.
    pub const fn grh(&self) -> Grh {
        self.grh
    }

    /// Writes the packet as a native packet, LRH to VCRC; returns its length.
    pub fn write_native(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let headers_len = Lrh::LEN + Grh::LEN;
        let (len, have) = (headers_len + self.transport.len() + VCRC_LEN, out.len());
        let words = (headers_len + self.transport.len()) / 4;
        if !self.transport.len().is_multiple_of(4) || words > Lrh::PKT_LEN_MAX {
            return Err(WireError::BadLength { format: "RocePacket" });
        }
        let no_room = WireError::NoRoom { format: "RocePacket", needed: len, have };
        let packet = out.get_mut(..len).ok_or(no_room)?;
        let lrh = Lrh { lnh: Lnh::GLOBAL, pkt_len: words as u16, ..Lrh::default() };
        let rest = self.grh.write(lrh.write(packet)?)?;
        rest[..self.transport.len()].copy_from_slice(self.transport);
        seal(packet);
        Ok(len)
    }
}

fn grh_of_v4(header: &Ipv4Header) -> Grh {
    Grh {
        ip_ver: Grh::IP_VER,
        tclass: header.dscp << 2 | header.ecn,
        nxt_hdr: Grh::NXT_HDR_IBA,
        hop_lmt: header.ttl,
        sgid: gid_of_ipv4(header.source),
        dgid: gid_of_ipv4(header.destination),
        ..Grh::default()
    }
}

fn grh_of_v6(header: &Ipv6Header) -> Grh {
    Grh {
        ip_ver: Grh::IP_VER,
        tclass: header.dscp << 2 | header.ecn,
        flow_label: header.flow_label,
        nxt_hdr: Grh::NXT_HDR_IBA,
        hop_lmt: header.hop_limit,
        sgid: Gid(header.source.octets()),
        dgid: Gid(header.destination.octets()),
        ..Grh::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::address::Qpn;
    use pollux_wire::keys::PKey;
    use pollux_wire::packet::{
        Aeth, Credits, Extended, Headers, Opcode, Operation, Reth, Syndrome, Transport,
    };
    use pollux_wire::psn::Psn;
    use proptest::prelude::*;

    fn v4() -> [Gid; 2] {
        [1, 2].map(|last| gid_of_ipv4(Ipv4Addr::new(10, 0, 0, last)))
    }

    fn v6() -> [Gid; 2] {
        [1, 2].map(|last| Gid(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last).octets()))
    }

    fn native([sgid, dgid]: [Gid; 2], payload: &[u8]) -> Vec<u8> {
        let grh = Grh {
            ip_ver: 6,
            tclass: 0x47,
            nxt_hdr: Grh::NXT_HDR_IBA,
            hop_lmt: 64,
            sgid,
            dgid,
            ..Grh::default()
        };
        let bth = Bth {
            opcode: Opcode::new(Transport::RC, Operation::ACKNOWLEDGE),
            mig_req: true,
            pkey: PKey::DEFAULT,
            dest_qp: Qpn(0x12_3456),
            psn: Psn::new(0xff_ffff),
            ..Bth::default()
        };
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits(31)), msn: Psn::new(5) };
        let (lrh, extended) = (Lrh::default(), Extended::Aeth(aeth));
        let headers = Headers { lrh, grh: Some(grh), bth, rd: None, extended };
        let mut out = vec![0; PACKET_LEN_MAX];
        let len = headers.emit(payload, &mut out).unwrap();
        out.truncate(len);
        out
    }

    fn ip_of(native: &[u8]) -> Vec<u8> {
        let mut out = vec![0xee; IP_LEN_MAX];
        let len = write_ip(&Packet::parse(native).unwrap(), &mut out).unwrap();
        out.truncate(len);
        out
    }

    fn ether_type(gids: [Gid; 2]) -> EtherType {
        if ipv4_of_gid(gids[0]).is_some() { EtherType::IPV4 } else { EtherType::IPV6 }
    }

    #[test]
    fn packets_round_trip() {
        for (gids, header_len) in [(v4(), 20), (v6(), 40)] {
            for payload in [&[][..], b"five!", &[7; 4096]] {
                let native = native(gids, payload);
                let mut ip = ip_of(&native);
                assert_eq!(ip.len(), native.len() - 50 + header_len + 8);
                // Padding of the link is not part of the packet.
                ip.extend([0xdd; 3]);
                let came = RocePacket::parse(ether_type(gids), &ip).unwrap().unwrap();
                let mut out = vec![0; PACKET_LEN_MAX];
                let len = came.write_native(&mut out).unwrap();
                assert_eq!(out[..len], native);
                assert!(Packet::parse(&out[..len]).unwrap().icrc_ok());
            }
        }
    }

    #[test]
    fn an_acknowledgement_by_hand() {
        let ip = ip_of(&native(v4(), &[]));
        assert_eq!(ip[..10], [0x45, 0x47, 0, 48, 0, 0, 0x40, 0, 64, 17]);
        assert_eq!(ip[12..20], [10, 0, 0, 1, 10, 0, 0, 2]);
        let port = 0xc000 | (0x12_3456 ^ 0x12_3456 >> 14) as u16 & 0x3fff;
        assert_eq!(
            ip[20..28],
            [port.to_be_bytes(), 4791_u16.to_be_bytes(), [0, 28], [0, 0]].concat()
        );
        assert_eq!(ip[28..40], [0x11, 0x40, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0xff, 0xff, 0xff]);
        assert_eq!(ip[40..44], [31, 0, 0, 5]);
    }

    /// A request to read 1 MiB, as sent by Soft-RoCE of Linux 6.1.
    #[test]
    fn a_read_request_of_another_make() {
        let ip = [
            0x45, 0, 0, 0x3c, 0xbc, 0x1c, 0x40, 0, 0x40, 0x11, 0x6a, 0x90, 10, 1, 0, 1, 10, 1, 0,
            2, 0xc5, 0x40, 0x12, 0xb7, 0, 0x28, 0, 0, 0x0c, 0, 0xff, 0xff, 0, 1, 0, 0x41, 0x80, 0,
            0, 0x64, 0, 0, 0x7f, 0, 0xcb, 0xa0, 0, 0, 0, 0, 1, 0, 0, 0x10, 0, 0, 0x90, 0x10, 0x36,
            0x5c,
        ];
        let came = RocePacket::parse(EtherType::IPV4, &ip).unwrap().unwrap();
        assert_eq!(came.grh().sgid, gid_of_ipv4(Ipv4Addr::new(10, 1, 0, 1)));
        let mut native = vec![0; PACKET_LEN_MAX];
        let len = came.write_native(&mut native).unwrap();
        let packet = Packet::parse(&native[..len]).unwrap();
        let bth = packet.bth();
        assert_eq!((bth.opcode, bth.dest_qp, bth.psn.get()), (Opcode(0x0c), Qpn(0x01_0041), 100));
        let reth = Reth { va: 0x7f00_cba0_0000, rkey: 0x100, dma_len: 1 << 20 };
        assert_eq!(packet.extended(), Extended::Reth(reth));
    }

    /// An acknowledgment over IPv6, as sent by Soft-RoCE of Linux 6.1.
    #[test]
    fn an_acknowledgement_of_another_make() {
        let mut ip = vec![0x60, 0, 0, 0, 0, 0x1c, 0x11, 0x40];
        let gid = |last| Gid(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, last).octets());
        ip.extend(gid(0x102).0);
        ip.extend(gid(2).0);
        ip.extend([
            0xc5, 0x14, 0x12, 0xb7, 0, 0x1c, 0, 0, 0x11, 0, 0xff, 0xff, 0, 0, 0, 0x41, 0, 0, 0,
            0x64, 0x1f, 0, 0, 1, 0x65, 0xab, 0x0a, 0xad,
        ]);
        let came = RocePacket::parse(EtherType::IPV6, &ip).unwrap().unwrap();
        assert_eq!((came.grh().sgid, came.grh().dgid), (gid(0x102), gid(2)));
        let mut native = vec![0; PACKET_LEN_MAX];
        let len = came.write_native(&mut native).unwrap();
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits(31)), msn: Psn::new(1) };
        let packet = Packet::parse(&native[..len]).unwrap();
        assert_eq!(packet.extended(), Extended::Aeth(aeth));
    }

    #[test]
    fn families_do_not_mix_and_a_grh_must_be() {
        let mixed = native([v4()[0], v6()[1]], &[]);
        let mut out = vec![0; IP_LEN_MAX];
        assert!(write_ip(&Packet::parse(&mixed).unwrap(), &mut out).is_err());
        let ack = [
            0x00, 0x02, 0x00, 0x02, 0x00, 0x07, 0x00, 0x01, 0x11, 0x00, 0xff, 0xff, 0, 0, 0, 0x49,
            0, 0, 0, 5, 0x1f, 0, 0, 6, 0x69, 0xb4, 0x2b, 0xaa, 0xea, 0xf6,
        ];
        assert!(write_ip(&Packet::parse(&ack).unwrap(), &mut out).is_err());
        assert!(write_ip(&Packet::parse(&native(v4(), &[1; 64])).unwrap(), &mut [0; 64]).is_err());
    }

    #[test]
    fn other_packets_are_none_and_malformed_ones_are_errors() {
        for gids in [v4(), v6()] {
            let (kind, ip) = (ether_type(gids), ip_of(&native(gids, b"bytes")));
            let udp = if kind == EtherType::IPV4 { 20 } else { 40 };
            let parse = |ip: &[u8]| RocePacket::parse(kind, ip).map(|packet| packet.is_some());
            let with = |at: usize, value: u8| {
                let mut other = ip.clone();
                other[at] = value;
                parse(&other)
            };
            assert_eq!(parse(&ip), Ok(true));
            assert_eq!(with(udp + 3, 0), Ok(false), "another port");
            assert_eq!(with(ip.len() - 5, 0xff).unwrap_err().reason(), "bad_checksum");
            assert_eq!(with(udp + 5, 28).unwrap_err().reason(), "bad_length");
            assert!(parse(&ip[..ip.len() - 1]).is_err());
        }
        assert!(RocePacket::parse(EtherType::ARP, &[0; 60]).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn routers_may_change_what_they_change(
            tos: u8, ttl: u8, label in 0u8..16, udp_checksum: u16, congestion: u8,
        ) {
            for gids in [v4(), v6()] {
                let ip = ip_of(&native(gids, b"bytes"));
                let is_v4 = gids == v4();
                let mut other = ip.clone();
                if is_v4 {
                    (other[1], other[8], other[10]) = (tos, ttl, label);
                } else {
                    (other[0], other[1], other[7]) = (0x60 | label, tos, ttl);
                }
                let udp = if is_v4 { 20 } else { 40 };
                other[udp + 6..udp + 8].copy_from_slice(&udp_checksum.to_be_bytes());
                other[udp + 12] = congestion;
                let crc = |ip: &[u8]| icrc(&ip[..ip.len() - 4]);
                prop_assert_eq!(crc(&other), crc(&ip));
                other[udp] ^= 1;
                prop_assert_ne!(crc(&other), crc(&ip));
            }
        }

        #[test]
        fn parsing_any_bytes_never_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..120), six: bool,
        ) {
            let kind = if six { EtherType::IPV6 } else { EtherType::IPV4 };
            let _ = icrc(&bytes);
            let _ = RocePacket::parse(kind, &bytes);
        }

        /// As above, but with mostly valid headers and a matching ICRC, to reach the later checks.
        #[test]
        fn damaged_packets_parse_or_not(
            at in 0usize..88, value: u8, payload_len in 0usize..16, six: bool,
        ) {
            let gids = if six { v6() } else { v4() };
            let mut ip = ip_of(&native(gids, &[1; 16][..payload_len]));
            let len = ip.len();
            ip[at % len] = value;
            if let Some(crc) = icrc(&ip[..len - 4]) {
                ip[len - 4..].copy_from_slice(&crc.to_le_bytes());
            }
            if let Ok(Some(packet)) = RocePacket::parse(ether_type(gids), &ip) {
                let mut out = vec![0; PACKET_LEN_MAX];
                let native = packet.write_native(&mut out).map(|len| &out[..len]);
                if let Ok(native) = native.and_then(Packet::parse) {
                    prop_assert!(native.icrc_ok() && native.vcrc_ok());
                }
            }
        }
    }
}
