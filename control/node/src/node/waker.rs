//! Wakes a thread by a byte to a socket, which the thread polls among other descriptors.
//!
//! A byte costs a system call, so workers and control wake each other only if the other thread
//! sleeps. A thread announces that it will sleep, polls its messages once more, and sleeps. A
//! sender publishes a message, and then reads the announcement. Each side has a fence between its
//! two steps, so the thread sees the message, or the sender sees the announcement, or both.

use pollux_mem::CachePadded;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

/// The end that wakes the thread. Dropping it wakes the thread, too.
pub struct Waker {
    stream: Arc<UnixStream>,
    is_asleep: Arc<CachePadded<AtomicBool>>,
}

/// The end of the thread that sleeps.
pub struct Woken {
    stream: UnixStream,
    is_asleep: Arc<CachePadded<AtomicBool>>,
}

pub fn waker() -> std::io::Result<(Waker, Woken)> {
    let (waker, stream) = UnixStream::pair()?;
    waker.set_nonblocking(true)?;
    stream.set_nonblocking(true)?;
    let is_asleep = Arc::new(CachePadded(AtomicBool::new(false)));
    let waker = Waker { stream: Arc::new(waker), is_asleep: Arc::clone(&is_asleep) };
    Ok((waker, Woken { stream, is_asleep }))
}

impl Waker {
    pub fn share(&self) -> Self {
        Self { stream: Arc::clone(&self.stream), is_asleep: Arc::clone(&self.is_asleep) }
    }

    /// Wakes the thread. A full socket means that a byte is there already.
    pub fn wake(&self) {
        let _ = (&*self.stream).write(&[0]);
    }

    /// Wakes the thread if it sleeps. Senders call this after they have published a message.
    pub fn wake_if_asleep(&self) {
        fence(Ordering::SeqCst);
        let is_asleep = &self.is_asleep.0;
        if is_asleep.load(Ordering::Relaxed) && is_asleep.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.wake();
    }
}

impl Woken {
    /// Ends the announcement of sleep, and reads all bytes, so that the next byte wakes again.
    pub fn clear(&self) {
        self.is_asleep.0.store(false, Ordering::Relaxed);
        let mut bytes = [0; 64];
        while matches!((&self.stream).read(&mut bytes), Ok(1..)) {}
    }

    pub fn sleep(&self, longest: Duration) {
        self.sleep_at([], longest);
    }

    /// Sleeps until it is woken or one of the descriptors is readable, at most for `longest`.
    pub fn sleep_at<'fd>(
        &self,
        others: impl IntoIterator<Item = BorrowedFd<'fd>>,
        longest: Duration,
    ) {
        let others = others.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        self.sleep_polling(others, longest);
    }

    /// Sleeps until it is woken or one of the events occurs, at most for `longest`.
    pub fn sleep_polling<'fd>(
        &self,
        others: impl IntoIterator<Item = PollFd<'fd>>,
        longest: Duration,
    ) {
        let mut fds: Vec<_> = others.into_iter().collect();
        fds.push(PollFd::new(&self.stream, PollFlags::IN));
        // The thread polls everything next, so the result does not matter.
        let _ = poll(&mut fds, Timespec::try_from(longest).ok().as_ref());
    }

    /// Announces that the thread will sleep, so that messages from now on wake it. The thread has
    /// to poll once more before it sleeps.
    pub fn fall_asleep(&self) {
        self.is_asleep.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

impl AsFd for Woken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
