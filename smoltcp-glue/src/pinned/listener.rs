//! Listeners of TCP that any thread can hold, and any number of threads can accept from.

use super::bell::Rope;
use super::tcp::TcpStream;
use super::waiters::Waiters;
use super::{Alive, SharedPatience};
use pollux_mem::spsc;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// A listener. Connections that nobody has accepted end with it, by a reset.
pub struct TcpListener {
    alive: Arc<Alive>,
    line: Arc<ListenerLine>,
    arrived: Mutex<spsc::Consumer<TcpStream>>,
    local: SocketAddr,
    patience: SharedPatience,
}

/// What application and worker both see of a listener.
pub(super) struct ListenerLine {
    pub(super) rope: Rope,
    pub(super) accepters: Waiters,
    /// The worker's: it waits for room in the ring.
    pub(super) is_stalled: AtomicBool,
    /// The application's: it is dropped.
    pub(super) is_left: AtomicBool,
}

impl ListenerLine {
    pub(super) fn new(rope: Rope) -> Self {
        Self {
            rope,
            accepters: Waiters::default(),
            is_stalled: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
        }
    }
}

impl TcpListener {
    pub(super) fn new(
        alive: Arc<Alive>,
        line: Arc<ListenerLine>,
        arrived: spsc::Consumer<TcpStream>,
        local: SocketAddr,
    ) -> Self {
        let patience = SharedPatience::default();
        Self { alive, line, arrived: Mutex::new(arrived), local, patience }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// Whether [`TcpListener::accept`] does not wait, and says `WouldBlock` where it would.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.patience.set_nonblocking(is_nonblocking);
    }

    /// How long [`TcpListener::accept`] waits: for ever without a time.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.patience.set_timeout(timeout);
    }

    /// Whether [`TcpListener::accept`] would not wait now.
    pub fn is_ready(&self) -> bool {
        !self.lock().is_empty() || self.alive.bell.check().is_err()
    }

    /// The connection that has waited longest, and its peer.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.line.accepters.wait(self.patience.get(), || self.try_accept())
    }

    /// As [`TcpListener::accept`], for a task.
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.line.accepters.poll(context, || self.try_accept())
    }

    /// As [`TcpListener::accept`], for a task.
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn try_accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let is_served = self.alive.bell.check();
        let Some(stream) = self.lock().pop() else { return is_served.map(|()| None) };
        // With the fence after which the worker looks for room again.
        fence(Ordering::SeqCst);
        if self.line.is_stalled.load(Ordering::Relaxed)
            && self.line.is_stalled.swap(false, Ordering::Relaxed)
        {
            self.alive.bell.ring(&self.line.rope);
        }
        stream.set_linger(true);
        let peer = stream.peer_addr()?;
        Ok(Some((stream, peer)))
    }

    fn lock(&self) -> MutexGuard<'_, spsc::Consumer<TcpStream>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.line.is_left.store(true, Ordering::Release);
        self.alive.bell.ring(&self.line.rope);
    }
}
