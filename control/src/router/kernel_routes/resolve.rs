//! Resolves a key: selects the route in use, and its paths through our interfaces.

use super::table::{Entry, KernelLink, NexthopObject};
use super::{KernelHop, KernelRoute, KernelRouteKey, KernelRoutes, KernelTarget};
use pollux_wire::netlink::route::{RouteFlags, RoutePath, RouteType};
use std::sync::Arc;

impl KernelRoutes {
    /// The first usable route of the key's list, as the kernel chooses. A path with encapsulation
    /// is not usable, because encapsulation is not supported.
    pub(super) fn resolve(&self, key: &KernelRouteKey) -> Option<KernelRoute> {
        if self.config.domains.get(&key.table) != Some(&key.domain) {
            return None;
        }
        self.tables.list(key).iter().find_map(|entry| {
            let target = self.target(entry)?;
            Some(KernelRoute { protocol: entry.protocol, target })
        })
    }

    fn target(&self, entry: &Entry) -> Option<KernelTarget> {
        match entry.route_type {
            RouteType::BLACKHOLE => return Some(KernelTarget::Blackhole),
            RouteType::UNREACHABLE => return Some(KernelTarget::Unreachable),
            RouteType::PROHIBIT => return Some(KernelTarget::Prohibit),
            _ => {}
        }
        if entry.nexthop_id == 0 {
            let own = entry.paths.iter().map(|hop| (*hop, u32::from(hop.weight)));
            return self.via(&own.collect::<Vec<_>>());
        }
        // Without its nexthop object the route is not usable. The object may come after the route.
        match self.tables.nexthops.get(&entry.nexthop_id)? {
            NexthopObject::Path(hop) => self.via(&[(*hop, 1)]),
            NexthopObject::Blackhole => Some(KernelTarget::Blackhole),
            NexthopObject::BridgeEntry => None,
            NexthopObject::Group(members) => {
                let mut hops = Vec::with_capacity(members.len());
                for member in members {
                    match self.tables.nexthops.get(&member.id) {
                        Some(NexthopObject::Path(hop)) => hops.push((*hop, member.weight)),
                        // The kernel allows a blackhole only as the sole member of a group.
                        Some(NexthopObject::Blackhole) => return Some(KernelTarget::Blackhole),
                        _ => {}
                    }
                }
                self.via(&hops)
            }
        }
    }

    /// The live paths through our interfaces, or [`Self::by_kernel_port`] if all live paths are
    /// through other links; `None` if no path is live. Paths without carrier are used only if there
    /// are no others, because the carrier is that of the shadow, and our interface may be up.
    fn via(&self, hops: &[(RoutePath, u32)]) -> Option<KernelTarget> {
        let mut alive: Vec<_> = hops
            .iter()
            .filter_map(|(hop, weight)| Some((self.live_link(hop)?, hop, *weight)))
            .collect();
        let has_carrier = |link: &KernelLink, hop: &RoutePath| {
            link.has_carrier && !hop.flags.contains(RouteFlags::LINK_DOWN)
        };
        if alive.iter().any(|(link, hop, _)| has_carrier(link, hop)) {
            alive.retain(|(link, hop, _)| has_carrier(link, hop));
        }
        if alive.is_empty() {
            return None;
        }
        let ours: Vec<_> = alive
            .iter()
            .filter_map(|(link, hop, weight)| {
                let interface = self.interface(&link.name)?;
                Some(KernelHop { interface, gateway: hop.gateway, weight: *weight })
            })
            .collect();
        if ours.is_empty() { Some(self.by_kernel_port()) } else { Some(KernelTarget::Via(ours)) }
    }

    fn live_link(&self, hop: &RoutePath) -> Option<&KernelLink> {
        let is_unusable = hop.encapsulated || hop.flags.contains(RouteFlags::DEAD);
        let was_down = self.links_were_down.contains(&hop.interface);
        let link = self.tables.links.get(&hop.interface)?;
        (!is_unusable && !was_down && link.is_up).then_some(link)
    }

    fn interface(&self, link: &str) -> Option<Arc<str>> {
        self.names.get(self.config.interfaces.get(link)?).cloned()
    }

    /// The target of a route without a path through our interfaces: the port to the kernel, or
    /// unreachable if there is no such port.
    fn by_kernel_port(&self) -> KernelTarget {
        let port = self.config.kernel_port.as_ref().and_then(|port| self.names.get(port));
        port.map_or(KernelTarget::Unreachable, |port| {
            let interface = port.clone();
            KernelTarget::Via(vec![KernelHop { interface, gateway: None, weight: 1 }])
        })
    }
}
