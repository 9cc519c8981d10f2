//! TCP listeners and connections with the API of `std::net`, served by the caller's thread.

use crate::error::check_keepalive;
use crate::interface::{Interface, resolve};
use crate::stack::{ListenerId, TcpError, TcpId, TcpInfo};
use crate::std_calls::timeout_calls;
use crate::timeout::{CallTimeout, SocketTimeout};
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;

/// A listening socket; dropping it closes it.
pub struct TcpListener {
    ends: Rc<ListenerEnds>,
}

/// Shared by all clones. Dropping the last clone closes the listener.
struct ListenerEnds {
    interface: Interface,
    id: ListenerId,
    timeout: SocketTimeout,
}

/// A connection. Dropping it closes it. Written data is still sent while the interface is served,
/// and for a limited time after the interface is dropped.
pub struct TcpStream {
    ends: Rc<StreamEnds>,
}

/// Shared by all clones. Dropping the last clone closes the connection.
struct StreamEnds {
    interface: Interface,
    id: TcpId,
    read_timeout: SocketTimeout,
    write_timeout: SocketTimeout,
    lingers: Cell<bool>,
    /// Whether `take_error` has returned the error that ended the connection.
    is_error_taken: Cell<bool>,
    is_read_shut: Cell<bool>,
}

impl Interface {
    /// Listens for TCP connections; port 0 picks a free port. At most `backlog` connections wait to
    /// be accepted.
    pub fn tcp_listen(&self, local: impl ToSocketAddrs, backlog: usize) -> io::Result<TcpListener> {
        let local = resolve(local)?;
        let id = self.with(|host, _| host.stack.tcp_listen(local, backlog))?;
        let ends = ListenerEnds { interface: self.clone(), id, timeout: SocketTimeout::new() };
        Ok(TcpListener { ends: Rc::new(ends) })
    }

    /// Opens a TCP connection, and waits until it is established. The attempt fails after three
    /// seconds if no host has the address, and by default after three minutes if the host does not
    /// answer ([`crate::stack::TcpConfig::user_timeout`]).
    pub fn tcp_connect(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        self.tcp_begin(to)?.wait_until_open(CallTimeout::Never)
    }

    /// Like [`Interface::tcp_connect`], but with a timeout.
    pub fn tcp_connect_timeout(
        &self,
        to: impl ToSocketAddrs,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        self.tcp_begin(to)?.wait_until_open(CallTimeout::After(timeout))
    }

    /// Starts to open a TCP connection, and returns at once. Writes wait until it is established.
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
    /// Another handle of the same socket. The handles share all settings; dropping the last one
    /// closes the socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { ends: Rc::clone(&self.ends) })
    }

    /// The address and port that it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local =
            self.ends.interface.with(|inner, _| inner.stack.tcp_listener_local(self.ends.id));
        local.ok_or_else(|| TcpError::Closed.into())
    }

    /// In non-blocking mode [`TcpListener::accept`] returns `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        self.ends.timeout.set_nonblocking(is_nonblocking);
        Ok(())
    }

    /// Sets the timeout of [`TcpListener::accept`]; `None` waits indefinitely, and a timeout of 0
    /// is an error.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.ends.timeout.set_timeout(timeout)
    }

    /// Always `None`: [`TcpListener::accept`] returns the errors of a listener.
    pub const fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(None)
    }

    /// Whether [`TcpListener::accept`] would return at once. This call serves no sockets: call
    /// [`Interface::step`] before checking many of them.
    pub fn is_ready(&self) -> bool {
        self.ends.interface.with(|inner, _| inner.stack.tcp_is_waited_for(self.ends.id))
    }

    /// Accepts the oldest connection; also returns the address of its peer.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (id, peer) = self.ends.interface.wait(self.ends.timeout.get(), |inner, _| {
            let Some(id) = inner.stack.tcp_accept(self.ends.id)? else { return Ok(None) };
            Ok(inner.stack.tcp_addresses(id).map(|(_, peer)| (id, peer)))
        })?;
        Ok((TcpStream::new(self.ends.interface.clone(), id), peer))
    }

    /// An endless iterator over [`TcpListener::accept`].
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<TcpStream>> {
        std::iter::repeat_with(|| Ok(self.accept()?.0))
    }
}

impl Drop for ListenerEnds {
    fn drop(&mut self) {
        self.interface.with(|inner, now| {
            inner.stack.tcp_unlisten(self.id);
            inner.transmit(now);
        });
    }
}

impl TcpStream {
    fn new(interface: Interface, id: TcpId) -> Self {
        let ends = StreamEnds {
            interface,
            id,
            read_timeout: SocketTimeout::new(),
            write_timeout: SocketTimeout::new(),
            lingers: Cell::new(true),
            is_error_taken: Cell::new(false),
            is_read_shut: Cell::new(false),
        };
        Self { ends: Rc::new(ends) }
    }

