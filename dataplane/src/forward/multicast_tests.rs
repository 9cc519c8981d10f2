//! Multicast packets between ports that record their packets.

use super::tests::{TestPort, v4, v6};
use super::*;
use crate::acl::{Acl, AclAction, AclRule};
use crate::headers::PacketHeaders;
use crate::packet_memory::PacketMemory;
use std::sync::Arc;

const PORTS: [PortId; 4] = [PortId(3), PortId(0), PortId(5), PortId(1)];
/// A port that no worker has.
const AWAY: PortId = PortId(9);

/// Multicast routes only.
struct Tables(MulticastTable);

impl RouteLookup for () {
    fn look_up(&self, _: IpAddr, _: impl FnOnce() -> u32) -> &RouteTo {
        &RouteTo::Nowhere
    }

    fn next_hops(&self, _: IpAddr) -> &[RouteTo] {
        &[]
    }
}

impl ForwardTables for Tables {
    type Routes = ();

    fn ingress(&self, _: PortId) -> Option<Ingress<'_, ()>> {
        Some(Ingress { routes: &(), reverse_path: ReversePath::Any })
    }

    fn domain(&self, _: DomainId) -> Option<&()> {
        None
    }

    fn multicast(&self, _: PortId) -> Option<&MulticastTable> {
        Some(&self.0)
    }
}

struct World {
    memory: PacketMemory,
    ports: [TestPort; 4],
    tables: Tables,
    forwarder: Forwarder,
}

fn route(group: &str, source: Option<&str>, from: usize, to: &[(usize, u8)]) -> MulticastRoute {
    let hop = |&(at, ttl_threshold): &(usize, u8)| MulticastHop {
        port: PORTS.get(at).copied().unwrap_or(AWAY),
        ttl_threshold,
    };
    MulticastRoute {
        group: group.parse().unwrap(),
        source: source.map(|ip| ip.parse().unwrap()),
        from: PORTS[from],
        to: to.iter().map(hop).collect(),
    }
}

fn world(routes: impl IntoIterator<Item = MulticastRoute>) -> World {
    let mut forwarder = Forwarder::new(7);
    forwarder.set_ports(PORTS.into_iter());
    let memory = PacketMemory::new(64, 2044).unwrap();
    let port = || TestPort { copies: Some(memory.pool().clone()), ..TestPort::default() };
    let ports = [port(), port(), port(), port()];
    World { ports, memory, tables: Tables(MulticastTable::new(routes)), forwarder }
}

impl World {
    /// A packet arrives at a port. Returns what each port sent, and what was dropped where it
    /// arrived.
    fn arrive(&mut self, at: usize, packet: &[u8]) -> ([Vec<Vec<u8>>; 4], Vec<ForwardDrop>) {
        let mut buf = self.memory.pool().alloc().expect("a test sends few");
        buf.push_back(packet.len()).unwrap().copy_from_slice(packet);
        self.ports[at].arriving.push_back(buf);
        let Self { ports, tables, forwarder, .. } = self;
        assert!(forwarder.breathe(Time::START, ports, tables));
        assert_eq!(self.memory.pool().outstanding(), 0, "every buffer is free");
        let group = PacketHeaders::parse_ip(packet).unwrap().destination(packet).unwrap();
        let sent = self.ports.each_mut().map(|port| {
            let sent = std::mem::take(&mut port.sent);
            assert!(sent.iter().all(|(_, _, to)| *to == group), "the group is the next hop");
            sent.into_iter().map(|(bytes, ..)| bytes).collect()
        });
        assert!(self.ports.iter().all(|port| port.rejected.is_empty()), "no ICMP errors");
        (sent, std::mem::take(&mut self.ports[at].dropped))
    }

    /// The outgoing ports of a packet, by index.
    fn leaves(&mut self, at: usize, packet: &[u8]) -> (Vec<usize>, Vec<ForwardDrop>) {
        let (sent, dropped) = self.arrive(at, packet);
        let ports = (0..).zip(&sent).flat_map(|(at, sent)| sent.iter().map(move |_| at));
        (ports.collect(), dropped)
    }
}

const SOURCE: [u8; 4] = [10, 0, 1, 9];
const GROUP: [u8; 4] = [239, 1, 2, 3];

fn packet(ttl: u8) -> Vec<u8> {
    v4(ttl, SOURCE, GROUP, b"to all")
}

#[test]
fn each_outgoing_port_gets_the_packet_once_with_one_less_ttl() {
    let mut world = world([
        route("239.1.2.3", None, 0, &[(1, 1), (2, 1), (3, 1)]),
        route("ff05::7", None, 0, &[(2, 1), (3, 1)]),
    ]);
    let (sent, dropped) = world.arrive(0, &[packet(9), vec![0; 30]].concat());
    let expected = vec![packet(8)];
    assert_eq!(sent, [vec![], expected.clone(), expected.clone(), expected], "without padding");
    assert_eq!(dropped, []);
    let six = |hop_limit| v6(hop_limit, "fd00::9", "ff05::7", b"to all");
    let (sent, _) = world.arrive(0, &six(2));
    assert_eq!(sent, [vec![], vec![], vec![six(1)], vec![six(1)]]);
}

