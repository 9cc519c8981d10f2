//! The answer to a packet for a port without a socket: a reset to a TCP segment, so that the
//! connection is refused at once (RFC 9293 3.10.7.1), and an ICMP error to other protocols.

use crate::address::Addresses;
use crate::icmp::{HOP_LIMIT, is_single_v4, is_single_v6};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::checksum::PseudoHeader;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use pollux_wire::ip::ipv6_ext::UpperLayer;
use pollux_wire::ip::tcp::{TcpHeader, TcpSegment, fill_checksum};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Reset(Vec<u8>),
    NoPort,
    /// The packet is a segment that must not be answered.
    Nothing,
}

impl Answer {
    pub(crate) fn to(packet: &[u8], addresses: &Addresses) -> Self {
        let answer = match packet.first().map(|first| first >> 4) {
            Some(4) => Ipv4Packet::parse(packet).ok().and_then(|it| answer_v4(&it, addresses)),
            _ => Ipv6Packet::parse(packet).ok().and_then(|it| answer_v6(&it, addresses)),
        };
        answer.unwrap_or(Self::NoPort)
    }

    fn of(reset: Option<Vec<u8>>) -> Option<Self> {
        Some(reset.map_or(Self::Nothing, Self::Reset))
    }
}

/// `None` if the packet is no TCP segment.
fn answer_v4(packet: &Ipv4Packet<'_>, addresses: &Addresses) -> Option<Answer> {
    let header = packet.header();
    if header.protocol != IpProtocol::TCP {
        return None;
    }
    let is_intact = !header.is_fragment() && packet.checksum_ok();
    let is_single = is_single_v4(header.source) && !addresses.is_broadcast(header.source);
    if !(is_intact && is_single && addresses.is_of_node(header.destination.into())) {
        return Some(Answer::Nothing);
    }
    let reply = Ipv4Header {
        ttl: HOP_LIMIT,
        protocol: IpProtocol::TCP,
        source: header.destination,
        destination: header.source,
        ..Ipv4Header::default()
    };
    let mut out = vec![0; Ipv4Header::LEN + TcpHeader::LEN];
    let out_segment = reply.write_packet(&[], TcpHeader::LEN, &mut out).ok();
    let pseudo_headers = (header.pseudo_header(), reply.pseudo_header());
    let written = write_reset(packet.payload(), pseudo_headers, out_segment);
    Answer::of(written.map(|()| out))
}

/// `None` if the packet is no TCP segment.
fn answer_v6(packet: &Ipv6Packet<'_>, addresses: &Addresses) -> Option<Answer> {
    let header = packet.header();
    let upper = UpperLayer::find(header.next_header, packet.payload()).ok()?;
    if upper.protocol != IpProtocol::TCP {
        return None;
    }
    let is_single = upper.fragment.is_none() && is_single_v6(header.source);
    if !(is_single && addresses.is_of_node(header.destination.into())) {
        return Some(Answer::Nothing);
    }
    let reply = Ipv6Header {
        next_header: IpProtocol::TCP,
        hop_limit: HOP_LIMIT,
        source: header.destination,
        destination: header.source,
        ..Ipv6Header::default()
    };
    let mut out = vec![0; Ipv6Header::LEN + TcpHeader::LEN];
    let out_segment = reply.write_packet(TcpHeader::LEN, &mut out).ok();
    let written =
        write_reset(upper.payload, (header.pseudo_header(), reply.pseudo_header()), out_segment);
    Answer::of(written.map(|()| out))
}

/// Writes the reset that answers `segment`; `None` if the segment must not be answered.
fn write_reset(
    segment: &[u8],
    (received, sent): (PseudoHeader, PseudoHeader),
    out_segment: Option<&mut [u8]>,
) -> Option<()> {
    let (reset, out_segment) = (reset(segment, &received)?, out_segment?);
    reset.write_segment(&[], 0, out_segment).ok()?;
    fill_checksum(out_segment, &sent).ok()
}

