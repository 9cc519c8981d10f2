//! Routing: makes the table that workers and control read, from configured routes, the subnets of
//! interfaces, and routes of the kernel.
//!
//! ```text
//!   [[route]], router = ..., subnets of interfaces that are up --+-> routes --> Fib
//!   pollux route add, del, replace (`by_admin`) -----------------+      |         |
//!   routes of the kernel, by daemons ----------------------------+      |         |
//!                        pollux show routes, route get (`decision`) <---+   workers, control
//! ```
//!
//! 1. [`input`]: the input of routes, and the routes that follow from it;
//! 2. [`routes`]: which of several routes to a prefix is preferred;
//! 3. [`next_hops`]: groups of next hops that routes share;
//! 4. [`table`]: the FIB.
//!
//! A route with gateways uses the gateways that are on the link of an interface that is up.
//!
//! Each routing domain has its own FIB. A route may lead into another domain: its gateways are on
//! links of that domain, or the destination is looked up again there.
//!
//! The cost of a change does not depend on the number of routes. A change of a kernel's route looks
//! up the candidates for its prefix, and an interface that goes down changes the groups of next
//! hops that use it. Readers never wait.

mod acls;
pub(super) mod by_admin;
mod counts;
mod decision;
mod input;
mod multicast;
mod next_hops;
mod routes;
mod rows;
pub(super) mod table;

pub(super) use counts::RouteCount;

use super::kernel_link::{KernelLink, KernelUpdate};
use super::opening::{ConfiguredInterface, Interfaces};
use crate::admin::rows::AclStatus;
use crate::admin::rows::MulticastStatus;
use crate::config::{NodeConfig, Prefix, RouteKind};
use acls::Acls;
use by_admin::AdminRoutes;
use counts::RouteCounts;
use input::{Domain, Input, Link, kernel_target};
use multicast::Multicast;
use next_hops::{Gateway, HopGroup, HopGroups};
use pollux_control::beyond::InterfaceTransfer;
use pollux_control::icmp::{ErrorBudget, IcmpConfig};
use pollux_control::router::kernel_routes::{KernelRoute, KernelRouteChange, KernelRouteKey};
use pollux_dataplane::fib::FibTarget;
use pollux_dataplane::port::PortId;
use pollux_mem::snapshot::{Publisher, Snapshot};
use pollux_verbs::time::Time;
use pollux_wire::netlink::route::RouteProtocol;
use routes::{Destination, Rank, Route, RouteKey, RouteSource, Routes, candidates};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use table::{DomainRoutes, InstalledRoutes, PortRules, RoutingTable, Target};

/// Interval of address resolution for gateways that do not answer.
const ASK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Routing {
    pub(super) by_admin: AdminRoutes,
    input: Input,
    /// Routes of the configuration and of interfaces.
    own: Routes,
    kernel: Routes,
    groups: HopGroups,
    acls: Acls,
    multicast: Multicast,
    installed: BTreeMap<String, InstalledRoutes>,
    table: Arc<RoutingTable>,
    publisher: Publisher<RoutingTable>,
    ports: BTreeMap<String, PortId>,
    /// When gateways that do not answer are resolved again.
    ask_at: Time,
    pub(super) counts: RouteCounts,
    /// The seed of flow hashes. It is the same for workers and control, which choose the same next
    /// hops.
    flow_seed: u64,
    /// The rate limit of ICMP errors, shared by all interfaces.
    errors: ErrorBudget,
}

impl Routing {
    /// Whether packets in transit are forwarded.
    pub(super) const fn forwards(&self) -> bool {
        self.input.forwards
    }

    /// Creates routing without routes, for this many workers, which hash flows with this seed.
    pub(super) fn new(workers: usize, flow_seed: u64) -> Self {
        let table = RoutingTable::default();
        Self {
            by_admin: AdminRoutes::default(),
            input: Input::default(),
            own: Routes::default(),
            kernel: Routes::default(),
            groups: HopGroups::default(),
            acls: Acls::new(workers),
            multicast: Multicast::default(),
            installed: BTreeMap::new(),
            publisher: Publisher::new(table.clone()),
            table: Arc::new(table),
            ports: BTreeMap::new(),
            ask_at: Time::START,
            counts: RouteCounts::default(),
            flow_seed,
            errors: ErrorBudget::new(&IcmpConfig::default()),
        }
    }

    pub(super) fn acl_rows(&self) -> Vec<AclStatus> {
        self.acls.rows()
    }

    pub(super) fn multicast_rows(&self) -> Vec<MulticastStatus> {
        self.multicast.rows(&self.input)
    }

