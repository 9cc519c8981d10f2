//! Asynchronous events of an adapter (IBA 11.6.3).

use crate::memory::{Cq, Qp, Srq};

/// An asynchronous event; a `u8` is a port number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran and is unusable.
    CqError(Cq),
    /// A queue pair failed without a completion that reports it.
    QpFatal(Qp),
    /// A peer's request is invalid; the queue pair is in the error state.
    QpRequestError(Qp),
    /// A peer's request violates the access rights; the queue pair is in the error state.
    QpAccessError(Qp),
    /// The first packet arrived on a queue pair that is still in RTR (communication
    /// established).
    ConnectionEstablished(Qp),
    /// The send queue is drained: the queue pair is in SQD and all earlier requests are done.
    SendQueueDrained(Qp),
    /// The queue pair migrated to its alternate path, after the peer did or retries ran out.
    PathMigrated(Qp),
    /// The peer migrated to a path other than the alternate one; its packets are dropped. Reported
    /// once for each [`Rearm`](crate::Migration::Rearm).
    PathMigrationError(Qp),
    /// A queue pair in the error state took its last receive from the SRQ (last WQE reached).
    LastWqeReached(Qp),
    SrqError(Srq),
    /// Fewer receives than the limit are left; the limit is disarmed.
    SrqLimitReached(Srq),
    PortActive(u8),
    PortError(u8),
    LidChange(u8),
    PkeyChange(u8),
    GidChange(u8),
    /// The subnet manager or its LID changed.
    SmChange(u8),
    /// Client reregister: the subnet manager lost multicast memberships and subscriptions.
    ClientReregister(u8),
    DeviceFatal,
}
