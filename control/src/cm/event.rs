//! What an owner of connections is told, and what is dropped without telling.

use super::{ConnectionId, Phase};
use crate::mad::MadAddress;
use pollux_wire::mad::cm::{Apr, Drep, Dreq, Lap, Rej, Rep, Req, Rtu};

/// What an owner is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`id` is the connection, everywhere")]
pub enum CmEvent {
    /// A peer asks: to be accepted or rejected.
    Request { id: ConnectionId, req: Box<Req>, from: MadAddress },
    /// The peer accepts what we asked for: to be confirmed or rejected.
    Reply { id: ConnectionId, rep: Box<Rep> },
    /// The peer has confirmed, or has sent data. (Who confirms knows it without this.)
    Established { id: ConnectionId, rtu: Option<Box<Rtu>> },
    /// It is over, by nothing that the owner did, or since the peer heard that it shall be; the
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
    /// The peer did not answer, or the owner did not.
    TimedOut,
    /// The peer uses its queue pair for another connection, and so has forgotten this one.
    Stale,
}

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CmDrop {
    /// Another class, method or attribute, or a version that we do not speak.
    NotOurs,
    /// About no connection that we know.
    Unknown,
    /// About a connection, from somebody who is not its peer.
    Stranger,
    /// About a queue pair that the connection does not have.
    WrongQp,
    /// It makes no sense in the connection's state.
    WrongState,
    /// It came before, and needs no answer now.
    Repeated,
    /// A request to which nobody listens.
    NoListener,
    /// A request for a port that we are not.
    WrongGid,
    /// A request for a queue pair that is connected already, as far as we know.
    Stale,
    /// A request beyond the number that may be pending, of its sender or in all.
    TooManyRequests,
    /// A request beyond the number of connections that there may be.
    TableFull,
    /// Patience has an end.
    TooManyPleas,
    /// Too many messages wait to be sent.
    OutgoingFull,
}
