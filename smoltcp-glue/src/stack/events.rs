//! Readiness events: the sockets with new state, for a caller that serves many sockets.

use super::{ListenerId, TcpId, UdpId};
use std::collections::VecDeque;

/// A socket of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketId {
    /// A UDP socket.
    Udp(UdpId),
    /// A TCP connection.
    Tcp(TcpId),
    /// A TCP listener.
    Listener(ListenerId),
}

/// The queue of events since the last poll, if enabled. A socket may be in it more than once; it
/// has at most one entry per packet and timeout.
#[derive(Default)]
pub(super) struct Events {
    is_enabled: bool,
    list: VecDeque<SocketId>,
}

impl Events {
    pub(super) const fn enable(&mut self) {
        self.is_enabled = true;
    }

    pub(super) fn push(&mut self, socket: SocketId) {
        if self.is_enabled && self.list.back() != Some(&socket) {
            self.list.push_back(socket);
        }
    }

    pub(super) fn pop(&mut self) -> Option<SocketId> {
        self.list.pop_front()
    }
}
