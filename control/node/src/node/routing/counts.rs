//! How many routes a node has, by domain, family and source, for metrics.
//!
//! Why the first scrape after a change counts them, and not the change: the cost of a change must
//! not depend on the number of routes, and counting a million routes takes milliseconds.

use super::Routing;
use super::routes::{RouteSource, protocol_name};
use pollux_dataplane::forward::DomainId;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub(in crate::node) struct RouteCounts {
    pub(in crate::node) routes: Vec<RouteCount>,
    /// For each domain, the number of routes in the FIB, one for each prefix, and of groups of next
    /// hops.
    pub(in crate::node) installed: Vec<(String, usize, usize)>,
    /// The number of versions of the tables that were published, and that number at the last count.
    pub(in crate::node) updates: u64,
    counted: u64,
}

#[derive(Clone, Debug)]
pub(in crate::node) struct RouteCount {
    pub(in crate::node) domain: String,
    pub(in crate::node) family: &'static str,
    /// `connected`, `admin`, `static` or `kernel`.
    pub(in crate::node) origin: &'static str,
    pub(in crate::node) protocol: String,
    pub(in crate::node) count: u64,
}

impl Routing {
    /// Counts again if routes have changed.
    pub(in crate::node) fn update_counts(&mut self) {
        let Self { own, kernel, input, installed, counts, .. } = self;
        if counts.counted == counts.updates {
            return;
        }
        counts.counted = counts.updates;
        counts.installed.clear();
        for (name, routes) in installed {
            let (routes, groups) = routes.counts();
            counts.installed.push((name.clone(), routes, groups));
        }
        let mut sums = BTreeMap::<(DomainId, bool, &str, Option<u8>), u64>::new();
        for (key, route) in own.iter().chain(kernel.iter()) {
            let (origin, protocol) = match route.source {
                RouteSource::Connected => ("connected", None),
                RouteSource::Admin => ("admin", None),
                RouteSource::Static => ("static", None),
                RouteSource::Kernel(protocol) => ("kernel", Some(protocol.0)),
            };
            *sums.entry((key.domain, key.to.ip.is_ipv4(), origin, protocol)).or_default() += 1;
        }
        counts.routes.clear();
        for ((domain, is_v4, origin, protocol), count) in sums {
            let domain = input.domains.get(usize::from(domain.0));
            counts.routes.push(RouteCount {
                domain: domain.map(|domain| domain.name.clone()).unwrap_or_default(),
                family: if is_v4 { "ipv4" } else { "ipv6" },
                origin,
                protocol: protocol.map(protocol_name).unwrap_or_default(),
                count,
            });
        }
    }
}
