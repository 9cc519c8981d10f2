//! What is asked of an adapter: work requests (IBA 10.8.2, 11.4).

use crate::completion::CompletionKind;
use crate::memory::{Access, Ah, LKey, RKey};
use pollux_wire::address::Qpn;
use pollux_wire::keys::QKey;
use std::ops::BitOr;

/// One stretch of registered memory, laid out as adapters' libraries take it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// First byte, counted as the region's address is.
    pub address: u64,
    /// Bytes.
    pub bytes: u32,
    /// The region's key.
    pub lkey: LKey,
}

/// What a request sends, or where the answer to a read or an atomic goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Copied when posted: the memory is the caller's again at once. Not for reads and atomics.
    Inline(&'a [u8]),
    /// Gathered, or scattered, in this order; the memory is the adapter's until the completion.
    Sges(&'a [Sge]),
}

impl Data<'_> {
    /// No bytes at all.
    pub const EMPTY: Self = Self::Sges(&[]);

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Sges(sges) => sges.iter().map(|sge| u64::from(sge.bytes)).sum(),
        }
    }
}

/// The longest message that a connection carries (IBA 9.7.7.1.1).
pub const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// A request to a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// The caller's own; comes back in the completion.
    pub id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// With what.
    pub data: Data<'a>,
}

/// Kinds of requests to a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// A message into the peer's next receive. RC, UC.
    Send,
    /// The same, with 32 bits for its completion. RC, UC.
    SendImm(u32),
    /// The same, and the peer's key ends. RC.
    SendInvalidate(RKey),
    /// A datagram. UD.
    Datagram(Destination),
    /// A datagram with 32 bits for its completion. UD.
    DatagramImm(Destination, u32),
    /// A datagram in the partition at this place of the port's P_Key table: one queue pair speaks
    /// for all partitions of its port. GSI.
    DatagramIn(Destination, u16),
    /// Into the peer's memory. RC, UC.
    Write(Remote),
    /// The same, and 32 bits for a completion there, which uses up a receive. RC, UC.
    WriteImm(Remote, u32),
    /// Out of the peer's memory. RC.
    Read(Remote),
    /// Eight bytes of the peer's memory become `swap` if they are `compare`; what they were is the
    /// answer. RC.
    CompareSwap {
        /// Where; a multiple of eight.
        remote: Remote,
        /// What must be there.
        compare: u64,
        /// What will be there.
        swap: u64,
    },
    /// `add` is added to eight bytes of the peer's memory; what they were is the answer. RC.
    FetchAdd {
        /// Where; a multiple of eight.
        remote: Remote,
        /// How much.
        add: u64,
    },
    /// A window gets a new key, for this stretch of a region. RC, UC.
    Bind(Bind),
    /// A window's key ends. RC, UC.
    LocalInvalidate(RKey),
}

impl SendOp {
    /// What kind of completion such a request ends in.
    #[inline]
    pub const fn kind(&self) -> CompletionKind {
        match self {
            Self::Send
            | Self::SendImm(_)
            | Self::SendInvalidate(_)
            | Self::Datagram(_)
            | Self::DatagramImm(..)
            | Self::DatagramIn(..) => CompletionKind::Send,
            Self::Write(_) | Self::WriteImm(..) => CompletionKind::Write,
            Self::Read(_) => CompletionKind::Read,
            Self::CompareSwap { .. } => CompletionKind::CompareSwap,
            Self::FetchAdd { .. } => CompletionKind::FetchAdd,
            Self::Bind(_) => CompletionKind::Bind,
            Self::LocalInvalidate(_) => CompletionKind::LocalInvalidate,
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The port.
    pub ah: Ah,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its key; with the high bit set, the sending queue pair's own is sent instead (IBA 10.2.4.2).
    pub qkey: QKey,
}

/// A place in a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// First byte.
    pub address: u64,
    /// The key that the peer gave out for it.
    pub rkey: RKey,
}

/// What a window is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's present key.
    pub window: RKey,
    /// Its next one: the same but for the low eight bits, which are the caller's to choose.
    pub rkey: RKey,
    /// The region, which must allow [`Access::BIND`].
    pub region: LKey,
    /// First byte of the stretch.
    pub address: u64,
    /// Bytes of the stretch; 0 binds to nothing.
    pub bytes: u64,
    /// What peers may do there.
    pub access: Access,
}

/// How a request is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SendFlags(u8);

impl SendFlags {
    /// No completion if all goes well, on a queue pair that does not signal everything.
    pub const NONE: Self = Self(0);
    /// A completion in any case.
    pub const SIGNALED: Self = Self(1);
    /// The peer's completion counts as solicited.
    pub const SOLICITED: Self = Self(2);
    /// Not before all earlier reads and atomics of this queue are done.
    pub const FENCE: Self = Self(4);

    /// Whether these flags include `other`.
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

/// A request to a receive queue: where the next message goes.
///
/// On UD the first 40 bytes are for the GRH, if there was one; they stay as they were if not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvRequest<'a> {
    /// The caller's own; comes back in the completion.
    pub id: u64,
    /// Filled in this order; the memory is the adapter's until the completion.
    pub sges: &'a [Sge],
}