/// The reset that answers `segment` (RFC 9293 3.10.7.1); `None` if it must not be answered.
fn reset(segment: &[u8], pseudo: &PseudoHeader) -> Option<TcpHeader> {
    let segment = TcpSegment::parse(segment).ok()?;
    let header = segment.header();
    if header.rst || !segment.checksum_ok(pseudo) {
        return None;
    }
    let ports = TcpHeader {
        source_port: header.destination_port,
        destination_port: header.source_port,
        rst: true,
        ..TcpHeader::default()
    };
    if header.ack {
        return Some(TcpHeader { sequence_number: header.acknowledgment_number, ..ports });
    }
    let taken = segment.payload().len() as u32 + u32::from(header.syn) + u32::from(header.fin);
    let acknowledgment_number = header.sequence_number.wrapping_add(taken);
    Some(TcpHeader { acknowledgment_number, ack: true, ..ports })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Lifetimes, Origin};
    use pollux_verbs::time::Time;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const THEIRS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

    fn addresses() -> Addresses {
        let mut addresses = Addresses::default();
        for (ip, len) in [(IpAddr::V4(OURS), 24), (IpAddr::V6(OURS_V6), 64)] {
            addresses.add(Time::START, ip, len, Origin::Configured, Lifetimes::default());
            addresses.handle_assigned(Time::START, ip);
        }
        addresses
    }

    fn segment(header: &TcpHeader, payload: &[u8], pseudo: &PseudoHeader) -> Vec<u8> {
        let mut bytes = vec![0; TcpHeader::LEN + payload.len()];
        let out_segment = header.write_segment(&[], payload.len(), &mut bytes).unwrap();
        out_segment.copy_from_slice(payload);
        fill_checksum(&mut bytes, pseudo).unwrap();
        bytes
    }

    fn v4(to: Ipv4Addr, header: &TcpHeader, payload: &[u8]) -> Vec<u8> {
        let protocol = IpProtocol::TCP;
        let ip = Ipv4Header { protocol, source: THEIRS, destination: to, ..Ipv4Header::default() };
        let segment = segment(header, payload, &ip.pseudo_header());
        let mut bytes = vec![0; Ipv4Header::LEN + segment.len()];
        ip.write_packet(&[], segment.len(), &mut bytes).unwrap().copy_from_slice(&segment);
        bytes
    }

    fn header(syn: bool, ack: bool) -> TcpHeader {
        TcpHeader {
            source_port: 5000,
            destination_port: 80,
            sequence_number: u32::MAX,
            acknowledgment_number: 77,
            syn,
            ack,
            ..TcpHeader::default()
        }
    }

    /// The ports, sequence number and acknowledgment number of a reset, after checks of all other
    /// fields.
    fn told(answer: &[u8]) -> (u16, u16, u32, Option<u32>) {
        let (segment, pseudo) = match answer[0] >> 4 {
            4 => {
                let packet = Ipv4Packet::parse(answer).unwrap();
                assert!(packet.checksum_ok());
                let header = packet.header();
                assert_eq!((header.source, header.destination), (OURS, THEIRS));
                (packet.payload(), header.pseudo_header())
            }
            _ => {
                let packet = Ipv6Packet::parse(answer).unwrap();
                let header = packet.header();
                assert_eq!((header.source, header.destination), (OURS_V6, THEIRS_V6));
                (packet.payload(), header.pseudo_header())
            }
        };
        let segment = TcpSegment::parse(segment).unwrap();
        let header = segment.header();
        assert!(segment.checksum_ok(&pseudo) && header.rst && !header.syn);
        let acknowledged = header.ack.then_some(header.acknowledgment_number);
        (header.source_port, header.destination_port, header.sequence_number, acknowledged)
    }

    #[test]
    fn a_segment_is_reset_with_the_numbers_that_its_sender_expects() {
        let all = addresses();
        let reset = |packet: &[u8]| match Answer::to(packet, &all) {
            Answer::Reset(answer) => Some(told(&answer)),
            _ => None,
        };
        assert_eq!(reset(&v4(OURS, &header(true, false), b"")), Some((80, 5000, 0, Some(0))));
        assert_eq!(reset(&v4(OURS, &header(true, false), b"early")), Some((80, 5000, 0, Some(5))));
        assert_eq!(reset(&v4(OURS, &header(false, true), b"late")), Some((80, 5000, 77, None)));
        let (source, destination) = (THEIRS_V6, OURS_V6);
        let next_header = IpProtocol::TCP;
        let ip = Ipv6Header { next_header, source, destination, ..Ipv6Header::default() };
        let syn = segment(&header(true, false), b"", &ip.pseudo_header());
        let mut bytes = vec![0; Ipv6Header::LEN + syn.len()];
        ip.write_packet(syn.len(), &mut bytes).unwrap().copy_from_slice(&syn);
        assert_eq!(reset(&bytes), Some((80, 5000, 0, Some(0))));
    }

    #[test]
    fn resets_groups_strangers_and_damaged_segments_are_not_answered() {
        let all = addresses();
        let reset = TcpHeader { rst: true, ..header(false, true) };
        let syn = v4(OURS, &header(true, false), b"");
        for packet in [
            v4(OURS, &reset, b""),
            v4(THEIRS, &header(true, false), b""),
            v4(Ipv4Addr::new(10, 0, 0, 255), &header(true, false), b""),
            syn[..30].to_vec(),
        ] {
            assert!(!matches!(Answer::to(&packet, &all), Answer::Reset(_)), "{packet:?}");
        }
        for at in [12, 25] {
            let mut damaged = syn.clone();
            damaged[at] ^= 1;
            assert_eq!(Answer::to(&damaged, &all), Answer::Nothing, "byte {at}");
        }
    }
}
