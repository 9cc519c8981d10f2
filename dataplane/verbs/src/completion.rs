//! Completions of work requests (IBA 11.4.2, 10.10.3).

use crate::memory::RKey;
use crate::named_enum;
use pollux_wire::address::{Lid, Qpn};
use std::fmt;

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub id: u64,
    /// The status. If it is an error, only `id`, `status` and `qpn` are valid.
    pub status: CompletionStatus,
    pub kind: CompletionKind,
    /// The queue pair's number, which distinguishes the users of a shared receive queue.
    pub qpn: Qpn,
    /// Bytes received or read; on UD including the 40 bytes of the GRH.
    pub bytes: u32,
    pub with: With,
    /// The source of a datagram.
    pub from: Option<Source>,
}

impl Completion {
    /// An initial value for the array that [`poll`](crate::Device::poll) fills.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionKind {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    Bind,
    LocalInvalidate,
    Recv,
    /// A peer's RDMA write with immediate data.
    RecvWriteImm,
}

impl CompletionKind {
    pub const fn is_recv(self) -> bool {
        matches!(self, Self::Recv | Self::RecvWriteImm)
    }
}

/// Additional data of a received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum With {
    #[default]
    Nothing,
    Imm(u32),
    /// The R_Key that the peer invalidated (Send with Invalidate).
    Invalidated(RKey),
}

/// The source of a datagram, from its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub src_qp: Qpn,
    pub slid: Lid,
    pub sl: u8,
    /// The low LMC bits of the destination LID.
    pub dlid_path_bits: u8,
    /// Index of the matching entry of the local P_Key table.
    pub pkey_index: u16,
    /// Whether the first 40 bytes of the buffer are a GRH.
    pub has_grh: bool,
}

named_enum! {
    /// Completion status (IBA 11.6.2).
    pub enum CompletionStatus {
        Success = "success",
        /// The message is longer than the receive, or than the maximum.
        LocalLength = "local length error",
        /// The queue pair does not support the operation.
        LocalQpOperation = "local queue pair operation error",
        /// The local key, access rights or bounds are wrong.
        LocalProtection = "local protection error",
        /// The queue pair entered the error state before the request was executed.
        Flushed = "flushed",
        WindowBind = "memory window bind error",
        /// The peer's response is invalid.
        BadResponse = "bad response",
        /// The peer's request violates the local access rights.
        LocalAccess = "local access error",
        /// The peer rejected the request as invalid, or its receive is too short.
        RemoteInvalidRequest = "remote invalid request",
        /// A key, right or bound of the peer's memory is wrong.
        RemoteAccess = "remote access error",
        /// The peer could not execute the request.
        RemoteOperation = "remote operation error",
        /// No answer of the peer after all retries.
        RetryExceeded = "transport retries exceeded",
        /// No receive posted at the peer after all retries.
        RnrRetryExceeded = "receiver-not-ready retries exceeded",
        RemoteAborted = "remote aborted",
        /// An internal error of the adapter.
        General = "general error",
    }
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
