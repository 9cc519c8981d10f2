//! The replies to `pollux route get` and `pollux trace`: how a node would treat a packet. No packet
//! is sent.

use super::rows::RouteStatus;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A step of a packet through the tables of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TraceStep {
    /// `origin`, `acl_in`, `verdict`, `rpf`, `route`, `target`, `group`, `next hop`, `acl_out`,
    /// `neighbor`, `path` or `mtu`. The last five come once for each next hop.
    pub step: String,
    /// The result of the step.
    pub result: String,
    /// The reason, or the consequence.
    pub why: String,
}

/// The route of a node to an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RouteDecision {
    /// The destination.
    pub address: IpAddr,
    /// The treatment of packets to the destination.
    pub verdict: RouteVerdict,
    /// The route that packets use: the usable route with the longest prefix. None if no route has
    /// the destination, or if the destination is an address of the node.
    pub route: Option<RouteStatus>,
    /// The addresses that are resolved at the links of the route, in the order of its next hops:
    /// gateways, or the destination itself.
    pub next_hops: Vec<IpAddr>,
    /// The reason for the verdict.
    pub why: String,
}

/// The treatment of packets to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum RouteVerdict {
    /// An interface of the node has the address.
    Local,
    /// Packets leave by a next hop.
    Forward,
    /// Packets are dropped silently.
    Blackhole,
    /// Packets are answered with destination unreachable.
    Unreachable,
    /// Packets are answered with administratively prohibited.
    Prohibit,
    /// There is no route: packets are answered with destination unreachable.
    NoRoute,
}

display_as_serialized!(RouteVerdict);
