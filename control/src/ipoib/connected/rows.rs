//! Connections, as rows for operators.

use super::Connections;
use super::connection::Offer;
use crate::cm::Role;
use crate::effects::{ConnectionKey, WorkerId};
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::address::Qpn;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::ipoib::Dialect;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRow {
    pub connection: ConnectionKey,
    pub peer: LinkAddress,
    pub worker: WorkerId,
    pub role: Role,
    pub qp_type: QpType,
    pub dialect: Dialect,
    pub state: &'static str,
    /// The reason if the connection is ending, otherwise what it waits for.
    pub why: &'static str,
    pub since: Time,
    /// Whether we send packets by the connection. All connections receive.
    pub may_send: bool,
    pub mtu: u32,
    pub qpn: Option<Qpn>,
    /// The state of the alternate path. A loaded path protects the connection once packets have
    /// gone in both directions since.
    pub alternate: &'static str,
    pub migrations: u64,
    /// How long a reliable connection retries a packet before it fails.
    pub retry_period: Option<Duration>,
}

impl Connections {
    pub fn rows(&self) -> impl Iterator<Item = ConnectionRow> {
        self.all.iter().map(|(connection, known)| {
            let (state, why) = known.state.describe();
            ConnectionRow {
                connection,
                peer: LinkAddress::parse(&known.peer),
                worker: known.worker,
                role: known.role,
                qp_type: known.qp_type,
                dialect: known.dialect,
                state,
                why,
                since: known.since,
                may_send: self.may_send(known),
                mtu: known.mtu,
                qpn: known.state.qpn(),
                alternate: match (known.paths.alternate, known.paths.offer) {
                    (Some(_), _) => "loaded",
                    (None, Offer::None) => "none",
                    (None, Offer::Queried) => "queried",
                    (None, Offer::Offered(_)) => "offered",
                },
                migrations: known.paths.migrations,
                retry_period: (known.qp_type == QpType::Rc).then(|| {
                    let timeout = Duration::from_nanos(self.config.ack_timeout.nanoseconds());
                    timeout * (u32::from(self.config.retry_count) + 1)
                }),
            }
        })
    }

    /// The number of connections here, and the number at the CM, which includes those in time-wait.
    pub fn load(&self) -> (usize, usize) {
        (self.all.len(), self.cm.count())
    }

    pub fn peer_of(&self, key: ConnectionKey) -> Option<LinkAddress> {
        self.all.get(&key).map(|known| LinkAddress::parse(&known.peer))
    }
}
