//! The rows of `pollux show topology`: the nodes of a fabric, running or planned, each with its
//! cables.
//!
//! Why peers are indexes: several nodes of a cluster may have the same name, such as the model of
//! their adapter.

use serde::{Deserialize, Serialize};

/// A node of a topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TopologyNode {
    /// The name in the topology. Several nodes may have it.
    pub node: String,
    /// Host, switch or router.
    pub kind: NodeKind,
    /// The node GUID.
    pub guid: String,
    /// The first LID of the ports, or of port 0 for a switch; none if it is not assigned.
    pub lid: Option<u16>,
    /// The number of ports.
    pub ports: u8,
    /// The ports with a cable, by number.
    pub cables: Vec<CabledPort>,
}

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum NodeKind {
    Host,
    Switch,
    Router,
}

/// A port with a cable. Only those of a running fabric have a state and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CabledPort {
    /// The number of the port.
    pub port: u8,
    /// The base LID of a host's or router's port; none if it is not assigned.
    pub lid: Option<u16>,
    /// The port state (IBA 14.2.5.6).
    pub state: Option<String>,
    /// The width and speed; none of a wire.
    pub rate: Option<String>,
    /// The nominal rate in Mb/s.
    pub megabits: Option<u32>,
    /// NODE:PORT at the other end of the cable, or the state of the wire.
    pub peer: String,
    /// The index of the node at the other end; none behind a wire.
    pub peer_node: Option<u32>,
    /// The number of the port at the other end.
    pub peer_port: Option<u8>,
    /// The process that has the port open.
    pub process: Option<u32>,
    /// Its counters.
    pub counters: Option<CableCounters>,
}

/// Counters of a port with a cable (IBA 16.1.3.5, 16.1.4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CableCounters {
    /// PortXmitPkts.
    pub sent: u64,
    /// PortRcvPkts.
    pub received: u64,
    /// PortXmitData, in bytes.
    pub bytes_sent: u64,
    /// PortRcvData, in bytes.
    pub bytes_received: u64,
    /// PortRcvErrors.
    pub errors: u64,
    /// PortXmitDiscards.
    pub discards: u64,
}

display_as_serialized!(NodeKind);
