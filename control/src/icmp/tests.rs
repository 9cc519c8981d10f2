//! Tests of packets that get an answer, and of packets that must not get one.

use super::*;
use crate::address::{Lifetimes, Origin};
use pollux_wire::ip::icmp::IcmpEcho;
use proptest::prelude::*;
use std::time::Duration;

const NOW: Time = Time::START;

fn addresses() -> Addresses {
    let mut addresses = Addresses::default();
    for (text, len) in [("10.0.0.1", 24), ("fe80::1", 64), ("2001:db8::1", 64)] {
        let ip: IpAddr = text.parse().unwrap();
        assert!(addresses.add(NOW, ip, len, Origin::Configured, Lifetimes::default()));
        addresses.handle_assigned(NOW, ip);
    }
    addresses
}

fn icmp() -> Icmp {
    Icmp::new(&IcmpConfig::default())
}

fn v4(source: &str, destination: &str, message: &Icmpv4Message<'_>) -> Vec<u8> {
    let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
    v4_frame(source, destination, 0, message).unwrap().packet
}

fn v6(source: &str, destination: &str, message: &Icmpv6Message<'_>) -> Vec<u8> {
    let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
    v6_frame(source, destination, message).unwrap().packet
}

/// A UDP packet with `len` bytes of payload.
fn udp(source: &str, destination: &str, len: usize) -> Vec<u8> {
    match (source.parse().unwrap(), destination.parse().unwrap()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = Ipv4Header {
                ttl: 64,
                protocol: IpProtocol::UDP,
                source,
                destination,
                ..Ipv4Header::default()
            };
            LinkFrame::ipv4(To::<NoLink>::Route, &header, &[], &vec![7; len]).unwrap().packet
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let next_header = IpProtocol::UDP;
            let header = Ipv6Header { next_header, source, destination, ..Ipv6Header::default() };
            let mut packet = vec![7; Ipv6Header::LEN + len];
            header.write_packet(len, &mut packet).unwrap();
            packet
        }
        _ => unreachable!("one family"),
    }
}

const ECHO: IcmpEcho<'_> = IcmpEcho { identifier: 7, sequence: 8, data: b"as it was" };

#[test]
fn an_echo_comes_back_as_it_was() {
    let (mut icmp, addresses) = (icmp(), addresses());
    let asked = v4("10.0.0.2", "10.0.0.1", &Icmpv4Message::EchoRequest(ECHO));
    let answer = icmp.handle_echo(NOW, &asked, &addresses).unwrap();
    assert_eq!(answer.to, To::Route);
    assert_eq!(answer.packet, v4("10.0.0.1", "10.0.0.2", &Icmpv4Message::EchoReply(ECHO)));
    let asked = v6("fe80::2", "fe80::1", &Icmpv6Message::EchoRequest(ECHO));
    let answer = icmp.handle_echo(NOW, &asked, &addresses).unwrap();
    assert_eq!(answer.packet, v6("fe80::1", "fe80::2", &Icmpv6Message::EchoReply(ECHO)));
    let to_all = v6("2001:db8::2", "ff02::1", &Icmpv6Message::EchoRequest(ECHO));
    let answer = icmp.handle_echo(NOW, &to_all, &addresses).unwrap();
    assert_eq!(answer.packet, v6("2001:db8::1", "2001:db8::2", &Icmpv6Message::EchoReply(ECHO)));
}

#[test]
fn echoes_that_would_multiply_or_go_nowhere_are_not_answered() {
    let (mut icmp, addresses) = (icmp(), addresses());
    let request4 = Icmpv4Message::EchoRequest(ECHO);
    let request6 = Icmpv6Message::EchoRequest(ECHO);
    let mut broken = v4("10.0.0.2", "10.0.0.1", &request4);
    *broken.last_mut().unwrap() ^= 1;
    let mut fragment = v4("10.0.0.2", "10.0.0.1", &request4);
    fragment[6] = 0x20;
    for (bytes, reason) in [
        (v4("10.0.0.2", "224.0.0.1", &request4), IcmpDrop::ToGroup),
        (v4("10.0.0.2", "255.255.255.255", &request4), IcmpDrop::ToGroup),
        (v4("0.0.0.0", "10.0.0.1", &request4), IcmpDrop::FromNobody),
        (v4("224.0.0.5", "10.0.0.1", &request4), IcmpDrop::FromNobody),
        (v6("::", "fe80::1", &request6), IcmpDrop::FromNobody),
        (v6("ff02::1", "fe80::1", &request6), IcmpDrop::FromNobody),
        (v4("10.0.0.2", "10.0.0.1", &Icmpv4Message::EchoReply(ECHO)), IcmpDrop::NotAnEcho),
        (broken, IcmpDrop::Checksum),
        (fragment, IcmpDrop::Fragment),
    ] {
        let before = icmp.drops().of(reason);
        assert_eq!(icmp.handle_echo(NOW, &bytes, &addresses), None, "{reason:?}");
        assert_eq!(icmp.drops().of(reason), before + 1, "{reason:?}");
    }
}

