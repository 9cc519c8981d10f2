//! The versions of the FIB that workers and control of a node read, and the changes from one to the
//! next.
//!
//! Routes by the same gateways share a group of next hops. If a gateway goes down, the group
//! changes, and only flows by that gateway move. If a route gets other gateways, flows by the
//! gateways that it keeps do not move.

use super::next_hops::{GroupId, HopGroup, HopGroups};
use crate::config::Prefix;
use pollux_control::beyond::{NodeRoute, NodeRoutes};
use pollux_control::icmp::{ErrorBudget, IcmpError};
use pollux_dataplane::acl::{Acl, AclFilter};
use pollux_dataplane::fib::{Fib, FibBuilder, FibGroup, FibHop, FibTarget};
use pollux_dataplane::flow::hash_of_flow;
use pollux_dataplane::forward::{
    DomainId, ForwardTables, Ingress, MulticastTable, ReversePath, RouteTo,
};
use pollux_dataplane::headers::PacketHeaders;
use pollux_dataplane::port::PortId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Maximum number of routes in the FIB of a domain: twice the routes of the Internet.
const ROUTES_MAX: usize = 2_500_000;

/// The target of packets to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The group has at least one next hop, and a flow takes one of them; or the group is another
    /// domain, in which the destination is looked up.
    Hops(GroupId),
    Rejected(FibTarget),
}

/// A version of the routes, as workers read it. A clone copies references only.
#[derive(Clone, Debug, Default)]
pub(in crate::node) struct RoutingTable {
    /// Increases with every change.
    pub(in crate::node) version: u64,
    /// By [`DomainId`].
    domains: Arc<[Fib]>,
    /// Multicast routes by [`DomainId`].
    multicast: Arc<[MulticastTable]>,
    /// By [`PortId`].
    ports: Arc<[Option<PortRules>]>,
    pub(in crate::node) forwards: bool,
}

/// The rules for packets that arrive at a port, and that leave by it.
#[derive(Clone, Debug)]
pub(in crate::node) struct PortRules {
    pub(in crate::node) domain: DomainId,
    pub(in crate::node) reverse_path: ReversePath,
    pub(in crate::node) acl_in: Option<Arc<Acl>>,
    pub(in crate::node) acl_out: Option<Arc<Acl>>,
}

/// The routes of a domain, for the control planes of its interfaces.
pub(in crate::node) struct DomainRoutes {
    pub(super) table: Arc<RoutingTable>,
    pub(super) domain: DomainId,
    /// The seed of flow hashes, which workers have, too.
    pub(super) seed: u64,
    pub(super) errors: ErrorBudget,
}

/// The routes from which the next version is made.
pub(super) struct InstalledRoutes {
    fib: FibBuilder,
    routes: BTreeMap<Prefix, (Target, FibTarget)>,
    groups: BTreeMap<GroupId, FibGroup>,
    /// Groups that lost a route since the last version.
    left: BTreeSet<GroupId>,
    /// Routes for which there was no space.
    refused: BTreeMap<Prefix, Target>,
}

impl InstalledRoutes {
    pub(super) fn new() -> Self {
        Self {
            fib: FibBuilder::new(ROUTES_MAX),
            routes: BTreeMap::new(),
            groups: BTreeMap::new(),
            left: BTreeSet::new(),
            refused: BTreeMap::new(),
        }
    }

    pub(super) fn set(&mut self, to: Prefix, target: Option<Target>, all: &HopGroups) {
        self.refused.remove(&to);
        let before = self.routes.get(&to).copied();
        if before.map(|(target, _)| target) == target {
            return;
        }
        let Some(target) = target else {
            self.fib.remove(to.ip, to.len);
            self.routes.remove(&to);
            return self.note_left(before);
        };
        let leaf = match target {
            Target::Rejected(leaf) => leaf,
            Target::Hops(group) => {
                let Self { fib, groups, .. } = self;
                let hops = all.hops(group);
                let next = all.get(group).and_then(HopGroup::next_domain);
                let group = groups.entry(group).or_insert_with(|| match (next, before) {
                    (Some(next), _) => fib.add_domain(next),
                    (None, Some((_, FibTarget::Group(before)))) => fib.replace_group(before, hops),
                    (None, _) => fib.add_group(hops),
                });
                FibTarget::Group(*group)
            }
        };
        match self.fib.insert(to.ip, to.len, leaf) {
            Ok(()) => {
                self.routes.insert(to, (target, leaf));
                self.note_left(before);
            }
            Err(_) => {
                self.refused.insert(to, target);
                self.note_left(Some((target, leaf)));
            }
        }
    }

