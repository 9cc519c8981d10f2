//! How a request went (IBA 11.4.2, 10.10.3).

use crate::memory::RKey;
use pollux_wire::address::{Lid, Qpn};
use std::fmt;

/// One finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's.
    pub id: u64,
    /// How it went. If badly, only `id`, `status` and `qpn` mean anything.
    pub status: CompletionStatus,
    /// What it was.
    pub kind: CompletionKind,
    /// The queue pair, by number, since a shared receive queue does not tell.
    pub qpn: Qpn,
    /// Bytes received, or read; on UD with the 40 of the GRH.
    pub bytes: u32,
    /// What came with the message.
    pub with: With,
    /// Of a datagram: where it came from.
    pub from: Option<Source>,
}

impl Completion {
    /// What an array to be filled by [`poll`](crate::Device::poll) begins with.
    pub const NOTHING: Self = Self {
        id: 0,
        status: CompletionStatus::General,
        kind: CompletionKind::Send,
        qpn: Qpn(0),
        bytes: 0,
        with: With::Nothing,
        from: None,
    };
}

/// What kind of request a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the requests")]
pub enum CompletionKind {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    Bind,
    LocalInvalidate,
    /// A message came.
    Recv,
    /// A peer has written, with immediate data.
    RecvWriteImm,
}

impl CompletionKind {
    /// Whether it is of a receive.
    pub const fn is_recv(self) -> bool {
        matches!(self, Self::Recv | Self::RecvWriteImm)
    }
}

/// What came with a message beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum With {
    /// Nothing.
    #[default]
    Nothing,
    /// 32 bits.
    Imm(u32),
    /// The end of one of our keys.
    Invalidated(RKey),
}

/// Where a datagram came from, as far as its headers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The sender's queue pair.
    pub src_qp: Qpn,
    /// The sender's port.
    pub slid: Lid,
    /// The service level that it came with.
    pub sl: u8,
    /// Which of our LIDs it was sent to: the bits below the mask.
    pub dlid_path_bits: u8,
    /// Which entry of our P_Key table it matched.
    pub pkey_index: u16,
    /// Whether the first 40 bytes of the buffer are a GRH.
    pub has_grh: bool,
}

/// How a request ended (IBA 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CompletionStatus {
    /// Well.
    Success,
    /// A message longer than the receive, or than a message may be.
    LocalLength,
    /// The queue pair cannot do this.
    LocalQpOperation,
    /// A key, a right or bounds of our own memory.
    LocalProtection,
    /// The queue pair went to the error state first.
    Flushed,
    /// A window could not be bound.
    WindowBind,
    /// The peer sent what makes no sense.
    BadResponse,
    /// A request came that our side may not carry out.
    LocalAccess,
    /// The peer found the request invalid, or its receive too short.
    RemoteInvalidRequest,
    /// A key, a right or bounds of the peer's memory.
    RemoteAccess,
    /// The peer could not carry it out.
    RemoteOperation,
    /// The peer did not answer, however often it was asked.
    RetryExceeded,
    /// The peer had no receive posted, however often it was asked.
    RnrRetryExceeded,
    /// The peer gave up.
    RemoteAborted,
    /// Something in the adapter broke.
    General,
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "flushed",
            Self::WindowBind => "memory window bind error",
            Self::BadResponse => "bad response",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retries exceeded",
            Self::RnrRetryExceeded => "receiver-not-ready retries exceeded",
            Self::RemoteAborted => "remote aborted",
            Self::General => "general error",
        })
    }
}
