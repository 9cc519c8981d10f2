//! The columns of the tables of `pollux show`. Rows have more fields, which `--json` prints.

use crate::table::{Cell, Column};
use pollux_node::admin::route::TraceStep;
use pollux_node::admin::rows::{
    AclStatus, ConnectionStatus, DropCount, FaultStatus, GroupStatus, InterfaceStatus,
    KernelStatus, LeaseStatus, LinkStatus, MembershipStatus, MulticastStatus, MulticastTree,
    NeighborStatus, NodeStatus, PortStatus, RouteHop, RouteStatus, SocketStatus, TcpStatus,
    WorkerStatus,
};

pub trait Columns: Sized + 'static {
    const COLUMNS: &'static [Column<Self>];
}

/// A row that `pollux show` may leave out.
pub trait Selected {
    fn is_of(&self, _interface: &str) -> bool {
        false
    }

    /// Whether it is shown only on request: a counter that is zero, or an unused route.
    fn is_zero(&self) -> bool {
        false
    }
}

macro_rules! of_interfaces {
    ($($row:ident)+) => {
        $(impl Selected for $row {
            fn is_of(&self, interface: &str) -> bool {
                self.interface == interface
            }
        })+
    };
}
of_interfaces!(InterfaceStatus NeighborStatus ConnectionStatus MembershipStatus SocketStatus);

impl Selected for DropCount {
    fn is_of(&self, interface: &str) -> bool {
        self.interface == interface
    }

    fn is_zero(&self) -> bool {
        self.count == 0
    }
}

impl Selected for RouteStatus {
    fn is_of(&self, interface: &str) -> bool {
        self.via.iter().any(|hop| hop.interface == interface)
    }

    /// Whether another route to the same prefix is used instead.
    fn is_zero(&self) -> bool {
        !self.is_active && (self.kind != "unicast" || !self.via.is_empty())
    }
}

impl Selected for MulticastStatus {
    fn is_of(&self, interface: &str) -> bool {
        self.from == interface || self.to.iter().any(|to| to == interface)
    }
}

impl Selected for WorkerStatus {
    fn is_of(&self, interface: &str) -> bool {
        self.interfaces.iter().any(|name| name == interface)
    }
}

impl Selected for GroupStatus {
    fn is_of(&self, interface: &str) -> bool {
        matches!(self, Self::Membership(membership) if membership.is_of(interface))
    }
}

// An access control list belongs to no interface: several interfaces may use it.
impl Selected for AclStatus {}
impl Selected for KernelStatus {}
impl Selected for LinkStatus {}
impl Selected for NodeStatus {}
impl Selected for PortStatus {}

/// Defines columns that have the names of fields.
macro_rules! columns {
    ($($row:ident: $($field:ident)+;)+) => {
        $(impl Columns for $row {
            const COLUMNS: &'static [Column<Self>] =
                &[$((columns!(@name $field), |row| row.$field.cell())),+];
        })+
    };
    // `type` is a keyword, so the field has another name.
    (@name qp_type) => { "type" };
    (@name is_active) => { "active" };
    (@name $field:ident) => { stringify!($field) };
}

columns! {
    InterfaceStatus:
        interface state workers lid mtu addresses dhcp link sent received why waits_for;
    NeighborStatus: interface address state by mtu link why connection;
    ConnectionStatus:
        interface worker peer qp_type state role dialect mtu qpn sent received why;
    MembershipStatus: interface group lid state receives why;
    WorkerStatus:
        worker core idle interfaces packets ns_per_packet batch_size idle_percent breaths
        busy_breaths sleeps asleep_ms busy_ms;
    RouteStatus: domain to source kind via next_domain metric seconds is_active why;
    MulticastStatus: domain group source from to ttl_threshold;
    AclStatus: acl rule action packets matches;
    DropCount: interface of why usual count;
    KernelStatus: table state routes messages overruns dumps unsupported;
    SocketStatus: protocol state receive_queue send_queue local peer;
    NodeStatus: node kind guid lid ports drops;
    PortStatus: port state lid mtu peer process sent received errors discards;
    LinkStatus: from to rate state;
    MulticastTree: lid ports;
    FaultStatus: number rule;
    TraceStep: step result why;
}

impl Cell for Vec<RouteHop> {
    fn cell(&self) -> String {
        let hop = |hop: &RouteHop| {
            let name = match hop.gateway {
                Some(gateway) => format!("{gateway}@{}", hop.interface),
                None => hop.interface.clone(),
            };
            if hop.weight == 1 { name } else { format!("{name}*{}", hop.weight) }
        };
        let hops: Vec<_> = self.iter().map(hop).collect();
        if hops.is_empty() { "-".into() } else { hops.join(" ") }
    }
}

impl Cell for TcpStatus {
    fn cell(&self) -> String {
        let us = |value: f64| format!("{value:.0}us");
        let (rtt, variation) = (self.rtt_us.map(us), us(self.rtt_variation_us));
        format!(
            "rtt={}/{variation} rto={} cwnd={} ssthresh={} mss={} pmtu={} in_flight={} \
             peer_window={} acked={} received={} retransmissions={}",
            rtt.cell(),
            us(self.rto_us),
            self.congestion_window.cell(),
            self.slow_start_threshold.cell(),
            self.mss,
            self.path_mtu,
            self.bytes_in_flight,
            self.send_window,
            self.bytes_acknowledged,
            self.bytes_received,
            self.retransmissions
        )
    }
}

impl Cell for LeaseStatus {
    fn cell(&self) -> String {
        let server = self.server.iter().map(|server| format!(" server={server}"));
        let left = self.left.iter().map(|seconds| format!(" left={seconds}"));
        self.state.clone() + &server.chain(left).collect::<String>()
    }
}
