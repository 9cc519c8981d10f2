//! A forwarder between ports that record their packets.

use super::*;
use crate::acl::{Acl, AclAction, AclRule};
use crate::headers::PacketHeaders;
use crate::packet_memory::PacketMemory;
use pollux_mem::{Buf, Pool};
use pollux_verbs::WakeSource;
use pollux_wire::ip::IpProtocol;
use std::collections::{BTreeMap, VecDeque};

/// A port without a link.
#[derive(Default)]
pub(super) struct TestPort {
    pub(super) arriving: VecDeque<Buf>,
    pub(super) sent: Vec<(Vec<u8>, EtherType, IpAddr)>,
    pub(super) batches: usize,
    pub(super) rejected: Vec<(Vec<u8>, TransitError)>,
    pub(super) dropped: Vec<ForwardDrop>,
    /// The memory for copies.
    pub(super) copies: Option<Pool>,
}

impl PacketPort for TestPort {
    fn poll(&mut self, _: Time, transit: &mut Vec<TransitPacket>) -> bool {
        let before = transit.len();
        transit.extend(self.arriving.drain(..).map(|packet| {
            let headers = PacketHeaders::parse_ip(packet.bytes()).expect("a test sends packets");
            TransitPacket { packet, headers }
        }));
        transit.len() > before
    }

    fn set_filter(&mut self, _: Option<AclFilter>) {}

    fn send(&mut self, _: Time, batch: &mut Vec<TxPacket>) {
        self.batches += 1;
        let all = batch.drain(..);
        self.sent
            .extend(all.map(|one| (one.packet.bytes().to_vec(), one.ether_type, one.next_hop)));
    }

    fn reject(&mut self, packet: Buf, why: TransitError) {
        self.rejected.push((packet.bytes().to_vec(), why));
    }

    fn drop_transit(&mut self, _: Buf, why: ForwardDrop) {
        self.dropped.push(why);
    }

    fn copy(&mut self, packet: &Buf) -> Option<Buf> {
        let mut copy = self.copies.as_ref()?.alloc()?;
        copy.push_back(packet.len())?.copy_from_slice(packet.bytes());
        Some(copy)
    }

    fn packets(&self) -> u64 {
        0
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn wake_source(&mut self) -> Option<WakeSource<'_>> {
        None
    }

    fn woken(&mut self) {}
}

/// Routes by the first byte of IPv4, or the first group of IPv6.
#[derive(Default)]
struct TestRoutes(BTreeMap<u16, Vec<RouteTo>>);

impl RouteLookup for TestRoutes {
    fn look_up(&self, destination: IpAddr, flow: impl FnOnce() -> u32) -> &RouteTo {
        match self.next_hops(destination) {
            [] => &RouteTo::Nowhere,
            [one] => one,
            all => &all[flow() as usize % all.len()],
        }
    }

    fn next_hops(&self, address: IpAddr) -> &[RouteTo] {
        let first = match address {
            IpAddr::V4(ip) => ip.octets()[0].into(),
            IpAddr::V6(ip) => ip.segments()[0],
        };
        self.0.get(&first).map_or(&[], |all| all)
    }
}

struct World {
    memory: PacketMemory,
    ports: [TestPort; 2],
    routes: TestRoutes,
    forwarder: Forwarder,
}

const A: PortId = PortId(3);
const B: PortId = PortId(0);

fn to(port: PortId, gateway: Option<&str>) -> RouteTo {
    RouteTo::Port { port, gateway: gateway.map(|ip| ip.parse().unwrap()) }
}

fn world() -> World {
    let mut forwarder = Forwarder::new(7);
    forwarder.set_ports([A, B].into_iter());
    let routes = TestRoutes(BTreeMap::from([
        (10, vec![to(A, None)]),
        (20, vec![to(B, Some("10.0.0.9"))]),
        (30, vec![RouteTo::Blackhole]),
        (31, vec![RouteTo::Unreachable]),
        (32, vec![RouteTo::Prohibited]),
        (40, vec![to(PortId(7), None)]),
        (0x2001, vec![to(B, Some("fe80::1"))]),
    ]));
    let memory = PacketMemory::new(64, 2044).unwrap();
    World { memory, ports: Default::default(), routes, forwarder }
}

