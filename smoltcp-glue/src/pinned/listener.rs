//! TCP listeners for any thread; any number of threads can accept from one.
//!
//! A listener has an accept queue at each worker of its interface: flow steering decides which
//! worker gets a peer's connection. [`TcpListener::accept`] asks the queues in turn.

use super::doorbell::SocketFlags;
use super::tcp::TcpStream;
use super::waiters::Waiters;
use super::{Hold, lock};
use crate::timeout::SocketTimeout;
use pollux_mem::mpsc;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

/// A listener. Dropping it resets the connections that were not accepted.
pub struct TcpListener {
    ends: Arc<ListenerEnds>,
}

/// Shared by all clones. Dropping the last clone closes the listener.
struct ListenerEnds {
    listeners: Vec<WorkerListener>,
    arrived: Mutex<Arrived>,
    accepters: Arc<Waiters>,
    local: SocketAddr,
    timeout: SocketTimeout,
}

/// The part of a listener at one worker. The worker stops listening when it is dropped.
pub(super) struct WorkerListener {
    hold: Hold,
    line: Arc<ListenerLine>,
}

/// The accept queues by worker, and the next worker to ask.
struct Arrived {
    queues: Vec<mpsc::Receiver<TcpStream>>,
    turn: usize,
}

/// The state that application and worker share for one [`WorkerListener`].
pub(super) struct ListenerLine {
    pub(super) flags: SocketFlags,
    /// Shared by all parts of the listener.
    pub(super) accepters: Arc<Waiters>,
    /// Set by the application when it drops the listener.
    pub(super) is_dropped: AtomicBool,
}

impl ListenerLine {
    pub(super) const fn new(flags: SocketFlags, accepters: Arc<Waiters>) -> Self {
        Self { flags, accepters, is_dropped: AtomicBool::new(false) }
    }
}

impl WorkerListener {
    pub(super) const fn new(hold: Hold, line: Arc<ListenerLine>) -> Self {
        Self { hold, line }
    }
}

impl TcpListener {
    pub(super) fn new(
        parts: Vec<(WorkerListener, mpsc::Receiver<TcpStream>)>,
        accepters: Arc<Waiters>,
        local: SocketAddr,
    ) -> Self {
        let (listeners, queues) = parts.into_iter().unzip();
        let arrived = Mutex::new(Arrived { queues, turn: 0 });
        let timeout = SocketTimeout::new();
        let ends = ListenerEnds { listeners, arrived, accepters, local, timeout };
        Self { ends: Arc::new(ends) }
    }

    /// Another handle of the same socket. The handles share all settings; dropping the last one
    /// closes the socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { ends: Arc::clone(&self.ends) })
    }

    /// The address and port that it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.ends.local)
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

    /// Whether [`TcpListener::accept`] would return at once.
    pub fn is_ready(&self) -> bool {
        !lock(&self.ends.arrived).queues.iter().all(mpsc::Receiver::is_empty)
            || self.check().is_err()
    }

    /// Accepts the oldest connection of the next worker that has one; also returns the address of
    /// its peer.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.ends.accepters.wait(self.ends.timeout.get(), || self.try_accept())
    }

    /// Like [`TcpListener::accept`], but for a task.
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.ends.accepters.poll(context, || self.try_accept())
    }

    /// Like [`TcpListener::accept`], but for a task.
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.ends.accepters.wait_async(|| self.try_accept()).await
    }

    /// An endless iterator over [`TcpListener::accept`].
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<TcpStream>> {
        std::iter::repeat_with(|| Ok(self.accept()?.0))
    }

    fn try_accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let is_served = self.check();
        let arrived = lock(&self.ends.arrived).pop();
        let Some((worker, stream)) = arrived else { return is_served.map(|()| None) };
        let WorkerListener { hold, line } = &self.ends.listeners[worker];
        hold.doorbell.relieve(&line.flags);
        stream.set_linger(true);
        let peer = stream.peer_addr()?;
        Ok(Some((stream, peer)))
    }

    /// An error if the interface has no worker any more.
    fn check(&self) -> io::Result<()> {
        self.ends.listeners.first().map_or(Ok(()), |worker| worker.hold.doorbell.check())
    }
}

impl Arrived {
    /// Takes a connection; also returns the index of its worker.
    fn pop(&mut self) -> Option<(usize, TcpStream)> {
        let count = self.queues.len();
        for worker in (self.turn..count).chain(0..self.turn) {
            if let Some(stream) = self.queues[worker].pop() {
                self.turn = (worker + 1) % count;
                return Some((worker, stream));
            }
        }
        None
    }
}

impl Drop for WorkerListener {
    fn drop(&mut self) {
        self.line.is_dropped.store(true, Ordering::Release);
        self.hold.doorbell.notify(&self.line.flags);
    }
}
