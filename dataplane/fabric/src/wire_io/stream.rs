//! A wire over a unix socket, as its server or its client.
//!
//! ```text
//! disconnected  tries to connect; if that fails and it may listen, listens itself
//! listening     accepts one connection; others wait until that one ends
//! connected     until the other end closes or sends invalid framing; then it accepts or connects
//!               again
//! ```
//!
//! A stream is lossless: packets that exceed its buffer wait in the net.

use super::framing::{self, Frames, Next};
use crate::listen::listen_at;
use crate::time::Time;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest path of a unix socket address.
pub(super) const PATH_LEN_MAX: usize = 107;
/// The retry interval of a failed connect.
const RETRY: Duration = Duration::from_millis(200);
/// Bytes that wait for the socket; further packets wait in the net.
const OUT_BYTES_MAX: usize = 256 << 10;
/// Reads in a turn.
const READS: usize = 4;
const READ_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct StreamSocket {
    path: PathBuf,
    may_listen: bool,
    listener: Option<UnixListener>,
    connected: Option<Connected>,
    retry_at: Time,
}

#[derive(Debug)]
struct Connected {
    stream: UnixStream,
    frames: Frames,
    out: Vec<u8>,
    /// Bytes of `out` that were sent.
    sent: usize,
}

impl StreamSocket {
    pub(super) fn new(path: &Path, may_listen: bool) -> Self {
        let (path, retry_at) = (path.into(), Time::START);
        Self { path, may_listen, listener: None, connected: None, retry_at }
    }

    pub(super) fn is_up(&self) -> bool {
        self.connected.is_some()
    }

    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        if let Some(connected) = &self.connected {
            let is_full = connected.sent < connected.out.len();
            let out = if is_full { PollFlags::OUT } else { PollFlags::empty() };
            return Some(PollFd::new(&connected.stream, PollFlags::IN | out));
        }
        self.listener.as_ref().map(|listener| PollFd::new(listener, PollFlags::IN))
    }

    pub(super) fn due(&self) -> Option<Time> {
        let is_apart = self.connected.is_none() && self.listener.is_none();
        is_apart.then_some(self.retry_at)
    }

    /// Connects or listens, if not connected.
    pub(super) fn join(&mut self, now: Time) {
        if self.connected.is_some() {
            return;
        }
        if let Some(listener) = &self.listener {
            let accepted = listener.accept().map(|(stream, _)| stream);
            self.connected = accepted.and_then(Connected::new).ok();
            return;
        }
        if now < self.retry_at {
            return;
        }
        self.retry_at = now + RETRY;
        match connect_to(&self.path).and_then(Connected::new) {
            Ok(connected) => self.connected = Some(connected),
            Err(_) if self.may_listen => self.listener = listen(&self.path).ok(),
            Err(_) => {}
        }
    }

    /// Receives packets. Returns the number of frames with another EtherType, and of streams that
    /// were closed because of invalid framing (0 or 1).
    pub(super) fn receive(&mut self, now: Time, mut take: impl FnMut(&[u8])) -> (u64, u64) {
        let (mut ignored, mut broken) = (0, 0);
        let Some(connected) = &mut self.connected else { return (0, 0) };
        let mut bytes = vec![0; READ_BYTES];
        let mut is_over = false;
        for _ in 0..READS {
            match connected.stream.read(&mut bytes) {
                Ok(0) => is_over = true,
                Ok(len) => connected.frames.push(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => is_over = true,
            }
            loop {
                match connected.frames.take() {
                    Next::Packet(packet) => take(packet),
                    Next::Other => ignored += 1,
                    Next::Nothing => break,
                    Next::Broken => {
                        (is_over, broken) = (true, 1);
                        break;
                    }
                }
            }
            if is_over {
                break;
            }
        }
        if is_over {
            self.disconnect(now);
        }
        (ignored, broken)
    }

    /// Sends packets from `next`, as far as the socket has space.
    pub(super) fn send(&mut self, now: Time, next: &mut impl FnMut() -> Option<Vec<u8>>) {
        let Some(connected) = &mut self.connected else { return };
        loop {
            connected.out.drain(..std::mem::take(&mut connected.sent));
            while connected.out.len() < OUT_BYTES_MAX
                && let Some(packet) = next()
            {
                framing::write(&packet, &mut connected.out);
            }
            if connected.out.is_empty() {
                return;
            }
            match connected.stream.write(&connected.out) {
                Ok(len) => connected.sent = len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.disconnect(now),
            }
        }
    }

    fn disconnect(&mut self, now: Time) {
        self.connected = None;
        self.retry_at = now + RETRY;
    }
}

impl Drop for StreamSocket {
    /// Removes the path of the listener.
    fn drop(&mut self) {
        if self.listener.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Connected {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, frames: Frames::default(), out: Vec::new(), sent: 0 })
    }
}

/// Connects without waiting for a slow listener.
fn connect_to(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Listens at a path; only this user can connect. The socket of a dead listener is replaced.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    Ok(listen_at(path, SocketType::STREAM)?.into())
}
