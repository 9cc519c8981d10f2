//! Segmentation and merging, against packets that are built one by one.

use super::merge::TcpRun;
use super::segment::TcpUnit;
use super::{complete_checksum, segment};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::checksum::{PseudoHeader, Sum};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::tcp::{TcpHeader, TcpOption, fill_checksum};
use pollux_wire::ip::vnet_header::{PartialChecksum, SegmentKind, VnetHeader};
use proptest::prelude::*;

/// The data of a sender.
#[derive(Clone, Debug)]
struct Flow {
    is_v4: bool,
    identification: u16,
    tcp: TcpHeader,
    has_options: bool,
}

/// One packet of this data, built from its fields alone.
fn packet(flow: &Flow, tcp: TcpHeader, identification: u16, payload: &[u8]) -> Vec<u8> {
    let timestamps = TcpOption::Timestamps { value: 7, echo_reply: 9 };
    let options = if flow.has_options { &[timestamps][..] } else { &[] };
    let option_bytes = if flow.has_options { 12 } else { 0 };
    let tcp_bytes = TcpHeader::LEN + option_bytes + payload.len();
    let mut bytes;
    let at;
    if flow.is_v4 {
        at = Ipv4Header::LEN;
        bytes = vec![0; at + tcp_bytes];
        let header = Ipv4Header {
            identification,
            dont_fragment: true,
            ttl: 60,
            dscp: 10,
            protocol: IpProtocol::TCP,
            source: [10, 0, 0, 1].into(),
            destination: [10, 9, 0, 2].into(),
            ..Ipv4Header::default()
        };
        header.write_packet(&[], tcp_bytes, &mut bytes).unwrap();
    } else {
        at = Ipv6Header::LEN;
        bytes = vec![0; at + tcp_bytes];
        let header = Ipv6Header {
            hop_limit: 60,
            flow_label: 0x12345,
            next_header: IpProtocol::TCP,
            source: "fd00::1".parse().unwrap(),
            destination: "fd09::2".parse().unwrap(),
            ..Ipv6Header::default()
        };
        header.write_packet(tcp_bytes, &mut bytes).unwrap();
    }
    tcp.write_segment(options, payload.len(), &mut bytes[at..]).unwrap().copy_from_slice(payload);
    let pseudo = segment::pseudo_header(&bytes).unwrap();
    fill_checksum(&mut bytes[at..], &pseudo).unwrap();
    bytes
}

/// The packets of a flow, without units.
fn packets(flow: &Flow, payload: &[u8], segment_bytes: usize) -> Vec<Vec<u8>> {
    let count = payload.len().div_ceil(segment_bytes).max(1);
    let part = |nth: usize| {
        let before = nth * segment_bytes;
        let is_last = nth + 1 == count;
        let tcp = TcpHeader {
            sequence_number: flow.tcp.sequence_number.wrapping_add(before as u32),
            psh: flow.tcp.psh && is_last,
            fin: flow.tcp.fin && is_last,
            cwr: flow.tcp.cwr && nth == 0,
            ..flow.tcp
        };
        let end = payload.len().min(before + segment_bytes);
        packet(flow, tcp, flow.identification.wrapping_add(nth as u16), &payload[before..end])
    };
    (0..count).map(part).collect()
}

/// A unit as a kernel makes it: its checksum is that of the pseudo header.
fn unit(flow: &Flow, payload: &[u8]) -> Vec<u8> {
    let mut unit = packet(flow, flow.tcp, flow.identification, payload);
    let at = if flow.is_v4 { 20 } else { 40 };
    let sum = segment::pseudo_header(&unit).unwrap().sum(IpProtocol::TCP, unit.len() - at);
    unit[at + 16..at + 18].copy_from_slice(&(!sum.checksum()).to_be_bytes());
    unit
}

fn segments(unit: &[u8], segment_bytes: usize) -> Vec<Vec<u8>> {
    let headers = TcpUnit::parse(unit, segment_bytes as u16).expect("a unit");
    let one = |nth| {
        let mut packet = vec![0xee; headers.packet_bytes(nth)];
        headers.write(unit, nth, &mut packet).expect("it is of this unit");
        packet
    };
    (0..headers.count()).map(one).collect()
}

