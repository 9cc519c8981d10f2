//! Listeners and connections of a stack, as an owner sees them.

use super::tcp::{self, ListenerId, TcpError, TcpId};
use super::{BindError, Stack, plain};
use pollux_verbs::time::Time;
use smoltcp::socket::tcp::State;
use std::net::SocketAddr;
use std::time::Duration;

impl Stack {
    /// Listens at an address of ours, or at all of a family.
    pub fn tcp_listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
    ) -> Result<ListenerId, BindError> {
        let local = self.check_local(local)?;
        if local.port() == 0 {
            return Err(BindError::NotOurs);
        }
        self.tcp.listen(local, backlog)
    }

    /// Listens no more; connections that nobody has accepted are reset.
    pub fn tcp_unlisten(&mut self, id: ListenerId) {
        self.tcp.unlisten(id);
    }

    /// The connection that was open longest and that nobody has accepted.
    pub fn tcp_accept(&mut self, id: ListenerId) -> Result<Option<TcpId>, TcpError> {
        self.tcp.accept(id)
    }

    /// Where a listener listens.
    pub fn tcp_listener_local(&self, id: ListenerId) -> Option<SocketAddr> {
        self.tcp.listener(id).map(tcp::Listener::local)
    }

    /// Opens a connection from an address of ours; port 0 is any that is free.
    pub fn tcp_connect(
        &mut self,
        now: Time,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<TcpId, BindError> {
        let is_one = !remote.ip().is_multicast() && !remote.ip().is_unspecified();
        let is_usable = is_one && remote.port() != 0 && local.is_ipv4() == remote.is_ipv4();
        if !is_usable || !self.addresses.contains(&local.ip()) {
            return Err(BindError::NotOurs);
        }
        let both = (plain(local), plain(remote));
        match local.port() {
            0 => self.tcp_connect_in_shard(now, both),
            _ => self.tcp.connect(now, both, &self.mtus),
        }
    }

    /// Both ends of a connection, ours first; nothing if it is no more.
    pub fn tcp_addresses(&self, id: TcpId) -> Option<(SocketAddr, SocketAddr)> {
        self.tcp.get(id).map(tcp::Connection::addresses)
    }

    /// Whether the connection is open: an error if it never will be, or was and has ended.
    pub fn tcp_is_open(&self, id: TcpId) -> Result<bool, TcpError> {
        let connection = self.tcp.get(id).ok_or(TcpError::Closed)?;
        match connection.end() {
            Some(end) => Err(end),
            None => Ok(!matches!(connection.state(), State::SynSent | State::SynReceived)),
        }
    }

    /// Gives bytes to send; how many were taken, nothing if there is no room now.
    pub fn tcp_send(&mut self, id: TcpId, bytes: &[u8]) -> Result<Option<usize>, TcpError> {
        self.tcp.send(id, bytes)
    }

    /// Takes bytes that came: how many, 0 when the peer has said all, nothing if none came yet.
    pub fn tcp_recv(&mut self, id: TcpId, buffer: &mut [u8]) -> Result<Option<usize>, TcpError> {
        self.tcp.recv(id, buffer)
    }

    /// Whether [`Stack::tcp_recv`] has something to say.
    pub fn tcp_is_readable(&self, id: TcpId) -> bool {
        self.tcp.get(id).is_none_or(tcp::Connection::is_readable)
    }

    /// Whether [`Stack::tcp_accept`] has something to say.
    pub fn tcp_is_waited_for(&self, id: ListenerId) -> bool {
        self.tcp.listener(id).is_none_or(tcp::Listener::has_waiting)
    }

    /// Bytes that the peer has not acknowledged yet.
    pub fn tcp_unacknowledged(&self, id: TcpId) -> usize {
        self.tcp.get(id).map_or(0, tcp::Connection::unacknowledged)
    }

    /// Sends no more after what was given; receiving goes on.
    pub fn tcp_shut_down(&mut self, now: Time, id: TcpId) -> Result<(), TcpError> {
        self.tcp.shut_down(now, id)
    }

    /// The application needs it no more. What was given is still sent; if there is something that
    /// nobody has read, the peer is told by a reset.
    pub fn tcp_close(&mut self, now: Time, id: TcpId) {
        self.tcp.close(now, id);
    }

    /// Ends a connection at once, by a reset.
    pub fn tcp_abort(&mut self, now: Time, id: TcpId) {
        self.tcp.abort(id, TcpError::ShutDown);
        self.tcp.close(now, id);
    }

    /// After how long without a word of its peer a connection is probed, if it is: ten seconds at
    /// the least. A peer that answers nothing for as long again is given up.
    pub fn tcp_set_keepalive(&mut self, id: TcpId, idle: Option<Duration>) -> Result<(), TcpError> {
        self.tcp.set_keepalive(id, idle)
    }

    /// The same, as it is.
    pub fn tcp_keepalive(&self, id: TcpId) -> Result<Option<Duration>, TcpError> {
        Ok(self.tcp.get(id).ok_or(TcpError::Closed)?.keepalive())
    }

    /// Whether every connection that the application has closed was heard to its end, or is lost.
    pub fn tcp_is_flushed(&self) -> bool {
        self.tcp.is_flushed()
    }

    /// Bytes that connections which the application has closed have yet to bring to their peers,
    /// with one for the end of each.
    pub fn tcp_unflushed(&self) -> usize {
        self.tcp.unflushed()
    }

    /// Ends those connections by a reset; says how many there were.
    pub fn tcp_abort_unflushed(&mut self) -> usize {
        self.tcp.abort_unflushed()
    }

    /// How long an interface that ends may take to bring to peers what they still take.
    pub const fn flush_max(&self) -> Duration {
        self.tcp.flush_max()
    }

    /// How many connections there are, half-open ones and stragglers included.
    pub const fn tcp_len(&self) -> usize {
        self.tcp.len()
    }
}
