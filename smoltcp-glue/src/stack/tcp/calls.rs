//! The TCP calls of a [`Stack`].

use super::{Connection, Listener, ListenerId, TcpError, TcpId};
use crate::stack::{BindError, Stack, plain};
use pollux_verbs::time::Time;
use smoltcp::socket::tcp::State;
use std::net::SocketAddr;
use std::time::Duration;

impl Stack {
    /// Listens on a local address, or on all of a family.
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

    /// Closes a listener; connections that were not accepted are reset.
    pub fn tcp_unlisten(&mut self, id: ListenerId) {
        self.tcp.unlisten(id);
    }

    /// Accepts the oldest established connection.
    pub fn tcp_accept(&mut self, id: ListenerId) -> Result<Option<TcpId>, TcpError> {
        self.tcp.accept(id)
    }

    /// The address and port of a listener.
    pub fn tcp_listener_local(&self, id: ListenerId) -> Option<SocketAddr> {
        self.tcp.listener(id).map(|listener| listener.local)
    }

    /// Opens a connection from a local address; port 0 picks a free port.
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

    /// The local and remote address of a connection; `None` if it is gone.
    pub fn tcp_addresses(&self, id: TcpId) -> Option<(SocketAddr, SocketAddr)> {
        self.tcp.get(id).map(Connection::addresses)
    }

    /// Whether the connection is established; an error if it has ended.
    pub fn tcp_is_open(&self, id: TcpId) -> Result<bool, TcpError> {
        let connection = self.tcp.get(id).ok_or(TcpError::Closed)?;
        match connection.end {
            Some(end) => Err(end),
            None => Ok(!matches!(connection.state(), State::SynSent | State::SynReceived)),
        }
    }

    /// Queues bytes to send; returns how many, `None` if the send buffer is full.
    pub fn tcp_send(&mut self, id: TcpId, bytes: &[u8]) -> Result<Option<usize>, TcpError> {
        self.tcp.send(id, bytes)
    }

    /// Receives bytes; returns how many, 0 at end of file, `None` if none are there yet.
    pub fn tcp_recv(&mut self, id: TcpId, buffer: &mut [u8]) -> Result<Option<usize>, TcpError> {
        self.tcp.recv(id, buffer)
    }

    /// Whether [`Stack::tcp_recv`] would return bytes, end of file or an error.
    pub fn tcp_is_readable(&self, id: TcpId) -> bool {
        self.tcp.get(id).is_none_or(Connection::is_readable)
    }

    /// Whether [`Stack::tcp_accept`] would return a connection or an error.
    pub fn tcp_is_waited_for(&self, id: ListenerId) -> bool {
        self.tcp.listener(id).is_none_or(Listener::has_waiting)
    }

    /// Queued bytes that the peer has not acknowledged.
    pub fn tcp_unacknowledged(&self, id: TcpId) -> usize {
        self.tcp.get(id).map_or(0, Connection::unacknowledged)
    }

    /// Shuts down the sending half after the queued bytes; receiving goes on.
    pub fn tcp_shut_down(&mut self, now: Time, id: TcpId) -> Result<(), TcpError> {
        self.tcp.shut_down(now, id)
    }

    /// Closes a connection. Queued bytes are still sent; unread received bytes make it a reset
    /// instead.
    pub fn tcp_close(&mut self, now: Time, id: TcpId) {
        self.tcp.close(now, id);
    }

    /// Resets a connection.
    pub fn tcp_abort(&mut self, now: Time, id: TcpId) {
        self.tcp.abort(id, TcpError::ShutDown);
        self.tcp.close(now, id);
    }

    /// Sets the keep-alive time, ten seconds at the least; `None` turns keep-alive off. The
    /// connection times out if no probe is answered for as long again.
    pub fn tcp_set_keepalive(&mut self, id: TcpId, idle: Option<Duration>) -> Result<(), TcpError> {
        self.tcp.set_keepalive(id, idle)
    }

    /// The keep-alive time.
    pub fn tcp_keepalive(&self, id: TcpId) -> Result<Option<Duration>, TcpError> {
        Ok(self.tcp.get(id).ok_or(TcpError::Closed)?.keepalive)
    }

    /// Whether all data of closed connections was acknowledged or given up.
    pub fn tcp_is_flushed(&self) -> bool {
        self.tcp.is_flushed()
    }

    /// Unacknowledged bytes of closed connections, one for each FIN included.
    pub fn tcp_unflushed(&self) -> usize {
        self.tcp.unflushed()
    }

    /// Resets closed connections that are not flushed; returns how many.
    pub fn tcp_abort_unflushed(&mut self) -> usize {
        self.tcp.abort_unflushed()
    }

    /// Maximum time to flush data when the interface is dropped.
    pub const fn flush_max(&self) -> Duration {
        self.tcp.config.flush_max
    }

    /// The number of connections, including half-open ones and TIME-WAIT.
    pub const fn tcp_len(&self) -> usize {
        self.tcp.connections.len()
    }
}
