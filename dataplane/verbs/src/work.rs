//! Work requests (IBA 10.8.2, 11.4).

use crate::completion::CompletionKind;
use crate::memory::{Access, Ah, LKey, RKey};
use pollux_wire::address::Qpn;
use pollux_wire::keys::QKey;
use std::ops::BitOr;

/// A scatter/gather entry: a range of registered memory, laid out as `ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte, in the address space of the region.
    pub address: u64,
    pub bytes: u32,
    pub lkey: LKey,
}

/// The data that a request sends, or the destination of a read or atomic response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Copied when posted, so the caller may reuse the bytes at once. Not for reads and atomics.
    Inline(&'a [u8]),
    /// Gathered or scattered in this order. The adapter owns the memory until the completion.
    Sges(&'a [Sge]),
}

impl Data<'_> {
    pub const EMPTY: Self = Self::Sges(&[]);

    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Sges(sges) => sges.iter().map(|sge| u64::from(sge.bytes)).sum(),
        }
    }
}

/// The longest message of a connection, in bytes (IBA 9.7.7.1.1).
pub const MESSAGE_BYTES_MAX: u64 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// Chosen by the caller; the completion returns it.
    pub id: u64,
    pub op: SendOp,
    pub flags: SendFlags,
    pub data: Data<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Send: a message into the peer's next receive. RC, UC.
    Send,
    /// Send with immediate data. RC, UC.
    SendImm(u32),
    /// Send with Invalidate: also invalidates this R_Key at the responder. RC.
    SendInvalidate(RKey),
    /// A datagram. UD.
    Datagram(Destination),
    /// A datagram with immediate data. UD.
    DatagramImm(Destination, u32),
    /// A datagram with the P_Key at this index of the port's table, because the GSI serves all
    /// partitions. GSI.
    DatagramIn(Destination, u16),
    /// RDMA write. RC, UC.
    Write(Remote),
    /// RDMA write with immediate data, which consumes a receive at the peer. RC, UC.
    WriteImm(Remote, u32),
    /// RDMA read. RC.
    Read(Remote),
    /// Atomic compare-and-swap of eight bytes of the peer's memory; returns the old value. RC.
    CompareSwap {
        /// The address must be a multiple of eight.
        remote: Remote,
        compare: u64,
        swap: u64,
    },
    /// Atomic fetch-and-add on eight bytes of the peer's memory; returns the old value. RC.
    FetchAdd {
        /// The address must be a multiple of eight.
        remote: Remote,
        add: u64,
    },
    /// Binds a memory window to a range of a region, with a new key. RC, UC.
    Bind(Bind),
    /// Invalidates a memory window's key. RC, UC.
    LocalInvalidate(RKey),
    /// No operation: completes after the earlier requests. Not in IBA and not available in
    /// libibverbs; only the work queues of a ConnectX have it. RC, UC.
    Nop,
}

impl SendOp {
    /// Whether the peer's response is written to the request's memory.
    #[inline]
    pub const fn is_answered(&self) -> bool {
        matches!(self, Self::Read(_) | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    #[inline]
    pub const fn kind(&self) -> CompletionKind {
        match self {
            Self::Send
            | Self::SendImm(_)
            | Self::SendInvalidate(_)
            | Self::Datagram(_)
            | Self::DatagramImm(..)
            | Self::DatagramIn(..)
            | Self::Nop => CompletionKind::Send,
            Self::Write(_) | Self::WriteImm(..) => CompletionKind::Write,
            Self::Read(_) => CompletionKind::Read,
            Self::CompareSwap { .. } => CompletionKind::CompareSwap,
            Self::FetchAdd { .. } => CompletionKind::FetchAdd,
            Self::Bind(_) => CompletionKind::Bind,
            Self::LocalInvalidate(_) => CompletionKind::LocalInvalidate,
        }
    }
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    pub ah: Ah,
    pub qpn: Qpn,
    /// The Q_Key. If the high bit is set, the adapter sends the Q_Key of the sending queue pair
    /// instead (IBA 10.2.4.2).
    pub qkey: QKey,
}

/// An address in a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub address: u64,
    /// The peer's key for the memory.
    pub rkey: RKey,
}

/// The arguments of a memory window bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's current key.
    pub window: RKey,
    /// The new key: the caller chooses the low eight bits, the other bits stay.
    pub rkey: RKey,
    /// The region, which must allow [`Access::BIND`].
    pub region: LKey,
    pub address: u64,
    /// Length of the range; 0 unbinds the window.
    pub bytes: u64,
    pub access: Access,
}

/// Signaling and ordering of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SendFlags(u8);

impl SendFlags {
    /// Unsignaled: no completion on success, unless the queue pair signals all requests.
    pub const NONE: Self = Self(0);
    /// Signaled: completes on success too.
    pub const SIGNALED: Self = Self(1);
    /// The peer's completion is solicited.
    pub const SOLICITED: Self = Self(2);
    /// Starts only when all earlier reads and atomics of this queue are done.
    pub const FENCE: Self = Self(4);

    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for SendFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A request to a receive queue: the buffer of the next message.
///
/// On UD the first 40 bytes hold the GRH, if there is one; otherwise they are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvRequest<'a> {
    /// Chosen by the caller; the completion returns it.
    pub id: u64,
    /// Filled in this order. The adapter owns the memory until the completion.
    pub sges: &'a [Sge],
}
