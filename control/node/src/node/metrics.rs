//! The metrics of a node, from the state of control and from counters that workers published. A
//! scrape never involves a worker, and takes as long as reading all tables.

use super::NodeRunner;
use super::drop_counts::REFUSED;
use super::kinds::NodeInterface;
use super::opening::ConfiguredInterface;
use super::routing::RouteCount;
use crate::admin::rows::{DropCount, InterfaceStatus, NeighborState};
use crate::interface::IpoibLink;
use crate::telemetry::exposition::{Exposition, MetricFamily, MetricValue, MetricsFormat, Samples};
use crate::telemetry::families as all;
use pollux_control::icmp::IcmpSentKind;
use pollux_control::ipoib::connected::CONNECTION_STATES;
use pollux_control::ipoib::{GROUP_STATES, Load};
use pollux_control::router::kernel_routes::KernelRoutesCounters;
use pollux_control::sa::SaResults;
use pollux_dataplane::engine::counts::WorkerCounts;
use pollux_verbs::time::Time;
use std::collections::BTreeMap;

/// The usual length in bytes of a body without interfaces, and of the samples of an interface.
const BYTES: usize = 8 << 10;
const INTERFACE_BYTES: usize = 16 << 10;

type Count<Row, Value> = (&'static MetricFamily, fn(&Row) -> Value);

impl NodeRunner {
    pub(super) fn metrics(&mut self, format: MetricsFormat) -> String {
        self.routing.update_counts();
        let mut out = Exposition::new(format, BYTES + self.interfaces.all.len() * INTERFACE_BYTES);
        self.node(&mut out);
        let rows: Vec<_> = self.named().map(|(name, named)| self.status(name, named)).collect();
        self.states(&rows, &mut out);
        traffic(&rows, &mut out);
        self.drops(&mut out);
        self.tables(&mut out);
        self.administrator(&mut out);
        self.routes(&mut out);
        self.workers(&mut out);
        out.finish()
    }

    fn node(&self, out: &mut Exposition) {
        let reloads = &self.running.reloads;
        let last = reloads.succeeded_at.unwrap_or(Time::START);
        let last = self.start_seconds + last.since_start().as_secs_f64();
        out.family(&all::BUILD).add(&[("version", env!("CARGO_PKG_VERSION"))], true);
        out.family(&all::START_TIME).add(&[], self.start_seconds);
        out.family(&all::RELOADS)
            .add(&[("result", "success")], reloads.succeeded)
            .add(&[("result", "failure")], reloads.failed);
        out.family(&all::RELOAD_SUCCESS).add(&[], !reloads.has_failed_last);
        out.family(&all::RELOAD_TIME).add(&[], last);
    }

    fn named(&self) -> impl Iterator<Item = (&str, &ConfiguredInterface)> {
        self.interfaces.all.iter().map(|(name, named)| (name.as_str(), named))
    }

    fn running(&self) -> impl Iterator<Item = (&str, &NodeInterface)> {
        self.named().filter_map(|(name, named)| Some((name, named.interface.as_ref().ok()?)))
    }

    fn ipoib(&self) -> impl Iterator<Item = (&str, &IpoibLink)> {
        self.running().filter_map(|(name, one)| Some((name, one.ipoib()?)))
    }

    fn status(&self, name: &str, named: &ConfiguredInterface) -> InterfaceStatus {
        let ConfiguredInterface { settings, interface, .. } = named;
        interface.as_ref().map_or_else(
            |_| InterfaceStatus { interface: name.into(), ..InterfaceStatus::default() },
            |one| one.status(self.now(), name, &settings.device),
        )
    }

    fn states(&self, rows: &[InterfaceStatus], out: &mut Exposition) {
        let mut samples = out.family(&all::INTERFACE);
        for ((name, named), row) in self.named().zip(rows) {
            let settings = &named.settings;
            let (pkey, mode) = (format!("{:#06x}", settings.pkey.0), settings.mode.to_string());
            let lid = row.lid.map_or(String::new(), |lid| lid.to_string());
            let labels = [
                ("interface", name),
                ("device", &settings.device),
                ("pkey", &pkey),
                ("mode", &mode),
                ("lid", &lid),
                ("link", row.link.as_deref().unwrap_or_default()),
            ];
            samples.add(&labels, true);
        }
        let up = rows.iter().map(|row| (&*row.interface, row.state == "up"));
        add_each(out.family(&all::INTERFACE_UP), up);
        let mtus = rows.iter().filter_map(|row| Some((&*row.interface, u64::from(row.mtu?))));
        add_each(out.family(&all::INTERFACE_MTU), mtus);
        let changes = self.named().map(|(name, named)| (name, named.state_changes));
        add_each(out.family(&all::INTERFACE_CHANGES), changes);
        let starts = self.named().map(|(name, named)| (name, named.starts));
        add_each(out.family(&all::INTERFACE_STARTS), starts);
    }

    fn drops(&self, out: &mut Exposition) {
        let of = |(name, named): (&str, &ConfiguredInterface)| {
            Some(named.interface.as_ref().ok()?.drops(name))
        };
        let rows: Vec<_> = self.named().filter_map(of).flatten().collect();
        let mut samples = out.family(&all::DROPS);
        for DropCount { interface, of, why, count, .. } in
            rows.iter().filter(|row| row.of != REFUSED)
        {
            samples.add(&[("interface", interface), ("part", of), ("reason", why)], *count);
        }
        let mut samples = out.family(&all::REFUSALS);
        for DropCount { interface, why, count, .. } in rows.iter().filter(|row| row.of == REFUSED) {
            samples.add(&[("interface", interface), ("reason", why)], *count);
        }
        const FAMILIES: [(u8, &str); 2] = [(4, "ipv4"), (6, "ipv6")];
        let mut samples = out.family(&all::ICMP_SENT);
        for (name, one) in self.running() {
            for (number, family) in FAMILIES {
                for &kind in IcmpSentKind::ALL {
                    let labels = [("interface", name), ("family", family), ("type", kind.name())];
                    samples.add(&labels, one.icmp_counters().sent(number, kind));
                }
            }
        }
        let mut samples = out.family(&all::ICMP_SUPPRESSED);
        for (name, one) in self.running() {
            for (number, family) in FAMILIES {
                let labels = [("interface", name), ("family", family)];
                samples.add(&labels, one.icmp_counters().suppressed(number));
            }
        }
    }

    fn tables(&self, out: &mut Exposition) {
        let known: Vec<_> = NeighborState::ALL.iter().map(|state| state.name()).collect();
        let mut samples = out.family(&all::NEIGHBORS);
        for (name, one) in self.running() {
            let Some(states) = one.neighbor_states() else { continue };
            add_states(&mut samples, name, &[], &known, states.into_iter());
        }
        let mut samples = out.family(&all::CONNECTIONS);
        for (name, one) in self.ipoib() {
            let rows: Vec<_> = one.control().connection_rows().collect();
            for transport in ["RC", "UC"] {
                let states = rows.iter().filter(|row| row.qp_type.to_string() == transport);
                let (states, labels) = (states.map(|row| row.state), [("transport", transport)]);
                add_states(&mut samples, name, &labels, &CONNECTION_STATES, states);
            }
        }
        let mut samples = out.family(&all::GROUPS);
        for (name, one) in self.ipoib() {
            let states = one.control().group_rows().map(|row| row.state);
            add_states(&mut samples, name, &[], &GROUP_STATES, states);
        }
    }

    fn administrator(&self, out: &mut Exposition) {
        let mut samples = out.family(&all::SA_QUERIES);
        for (name, one) in self.ipoib() {
            let SaResults { answered, refused, busy, unanswered } = *one.control().sa_results();
            for (result, count) in [
                ("answered", answered),
                ("refused", refused),
                ("busy", busy),
                ("unanswered", unanswered),
            ] {
                samples.add(&[("interface", name), ("result", result)], count);
            }
        }
        let loads: Vec<_> = self.ipoib().map(|(name, one)| (name, one.control().load())).collect();
        let mut samples = out.family(&all::SA_QUERIES_PENDING);
        for (name, Load { sa_queries: (queued, sent), .. }) in &loads {
            samples.add(&[("interface", name), ("state", "queued")], *queued);
            samples.add(&[("interface", name), ("state", "sent")], *sent);
        }
        let pending = self.running().filter_map(|(name, one)| Some((name, one.pending()?)));
        add_each(out.family(&all::PENDING_PACKETS), pending);
    }

    fn routes(&self, out: &mut Exposition) {
        let counts = &self.routing.counts;
        let mut samples = out.family(&all::ROUTES);
        for RouteCount { domain, family, origin, protocol, count } in &counts.routes {
            let labels = [
                ("domain", domain.as_str()),
                ("family", family),
                ("origin", origin),
                ("protocol", protocol),
            ];
            samples.add(&labels, *count);
        }
        let mut samples = out.family(&all::FIB_ROUTES);
        for (domain, routes, _) in &counts.installed {
            samples.add(&[("domain", domain)], *routes);
        }
        let mut samples = out.family(&all::FIB_GROUPS);
        for (domain, _, groups) in &counts.installed {
            samples.add(&[("domain", domain)], *groups);
        }
        out.family(&all::FIB_UPDATES).add(&[], counts.updates);
        let Some(mirror) = self.kernel.mirror() else { return };
        let KernelRoutesCounters { messages, overruns, dumps, .. } = mirror.counters();
        let KernelRoutesCounters { dumps_interrupted, dumps_failed, .. } = mirror.counters();
        out.family(&all::NETLINK_MESSAGES).add(&[], messages);
        out.family(&all::NETLINK_OVERRUNS).add(&[], overruns);
        out.family(&all::NETLINK_DUMPS)
            .add(&[("result", "success")], dumps)
            .add(&[("result", "interrupted")], dumps_interrupted)
            .add(&[("result", "failure")], dumps_failed);
        out.family(&all::NETLINK_SYNCHRONIZED).add(&[], mirror.is_synchronized());
    }

    fn workers(&self, out: &mut Exposition) {
        let counts: Vec<_> = self.counts.read().map(Option::unwrap_or_default).collect();
        let rows = || self.handles.iter().zip(&counts).enumerate();
        let mut samples = out.family(&all::WORKER);
        for (number, (handle, _)) in rows() {
            let core = handle.core.map_or(String::new(), |core| core.to_string());
            let (number, idle) = (number.to_string(), handle.idle().name());
            samples.add(&[("worker", &number), ("core", &core), ("idle", idle)], true);
        }
        let seconds: [Count<WorkerCounts, u64>; 3] = [
            (&all::WORKER_BUSY, |it| it.busy_nanos),
            (&all::WORKER_IDLE, |it| it.running_nanos.saturating_sub(it.busy_nanos)),
            (&all::WORKER_ASLEEP, |it| it.asleep_nanos),
        ];
        for (family, nanos) in seconds {
            let mut samples = out.family(family);
            for (number, (_, counts)) in rows() {
                samples.add(&[("worker", &number.to_string())], nanos(counts) as f64 / 1e9);
            }
        }
        let numbers: [Count<WorkerCounts, u64>; 4] = [
            (&all::WORKER_BREATHS, |it| it.breaths),
            (&all::WORKER_EMPTY_BREATHS, |it| it.breaths.saturating_sub(it.busy_breaths)),
            (&all::WORKER_SLEEPS, |it| it.sleeps),
            (&all::WORKER_PACKETS, |it| it.packets),
        ];
        for (family, count) in numbers {
            let mut samples = out.family(family);
            for (number, (_, counts)) in rows() {
                samples.add(&[("worker", &number.to_string())], count(counts));
            }
        }
    }
}

fn traffic(rows: &[InterfaceStatus], out: &mut Exposition) {
    let of: [Count<InterfaceStatus, Option<u64>>; 4] = [
        (&all::RECEIVE_PACKETS, |row| row.received),
        (&all::RECEIVE_BYTES, |row| row.bytes_received),
        (&all::TRANSMIT_PACKETS, |row| row.sent),
        (&all::TRANSMIT_BYTES, |row| row.bytes_sent),
    ];
    for (family, count) in of {
        let counts = rows.iter().filter_map(|row| Some((&*row.interface, count(row)?)));
        add_each(out.family(family), counts);
    }
}

fn add_each<'a, Value: Into<MetricValue>>(
    mut samples: Samples<'_>,
    values: impl Iterator<Item = (&'a str, Value)>,
) {
    for (interface, value) in values {
        samples.add(&[("interface", interface)], value);
    }
}

/// Adds the number of members in each state. States without members have samples, too, so that
/// alert rules find them.
fn add_states<'a>(
    samples: &mut Samples<'_>,
    interface: &str,
    labels: &[(&str, &str)],
    known: &[&'a str],
    states: impl Iterator<Item = &'a str>,
) {
    let mut counts: BTreeMap<_, _> = known.iter().map(|state| (*state, 0_u64)).collect();
    states.for_each(|state| *counts.entry(state).or_default() += 1);
    for (state, count) in counts {
        let all = [&[("interface", interface)], labels, &[("state", state)]].concat();
        samples.add(&all, count);
    }
}
