//! The mirrored tables of the kernel: links, nexthop objects, routes.

use pollux_wire::netlink::nexthop::{GroupMember, Nexthop};
use pollux_wire::netlink::request::DumpKind;
use pollux_wire::netlink::route::{RouteFlags, RouteMessage, RoutePath, RouteProtocol, RouteType};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::KernelRouteKey;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) route_type: RouteType,
    pub(super) protocol: RouteProtocol,
    pub(super) scope: u8,
    pub(super) preferred_source: Option<IpAddr>,
    /// The nexthop object that the route uses; 0 if it has paths of its own.
    pub(super) nexthop_id: u32,
    pub(super) paths: Vec<RoutePath>,
}

impl Entry {
    /// The paths of a route with a nexthop object are not kept, because they are those of the
    /// object at the time of installation.
    pub(super) fn new(route: &RouteMessage<'_>) -> Self {
        let paths = if route.nexthop_id == 0 { route.paths.iter().collect() } else { Vec::new() };
        Self {
            route_type: route.route_type,
            protocol: route.protocol,
            scope: route.scope,
            preferred_source: route.preferred_source,
            nexthop_id: route.nexthop_id,
            paths,
        }
    }

    /// Whether both are the same route, apart from the state of its links.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let name = |e: &Self| (e.route_type, e.protocol, e.scope, e.preferred_source, e.nexthop_id);
        name(self) == name(other)
            && self.paths.len() == other.paths.len()
            && self.paths.iter().zip(&other.paths).all(|(a, b)| is_same_path(a, b))
    }

    /// Whether the kernel merges the route with others into one multipath route of IPv6: it has
    /// gateways of its own and does not come from a router advertisement.
    pub(super) fn is_mergeable(&self) -> bool {
        self.nexthop_id == 0
            && self.protocol != RouteProtocol::RA
            && self.route_type == RouteType::UNICAST
            && !self.paths.is_empty()
            && self.paths.iter().all(|hop| hop.gateway.is_some())
    }
}

/// Whether both are the same path with the same weight, apart from the state of its link.
pub(super) fn is_same_path(a: &RoutePath, b: &RoutePath) -> bool {
    let name = |hop: &RoutePath| (hop.interface, hop.gateway, hop.weight, hop.encapsulated);
    let on_link = |hop: &RoutePath| hop.flags.common(RouteFlags::ON_LINK);
    name(a) == name(b) && on_link(a) == on_link(b)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KernelLink {
    pub(super) name: String,
    pub(super) is_up: bool,
    pub(super) has_carrier: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NexthopObject {
    Path(RoutePath),
    Group(Vec<GroupMember>),
    Blackhole,
    BridgeEntry,
}

impl NexthopObject {
    pub(super) fn new(nexthop: &Nexthop<'_>) -> Self {
        match nexthop {
            Nexthop::Path(hop) => Self::Path(*hop),
            Nexthop::Group(group) => Self::Group(group.iter().collect()),
            Nexthop::Blackhole => Self::Blackhole,
            Nexthop::BridgeEntry => Self::BridgeEntry,
        }
    }
}

/// Changes since the last publication.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) keys: BTreeSet<KernelRouteKey>,
    pub(super) nexthops: BTreeSet<u32>,
    /// Names of links that were set up.
    pub(super) links_up: BTreeSet<String>,
    pub(super) all: bool,
}

/// Routes of one family, and an index from nexthop objects to the routes that use them.
#[derive(Debug, Default)]
pub(super) struct RouteLists {
    lists: BTreeMap<KernelRouteKey, Vec<Entry>>,
    users: BTreeMap<u32, BTreeSet<KernelRouteKey>>,
}

impl RouteLists {
    pub(super) fn get(&self, key: &KernelRouteKey) -> &[Entry] {
        self.lists.get(key).map_or(&[], Vec::as_slice)
    }

    pub(super) fn update<T>(
        &mut self,
        key: KernelRouteKey,
        change: impl FnOnce(&mut Vec<Entry>) -> T,
    ) -> T {
        let mut list = self.lists.remove(&key).unwrap_or_default();
        for entry in list.iter().filter(|entry| entry.nexthop_id != 0) {
            if let Some(keys) = self.users.get_mut(&entry.nexthop_id) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.users.remove(&entry.nexthop_id);
                }
            }
        }
        let result = change(&mut list);
        for entry in list.iter().filter(|entry| entry.nexthop_id != 0) {
            self.users.entry(entry.nexthop_id).or_default().insert(key);
        }
        if !list.is_empty() {
            self.lists.insert(key, list);
        }
        result
    }

    fn users(&self, nexthop: u32) -> impl Iterator<Item = KernelRouteKey> {
        self.users.get(&nexthop).into_iter().flatten().copied()
    }

    fn differences(&self, other: &Self) -> Vec<KernelRouteKey> {
        let keys = self.lists.keys().chain(other.lists.keys());
        keys.filter(|key| self.get(key) != other.get(key)).copied().collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) links: BTreeMap<u32, KernelLink>,
    /// Addresses, each with the index of its link. Only their removal matters here.
    pub(super) addresses: BTreeSet<(u32, IpAddr)>,
    pub(super) nexthops: BTreeMap<u32, NexthopObject>,
    pub(super) v4: RouteLists,
    pub(super) v6: RouteLists,
}

impl Tables {
    pub(super) const fn lists_mut(&mut self, destination: IpAddr) -> &mut RouteLists {
        if destination.is_ipv4() { &mut self.v4 } else { &mut self.v6 }
    }

    pub(super) fn list(&self, key: &KernelRouteKey) -> &[Entry] {
        if key.destination.is_ipv4() { self.v4.get(key) } else { self.v6.get(key) }
    }

    pub(super) fn route_keys(&self) -> impl Iterator<Item = &KernelRouteKey> {
        self.v4.lists.keys().chain(self.v6.lists.keys())
    }

    /// Routes that use one of `nexthops`, or a group with one of them.
    pub(super) fn users(&self, nexthops: &BTreeSet<u32>) -> BTreeSet<KernelRouteKey> {
        if nexthops.is_empty() {
            return BTreeSet::new();
        }
        let has_one = |members: &[GroupMember]| members.iter().any(|m| nexthops.contains(&m.id));
        let groups = self.nexthops.iter().filter_map(|(&id, object)| match object {
            NexthopObject::Group(members) if has_one(members) => Some(id),
            _ => None,
        });
        let all: BTreeSet<u32> = nexthops.iter().copied().chain(groups).collect();
        all.into_iter().flat_map(|id| self.v4.users(id).chain(self.v6.users(id))).collect()
    }

    pub(super) fn clear(&mut self, kind: DumpKind) {
        match kind {
            DumpKind::Links => self.links.clear(),
            DumpKind::Addresses => self.addresses.clear(),
            DumpKind::Nexthops => self.nexthops.clear(),
            DumpKind::RoutesV4 => self.v4 = RouteLists::default(),
            DumpKind::RoutesV6 => self.v6 = RouteLists::default(),
        }
    }

    /// Replaces the tables by those of a dump, and adds the differences to `changed`.
    pub(super) fn replace(&mut self, fresh: Self, changed: &mut Changed) {
        changed.all |= self.links != fresh.links;
        let ids = self.nexthops.keys().chain(fresh.nexthops.keys());
        changed.nexthops.extend(ids.filter(|id| self.nexthops.get(id) != fresh.nexthops.get(id)));
        changed.keys.extend(self.v4.differences(&fresh.v4));
        changed.keys.extend(self.v6.differences(&fresh.v6));
        *self = fresh;
    }
}
