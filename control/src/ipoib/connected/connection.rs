//! A connection and its state.

use super::probe::Probe;
use super::{Address, PeerDrop};
use crate::cm::Role;
use crate::effects::WorkerId;
use pollux_verbs::time::Time;
use pollux_verbs::{AddressVector, QpType};
use pollux_wire::address::Qpn;
use pollux_wire::mad::cm::ipoib::Dialect;
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::units::Mtu;

#[derive(Clone, Debug)]
pub(super) enum State {
    /// The device creates our queue pair, for a REQ along this path.
    CreatingForReq { path: Box<PathRecord> },
    /// The device creates our queue pair, for the REP to a REQ.
    CreatingForRep,
    /// The REQ was sent. If the peer rejects the service ID, a REQ with the other convention's ID
    /// follows.
    ReqSent { qpn: Qpn, path: Box<PathRecord> },
    /// The REP was sent.
    RepSent { qpn: Qpn },
    /// Packets are received, and sent if the connection serves our direction.
    Open { qpn: Qpn },
    /// The connection ends, for this reason.
    Ending {
        why: PeerDrop,
        /// Whether the CM still has the connection, and will report when it is closed.
        has_cm_connection: bool,
        qpn: Option<Qpn>,
    },
}

/// The names of all states.
pub const CONNECTION_STATES: [&str; 5] = ["creating", "req-sent", "rep-sent", "open", "ending"];

impl State {
    pub(super) const fn has_cm_connection(&self) -> bool {
        match *self {
            Self::CreatingForReq { .. } => false,
            Self::Ending { has_cm_connection, .. } => has_cm_connection,
            _ => true,
        }
    }

    pub(super) const fn qpn(&self) -> Option<Qpn> {
        match *self {
            Self::CreatingForReq { .. } | Self::CreatingForRep => None,
            Self::ReqSent { qpn, .. } | Self::RepSent { qpn, .. } | Self::Open { qpn, .. } => {
                Some(qpn)
            }
            Self::Ending { qpn, .. } => qpn,
        }
    }

    /// The name of the state, and its reason or what it waits for.
    pub(super) fn describe(&self) -> (&'static str, &'static str) {
        match self {
            Self::CreatingForReq { .. } | Self::CreatingForRep => {
                ("creating", "creating the queue pair")
            }
            Self::ReqSent { .. } => ("req-sent", "waiting for REP"),
            Self::RepSent { .. } => ("rep-sent", "waiting for RTU"),
            Self::Open { .. } => ("open", ""),
            Self::Ending { why, .. } => ("ending", why.name()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Offer {
    #[default]
    None,
    /// An SA query for the paths is outstanding.
    Queried,
    /// The peer is to answer our LAP with this path.
    Offered(AddressVector),
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionPaths {
    /// The path in use.
    pub(super) path: AddressVector,
    /// The path MTU of the queue pair, after the negotiation.
    pub(super) mtu: Option<Mtu>,
    /// The loaded alternate path, and since when.
    pub(super) alternate: Option<(AddressVector, Time)>,
    pub(super) offer: Offer,
    /// When to look for an alternate path.
    pub(super) due: Option<Time>,
    /// Failed searches in a row.
    pub(super) failures: u32,
    pub(super) migrations: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: Address,
    /// Our worker that owns the queue pair.
    pub(super) worker: WorkerId,
    /// The worker that requested the connection, by its index at the requesting node.
    pub(super) asking_worker: u8,
    pub(super) qp_type: QpType,
    pub(super) dialect: Dialect,
    pub(super) role: Role,
    pub(super) state: State,
    pub(super) since: Time,
    pub(super) used: Time,
    /// The liveness probe.
    pub(super) probe: Probe,
    /// The end of the time that the probes so far would fill at an even rate, to limit that rate.
    pub(super) probes_until: Time,
    pub(super) mtu: u32,
    pub(super) paths: ConnectionPaths,
}

impl Connection {
    /// Whether our packets may be sent by the connection. One that Linux requested only receives.
    pub(super) fn serves_us(&self) -> bool {
        self.role == Role::Active || self.dialect == Dialect::Rfc
    }

    pub(super) const fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending { .. })
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    pub(super) const fn is_under_way(&self) -> bool {
        !self.is_ending() && !self.is_open()
    }
}
