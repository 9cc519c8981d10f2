//! How much connection management takes on, and how long it waits.

use pollux_wire::address::{Gid, Guid, Lid};
use std::time::Duration;

/// Limits and times of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// The GUID of our node; with the queue pair number it identifies stale connections.
    pub ca_guid: Guid,
    /// Connections in all, those in time-wait included.
    pub connections_max: usize,
    /// Service IDs that are listened for.
    pub listeners_max: usize,
    /// Connections that others asked for and that do not stand yet, or were rejected just now.
    pub requests_pending_max: usize,
    /// The same of one peer.
    pub requests_pending_per_peer_max: usize,
    /// Connections requested by ports of other subnets by way of one LID. Any port can pose as a
    /// router, and forge addresses behind it.
    pub connections_per_router_max: usize,
    /// Messages that wait to be polled.
    pub messages_max: usize,
    /// Events that wait to be polled, before nothing new is begun.
    pub events_max: usize,
    /// The least time between a message and its repetition, whatever the peer wants.
    pub response_time_min: Duration,
    /// The most.
    pub response_time_max: Duration,
    /// How long the consumer may take to answer a request or a reply.
    pub consumer_time_max: Duration,
    /// How much time the peer can ask for at once.
    pub mra_time_max: Duration,
    /// How often it can, for one message.
    pub mras_max: u8,
    /// The longest TIME-WAIT.
    pub time_wait_max: Duration,
}

impl CmConfig {
    /// Usual limits, for a node.
    pub const fn of(ca_guid: Guid) -> Self {
        Self {
            ca_guid,
            connections_max: 65_536,
            listeners_max: 1024,
            requests_pending_max: 4096,
            requests_pending_per_peer_max: 64,
            connections_per_router_max: 1024,
            messages_max: 4096,
            events_max: 65_536,
            response_time_min: Duration::from_millis(1),
            response_time_max: Duration::from_secs(20),
            consumer_time_max: Duration::from_secs(30),
            mra_time_max: Duration::from_secs(60),
            mras_max: 8,
            time_wait_max: Duration::from_secs(20),
        }
    }
}

/// The addresses of our port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// Its number.
    pub number: u8,
    /// Its address.
    pub lid: Lid,
    /// How many bits of its LID choose a path.
    pub lmc: u8,
    /// Its GIDs, in the order of its table. Requests for another one are rejected; if there are
    /// none here, all are taken.
    pub gids: Vec<Gid>,
}

impl Default for LocalPort {
    fn default() -> Self {
        Self { number: 1, lid: Lid::NONE, lmc: 0, gids: Vec::new() }
    }
}
