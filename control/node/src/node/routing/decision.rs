//! The route to an address, with its reason: `pollux route get`.
//!
//! The lookup uses the routes of [`Routing`], since the FIB, which is made of them, has no sources
//! of routes.

use super::input::Domain;
use super::next_hops::HopGroup;
use super::routes::{Route, RouteKey, candidates};
use super::{Routing, target};
use crate::admin::route::{RouteDecision, RouteVerdict};
use crate::config::{DEFAULT_DOMAIN, Prefix, RouteKind};
use pollux_dataplane::forward::DomainId;
use pollux_verbs::time::Time;
use std::net::IpAddr;

impl Routing {
    /// The decision for packets of a domain to an address, by the present routes.
    pub(in crate::node) fn decide(
        &self,
        now: Time,
        address: IpAddr,
        domain: Option<&str>,
    ) -> Result<RouteDecision, String> {
        let name = domain.unwrap_or(DEFAULT_DOMAIN);
        let domain = Domain::find(&self.input.domains, name);
        let domain = domain.ok_or_else(|| {
            let known = self.input.domains.iter().map(|one| one.name.as_str());
            let known: Vec<_> = known.collect();
            format!("there is no domain {name}; the domains are {}", known.join(", "))
        })?;
        Ok(self.decide_in(now, domain, address))
    }

    fn decide_in(&self, now: Time, domain: DomainId, address: IpAddr) -> RouteDecision {
        let decision = |verdict, why| {
            let (route, next_hops) = (None, Vec::new());
            RouteDecision { address, verdict, route, next_hops, why }
        };
        let mut links = self.input.links.iter();
        let owner = links.find(|link| link.domain == domain && link.has(address));
        if let Some(owner) = owner {
            let why = format!("{} has this address", owner.name);
            return decision(RouteVerdict::Local, why);
        }
        let Some(first) = self.route_of(domain, address) else {
            return decision(RouteVerdict::NoRoute, "no route has it".into());
        };
        let next_domain = |(_, route): (&RouteKey, &Route)| {
            self.groups.get(route.group).and_then(HopGroup::next_domain)
        };
        let leak = next_domain(first);
        let found = match leak.map(|next| (next, self.route_of(next, address))) {
            None => first,
            Some((_, Some(second))) if next_domain(second).is_none() => second,
            Some((next, _)) => {
                let (key, next) = (first.0, self.input.domain_name(next));
                let why = format!("{} leads into domain {next}, where no route has it", key.to);
                return decision(RouteVerdict::NoRoute, why);
            }
        };
        let (key, route) = found;
        let (verdict, hops) = match route.kind {
            RouteKind::Unicast => (RouteVerdict::Forward, self.groups.hops(route.group)),
            RouteKind::Blackhole => (RouteVerdict::Blackhole, &[][..]),
            RouteKind::Unreachable => (RouteVerdict::Unreachable, &[][..]),
            RouteKind::Prohibit => (RouteVerdict::Prohibit, &[][..]),
        };
        let next_hops = hops.iter().map(|hop| hop.gateway.unwrap_or(address)).collect();
        let mut why = self.reason(key, route, hops.len());
        if let Some(next) = leak {
            why += &format!(", in domain {}", self.input.domain_name(next));
        }
        let mut rows = self.rows_to(now, key.destination()).into_iter();
        let route = rows.find(|row| row.is_active);
        RouteDecision { route, next_hops, ..decision(verdict, why) }
    }

    /// The route that packets to an address use: the first usable route to the longest prefix that
    /// has a usable route.
    fn route_of(&self, domain: DomainId, address: IpAddr) -> Option<(&RouteKey, &Route)> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (0..=bits).rev().find_map(|len| {
            let to = Prefix { ip: address, len }.network();
            let mut all = candidates([&self.own, &self.kernel], (domain, to));
            all.find(|(_, route)| target(&self.groups, route).is_some())
        })
    }

    fn reason(&self, key: &RouteKey, route: &Route, hops: usize) -> String {
        let mut why = format!("{} ({}) is the longest prefix that has it", key.to, route.source);
        if hops > 1 {
            why += &format!("; each flow takes one of {hops} next hops by its hash");
        }
        if !self.input.forwards && route.kind == RouteKind::Unicast {
            why += "; only for packets of this node: without [router], it forwards none";
        }
        why
    }
}
