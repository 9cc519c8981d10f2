//! Applies messages of the kernel to the tables.
//!
//! IPv4 and IPv6 differ. IPv4 routes with the same prefix and metric are a list of separate routes,
//! and the first is used; REPLACE replaces the first, and DELROUTE names one. The kernel merges
//! IPv6 routes with gateways into one multipath route: NEWROUTE carries all of its paths, DELROUTE
//! only the removed ones.

use super::table::{Changed, Entry, KernelLink, NexthopObject, RouteLists, Tables};
use super::{KernelRouteKey, KernelRoutesConfig};
use pollux_wire::netlink::ip_address::AddressMessage;
use pollux_wire::netlink::link::{LinkFlags, LinkMessage};
use pollux_wire::netlink::nexthop::NexthopMessage;
use pollux_wire::netlink::route::{RouteFlags, RouteMessage, RoutePath, RouteProtocol, RouteType};
use pollux_wire::netlink::{AddressFamily, MessageFlags, Payload};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The effects of a message besides the change of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// The kernel may have changed more than it reported.
    pub(super) needs_dump: bool,
    /// A dump may contain this change already, so that applying it again may reorder a list.
    pub(super) ambiguous: bool,
    pub(super) unsupported: bool,
}

impl Effect {
    const NONE: Self = Self { needs_dump: false, ambiguous: false, unsupported: false };
    const DUMP: Self = Self { needs_dump: true, ..Self::NONE };
    const UNSUPPORTED: Self = Self { unsupported: true, ..Self::NONE };
}

enum Placement {
    Mirrored(KernelRouteKey),
    /// A route that is not mirrored.
    Ignored,
    Unsupported,
}

fn placement(route: &RouteMessage<'_>, config: &KernelRoutesConfig) -> Placement {
    let Some(&domain) = config.domains.get(&route.table) else { return Placement::Ignored };
    let is_link_scoped = match route.destination {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_multicast() || address.is_unicast_link_local(),
    };
    // Routes of the kernel itself, such as the IPv6 default route.
    let is_kernel_reject =
        route.route_type == RouteType::UNREACHABLE && route.protocol == RouteProtocol::KERNEL;
    if is_link_scoped || is_kernel_reject || route.flags.contains(RouteFlags::CLONED) {
        return Placement::Ignored;
    }
    match route.route_type {
        RouteType::UNICAST
        | RouteType::BLACKHOLE
        | RouteType::UNREACHABLE
        | RouteType::PROHIBIT => {}
        // The deletion of an IPv6 route may have no type.
        RouteType::UNSPECIFIED => {}
        RouteType::THROW => return Placement::Unsupported,
        _ => return Placement::Ignored,
    }
    if route.tos != 0 || route.source_len != 0 {
        return Placement::Unsupported;
    }
    Placement::Mirrored(KernelRouteKey {
        table: route.table,
        domain,
        destination: route.destination,
        prefix_len: route.prefix_len,
        metric: route.priority,
    })
}

impl Tables {
    /// Adds a row of a dump. Returns whether it is an unsupported route.
    pub(super) fn fill(&mut self, payload: &Payload<'_>, config: &KernelRoutesConfig) -> bool {
        match payload {
            Payload::NewLink(link) => self.set_link(link),
            Payload::NewAddress(address) => {
                self.addresses.insert((address.index, address.address));
            }
            Payload::NewNexthop(nexthop) => {
                self.nexthops.insert(nexthop.id, NexthopObject::new(&nexthop.nexthop));
            }
            Payload::NewRoute(route) => match placement(route, config) {
                Placement::Mirrored(key) => {
                    let entry = Entry::new(route);
                    self.lists_mut(key.destination).update(key, |list| list.push(entry));
                }
                Placement::Unsupported => return true,
                Placement::Ignored => {}
            },
            _ => {}
        }
        false
    }

    pub(super) fn apply(
        &mut self,
        payload: &Payload<'_>,
        flags: MessageFlags,
        config: &KernelRoutesConfig,
        changed: &mut Changed,
        links_were_down: &mut BTreeSet<u32>,
    ) -> Effect {
        match payload {
            Payload::NewLink(link) => self.apply_link(link, changed, links_were_down),
            Payload::DelLink(link) if link.family == AddressFamily::UNSPECIFIED => {
                self.links.remove(&link.index);
                changed.all = true;
                Effect::DUMP
            }
            Payload::NewAddress(address) => {
                self.addresses.insert((address.index, address.address));
                Effect::NONE
            }
            Payload::DelAddress(address) => self.remove_address(address),
            Payload::NewNexthop(nexthop) => {
                self.nexthops.insert(nexthop.id, NexthopObject::new(&nexthop.nexthop));
                changed.nexthops.insert(nexthop.id);
                Effect::NONE
            }
            Payload::DelNexthop(nexthop) => self.remove_nexthop(nexthop, changed),
            Payload::NewRoute(route) => match placement(route, config) {
                Placement::Mirrored(key) => self.add_route(key, route, flags, changed),
                Placement::Unsupported => Effect::UNSUPPORTED,
                Placement::Ignored => Effect::NONE,
            },
            Payload::DelRoute(route) => match placement(route, config) {
                Placement::Mirrored(key) => self.remove_route(key, route, changed),
                Placement::Unsupported | Placement::Ignored => Effect::NONE,
            },
            _ => Effect::NONE,
        }
    }

