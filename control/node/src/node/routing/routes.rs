//! Routes and their keys: domain, prefix, and rank among the routes to that prefix.

use super::next_hops::GroupId;
use crate::config::{Prefix, RouteKind};
use pollux_control::router::kernel_routes::KernelRouteKey;
use pollux_dataplane::forward::DomainId;
use pollux_verbs::time::Time;
use pollux_wire::netlink::route::RouteProtocol;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// Identifies a route. Keys with the same prefix are in the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::node) struct RouteKey {
    pub(super) domain: DomainId,
    pub(super) to: Prefix,
    pub(super) rank: Rank,
}

/// The preference among routes to one prefix: subnets of interfaces, routes of administrators,
/// configured routes, routes of the kernel by metric (lowest first), and default routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::node) enum Rank {
    /// The subnet of the interface with this index.
    Connected(usize),
    /// An administrator, by `pollux route`.
    Admin,
    /// The configuration of the node.
    Static,
    Kernel {
        metric: u32,
        table: u32,
    },
    /// The default router of the interface with this index.
    Router(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteSource {
    Connected,
    /// An administrator, by `pollux route`.
    Admin,
    Static,
    /// The kernel, by a daemon or an administrator.
    Kernel(RouteProtocol),
}

/// A route without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) source: RouteSource,
    pub(super) kind: RouteKind,
    pub(super) group: GroupId,
    /// When the route last changed.
    pub(super) since: Time,
}

/// Routes in the order of domains, prefixes and preference.
pub(super) type Routes = BTreeMap<RouteKey, Route>;

impl RouteKey {
    pub(super) const fn of_kernel(domain: DomainId, key: &KernelRouteKey) -> Self {
        let to = Prefix { ip: key.destination, len: key.prefix_len };
        Self { domain, to, rank: Rank::Kernel { metric: key.metric, table: key.table } }
    }

    /// The lowest and the highest key for a prefix.
    pub(super) const fn bounds((domain, to): Destination) -> (Self, Self) {
        let (first, last) = (Rank::Connected(0), Rank::Router(usize::MAX));
        (Self { domain, to, rank: first }, Self { domain, to, rank: last })
    }

    pub(super) const fn destination(&self) -> Destination {
        (self.domain, self.to)
    }
}

/// A domain and a prefix. The routes to a destination compete.
pub(super) type Destination = (DomainId, Prefix);

/// All routes to a prefix, in the order in which they are preferred.
pub(super) fn candidates(
    all: [&Routes; 2],
    to: Destination,
) -> impl Iterator<Item = (&RouteKey, &Route)> {
    let (first, last) = RouteKey::bounds(to);
    merged(all.map(|routes| routes.range(first..=last)))
}

/// Merges two sequences, each in the order of keys.
pub(super) fn merged<'a>(
    all: [impl Iterator<Item = (&'a RouteKey, &'a Route)>; 2],
) -> impl Iterator<Item = (&'a RouteKey, &'a Route)> {
    let [one, other] = all;
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some((first, _)), Some((second, _))) if first > second => other.next(),
        (Some(_), _) => one.next(),
        (None, _) => other.next(),
    })
}

/// The first of all destinations in the order of keys.
pub(super) const FIRST: Destination =
    (DomainId(0), Prefix { ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED), len: 0 });

impl fmt::Display for RouteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("connected"),
            Self::Admin => f.write_str("admin"),
            Self::Static => f.write_str("static"),
            Self::Kernel(RouteProtocol(number)) => write!(f, "kernel, {}", protocol_name(*number)),
        }
    }
}

/// The name that iproute2 has for the protocol of a kernel's route.
pub(super) fn protocol_name(number: u8) -> String {
    match PROTOCOLS.iter().find(|(protocol, _)| protocol.0 == number) {
        Some((_, name)) => (*name).into(),
        None => format!("protocol {number}"),
    }
}

/// Protocols of the kernel's routes, and their names in iproute2.
const PROTOCOLS: [(RouteProtocol, &str); 10] = [
    (RouteProtocol::BOOT, "boot"),
    (RouteProtocol::STATIC, "static"),
    (RouteProtocol::RA, "ra"),
    (RouteProtocol::ZEBRA, "zebra"),
    (RouteProtocol::BIRD, "bird"),
    (RouteProtocol::DHCP, "dhcp"),
    (RouteProtocol::BGP, "bgp"),
    (RouteProtocol::ISIS, "isis"),
    (RouteProtocol::OSPF, "ospf"),
    (RouteProtocol::RIP, "rip"),
];