    pub(super) fn reader(&self) -> Snapshot<RoutingTable> {
        self.publisher.reader()
    }

    /// The port number of an interface. It stays the same as long as the interface is configured.
    pub(super) fn port(&mut self, name: &str) -> PortId {
        if let Some(port) = self.ports.get(name) {
            return *port;
        }
        let is_free = |port: &PortId| !self.ports.values().any(|used| used == port);
        let port = (0..u16::MAX).map(PortId).find(is_free).unwrap_or(PortId(u16::MAX));
        self.ports.insert(name.into(), port);
        port
    }

    /// Updates the routes, and publishes them if their input has changed.
    pub(super) fn update(
        &mut self,
        now: Time,
        config: &NodeConfig,
        interfaces: &mut Interfaces,
        kernel: &mut KernelLink,
    ) {
        let mut touched = BTreeSet::new();
        let are_others = self.update_input(now, config, interfaces, &mut touched);
        match kernel.routes.take_update() {
            KernelUpdate::Changes(changes) => {
                for change in changes {
                    let (key, route) = match change {
                        KernelRouteChange::Set(key, route) => (key, Some(route)),
                        KernelRouteChange::Remove(key) => (key, None),
                    };
                    self.set_kernel(now, &key, route.as_ref(), &mut touched);
                }
            }
            KernelUpdate::All(all) => self.replace_kernel(now, &all, &mut touched),
        }
        for to in &touched {
            self.choose(*to);
        }
        let has_multicast = self.multicast.update(config, &self.input);
        if self.acls.update(config) || are_others || has_multicast || !touched.is_empty() {
            self.publish(interfaces);
        }
        self.multicast.join_groups(now, interfaces);
    }

    /// Takes over the configuration and the state of links. Returns whether any of it has changed.
    fn update_input(
        &mut self,
        now: Time,
        config: &NodeConfig,
        interfaces: &mut Interfaces,
        touched: &mut BTreeSet<Destination>,
    ) -> bool {
        let domains = Domain::all(config);
        let links = self.links(&domains, interfaces);
        let forwards = config.router.is_some_and(|router| router.forward);
        let (by_admin, away) = (self.by_admin.version(), self.away(now, interfaces));
        let has_other_domains = domains != self.input.domains;
        let has_other_routes = has_other_domains
            || links != self.input.links
            || config.route != self.input.routes
            || by_admin != self.input.by_admin;
        if !has_other_routes && forwards == self.input.forwards && away == self.input.away {
            return false;
        }
        self.ports.retain(|name, _| interfaces.all.contains_key(name));
        if has_other_domains {
            self.remove_own(touched);
        }
        let routes = config.route.clone();
        self.input = Input { links, forwards, domains, routes, by_admin, away };
        if has_other_domains {
            self.move_kernel(touched);
        }
        self.update_groups(touched);
        if has_other_routes {
            self.update_own(now, touched);
        }
        true
    }

    /// Removes the routes of the node itself, which are made again after domains got other numbers.
    fn remove_own(&mut self, touched: &mut BTreeSet<Destination>) {
        let Self { own, kernel, groups, .. } = self;
        touched.extend(own.keys().chain(kernel.keys()).map(RouteKey::destination));
        while let Some((_, route)) = own.pop_first() {
            groups.leave(route.group);
        }
    }

    /// Gives the kernel's routes the new numbers of their domains.
    fn move_kernel(&mut self, touched: &mut BTreeSet<Destination>) {
        let Self { kernel, groups, input, installed, .. } = self;
        for (key, route) in std::mem::take(kernel) {
            let Rank::Kernel { table, .. } = key.rank else { continue };
            match input.domain_of_table(table) {
                Some(domain) => _ = kernel.insert(RouteKey { domain, ..key }, route),
                None => groups.leave(route.group),
            }
        }
        touched.extend(kernel.keys().map(RouteKey::destination));
        let is_domain = |name: &String| Domain::find(&input.domains, name).is_some();
        installed.retain(|name, _| is_domain(name));
    }

