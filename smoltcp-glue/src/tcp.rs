//! TCP listeners and connections with the API of `std::net`, served by the caller's thread.

use crate::error::check_keepalive;
use crate::interface::{CallTimeout, Interface, resolve};
use crate::stack::{ListenerId, TcpError, TcpId};
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// A listening socket; dropping it closes it.
pub struct TcpListener {
    interface: Interface,
    id: ListenerId,
    timeout: Cell<CallTimeout>,
}

/// A connection. Dropping it closes it. Written data is still sent while the interface is served,
/// and for a limited time when the interface is dropped.
pub struct TcpStream {
    interface: Interface,
    id: TcpId,
    read_timeout: Cell<CallTimeout>,
    write_timeout: Cell<CallTimeout>,
    lingers: Cell<bool>,
    is_read_shut: Cell<bool>,
}

impl Interface {
    /// Listens for TCP connections. At most `backlog` connections wait to be accepted.
    pub fn tcp_listen(&self, local: impl ToSocketAddrs, backlog: usize) -> io::Result<TcpListener> {
        let local = resolve(local)?;
        let id = self.with(|host, _| host.stack.tcp_listen(local, backlog))?;
        Ok(TcpListener { interface: self.clone(), id, timeout: Cell::new(CallTimeout::Never) })
    }

    /// Opens a TCP connection, and waits until it is established. By default the attempt times out
    /// after three minutes ([`crate::stack::TcpConfig::user_timeout`]).
    pub fn tcp_connect(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        self.tcp_begin(to)?.wait_until_open(CallTimeout::Never)
    }

    /// As [`Interface::tcp_connect`], with a timeout.
    pub fn tcp_connect_timeout(
        &self,
        to: impl ToSocketAddrs,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        self.tcp_begin(to)?.wait_until_open(CallTimeout::After(timeout))
    }

    /// Starts to open a TCP connection without waiting. It accepts writes once it is established.
    pub fn tcp_begin(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let to = resolve(to)?;
        let id = self.with(|host, now| -> io::Result<_> {
            let from = SocketAddr::new(host.source_for(to.ip())?, 0);
            Ok(host.stack.tcp_connect(now, from, to)?)
        })?;
        Ok(TcpStream::new(self.clone(), id))
    }
}

impl TcpListener {
    /// The address and port that it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.interface.with(|inner, _| inner.stack.tcp_listener_local(self.id));
        local.ok_or_else(|| TcpError::Closed.into())
    }

    /// In non-blocking mode [`TcpListener::accept`] returns `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.timeout.set(CallTimeout::nonblocking(is_nonblocking));
    }

    /// Sets the timeout of [`TcpListener::accept`]; `None` waits indefinitely.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.timeout.set(CallTimeout::of(timeout));
    }

    /// Whether [`TcpListener::accept`] would return at once. This call serves no sockets: call
    /// [`Interface::step`] before checking many of them.
    pub fn is_ready(&self) -> bool {
        self.interface.with(|inner, _| inner.stack.tcp_is_waited_for(self.id))
    }

    /// Accepts the oldest connection; returns its peer too.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (id, peer) = self.interface.wait(self.timeout.get(), |inner, _| {
            let Some(id) = inner.stack.tcp_accept(self.id)? else { return Ok(None) };
            Ok(inner.stack.tcp_addresses(id).map(|(_, peer)| (id, peer)))
        })?;
        Ok((TcpStream::new(self.interface.clone(), id), peer))
    }

    /// An endless iterator over [`TcpListener::accept`].
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<TcpStream>> {
        std::iter::repeat_with(|| Ok(self.accept()?.0))
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.interface.with(|inner, now| {
            inner.stack.tcp_unlisten(self.id);
            inner.transmit(now);
        });
    }
}

