//! TCP connections that any thread can hold.
//!
//! A connection has a byte ring in each direction. Bytes in the ring to the worker count as
//! written, like those in a send buffer: they are sent even after the connection is dropped.

use super::request::ask;
use super::tcp_line::{ConnectionState, RequestedState, StreamEnd, TcpLine};
use super::waiters::TaskSlot;
use super::{Hold, lock};
use crate::error::check_keepalive;
use crate::stack::{TcpError, TcpInfo};
use crate::std_calls::timeout_calls;
use crate::timeout::{CallTimeout, SocketTimeout};
use pollux_mem::byte_ring;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

/// A connection. Dropping it closes it. Written data is still sent, for a limited time if the
/// interface is dropped too.
///
/// Threads may share it. Each direction has a lock, so concurrent readers get different bytes. The
/// worker takes neither lock.
#[cfg_attr(
    not(any(feature = "tokio", feature = "futures-io")),
    expect(dead_code, reason = "tasks poll traits of these crates only")
)]
pub struct TcpStream {
    ends: Arc<StreamEnds>,
    /// The tasks that poll by the traits of `async_traits`.
    read_task: TaskSlot,
    write_task: TaskSlot,
}

/// Shared by all clones. Dropping the last clone closes the connection.
struct StreamEnds {
    reader: Mutex<byte_ring::Reader>,
    writer: Mutex<Outgoing>,
    addresses: (SocketAddr, SocketAddr),
    read_timeout: SocketTimeout,
    write_timeout: SocketTimeout,
    /// Whether `take_error` has returned the error that ended the connection.
    is_error_taken: AtomicBool,
    // Dropped last: the worker reuses the rings if their other ends are dropped.
    socket: OpenSocket,
}

/// The socket at the worker. Dropping this closes it.
struct OpenSocket {
    hold: Hold,
    line: Arc<TcpLine>,
    lingers: AtomicBool,
}

struct Outgoing {
    ring: byte_ring::Writer,
    /// The number of bytes written so far.
    written: u64,
}

impl TcpStream {
    /// A new stream does not linger: if it is dropped before the application gets it, the
    /// connection is reset.
    pub(super) fn new(
        hold: Hold,
        line: Arc<TcpLine>,
        (reader, writer): (byte_ring::Reader, byte_ring::Writer),
        addresses: (SocketAddr, SocketAddr),
    ) -> Self {
        let ends = StreamEnds {
            reader: Mutex::new(reader),
            writer: Mutex::new(Outgoing { ring: writer, written: 0 }),
            addresses,
            read_timeout: SocketTimeout::new(),
            write_timeout: SocketTimeout::new(),
            is_error_taken: AtomicBool::new(false),
            socket: OpenSocket { hold, line, lingers: AtomicBool::new(false) },
        };
        Self::of(Arc::new(ends))
    }

    fn of(ends: Arc<StreamEnds>) -> Self {
        Self { ends, read_task: TaskSlot::default(), write_task: TaskSlot::default() }
    }