    fn publish(&mut self, interfaces: &mut Interfaces) {
        let Self { installed, groups, input, acls, .. } = self;
        let domains = input.domains.iter().map(|domain| {
            let installed = installed.entry(domain.name.clone());
            installed.or_insert_with(InstalledRoutes::new).publish(groups)
        });
        let domains = domains.collect();
        let multicast = self.multicast.tables();
        let rules = |link: &Link| PortRules {
            domain: link.domain,
            reverse_path: link.rpf.at(link.port),
            acl_in: acls.find(link.acl_in.as_ref()),
            acl_out: acls.find(link.acl_out.as_ref()),
        };
        let ports = input.links.iter().map(|link| (link.port, rules(link)));
        let version = self.table.version + 1;
        let table = RoutingTable::new(version, domains, multicast, ports, input.forwards);
        self.counts.updates += 1;
        self.publisher.publish(table.clone());
        self.publisher.reclaim();
        self.table = Arc::new(table);
        for link in &self.input.links {
            let named = interfaces.all.get_mut(&link.name);
            if let Some(Ok(interface)) = named.map(|named| &mut named.interface) {
                let (table, errors) = (Arc::clone(&self.table), self.errors.clone());
                let (domain, seed) = (link.domain, self.flow_seed);
                let routes = DomainRoutes { table, domain, seed, errors };
                interface.set_node_routes(link.port, Arc::new(routes));
            }
        }
    }

    fn links(&mut self, domains: &[Domain], interfaces: &Interfaces) -> Vec<Link> {
        let link = |(name, named): (&String, &ConfiguredInterface)| {
            let running = named.interface.as_ref().ok();
            let subnets = running.iter().flat_map(|one| one.subnets());
            Link {
                name: name.clone(),
                port: self.port(name),
                // A domain is missing if it was removed; its last interfaces are leaving then.
                domain: Domain::find(domains, &named.settings.domain).unwrap_or_default(),
                is_up: running.is_some_and(|one| one.is_up()) && named.leaving.is_none(),
                addresses: subnets.map(|(ip, len)| Prefix { ip, len }).collect(),
                routers: named.settings.router.clone(),
                acl_in: named.settings.acl_in.clone(),
                acl_out: named.settings.acl_out.clone(),
                rpf: named.settings.rpf,
            }
        };
        interfaces.all.iter().map(link).collect()
    }

    /// Gateways that do not answer, of groups with several next hops. No packet is sent to them, so
    /// they are resolved at intervals.
    fn away(&mut self, now: Time, interfaces: &mut Interfaces) -> BTreeSet<Gateway> {
        let asks = self.ask_at <= now;
        if asks {
            self.ask_at = now + ASK_EVERY;
        }
        let mut away = BTreeSet::new();
        for gateway in self.groups.watched() {
            let (port, ip) = gateway;
            let link = self.input.links.iter().find(|link| link.port == *port);
            let named = link.and_then(|link| interfaces.all.get_mut(&link.name));
            let Some(interface) = named.and_then(ConfiguredInterface::ipoib_mut) else { continue };
            if interface.control().may_be_reachable(*ip) {
                continue;
            }
            away.insert(*gateway);
            if asks {
                interface.ask_for(now, *ip);
            }
        }
        away
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        (!self.input.away.is_empty()).then_some(self.ask_at)
    }

    /// Looks up the next hops of all groups again. Adds the prefixes of routes that become usable
    /// or unusable to `touched`.
    fn update_groups(&mut self, touched: &mut BTreeSet<Destination>) {
        let Self { groups, input, installed, .. } = self;
        let others = groups.update(|shared| input.hops(shared));
        for (id, _) in &others {
            // A group that has lost all next hops keeps them in the FIB until its routes are
            // removed there.
            let hops = groups.hops(*id);
            if !hops.is_empty() {
                installed.values_mut().for_each(|one| one.set_hops(*id, hops));
            }
        }
        let turned = others.into_iter().filter(|(_, turns)| *turns);
        let turned: BTreeSet<_> = turned.map(|(id, _)| id).collect();
        if !turned.is_empty() {
            let all = self.own.iter().chain(&self.kernel);
            let users = all.filter(|(_, route)| turned.contains(&route.group));
            touched.extend(users.map(|(key, _)| key.destination()));
        }
    }

    /// Changes the routes of the node itself to those of the current input.
    fn update_own(&mut self, now: Time, touched: &mut BTreeSet<Destination>) {
        let mut wanted = self.input.own_routes(&self.by_admin);
        for key in self.own.keys().copied().collect::<Vec<_>>() {
            if !wanted.contains_key(&key) {
                self.set_own(now, key, None, touched);
            }
        }
        while let Some((key, route)) = wanted.pop_first() {
            self.set_own(now, key, Some(route), touched);
        }
    }

    fn set_own(
        &mut self,
        now: Time,
        key: RouteKey,
        route: Option<input::OwnRoute>,
        touched: &mut BTreeSet<Destination>,
    ) {
        let Self { own, groups, input, .. } = self;
        let route = route.map(|(source, kind, shared)| {
            let group = groups.join(shared, |shared| input.hops(shared));
            Route { source, kind, group, since: now }
        });
        if set(own, groups, key, route) {
            touched.insert(key.destination());
        }
    }

