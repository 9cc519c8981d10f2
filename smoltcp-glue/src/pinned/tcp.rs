//! Connections of TCP that any thread can hold.
//!
//! Each has a ring of bytes each way. Bytes in the ring to the worker count as written, like those
//! in a send buffer: they are sent although the connection is dropped.

use super::doorbell::SocketFlags;
use super::request::ask;
use super::waiters::{TaskSlot, Waiters};
use super::{Hold, SharedTimeout, lock};
use crate::error::check_keepalive;
use crate::interface::CallTimeout;
use crate::stack::{SocketId, TcpError, TcpId};
use pollux_mem::byte_ring;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

/// A connection. Dropping it closes it. Written data is still sent, and for a limited time when the
/// interface is dropped.
///
/// Threads may share it. Each direction has a lock, so two concurrent readers get each their bytes;
/// the worker takes neither.
pub struct TcpStream {
    hold: Hold,
    line: Arc<TcpLine>,
    reader: Mutex<byte_ring::Reader>,
    writer: Mutex<Outgoing>,
    addresses: (SocketAddr, SocketAddr),
    read_timeout: SharedTimeout,
    write_timeout: SharedTimeout,
    lingers: AtomicBool,
    /// The tasks that poll the traits of `async_traits`.
    read_task: TaskSlot,
    write_task: TaskSlot,
}

struct Outgoing {
    ring: byte_ring::Writer,
    /// All bytes that were written.
    written: u64,
}

pub(super) struct TcpLine {
    id: TcpId,
    pub(super) flags: SocketFlags,
    pub(super) readers: Waiters,
    pub(super) writers: Waiters,
    /// Written by the worker: the connection state.
    state: AtomicU8,
    /// Written by the worker: the end after the bytes in the ring.
    stream_end: AtomicU8,
    /// Written by the worker: all bytes that the peer has acknowledged.
    pub(super) acknowledged: AtomicU64,
    /// Written by the application.
    requested_state: AtomicU8,
    /// Written by the application: the receiving half is shut down.
    is_read_shut: AtomicBool,
}

/// The state that the application requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedState {
    Open,
    ShutDown,
    Close,
    Abort,
}

/// Connection state, as the worker last published it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    Opening,
    Open,
    Ended(TcpError),
}

/// The end of the received bytes, if they have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    None,
    Eof,
    Error(TcpError),
}

const REQUESTED_STATES: [RequestedState; 4] =
    [RequestedState::Open, RequestedState::ShutDown, RequestedState::Close, RequestedState::Abort];
const STATES: [ConnectionState; 9] = [
    ConnectionState::Opening,
    ConnectionState::Open,
    ConnectionState::Ended(TcpError::Closed),
    ConnectionState::Ended(TcpError::Refused),
    ConnectionState::Ended(TcpError::Reset),
    ConnectionState::Ended(TcpError::TimedOut),
    ConnectionState::Ended(TcpError::Unreachable),
    ConnectionState::Ended(TcpError::PeerGone),
    ConnectionState::Ended(TcpError::ShutDown),
];
const STREAM_ENDS: [StreamEnd; 9] = [
    StreamEnd::None,
    StreamEnd::Eof,
    StreamEnd::Error(TcpError::Closed),
    StreamEnd::Error(TcpError::Refused),
    StreamEnd::Error(TcpError::Reset),
    StreamEnd::Error(TcpError::TimedOut),
    StreamEnd::Error(TcpError::Unreachable),
    StreamEnd::Error(TcpError::PeerGone),
    StreamEnd::Error(TcpError::ShutDown),
];

/// Stores a value by its index in a table. Release: a reader of it sees earlier writes.
fn store<T: PartialEq>(cell: &AtomicU8, table: &[T], value: &T) {
    let index = table.iter().position(|one| one == value);
    cell.store(index.expect("the tables are complete") as u8, Ordering::Release);
}

impl TcpLine {
    pub(super) fn new(id: TcpId, state: ConnectionState) -> Self {
        let line = Self {
            id,
            flags: SocketFlags::new(SocketId::Tcp(id)),
            readers: Waiters::default(),
            writers: Waiters::default(),
            state: AtomicU8::new(0),
            stream_end: AtomicU8::new(0),
            acknowledged: AtomicU64::new(0),
            requested_state: AtomicU8::new(0),
            is_read_shut: AtomicBool::new(false),
        };
        line.set_state(state);
        line
    }

