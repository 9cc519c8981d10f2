//! The rows of `pollux show neighbors`: the neighbor cache entries of all interfaces, of any kind.

use pollux_control::neighbor::State;
use pollux_verbs::named_enum;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A neighbor of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NeighborStatus {
    /// The interface with this neighbor cache entry.
    pub interface: String,
    /// The IP address that was resolved.
    pub address: IpAddr,
    /// The state of the neighbor cache entry.
    pub state: NeighborState,
    /// The link-layer address, if it is resolved.
    pub link: Option<String>,
    /// The transport of packets to the neighbor, if the address is resolved.
    pub by: Option<NeighborTransport>,
    /// The longest packet to the neighbor, in bytes.
    pub mtu: Option<u32>,
    /// The reason for the state.
    pub why: String,
    /// The reason why there is no connection yet, and the time of the next attempt.
    pub connection: Option<String>,
    /// The seconds since the state changed.
    pub seconds: u64,
    /// Packets that wait for the link address.
    pub pending: usize,
}

named_enum! {
    /// The state of a neighbor cache entry (RFC 4861 7.3.2; also for IPv4).
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    pub enum NeighborState {
        Incomplete = "incomplete",
        Reachable = "reachable",
        Stale = "stale",
        Delay = "delay",
        Probe = "probe",
        /// Resolution failed.
        Failed = "failed",
        /// Configured.
        Permanent = "permanent",
    }
}

impl NeighborState {
    /// The state of an entry of the cache.
    pub(crate) const fn of<L>(state: &State<L>) -> Self {
        match state {
            State::Incomplete { .. } => Self::Incomplete,
            State::Reachable { .. } => Self::Reachable,
            State::Stale { .. } => Self::Stale,
            State::Delay { .. } => Self::Delay,
            State::Probe { .. } => Self::Probe,
            State::Failed { .. } => Self::Failed,
            State::Permanent { .. } => Self::Permanent,
        }
    }
}

/// The transport of packets to a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum NeighborTransport {
    /// No packet has been sent to it yet.
    Unknown,
    /// Its path is being resolved.
    Pending,
    /// There is no path to it.
    Unreachable,
    /// UD datagrams.
    Datagram,
    /// An RC or UC connection.
    Connection,
}

display_as_serialized!(NeighborState NeighborTransport);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_their_serialized_names() {
        for state in NeighborState::ALL {
            assert_eq!(state.name(), state.to_string());
        }
    }
}
