//! The states of a connection, each with its data and timers (IBA 12.9).

use crate::effects::ConnectionKey;
use pollux_verbs::time::Time;
use pollux_wire::mad::cm::{Apr, CmMessage, Rtu};
use std::fmt;
use std::time::Duration;

/// A message that is sent until it is answered, or its retries are used up.
#[derive(Clone, Debug)]
pub(super) struct Repeat {
    pub(super) message: Box<CmMessage>,
    pub(super) transaction_id: u64,
    pub(super) times_left: u8,
    pub(super) interval: Duration,
    pub(super) due: Time,
    /// MRAs that the peer may still send for it.
    pub(super) mras_left: u8,
}

/// Another path that the peer offers.
#[derive(Clone, Debug)]
pub(super) enum Offer {
    None,
    /// The consumer must answer it.
    Received {
        transaction_id: u64,
    },
    /// The last answer, for a repetition.
    Answered {
        transaction_id: u64,
        apr: Box<Apr>,
    },
}

#[derive(Clone, Debug)]
pub(super) enum State {
    ReqSent(Repeat),
    MraReqReceived(Repeat),
    RepReceived {
        until: Time,
    },
    ReqReceived {
        until: Time,
    },
    RepSent(Repeat),
    MraRepReceived(Repeat),
    Established {
        /// The RTU of the active side, for a repetition.
        rtu: Option<Box<Rtu>>,
        /// Our offer of another path.
        offered: Option<Repeat>,
        offer: Offer,
    },
    DreqSent(Repeat),
    TimeWait {
        until: Time,
        /// The last message, for a repetition.
        last_message: Option<Box<CmMessage>>,
    },
    /// To be removed from the tables.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    ReqSent,
    MraReqReceived,
    RepReceived,
    ReqReceived,
    RepSent,
    MraRepReceived,
    Established,
    DreqSent,
    TimeWait,
    Closed,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ReqSent => "REQ sent",
            Self::MraReqReceived => "MRA(REQ) received",
            Self::RepReceived => "REP received",
            Self::ReqReceived => "REQ received",
            Self::RepSent => "REP sent",
            Self::MraRepReceived => "MRA(REP) received",
            Self::Established => "established",
            Self::DreqSent => "DREQ sent",
            Self::TimeWait => "time-wait",
            Self::Closed => "closed",
        })
    }
}

impl State {
    pub(super) const fn phase(&self) -> Phase {
        match self {
            Self::ReqSent(_) => Phase::ReqSent,
            Self::MraReqReceived(_) => Phase::MraReqReceived,
            Self::RepReceived { .. } => Phase::RepReceived,
            Self::ReqReceived { .. } => Phase::ReqReceived,
            Self::RepSent(_) => Phase::RepSent,
            Self::MraRepReceived(_) => Phase::MraRepReceived,
            Self::Established { .. } => Phase::Established,
            Self::DreqSent(_) => Phase::DreqSent,
            Self::TimeWait { .. } => Phase::TimeWait,
            Self::Closed => Phase::Closed,
        }
    }

    pub(super) fn due(&self) -> Option<Time> {
        match self {
            Self::ReqSent(repeat)
            | Self::MraReqReceived(repeat)
            | Self::RepSent(repeat)
            | Self::MraRepReceived(repeat)
            | Self::DreqSent(repeat) => Some(repeat.due),
            Self::RepReceived { until, .. }
            | Self::ReqReceived { until, .. }
            | Self::TimeWait { until, .. } => Some(*until),
            Self::Established { offered, .. } => offered.as_ref().map(|repeat| repeat.due),
            Self::Closed => None,
        }
    }
}

/// Why a call of the consumer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    #[error("there is no connection {}", .0.comm_id())]
    NotThere(ConnectionKey),
    #[error("a connection in state '{0}' cannot do this")]
    WrongState(Phase),
    /// The limit of connections, or of unpolled events.
    #[error("no room for another connection: poll events, or end some")]
    Full,
}
