//! Events for the consumer of connections, and reasons why messages are dropped.

use super::Phase;
use crate::effects::ConnectionKey;
use crate::mad::MadAddress;
use pollux_verbs::reasons;
use pollux_wire::mad::cm::{Apr, Drep, Dreq, Lap, Rej, Rep, Req, Rtu};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// A REQ came: accept or reject it.
    Request { key: ConnectionKey, req: Box<Req>, from: MadAddress },
    /// A REP came for our REQ: confirm or reject it.
    Reply { key: ConnectionKey, rep: Box<Rep> },
    /// The peer has confirmed with an RTU, or has sent data. Passive side only.
    Established { key: ConnectionKey, rtu: Option<Box<Rtu>> },
    /// The peer of an established connection was probed and still has it.
    Remembered { key: ConnectionKey },
    /// The connection ended: the peer ended it, it timed out, or the peer acknowledged our
    /// disconnect. Sent once; move the queue pair to the error state.
    Ended { key: ConnectionKey, phase: Phase, end: End },
    /// A LAP came with an alternate path: answer it.
    PathOffered { key: ConnectionKey, lap: Box<Lap> },
    /// The APR for the path that we offered; `None` if no APR came.
    PathAnswered { key: ConnectionKey, apr: Option<Box<Apr>> },
    /// TIME-WAIT is over: the queue pair number may be used again.
    Closed { key: ConnectionKey },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Rejected(Box<Rej>),
    Asked(Box<Dreq>),
    Answered(Box<Drep>),
    /// The peer or the consumer did not answer in time.
    TimedOut,
    /// The connection is stale: the peer uses its queue pair for another one.
    Stale,
}

reasons! {
    pub enum CmDrop {
        /// Another class, method or attribute, or a version that we do not speak.
        NotOurs = "not_ours",
        /// No connection has these communication IDs.
        Unknown = "unknown",
        /// It names a connection, but does not come from the port of its peer.
        Stranger = "stranger",
        /// It names a queue pair that the connection does not have.
        WrongQp = "wrong_qp",
        WrongState = "wrong_state",
        /// A repetition that needs no answer.
        Repeated = "repeated",
        NoListener = "no_listener",
        /// A request for another port than ours.
        WrongGid = "wrong_gid",
        /// A request for a queue pair that is connected already, as far as we know.
        Stale = "stale",
        /// A request beyond the number that may be pending, of its sender or in all.
        TooManyRequests = "too_many_requests",
        /// A request beyond the number of connections that there may be.
        TableFull = "table_full",
        /// An MRA beyond the number that one message may get.
        TooManyMras = "too_many_mras",
        OutgoingFull = "outgoing_full",
    }
}
