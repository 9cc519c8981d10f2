//! The input of routing, except routes of the kernel: interfaces and the configuration. The node's
//! own routes and the usable next hops follow from it.

use super::by_admin::AdminRoutes;
use super::next_hops::{Gateway, SharedHops, UsableHops};
use super::routes::{Rank, RouteKey, RouteSource};
use crate::config::{DEFAULT_DOMAIN, NodeConfig, Prefix, RouteKind, RouteSettings, RpfMode};
use pollux_control::router::kernel_routes::{KernelHop, KernelTarget};
use pollux_dataplane::fib::FibHop;
use pollux_dataplane::forward::DomainId;
use pollux_dataplane::port::PortId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The attributes of an interface that routes depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) port: PortId,
    pub(super) domain: DomainId,
    pub(super) is_up: bool,
    pub(super) addresses: Vec<Prefix>,
    pub(super) routers: Vec<IpAddr>,
    pub(super) acl_in: Option<String>,
    pub(super) acl_out: Option<String>,
    /// The reverse path filter.
    pub(super) rpf: RpfMode,
}

/// All input of routing, except routes of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) forwards: bool,
    /// The domains by number.
    pub(super) domains: Vec<Domain>,
    pub(super) routes: Vec<RouteSettings>,
    pub(super) links: Vec<Link>,
    /// The version of the routes of administrators.
    pub(super) by_admin: u64,
    /// Gateways that do not answer.
    pub(super) away: BTreeSet<Gateway>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Domain {
    pub(super) name: String,
    kernel_table: Option<u32>,
}

/// A route of the node itself, before its next hops are looked up.
pub(super) type OwnRoute = (RouteSource, RouteKind, SharedHops);

impl Link {
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.ip == address)
    }
}

impl Domain {
    /// All domains of a configuration, the default one first.
    pub(super) fn all(config: &NodeConfig) -> Vec<Self> {
        let kernel_table = config.router.and_then(|router| router.kernel_table);
        let default = Self { name: DEFAULT_DOMAIN.into(), kernel_table };
        let others = config.domains.iter();
        let others = others
            .map(|(name, domain)| Self { name: name.clone(), kernel_table: domain.kernel_table });
        std::iter::once(default).chain(others).collect()
    }

    pub(super) fn find(all: &[Self], name: &str) -> Option<DomainId> {
        let at = all.iter().position(|domain| domain.name == name)?;
        Some(DomainId(at as u16))
    }
}

impl Input {
    /// The routes of the node itself: connected routes, and those of administrators and the
    /// configuration.
    pub(super) fn own_routes(&self, by_admin: &AdminRoutes) -> BTreeMap<RouteKey, OwnRoute> {
        let mut all = BTreeMap::new();
        // Of two routes with the same key, the first is used.
        let mut add = |domain, to, rank, route| {
            all.entry(RouteKey { domain, to, rank }).or_insert(route);
        };
        let up = || (0..).zip(&self.links).filter(|(_, link)| link.is_up);
        for (nth, link) in up() {
            let rank = Rank::Connected(nth);
            let route = |kind| (RouteSource::Connected, kind, SharedHops::Link(link.port));
            for subnet in &link.addresses {
                add(link.domain, subnet.network(), rank, route(RouteKind::Unicast));
                // A broadcast from another network is not forwarded (RFC 2644).
                if let Some(broadcast) = broadcast(subnet) {
                    add(link.domain, broadcast, rank, route(RouteKind::Blackhole));
                }
            }
        }
        let by_admin = by_admin.routes().map(|route| (Rank::Admin, RouteSource::Admin, route));
        let configured = self.routes.iter().map(|one| (Rank::Static, RouteSource::Static, one));
        for (rank, source, route) in by_admin.chain(configured) {
            if let Some(domain) = Domain::find(&self.domains, &route.domain) {
                add(domain, route.to, rank, (source, route.kind, self.given_hops(domain, route)));
            }
        }
        for (nth, link) in up() {
            for router in &link.routers {
                let any = Prefix { ip: unspecified(*router), len: 0 };
                // The group is not shared with routes by the same gateway, whose link may be
                // another one.
                let shared = SharedHops::Router(link.port, *router);
                let route = (RouteSource::Static, RouteKind::Unicast, shared);
                add(link.domain, any, Rank::Router(nth), route);
            }
        }
        all
    }

