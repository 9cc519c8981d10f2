//! Lists of a few rules, and an oracle that reads rules as they are configured.

use super::*;
use pollux_verbs::rng::SeededRng;

fn rule(action: AclAction) -> AclRule {
    AclRule {
        action,
        source: None,
        destination: None,
        protocol: None,
        source_ports: None,
        destination_ports: None,
        icmp_type: None,
    }
}

fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, len) = text.split_once('/').expect("a prefix");
    Some((ip.parse().expect("an address"), len.parse().expect("a length")))
}

fn packet(protocol: IpProtocol, from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 40 + payload.len()];
    let buffer = match (from.parse().expect("one"), to.parse().expect("one")) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet.truncate(20 + payload.len());
            let header = Ipv4Header { protocol, source, destination, ttl: 9, ..Default::default() };
            header.write_packet(&[], payload.len(), &mut packet).expect("it fits")
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header =
                Ipv6Header { next_header: protocol, source, destination, ..Default::default() };
            header.write_packet(payload.len(), &mut packet).expect("it fits")
        }
        _ => unreachable!("addresses of one family"),
    };
    buffer.copy_from_slice(payload);
    packet
}

fn with_ports(protocol: IpProtocol, from: &str, to: &str, ports: [u16; 2]) -> Vec<u8> {
    let payload = [ports[0].to_be_bytes(), ports[1].to_be_bytes(), [0, 8], [0, 0]].concat();
    packet(protocol, from, to, &payload)
}

fn decide(filter: &AclFilter, packet: &[u8]) -> AclAction {
    filter.decide(&PacketHeaders::parse_ip(packet).expect("a packet"), packet)
}

const A: &str = "10.0.0.1";
const B: &str = "10.9.0.1";

#[test]
fn the_first_rule_that_matches_decides_and_counts() {
    let rules = [
        AclRule {
            protocol: Some(IpProtocol::TCP),
            destination_ports: Some(22..=23),
            ..rule(AclAction::Deny)
        },
        AclRule { destination: prefix("10.9.0.0/16"), ..rule(AclAction::Permit) },
        AclRule { source: prefix("fd01::/64"), ..rule(AclAction::Reject) },
        AclRule {
            protocol: Some(IpProtocol::ICMPV4),
            icmp_type: Some(8),
            ..rule(AclAction::Reject)
        },
    ];
    let acl = Arc::new(Acl::new(&rules, 2));
    let filter = AclFilter::new(Arc::clone(&acl), 1);
    let of = |packet: Vec<u8>| decide(&filter, &packet);
    let (tcp, udp) = (IpProtocol::TCP, IpProtocol::UDP);
    assert_eq!(of(with_ports(tcp, A, B, [5000, 22])), AclAction::Deny);
    assert_eq!(of(with_ports(tcp, A, B, [22, 5000])), AclAction::Permit);
    assert_eq!(of(with_ports(udp, A, B, [5000, 22])), AclAction::Permit);
    assert_eq!(of(with_ports(tcp, "fd01::7", "fd02::1", [5000, 23])), AclAction::Deny);
    assert_eq!(of(with_ports(udp, "fd01::7", "fd02::1", [5000, 22])), AclAction::Reject);
    assert_eq!(of(packet(IpProtocol::ICMPV4, A, A, &[8, 0, 0, 0])), AclAction::Reject);
    assert_eq!(
        of(packet(IpProtocol::ICMPV4, A, A, &[0, 0, 0, 0])),
        AclAction::Permit,
        "no rule matches"
    );
    assert_eq!(of(with_ports(udp, A, A, [8, 8])), AclAction::Permit, "a port is no type");
    assert_eq!(acl.packets(), [2, 2, 1, 1]);
    // Each worker has its own counters; the sum includes all.
    let other = AclFilter::new(Arc::clone(&acl), 0);
    decide(&other, &with_ports(tcp, A, B, [1, 22]));
    assert_eq!(acl.packets(), [3, 2, 1, 1]);
    assert_eq!(decide(&AclFilter::new(Arc::new(Acl::new(&[], 1)), 0), &packet(udp, A, B, &[])), {
        AclAction::Permit
    });
}