    fn set_kernel(
        &mut self,
        now: Time,
        key: &KernelRouteKey,
        route: Option<&KernelRoute>,
        touched: &mut BTreeSet<Destination>,
    ) {
        let Self { kernel, groups, input, .. } = self;
        let Some(domain) = input.domain_of_table(key.table) else { return };
        // Routes of the kernel's own, such as the subnets of shadows, are left out.
        let route = route.filter(|one| one.protocol != RouteProtocol::KERNEL).map(|one| {
            let (kind, shared) = kernel_target(&one.target);
            let group = groups.join(shared, |shared| input.hops(shared));
            Route { source: RouteSource::Kernel(one.protocol), kind, group, since: now }
        });
        let key = RouteKey::of_kernel(domain, key);
        if set(kernel, groups, key, route) {
            touched.insert(key.destination());
        }
    }

    /// Replaces the routes of the kernel.
    fn replace_kernel(
        &mut self,
        now: Time,
        all: &BTreeMap<KernelRouteKey, KernelRoute>,
        touched: &mut BTreeSet<Destination>,
    ) {
        let domain = |key: &KernelRouteKey| self.input.domain_of_table(key.table);
        let wanted = all.keys().filter_map(|key| Some(RouteKey::of_kernel(domain(key)?, key)));
        let wanted: BTreeSet<_> = wanted.collect();
        for key in self.kernel.keys().copied().collect::<Vec<_>>() {
            if !wanted.contains(&key) && set(&mut self.kernel, &mut self.groups, key, None) {
                touched.insert(key.destination());
            }
        }
        all.iter().for_each(|(key, route)| self.set_kernel(now, key, Some(route), touched));
    }

    /// Installs the first usable route to a prefix.
    fn choose(&mut self, to: Destination) {
        let Self { own, kernel, groups, installed, input, .. } = self;
        let mut all = candidates([own, kernel], to);
        let target = all.find_map(|(_, route)| target(groups, route));
        let (domain, to) = to;
        let name = input.domain_name(domain);
        if !installed.contains_key(name) {
            installed.insert(name.into(), InstalledRoutes::new());
        }
        if let Some(installed) = installed.get_mut(name) {
            installed.set(to, target, groups);
        }
    }

    /// Passes packets on to the interfaces by which they leave. Returns whether there were any.
    pub(super) fn carry(&self, now: Time, interfaces: &mut Interfaces) -> bool {
        let all: Vec<_> = interfaces.running().flat_map(|one| one.poll_transfer()).collect();
        let is_any = !all.is_empty();
        for InterfaceTransfer { interface, packet, kind } in all {
            let link = self.input.links.iter().find(|link| link.port.0 == interface);
            let named = link.and_then(|link| interfaces.all.get_mut(&link.name));
            // If the interface was removed meanwhile, the packet is dropped.
            if let Some(Ok(interface)) = named.map(|named| &mut named.interface) {
                interface.handle_transfer(now, packet, kind);
            }
        }
        is_any
    }
}

/// Sets or removes a route. Returns whether that changes it. The caller has added a new route to
/// its group already.
fn set(routes: &mut Routes, groups: &mut HopGroups, key: RouteKey, route: Option<Route>) -> bool {
    let before = routes.get(&key).copied();
    let what = |route: Option<Route>| route.map(|one| (one.source, one.kind, one.group));
    let is_other = what(before) != what(route);
    match route {
        Some(route) if is_other => _ = routes.insert(key, route),
        // The route is the same, so it has joined its group twice.
        Some(route) => groups.leave(route.group),
        None => _ = routes.remove(&key),
    }
    if is_other && let Some(before) = before {
        groups.leave(before.group);
    }
    is_other
}

/// The target of packets by a route; `None` if the route cannot be used.
fn target(groups: &HopGroups, route: &Route) -> Option<Target> {
    let is_usable = |group: &HopGroup| !group.hops.is_empty() || group.next_domain().is_some();
    match route.kind {
        RouteKind::Unicast => {
            let group = groups.get(route.group).filter(|group| is_usable(group));
            group.map(|_| Target::Hops(route.group))
        }
        RouteKind::Blackhole => Some(Target::Rejected(FibTarget::Blackhole)),
        RouteKind::Unreachable => Some(Target::Rejected(FibTarget::Unreachable)),
        RouteKind::Prohibit => Some(Target::Rejected(FibTarget::Prohibited)),
    }
}
