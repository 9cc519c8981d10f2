//! The counters of an interface, for applications.

use crate::control_thread::ControlHandle;
use crate::hand_off::HandOffCounts;
use crate::host::Host;
use crate::stack::StackCounts;
use pollux_dataplane::ipoib::Traffic;
use pollux_node::admin::rows::DropCount;
use std::collections::BTreeMap;
use std::{fmt, io};

/// The counters of an interface since it was opened, and its sockets now. `Display` prints a
/// summary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InterfaceStatistics {
    /// Sent packets.
    pub packets_sent: u64,
    /// Bytes of sent packets, IP headers included.
    pub bytes_sent: u64,
    /// Received packets.
    pub packets_received: u64,
    /// Bytes of received packets, IP headers included.
    pub bytes_received: u64,
    /// Connections now, including half-open ones and TIME-WAIT.
    pub tcp_connections: usize,
    /// Listeners now.
    pub tcp_listeners: usize,
    /// UDP sockets now.
    pub udp_sockets: usize,
    /// Retransmitted segments of all connections.
    pub tcp_retransmissions: u64,
    /// Drops by component and reason, such as `udp queue_full`. Reasons that were not counted, or
    /// that a healthy interface counts too, are left out.
    pub drops: BTreeMap<String, u64>,
}

/// The counters of a worker's host.
pub(crate) struct HostCounts {
    stack: StackCounts,
    handed: HandOffCounts,
    tcp_connections: usize,
    tcp_listeners: usize,
    udp_sockets: usize,
}

/// The counters of the link and its control plane.
pub(crate) struct LinkCounts {
    traffic: Vec<Traffic>,
    drops: Vec<DropCount>,
}

impl Host {
    /// The counters of this host. Also publishes those of the device, which the control thread
    /// reads.
    pub(crate) fn counts(&mut self) -> HostCounts {
        self.node.worker.publish();
        HostCounts {
            stack: *self.stack.counts(),
            handed: self.hand_off_counts(),
            tcp_connections: self.stack.tcp_len(),
            tcp_listeners: self.stack.tcp_listeners_len(),
            udp_sockets: self.stack.udp_len(),
        }
    }
}

impl ControlHandle {
    pub(crate) fn link_counts(&self) -> io::Result<LinkCounts> {
        let counts = self.ask(|link, _| {
            let traffic = link.counters().map(|(_, counters)| counters.traffic).collect();
            Some(LinkCounts { traffic, drops: link.drop_counts("") })
        });
        counts.wait()
    }
}

impl InterfaceStatistics {
    pub(crate) fn new(hosts: &[HostCounts], link: LinkCounts) -> Self {
        let mut all = Self::default();
        for traffic in &link.traffic {
            all.packets_sent += traffic.datagrams_sent + traffic.connected_sent;
            all.packets_received += traffic.datagrams_received + traffic.connected_received;
            all.bytes_sent += traffic.bytes_sent;
            all.bytes_received += traffic.bytes_received;
        }
        for host in hosts {
            all.tcp_connections += host.tcp_connections;
            all.udp_sockets += host.udp_sockets;
            // Every worker has each listener.
            all.tcp_listeners = all.tcp_listeners.max(host.tcp_listeners);
            all.tcp_retransmissions += host.stack.tcp_retransmissions;
            all.drop("hand_off", "full", host.handed.dropped);
            all.add_drops_of_stack(&host.stack);
        }
        for DropCount { of, why, count, .. } in link.drops.iter().filter(|drop| !drop.usual) {
            all.drop(of, why, *count);
        }
        all
    }

    fn drop(&mut self, of: &str, why: &str, count: u64) {
        if count > 0 {
            *self.drops.entry(format!("{of} {why}")).or_default() += count;
        }
    }

    /// The pattern has no `..`, so that a new counter does not compile until it is listed here.
    fn add_drops_of_stack(&mut self, counts: &StackCounts) {
        let StackCounts {
            malformed,
            reassemblies_failed,
            unknown_protocol,
            not_one_to_one,
            udp_queue_full,
            backlog_full,
            icmp_errors_unmatched,
            // Answered by an ICMP error or a RST.
            udp_refused: _,
            tcp_refused: _,
            // These do not count drops.
            syn_cookies: _,
            syn_cookies_accepted: _,
            keepalive_timeouts: _,
            tcp_retransmissions: _,
            tcp_polls: _,
        } = *counts;
        self.drop("ip", "malformed", malformed);
        self.drop("ip", "reassembly_failed", reassemblies_failed);
        self.drop("ip", "unknown_protocol", unknown_protocol);
        self.drop("tcp", "not_one_to_one", not_one_to_one);
        self.drop("tcp", "backlog_full", backlog_full);
        self.drop("udp", "queue_full", udp_queue_full);
        self.drop("icmp", "unmatched", icmp_errors_unmatched);
    }
}

impl fmt::Display for InterfaceStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sent: {} packets, {} bytes", self.packets_sent, self.bytes_sent)?;
        writeln!(f, "received: {} packets, {} bytes", self.packets_received, self.bytes_received)?;
        let Self { tcp_connections, tcp_listeners, udp_sockets, .. } = self;
        writeln!(
            f,
            "sockets: {tcp_connections} TCP, {tcp_listeners} listening, {udp_sockets} UDP"
        )?;
        writeln!(f, "retransmitted: {} segments", self.tcp_retransmissions)?;
        let drops: Vec<_> =
            self.drops.iter().map(|(why, count)| format!("{count} {why}")).collect();
        let drops = if drops.is_empty() { "none".into() } else { drops.join(", ") };
        write!(f, "dropped: {drops}")
    }
}