/// The units and single packets that a port sends, each with its header.
fn merged(packets: &[Vec<u8>]) -> Vec<(VnetHeader, Vec<u8>)> {
    let mut sent = Vec::new();
    let mut rest = packets;
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        let mut bytes = first.clone();
        let Some(mut run) = TcpRun::begin(first) else {
            sent.push((VnetHeader::default(), bytes));
            continue;
        };
        while let Some((next, others)) = rest.split_first()
            && run.append(next)
        {
            bytes.extend_from_slice(&next[run.header_bytes()..]);
            rest = others;
        }
        let header = run.finish(&mut bytes[..first.len()]);
        sent.push((header, bytes));
    }
    sent
}

fn flows() -> impl Strategy<Value = Flow> {
    let flags = any::<[bool; 5]>();
    (any::<bool>(), any::<u16>(), any::<u32>(), any::<u32>(), flags).prop_map(
        |(is_v4, identification, sequence_number, acknowledgment_number, flags)| {
            let [psh, fin, cwr, ece, has_options] = flags;
            let tcp = TcpHeader {
                source_port: 5001,
                destination_port: 80,
                sequence_number,
                acknowledgment_number,
                window: 501,
                ack: true,
                psh,
                fin,
                cwr,
                ece,
                ..TcpHeader::default()
            };
            Flow { is_v4, identification, tcp, has_options }
        },
    )
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 256) as u8).collect()
}

proptest! {
    #[test]
    fn a_unit_becomes_the_packets_of_its_sender(
        flow in flows(), bytes in 0usize..20_000, segment_bytes in 1usize..3000,
    ) {
        let payload = payload(bytes);
        let expected = packets(&flow, &payload, segment_bytes);
        prop_assert_eq!(segments(&unit(&flow, &payload), segment_bytes), expected);
    }

    #[test]
    fn packets_of_a_flow_become_a_unit_that_stands_for_them(
        flow in flows(), bytes in 1usize..20_000, segment_bytes in 500usize..3000,
    ) {
        let tcp = TcpHeader { fin: false, cwr: false, ece: false, ..flow.tcp };
        let flow = Flow { tcp, ..flow };
        let payload = payload(bytes);
        let all = packets(&flow, &payload, segment_bytes);
        let sent = merged(&all);
        prop_assert_eq!(sent.len(), 1);
        let (header, bytes) = &sent[0];
        if all.len() == 1 {
            prop_assert_eq!((header, bytes), (&VnetHeader::default(), &all[0]));
        } else {
            prop_assert_eq!(bytes, &unit(&flow, &payload));
            let kind = if flow.is_v4 { SegmentKind::TcpV4 } else { SegmentKind::TcpV6 };
            prop_assert_eq!(header.segmentation, kind);
            prop_assert_eq!(usize::from(header.segment_bytes), segment_bytes);
            let tcp_at = if flow.is_v4 { 20 } else { 40 };
            let partial = PartialChecksum { start: tcp_at, offset: 16 };
            prop_assert_eq!(header.checksum, Some(partial));
            let mut completed = bytes.clone();
            prop_assert!(complete_checksum(&mut completed, partial));
            let sum = segment::pseudo_header(&completed).unwrap();
            let sum = sum.sum(IpProtocol::TCP, completed.len() - usize::from(tcp_at));
            prop_assert!(sum.then(Sum::of(&completed[tcp_at.into()..])).is_ok());
        }
    }

    /// Whatever bit of a packet changes, the receiver gets what was sent.
    #[test]
    fn packets_that_differ_in_a_bit_are_not_merged(
        flow in flows(), at in 0usize..60, bit in 0u8..8, nth in 0usize..4,
    ) {
        let flow = Flow { has_options: true, ..flow };
        let mut all = packets(&flow, &payload(4 * 1000), 1000);
        let first = all[nth].clone();
        all[nth][at] ^= 1 << bit;
        // With valid checksums, so that the changed bit alone is the reason.
        let tcp_at = if flow.is_v4 { 20 } else { 40 };
        if at < tcp_at + 16 || at >= tcp_at + 18 {
            if flow.is_v4 && !(10..12).contains(&at) && all[nth][0] == 0x45 {
                all[nth][10..12].fill(0);
                let checksum = Sum::of(&all[nth][..20]).checksum();
                all[nth][10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            let pseudo = segment::pseudo_header(&all[nth]).unwrap();
            let _ = fill_checksum(&mut all[nth][tcp_at..], &pseudo);
        }
        prop_assert_ne!(&first, &all[nth]);
        let unfolded: Vec<_> = merged(&all).into_iter().flat_map(|(header, bytes)| {
            match header.segmentation {
                SegmentKind::Unsegmented => vec![bytes],
                _ => segments(&bytes, header.segment_bytes.into()),
            }
        }).collect();
        prop_assert_eq!(unfolded, all);
    }

    #[test]
    fn any_bytes_are_handled_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..120), segment_bytes: u16, is_v4: bool,
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = if is_v4 { 0x45 } else { 0x60 };
        }
        if let Some(unit) = TcpUnit::parse(&bytes, segment_bytes) {
            let mut packet = vec![0; unit.packet_bytes(0)];
            prop_assert!(unit.write(&bytes, 0, &mut packet).is_some());
        }
        let run = TcpRun::begin(&bytes);
        prop_assert!(run.is_none_or(|run| run.header_bytes() <= bytes.len()));
    }
}