    pub(super) fn state(&self) -> ConnectionState {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    pub(super) fn set_state(&self, state: ConnectionState) {
        store(&self.state, &STATES, &state);
    }

    pub(super) fn stream_end(&self) -> StreamEnd {
        STREAM_ENDS[usize::from(self.stream_end.load(Ordering::Acquire))]
    }

    pub(super) fn set_stream_end(&self, stream_end: StreamEnd) {
        store(&self.stream_end, &STREAM_ENDS, &stream_end);
    }

    pub(super) fn requested_state(&self) -> RequestedState {
        REQUESTED_STATES[usize::from(self.requested_state.load(Ordering::Acquire))]
    }

    fn set_requested_state(&self, requested_state: RequestedState) {
        store(&self.requested_state, &REQUESTED_STATES, &requested_state);
    }
}

impl TcpStream {
    /// It does not linger until the application gets it.
    pub(super) fn new(
        hold: Hold,
        line: Arc<TcpLine>,
        (reader, writer): (byte_ring::Reader, byte_ring::Writer),
        addresses: (SocketAddr, SocketAddr),
    ) -> Self {
        Self {
            hold,
            line,
            reader: Mutex::new(reader),
            writer: Mutex::new(Outgoing { ring: writer, written: 0 }),
            addresses,
            read_timeout: SharedTimeout::default(),
            write_timeout: SharedTimeout::default(),
            lingers: AtomicBool::new(false),
            read_task: TaskSlot::default(),
            write_task: TaskSlot::default(),
        }
    }

    pub(super) fn wait_until_open(self, timeout: CallTimeout) -> io::Result<Self> {
        self.line.writers.wait(timeout, || self.try_open())?;
        Ok(self)
    }

    /// The local address and port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addresses.0)
    }

    /// The address and port of the peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addresses.1)
    }

    /// Whether `read` would return at once.
    pub fn is_readable(&self) -> bool {
        let has_ended =
            self.line.stream_end() != StreamEnd::None || self.hold.doorbell.check().is_err();
        let is_shut = self.line.is_read_shut.load(Ordering::Relaxed);
        has_ended || is_shut || !lock(&self.reader).is_empty()
    }

    /// Sets the read timeout; `None` waits indefinitely.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.read_timeout.set_timeout(timeout);
    }

    /// Sets the write timeout; `None` waits indefinitely.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.write_timeout.set_timeout(timeout);
    }

    /// In non-blocking mode, reads and writes return `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.read_timeout.set_nonblocking(is_nonblocking);
        self.write_timeout.set_nonblocking(is_nonblocking);
    }

    /// Sets what dropping the connection does: `true`, the default, sends the written data, then
    /// closes; `false` resets the connection.
    pub fn set_linger(&self, lingers: bool) {
        self.lingers.store(lingers, Ordering::Relaxed);
    }

    /// Sets the keep-alive time: a peer that was silent for this long is probed, and the connection
    /// times out if no probe is answered for as long again. `None` turns keep-alive off. Less than
    /// a second is an error; [`crate::stack::TcpConfig`] has the default.
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        check_keepalive(idle)?;
        let id = self.line.id;
        ask(&self.hold.doorbell, move |worker, _| {
            Ok(worker.inner.stack.tcp_set_keepalive(id, idle)?)
        })
    }

    /// The keep-alive time.
    pub fn keepalive(&self) -> io::Result<Option<Duration>> {
        let id = self.line.id;
        ask(&self.hold.doorbell, move |worker, _| Ok(worker.inner.stack.tcp_keepalive(id)?))
    }

    /// Shuts down a half, or both. Of the sending half, the peer reads the written data, then the
    /// end; of the receiving half, `read` returns what has arrived, then the end, also in a thread
    /// that waits in it.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            self.line.is_read_shut.store(true, Ordering::Release);
            self.line.readers.wake();
        }
        if how == Shutdown::Read {
            return Ok(());
        }
        self.hold.doorbell.check()?;
        if let ConnectionState::Ended(why) = self.line.state() {
            return Err(why.into());
        }
        // Under the lock, so that no write follows the end.
        let writer = lock(&self.writer);
        self.line.set_requested_state(RequestedState::ShutDown);
        drop(writer);
        self.hold.doorbell.notify(&self.line.flags);
        Ok(())
    }
}

/// Calls for tasks; `read` and `write` wait by the same calls.
impl TcpStream {
    /// Waits until the connection is open, or has failed.
    pub fn poll_open(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.line.writers.poll(context, || self.try_open())
    }

