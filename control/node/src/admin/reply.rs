//! Replies of a running node or fabric: one JSON value a line, for the server, the command and the
//! library. The rows of tables are in [`rows`](super::rows).
//!
//! Why replies are typed: the server writes them, and the command and programs read them, by the
//! same definition. Programs in other languages have it as a JSON schema
//! (`control/node/schema/reply.json`).

use super::capture::{CaptureStatus, CapturedPackets};
use super::route::{RouteDecision, TraceStep};
use super::rows::{
    AclStatus, ChangeStatus, ConnectionStatus, DropCount, FaultStatus, GroupStatus,
    InterfaceStatus, KernelStatus, LinkStatus, MulticastStatus, NeighborStatus, NodeStatus,
    PortDetails, PortStatus, RouteStatus, SocketStatus, TopologyNode, WorkerStatus,
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// One line of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AdminReply<T> {
    /// The request succeeded.
    Ok(T),
    /// The request failed, for this reason.
    Error(String),
    /// The request may succeed soon; this is the reason for which it does not now.
    Later(String),
}

/// What a request returns when it succeeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AdminAnswer {
    Interfaces(Vec<InterfaceStatus>),
    Neighbors(Vec<NeighborStatus>),
    Connections(Vec<ConnectionStatus>),
    Groups(Vec<GroupStatus>),
    Workers(Vec<WorkerStatus>),
    Routes(Vec<RouteStatus>),
    Acl(Vec<AclStatus>),
    Multicast(Vec<MulticastStatus>),
    Drops(Vec<DropCount>),
    Kernel(Vec<KernelStatus>),
    Sockets(Vec<SocketStatus>),
    Nodes(Vec<NodeStatus>),
    Ports(Vec<PortStatus>),
    Links(Vec<LinkStatus>),
    Topology(Vec<TopologyNode>),
    Port(Box<PortDetails>),
    Faults(Vec<FaultStatus>),
    Changes(Vec<ChangeStatus>),
    Route(Box<RouteDecision>),
    Trace(Vec<TraceStep>),
    Capture(CaptureStatus),
    Captured(CapturedPackets),
    Config(ConfigText),
    /// The number of a fault rule that was added or removed.
    Fault(u32),
    Ping(PingOutcome),
    /// The request is carried out, and returns nothing: null.
    Done,
}

/// The configuration of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConfigText {
    /// The file that a reload reads. It may have changed since.
    pub file: Option<String>,
    /// The configuration that runs, as such a file.
    pub toml: String,
}

/// The outcome of an ICMP echo request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum PingOutcome {
    /// A reply came.
    Answered {
        /// Bytes of the ICMP message.
        bytes: usize,
        /// The TTL or hop limit of the reply.
        ttl: u8,
        /// The round-trip time in microseconds.
        us: f64,
    },
    /// No reply came.
    Lost {
        /// The reason, in the words of ping(8).
        lost: String,
        /// The sender of the ICMP error that is the reason.
        from: Option<IpAddr>,
    },
}