    /// Another handle of the same socket. The handles share all settings; dropping the last one
    /// closes the socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self::of(Arc::clone(&self.ends)))
    }

    pub(super) fn wait_until_open(self, timeout: CallTimeout) -> io::Result<Self> {
        self.ends.socket.line.writers.wait(timeout, || self.try_open())?;
        Ok(self)
    }

    /// The local address and port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.ends.addresses.0)
    }

    /// The address and port of the peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.ends.addresses.1)
    }

    /// Whether `read` would return at once.
    pub fn is_readable(&self) -> bool {
        let has_ended = self.ends.socket.line.stream_end() != StreamEnd::None
            || self.ends.socket.hold.doorbell.check().is_err();
        let is_shut = self.ends.socket.line.is_read_shut.load(Ordering::Relaxed);
        has_ended || is_shut || !lock(&self.ends.reader).is_empty()
    }

    timeout_calls!("`read`", "`write` and `flush`");

    /// Copies received bytes without removing them from the receive queue; waits as `read` does.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.ends.socket.line.readers.wait(self.ends.read_timeout.get(), || self.try_peek(buffer))
    }

    /// `true`, the default, sends written data at once. `false` delays a partial segment until
    /// earlier data is acknowledged (the Nagle algorithm).
    pub fn set_nodelay(&self, is_on: bool) -> io::Result<()> {
        let id = self.ends.socket.line.id;
        ask(&self.ends.socket.hold.doorbell, move |worker, _| {
            Ok(worker.inner.stack.tcp_set_nodelay(id, is_on)?)
        })
    }

    /// Whether written data is sent at once.
    pub fn nodelay(&self) -> io::Result<bool> {
        let id = self.ends.socket.line.id;
        ask(&self.ends.socket.hold.doorbell, move |worker, _| {
            Ok(worker.inner.stack.tcp_nodelay(id)?)
        })
    }

    /// The connection as it is now: round-trip time, windows, queues and counters.
    pub fn info(&self) -> io::Result<TcpInfo> {
        let id = self.ends.socket.line.id;
        ask(&self.ends.socket.hold.doorbell, move |worker, now| Ok(worker.tcp_info(now, id)?))
    }

    /// Takes the error that ended the connection: later calls return `None`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self.ends.socket.line.state() {
            ConnectionState::Ended(why) if why != TcpError::ShutDown => {
                let is_taken = self.ends.is_error_taken.swap(true, Ordering::Relaxed);
                Ok((!is_taken).then(|| why.into()))
            }
            _ => Ok(None),
        }
    }

    /// Sets how dropping the connection closes it: `true`, the default, sends the written data
    /// first; `false` resets the connection.
    pub fn set_linger(&self, lingers: bool) {
        self.ends.socket.lingers.store(lingers, Ordering::Relaxed);
    }

    /// Sets the keep-alive time: a peer that was silent for this long is probed, and the connection
    /// times out if no probe is answered for as long again. `None` turns keep-alive off. Less than
    /// a second is an error; [`crate::stack::TcpConfig`] has the default.
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        check_keepalive(idle)?;
        let id = self.ends.socket.line.id;
        ask(&self.ends.socket.hold.doorbell, move |worker, _| {
            Ok(worker.inner.stack.tcp_set_keepalive(id, idle)?)
        })
    }

    /// The keep-alive time.
    pub fn keepalive(&self) -> io::Result<Option<Duration>> {
        let id = self.ends.socket.line.id;
        ask(&self.ends.socket.hold.doorbell, move |worker, _| {
            Ok(worker.inner.stack.tcp_keepalive(id)?)
        })
    }

    /// Shuts down one half, or both. After a shutdown of the sending half, the peer reads the
    /// written data, then end of file. After a shutdown of the receiving half, `read` returns the
    /// data that has arrived, then end of file, also in threads that already wait in `read`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            self.ends.socket.line.is_read_shut.store(true, Ordering::Release);
            self.ends.socket.line.readers.wake();
        }
        if how == Shutdown::Read {
            return Ok(());
        }
        self.ends.socket.hold.doorbell.check()?;
        if let ConnectionState::Ended(why) = self.ends.socket.line.state() {
            return Err(why.into());
        }
        // Set under the lock, so that no write follows the shutdown.
        let writer = lock(&self.ends.writer);
        self.ends.socket.line.set_requested_state(RequestedState::ShutDown);
        drop(writer);
        self.ends.socket.hold.doorbell.notify(&self.ends.socket.line.flags);
        Ok(())
    }
}

/// Calls for tasks.
impl TcpStream {
    /// Waits until the connection is open, or has failed.
    pub fn poll_open(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ends.socket.line.writers.poll(context, || self.try_open())
    }

    /// Reads available data; returns the number of bytes, 0 at end of file.
    pub fn poll_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.ends.socket.line.readers.poll(context, || self.try_read(buffer))
    }

    /// Writes as much as there is space for; returns the number of bytes.
    pub fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.ends.socket.line.writers.poll(context, || self.try_write(bytes))
    }

    /// Waits until the peer has acknowledged all written data.
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ends.socket.line.writers.poll(context, || self.try_flush())
    }

    /// Like `read`, but for a task.
    pub async fn read_async(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.ends.socket.line.readers.wait_async(|| self.try_read(buffer)).await
    }

    /// Like `write`, but for a task.
    pub async fn write_async(&self, bytes: &[u8]) -> io::Result<usize> {
        self.ends.socket.line.writers.wait_async(|| self.try_write(bytes)).await
    }

    /// Like `write_all`, but for a task.
    pub async fn write_all_async(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = &bytes[self.write_async(bytes).await?..];
        }
        Ok(())
    }

    /// Like `flush`, but for a task.
    pub async fn flush_async(&self) -> io::Result<()> {
        self.ends.socket.line.writers.wait_async(|| self.try_flush()).await
    }
}