#[test]
fn a_packet_too_big_error_carries_the_next_hop_mtu() {
    let (mut icmp, addresses) = (icmp(), addresses());
    let long = udp("10.0.0.2", "10.9.9.9", 3000);
    let told = icmp.error_about(NOW, &long, false, IcmpError::TooBig(2044), &addresses).unwrap();
    let packet = Ipv4Packet::parse(&told.packet).unwrap();
    assert_eq!(packet.header().destination, Ipv4Addr::new(10, 0, 0, 2));
    assert!(icmpv4::checksum_ok(packet.payload()) && told.packet.len() == V4_LEN_MAX);
    let expected = Icmpv4Message::DestinationUnreachable {
        code: Icmpv4Unreachable::FRAGMENTATION_NEEDED,
        next_hop_mtu: 2044,
        original: &long[..V4_LEN_MAX - V4_HEADERS],
    };
    assert_eq!(Icmpv4Message::parse(packet.payload()), Ok(expected));
    let long = udp("2001:db8::2", "2a00::1", 3000);
    let told = icmp.error_about(NOW, &long, false, IcmpError::TooBig(2044), &addresses).unwrap();
    let packet = Ipv6Packet::parse(&told.packet).unwrap();
    assert!(icmpv6::checksum_ok(packet.payload(), &packet.header().pseudo_header()));
    assert_eq!(told.packet.len(), IPV6_MTU_MIN as usize);
    let original = &long[..IPV6_MTU_MIN as usize - V6_HEADERS];
    let expected = Icmpv6Message::PacketTooBig { mtu: 2044, original };
    assert_eq!(Icmpv6Message::parse(packet.payload()), Ok(expected));
    let group = udp("2001:db8::2", "ff0e::1", 3000);
    let told = icmp.error_about(NOW, &group, true, IcmpError::TooBig(2044), &addresses);
    assert!(told.is_some(), "path MTU discovery works for groups of IPv6");
}

#[test]
fn no_error_is_sent_about_errors_groups_and_fragments() {
    let (mut icmp, addresses) = (icmp(), addresses());
    let error4 =
        Icmpv4Message::TimeExceeded { code: Icmpv4TimeExceeded::IN_TRANSIT, original: &[0x45; 28] };
    let error6 = Icmpv6Message::PacketTooBig { mtu: 1280, original: &[0x60; 48] };
    let mut later = udp("10.0.0.2", "10.9.9.9", 100);
    later[7] = 1;
    for (bytes, reason) in [
        (v4("10.0.0.2", "10.9.9.9", &error4), IcmpDrop::AboutError),
        (v6("2001:db8::2", "2a00::1", &error6), IcmpDrop::AboutError),
        (udp("10.0.0.2", "224.1.2.3", 8), IcmpDrop::ToGroup),
        (udp("10.0.0.2", "10.0.0.255", 8), IcmpDrop::ToGroup),
        (udp("2001:db8::2", "ff0e::1", 8), IcmpDrop::ToGroup),
        (udp("0.0.0.0", "10.9.9.9", 8), IcmpDrop::FromNobody),
        (udp("127.0.0.1", "10.9.9.9", 8), IcmpDrop::FromNobody),
        (udp("10.0.0.255", "10.9.9.9", 8), IcmpDrop::FromNobody),
        (udp("255.255.255.255", "10.9.9.9", 8), IcmpDrop::FromNobody),
        (udp("::", "2a00::1", 8), IcmpDrop::FromNobody),
        (later, IcmpDrop::Fragment),
    ] {
        let before = icmp.drops().of(reason);
        let told = icmp.error_about(NOW, &bytes, false, IcmpError::AddressUnreachable, &addresses);
        assert_eq!((told, icmp.drops().of(reason)), (None, before + 1), "{reason:?} {bytes:?}");
    }
    let alone = udp("10.0.0.2", "10.9.9.9", 8);
    assert!(
        icmp.error_about(NOW, &alone, true, IcmpError::AddressUnreachable, &addresses).is_none()
    );
}

#[test]
fn errors_are_sent_about_queries_and_what_cannot_be_read() {
    let (mut icmp, addresses) = (icmp(), addresses());
    let mut is_told = |bytes: &[u8]| {
        icmp.error_about(NOW, bytes, false, IcmpError::AddressUnreachable, &addresses).is_some()
    };
    let mut query = v4("10.0.0.2", "10.9.9.9", &Icmpv4Message::EchoRequest(ECHO));
    for kind in 0..=40 {
        query[20] = kind;
        assert_eq!(is_told(&query), matches!(kind, 0 | 8 | 9..=10 | 13..=18), "{kind}");
    }
    let mut message = v6("2001:db8::2", "2a00::1", &Icmpv6Message::EchoRequest(ECHO));
    for (kind, expected) in [(1, false), (127, false), (128, true), (137, false), (200, true)] {
        message[40] = kind;
        assert_eq!(is_told(&message), expected, "{kind}");
    }
    // Destination options that are longer than the packet.
    let mut broken = udp("2001:db8::2", "2a00::1", 8);
    (broken[6], broken[41]) = (60, 250);
    assert!(is_told(&broken));
}