#[test]
fn packets_with_other_flags_are_not_merged() {
    let tcp = TcpHeader { ack: true, window: 9, ..TcpHeader::default() };
    let flow = Flow { is_v4: true, identification: 1, tcp, has_options: false };
    let begins =
        |tcp: TcpHeader, payload: &[u8]| TcpRun::begin(&packet(&flow, tcp, 1, payload)).is_some();
    assert!(begins(tcp, b"data"));
    assert!(!begins(tcp, b""), "no payload");
    assert!(!begins(TcpHeader { psh: true, ..tcp }, b"data"), "PSH completes a unit");
    assert!(!begins(TcpHeader { fin: true, ..tcp }, b"data"));
    assert!(!begins(TcpHeader { syn: true, ..tcp }, b"data"));
    assert!(!begins(TcpHeader { rst: true, ..tcp }, b"data"));
    assert!(!begins(TcpHeader { urg: true, ..tcp }, b"data"));
    assert!(!begins(TcpHeader { ece: true, ..tcp }, b"data"));
    assert!(!begins(TcpHeader { ack: false, ..tcp }, b"data"));
    let mut damaged = packet(&flow, tcp, 1, b"data");
    damaged[43] ^= 1;
    assert!(TcpRun::begin(&damaged).is_none(), "a unit would hide the bad checksum");
}

#[test]
fn a_unit_is_no_longer_than_a_packet_can_be() {
    let tcp = TcpHeader { ack: true, ..TcpHeader::default() };
    let flow = Flow { is_v4: true, identification: 1, tcp, has_options: false };
    let all = packets(&flow, &payload(200_000), 9000);
    let sent = merged(&all);
    assert_eq!(sent.len(), 4);
    assert!(sent.iter().all(|(_, bytes)| Ipv4Packet::parse(bytes).is_ok()));
    assert!(sent.iter().all(|(_, bytes)| bytes.len() <= usize::from(u16::MAX)));
}

#[test]
fn a_partial_checksum_is_completed() {
    let pseudo =
        PseudoHeader::V4 { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into() };
    let udp = [0, 7, 0, 9, 0, 12, 0, 0, b'd', b'a', b't', b'a'];
    let mut packet = [&[0x45; 20][..], &udp].concat();
    let sum = pseudo.sum(IpProtocol::UDP, udp.len());
    packet[26..28].copy_from_slice(&(!sum.checksum()).to_be_bytes());
    assert!(complete_checksum(&mut packet, PartialChecksum { start: 20, offset: 6 }));
    assert!(sum.then(Sum::of(&packet[20..])).is_ok());
    for (start, offset) in [(33, 0), (20, 11), (u16::MAX, u16::MAX), (0, 31)] {
        assert!(!complete_checksum(&mut packet, PartialChecksum { start, offset }));
    }
}
