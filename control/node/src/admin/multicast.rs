//! The row of `pollux show multicast`.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A multicast route of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MulticastStatus {
    /// The routing domain that has the route.
    pub domain: String,
    /// The group to which its packets are sent.
    pub group: IpAddr,
    /// The source of its packets; without one, each that has no route of its own.
    pub source: Option<IpAddr>,
    /// The interface where they arrive.
    pub from: String,
    /// The interfaces by which they leave.
    pub to: Vec<String>,
    /// Packets with a TTL above this leave.
    pub ttl_threshold: u8,
}