#[test]
fn each_reason_has_its_type_and_code() {
    let (mut icmp, addresses) = (icmp(), addresses());
    let packets = [udp("10.0.0.2", "10.9.9.9", 8), udp("2001:db8::2", "2a00::1", 8)];
    let mut codes = |error| {
        packets.each_ref().map(|packet| {
            let frame = icmp.error_about(NOW, packet, false, error, &addresses).unwrap().packet;
            let at = if frame[0] >> 4 == 4 { 20 } else { 40 };
            (frame[at], frame[at + 1])
        })
    };
    assert_eq!(codes(IcmpError::NoRoute), [(3, 0), (1, 0)]);
    assert_eq!(codes(IcmpError::AddressUnreachable), [(3, 1), (1, 3)]);
    assert_eq!(codes(IcmpError::RejectRoute), [(3, 1), (1, 6)]);
    assert_eq!(codes(IcmpError::Prohibited), [(3, 13), (1, 1)]);
    assert_eq!(codes(IcmpError::TimeExceeded), [(11, 0), (3, 0)]);
    assert_eq!(codes(IcmpError::ParameterProblem(20)), [(12, 0), (4, 0)]);
}

#[test]
fn errors_have_a_rate_that_only_sent_errors_use_up() {
    let config =
        IcmpConfig { errors_per_second_max: 10, errors_burst_max: 5, ..IcmpConfig::default() };
    let (mut icmp, addresses) = (Icmp::new(&config), addresses());
    let group = udp("10.0.0.2", "224.1.2.3", 8);
    let alone = udp("10.0.0.2", "10.9.9.9", 8);
    let mut sent = 0;
    for _ in 0..100 {
        assert!(icmp.error_about(NOW, &group, false, IcmpError::NoRoute, &addresses).is_none());
        sent += icmp.error_about(NOW, &alone, false, IcmpError::NoRoute, &addresses).iter().count();
    }
    assert_eq!((sent, icmp.drops().of(IcmpDrop::Rate)), (5, 95));
    let counters = icmp.counters();
    assert_eq!((counters.sent(4, IcmpSentKind::NoRoute), counters.suppressed(4)), (5, 95));
    assert_eq!((counters.sent(6, IcmpSentKind::NoRoute), counters.suppressed(6)), (0, 0));
}

#[test]
fn only_echoes_for_a_group_have_a_rate() {
    let (mut icmp, addresses) = (icmp(), addresses());
    let to_one = v6("fe80::2", "fe80::1", &Icmpv6Message::EchoRequest(ECHO));
    let to_all = v6("fe80::2", "ff02::1", &Icmpv6Message::EchoRequest(ECHO));
    let mut ask = |bytes: &[u8], now| icmp.handle_echo(now, bytes, &addresses).is_some();
    let start = Time::START + Duration::from_secs(5);
    let burst = (0..10_000).filter(|_| ask(&to_all, start)).count();
    assert_eq!(burst, 50);
    // The burst is used up at the start; each millisecond adds one token.
    let second = (1..=100_000).map(|at| start + at * Duration::from_micros(10));
    let (mut one, mut all) = (0, 0);
    for now in second {
        one += u32::from(ask(&to_one, now));
        all += u32::from(ask(&to_all, now));
    }
    assert_eq!((one, all), (100_000, 1000));
    let counters = icmp.counters();
    assert_eq!(counters.sent(6, IcmpSentKind::EchoReply), 101_050);
    assert_eq!(counters.suppressed(6), 10_000 - 50 + 100_000 - 1000);
    assert_eq!(icmp.drops().of(IcmpDrop::Rate), 10_000 - 50 + 100_000 - 1000);
}

proptest! {
    /// Hostile packets: no panic, and no answer or error of ours gets another one.
    #[test]
    fn any_bytes_are_a_drop_or_an_answer_that_ends(
        mut bytes in proptest::collection::vec(any::<u8>(), 1..200),
        version in prop_oneof![Just(0x45u8), Just(0x60u8)],
        fits in any::<bool>(),
    ) {
        bytes[0] = version;
        if fits && bytes.len() > 40 {
            let len = bytes.len() as u16;
            match version {
                0x45 => bytes[2..4].copy_from_slice(&len.to_be_bytes()),
                _ => bytes[4..6].copy_from_slice(&(len - 40).to_be_bytes()),
            }
        }
        let (mut icmp, addresses) = (icmp(), addresses());
        let echo = icmp.handle_echo(NOW, &bytes, &addresses);
        let error = icmp.error_about(NOW, &bytes, false, IcmpError::AddressUnreachable, &addresses);
        for answer in echo.into_iter().chain(error.clone()) {
            prop_assert!(answer.packet.len() <= IPV6_MTU_MIN as usize);
            prop_assert_eq!(icmp.handle_echo(NOW, &answer.packet, &addresses), None);
        }
        if let Some(error) = error {
            let packet = &error.packet;
            let error = IcmpError::AddressUnreachable;
            let again = icmp.error_about(NOW, packet, false, error, &addresses);
            prop_assert_eq!(again, None);
        }
    }
}