pub(super) fn v4(ttl: u8, from: [u8; 4], to: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let (source, destination, protocol) = (from.into(), to.into(), IpProtocol::UDP);
    let header = Ipv4Header { ttl, source, destination, protocol, ..Ipv4Header::default() };
    let mut packet = vec![0; Ipv4Header::LEN + payload.len()];
    header.write_packet(&[], payload.len(), &mut packet).unwrap().copy_from_slice(payload);
    packet
}

pub(super) fn v6(hop_limit: u8, from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = (from.parse().unwrap(), to.parse().unwrap());
    let header = Ipv6Header {
        hop_limit,
        source,
        destination,
        next_header: IpProtocol::UDP,
        ..Ipv6Header::default()
    };
    let mut packet = vec![0; Ipv6Header::LEN + payload.len()];
    header.write_packet(payload.len(), &mut packet).unwrap().copy_from_slice(payload);
    packet
}

impl World {
    /// Packets arrive at a port.
    fn arrive(&mut self, at: usize, packets: impl IntoIterator<Item = Vec<u8>>) {
        for packet in packets {
            let mut buf = self.memory.pool().alloc().expect("a test sends few");
            buf.push_back(packet.len()).unwrap().copy_from_slice(&packet);
            self.ports[at].arriving.push_back(buf);
        }
        let Self { ports, routes, forwarder, .. } = self;
        assert!(forwarder.breathe(Time::START, ports, routes));
        assert!(!forwarder.breathe(Time::START, ports, routes), "nothing is left");
        assert_eq!(self.memory.pool().outstanding(), 0, "every buffer is free");
    }
}

#[test]
fn packets_leave_by_the_port_of_their_next_hop_in_one_batch() {
    let mut world = world();
    let out = v4(9, [10, 0, 0, 1], [20, 1, 2, 3], b"payload");
    world.arrive(0, [out.clone(), out, v6(2, "2002::1", "2001:db8::1", b"six")]);
    let sent = std::mem::take(&mut world.ports[1].sent);
    let expected = v4(8, [10, 0, 0, 1], [20, 1, 2, 3], b"payload");
    let gateway: IpAddr = "10.0.0.9".parse().unwrap();
    assert_eq!(sent[..2], [0, 1].map(|_| (expected.clone(), EtherType::IPV4, gateway)));
    let expected = v6(1, "2002::1", "2001:db8::1", b"six");
    assert_eq!(sent[2..], [(expected, EtherType::IPV6, "fe80::1".parse().unwrap())]);
    assert_eq!(world.ports[1].batches, 1);
    // On a link, the destination is its own next hop, also on the link of arrival.
    world.arrive(0, [v4(9, [20, 0, 0, 1], [10, 1, 2, 3], b"")]);
    assert_eq!(world.ports[0].sent[0].2, IpAddr::from([10, 1, 2, 3]));
    assert!(world.ports.iter().all(|port| port.dropped.is_empty() && port.rejected.is_empty()));
}