#[test]
fn a_packet_leaves_neither_by_the_port_where_it_arrived_nor_below_a_threshold() {
    let mut world = world([route("239.1.2.3", None, 0, &[(0, 1), (1, 16), (2, 32)])]);
    assert_eq!(world.leaves(0, &packet(33)), (vec![1, 2], vec![]));
    assert_eq!(world.leaves(0, &packet(32)), (vec![1], vec![]));
    assert_eq!(world.leaves(0, &packet(16)), (vec![], vec![ForwardDrop::TimeExceeded]));
    for ttl in [0, 1] {
        let dropped = vec![ForwardDrop::TimeExceeded];
        assert_eq!(world.leaves(0, &packet(ttl)), (vec![], dropped), "and no ICMP error");
    }
    let mut world = self::world([route("239.1.2.3", None, 0, &[(0, 1)])]);
    assert_eq!(world.leaves(0, &packet(9)), (vec![], vec![ForwardDrop::Multicast]));
}

#[test]
fn a_packet_that_fails_the_reverse_path_check_is_dropped() {
    let mut world = world([
        route("239.1.2.3", Some("10.0.1.9"), 0, &[(2, 1)]),
        route("239.1.2.3", None, 1, &[(3, 1)]),
        route("239.1.2.3", None, 2, &[(3, 1), (1, 1)]),
    ]);
    let other = v4(9, [10, 0, 1, 8], GROUP, b"");
    assert_eq!(world.leaves(0, &packet(9)), (vec![2], vec![]));
    let failed = (vec![], vec![ForwardDrop::MulticastRpf]);
    assert_eq!(world.leaves(1, &packet(9)), failed, "the route of the source counts");
    assert_eq!(world.leaves(1, &other), (vec![3], vec![]), "the route without a source");
    assert_eq!(world.leaves(2, &other), (vec![1, 3], vec![]), "a second port of arrival");
    assert_eq!(world.leaves(0, &other), failed);
    let unknown = (vec![], vec![ForwardDrop::Multicast]);
    assert_eq!(world.leaves(0, &v4(9, SOURCE, [239, 1, 2, 4], b"")), unknown);
}

#[test]
fn no_packet_to_a_group_of_the_link_is_forwarded() {
    let groups = ["224.0.0.5", "ff01::1", "ff02::1:2", "224.0.1.1", "ff05::1"];
    let routes = groups.map(|group| route(group, None, 0, &[(1, 1)]));
    let mut world = world(routes);
    let dropped = (vec![], vec![ForwardDrop::Multicast]);
    assert_eq!(world.leaves(0, &v4(9, SOURCE, [224, 0, 0, 5], b"")), dropped);
    assert_eq!(world.leaves(0, &v6(9, "fd00::9", "ff01::1", b"")), dropped);
    assert_eq!(world.leaves(0, &v6(9, "fd00::9", "ff02::1:2", b"")), dropped);
    assert_eq!(world.leaves(0, &v4(9, SOURCE, [224, 0, 1, 1], b"")), (vec![1], vec![]));
    assert_eq!(world.leaves(0, &v6(9, "fd00::9", "ff05::1", b"")), (vec![1], vec![]));
    // A multicast source.
    let martian = (vec![], vec![ForwardDrop::MartianSource]);
    assert_eq!(world.leaves(0, &v4(9, [239, 0, 0, 1], [224, 0, 1, 1], b"")), martian);
}

#[test]
fn a_port_that_refuses_its_copy_affects_no_other() {
    let mut world = world([route("239.1.2.3", None, 0, &[(1, 1), (9, 1), (2, 1), (3, 1)])]);
    let rule = AclRule {
        action: AclAction::Reject,
        source: None,
        destination: Some((GROUP.into(), 32)),
        protocol: None,
        source_ports: None,
        destination_ports: None,
        icmp_type: None,
    };
    let acl = Arc::new(Acl::new(&[rule], 1));
    let filter = AclFilter::new(Arc::clone(&acl), 0);
    world.forwarder.set_filters([(PORTS[3], filter)].into_iter());
    let dropped = vec![ForwardDrop::PortAway, ForwardDrop::AclOut];
    assert_eq!(world.leaves(0, &packet(9)), (vec![1, 2], dropped));
    assert_eq!(acl.packets(), [1]);
    // Without a buffer for copies, only the last port gets the packet.
    world.forwarder.set_filters([].into_iter());
    world.ports[0].copies = None;
    assert_eq!(world.leaves(0, &packet(9)), (vec![3], vec![]));
}
