//! Groups of next hops that routes share, and which of them can be used.
//!
//! A route refers to its group by number. If an interface goes down, or a gateway stops answering,
//! groups change. Routes change only if a group gets its first next hop or loses its last.
//!
//! A gateway that does not answer gets no flows while another gateway of its group answers. It is
//! resolved at intervals, and gets its flows back when it answers.

use pollux_control::router::kernel_routes::KernelHop;
use pollux_dataplane::fib::FibHop;
use pollux_dataplane::forward::DomainId;
use pollux_dataplane::port::PortId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Identifies next hops that routes share: the link of a port; a default router at a port; the
/// gateways of a configured route, and their domain; the next hops of a kernel's route; or the
/// routes of another domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SharedHops {
    Link(PortId),
    Router(PortId, IpAddr),
    Gateways(DomainId, Vec<IpAddr>),
    Kernel(Vec<KernelHop>),
    Domain(DomainId),
}

/// The usable next hops of a group.
#[derive(Debug, Default)]
pub(super) struct UsableHops {
    hops: Vec<FibHop>,
    /// The gateways of all next hops at links that are up, if there are several next hops.
    watched: BTreeSet<Gateway>,
}

impl UsableHops {
    /// Leaves out next hops whose gateways do not answer, unless no next hop remains.
    pub(super) fn new(at_links: Vec<FibHop>, is_away: impl Fn(&Gateway) -> bool) -> Self {
        if at_links.len() < 2 {
            return Self { hops: at_links, watched: BTreeSet::new() };
        }
        let gateway = |hop: &FibHop| hop.gateway.map(|gateway| (hop.port, gateway));
        let watched = at_links.iter().filter_map(gateway).collect();
        let is_here = |hop: &&FibHop| !gateway(hop).is_some_and(|gateway| is_away(&gateway));
        let here: Vec<_> = at_links.iter().filter(is_here).copied().collect();
        Self { hops: if here.is_empty() { at_links } else { here }, watched }
    }
}

/// The number of a group. Numbers are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupId(u64);

#[derive(Debug)]
pub(super) struct HopGroup {
    pub(super) shared: SharedHops,
    /// The usable next hops.
    pub(super) hops: Vec<FibHop>,
    /// The gateways of the group, if it has several next hops.
    watched: BTreeSet<Gateway>,
    routes: usize,
}

impl HopGroup {
    /// The domain in which the destination is looked up again.
    pub(super) const fn next_domain(&self) -> Option<DomainId> {
        match self.shared {
            SharedHops::Domain(domain) => Some(domain),
            _ => None,
        }
    }
}

/// A gateway, at the link of a port.
pub(super) type Gateway = (PortId, IpAddr);

#[derive(Debug, Default)]
pub(super) struct HopGroups {
    groups: BTreeMap<GroupId, HopGroup>,
    ids: BTreeMap<SharedHops, GroupId>,
    /// Gateways of groups with several next hops, and how many groups have each.
    watched: BTreeMap<Gateway, usize>,
    next: u64,
}

impl HopGroups {
    /// Returns the group for another route. `hops` returns the next hops of a new group.
    pub(super) fn join(
        &mut self,
        shared: SharedHops,
        hops: impl FnOnce(&SharedHops) -> UsableHops,
    ) -> GroupId {
        if let Some(id) = self.ids.get(&shared) {
            let group = self.groups.get_mut(id).expect("a group with a name is there");
            group.routes += 1;
            return *id;
        }
        self.next += 1;
        let id = GroupId(self.next);
        let UsableHops { hops, watched } = hops(&shared);
        watched.iter().for_each(|gateway| *self.watched.entry(*gateway).or_default() += 1);
        self.ids.insert(shared.clone(), id);
        self.groups.insert(id, HopGroup { shared, hops, watched, routes: 1 });
        id
    }

    /// Removes a route from its group.
    pub(super) fn leave(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.routes -= 1;
        if group.routes == 0
            && let Some(group) = self.groups.remove(&id)
        {
            self.ids.remove(&group.shared);
            group.watched.iter().for_each(|gateway| unwatch(&mut self.watched, gateway));
        }
    }

    /// Looks up the next hops of all groups again. Returns the groups that have changed, and
    /// whether each got its first next hop or lost its last.
    pub(super) fn update(
        &mut self,
        hops: impl Fn(&SharedHops) -> UsableHops,
    ) -> Vec<(GroupId, bool)> {
        let Self { groups, watched, .. } = self;
        let mut others = Vec::new();
        for (id, group) in groups {
            let new = hops(&group.shared);
            if new.watched != group.watched {
                new.watched.iter().for_each(|one| *watched.entry(*one).or_default() += 1);
                group.watched.iter().for_each(|gateway| unwatch(watched, gateway));
                group.watched = new.watched;
            }
            if new.hops != group.hops {
                others.push((*id, new.hops.is_empty() != group.hops.is_empty()));
                group.hops = new.hops;
            }
        }
        others
    }

    /// Gateways of groups with several next hops.
    pub(super) fn watched(&self) -> impl Iterator<Item = &Gateway> {
        self.watched.keys()
    }

    pub(super) fn get(&self, id: GroupId) -> Option<&HopGroup> {
        self.groups.get(&id)
    }

    /// The usable next hops of a group.
    pub(super) fn hops(&self, id: GroupId) -> &[FibHop] {
        self.groups.get(&id).map_or(&[], |group| &group.hops)
    }
}

fn unwatch(watched: &mut BTreeMap<Gateway, usize>, gateway: &Gateway) {
    if let Some(groups) = watched.get_mut(gateway) {
        *groups -= 1;
        if *groups == 0 {
            watched.remove(gateway);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_does_not_answer_has_no_flows_while_another_is_there() {
        let hop = |last: u8| FibHop {
            port: PortId(1),
            gateway: Some([10, 0, 0, last].into()),
            weight: 1,
        };
        let gateways = [1, 2].map(|last| (PortId(1), [10, 0, 0, last].into()));
        let both = vec![hop(1), hop(2)];
        let usable = UsableHops::new(both.clone(), |gateway| *gateway == gateways[1]);
        assert_eq!((usable.hops, usable.watched), (vec![hop(1)], gateways.into()));
        // If no gateway answers, all are used, and packets to them start resolution.
        assert_eq!(UsableHops::new(both.clone(), |_| true).hops, both);
        let one = UsableHops::new(vec![hop(2)], |_| true);
        assert_eq!((one.hops, one.watched), (vec![hop(2)], BTreeSet::new()));
    }
}
