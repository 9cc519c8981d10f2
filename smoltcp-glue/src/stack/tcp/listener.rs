//! Listeners: half-open connections and the accept queue.
//!
//! Each SYN creates a connection, so no SYN is lost while another handshake is in progress. A
//! connection has buffers, so half-open connections are limited: SYNs beyond the limit are answered
//! with a cookie ([`super::cookie`]). While the accept queue has as many connections as the
//! backlog, SYNs are dropped and counted, and their senders retransmit (RFC 9293 3.10.7.2).
//! Connections that are half-open at that time can still enter the queue.

use super::TcpId;
use crate::stack::slab::Key;
use pollux_verbs::time::Time;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Maximum number of half-open connections, which have buffers.
const HALF_OPEN_MAX: usize = 64;

/// Identifies a listener; invalid after it is closed.
pub type ListenerId = Key<Listener>;

/// A listening endpoint and its accept queue.
pub struct Listener {
    pub(super) local: SocketAddr,
    pub(super) backlog: usize,
    pub(super) half_open: usize,
    pub(super) open: VecDeque<TcpId>,
    /// When the last sent cookie expires.
    pub(super) cookies_until: Time,
}

impl Listener {
    pub(super) const fn new(local: SocketAddr, backlog: usize) -> Self {
        let cookies_until = Time::START;
        Self { local, backlog, half_open: 0, open: VecDeque::new(), cookies_until }
    }

    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= self.backlog
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.half_open >= self.backlog.min(HALF_OPEN_MAX)
    }
}