/// Calls of the traits, for the one task that owns the stream: only its last waker is woken.
#[cfg(any(feature = "tokio", feature = "futures-io"))]
impl TcpStream {
    pub(super) fn poll_read_owned(
        &mut self,
        context: &Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut task = std::mem::take(&mut self.read_task);
        let read =
            self.ends.socket.line.readers.poll_slot(&mut task, context, || self.try_read(buffer));
        self.read_task = task;
        read
    }

    pub(super) fn poll_write_owned(
        &mut self,
        context: &Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut task = std::mem::take(&mut self.write_task);
        let written =
            self.ends.socket.line.writers.poll_slot(&mut task, context, || self.try_write(bytes));
        self.write_task = task;
        written
    }
}

/// Single attempts of calls, which return `None` if the call has to wait.
impl TcpStream {
    fn try_open(&self) -> io::Result<Option<()>> {
        match self.ends.socket.line.state() {
            ConnectionState::Opening => self.ends.socket.hold.doorbell.check().map(|()| None),
            ConnectionState::Open => Ok(Some(())),
            ConnectionState::Ended(why) => Err(why.into()),
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.try_take(buffer, byte_ring::Reader::read)
    }

    fn try_peek(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.try_take(buffer, |reader, buffer| {
            let count = reader.len(buffer.len()).min(buffer.len());
            if reader.peek(0, &mut buffer[..count]) { count } else { 0 }
        })
    }

    #[inline]
    fn try_take(
        &self,
        buffer: &mut [u8],
        take: impl FnOnce(&mut byte_ring::Reader, &mut [u8]) -> usize,
    ) -> io::Result<Option<usize>> {
        if buffer.is_empty() {
            return Ok(Some(0));
        }
        // The end is read first: then data that was received before the end is in the ring.
        let (is_served, stream_end) =
            (self.ends.socket.hold.doorbell.check(), self.ends.socket.line.stream_end());
        let mut reader = lock(&self.ends.reader);
        let taken = take(&mut reader, buffer);
        if taken > 0 {
            self.ends
                .socket
                .hold
                .doorbell
                .relieve_at_half(&self.ends.socket.line.flags, &mut reader);
            return Ok(Some(taken));
        }
        match stream_end {
            StreamEnd::None if self.ends.socket.line.is_read_shut.load(Ordering::Acquire) => {
                Ok(Some(0))
            }
            StreamEnd::None => is_served.map(|()| None),
            StreamEnd::Eof => Ok(Some(0)),
            StreamEnd::Error(why) => Err(why.into()),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        self.ends.socket.hold.doorbell.check()?;
        let mut writer = lock(&self.ends.writer);
        match (self.ends.socket.line.requested_state(), self.ends.socket.line.state()) {
            (_, ConnectionState::Ended(why)) => return Err(why.into()),
            (RequestedState::Open, ConnectionState::Opening) => return Ok(None),
            (RequestedState::Open, ConnectionState::Open) => {}
            _ => return Err(TcpError::ShutDown.into()),
        }
        let taken = writer.ring.write(bytes);
        writer.written += taken as u64;
        if taken > 0 {
            self.ends.socket.hold.doorbell.notify(&self.ends.socket.line.flags);
        }
        Ok((taken > 0 || bytes.is_empty()).then_some(taken))
    }

    fn try_flush(&self) -> io::Result<Option<()>> {
        let (is_served, state) =
            (self.ends.socket.hold.doorbell.check(), self.ends.socket.line.state());
        let written = lock(&self.ends.writer).written;
        if self.ends.socket.line.acknowledged.load(Ordering::Acquire) == written {
            return Ok(Some(()));
        }
        match state {
            ConnectionState::Ended(why) => Err(why.into()),
            _ => is_served.map(|()| None),
        }
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.ends.socket.line.readers.wait(self.ends.read_timeout.get(), || self.try_read(buffer))
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.ends.socket.line.writers.wait(self.ends.write_timeout.get(), || self.try_write(bytes))
    }

    /// Waits until the peer has acknowledged all written data.
    fn flush(&mut self) -> io::Result<()> {
        self.ends.socket.line.writers.wait(self.ends.write_timeout.get(), || self.try_flush())
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

impl Drop for OpenSocket {
    fn drop(&mut self) {
        let lingers = *self.lingers.get_mut();
        self.line.set_requested_state(if lingers {
            RequestedState::Close
        } else {
            RequestedState::Abort
        });
        self.hold.doorbell.notify(&self.line.flags);
    }
}
