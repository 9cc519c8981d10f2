//! The TCP calls of a [`Stack`].

use super::connection::Holder;
use super::{Connection, Event, Listener, ListenerId, TcpError, TcpId};
use crate::stack::{BindError, Stack, plain};
use pollux_verbs::time::Time;
use smoltcp::socket::tcp::State;
use std::net::SocketAddr;
use std::time::Duration;

impl Stack {
    /// Listens on a local address, or on all addresses of a family; port 0 picks a free port.
    pub fn tcp_listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
    ) -> Result<ListenerId, BindError> {
        let mut local = self.check_local(local)?;
        if local.port() == 0 {
            local = self.tcp_free_port(local)?;
        }
        if self.tcp.listening.contains_key(&local) {
            return Err(BindError::InUse);
        }
        let listener = Listener::new(local, backlog.clamp(1, self.tcp.config.backlog_max));
        let id = self.tcp.listeners.insert(listener).ok_or(BindError::Full)?;
        self.tcp.listening.insert(local, id);
        Ok(id)
    }

    /// Closes a listener; connections that were not accepted are reset.
    pub fn tcp_unlisten(&mut self, id: ListenerId) {
        let Self { tcp, .. } = self;
        let Some(Listener { local, .. }) = tcp.listeners.remove(id) else { return };
        tcp.listening.remove(&local);
        let waits = |one: &TcpId| {
            let holder = tcp.connections.get(*one).map(|connection| connection.holder);
            holder == Some(Holder::HalfOpen(id)) || holder == Some(Holder::Queued(id))
        };
        let mut waiting: Vec<_> = tcp.by_addresses.values().copied().filter(waits).collect();
        waiting.sort_unstable();
        for id in waiting {
            if let Some(connection) = tcp.connections.get_mut(id) {
                connection.holder = Holder::None;
            }
            tcp.abort(id, TcpError::ShutDown);
        }
    }

    /// Accepts the oldest established connection.
    pub fn tcp_accept(&mut self, id: ListenerId) -> Result<Option<TcpId>, TcpError> {
        let listener = self.tcp.listeners.get_mut(id).ok_or(TcpError::Closed)?;
        let accepted = listener.open.pop_front();
        if let Some(connection) = accepted.and_then(|id| self.tcp.connections.get_mut(id)) {
            connection.holder = Holder::Application;
        }
        Ok(accepted)
    }

    /// The address and port of a listener.
    pub fn tcp_listener_local(&self, id: ListenerId) -> Option<SocketAddr> {
        self.tcp.listeners.get(id).map(|listener| listener.local)
    }

    /// The number of connections in the accept queue of a listener, and the maximum.
    pub fn tcp_backlog(&self, id: ListenerId) -> Option<(usize, usize)> {
        self.tcp.listeners.get(id).map(|listener| (listener.open.len(), listener.backlog))
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
            return Err(BindError::AddressNotAvailable);
        }
        let both = (plain(local), plain(remote));
        match local.port() {
            0 => self.tcp_connect_in_shard(now, both),
            _ => self.tcp.connect(now, both, &self.mtus),
        }
    }

    /// The local and remote address of a connection; `None` if it is gone.
    pub fn tcp_addresses(&self, id: TcpId) -> Option<(SocketAddr, SocketAddr)> {
        self.tcp.connections.get(id).map(Connection::addresses)
    }

    /// Whether the connection is established; an error if it has ended.
    pub fn tcp_is_open(&self, id: TcpId) -> Result<bool, TcpError> {
        let connection = self.tcp.connections.get(id).ok_or(TcpError::Closed)?;
        match connection.end {
            Some(end) => Err(end),
            None => Ok(!matches!(connection.state(), State::SynSent | State::SynReceived)),
        }
    }

    /// Queues bytes to send; returns how many, `None` if the send buffer is full.
    pub fn tcp_send(&mut self, id: TcpId, bytes: &[u8]) -> Result<Option<usize>, TcpError> {
        let sent = self.tcp.connections.get_mut(id).ok_or(TcpError::Closed)?.send(bytes)?;
        if sent.is_some_and(|bytes| bytes > 0) {
            self.tcp.make_ready(id);
        }
        Ok(sent)
    }

    /// Receives bytes; returns how many, 0 at end of file, `None` if none have arrived yet.
    pub fn tcp_recv(&mut self, id: TcpId, buffer: &mut [u8]) -> Result<Option<usize>, TcpError> {
        let connection = self.tcp.connections.get_mut(id).ok_or(TcpError::Closed)?;
        let is_narrow = connection.is_narrow();
        let received = connection.recv(buffer)?;
        match received {
            None | Some(0) => {}
            // The peer may be waiting for this window update.
            Some(_) if is_narrow => self.tcp.make_ready(id),
            Some(_) => self.tcp.touch(id),
        }
        Ok(received)
    }

    /// Whether [`Stack::tcp_recv`] would return bytes, end of file or an error.
    pub fn tcp_is_readable(&self, id: TcpId) -> bool {
        self.tcp.connections.get(id).is_none_or(Connection::is_readable)
    }

    /// Whether [`Stack::tcp_accept`] would return a connection or an error.
    pub fn tcp_is_waited_for(&self, id: ListenerId) -> bool {
        self.tcp.listeners.get(id).is_none_or(|listener| !listener.open.is_empty())
    }

    /// Queued bytes that the peer has not acknowledged.
    pub fn tcp_unacknowledged(&self, id: TcpId) -> usize {
        self.tcp.connections.get(id).map_or(0, Connection::unacknowledged)
    }

    /// Shuts down the sending half after the queued bytes; receiving goes on.
    pub fn tcp_shut_down(&mut self, now: Time, id: TcpId) -> Result<(), TcpError> {
        let served = self.tcp.service_clock.at(now);
        self.tcp.connections.get_mut(id).ok_or(TcpError::Closed)?.shut_down(served);
        self.tcp.make_ready(id);
        Ok(())
    }

    /// Closes a connection. Queued bytes are still sent. If received bytes are unread, the
    /// connection is reset instead.
    pub fn tcp_close(&mut self, now: Time, id: TcpId) {
        let Self { tcp, .. } = self;
        let Some(connection) = tcp.connections.get_mut(id) else { return };
        connection.holder = Holder::None;
        if connection.is_over() || connection.is_detached {
            tcp.remove(id);
            return;
        }
        // The reset tells the peer that received data is lost unread (RFC 9293 3.6.1).
        if connection.has_unread() {
            return tcp.abort(id, TcpError::ShutDown);
        }
        connection.shut_down(tcp.service_clock.at(now));
        let before = connection.state();
        tcp.apply_event(id, Event { before, received: false });
        tcp.make_ready(id);
    }

    /// Resets a connection.
    pub fn tcp_abort(&mut self, now: Time, id: TcpId) {
        self.tcp.abort(id, TcpError::ShutDown);
        self.tcp_close(now, id);
    }

    /// Like [`Stack::tcp_recv`], but the bytes stay in the receive queue.
    pub fn tcp_peek(&mut self, id: TcpId, buffer: &mut [u8]) -> Result<Option<usize>, TcpError> {
        self.tcp.connections.get_mut(id).ok_or(TcpError::Closed)?.peek(buffer)
    }

    /// Sets whether small segments are sent at once: the opposite of the Nagle algorithm.
    pub fn tcp_set_nodelay(&mut self, id: TcpId, is_on: bool) -> Result<(), TcpError> {
        let connection = self.tcp.connections.get_mut(id).ok_or(TcpError::Closed)?;
        connection.socket().set_nagle_enabled(!is_on);
        self.tcp.make_ready(id);
        Ok(())
    }

    /// Whether small segments are sent at once.
    pub fn tcp_nodelay(&self, id: TcpId) -> Result<bool, TcpError> {
        let connection = self.tcp.connections.get(id).ok_or(TcpError::Closed)?;
        Ok(!connection.socket_ref().nagle_enabled())
    }

    /// Sets the keep-alive time, which must be at least [`crate::stack::KEEPALIVE_MIN`]; `None`
    /// turns keep-alive off. The connection times out if no probe is answered for as long again.
    pub fn tcp_set_keepalive(&mut self, id: TcpId, idle: Option<Duration>) -> Result<(), TcpError> {
        self.tcp.connections.get_mut(id).ok_or(TcpError::Closed)?.keepalive = idle;
        self.tcp.mark_timer_stale(id);
        Ok(())
    }

    /// The keep-alive time.
    pub fn tcp_keepalive(&self, id: TcpId) -> Result<Option<Duration>, TcpError> {
        Ok(self.tcp.connections.get(id).ok_or(TcpError::Closed)?.keepalive)
    }

    /// Whether all data of closed connections was acknowledged or given up.
    pub fn tcp_is_flushed(&self) -> bool {
        !self.tcp.connections.values().any(Connection::is_flushing)
    }

    /// Unacknowledged bytes of closed connections, plus one for each FIN.
    pub fn tcp_unflushed(&self) -> usize {
        let left = self.tcp.connections.values().filter(|one| one.is_flushing());
        left.map(|connection| connection.unacknowledged() + 1).sum()
    }

    /// Resets closed connections that are not flushed; returns how many.
    pub fn tcp_abort_unflushed(&mut self) -> usize {
        let Self { tcp, .. } = self;
        let ids = tcp.by_addresses.values().copied();
        let is_flushing =
            |id: &TcpId| tcp.connections.get(*id).is_some_and(Connection::is_flushing);
        let mut ids: Vec<_> = ids.filter(is_flushing).collect();
        ids.sort_unstable();
        for id in &ids {
            tcp.abort(*id, TcpError::TimedOut);
        }
        ids.len()
    }

    /// Maximum time to flush data when the interface is dropped.
    pub const fn flush_max(&self) -> Duration {
        self.tcp.config.flush_max
    }

    /// The number of connections, including half-open ones and TIME-WAIT.
    pub fn tcp_len(&self) -> usize {
        self.tcp.connections.len() + self.tcp.time_waits.len()
    }

    /// The number of listeners.
    pub const fn tcp_listeners_len(&self) -> usize {
        self.tcp.listeners.len()
    }
}