impl TcpStream {
    const fn new(interface: Interface, id: TcpId) -> Self {
        Self {
            interface,
            id,
            read_timeout: Cell::new(CallTimeout::Never),
            write_timeout: Cell::new(CallTimeout::Never),
            lingers: Cell::new(true),
            is_read_shut: Cell::new(false),
        }
    }

    fn wait_until_open(self, timeout: CallTimeout) -> io::Result<Self> {
        let Self { interface, id, .. } = &self;
        interface.wait(timeout, |inner, _| Ok(inner.stack.tcp_is_open(*id)?.then_some(())))?;
        Ok(self)
    }

    /// The local address and port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addresses()?.0)
    }

    /// The address and port of the peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addresses()?.1)
    }

    fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        let addresses = self.interface.with(|inner, _| inner.stack.tcp_addresses(self.id));
        addresses.ok_or_else(|| TcpError::Closed.into())
    }

    /// Whether `read` would return at once. This call serves no sockets: call [`Interface::step`]
    /// before checking many of them.
    pub fn is_readable(&self) -> bool {
        let is_shut = self.is_read_shut.get();
        is_shut || self.interface.with(|inner, _| inner.stack.tcp_is_readable(self.id))
    }

    /// Sets the read timeout; `None` waits indefinitely.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.read_timeout.set(CallTimeout::of(timeout));
    }

    /// Sets the write timeout; `None` waits indefinitely.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.write_timeout.set(CallTimeout::of(timeout));
    }

    /// In non-blocking mode `read` and `write` return `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        let timeout = CallTimeout::nonblocking(is_nonblocking);
        self.read_timeout.set(timeout);
        self.write_timeout.set(timeout);
    }

    /// Sets what dropping the connection does: `true`, the default, sends the written data, then
    /// closes; `false` resets the connection.
    pub fn set_linger(&self, lingers: bool) {
        self.lingers.set(lingers);
    }

    /// Sets the keep-alive time: a peer that was silent for this long is probed, and the connection
    /// times out if no probe is answered for as long again. `None` turns keep-alive off. Less than
    /// a second is an error; [`crate::stack::TcpConfig`] has the default.
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        check_keepalive(idle)?;
        Ok(self.interface.with(|inner, _| inner.stack.tcp_set_keepalive(self.id, idle))?)
    }

    /// The keep-alive time.
    pub fn keepalive(&self) -> io::Result<Option<Duration>> {
        Ok(self.interface.with(|inner, _| inner.stack.tcp_keepalive(self.id))?)
    }

    /// Shuts down a half, or both. Of the sending half, the peer reads the written data, then the
    /// end; of the receiving half, `read` returns what has arrived, then the end.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            self.is_read_shut.set(true);
        }
        if how == Shutdown::Read {
            return Ok(());
        }
        self.interface.wait(self.write_timeout.get(), |inner, now| {
            // A connection that shuts down before it is established would never be established.
            if inner.stack.tcp_is_open(self.id) == Ok(false) {
                return Ok(None);
            }
            Ok(Some(inner.stack.tcp_shut_down(now, self.id)?))
        })
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.interface.wait(self.read_timeout.get(), |inner, _| {
            let received = inner.stack.tcp_recv(self.id, buffer)?;
            Ok(received.or(self.is_read_shut.get().then_some(0)))
        })
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.interface
            .wait(self.write_timeout.get(), |inner, _| Ok(inner.stack.tcp_send(self.id, bytes)?))
    }

    /// Waits until the peer has acknowledged all written data.
    fn flush(&mut self) -> io::Result<()> {
        self.interface.wait(self.write_timeout.get(), |inner, _| {
            match inner.stack.tcp_unacknowledged(self.id) {
                0 => Ok(Some(())),
                _ => Ok(inner.stack.tcp_is_open(self.id).map(|_| None)?),
            }
        })
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.interface.with(|inner, now| {
            match self.lingers.get() {
                true => inner.stack.tcp_close(now, self.id),
                false => inner.stack.tcp_abort(now, self.id),
            }
            inner.transmit(now);
        });
    }
}
