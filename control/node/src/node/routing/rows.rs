//! The rows of `pollux show routes`, in pages: by domain and prefix, and by preference for each
//! prefix.

use super::input::Input;
use super::next_hops::{HopGroup, HopGroups, SharedHops};
use super::routes::{Destination, FIRST, Rank, Route, RouteKey, candidates, merged};
use super::{Routing, target};
use crate::admin::page::{Cursor, PAGE_ROWS, Page, RowKey};
use crate::admin::reply::{AdminAnswer, AdminReply};
use crate::admin::rows::{RouteHop, RouteStatus};
use crate::config::{Prefix, RouteKind};
use pollux_control::router::kernel_routes::KernelHop;
use pollux_dataplane::fib::FibHop;
use pollux_dataplane::forward::DomainId;
use pollux_verbs::time::Time;
use std::net::IpAddr;
use std::ops::Bound;

impl Routing {
    /// A page of rows, from the cursor on.
    pub(in crate::node) fn page(&self, now: Time, from: Option<&Cursor>) -> Page {
        let first = match from.and_then(|from| from.after) {
            Some(RowKey::Route(domain, ip, len)) => {
                let (_, last) = RouteKey::bounds((DomainId(domain), Prefix { ip, len }));
                Bound::Excluded(last)
            }
            _ => Bound::Included(RouteKey::bounds(FIRST).0),
        };
        let range = (first, Bound::Unbounded);
        let (mut rows, mut last) = (Vec::new(), None);
        let all = merged([self.own.range(range), self.kernel.range(range)]);
        for to in all.map(|(key, _)| key.destination()) {
            if last == Some(to) {
                continue;
            }
            if rows.len() >= PAGE_ROWS {
                let key = |(DomainId(domain), Prefix { ip, len }): Destination| {
                    RowKey::Route(domain, ip, len)
                };
                let next = Cursor { interface: String::new(), after: last.map(key) };
                let reply = AdminReply::Ok(AdminAnswer::Routes(rows));
                return Page { reply, next: Some(next) };
            }
            rows.extend(self.rows_to(now, to));
            last = Some(to);
        }
        AdminReply::Ok(AdminAnswer::Routes(rows)).into()
    }

    pub(super) fn rows_to(&self, now: Time, to: Destination) -> Vec<RouteStatus> {
        let mut used: Option<&Route> = None;
        let mut rows = Vec::new();
        for (key, route) in candidates([&self.own, &self.kernel], to) {
            let is_usable = target(&self.groups, route).is_some();
            let why = match used {
                Some(better) => Some(format!("the {} route is preferred", better.source)),
                None => unused_hops(&self.input, &self.groups, route),
            };
            let is_active = is_usable && used.is_none();
            if is_active {
                used = Some(route);
            }
            rows.push(self.row(now, key, route, is_active, why));
        }
        rows
    }

    fn row(
        &self,
        now: Time,
        key: &RouteKey,
        route: &Route,
        is_active: bool,
        why: Option<String>,
    ) -> RouteStatus {
        let hop = |hop: &FibHop| RouteHop {
            interface: self.input.name(hop.port).into(),
            gateway: hop.gateway,
            weight: hop.weight.max(1),
        };
        let hops = match route.kind {
            RouteKind::Unicast => self.groups.hops(route.group),
            _ => &[],
        };
        let next = self.groups.get(route.group).and_then(HopGroup::next_domain);
        let (metric, table) = match key.rank {
            Rank::Kernel { metric, table } => (Some(metric), Some(table)),
            _ => (None, None),
        };
        let seconds = now.since(route.since).as_secs();
        RouteStatus {
            domain: self.input.domain_name(key.domain).into(),
            to: key.to.to_string(),
            source: route.source.to_string(),
            kind: route.kind.to_string(),
            via: hops.iter().map(hop).collect(),
            next_domain: next.map(|next| self.input.domain_name(next).into()),
            is_active,
            metric,
            table,
            seconds,
            why,
        }
    }
}

/// The next hops of a route that are not used, and why.
fn unused_hops(input: &Input, groups: &HopGroups, route: &Route) -> Option<String> {
    let group = groups.get(route.group).filter(|_| route.kind == RouteKind::Unicast)?;
    let why = |hop: Option<FibHop>, gateway: Option<IpAddr>, no_link: &str| {
        if hop.is_some_and(|hop| group.hops.contains(&hop)) {
            return None;
        }
        let why = if hop.is_some() { "it does not answer" } else { no_link };
        Some(gateway.map_or_else(|| why.into(), |gateway| format!("{gateway}: {why}")))
    };
    let is_down = |name: &str| format!("{name} is down");
    let all: Vec<_> = match &group.shared {
        SharedHops::Link(port) | SharedHops::Router(port, _) => {
            let is_unused = group.hops.is_empty();
            is_unused.then(|| is_down(input.name(*port))).into_iter().collect()
        }
        SharedHops::Gateways(domain, all) => {
            let no_link = "on no link of an interface that is up";
            let reason = |ip: &IpAddr| why(input.gateway(*domain, *ip), Some(*ip), no_link);
            all.iter().filter_map(reason).collect()
        }
        SharedHops::Domain(_) => Vec::new(),
        SharedHops::Kernel(all) => {
            let reason =
                |one: &KernelHop| why(input.kernel_hop(one), one.gateway, &is_down(&one.interface));
            all.iter().filter_map(reason).collect()
        }
    };
    (!all.is_empty()).then(|| all.join("; "))
}
