//! Sockets that something has happened to, for an owner who serves many and looks at no others.

use super::{ListenerId, TcpId, UdpId};
use std::collections::VecDeque;

/// A socket of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketId {
    /// Of UDP.
    Udp(UdpId),
    /// A connection of TCP.
    Tcp(TcpId),
    /// A listener of TCP.
    Listener(ListenerId),
}

/// What happened since the owner last asked, if he wants to know. A socket may be in it more than
/// once; there are no more entries than packets and timeouts since.
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
