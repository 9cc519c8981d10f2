//! Notification of a worker: a ring with the numbers of sockets that were touched, a ring of
//! requests, and a waker.
//!
//! A socket is in the ring at most once: a notification sets the socket's dirty flag, and pushes
//! the socket only if the flag was clear. The worker pops the socket, clears the flag and then
//! serves the socket, so a later change notifies again. The ring has a slot for every possible
//! socket, so it is never full.

use super::Command;
use super::common_state::CommonState;
use crate::stack::SocketId;
use pollux_mem::{byte_ring, mpsc};
use pollux_node::node::waker::{Waker, Woken, waker};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

const COMMANDS_MAX: usize = 256;
/// Requests that are taken from the queue at a time.
const REQUESTS_MAX: usize = 16;

pub(super) struct Doorbell {
    touched: mpsc::Sender<SocketId>,
    commands: mpsc::Sender<Command>,
    waker: Waker,
    common: Arc<CommonState>,
}

/// The worker's end.
pub(super) struct Inbox {
    touched: mpsc::Receiver<SocketId>,
    commands: mpsc::Receiver<Command>,
    /// Requests that wait until the notifications before them are taken.
    requests: VecDeque<Command>,
    /// The end of those notifications in the ring.
    notified_before: mpsc::RingPlace,
    pub(super) woken: Woken,
}

/// The flags by which the application and the worker notify each other of a socket.
pub(super) struct SocketFlags {
    socket: SocketId,
    /// Whether the socket is in the ring of touched sockets.
    is_dirty: AtomicBool,
    /// Whether the worker waits for space in the socket's ring to the application.
    is_stalled: AtomicBool,
}

impl Doorbell {
    /// `None` if `sockets_max` is too large for a ring, or the system has no descriptor for the
    /// waker.
    pub(super) fn new(common: &Arc<CommonState>, sockets_max: usize) -> Option<(Self, Inbox)> {
        let (touch, touched) = mpsc::ring(sockets_max.max(2).checked_next_power_of_two()?)?;
        let (command, commands) = mpsc::ring(COMMANDS_MAX)?;
        let (waker, woken) = waker().ok()?;
        let doorbell = Self { touched: touch, commands: command, waker, common: common.clone() };
        let (requests, notified_before) = (VecDeque::with_capacity(REQUESTS_MAX), touched.end());
        Some((doorbell, Inbox { touched, commands, requests, notified_before, woken }))
    }

    /// Notifies the worker of a socket.
    pub(super) fn notify(&self, flags: &SocketFlags) {
        // Pairs with the swap in `SocketFlags::clear_dirty`: if the flag was set already, the
        // worker sees the change after that swap.
        if !flags.is_dirty.swap(true, Ordering::AcqRel) {
            let pushed = self.touched.push(flags.socket);
            debug_assert!(pushed.is_ok(), "there is a slot for every socket");
            self.wake();
        }
    }

    /// Notifies a worker that waits for space in the ring of a socket.
    pub(super) fn relieve(&self, flags: &SocketFlags) {
        if flags.is_stalled() && flags.is_stalled.swap(false, Ordering::Relaxed) {
            self.notify(flags);
        }
    }

    /// Like [`Doorbell::relieve`], but only once half of the ring is free, so that not every read
    /// notifies.
    pub(super) fn relieve_at_half(&self, flags: &SocketFlags, ring: &mut byte_ring::Reader) {
        if flags.is_stalled()
            && ring.len(usize::MAX) <= ring.capacity() / 2
            && flags.is_stalled.swap(false, Ordering::Relaxed)
        {
            self.notify(flags);
        }
    }

    /// Sends a request to the worker; waits while the queue is full.
    pub(super) fn submit(&self, command: Command) {
        let mut command = Some(command);
        while let Some(one) = command.take()
            && self.common.end_reason().is_none()
            && let Err(one) = self.commands.push(one)
        {
            command = Some(one);
            self.wake();
            std::thread::yield_now();
        }
        self.wake();
    }

    /// Wakes the worker if it sleeps.
    pub(super) fn wake(&self) {
        self.waker.wake_if_asleep();
    }

    /// An error if no worker serves the interface any more.
    pub(super) fn check(&self) -> io::Result<()> {
        self.common.end_reason().map_or(Ok(()), |why| Err(io::Error::other(why.clone())))
    }

    pub(super) const fn common(&self) -> &Arc<CommonState> {
        &self.common
    }
}

impl Inbox {
    pub(super) fn next_touched(&mut self) -> Option<SocketId> {
        self.touched.pop()
    }

    /// The next request; `None` until all notifications before it were taken. So if an application
    /// drops a socket and then opens another one at the same address, the address is free.
    pub(super) fn next_request(&mut self) -> Option<Command> {
        if self.requests.is_empty() {
            self.requests.extend(self.commands.drain(REQUESTS_MAX));
            // Applications write the cache line with the end of the ring, so it is read only if
            // there are requests.
            if self.requests.is_empty() {
                return None;
            }
            // Read after the requests: the notifications that their threads sent before them are
            // before this end.
            self.notified_before = self.touched.end();
        }
        let is_due = self.touched.has_passed(self.notified_before);
        if is_due { self.requests.pop_front() } else { None }
    }

    /// Whether requests wait for notifications.
    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    pub(super) fn drop_requests(&mut self) {
        self.requests.clear();
        while self.commands.pop().is_some() {}
    }
}

impl SocketFlags {
    pub(super) const fn new(socket: SocketId) -> Self {
        Self { socket, is_dirty: AtomicBool::new(false), is_stalled: AtomicBool::new(false) }
    }

    /// For the worker, before it serves the socket.
    pub(super) fn clear_dirty(&self) {
        self.is_dirty.swap(false, Ordering::AcqRel);
    }

    /// For the worker: asks the reader of a full ring for a notification. Returns whether to wait
    /// for it, because there is still no space.
    pub(super) fn stall(&self, has_space: impl FnOnce() -> bool) -> bool {
        self.is_stalled.store(true, Ordering::Relaxed);
        // Pairs with the fence in `is_stalled`: the reader sees the flag, or this sees the space.
        fence(Ordering::SeqCst);
        !has_space()
    }

    /// Whether the worker waits for space. For the application, after it has made space.
    fn is_stalled(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_stalled.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::slab::Key;

    #[test]
    fn a_request_waits_for_all_notifications_from_before_it() {
        let common = Arc::new(CommonState::new(1, 8));
        let (doorbell, mut inbox) = Doorbell::new(&common, 8).expect("a ring");
        let flags = |number| SocketFlags::new(SocketId::Udp(Key::of_index(number)));
        let sockets = [0, 1, 2].map(flags);
        // The worker has found no notification, and polls requests next.
        assert!(inbox.next_touched().is_none());
        doorbell.notify(&sockets[0]);
        doorbell.notify(&sockets[1]);
        doorbell.submit(Box::new(|_, _| ()));
        assert!(inbox.next_request().is_none());
        assert!(inbox.has_requests());
        assert!(inbox.next_touched().is_some());
        assert!(inbox.next_request().is_none());
        // A notification after the request does not delay it.
        doorbell.notify(&sockets[2]);
        assert!(inbox.next_touched().is_some());
        assert!(inbox.next_request().is_some());
        assert!(!inbox.has_requests());
        assert!(inbox.next_touched().is_some());
    }
}