    fn given_hops(&self, domain: DomainId, route: &RouteSettings) -> SharedHops {
        let next = route.next_domain.as_ref();
        let next = next.map(|name| Domain::find(&self.domains, name));
        match (next, &route.via[..]) {
            // A removed domain has no next hops.
            (Some(None), _) => SharedHops::Gateways(domain, Vec::new()),
            (Some(Some(next)), []) => SharedHops::Domain(next),
            (next, via) => SharedHops::Gateways(next.flatten().unwrap_or(domain), via.to_vec()),
        }
    }

    pub(super) fn domain_of_table(&self, table: u32) -> Option<DomainId> {
        let at = self.domains.iter().rposition(|domain| domain.kernel_table == Some(table))?;
        Some(DomainId(at as u16))
    }

    pub(super) fn hops(&self, shared: &SharedHops) -> UsableHops {
        UsableHops::new(self.at_links(shared), |gateway| self.away.contains(gateway))
    }

    /// The next hops of a group at interfaces that are up.
    fn at_links(&self, shared: &SharedHops) -> Vec<FibHop> {
        let link = |port: PortId| self.links.iter().find(|link| link.port == port && link.is_up);
        match shared {
            SharedHops::Link(port) => link(*port).map(|link| hop(link, None)).into_iter().collect(),
            SharedHops::Router(port, router) => {
                link(*port).map(|link| hop(link, Some(*router))).into_iter().collect()
            }
            SharedHops::Gateways(domain, all) => {
                all.iter().filter_map(|ip| self.gateway(*domain, *ip)).collect()
            }
            SharedHops::Domain(_) => Vec::new(),
            SharedHops::Kernel(all) => all.iter().filter_map(|one| self.kernel_hop(one)).collect(),
        }
    }

    /// The next hop for a gateway, if an interface of the domain is up and has the gateway on its
    /// link.
    pub(super) fn gateway(&self, domain: DomainId, gateway: IpAddr) -> Option<FibHop> {
        let mut up = self.links.iter().filter(|link| link.is_up && link.domain == domain);
        let link = up.find(|link| link.addresses.iter().any(|one| one.contains(gateway)))?;
        Some(hop(link, Some(gateway)))
    }

    /// The next hop for one of the kernel's next hops, if its interface is up.
    pub(super) fn kernel_hop(&self, one: &KernelHop) -> Option<FibHop> {
        let link = self.links.iter().find(|link| *link.name == *one.interface);
        let hop = hop(link.filter(|link| link.is_up)?, one.gateway);
        Some(FibHop { weight: one.weight.try_into().unwrap_or(u16::MAX), ..hop })
    }

    pub(super) fn domain_name(&self, DomainId(at): DomainId) -> &str {
        self.domains.get(usize::from(at)).map_or("", |domain| &domain.name)
    }

    pub(super) fn name(&self, port: PortId) -> &str {
        let link = self.links.iter().find(|link| link.port == port);
        link.map_or("", |link| &link.name)
    }
}

/// The kind and the next hops of a route of the kernel. The next hops may be in other domains.
pub(super) fn kernel_target(target: &KernelTarget) -> (RouteKind, SharedHops) {
    let (kind, hops) = match target {
        KernelTarget::Via(hops) => (RouteKind::Unicast, hops.clone()),
        KernelTarget::Blackhole => (RouteKind::Blackhole, Vec::new()),
        KernelTarget::Unreachable => (RouteKind::Unreachable, Vec::new()),
        KernelTarget::Prohibit => (RouteKind::Prohibit, Vec::new()),
    };
    (kind, SharedHops::Kernel(hops))
}

const fn hop(link: &Link, gateway: Option<IpAddr>) -> FibHop {
    FibHop { port: link.port, gateway, weight: 1 }
}

fn broadcast(subnet: &Prefix) -> Option<Prefix> {
    match subnet.ip {
        IpAddr::V4(ip) if subnet.len < 31 => {
            let hosts = u32::MAX.checked_shr(subnet.len.into()).unwrap_or(0);
            Some(Prefix { ip: Ipv4Addr::from(ip.to_bits() | hosts).into(), len: 32 })
        }
        _ => None,
    }
}

const fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}
