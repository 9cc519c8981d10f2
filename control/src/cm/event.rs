//! What a consumer of connections is told, and what is dropped without telling.

use super::{ConnectionId, Phase};
use crate::drops::reasons;
use crate::mad::MadAddress;
use pollux_wire::mad::cm::{Apr, Drep, Dreq, Lap, Rej, Rep, Req, Rtu};

/// What a consumer is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`id` is the connection, everywhere")]
pub enum CmEvent {
    /// A peer asks: to be accepted or rejected.
    Request { id: ConnectionId, req: Box<Req>, from: MadAddress },
    /// The peer accepts what we asked for: to be confirmed or rejected.
    Reply { id: ConnectionId, rep: Box<Rep> },
    /// The peer has confirmed, or has sent data. (Who confirms knows it without this.)
    Established { id: ConnectionId, rtu: Option<Box<Rtu>> },
    /// The peer of a connection that stands was asked whether it still has it, and does.
    Remembered { id: ConnectionId },
    /// It is over, by nothing that the consumer did, or since the peer heard that it shall be; the
    /// queue pair can go to the error state. Comes once.
    Ended { id: ConnectionId, phase: Phase, end: End },
    /// The peer offers another path: to be answered.
    PathOffered { id: ConnectionId, lap: Box<Lap> },
    /// What the peer thinks of the path that we offered; nothing if it did not say.
    PathAnswered { id: ConnectionId, apr: Option<Box<Apr>> },
    /// Nothing is left of it, on the wire or here.
    Closed { id: ConnectionId },
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer does not want it, or not any more.
    Rejected(Box<Rej>),
    /// The peer asked for it to end.
    Asked(Box<Dreq>),
    /// The peer agreed that it ends.
    Answered(Box<Drep>),
    /// The peer did not answer, or the consumer did not.
    TimedOut,
    /// The peer uses its queue pair for another connection, and so has forgotten this one.
    Stale,
}

reasons! {
    /// Why a message was dropped.
    pub enum CmDrop {
        /// Another class, method or attribute, or a version that we do not speak.
        NotOurs = "not_ours",
        /// About no connection that we know.
        Unknown = "unknown",
        /// About a connection, from somebody who is not its peer.
        Stranger = "stranger",
        /// About a queue pair that the connection does not have.
        WrongQp = "wrong_qp",
        /// It makes no sense in the connection's state.
        WrongState = "wrong_state",
        /// It came before, and needs no answer now.
        Repeated = "repeated",
        /// A request to which nobody listens.
        NoListener = "no_listener",
        /// A request for a port that we are not.
        WrongGid = "wrong_gid",
        /// A request for a queue pair that is connected already, as far as we know.
        Stale = "stale",
        /// A request beyond the number that may be pending, of its sender or in all.
        TooManyRequests = "too_many_requests",
        /// A request beyond the number of connections that there may be.
        TableFull = "table_full",
        /// Patience has an end.
        TooManyPleas = "too_many_pleas",
        /// Too many messages wait to be sent.
        OutgoingFull = "outgoing_full",
    }
}
