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
    /// An RTU or the first data was received. Passive side only.
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
    /// The peer sent a DREQ.
    Asked,
    /// The peer answered our DREQ by a DREP.
    Answered,
    /// The peer or the consumer did not answer in time.
    TimedOut,
    /// The connection is stale: the peer uses its queue pair or communication ID for another one.
    Stale,
}

reasons! {
    pub enum CmDrop {
        /// Another class, method or attribute, or a version that we do not speak.
        NotOurs = "not_ours",
        Unknown = "unknown",
        /// The message names a connection, but was sent by another port than the peer's.
        Stranger = "stranger",
        WrongQp = "wrong_qp",
        WrongState = "wrong_state",
        /// A repetition that needs no answer.
        Repeated = "repeated",
        NoListener = "no_listener",
        WrongGid = "wrong_gid",
        /// A REQ or REP with a queue pair of the peer that another connection still uses.
        Stale = "stale",
        /// A REQ beyond a limit: of pending requests of its sender or in total, or of connections
        /// through its router.
        TooManyRequests = "too_many_requests",
        /// A REQ beyond the limit of connections or of unpolled events.
        TableFull = "table_full",
        TooManyMras = "too_many_mras",
        OutgoingFull = "outgoing_full",
    }
}
