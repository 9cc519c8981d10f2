//! Groups of next hops, which routes share. A leaf of the trie is the index of a group.
//!
//! A group of several members has a table of slots, whose number is a power of two. The hash of a
//! flow selects its slot. Members have slots in proportion to their weights, at least one each.
//!
//! Hashing is resilient: a change moves as few slots as possible, and the removal of a member moves
//! only the slots of this member. The slots are apportioned by a divisor method (Webster's, after
//! one slot for each member), because such a method never takes a slot from a member when another
//! one is removed. A table that has to grow repeats its old contents, so flows keep their members,
//! except for those that finer shares move.

use crate::forward::{DomainId, RouteTo};
use crate::port::PortId;
use std::net::IpAddr;
use std::sync::Arc;

/// The maximum number of members of a group. Further ones are not used.
pub const GROUP_MEMBERS_MAX: usize = 256;
/// The maximum number of slots of a group. One slot is the smallest share.
const GROUP_SLOTS_MAX: usize = 1024;
/// The number of slots per member, up to [`GROUP_SLOTS_MAX`] in total, so that the shares of equal
/// members differ by only a few percent.
const MEMBER_SLOTS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FibHop {
    pub port: PortId,
    /// The gateway on the link of the port. `None` if the destination itself is on the link.
    pub gateway: Option<IpAddr>,
    /// The share of flows, relative to the other members. 0 counts as 1.
    pub weight: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FibGroup(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FibTarget {
    Group(FibGroup),
    /// The packet is dropped silently.
    Blackhole,
    /// The packet is rejected with destination unreachable.
    Unreachable,
    /// The packet is rejected with administratively prohibited.
    Prohibited,
}

#[derive(Clone, Debug)]
pub(super) struct PublishedGroup {
    /// The only route of the group, if `shares` is `None`.
    only: RouteTo,
    shares: Option<Arc<Shares>>,
}

#[derive(Debug)]
struct Shares {
    members: Box<[RouteTo]>,
    /// The indices of members. The number of slots is a power of two.
    slots: Box<[u8]>,
}

/// All groups by index, and the number of routes of each. The first groups are those of
/// [`RESERVED`].
pub(super) struct GroupTable {
    groups: Vec<PublishedGroup>,
    routes: Vec<usize>,
    free: Vec<FibGroup>,
    published: Option<Arc<[PublishedGroup]>>,
}

/// The routes of the first leaves, which stand for no group of next hops. The first is that of
/// [`super::trie::NO_LEAF`].
const RESERVED: [RouteTo; 4] =
    [RouteTo::Nowhere, RouteTo::Blackhole, RouteTo::Unreachable, RouteTo::Prohibited];

impl FibTarget {
    pub(super) const fn leaf(self) -> u32 {
        match self {
            Self::Blackhole => 1,
            Self::Unreachable => 2,
            Self::Prohibited => 3,
            Self::Group(FibGroup(index)) => index,
        }
    }
}

impl PublishedGroup {
    const fn of_one(only: RouteTo) -> Self {
        Self { only, shares: None }
    }

    /// All routes that flows of the group may use.
    #[inline]
    pub(super) fn members(&self) -> &[RouteTo] {
        match &self.shares {
            None => std::slice::from_ref(&self.only),
            Some(shares) => &shares.members,
        }
    }

    /// The route of a flow. The hash is computed only if there are several members.
    #[inline]
    pub(super) fn route(&self, flow: impl FnOnce() -> u32) -> &RouteTo {
        match &self.shares {
            None => &self.only,
            Some(shares) => {
                let slot = shares.slots[flow() as usize & (shares.slots.len() - 1)];
                &shares.members[usize::from(slot)]
            }
        }
    }
}

impl GroupTable {
    pub(super) fn new() -> Self {
        let groups = RESERVED.map(PublishedGroup::of_one).to_vec();
        Self { routes: vec![0; groups.len()], groups, free: Vec::new(), published: None }
    }

    /// Adds a group: a copy of the group `before`, or one without members.
    pub(super) fn add(&mut self, before: Option<FibGroup>) -> FibGroup {
        let id = self.free.pop().unwrap_or(FibGroup(self.groups.len() as u32));
        if id.0 as usize == self.groups.len() {
            self.groups.push(PublishedGroup::of_one(RouteTo::Unreachable));
            self.routes.push(0);
        }
        if let Some(FibGroup(before)) = before {
            self.groups[id.0 as usize] = self.groups[before as usize].clone();
        }
        id
    }

    pub(super) fn set(&mut self, id: FibGroup, hops: &[FibHop]) {
        let group = &mut self.groups[id.0 as usize];
        let members = members(hops);
        *group = match members[..] {
            [] => PublishedGroup::of_one(RouteTo::Unreachable),
            [(only, _)] => PublishedGroup::of_one(only),
            _ => {
                let shares = Shares::new(group.shares.as_deref(), &members);
                PublishedGroup { only: members[0].0, shares: Some(shares.into()) }
            }
        };
        self.published = None;
    }

    /// Makes the routes of a group lead into another domain.
    pub(super) fn set_domain(&mut self, id: FibGroup, domain: DomainId) {
        self.groups[id.0 as usize] = PublishedGroup::of_one(RouteTo::Domain(domain));
        self.published = None;
    }

    /// Removes a group. Returns `false`, without a change, if routes use it.
    pub(super) fn remove(&mut self, id: FibGroup) -> bool {
        let is_unused = self.routes[id.0 as usize] == 0;
        if is_unused {
            self.set(id, &[]);
            self.free.push(id);
        }
        is_unused
    }

    /// Updates the route counts for a route whose leaf changes.
    pub(super) fn count(&mut self, before: Option<u32>, after: Option<u32>) {
        after.into_iter().for_each(|leaf| self.routes[leaf as usize] += 1);
        before.into_iter().for_each(|leaf| self.routes[leaf as usize] -= 1);
    }

    pub(super) fn publish(&mut self) -> Arc<[PublishedGroup]> {
        self.published.get_or_insert_with(|| self.groups.as_slice().into()).clone()
    }
}

impl Shares {
    /// Assigns slots to the members of a group. `before` is the previous assignment.
    fn new(before: Option<&Self>, members: &[(RouteTo, u64)]) -> Self {
        let weights: u64 = members.iter().map(|(_, weight)| weight).sum();
        let fine = (members.len() * MEMBER_SLOTS).max(weights as usize).next_power_of_two();
        let len = before.map_or(0, |before| before.slots.len()).max(fine.min(GROUP_SLOTS_MAX));
        let mut missing = apportion(members, len);
        // A slot keeps its member, as long as the member is entitled to more slots.
        let kept: Vec<Option<usize>> = (0..len)
            .map(|slot| {
                let before = before?;
                let member = before.members[usize::from(before.slots[slot % before.slots.len()])];
                let member = members.iter().position(|(known, _)| *known == member)?;
                missing[member] = missing[member].checked_sub(1)?;
                Some(member)
            })
            .collect();
        let missing = missing.iter().enumerate();
        let mut missing = missing.flat_map(|(member, count)| std::iter::repeat_n(member, *count));
        let slots = kept.into_iter().map(|member| member.or_else(|| missing.next()).unwrap_or(0));
        Self {
            slots: slots.map(|member| member as u8).collect(),
            members: members.iter().map(|(member, _)| *member).collect(),
        }
    }
}

/// The members and their weights. A next hop that is listed twice is one member with the sum of the
/// weights.
fn members(hops: &[FibHop]) -> Vec<(RouteTo, u64)> {
    let mut members: Vec<(RouteTo, u64)> = Vec::new();
    for hop in hops {
        let route = RouteTo::Port { port: hop.port, gateway: hop.gateway };
        let weight = u64::from(hop.weight.max(1));
        match members.iter_mut().find(|(known, _)| *known == route) {
            Some((_, known)) => *known += weight,
            None => members.push((route, weight)),
        }
    }
    members.truncate(GROUP_MEMBERS_MAX);
    members
}

/// The number of slots of each member: one each, then every further slot goes to the member with
/// the largest quotient of weight and divisor (Webster's method).
fn apportion(members: &[(RouteTo, u64)], slots: usize) -> Vec<usize> {
    let mut counts = vec![1; members.len()];
    let divisor = |count: usize| 2 * count as u64 + 1;
    for _ in members.len()..slots {
        let next = (1..members.len()).fold(0, |best, member| {
            let (a, b) = (members[member].1, members[best].1);
            if a * divisor(counts[best]) > b * divisor(counts[member]) { member } else { best }
        });
        counts[next] += 1;
    }
    counts
}
