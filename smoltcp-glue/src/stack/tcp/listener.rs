//! Listeners: connections that others open, and a queue of those that are open.
//!
//! A SYN makes a connection of its own at once, so none is lost while another handshake is under
//! way. Half-open and waiting connections together are as many as the backlog says; a SYN beyond
//! that is dropped and counted, and its sender tries again (RFC 9293 3.10.7.2).

use super::TcpId;
use crate::stack::slab::Key;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Names a listener.
pub type ListenerId = Key<Listener>;

/// A listener.
pub struct Listener {
    pub(super) local: SocketAddr,
    pub(super) backlog: usize,
    pub(super) half_open: usize,
    pub(super) open: VecDeque<TcpId>,
}

impl Listener {
    pub(super) const fn new(local: SocketAddr, backlog: usize) -> Self {
        Self { local, backlog, half_open: 0, open: VecDeque::new() }
    }

    pub(in crate::stack) const fn local(&self) -> SocketAddr {
        self.local
    }

    pub(in crate::stack) fn has_waiting(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.half_open + self.open.len() >= self.backlog
    }
}