    /// Reads available data; returns the number of bytes, and 0 at the end of the stream.
    pub fn poll_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.line.readers.poll(context, || self.try_read(buffer))
    }

    /// Writes as much as there is space for; returns the number of bytes.
    pub fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.line.writers.poll(context, || self.try_write(bytes))
    }

    /// Waits until the peer has acknowledged all written data.
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.line.writers.poll(context, || self.try_flush())
    }

    /// As `read`, for a task.
    pub async fn read_async(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.line.readers.wait_async(|| self.try_read(buffer)).await
    }

    /// As `write`, for a task.
    pub async fn write_async(&self, bytes: &[u8]) -> io::Result<usize> {
        self.line.writers.wait_async(|| self.try_write(bytes)).await
    }

    /// As `write_all`, for a task.
    pub async fn write_all_async(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = &bytes[self.write_async(bytes).await?..];
        }
        Ok(())
    }

    /// As `flush`, for a task.
    pub async fn flush_async(&self) -> io::Result<()> {
        self.line.writers.wait_async(|| self.try_flush()).await
    }
}

/// Calls of the one task that owns the connection: it is woken by its last waker.
#[cfg(any(feature = "tokio", feature = "futures-io"))]
impl TcpStream {
    pub(super) fn poll_read_owned(
        &mut self,
        context: &Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut task = std::mem::take(&mut self.read_task);
        let read = self.line.readers.poll_slot(&mut task, context, || self.try_read(buffer));
        self.read_task = task;
        read
    }

    pub(super) fn poll_write_owned(
        &mut self,
        context: &Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut task = std::mem::take(&mut self.write_task);
        let written = self.line.writers.poll_slot(&mut task, context, || self.try_write(bytes));
        self.write_task = task;
        written
    }
}

/// One attempt each, which returns `None` where it would wait.
impl TcpStream {
    fn try_open(&self) -> io::Result<Option<()>> {
        match self.line.state() {
            ConnectionState::Opening => self.hold.doorbell.check().map(|()| None),
            ConnectionState::Open => Ok(Some(())),
            ConnectionState::Ended(why) => Err(why.into()),
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if buffer.is_empty() {
            return Ok(Some(0));
        }
        // Read first: data before the end are in the ring then.
        let (is_served, stream_end) = (self.hold.doorbell.check(), self.line.stream_end());
        let mut reader = lock(&self.reader);
        let taken = reader.read(buffer);
        if taken > 0 {
            self.hold.doorbell.relieve_at_half(&self.line.flags, &mut reader);
            return Ok(Some(taken));
        }
        match stream_end {
            StreamEnd::None if self.line.is_read_shut.load(Ordering::Acquire) => Ok(Some(0)),
            StreamEnd::None => is_served.map(|()| None),
            StreamEnd::Eof => Ok(Some(0)),
            StreamEnd::Error(why) => Err(why.into()),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        self.hold.doorbell.check()?;
        let mut writer = lock(&self.writer);
        match (self.line.requested_state(), self.line.state()) {
            (_, ConnectionState::Ended(why)) => return Err(why.into()),
            (RequestedState::Open, ConnectionState::Opening) => return Ok(None),
            (RequestedState::Open, ConnectionState::Open) => {}
            _ => return Err(TcpError::ShutDown.into()),
        }
        let taken = writer.ring.write(bytes);
        writer.written += taken as u64;
        if taken > 0 {
            self.hold.doorbell.notify(&self.line.flags);
        }
        Ok((taken > 0 || bytes.is_empty()).then_some(taken))
    }

    fn try_flush(&self) -> io::Result<Option<()>> {
        let (is_served, state) = (self.hold.doorbell.check(), self.line.state());
        let written = lock(&self.writer).written;
        if self.line.acknowledged.load(Ordering::Acquire) == written {
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
        self.line.readers.wait(self.read_timeout.get(), || self.try_read(buffer))
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.writers.wait(self.write_timeout.get(), || self.try_write(bytes))
    }

    /// Waits until the peer has acknowledged all written data.
    fn flush(&mut self) -> io::Result<()> {
        self.line.writers.wait(self.write_timeout.get(), || self.try_flush())
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
        let lingers = *self.lingers.get_mut();
        self.line.set_requested_state(if lingers {
            RequestedState::Close
        } else {
            RequestedState::Abort
        });
        self.hold.doorbell.notify(&self.line.flags);
    }
}
