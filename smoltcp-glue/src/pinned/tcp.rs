//! Connections of TCP that any thread can hold.
//!
//! Each has a ring of bytes each way. What is in the ring to the worker counts as written, as
//! what is in a send buffer does: it goes out though the connection is dropped.

use super::doorbell::DirtyFlag;
use super::request::WorkerRequest;
use super::waiters::Waiters;
use super::{Hold, SharedTimeout};
use crate::interface::CallTimeout;
use crate::stack::{SocketId, TcpError, TcpId};
use pollux_mem::byte_ring;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// A connection. It is closed when it is dropped; what was written before still goes out, and for a
/// moment also when the interface ends.
///
/// Threads may share it. Each end of it has a lock, so that two who read at once get each their
/// bytes; the worker takes neither.
pub struct TcpStream {
    hold: Hold,
    line: Arc<TcpLine>,
    reader: Mutex<byte_ring::Reader>,
    writer: Mutex<Outgoing>,
    addresses: (SocketAddr, SocketAddr),
    read_timeout: SharedTimeout,
    write_timeout: SharedTimeout,
    lingers: AtomicBool,
}

struct Outgoing {
    ring: byte_ring::Writer,
    /// Bytes that were written, ever.
    written: u64,
}

/// What application and worker both see of a connection.
pub(super) struct TcpLine {
    id: TcpId,
    pub(super) dirty: DirtyFlag,
    pub(super) readers: Waiters,
    pub(super) writers: Waiters,
    /// The worker's: what the connection is.
    standing: AtomicU8,
    /// The worker's: whether more comes after what is in the ring.
    heard: AtomicU8,
    /// The worker's: bytes that the peer has acknowledged, ever.
    pub(super) acknowledged: AtomicU64,
    /// The worker's: it waits for room in the ring of what came.
    pub(super) is_stalled: AtomicBool,
    /// The application's.
    wish: AtomicU8,
}

/// What the application wants of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Stay,
    ShutDown,
    Close,
    Abort,
}

/// What a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Opening,
    Open,
    Ended(TcpError),
}

/// What comes after what has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    More,
    All,
    Error(TcpError),
}

const WISHES: [Wish; 4] = [Wish::Stay, Wish::ShutDown, Wish::Close, Wish::Abort];
const STANDINGS: [Standing; 8] = [
    Standing::Opening,
    Standing::Open,
    Standing::Ended(TcpError::Closed),
    Standing::Ended(TcpError::Refused),
    Standing::Ended(TcpError::Reset),
    Standing::Ended(TcpError::TimedOut),
    Standing::Ended(TcpError::Unreachable),
    Standing::Ended(TcpError::ShutDown),
];
const ALL_HEARD: [Heard; 8] = [
    Heard::More,
    Heard::All,
    Heard::Error(TcpError::Closed),
    Heard::Error(TcpError::Refused),
    Heard::Error(TcpError::Reset),
    Heard::Error(TcpError::TimedOut),
    Heard::Error(TcpError::Unreachable),
    Heard::Error(TcpError::ShutDown),
];

/// Stores a value as its place in a table. Release: who sees it sees what was done before.
fn store<T: PartialEq>(place: &AtomicU8, table: &[T], value: &T) {
    let index = table.iter().position(|one| one == value);
    place.store(index.expect("the tables are whole") as u8, Ordering::Release);
}

impl TcpLine {
    pub(super) fn new(id: TcpId, standing: Standing) -> Self {
        let line = Self {
            id,
            dirty: DirtyFlag::new(SocketId::Tcp(id)),
            readers: Waiters::default(),
            writers: Waiters::default(),
            standing: AtomicU8::new(0),
            heard: AtomicU8::new(0),
            acknowledged: AtomicU64::new(0),
            is_stalled: AtomicBool::new(false),
            wish: AtomicU8::new(0),
        };
        line.set_standing(standing);
        line
    }

    pub(super) fn standing(&self) -> Standing {
        STANDINGS[usize::from(self.standing.load(Ordering::Acquire))]
    }

    pub(super) fn set_standing(&self, standing: Standing) {
        store(&self.standing, &STANDINGS, &standing);
    }

    pub(super) fn heard(&self) -> Heard {
        ALL_HEARD[usize::from(self.heard.load(Ordering::Acquire))]
    }

    pub(super) fn set_heard(&self, heard: Heard) {
        store(&self.heard, &ALL_HEARD, &heard);
    }

    pub(super) fn wish(&self) -> Wish {
        WISHES[usize::from(self.wish.load(Ordering::Acquire))]
    }

    fn set_wish(&self, wish: Wish) {
        store(&self.wish, &WISHES, &wish);
    }
}

