//! Listeners: connections that others open, and a queue of those that are open.
//!
//! A SYN makes a connection of its own at once, so none is lost while another handshake is under
//! way. That has buffers, so there are few of those: a SYN beyond them is answered by a cookie
//! ([`super::cookie`]). As many connections wait to be accepted as the backlog says, and those that
//! were half open besides; then SYNs are dropped and counted, and their senders try again
//! (RFC 9293 3.10.7.2).

use super::TcpId;
use crate::stack::slab::Key;
use pollux_verbs::time::Time;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Half-open connections of a listener that have buffers, at the most.
const HALF_OPEN_MAX: usize = 64;

/// Names a listener.
pub type ListenerId = Key<Listener>;

/// A listening endpoint and its accept queue.
pub struct Listener {
    pub(super) local: SocketAddr,
    pub(super) backlog: usize,
    pub(super) half_open: usize,
    pub(super) open: VecDeque<TcpId>,
    /// Until then somebody may acknowledge a cookie.
    pub(super) cookies_until: Time,
}

impl Listener {
    pub(super) const fn new(local: SocketAddr, backlog: usize) -> Self {
        let cookies_until = Time::START;
        Self { local, backlog, half_open: 0, open: VecDeque::new(), cookies_until }
    }

    pub(in crate::stack) const fn local(&self) -> SocketAddr {
        self.local
    }

    pub(in crate::stack) fn has_waiting(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether no other connection may wait.
    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= self.backlog
    }

    /// Whether no other half-open connection may have buffers.
    pub(super) fn is_crowded(&self) -> bool {
        self.half_open >= self.backlog.min(HALF_OPEN_MAX)
    }
}
