//! Requests to a running node or fabric: one JSON value per line. The server, the command and the
//! library share these types.

use super::capture::CaptureRequest;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A request of a client: one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AdminRequest {
    /// Return the rows of a table.
    Show(AdminTable),
    /// To a node: send an ICMP echo request, and return the outcome.
    Ping {
        /// The destination.
        address: IpAddr,
        /// Bytes of data.
        bytes: usize,
        /// The TTL, or hop limit; by default 64.
        #[serde(default)]
        ttl: Option<u8>,
        /// The interface; by default the one with a route to the destination.
        interface: Option<String>,
    },
    /// To a node: change the idle strategy.
    Idle {
        /// The name of the strategy in configurations.
        strategy: String,
        /// The number of one worker; by default all workers.
        worker: Option<usize>,
    },
    /// To a node: read its configuration file again, make the changes, and return them.
    Reload {
        /// Whether the changes are only listed, and not made.
        is_trial: bool,
        /// Milliseconds after which the changes are undone, unless they are confirmed.
        #[serde(default)]
        timeout_ms: Option<u64>,
    },
    /// To a node: keep the changes of a reload with a timeout, or undo them now. Returns the
    /// changes that are kept, or that undo them.
    Confirm {
        /// Whether the changes are undone.
        is_undo: bool,
    },
    /// To a node: return its configuration.
    Config {
        /// Whether keys with default values are included.
        has_defaults: bool,
    },
    /// To a node: change a route of administrators. Returns the changes.
    Route(RouteRequest),
    /// To a node: return its route to an address.
    RouteTo {
        /// The destination.
        address: IpAddr,
        /// The routing domain; by default `default`.
        #[serde(default)]
        domain: Option<String>,
    },
    /// To a node: return the steps of a packet through its tables.
    Trace(TraceRequest),
    /// To a node: begin a capture of packets, and return its number.
    BeginCapture(CaptureRequest),
    /// To a node: return the packets of a capture since the last such request.
    ReadCapture(u64),
    /// To a node: end a capture.
    EndCapture(u64),
    /// To a fabric: return the attributes and counters of a port.
    Port {
        /// The node, by its name or GUID.
        node: String,
        /// The number of the port; by default that of the first with a cable.
        #[serde(default)]
        port: Option<u8>,
    },
    /// To a fabric: add a fault rule, and return its number.
    AddFault(String),
    /// To a fabric: remove the fault rule of this number.
    RemoveFault(u32),
    /// To a fabric: list all fault rules.
    ListFaults,
}

/// A packet to trace through the tables of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TraceRequest {
    /// The destination address.
    pub address: IpAddr,
    /// The source address; by default one that any host may have.
    #[serde(default)]
    pub source: Option<IpAddr>,
    /// The interface where the packet arrives; without one, the node sends the packet.
    #[serde(default)]
    pub interface: Option<String>,
}

/// A change of a route of administrators. Such a route takes precedence over a configured route to
/// the same prefix. It lasts until it is removed or the node ends; a reload does not change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RouteRequest {
    /// Whether the route is added, replaced or removed.
    pub verb: RouteVerb,
    /// The prefix of the destinations.
    pub to: String,
    /// Gateways of a unicast route, to which flows are distributed; none to remove a route.
    #[serde(default)]
    pub via: Vec<IpAddr>,
    /// The type of the route: `unicast` (the default), `blackhole`, `unreachable` or `prohibit`.
    #[serde(default)]
    pub kind: Option<String>,
    /// The routing domain; by default `default`.
    #[serde(default)]
    pub domain: Option<String>,
}

/// A change of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum RouteVerb {
    /// Add a route. A route to the same prefix is an error.
    Add,
    /// Add a route, or replace the one to the same prefix.
    Replace,
    /// Remove a route.
    Del,
}

/// A table: `sockets` of a program that uses the library, `nodes`, `ports`, `links` and
/// `topology` of a fabric, `groups` of a fabric or a node, others of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AdminTable {
    Nodes,
    Ports,
    Links,
    Topology,
    Groups,
    Interfaces,
    Neighbors,
    Connections,
    Workers,
    Routes,
    Acl,
    Multicast,
    Drops,
    Kernel,
    Sockets,
}