#[test]
fn a_fragment_without_ports_matches_rules_without_ports_alone() {
    let rules = [
        AclRule {
            protocol: Some(IpProtocol::UDP),
            destination_ports: Some(0..=u16::MAX),
            ..rule(AclAction::Deny)
        },
        AclRule { protocol: Some(IpProtocol::UDP), ..rule(AclAction::Reject) },
    ];
    let filter = AclFilter::new(Arc::new(Acl::new(&rules, 1)), 0);
    let fragment = |offset: u8| {
        let mut packet = with_ports(IpProtocol::UDP, A, B, [7, 7]);
        (packet[6], packet[7]) = (0x20, offset);
        packet[10..12].fill(0);
        let sum = pollux_wire::ip::checksum::Sum::of(&packet[..20]).checksum();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    };
    assert_eq!(decide(&filter, &fragment(0)), AclAction::Deny, "the first has them");
    assert_eq!(decide(&filter, &fragment(1)), AclAction::Reject);
    let fragment = |offset: u8| {
        let header = [17, 0, 0, offset << 3 | 1, 0, 0, 0, 9];
        let payload = [&header[..], &[0, 7, 0, 7, 0, 8, 0, 0]].concat();
        packet(IpProtocol(44), "fd01::1", "fd02::1", &payload)
    };
    assert_eq!(decide(&filter, &fragment(0)), AclAction::Deny);
    assert_eq!(decide(&filter, &fragment(1)), AclAction::Reject);
    // A UDP packet that ends before its ports.
    assert_eq!(decide(&filter, &packet(IpProtocol::UDP, A, B, &[1, 2])), AclAction::Reject);
}

/// A rule, evaluated as its documentation reads.
fn matches(
    rule: &AclRule,
    from: IpAddr,
    to: IpAddr,
    protocol: IpProtocol,
    ports: [u16; 2],
) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let is_in = |prefix: Option<(IpAddr, u8)>, ip: IpAddr| {
        prefix.is_none_or(|(network, len)| {
            let shift = 128 - u32::from(len);
            network.is_ipv4() == ip.is_ipv4()
                && bits(network).checked_shr(shift) == bits(ip).checked_shr(shift)
        })
    };
    let has = |range: &Option<RangeInclusive<u16>>, port: u16| {
        range.as_ref().is_none_or(|range| range.contains(&port))
    };
    is_in(rule.source, from)
        && is_in(rule.destination, to)
        && rule.protocol.is_none_or(|known| known == protocol)
        && has(&rule.source_ports, ports[0])
        && has(&rule.destination_ports, ports[1])
}

#[test]
fn compiled_rules_decide_as_configured_ones() {
    let mut rng = SeededRng::new(11);
    for _ in 0..300 {
        let address = |rng: &mut SeededRng| -> IpAddr {
            let low = rng.below(4) as u8;
            match rng.below(2) {
                0 => [10, low, 0, rng.below(2) as u8].into(),
                _ => [0xfd00, low.into(), 0, 0, 0, 0, 0, rng.below(2) as u16].into(),
            }
        };
        let prefix = |rng: &mut SeededRng| {
            let ip = address(rng);
            let lens = if ip.is_ipv4() { [0, 8, 15, 32] } else { [0, 16, 31, 128] };
            (rng.below(2) == 0).then(|| (ip, lens[rng.below(4) as usize]))
        };
        let range = |rng: &mut SeededRng| {
            let from = rng.below(4) as u16;
            (rng.below(2) == 0).then(|| from..=from + rng.below(3) as u16)
        };
        let new = |rng: &mut SeededRng| {
            let actions = [AclAction::Permit, AclAction::Deny, AclAction::Reject];
            let protocol = [IpProtocol::TCP, IpProtocol::UDP][rng.below(2) as usize];
            let has_ports = rng.below(2) == 0;
            let ports = [range(rng), range(rng)].map(|range| range.filter(|_| has_ports));
            let [source_ports, destination_ports] = ports;
            AclRule {
                source: prefix(rng),
                destination: prefix(rng),
                protocol: has_ports.then_some(protocol),
                source_ports,
                destination_ports,
                ..rule(actions[rng.below(3) as usize])
            }
        };
        let rules: Vec<_> = (0..rng.below(8)).map(|_| new(&mut rng)).collect();
        let filter = AclFilter::new(Arc::new(Acl::new(&rules, 1)), 0);
        for _ in 0..40 {
            let from = address(&mut rng);
            let to = loop {
                let to = address(&mut rng);
                if to.is_ipv4() == from.is_ipv4() {
                    break to;
                }
            };
            let protocol = [IpProtocol::TCP, IpProtocol::UDP][rng.below(2) as usize];
            let ports = [rng.below(8) as u16, rng.below(8) as u16];
            let found = rules.iter().find(|one| matches(one, from, to, protocol, ports));
            let packet = with_ports(protocol, &from.to_string(), &to.to_string(), ports);
            let expected = found.map_or(AclAction::Permit, |rule| rule.action);
            assert_eq!(decide(&filter, &packet), expected, "{from} {to} {ports:?} {rules:?}");
        }
    }
}
