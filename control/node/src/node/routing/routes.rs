//! Routes by what names them: the prefix, and the rank among several routes to one prefix.

use super::next_hops::GroupId;
use crate::config::{Prefix, RouteKind};
use pollux_control::router::kernel_routes::KernelRouteKey;
use pollux_dataplane::forward::DomainId;
use pollux_verbs::time::Time;
use pollux_wire::netlink::route::RouteProtocol;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// Names a route. Keys of one prefix are in the order in which routes are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::node) struct RouteKey {
    pub(super) domain: DomainId,
    pub(super) to: Prefix,
    pub(super) rank: Rank,
}

/// The preference among routes to one prefix: the subnet of an interface comes before one of
/// administrators, then a configured one, and those of the kernel, of which the lowest metric comes
/// first.
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

/// A route, but for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) source: RouteSource,
    pub(super) kind: RouteKind,
    pub(super) group: GroupId,
    /// When it became what it is.
    pub(super) since: Time,
}

/// In the order of prefixes, and of preference to each.
pub(super) type Routes = BTreeMap<RouteKey, Route>;

impl RouteKey {
    pub(super) const fn of_kernel(domain: DomainId, key: &KernelRouteKey) -> Self {
        let to = Prefix { ip: key.destination, len: key.prefix_len };
        Self { domain, to, rank: Rank::Kernel { metric: key.metric, table: key.table } }
    }

    /// Before all keys to a prefix, and after them.
    pub(super) const fn bounds((domain, to): Destination) -> (Self, Self) {
        let (first, last) = (Rank::Connected(0), Rank::Router(usize::MAX));
        (Self { domain, to, rank: first }, Self { domain, to, rank: last })
    }

    pub(super) const fn destination(&self) -> Destination {
        (self.domain, self.to)
    }
}

/// The object that routes compete for.
pub(super) type Destination = (DomainId, Prefix);

/// All routes to a prefix, in the order in which they are preferred.
pub(super) fn candidates(
    all: [&Routes; 2],
    to: Destination,
) -> impl Iterator<Item = (&RouteKey, &Route)> {
    let (first, last) = RouteKey::bounds(to);
    merged(all.map(|routes| routes.range(first..=last)))
}

/// Both in the order of keys.
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

/// The prefix that comes first of all.
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

/// The name of iproute2 for an origin of routes of the kernel.
pub(super) fn protocol_name(number: u8) -> String {
    match PROTOCOLS.iter().find(|(protocol, _)| protocol.0 == number) {
        Some((_, name)) => (*name).into(),
        None => format!("protocol {number}"),
    }
}

/// Origins of routes of the kernel, and their names in iproute2.
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
