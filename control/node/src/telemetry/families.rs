//! All metrics of a node: names, types, units and help. Names follow Prometheus's conventions:
//! base units, the unit at the end, no label that grows without bound.
//!
//! `control/node/schema/metrics.txt` is this list as programs see it; a test compares the two, so
//! that a change of a name shows in the diff.

use super::exposition::{MetricFamily, MetricKind};

macro_rules! families {
    ($($constant:ident: $kind:ident $name:literal $(in $unit:literal)?, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: MetricFamily = MetricFamily {
                name: $name,
                kind: MetricKind::$kind,
                unit: families!(@unit $($unit)?),
                help: $help,
            };
        )*

        pub const FAMILIES: &[MetricFamily] = &[$($constant,)*];
    };
    (@unit) => { None };
    (@unit $unit:literal) => { Some($unit) };
}

families! {
    BUILD: Info "pollux_build", "The version of this program";
    START_TIME: Gauge "pollux_start_time_seconds" in "seconds",
        "Start of the node, in seconds since 1970";
    RELOADS: Counter "pollux_config_reloads",
        "Reloads of the configuration, by result";
    RELOAD_SUCCESS: Gauge "pollux_config_last_reload_success",
        "Whether the last reload of the configuration succeeded";
    RELOAD_TIME: Gauge "pollux_config_last_reload_success_timestamp_seconds" in "seconds",
        "The last successful reload or the start, in seconds since 1970";

    INTERFACE: Info "pollux_interface",
        "Constants of an interface: device, partition, mode, link address, and LID while it is up";
    INTERFACE_UP: Gauge "pollux_interface_up",
        "Whether the interface is up, so that packets pass";
    INTERFACE_MTU: Gauge "pollux_interface_mtu_bytes" in "bytes",
        "The MTU of datagrams, while the interface is up";
    INTERFACE_CHANGES: Counter "pollux_interface_state_changes",
        "Changes of the state of the interface";
    INTERFACE_STARTS: Counter "pollux_interface_starts",
        "Times that the interface was set up at its device";
    RECEIVE_PACKETS: Counter "pollux_interface_receive_packets",
        "IP packets received by the interface";
    RECEIVE_BYTES: Counter "pollux_interface_receive_bytes" in "bytes",
        "Bytes of IP packets received by the interface";
    TRANSMIT_PACKETS: Counter "pollux_interface_transmit_packets",
        "IP packets sent by the interface";
    TRANSMIT_BYTES: Counter "pollux_interface_transmit_bytes" in "bytes",
        "Bytes of IP packets sent by the interface";
    DROPS: Counter "pollux_drops",
        "Dropped packets and messages, by part and reason as in pollux show drops";
    REFUSALS: Counter "pollux_refused",
        "Packets that could not be sent at once, by reason; most wait, or go to control";
    ICMP_SENT: Counter "pollux_icmp_sent",
        "ICMP messages about packets, and echo replies, sent by the interface";
    ICMP_SUPPRESSED: Counter "pollux_icmp_suppressed",
        "ICMP messages that were not sent because of their rate limit";

    NEIGHBORS: Gauge "pollux_neighbors",
        "Neighbors of the interface, by state of their cache entry (RFC 4861 7.3.2)";
    CONNECTIONS: Gauge "pollux_connections",
        "Connections of the interface (RFC 4755), by transport and state";
    GROUPS: Gauge "pollux_multicast_groups",
        "Multicast groups of the interface, by state";
    SA_QUERIES: Counter "pollux_sa_queries",
        "Queries to the subnet administrator that have ended, by result";
    SA_QUERIES_PENDING: Gauge "pollux_sa_queries_pending",
        "Queries to the subnet administrator that are queued, or sent and not answered";
    PENDING_PACKETS: Gauge "pollux_pending_packets",
        "Packets that wait for a neighbor, a path or a group";

    ROUTES: Gauge "pollux_routes",
        "Routes by domain, family and origin, also those behind another to the same prefix";
    FIB_ROUTES: Gauge "pollux_fib_routes",
        "Routes in the forwarding table of a domain";
    FIB_GROUPS: Gauge "pollux_fib_nexthop_groups",
        "Groups of next hops in the forwarding table of a domain";
    FIB_UPDATES: Counter "pollux_fib_updates",
        "Versions of the forwarding tables that were published";
    NETLINK_MESSAGES: Counter "pollux_netlink_messages",
        "Messages of the kernel about routes, while its routes are followed";
    NETLINK_OVERRUNS: Counter "pollux_netlink_overruns",
        "Losses of messages of the kernel; after each its tables are read again";
    NETLINK_DUMPS: Counter "pollux_netlink_resyncs",
        "Complete reads of the tables of the kernel, by result";
    NETLINK_SYNCHRONIZED: Gauge "pollux_netlink_synchronized",
        "Whether the routes of the node are those of the kernel";

    WORKER: Info "pollux_worker",
        "Constants of a worker thread: its core, if it is pinned, and its idle strategy";
    WORKER_BUSY: Counter "pollux_worker_busy_seconds" in "seconds",
        "Time of poll iterations with something to do";
    WORKER_IDLE: Counter "pollux_worker_idle_seconds" in "seconds",
        "Time without anything to do, asleep or polling";
    WORKER_ASLEEP: Counter "pollux_worker_asleep_seconds" in "seconds",
        "Time of sleeps";
    WORKER_BREATHS: Counter "pollux_worker_breaths",
        "Poll iterations; a worker that hangs or sleeps makes none";
    WORKER_EMPTY_BREATHS: Counter "pollux_worker_empty_breaths",
        "Poll iterations without anything to do";
    WORKER_SLEEPS: Counter "pollux_worker_sleeps",
        "Sleeps of the worker thread";
    WORKER_PACKETS: Counter "pollux_worker_packets",
        "Packets received and sent by the worker thread";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fmt::Write;
    use std::path::Path;

    #[test]
    fn names_follow_the_conventions() {
        let mut names = BTreeSet::new();
        for family in FAMILIES {
            let MetricFamily { name, unit, help, .. } = family;
            assert!(names.insert(*name) && name.starts_with("pollux_"), "{name}");
            assert!(unit.is_none_or(|unit| name.ends_with(&format!("_{unit}"))), "{name}");
            let has_unit = ["_seconds", "_bytes"].iter().any(|unit| name.ends_with(unit));
            assert_eq!(has_unit, unit.is_some(), "{name}");
            assert!(!["_total", "_info"].iter().any(|end| name.ends_with(end)), "{name}");
            assert!(!help.is_empty() && !help.ends_with('.') && !help.contains(['\\', '\n']));
        }
        // A sample of one family must not look like one of another.
        let samples: BTreeSet<_> = FAMILIES.iter().map(MetricFamily::sample_name).collect();
        assert_eq!(samples.len(), FAMILIES.len());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the environment asks for a new file")]
    fn names_are_those_that_were_published() {
        let mut list = String::new();
        for family in FAMILIES {
            let kind = format!("{:?}", family.kind).to_lowercase();
            let unit = family.unit.map_or(String::new(), |unit| format!(" in {unit}"));
            let _ = writeln!(list, "{} ({kind}{unit}): {}", family.sample_name(), family.help);
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/metrics.txt");
        if std::env::var_os("POLLUX_SCHEMA").is_some_and(|what| what == "write") {
            std::fs::write(&path, &list).expect("the work tree can be written");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == list,
            "{} is not the list of metrics; write it with `POLLUX_SCHEMA=write cargo test \
             --package pollux-node names_are`, and see which dashboards have to change",
            path.display()
        );
    }
}
