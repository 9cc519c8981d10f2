//! Listeners of TCP that any thread can hold, and any number of threads can accept from.
//!
//! A listener has an ear at each worker of its interface: a peer's connection comes to the worker
//! that its flow is dealt to. Whoever accepts asks them in turn.

use super::doorbell::DirtyFlag;
use super::tcp::TcpStream;
use super::waiters::Waiters;
use super::{Hold, SharedTimeout};
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
    ears: Vec<Ear>,
    arrived: Mutex<Arrived>,
    accepters: Arc<Waiters>,
    local: SocketAddr,
    timeout: SharedTimeout,
}

/// What it has at one worker, who hears by it no more when it goes.
pub(super) struct Ear {
    hold: Hold,
    line: Arc<ListenerLine>,
}

/// Connections, by worker, and whose turn it is.
struct Arrived {
    queues: Vec<spsc::Consumer<TcpStream>>,
    turn: usize,
}

/// What application and worker both see of an ear.
pub(super) struct ListenerLine {
    pub(super) dirty: DirtyFlag,
    /// Of all ears.
    pub(super) accepters: Arc<Waiters>,
    /// The worker's: it waits for room in the ring.
    pub(super) is_stalled: AtomicBool,
    /// The application's: it is dropped.
    pub(super) is_left: AtomicBool,
}

impl ListenerLine {
    pub(super) const fn new(dirty: DirtyFlag, accepters: Arc<Waiters>) -> Self {
        let (is_stalled, is_left) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { dirty, accepters, is_stalled, is_left }
    }
}

impl Ear {
    pub(super) const fn new(hold: Hold, line: Arc<ListenerLine>) -> Self {
        Self { hold, line }
    }

    /// Tells a worker that waits for room that there is some.
    fn relieve(&self) {
        // With the fence after which the worker looks for room again.
        fence(Ordering::SeqCst);
        if self.line.is_stalled.load(Ordering::Relaxed)
            && self.line.is_stalled.swap(false, Ordering::Relaxed)
        {
            self.hold.doorbell.notify(&self.line.dirty);
        }
    }
}

impl TcpListener {
    pub(super) fn new(
        heard: Vec<(Ear, spsc::Consumer<TcpStream>)>,
        accepters: Arc<Waiters>,
        local: SocketAddr,
    ) -> Self {
        let (ears, queues) = heard.into_iter().unzip();
        let arrived = Mutex::new(Arrived { queues, turn: 0 });
        Self { ears, arrived, accepters, local, timeout: SharedTimeout::default() }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// Whether [`TcpListener::accept`] does not wait, and says `WouldBlock` where it would.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.timeout.set_nonblocking(is_nonblocking);
    }

    /// How long [`TcpListener::accept`] waits: for ever without a time.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.timeout.set_timeout(timeout);
    }

    /// Whether [`TcpListener::accept`] would not wait now.
    pub fn is_ready(&self) -> bool {
        !self.lock().queues.iter().all(spsc::Consumer::is_empty) || self.check().is_err()
    }

    /// The connection that has waited longest, and its peer; of several workers', that of the one
    /// whose turn it is.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accepters.wait(self.timeout.get(), || self.try_accept())
    }

    /// As [`TcpListener::accept`], for a task.
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.accepters.poll(context, || self.try_accept())
    }

    /// As [`TcpListener::accept`], for a task.
    pub async fn accept_async(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let mut waiting = self.accepters.waiting();
        poll_fn(|context| waiting.poll(context, || self.try_accept())).await
    }

    fn try_accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let is_served = self.check();
        let arrived = self.lock().pop();
        let Some((ear, stream)) = arrived else { return is_served.map(|()| None) };
        self.ears[ear].relieve();
        stream.set_linger(true);
        let peer = stream.peer_addr()?;
        Ok(Some((stream, peer)))
    }

    /// An error if nobody serves it any more.
    fn check(&self) -> io::Result<()> {
        self.ears.first().map_or(Ok(()), |ear| ear.hold.doorbell.check())
    }

    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrived {
    /// A connection, and at which ear.
    fn pop(&mut self) -> Option<(usize, TcpStream)> {
        let count = self.queues.len();
        for ear in (self.turn..count).chain(0..self.turn) {
            if let Some(stream) = self.queues[ear].pop() {
                self.turn = (ear + 1) % count;
                return Some((ear, stream));
            }
        }
        None
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.line.is_left.store(true, Ordering::Release);
        self.hold.doorbell.notify(&self.line.dirty);
    }
}
