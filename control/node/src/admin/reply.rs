//! Replies of a running node or fabric: one JSON value per line. The server, the command and the
//! library share these types. The rows of tables are in [`rows`](super::rows).
//!
//! Why replies are typed: the server that writes a reply and the programs that read it share one
//! definition. Programs in other languages have a JSON schema of it
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

/// A reply of the server: one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum AdminReply<T> {
    /// The request succeeded.
    Ok(T),
    /// The request failed, for this reason.
    Error(String),
    /// The request cannot be served now, but may be soon; the text is the reason.
    Later(String),
}

/// The result of a successful request.
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
    /// The request was carried out, and has no result: null.
    Done,
}

/// The configuration of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConfigText {
    /// The file that a reload reads. It may differ from the running configuration.
    pub file: Option<String>,
    /// The running configuration, in the format of the file.
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
        /// The sender of the ICMP error that caused this.
        from: Option<IpAddr>,
    },
}
