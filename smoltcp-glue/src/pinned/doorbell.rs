//! How a worker learns that somebody wants it: by a ring with the numbers of sockets that were
//! touched, by a ring of questions, and by being woken if it sleeps.
//!
//! A socket is in the ring once at the most: whoever touches it raises its flag, and only who finds
//! it down rings. The worker takes the number, lowers the flag and then looks at the socket, so
//! what is done to it later rings anew. The ring has a place for every socket that there may be;
//! so it is never full.

use super::Command;
use super::common_state::CommonState;
use crate::stack::SocketId;
use pollux_mem::mpsc;
use pollux_node::node::waker::{Waker, Woken, waker};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Questions that wait for the worker.
const COMMANDS_MAX: usize = 256;

/// The applications' end of a worker.
pub(super) struct Doorbell {
    touched: mpsc::Sender<SocketId>,
    commands: mpsc::Sender<Command>,
    waker: Waker,
    /// The shared state of all workers.
    group: Arc<CommonState>,
    /// The longest packet, unless a destination says otherwise.
    mtu: AtomicU32,
}

/// The worker's end.
pub(super) struct Inbox {
    pub(super) touched: mpsc::Receiver<SocketId>,
    pub(super) commands: mpsc::Receiver<Command>,
    /// Ends the worker's sleep.
    pub(super) woken: Woken,
}

/// A socket's flag.
pub(super) struct DirtyFlag {
    socket: SocketId,
    is_set: AtomicBool,
}

impl Doorbell {
    /// A doorbell for so many sockets; none if there cannot be a ring for them.
    pub(super) fn new(group: &Arc<CommonState>, sockets_max: usize) -> Option<(Self, Inbox)> {
        let (touch, touched) = mpsc::ring(sockets_max.max(2).checked_next_power_of_two()?)?;
        let (command, commands) = mpsc::ring(COMMANDS_MAX)?;
        let (waker, woken) = waker().ok()?;
        let doorbell = Self {
            touched: touch,
            commands: command,
            waker,
            group: group.clone(),
            mtu: AtomicU32::new(0),
        };
        Some((doorbell, Inbox { touched, commands, woken }))
    }

    /// Notifies the worker of a socket.
    pub(super) fn notify(&self, dirty: &DirtyFlag) {
        // With the swap in `DirtyFlag::clear`: whoever finds the flag up is seen by that.
        if !dirty.is_set.swap(true, Ordering::AcqRel) {
            let pushed = self.touched.push(dirty.socket);
            debug_assert!(pushed.is_ok(), "there is a slot for every socket");
            self.wake();
        }
    }

    /// Sends a request to the worker; waits while the queue is full.
    pub(super) fn submit(&self, command: Command) {
        let mut command = Some(command);
        while let Some(one) = command.take()
            && self.group.ended().is_none()
            && let Err(one) = self.commands.push(one)
        {
            command = Some(one);
            self.wake();
            std::thread::yield_now();
        }
        self.wake();
    }

    /// There is something to do.
    pub(super) fn wake(&self) {
        self.waker.wake_if_asleep();
    }

    /// An error if no worker serves the interface any more.
    pub(super) fn check(&self) -> io::Result<()> {
        self.group.ended().map_or(Ok(()), |why| Err(io::Error::other(why.clone())))
    }

    /// The longest packet.
    pub(super) fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }
}

/// The worker's part.
impl Doorbell {
    pub(super) fn group(&self) -> &Arc<CommonState> {
        &self.group
    }

    pub(super) fn set_mtu(&self, mtu: u32) {
        self.mtu.store(mtu, Ordering::Relaxed);
    }
}

impl DirtyFlag {
    pub(super) const fn new(socket: SocketId) -> Self {
        Self { socket, is_set: AtomicBool::new(false) }
    }

    /// The worker looks at the socket after this.
    pub(super) fn clear(&self) {
        self.is_set.swap(false, Ordering::AcqRel);
    }
}