/// More packets than one look-up of a batch takes.
#[test]
fn a_long_batch_keeps_order_and_verdicts() {
    let mut world = world();
    let packets: Vec<_> = (0..60)
        .map(|nth| {
            let to = [20, 127, 50, 30, 20][usize::from(nth) % 5];
            v4(if nth == 5 { 1 } else { 9 }, [10, 0, 0, 1], [to, 0, 0, nth], b"")
        })
        .collect();
    world.arrive(0, packets);
    let of = |remainder: &[usize]| {
        let is_in = |nth: &usize| *nth != 5 && remainder.contains(&(nth % 5));
        (0..60).filter(is_in).collect::<Vec<_>>()
    };
    let last = |bytes: &[u8]| usize::from(bytes[19]);
    let sent: Vec<_> = world.ports[1].sent.iter().map(|(bytes, ..)| last(bytes)).collect();
    assert_eq!(sent, of(&[0, 4]));
    assert_eq!(world.ports[1].batches, 1);
    let mut rejected: Vec<_> =
        world.ports[0].rejected.iter().map(|(bytes, why)| (last(bytes), *why)).collect();
    assert_eq!(rejected.remove(1), (5, TransitError::TimeExceeded));
    assert_eq!(
        rejected,
        of(&[2]).into_iter().map(|nth| (nth, TransitError::NoRoute)).collect::<Vec<_>>()
    );
    let is_martian = |nth: usize| nth % 5 == 1;
    let dropped = (0..60).filter(|nth| matches!(nth % 5, 1 | 3)).map(|nth| match is_martian(nth) {
        true => ForwardDrop::MartianDestination,
        false => ForwardDrop::Blackhole,
    });
    assert_eq!(world.ports[0].dropped, dropped.collect::<Vec<_>>());
}

#[test]
fn an_expired_ttl_rejects_the_packet_unchanged() {
    let mut world = world();
    for ttl in [0, 1] {
        let four = v4(ttl, [10, 0, 0, 1], [20, 1, 2, 3], b"late");
        let six = v6(ttl, "2002::1", "2001:db8::1", b"late");
        world.arrive(0, [four.clone(), six.clone()]);
        let rejected = std::mem::take(&mut world.ports[0].rejected);
        let expected = [four, six].map(|packet| (packet, TransitError::TimeExceeded));
        assert_eq!(rejected, expected);
    }
    assert!(world.ports[1].sent.is_empty());
}

#[test]
fn each_reason_is_counted_and_some_send_an_icmp_error() {
    let mut world = world();
    let mut arrive = |to: [u8; 4]| {
        let packet = v4(9, [10, 0, 0, 1], to, b"payload");
        world.arrive(0, [packet.clone()]);
        let port = &mut world.ports[0];
        let rejected = std::mem::take(&mut port.rejected);
        assert!(rejected.iter().all(|(bytes, _)| *bytes == packet));
        let rejected: Vec<_> = rejected.into_iter().map(|(_, why)| why).collect();
        (std::mem::take(&mut port.dropped), rejected)
    };
    assert_eq!(arrive([50, 0, 0, 1]), (vec![], vec![TransitError::NoRoute]));
    assert_eq!(arrive([31, 0, 0, 1]), (vec![], vec![TransitError::Unreachable]));
    assert_eq!(arrive([32, 0, 0, 1]), (vec![], vec![TransitError::Prohibited]));
    assert_eq!(arrive([30, 0, 0, 1]), (vec![ForwardDrop::Blackhole], vec![]));
    assert_eq!(arrive([127, 0, 0, 1]), (vec![ForwardDrop::MartianDestination], vec![]));
    assert_eq!(arrive([239, 0, 0, 1]), (vec![ForwardDrop::Multicast], vec![]));
    assert_eq!(arrive([40, 0, 0, 1]), (vec![ForwardDrop::PortAway], vec![]));
}

#[test]
fn a_removed_port_gets_no_packets() {
    let mut world = world();
    world.forwarder.set_ports([A].into_iter());
    world.arrive(0, [v4(9, [10, 0, 0, 1], [20, 1, 2, 3], b"")]);
    assert_eq!(world.ports[0].dropped, [ForwardDrop::PortAway]);
    world.forwarder.set_ports([A, B].into_iter());
    world.arrive(0, [v4(9, [10, 0, 0, 1], [20, 1, 2, 3], b"")]);
    assert_eq!(world.ports[1].sent.len(), 1);
}

#[test]
fn link_padding_is_removed() {
    let mut world = world();
    let packet = v4(9, [10, 0, 0, 1], [20, 1, 2, 3], b"short");
    let padded = [&packet[..], &[0; 30]].concat();
    world.arrive(0, [padded]);
    assert_eq!(world.ports[1].sent[0].0.len(), packet.len());
}