    /// The number of routes, and of groups of next hops, in the FIB.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.fib.routes(), self.groups.len())
    }

    fn note_left(&mut self, route: Option<(Target, FibTarget)>) {
        if let Some((Target::Hops(group), _)) = route {
            self.left.insert(group);
        }
    }

    pub(super) fn set_hops(&mut self, group: GroupId, hops: &[FibHop]) {
        if let Some(group) = self.groups.get(&group) {
            self.fib.set_group(*group, hops);
        }
    }

    pub(super) fn publish(&mut self, all: &HopGroups) -> Fib {
        if self.fib.routes() < ROUTES_MAX {
            for (to, target) in std::mem::take(&mut self.refused) {
                self.set(to, Some(target), all);
            }
        }
        for group in std::mem::take(&mut self.left) {
            if let Some(in_fib) = self.groups.get(&group)
                && self.fib.remove_group(*in_fib)
            {
                self.groups.remove(&group);
            }
        }
        self.fib.publish()
    }
}

impl RoutingTable {
    pub(in crate::node) fn new(
        version: u64,
        domains: Arc<[Fib]>,
        multicast: Arc<[MulticastTable]>,
        rules: impl Iterator<Item = (PortId, PortRules)>,
        forwards: bool,
    ) -> Self {
        let mut ports = Vec::new();
        for (PortId(at), rules) in rules {
            let at = usize::from(at);
            ports.resize(ports.len().max(at + 1), None);
            ports[at] = Some(rules);
        }
        Self { version, domains, multicast, ports: ports.into(), forwards }
    }

    /// The access control list of packets that arrive at a port of this worker.
    pub(in crate::node) fn filter_in(&self, port: PortId, worker: usize) -> Option<AclFilter> {
        let rules = self.ports.get(usize::from(port.0))?.as_ref()?;
        rules.acl_in.as_ref().map(|acl| AclFilter::new(Arc::clone(acl), worker))
    }

    /// The access control lists of packets that leave by ports of this worker.
    pub(in crate::node) fn filters_out(
        &self,
        worker: usize,
    ) -> impl Iterator<Item = (PortId, AclFilter)> {
        let ports = (0..).map(PortId).zip(&*self.ports);
        ports.filter_map(move |(port, rules)| {
            let acl = rules.as_ref()?.acl_out.as_ref()?;
            Some((port, AclFilter::new(Arc::clone(acl), worker)))
        })
    }
}

impl ForwardTables for RoutingTable {
    type Routes = Fib;

    #[inline]
    fn ingress(&self, port: PortId) -> Option<Ingress<'_, Fib>> {
        let rules = self.ports.get(usize::from(port.0))?.as_ref()?;
        let (routes, reverse_path) = (self.domain(rules.domain)?, rules.reverse_path);
        Some(Ingress { routes, reverse_path })
    }

    #[inline]
    fn domain(&self, domain: DomainId) -> Option<&Fib> {
        self.domains.get(usize::from(domain.0))
    }

    fn multicast(&self, port: PortId) -> Option<&MulticastTable> {
        let rules = self.ports.get(usize::from(port.0))?.as_ref()?;
        self.multicast.get(usize::from(rules.domain.0))
    }
}

impl NodeRoutes for DomainRoutes {
    fn error_budget(&self) -> ErrorBudget {
        self.errors.clone()
    }

    fn flow_of(&self, packet: &[u8]) -> u32 {
        let headers = PacketHeaders::parse_ip(packet);
        headers.map_or(0, |headers| hash_of_flow(&headers, packet, self.seed))
    }

