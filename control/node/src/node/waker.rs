//! What wakes the thread that answers for a node: a byte to a socket that it sleeps at.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// The side that wakes. The last thing that each does is to wake.
pub(super) struct Waker(Arc<UnixStream>);

/// The side that is woken.
pub(super) struct Woken(UnixStream);

/// Both sides.
pub(super) fn waker() -> std::io::Result<(Waker, Woken)> {
    let (waker, woken) = UnixStream::pair()?;
    waker.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    Ok((Waker(Arc::new(waker)), Woken(woken)))
}

impl Waker {
    /// One more.
    pub(super) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    /// Wakes. That the socket is full says that it need not be.
    pub(super) fn wake(&self) {
        let _ = (&*self.0).write(&[0]);
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.wake();
    }
}

impl Woken {
    /// From now on, the next one wakes.
    pub(super) fn clear(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.0).read(&mut bytes), Ok(1..)) {}
    }
}

impl AsFd for Woken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