    fn set_link(&mut self, link: &LinkMessage<'_>) {
        // Bridge ports are also reported as links of the bridge family.
        if link.family != AddressFamily::UNSPECIFIED {
            return;
        }
        let new = KernelLink {
            name: String::from_utf8_lossy(link.name).into_owned(),
            is_up: link.flags.contains(LinkFlags::UP),
            has_carrier: link.flags.contains(LinkFlags::LOWER_UP),
        };
        self.links.insert(link.index, new);
    }

    fn apply_link(
        &mut self,
        link: &LinkMessage<'_>,
        changed: &mut Changed,
        links_were_down: &mut BTreeSet<u32>,
    ) -> Effect {
        let before = self.links.get(&link.index).cloned();
        self.set_link(link);
        let after = self.links.get(&link.index);
        if before.as_ref() == after {
            return Effect::NONE;
        }
        if after.is_some_and(|link| !link.is_up) {
            links_were_down.insert(link.index);
        }
        changed.all = true;
        if let (Some(before), Some(after)) = (&before, after)
            && !before.is_up
            && after.is_up
        {
            changed.links_up.insert(after.name.clone());
        }
        if before.is_none() { Effect::NONE } else { Effect::DUMP }
    }

    /// Linux then flushes IPv4 routes without RTM_DELROUTE: those with this address as their
    /// preferred source and, after the last IPv4 address of a link, all routes through the link.
    fn remove_address(&mut self, address: &AddressMessage) -> Effect {
        self.addresses.remove(&(address.index, address.address));
        Effect::DUMP
    }

    /// Linux then flushes the IPv4 routes of the object, or of a group that becomes empty, without
    /// RTM_DELROUTE.
    fn remove_nexthop(&mut self, nexthop: &NexthopMessage<'_>, changed: &mut Changed) -> Effect {
        let id = nexthop.id;
        for key in self.users(&BTreeSet::from([id])) {
            let lists = self.lists_mut(key.destination);
            lists.update(key, |list| list.retain(|entry| entry.nexthop_id != id));
            changed.keys.insert(key);
        }
        self.nexthops.remove(&id);
        for object in self.nexthops.values_mut() {
            if let NexthopObject::Group(members) = object {
                members.retain(|member| member.id != id);
            }
        }
        Effect::DUMP
    }

    fn add_route(
        &mut self,
        key: KernelRouteKey,
        route: &RouteMessage<'_>,
        flags: MessageFlags,
        changed: &mut Changed,
    ) -> Effect {
        changed.keys.insert(key);
        let entry = Entry::new(route);
        let is_v4 = key.destination.is_ipv4();
        self.lists_mut(key.destination).update(key, |list| {
            if is_v4 { add_v4(list, entry, flags) } else { add_v6(list, entry, flags) }
        })
    }

    fn remove_route(
        &mut self,
        key: KernelRouteKey,
        route: &RouteMessage<'_>,
        changed: &mut Changed,
    ) -> Effect {
        let gone = Entry::new(route);
        let lists: &mut RouteLists = self.lists_mut(key.destination);
        if lists.get(&key).is_empty() {
            return Effect::NONE;
        }
        changed.keys.insert(key);
        let is_v4 = key.destination.is_ipv4();
        let found = lists.update(key, |list| {
            if is_v4 { remove_equal(list, &gone) } else { remove_v6(list, &gone) }
        });
        // The mirror differs from the kernel; a dump corrects it.
        if found { Effect::NONE } else { Effect::DUMP }
    }
}

fn add_v4(list: &mut Vec<Entry>, entry: Entry, flags: MessageFlags) -> Effect {
    let same = list.iter().position(|old| old.is_same(&entry));
    if let Some(same) = same {
        list[same] = entry;
    } else if flags.contains(MessageFlags::APPEND) {
        list.push(entry);
    } else if flags.contains(MessageFlags::REPLACE)
        && let Some(first) = list.first_mut()
    {
        *first = entry;
    } else {
        list.insert(0, entry);
    }
    Effect { ambiguous: list.len() > 1, ..Effect::NONE }
}

/// Removes the same route from a list. Returns whether the list had it.
fn remove_equal(list: &mut Vec<Entry>, gone: &Entry) -> bool {
    match list.iter().position(|entry| entry.is_same(gone)) {
        Some(index) => {
            list.remove(index);
            true
        }
        None => false,
    }
}

fn add_v6(list: &mut Vec<Entry>, entry: Entry, flags: MessageFlags) -> Effect {
    let mergeable = entry.is_mergeable();
    let replaced = if mergeable || flags.contains(MessageFlags::REPLACE) {
        list.iter().position(|old| old.is_mergeable() == mergeable)
    } else {
        None
    };
    let replaced = replaced
        .or_else(|| list.iter().position(|old| old.is_same(&entry)))
        .or_else(|| flags.contains(MessageFlags::REPLACE).then_some(0))
        .filter(|&index| index < list.len());
    match replaced {
        Some(index) => list[index] = entry,
        None => list.push(entry),
    }
    Effect { ambiguous: list.len() > 1, ..Effect::NONE }
}

/// Removes the paths of `gone` from the multipath route, or the same route. Returns whether all
/// were found.
fn remove_v6(list: &mut Vec<Entry>, gone: &Entry) -> bool {
    if gone.is_mergeable()
        && let Some(index) = list.iter().position(Entry::is_mergeable)
    {
        let paths = &mut list[index].paths;
        let before = paths.len();
        // The kernel reports a single path without its weight.
        let next_hop = |path: &RoutePath| (path.interface, path.gateway);
        paths.retain(|path| !gone.paths.iter().any(|gone| next_hop(path) == next_hop(gone)));
        let found = paths.len() + gone.paths.len() == before;
        if paths.is_empty() {
            list.remove(index);
        }
        return found;
    }
    remove_equal(list, gone)
}