    fn route_to(&self, destination: IpAddr, flow: u32) -> NodeRoute {
        let Some(routes) = self.table.domain(self.domain) else { return NodeRoute::NoRoute };
        match self.table.resolve(routes, destination, || flow) {
            RouteTo::Port { port, gateway } => {
                NodeRoute::Link { interface: port.0, gateway: *gateway }
            }
            RouteTo::Nowhere | RouteTo::Domain(_) => NodeRoute::NoRoute,
            RouteTo::Blackhole => NodeRoute::Blackhole,
            RouteTo::Unreachable => NodeRoute::Rejected(IcmpError::RejectRoute),
            RouteTo::Prohibited => NodeRoute::Rejected(IcmpError::Prohibited),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::next_hops::{SharedHops, UsableHops};
    use super::*;
    use pollux_control::icmp::IcmpConfig;
    use pollux_dataplane::forward::RouteLookup;
    use pollux_verbs::rng::SeededRng;
    use pollux_wire::ip::IpProtocol;
    use pollux_wire::ip::ipv4::Ipv4Header;
    use std::net::Ipv4Addr;

    fn hop(port: u16, gateway: IpAddr) -> FibHop {
        FibHop { port: PortId(port), gateway: Some(gateway), weight: 1 }
    }

    fn gateway(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    /// Routes with groups that have the next hops of a test.
    struct Tried {
        groups: HopGroups,
        installed: InstalledRoutes,
        routes: BTreeMap<Prefix, Target>,
    }

    impl Tried {
        fn new() -> Self {
            let (groups, installed) = (HopGroups::default(), InstalledRoutes::new());
            Self { groups, installed, routes: BTreeMap::new() }
        }

        /// Sets a route by gateways. Each gateway is at the port with the number of its last byte.
        /// A route without gateways is a blackhole.
        fn set(&mut self, to: Prefix, gateways: Option<&[u8]>) {
            let before = self.routes.remove(&to);
            if let Some(last) = gateways {
                let target = match last {
                    [] => Target::Rejected(FibTarget::Blackhole),
                    _ => {
                        let all = last.iter().map(|last| gateway(*last)).collect();
                        let hops = last.iter().map(|last| hop(u16::from(*last), gateway(*last)));
                        let hops = |_: &SharedHops| UsableHops::new(hops.collect(), |_| false);
                        Target::Hops(self.groups.join(SharedHops::Gateways(DomainId(0), all), hops))
                    }
                };
                self.routes.insert(to, target);
            }
            let target = self.routes.get(&to).copied();
            self.installed.set(to, target, &self.groups);
            if let Some(Target::Hops(group)) = before {
                self.groups.leave(group);
            }
        }

        /// Gives the group of a route other next hops.
        fn set_hops(&mut self, to: Prefix, last: &[u8]) {
            let Some(Target::Hops(group)) = self.routes.get(&to) else { return };
            let hops: Vec<_> =
                last.iter().map(|last| hop(u16::from(*last), gateway(*last))).collect();
            self.installed.set_hops(*group, &hops);
        }

        fn publish(&mut self) -> Fib {
            self.installed.publish(&self.groups)
        }
    }

    /// The ports of 256 flows; `None` for a flow without a port.
    fn ports(fib: &Fib, to: IpAddr) -> Vec<Option<u16>> {
        let port = |flow| match fib.look_up(to, || flow) {
            RouteTo::Port { port, .. } => Some(port.0),
            _ => None,
        };
        (0..256).map(port).collect()
    }

    /// A version made by changes has the same routes as a version made from nothing.
    #[test]
    fn routes_are_installed_changed_and_removed() {
        let mut rng = SeededRng::new(5);
        let mut changed = Tried::new();
        let mut all = BTreeMap::new();
        for _ in 0..300 {
            for _ in 0..rng.below(6) {
                let ip: IpAddr = Ipv4Addr::from_bits(10 << 24 | (rng.below(8) as u32) << 16).into();
                let to = Prefix { ip, len: [8, 14, 16, 24][rng.below(4) as usize] }.network();
                let gateways: Vec<u8> =
                    (1..4).filter(|last| rng.below(4) >> last & 1 > 0).collect();
                let gateways = (rng.below(3) > 0).then_some(gateways);
                changed.set(to, gateways.as_deref());
                match gateways {
                    Some(gateways) => _ = all.insert(to, gateways),
                    None => _ = all.remove(&to),
                }
            }
            let fib = changed.publish();
            let mut other = Tried::new();
            all.iter().for_each(|(to, gateways)| other.set(*to, Some(gateways)));
            let other = other.publish();
            for bits in 0..32_u32 {
                let to = Ipv4Addr::from_bits(10 << 24 | bits << 15).into();
                let kinds = |fib: &Fib| ports(fib, to).into_iter().collect::<BTreeSet<_>>();
                assert_eq!(kinds(&fib), kinds(&other), "{to} in {all:?}");
            }
            let used: BTreeSet<_> =
                changed.installed.routes.values().map(|(_, leaf)| leaf).collect();
            let known = changed.installed.groups.values().map(|group| FibTarget::Group(*group));
            assert!(known.clone().all(|group| used.contains(&group)), "unused ones are gone");
        }
    }

    #[test]
    fn packets_of_control_take_the_next_hop_that_workers_give_their_flow() {
        const SEED: u64 = 7;
        let to = Prefix::parse("192.0.2.0/24").unwrap();
        let mut tried = Tried::new();
        tried.set(to, Some(&[1, 2, 3]));
        let fib = tried.publish();
        let table = RoutingTable::new(1, [fib.clone()].into(), [].into(), std::iter::empty(), true);
        let errors = ErrorBudget::new(&IcmpConfig::default());
        let routes =
            DomainRoutes { table: Arc::new(table), domain: DomainId(0), seed: SEED, errors };
        let mut used = BTreeSet::new();
        for port in 0..100_u16 {
            let header = Ipv4Header {
                ttl: 9,
                source: [10, 0, 0, 1].into(),
                destination: [192, 0, 2, 1].into(),
                protocol: IpProtocol::UDP,
                ..Ipv4Header::default()
            };
            let mut packet = [0; 28];
            let payload = header.write_packet(&[], 8, &mut packet).unwrap();
            payload[..2].copy_from_slice(&port.to_be_bytes());
            let headers = PacketHeaders::parse_ip(&packet).unwrap();
            let found = routes.route_to(header.destination.into(), routes.flow_of(&packet));
            let by_worker =
                fib.look_up(header.destination.into(), || hash_of_flow(&headers, &packet, SEED));
            match (found, by_worker) {
                (NodeRoute::Link { interface, .. }, RouteTo::Port { port, .. }) => {
                    assert_eq!(interface, port.0);
                    used.insert(interface);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(used, BTreeSet::from([1, 2, 3]));
    }

    #[test]
    fn flows_by_gateways_that_are_up_stay_there() {
        let [one, two] = ["192.0.2.0/24", "198.51.100.0/24"].map(|to| Prefix::parse(to).unwrap());
        let mut tried = Tried::new();
        tried.set(one, Some(&[1, 2, 3]));
        tried.set(two, Some(&[1, 2, 3]));
        let fib = tried.publish();
        let before = ports(&fib, one.ip);
        for port in 1..4 {
            assert!(before.iter().filter(|at| **at == Some(port)).count() > 80);
        }
        tried.set_hops(one, &[1, 2]);
        let fib = tried.publish();
        assert_eq!(tried.installed.groups.len(), 1);
        for (before, after) in before.iter().zip(ports(&fib, two.ip)) {
            assert!(*before == after || *before == Some(3), "{before:?} to {after:?}");
        }
        // The route gets other gateways, and keeps one.
        let before = ports(&fib, one.ip);
        tried.set(one, Some(&[1, 4]));
        let fib = tried.publish();
        for (before, after) in before.iter().zip(ports(&fib, one.ip)) {
            assert!(*before == after || *before == Some(2), "{before:?} to {after:?}");
        }
        tried.set(one, None);
        tried.set(two, None);
        let fib = tried.publish();
        assert!(ports(&fib, one.ip).iter().all(Option::is_none));
        assert!(tried.installed.groups.is_empty());
    }
}