impl TcpStream {
    /// A connection whose other ends of rings the worker has. It does not linger until it is
    /// somebody's.
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
        }
    }

    pub(super) fn wait_until_open(&self, timeout: CallTimeout) -> io::Result<()> {
        self.line.writers.wait(timeout, || self.try_open())
    }

    /// Our end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addresses.0)
    }

    /// The peer's end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addresses.1)
    }

    /// Whether reading would not wait now.
    pub fn is_readable(&self) -> bool {
        let has_ended = self.line.heard() != Heard::More || self.hold.doorbell.check().is_err();
        has_ended || !lock(&self.reader).is_empty()
    }

    /// How long reading waits: for ever without a time.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.read_timeout.set_timeout(timeout);
    }

    /// How long writing waits for room: for ever without a time.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.write_timeout.set_timeout(timeout);
    }

    /// Whether neither waits, and both say `WouldBlock` where they would.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.read_timeout.set_nonblocking(is_nonblocking);
        self.write_timeout.set_nonblocking(is_nonblocking);
    }

    /// Whether what was written is still brought to the peer after the connection is dropped, which
    /// is the rule; otherwise it is ended by a reset.
    pub fn set_linger(&self, lingers: bool) {
        self.lingers.store(lingers, Ordering::Relaxed);
    }

    /// Probes a peer that has said nothing for this long, and ends the connection if it answers no
    /// probe for as long again; `None` for a connection that stays however long its peer is silent.
    /// Ten seconds is the shortest, [`crate::stack::TcpConfig`] has the default.
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        let id = self.line.id;
        let set = WorkerRequest::new(&self.hold.doorbell, move |worker, _| {
            Ok(worker.inner.stack.tcp_set_keepalive(id, idle)?)
        });
        set.wait()
    }

    /// The time that [`TcpStream::set_keepalive`] sets.
    pub fn keepalive(&self) -> io::Result<Option<Duration>> {
        let id = self.line.id;
        WorkerRequest::new(&self.hold.doorbell, move |worker, _| {
            Ok(worker.inner.stack.tcp_keepalive(id)?)
        })
        .wait()
    }

    /// Ends the sending half; the peer reads what was written, and then the end. The receiving half
    /// ends when the connection is dropped.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how == Shutdown::Read {
            return Ok(());
        }
        self.hold.doorbell.check()?;
        if let Standing::Ended(why) = self.line.standing() {
            return Err(why.into());
        }
        // Under the lock: nobody writes behind the end.
        let writer = lock(&self.writer);
        self.line.set_wish(Wish::ShutDown);
        drop(writer);
        self.hold.doorbell.notify(&self.line.dirty);
        Ok(())
    }
}

/// What tasks use; `read` and `write` wait by the same calls.
impl TcpStream {
    /// Whether the connection is open, or never will be.
    pub fn poll_open(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.line.writers.poll(context, || self.try_open())
    }

    /// Reads what has come: how much, and 0 when the peer has said all.
    pub fn poll_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.line.readers.poll(context, || self.try_read(buffer))
    }

    /// Writes what there is room for; says how much.
    pub fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.line.writers.poll(context, || self.try_write(bytes))
    }

    /// Whether the peer has acknowledged all.
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.line.writers.poll(context, || self.try_flush())
    }

    /// As `read`, for a task.
    pub async fn read_async(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut waiting = self.line.readers.waiting();
        poll_fn(|context| waiting.poll(context, || self.try_read(buffer))).await
    }

    /// As `write`, for a task.
    pub async fn write_async(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut waiting = self.line.writers.waiting();
        poll_fn(|context| waiting.poll(context, || self.try_write(bytes))).await
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
        let mut waiting = self.line.writers.waiting();
        poll_fn(|context| waiting.poll(context, || self.try_flush())).await
    }
}

/// One try each, which says nothing where it would wait.
impl TcpStream {
    fn try_open(&self) -> io::Result<Option<()>> {
        match self.line.standing() {
            Standing::Opening => self.hold.doorbell.check().map(|()| None),
            Standing::Open => Ok(Some(())),
            Standing::Ended(why) => Err(why.into()),
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if buffer.is_empty() {
            return Ok(Some(0));
        }
        // Looked at first: what came before the end is in the ring then.
        let (is_served, heard) = (self.hold.doorbell.check(), self.line.heard());
        let mut reader = lock(&self.reader);
        let taken = reader.read(buffer);
        if taken > 0 {
            self.relieve(&mut reader);
            return Ok(Some(taken));
        }
        match heard {
            Heard::More => is_served.map(|()| None),
            Heard::All => Ok(Some(0)),
            Heard::Error(why) => Err(why.into()),
        }
    }

    /// Tells a worker that waits for room, once half of the ring is free: not for every byte.
    fn relieve(&self, reader: &mut byte_ring::Reader) {
        // With the fence after which the worker looks for room again.
        fence(Ordering::SeqCst);
        if self.line.is_stalled.load(Ordering::Relaxed)
            && reader.len(usize::MAX) <= reader.capacity() / 2
            && self.line.is_stalled.swap(false, Ordering::Relaxed)
        {
            self.hold.doorbell.notify(&self.line.dirty);
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        self.hold.doorbell.check()?;
        let mut writer = lock(&self.writer);
        match (self.line.wish(), self.line.standing()) {
            (_, Standing::Ended(why)) => return Err(why.into()),
            (Wish::Stay, Standing::Opening) => return Ok(None),
            (Wish::Stay, Standing::Open) => {}
            _ => return Err(TcpError::ShutDown.into()),
        }
        let taken = writer.ring.write(bytes);
        writer.written += taken as u64;
        if taken > 0 {
            self.hold.doorbell.notify(&self.line.dirty);
        }
        Ok((taken > 0 || bytes.is_empty()).then_some(taken))
    }

    fn try_flush(&self) -> io::Result<Option<()>> {
        let (is_served, standing) = (self.hold.doorbell.check(), self.line.standing());
        let written = lock(&self.writer).written;
        if self.line.acknowledged.load(Ordering::Acquire) == written {
            return Ok(Some(()));
        }
        match standing {
            Standing::Ended(why) => Err(why.into()),
            _ => is_served.map(|()| None),
        }
    }
}

fn lock<T>(end: &Mutex<T>) -> MutexGuard<'_, T> {
    end.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Waits until the peer has acknowledged all.
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
        self.line.set_wish(if lingers { Wish::Close } else { Wish::Abort });
        self.hold.doorbell.notify(&self.line.dirty);
    }
}