#[test]
fn flows_are_spread_over_next_hops_and_stay_on_theirs() {
    let mut world = world();
    world.routes.0.insert(60, vec![to(A, None), to(B, None)]);
    let flow = |port: u16, extra: &[u8]| {
        let payload = [&port.to_be_bytes()[..], &[0, 53, 0, 8, 0, 0], extra].concat();
        v4(9, [10, 0, 0, 1], [60, 0, 0, 1], &payload)
    };
    let mut counts = [0; 2];
    for port in 0..1000 {
        world.arrive(0, [flow(port, b"one"), flow(port, b"another")]);
        let sent = world.ports.each_mut().map(|port| std::mem::take(&mut port.sent).len());
        assert!(sent == [2, 0] || sent == [0, 2], "packets of a flow stay in order");
        counts[usize::from(sent[1] > 0)] += 1;
    }
    assert!(counts.iter().all(|&count| (440..560).contains(&count)), "{counts:?}");
}

#[test]
fn fragments_of_a_packet_have_one_hash() {
    let first = {
        let mut packet = v4(9, [10, 0, 0, 1], [60, 0, 0, 1], &[1, 2, 3, 4, 5, 6, 7, 8]);
        packet[6] = 0x20;
        packet[10..12].fill(0);
        let sum = pollux_wire::ip::checksum::Sum::of(&packet[..20]).checksum();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    };
    let mut second = first.clone();
    second[7] = 1;
    second[10..12].fill(0);
    let sum = pollux_wire::ip::checksum::Sum::of(&second[..20]).checksum();
    second[10..12].copy_from_slice(&sum.to_be_bytes());
    second[20..24].fill(0xee);
    let hash = |packet: &[u8]| {
        let headers = PacketHeaders::parse_ip(packet).unwrap();
        assert_eq!(headers.form, Form::Fragment);
        hash_of_flow(&headers, packet, 7)
    };
    assert_eq!(hash(&first), hash(&second));
}

/// Two domains: port A is in the first, and port B in the second.
struct TwoDomains([TestRoutes; 2], ReversePath);

impl ForwardTables for TwoDomains {
    type Routes = TestRoutes;

    fn ingress(&self, port: PortId) -> Option<Ingress<'_, TestRoutes>> {
        let domain = [A, B].iter().position(|known| *known == port)?;
        Some(Ingress { routes: &self.0[domain], reverse_path: self.1 })
    }

    fn domain(&self, domain: DomainId) -> Option<&TestRoutes> {
        self.0.get(usize::from(domain.0))
    }
}

#[test]
fn packets_use_the_routes_of_their_domain_and_leave_it_by_a_route_alone() {
    let mut world = world();
    let into = |domain| vec![RouteTo::Domain(DomainId(domain))];
    let first = [(20, into(1)), (21, into(1)), (22, into(9))];
    let second = [(20, vec![to(B, None)]), (21, into(0)), (50, vec![to(B, None)])];
    let routes = [first, second].map(|routes| TestRoutes(BTreeMap::from(routes)));
    let tables = TwoDomains(routes, ReversePath::Any);
    let mut arrive = |at: usize, to: [u8; 4]| {
        let bytes = v4(9, [10, 0, 0, 1], to, b"");
        let mut buf = world.memory.pool().alloc().expect("a test sends few");
        buf.push_back(bytes.len()).unwrap().copy_from_slice(&bytes);
        world.ports[at].arriving.push_back(buf);
        world.forwarder.breathe(Time::START, &mut world.ports, &tables);
        let sent = world.ports.each_mut().map(|port| std::mem::take(&mut port.sent).len());
        let rejected = std::mem::take(&mut world.ports[at].rejected);
        (sent, rejected.into_iter().map(|(_, why)| why).collect::<Vec<_>>())
    };
    assert_eq!(arrive(0, [20, 0, 0, 1]), ([0, 1], vec![]), "by the route into the other domain");
    assert_eq!(arrive(1, [50, 0, 0, 1]), ([0, 1], vec![]));
    let no_route = ([0, 0], vec![TransitError::NoRoute]);
    assert_eq!(arrive(0, [50, 0, 0, 1]), no_route, "a route of the other domain");
    assert_eq!(arrive(0, [21, 0, 0, 1]), no_route, "a loop of two domains");
    assert_eq!(arrive(0, [22, 0, 0, 1]), no_route, "a domain that does not exist");
}

