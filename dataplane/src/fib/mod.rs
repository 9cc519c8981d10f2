//! The FIB, in which workers look up the next hop of a packet: by longest-prefix match (RFC 1812
//! 5.2.4, RFC 4291), and by flow if there are several next hops.
//!
//! ```text
//!   control                                             workers
//!   FibBuilder: routes, groups --publish--> Fib: trie --leaf--> group --flow--> port, gateway
//! ```
//!
//! [`FibBuilder`] has all routes, and takes changes in batches. [`FibBuilder::publish`] makes a
//! version that shares all unchanged parts with the version before. With [`pollux_mem::snapshot`],
//! all packets of a poll iteration see the same version.
//!
//! Why versions instead of a table that is changed in place: all changes of a batch take effect
//! together, and readers need no fences.
//!
//! Routes share groups of next hops. So when a link fails, only its groups change and not the trie,
//! however many routes use them.

mod groups;
mod rib;
#[cfg(test)]
mod tests;
mod trie;

pub use groups::{FibGroup, FibHop, FibTarget, GROUP_MEMBERS_MAX};

use crate::forward::{DomainId, LOOK_UPS_MAX, RouteLookup, RouteTo};
use groups::{GroupTable, PublishedGroup};
use rib::Rib;
use std::fmt::{self, Debug, Formatter};
use std::net::IpAddr;
use std::sync::Arc;
use trie::{NO_LEAF, Trie};

/// A version of the FIB. A clone is cheap: it increments three reference counts.
#[derive(Clone)]
pub struct Fib {
    v4: Trie,
    v6: Trie,
    groups: Arc<[PublishedGroup]>,
}

pub struct FibBuilder {
    v4: Rib,
    v6: Rib,
    groups: GroupTable,
    routes: usize,
    routes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FibFull;

impl Fib {
    #[inline]
    fn group(&self, ip: IpAddr) -> &PublishedGroup {
        let leaf = match ip {
            IpAddr::V4(ip) => self.v4.look_up(ip.to_bits()),
            IpAddr::V6(ip) => self.v6.look_up(ip.to_bits()),
        };
        &self.groups[leaf as usize]
    }

    #[inline]
    fn leaves(&self, some: &[IpAddr]) -> [u32; LOOK_UPS_MAX] {
        let mut leaves = [NO_LEAF; LOOK_UPS_MAX];
        if some.iter().any(IpAddr::is_ipv4) {
            let v4 = some.iter().enumerate().filter_map(|(nth, ip)| match ip {
                IpAddr::V4(ip) => Some((nth, ip.to_bits())),
                IpAddr::V6(_) => None,
            });
            self.v4.look_up_all(v4, &mut leaves);
        }
        if some.iter().any(IpAddr::is_ipv6) {
            let v6 = some.iter().enumerate().filter_map(|(nth, ip)| match ip {
                IpAddr::V4(_) => None,
                IpAddr::V6(ip) => Some((nth, ip.to_bits())),
            });
            self.v6.look_up_all(v6, &mut leaves);
        }
        leaves
    }
}

impl RouteLookup for Fib {
    #[inline]
    fn look_up(&self, destination: IpAddr, flow: impl FnOnce() -> u32) -> &RouteTo {
        self.group(destination).route(flow)
    }

    #[inline]
    fn look_up_all<'a>(
        &'a self,
        destinations: &[IpAddr],
        flow: impl Fn(usize) -> u32,
        found: &mut [&'a RouteTo; LOOK_UPS_MAX],
    ) {
        let leaves = self.leaves(destinations);
        for (nth, (leaf, found)) in leaves.iter().zip(found).take(destinations.len()).enumerate() {
            *found = self.groups[*leaf as usize].route(|| flow(nth));
        }
    }

    #[inline]
    fn next_hops(&self, address: IpAddr) -> &[RouteTo] {
        self.group(address).members()
    }
}

impl FibBuilder {
    /// `routes_max` is the limit on the routes of both families together.
    pub fn new(routes_max: usize) -> Self {
        let (v4, v6) = (Rib::default(), Rib::default());
        Self { v4, v6, groups: GroupTable::new(), routes: 0, routes_max }
    }

    /// Adds a group. A group without next hops is unreachable.
    pub fn add_group(&mut self, hops: &[FibHop]) -> FibGroup {
        let group = self.groups.add(None);
        self.groups.set(group, hops);
        group
    }

    /// Adds a group that is to replace `before` in some routes. As few of their flows as possible
    /// change their next hop.
    pub fn replace_group(&mut self, before: FibGroup, hops: &[FibHop]) -> FibGroup {
        let group = self.groups.add(Some(before));
        self.groups.set(group, hops);
        group
    }

    pub fn add_domain(&mut self, domain: DomainId) -> FibGroup {
        let group = self.groups.add(None);
        self.groups.set_domain(group, domain);
        group
    }

    /// Changes the next hops of a group, and so of all its routes. As few flows as possible change
    /// their next hop.
    pub fn set_group(&mut self, group: FibGroup, hops: &[FibHop]) {
        self.groups.set(group, hops);
    }

    /// Removes a group, unless routes use it. Returns whether it was removed.
    pub fn remove_group(&mut self, group: FibGroup) -> bool {
        self.groups.remove(group)
    }

    /// Adds a route, or replaces the route to the same prefix. Address bits beyond the length are
    /// ignored.
    pub fn insert(&mut self, ip: IpAddr, len: u8, target: FibTarget) -> Result<(), FibFull> {
        if self.routes >= self.routes_max && self.set(ip, len, None).is_none() {
            return Err(FibFull);
        }
        self.set(ip, len, Some(target.leaf()));
        Ok(())
    }

    /// Removes the route to exactly this prefix. Returns whether there was one.
    pub fn remove(&mut self, ip: IpAddr, len: u8) -> bool {
        self.set(ip, len, None).is_some()
    }

    fn set(&mut self, ip: IpAddr, len: u8, leaf: Option<u32>) -> Option<u32> {
        let before = match ip {
            IpAddr::V4(ip) => self.v4.set(u128::from(ip.to_bits()) << 96, len.min(32), leaf),
            IpAddr::V6(ip) => self.v6.set(ip.to_bits(), len.min(128), leaf),
        };
        self.groups.count(before, leaf);
        self.routes += usize::from(leaf.is_some());
        self.routes -= usize::from(before.is_some());
        before
    }

    pub const fn routes(&self) -> usize {
        self.routes
    }

    pub fn publish(&mut self) -> Fib {
        Fib { v4: self.v4.trie(), v6: self.v6.trie(), groups: self.groups.publish() }
    }
}

impl Debug for Fib {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fib").field("groups", &self.groups.len()).finish_non_exhaustive()
    }
}
