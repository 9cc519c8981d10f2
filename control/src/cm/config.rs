//! Limits and times of the CM, and the addresses of its port.

use pollux_wire::address::{Gid, Guid, Lid};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// The GUID of our CA. A REP or REQ carries it, and so does a REJ because of a timeout.
    pub ca_guid: Guid,
    /// All connections, those in TIME-WAIT included.
    pub connections_max: usize,
    pub listeners_max: usize,
    /// Requests of all peers that are pending: not established yet, or rejected recently.
    pub requests_pending_max: usize,
    pub requests_pending_per_peer_max: usize,
    /// Connections requested by ports of other subnets through the LID of one router. Any port can
    /// pose as a router, and forge addresses behind it.
    pub connections_per_router_max: usize,
    pub messages_max: usize,
    /// Unpolled events; at this limit, no new connection starts.
    pub events_max: usize,
    /// The shortest retry interval, even if the peer announces a shorter response time.
    pub response_time_min: Duration,
    pub response_time_max: Duration,
    /// How long the consumer may take to answer a request or a reply.
    pub consumer_time_max: Duration,
    /// The longest extension by one MRA.
    pub mra_time_max: Duration,
    /// MRAs for one message.
    pub mras_max: u8,
    pub time_wait_max: Duration,
}

impl CmConfig {
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPort {
    pub number: u8,
    pub lid: Lid,
    /// The number of low LID bits that are path bits.
    pub lmc: u8,
    /// The port's GIDs, in the order of its table. Requests for any other GID are rejected, unless
    /// the list is empty.
    pub gids: Vec<Gid>,
}

impl Default for LocalPort {
    fn default() -> Self {
        Self { number: 1, lid: Lid::NONE, lmc: 0, gids: Vec::new() }
    }
}
