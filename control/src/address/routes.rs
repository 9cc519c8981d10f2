//! Next hops of packets (RFC 4861 5.2, RFC 1122 3.3.1).
//!
//! A destination on the link is its own next hop. Other destinations use a default router: the most
//! preferred of those that may be reachable (RFC 4191 3.2). Redirects override both. For
//! destinations beyond the link, the interface consults the routes of the node ([`crate::beyond`])
//! before default routers.

use super::lifetime;
use super::source::is_in;
use crate::nd::RouterAdvertised;
use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;
use pollux_verbs::time::Time;
use pollux_wire::ip::nd_option::PrefixInformation;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The limit of on-link prefixes from our addresses, and separately of those from advertisements.
pub const PREFIXES_MAX: usize = 64;
pub const ROUTERS_MAX: usize = 16;
pub const REDIRECTS_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    OnLink(IpAddr),
    Via(IpAddr),
    Group(IpAddr),
}

impl NextHop {
    pub const fn ip(&self) -> IpAddr {
        match *self {
            Self::OnLink(ip) | Self::Via(ip) | Self::Group(ip) => ip,
        }
    }
}

/// A prefix and its length in bits; the host bits are zero.
type Prefix = (IpAddr, u8);

#[derive(Clone, Copy, Debug)]
struct Router {
    preference: i8,
    /// The end of its advertised lifetime; `None` for a configured router.
    until: Option<Time>,
    /// The order of addition. Among equally preferred routers, the first one is used.
    number: u64,
}

reasons! {
    pub enum RouteDrop {
        Full = "full",
        BadPrefix = "bad_prefix",
        RedirectNotFromNextHop = "redirect_not_from_next_hop",
    }
}

#[derive(Default)]
pub struct HostRoutes {
    own: BTreeSet<Prefix>,
    /// Advertised prefixes and the end of their lifetimes; `None` is infinite.
    announced: BTreeMap<Prefix, Option<Time>>,
    routers: BTreeMap<IpAddr, Router>,
    redirects: BTreeMap<IpAddr, IpAddr>,
    numbers: u64,
    drops: Drops<RouteDrop>,
}

impl HostRoutes {
    /// Replaces our addresses; their subnets are on the link. Returns `false` and drops the excess
    /// if there are more than `PREFIXES_MAX` subnets.
    pub fn set_own(&mut self, addresses: impl Iterator<Item = (IpAddr, u8)>) -> bool {
        let mut own: BTreeSet<Prefix> = addresses.map(|(ip, len)| (masked(ip, len), len)).collect();
        let is_all = own.len() <= PREFIXES_MAX;
        while own.len() > PREFIXES_MAX {
            self.drops.count(RouteDrop::Full);
            own.pop_last();
        }
        self.own = own;
        is_all
    }

    /// Adds a default router from the configuration or a DHCP server. Returns `false` if there are
    /// already `ROUTERS_MAX` routers.
    pub fn add_router(&mut self, ip: IpAddr) -> bool {
        self.insert_router(ip, 0, None)
    }

    pub fn remove_router(&mut self, ip: IpAddr) {
        self.routers.remove(&ip);
        self.redirects.retain(|_, target| *target != ip);
    }

    /// Handles an advertisement with the router flag cleared: removes the learned default router
    /// (RFC 4861 7.2.5). A router from the configuration or DHCP stays.
    pub fn handle_not_router(&mut self, ip: Ipv6Addr) {
        let ip = IpAddr::V6(ip);
        if self.routers.get(&ip).is_some_and(|router| router.until.is_some()) {
            self.remove_router(ip);
        }
    }

    /// Handles a router advertisement (RFC 4861 6.3.4).
    pub fn handle_router(&mut self, now: Time, advertised: &RouterAdvertised) {
        let ip = IpAddr::V6(advertised.router);
        if advertised.lifetime.is_zero() {
            self.handle_not_router(advertised.router);
        } else if self.routers.get(&ip).is_none_or(|known| known.until.is_some()) {
            self.insert_router(ip, advertised.preference, Some(now + advertised.lifetime));
        }
        for prefix in advertised.prefixes.iter().filter(|prefix| prefix.on_link) {
            self.handle_prefix(now, prefix);
        }
    }

    /// Handles a redirect of `destination` to `target` (RFC 4861 8.3). It counts only if `router`
    /// is the current next hop for `destination`; `may_be_reachable` is as for
    /// [`HostRoutes::next_hop`].
    pub fn handle_redirect(
        &mut self,
        now: Time,
        router: Ipv6Addr,
        destination: Ipv6Addr,
        target: Ipv6Addr,
        may_be_reachable: impl Fn(IpAddr) -> bool,
    ) {
        let in_use = self.next_hop(now, destination.into(), may_be_reachable);
        if in_use.map(|hop| hop.ip()) != Some(router.into()) {
            return self.drops.count(RouteDrop::RedirectNotFromNextHop);
        }
        if self.redirects.len() >= REDIRECTS_MAX {
            // A redirect only saves a hop, and the router sends it again if necessary.
            self.redirects.pop_first();
        }
        self.redirects.insert(destination.into(), target.into());
    }

