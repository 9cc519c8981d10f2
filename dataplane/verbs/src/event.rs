//! What happens to an adapter without being asked for (IBA 11.6.3).

use crate::memory::{Cq, Qp, Srq};

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran, and is lost.
    CqError(Cq),
    /// A queue pair failed in a way that no completion tells.
    QpFatal(Qp),
    /// A request came that makes no sense; the queue pair is in the error state.
    QpRequestError(Qp),
    /// A request came that may not touch the memory; the queue pair is in the error state.
    QpAccessError(Qp),
    /// The first packet came over a connection that was not yet told to send.
    ConnectionEstablished(Qp),
    /// All requests before the drain are done: the queue pair is in SQD and at rest.
    SendQueueDrained(Qp),
    /// The alternate path is in use now: the peer took it, or requests were out of retries.
    PathMigrated(Qp),
    /// The peer has taken another path than the alternate one, and is not heard; told once for each
    /// [`Rearm`](crate::Migration::Rearm).
    PathMigrationError(Qp),
    /// A queue pair in the error state has taken its last receive from the shared queue.
    LastWqeReached(Qp),
    /// A shared receive queue failed.
    SrqError(Srq),
    /// Fewer receives are left than the limit; it is now off.
    SrqLimitReached(Srq),
    /// The port carries traffic.
    PortActive(u8),
    /// The port does not.
    PortError(u8),
    /// The port's LID changed.
    LidChange(u8),
    /// The port's table of P_Keys changed.
    PkeyChange(u8),
    /// The port's table of GIDs changed.
    GidChange(u8),
    /// The subnet manager is another one, or elsewhere.
    SmChange(u8),
    /// The subnet manager has forgotten who joined what.
    ClientReregister(u8),
    /// The adapter is lost.
    DeviceFatal,
}
