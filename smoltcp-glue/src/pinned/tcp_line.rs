//! The state of a connection that application and worker share.

use super::doorbell::SocketFlags;
use super::waiters::Waiters;
use crate::stack::{SocketId, TcpError, TcpId};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

pub(super) struct TcpLine {
    pub(super) id: TcpId,
    pub(super) flags: SocketFlags,
    pub(super) readers: Waiters,
    pub(super) writers: Waiters,
    /// Written by the worker: the connection state.
    state: AtomicU8,
    /// Written by the worker: the end of the stream, after the bytes in the ring.
    stream_end: AtomicU8,
    /// Written by the worker: the number of bytes that the peer has acknowledged.
    pub(super) acknowledged: AtomicU64,
    /// Written by the application: the state that it requests.
    requested_state: AtomicU8,
    /// Written by the application: whether the receiving half is shut down.
    pub(super) is_read_shut: AtomicBool,
}

/// The state that the application requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedState {
    Open,
    ShutDown,
    Close,
    Abort,
}

/// Connection state, as the worker last published it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Opening,
    Open,
    Ended(TcpError),
}

/// The end of the received stream, if the worker has received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    None,
    Eof,
    Error(TcpError),
}

const REQUESTED_STATES: [RequestedState; 4] =
    [RequestedState::Open, RequestedState::ShutDown, RequestedState::Close, RequestedState::Abort];
const STATES: [ConnectionState; 9] = [
    ConnectionState::Opening,
    ConnectionState::Open,
    ConnectionState::Ended(TcpError::Closed),
    ConnectionState::Ended(TcpError::Refused),
    ConnectionState::Ended(TcpError::Reset),
    ConnectionState::Ended(TcpError::TimedOut),
    ConnectionState::Ended(TcpError::Unreachable),
    ConnectionState::Ended(TcpError::PeerGone),
    ConnectionState::Ended(TcpError::ShutDown),
];
const STREAM_ENDS: [StreamEnd; 9] = [
    StreamEnd::None,
    StreamEnd::Eof,
    StreamEnd::Error(TcpError::Closed),
    StreamEnd::Error(TcpError::Refused),
    StreamEnd::Error(TcpError::Reset),
    StreamEnd::Error(TcpError::TimedOut),
    StreamEnd::Error(TcpError::Unreachable),
    StreamEnd::Error(TcpError::PeerGone),
    StreamEnd::Error(TcpError::ShutDown),
];

/// Stores the index of a value in a table. The ordering is Release, so that a reader of the value
/// sees earlier writes.
fn store<T: PartialEq>(cell: &AtomicU8, table: &[T], value: &T) {
    let index = table.iter().position(|one| one == value);
    cell.store(index.expect("the tables are complete") as u8, Ordering::Release);
}

impl TcpLine {
    pub(super) fn new(id: TcpId, state: ConnectionState) -> Self {
        let line = Self {
            id,
            flags: SocketFlags::new(SocketId::Tcp(id)),
            readers: Waiters::default(),
            writers: Waiters::default(),
            state: AtomicU8::new(0),
            stream_end: AtomicU8::new(0),
            acknowledged: AtomicU64::new(0),
            requested_state: AtomicU8::new(0),
            is_read_shut: AtomicBool::new(false),
        };
        line.set_state(state);
        line
    }

    pub(super) fn state(&self) -> ConnectionState {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    pub(super) fn set_state(&self, state: ConnectionState) {
        store(&self.state, &STATES, &state);
    }

    pub(super) fn stream_end(&self) -> StreamEnd {
        STREAM_ENDS[usize::from(self.stream_end.load(Ordering::Acquire))]
    }

    pub(super) fn set_stream_end(&self, stream_end: StreamEnd) {
        store(&self.stream_end, &STREAM_ENDS, &stream_end);
    }

    pub(super) fn requested_state(&self) -> RequestedState {
        REQUESTED_STATES[usize::from(self.requested_state.load(Ordering::Acquire))]
    }

    pub(super) fn set_requested_state(&self, requested_state: RequestedState) {
        store(&self.requested_state, &REQUESTED_STATES, &requested_state);
    }
}