    /// The next hop for `destination`. A router for which `may_be_reachable` is false is used only
    /// if there is no other (RFC 4861 6.3.6).
    pub fn next_hop(
        &self,
        now: Time,
        destination: IpAddr,
        may_be_reachable: impl Fn(IpAddr) -> bool,
    ) -> Option<NextHop> {
        let is_group = destination.is_multicast();
        if is_group || matches!(destination, IpAddr::V4(ip) if ip.is_broadcast()) {
            return Some(NextHop::Group(destination));
        }
        match self.redirects.get(&destination) {
            Some(&target) if target == destination => return Some(NextHop::OnLink(target)),
            Some(&target) if may_be_reachable(target) => return Some(NextHop::Via(target)),
            _ => {}
        }
        if self.is_on_link(now, destination) {
            return Some(NextHop::OnLink(destination));
        }
        let family = self.routers.iter().filter(|(ip, router)| {
            ip.is_ipv4() == destination.is_ipv4() && router.until.is_none_or(|until| now < until)
        });
        let best = family.max_by_key(|(ip, router)| {
            (may_be_reachable(**ip), router.preference, Reverse(router.number))
        });
        best.map(|(&ip, _)| NextHop::Via(ip))
    }

    /// Whether `ip` is on the link: it is an IPv6 link-local address, a router of ours, in an
    /// on-link prefix, or redirected to itself (RFC 4861 8.3).
    pub fn is_on_link(&self, now: Time, ip: IpAddr) -> bool {
        let is_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let counts = |until: &Option<Time>| until.is_none_or(|until| now < until);
        let announced = self.announced.iter().filter(|(_, until)| counts(until));
        let mut prefixes = self.own.iter().chain(announced.map(|(prefix, _)| prefix));
        is_local
            || self.routers.contains_key(&ip)
            || self.redirects.get(&ip) == Some(&ip)
            || prefixes.any(|&prefix| is_in(ip, prefix))
    }

    /// The prefixes that [`HostRoutes::is_on_link`] matches, except that of IPv6 link-local
    /// addresses.
    pub fn on_link(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let single = |ip: IpAddr| (ip, if ip.is_ipv4() { 32 } else { 128 });
        let redirected = self.redirects.iter().filter(|(ip, to)| ip == to).map(|(&ip, _)| ip);
        let nodes = self.routers.keys().copied().chain(redirected).map(single);
        let announced = self.announced.keys().filter(|prefix| !self.own.contains(prefix));
        self.own.iter().chain(announced).copied().chain(nodes)
    }

    pub fn handle_timeout(&mut self, now: Time) {
        let counts = |until: Option<Time>| until.is_none_or(|until| now < until);
        self.announced.retain(|_, until| counts(*until));
        let over: Vec<IpAddr> =
            self.routers.iter().filter(|(_, one)| !counts(one.until)).map(|(&ip, _)| ip).collect();
        for ip in over {
            self.remove_router(ip);
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let routers = self.routers.values().filter_map(|router| router.until);
        routers.chain(self.announced.values().filter_map(|until| *until)).min()
    }

    /// The default routers with their preference and the end of their lifetime.
    pub fn routers(&self) -> impl Iterator<Item = (IpAddr, i8, Option<Time>)> {
        self.routers.iter().map(|(&ip, router)| (ip, router.preference, router.until))
    }

    pub const fn drops(&self) -> &Drops<RouteDrop> {
        &self.drops
    }

    fn handle_prefix(&mut self, now: Time, info: &PrefixInformation) {
        let (ip, len) = (IpAddr::V6(info.prefix), info.prefix_length);
        if len > 128 || info.prefix.is_multicast() || info.prefix.is_unicast_link_local() {
            return self.drops.count(RouteDrop::BadPrefix);
        }
        let key = (masked(ip, len), len);
        match lifetime(info.valid_lifetime_seconds) {
            Some(lifetime) if lifetime.is_zero() => _ = self.announced.remove(&key),
            _ if self.announced.len() >= PREFIXES_MAX && !self.announced.contains_key(&key) => {
                self.drops.count(RouteDrop::Full);
            }
            lifetime => _ = self.announced.insert(key, lifetime.map(|lifetime| now + lifetime)),
        }
    }

    fn insert_router(&mut self, ip: IpAddr, preference: i8, until: Option<Time>) -> bool {
        if self.routers.len() >= ROUTERS_MAX && !self.routers.contains_key(&ip) {
            self.drops.count(RouteDrop::Full);
            return false;
        }
        self.numbers += 1;
        let number = self.routers.get(&ip).map_or(self.numbers, |known| known.number);
        self.routers.insert(ip, Router { preference, until, number });
        true
    }
}

fn masked(ip: IpAddr, len: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let host = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
            Ipv4Addr::from_bits(ip.to_bits() & !host).into()
        }
        IpAddr::V6(ip) => {
            let host = u128::MAX.checked_shr(u32::from(len)).unwrap_or(0);
            Ipv6Addr::from_bits(ip.to_bits() & !host).into()
        }
    }
}
