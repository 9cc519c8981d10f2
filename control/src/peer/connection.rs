//! A connection, as it is known here.

use super::migration::Ways;
use super::probe::Probe;
use super::{Address, PeerDrop};
use crate::cm::{ConnectionId, Role};
use crate::interface::Worker;
use crate::mad::MadAddress;
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::address::Qpn;
use pollux_wire::mad::cm::Req;
use pollux_wire::mad::cm::ipoib::Dialect;
use pollux_wire::mad::sa::PathRecord;

/// Where it is; see the table of the module above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Making,
    Asked,
    Accepted,
    Open,
    Ending(PeerDrop),
}

/// What a queue pair is made for.
#[derive(Clone, Debug)]
pub(super) enum Cause {
    Ours { path: Box<PathRecord> },
    Theirs { req: Box<Req>, from: MadAddress },
}

/// A connection, one of perhaps several to its peer.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: Address,
    /// Ours that moves it.
    pub(super) worker: Worker,
    /// The worker that asked for it, as whoever asked counts its own.
    pub(super) lane: u8,
    pub(super) qp_type: QpType,
    pub(super) dialect: Dialect,
    pub(super) cause: Cause,
    pub(super) state: State,
    pub(super) since: Time,
    pub(super) used: Time,
    /// Whether the peer is asked if it still has it, and when it was last.
    pub(super) probe: Probe,
    pub(super) probed: Time,
    /// Connection management's name for it; none before it was told and after all was over.
    pub(super) id: Option<ConnectionId>,
    pub(super) qpn: Option<Qpn>,
    pub(super) mtu: u32,
    pub(super) ways: Ways,
}

impl Connection {
    pub(super) const fn role(&self) -> Role {
        match self.cause {
            Cause::Ours { .. } => Role::Active,
            Cause::Theirs { .. } => Role::Passive,
        }
    }

    /// Whether it is for our packets too: not one that Linux made, whose receives are for sending's
    /// sake.
    pub(super) fn serves_us(&self) -> bool {
        self.role() == Role::Active || self.dialect == Dialect::Rfc
    }

    pub(super) const fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending(_))
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.state, State::Making | State::Asked | State::Accepted)
    }
}
