//! Events for the consumer of connections, and reasons why messages are dropped.

use crate::effects::ConnectionKey;
use pollux_verbs::reasons;
use pollux_wire::mad::cm::{Apr, Lap, Rej, Rep, Req};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// A REQ was received: accept or reject it.
    Request { key: ConnectionKey, req: Box<Req> },
    /// The REP to our REQ was received: confirm or reject it.
    Reply { key: ConnectionKey, rep: Box<Rep> },
    /// An RTU was received, or data. Passive side only.
    Established { key: ConnectionKey },
    /// The peer has answered a probe: it still has the connection.
    Remembered { key: ConnectionKey },
    /// The connection ended: the peer ended it, it timed out, or the peer acknowledged our
    /// disconnect. Sent once; move the queue pair to the error state.
    Ended { key: ConnectionKey, end: ConnectionEnd },
    /// A LAP with an alternate path was received: answer it.
    PathOffered { key: ConnectionKey, lap: Box<Lap> },
    /// The APR for the path that we offered; `None` without an APR.
    PathAnswered { key: ConnectionKey, apr: Option<Box<Apr>> },
    /// TIME-WAIT is over: the queue pair number may be used again.
    Closed { key: ConnectionKey },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    Rejected(Box<Rej>),
    /// By a DREQ of the peer.
    Asked,
    /// By the DREP to our DREQ.
    Answered,
    /// The peer or the consumer did not answer in time.
    TimedOut,
    /// The connection is stale: the peer uses its queue pair for another one.
    Stale,
}

reasons! {
    pub enum CmDrop {
        /// Another class, method or attribute, or a version that we do not speak.
        NotOurs = "not_ours",
        Unknown = "unknown",
        /// It names a connection, but another port than the peer's has sent it.
        Stranger = "stranger",
        WrongQp = "wrong_qp",
        WrongState = "wrong_state",
        /// A repetition that needs no answer.
        Repeated = "repeated",
        NoListener = "no_listener",
        WrongGid = "wrong_gid",
        /// A request for a queue pair that is connected already, as far as we know.
        Stale = "stale",
        /// A request beyond the number that may be pending, of its sender or in all.
        TooManyRequests = "too_many_requests",
        /// A request beyond the number of connections that there may be.
        TableFull = "table_full",
        TooManyMras = "too_many_mras",
        OutgoingFull = "outgoing_full",
    }
}
