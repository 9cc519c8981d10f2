//! Requests to a running node or fabric: one JSON value a line, for the server, the command and the
//! library.

use super::capture::CaptureRequest;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// One line of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AdminRequest {
    /// The rows of a table.
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
        /// Its name in configurations.
        strategy: String,
        /// The number of one worker; by default all workers.
        worker: Option<usize>,
    },
    /// To a node: read its configuration file again, and make the changes; return them.
    Reload {
        /// Whether the changes are only listed, and not made.
        is_trial: bool,
        /// Milliseconds after which the changes are taken back, unless they are confirmed.
        #[serde(default)]
        timeout_ms: Option<u64>,
    },
    /// To a node: keep the changes of a reload with a timeout, or take them back now. Returns the
    /// changes that are kept or made.
    Confirm {
        /// Whether they are taken back.
        is_undo: bool,
    },
    /// To a node: return its configuration.
    Config {
        /// With the keys that have their defaults.
        has_defaults: bool,
    },
    /// To a node: change one of the routes that administrators add while it runs. Returns the
    /// changes.
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

/// A packet whose way through the tables of a node is traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TraceRequest {
    /// Where it is to go.
    pub address: IpAddr,
    /// Where it comes from; by default an address that any host may have.
    #[serde(default)]
    pub source: Option<IpAddr>,
    /// The interface where it arrives; without one, the node sends it.
    #[serde(default)]
    pub interface: Option<String>,
}

/// A change of a route of administrators. It comes before a route of the configuration to the same
/// prefix, and lasts until it is removed or the node ends: a reload leaves it alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RouteRequest {
    /// Whether it is added, replaced or removed.
    pub verb: RouteVerb,
    /// The prefix of its destinations.
    pub to: String,
    /// Gateways of a unicast route, which share the flows; none to remove it.
    #[serde(default)]
    pub via: Vec<IpAddr>,
    /// What becomes of packets: `blackhole`, `unreachable` or `prohibit`; by default `unicast`.
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
    /// Add a route; one to the same prefix is an error.
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