#[test]
fn a_source_needs_a_route_back_where_that_is_configured() {
    let routes = |routes: &[(u16, Vec<RouteTo>)]| TestRoutes(routes.iter().cloned().collect());
    let first = routes(&[
        (10, vec![to(A, None), to(B, None)]),
        (11, vec![to(B, None)]),
        (12, vec![RouteTo::Blackhole]),
        (13, vec![RouteTo::Domain(DomainId(1))]),
        (14, vec![RouteTo::Domain(DomainId(1))]),
        (20, vec![to(B, None)]),
    ]);
    let second = routes(&[(13, vec![to(B, None)])]);
    let mut tables = TwoDomains([first, second], ReversePath::Any);
    // The sources that pass at port A.
    let mut passing = |rule| {
        tables.1 = rule;
        let mut world = world();
        let passes = |first: &u8| {
            let bytes = v4(9, [*first, 0, 0, 1], [20, 0, 0, 1], b"");
            let mut buf = world.memory.pool().alloc().expect("a test sends few");
            buf.push_back(bytes.len()).unwrap().copy_from_slice(&bytes);
            world.ports[0].arriving.push_back(buf);
            world.forwarder.breathe(Time::START, &mut world.ports, &tables);
            let dropped = std::mem::take(&mut world.ports[0].dropped);
            assert!(dropped.iter().all(|why| *why == ForwardDrop::ReversePath), "{dropped:?}");
            dropped.is_empty()
        };
        [10, 11, 12, 13, 14, 15].into_iter().filter(passes).collect::<Vec<_>>()
    };
    assert_eq!(passing(ReversePath::Any), [10, 11, 12, 13, 14, 15]);
    assert_eq!(passing(ReversePath::Loose), [10, 11, 13]);
    assert_eq!(passing(ReversePath::Strict(A)), [10]);
}

#[test]
fn a_list_decides_which_packets_leave_by_a_port() {
    let mut world = world();
    let rule = |action, last| AclRule {
        action,
        source: Some(([10, 0, 0, last].into(), 32)),
        destination: None,
        protocol: None,
        source_ports: None,
        destination_ports: None,
        icmp_type: None,
    };
    let rules = [rule(AclAction::Deny, 1), rule(AclAction::Reject, 2)];
    let acl = std::sync::Arc::new(Acl::new(&rules, 1));
    let filter = AclFilter::new(std::sync::Arc::clone(&acl), 0);
    world.forwarder.set_filters([(B, filter)].into_iter());
    let packets = [1, 2, 3].map(|last| v4(9, [10, 0, 0, last], [20, 1, 2, 3], b""));
    world.arrive(0, packets.clone());
    assert_eq!(world.ports[0].dropped, [ForwardDrop::AclOut]);
    let rejected = std::mem::take(&mut world.ports[0].rejected);
    assert_eq!(rejected, [(packets[1].clone(), TransitError::Filtered)], "unchanged");
    assert_eq!(world.ports[1].sent.len(), 1);
    assert_eq!(acl.packets(), [1, 1]);
    world.arrive(0, [v4(9, [10, 0, 0, 1], [10, 1, 2, 3], b"")]);
    assert_eq!(world.ports[0].sent.len(), 1, "the other port has no list");
    world.forwarder.set_filters([].into_iter());
    world.arrive(0, packets);
    assert_eq!(world.ports[1].sent.len(), 4);
}