    fn wait_until_open(self, timeout: CallTimeout) -> io::Result<Self> {
        let StreamEnds { interface, id, .. } = &*self.ends;
        interface.wait(timeout, |inner, _| Ok(inner.stack.tcp_is_open(*id)?.then_some(())))?;
        Ok(self)
    }

    /// Another handle of the same socket. The handles share all settings; dropping the last one
    /// closes the socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { ends: Rc::clone(&self.ends) })
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
        let addresses =
            self.ends.interface.with(|inner, _| inner.stack.tcp_addresses(self.ends.id));
        addresses.ok_or_else(|| TcpError::Closed.into())
    }

    /// Whether `read` would return at once. This call serves no sockets: call [`Interface::step`]
    /// before checking many of them.
    pub fn is_readable(&self) -> bool {
        let is_shut = self.ends.is_read_shut.get();
        is_shut || self.ends.interface.with(|inner, _| inner.stack.tcp_is_readable(self.ends.id))
    }

    timeout_calls!("`read`", "`write` and `flush`");

    /// Copies received bytes without removing them from the receive queue; waits as `read` does.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.ends.interface.wait(self.ends.read_timeout.get(), |inner, _| {
            let peeked = inner.stack.tcp_peek(self.ends.id, buffer)?;
            Ok(peeked.or(self.ends.is_read_shut.get().then_some(0)))
        })
    }

    /// `true`, the default, sends written data at once. `false` delays a partial segment until
    /// earlier data is acknowledged (the Nagle algorithm).
    pub fn set_nodelay(&self, is_on: bool) -> io::Result<()> {
        Ok(self.ends.interface.with(|inner, _| inner.stack.tcp_set_nodelay(self.ends.id, is_on))?)
    }

    /// Whether written data is sent at once.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.ends.interface.with(|inner, _| inner.stack.tcp_nodelay(self.ends.id))?)
    }

    /// The connection as it is now: round-trip time, windows, queues and counters.
    pub fn info(&self) -> io::Result<TcpInfo> {
        Ok(self.ends.interface.with(|inner, now| inner.stack.tcp_info(now, self.ends.id))?)
    }

    /// Takes the error that ended the connection: later calls return `None`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let end = self.ends.interface.with(|inner, _| inner.stack.tcp_is_open(self.ends.id)).err();
        let end = end.filter(|end| *end != TcpError::ShutDown && !self.ends.is_error_taken.get());
        self.ends.is_error_taken.set(self.ends.is_error_taken.get() || end.is_some());
        Ok(end.map(io::Error::from))
    }

    /// Sets how dropping the connection closes it: `true`, the default, sends the written data
    /// first; `false` resets the connection.
    pub fn set_linger(&self, lingers: bool) {
        self.ends.lingers.set(lingers);
    }

    /// Sets the keep-alive time: a peer that was silent for this long is probed, and the connection
    /// times out if no probe is answered for as long again. `None` turns keep-alive off. Less than
    /// a second is an error; [`crate::stack::TcpConfig`] has the default.
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        check_keepalive(idle)?;
        Ok(self
            .ends
            .interface
            .with(|inner, _| inner.stack.tcp_set_keepalive(self.ends.id, idle))?)
    }

    /// The keep-alive time.
    pub fn keepalive(&self) -> io::Result<Option<Duration>> {
        Ok(self.ends.interface.with(|inner, _| inner.stack.tcp_keepalive(self.ends.id))?)
    }

    /// Shuts down one half, or both. After a shutdown of the sending half, the peer reads the
    /// written data, then end of file. After a shutdown of the receiving half, `read` returns the
    /// data that has arrived, then end of file.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            self.ends.is_read_shut.set(true);
        }
        if how == Shutdown::Read {
            return Ok(());
        }
        self.ends.interface.wait(self.ends.write_timeout.get(), |inner, now| {
            // A shutdown of a connection that is not established yet would cancel the attempt.
            if inner.stack.tcp_is_open(self.ends.id) == Ok(false) {
                return Ok(None);
            }
            Ok(Some(inner.stack.tcp_shut_down(now, self.ends.id)?))
        })
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.ends.interface.wait(self.ends.read_timeout.get(), |inner, _| {
            let received = inner.stack.tcp_recv(self.ends.id, buffer)?;
            Ok(received.or(self.ends.is_read_shut.get().then_some(0)))
        })
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.ends.interface.wait(self.ends.write_timeout.get(), |inner, _| {
            Ok(inner.stack.tcp_send(self.ends.id, bytes)?)
        })
    }

    /// Waits until the peer has acknowledged all written data.
    fn flush(&mut self) -> io::Result<()> {
        self.ends.interface.wait(self.ends.write_timeout.get(), |inner, _| {
            match inner.stack.tcp_unacknowledged(self.ends.id) {
                0 => Ok(Some(())),
                _ => Ok(inner.stack.tcp_is_open(self.ends.id).map(|_| None)?),
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

impl Drop for StreamEnds {
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
