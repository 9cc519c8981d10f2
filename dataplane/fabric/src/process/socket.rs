//! The socket between a client and its server: messages kept apart, with descriptors beside them.
//!
//! A fabric is known by a path, at which it answers questions. That is a socket of another kind, so
//! this one has a name of its own beside it.
//!
//! The socket file is its owner's alone (`listen`): who may open it may use the fabric.

use super::note::{BYTES_MAX, Note};
use crate::listen;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, connect, recvmsg, sendmsg, socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Descriptors beside a note; more are closed unseen.
const DESCRIPTORS_MAX: usize = 1;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// One end.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

/// What has come by a socket.
#[derive(Debug)]
pub enum Received {
    /// Nothing now.
    Nothing,
    /// The other end is gone, or makes no sense.
    End,
    /// A note, and the descriptor beside it.
    Note(Note, Option<OwnedFd>),
    /// A note without the descriptor that was beside it: this process has as many as it may have.
    Truncated(Note),
}

/// The socket of a fabric that is known by a path.
pub fn socket_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".ports");
    name.into()
}

/// Waits for clients at a path. A socket that a dead server left there is replaced.
pub fn listen_at(path: &Path) -> Result<OwnedFd, Errno> {
    listen::listen_at(path, SocketType::SEQPACKET)
}

/// The next client that waits, if one does.
pub fn accept(listener: BorrowedFd<'_>) -> Option<Socket> {
    accept_with(listener, FLAGS).ok().map(|fd| Socket { fd })
}

impl Socket {
    /// To the server of a fabric that is known by a path. `AGAIN` says that it lives, and that so
    /// many are waiting for it already that it has no room for one more now.
    pub fn connect(path: &Path) -> Result<Self, Errno> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        connect(&fd, &SocketAddrUnix::new(socket_path(path))?)?;
        Ok(Self { fd })
    }

    /// The process at the other end, if the system can say: one in another container it cannot.
    pub fn process(&self) -> Option<u32> {
        let pid = socket_peercred(&self.fd).ok()?.pid;
        Some(pid.as_raw_nonzero().get().cast_unsigned())
    }

    /// Says something, with a descriptor beside it; says whether there was room and anybody to hear
    /// it.
    #[must_use]
    pub fn send(&self, note: &Note, beside: Option<BorrowedFd<'_>>) -> bool {
        let bytes = note.emit();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = beside.as_slice();
        if !descriptors.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
            debug_assert!(pushed, "there is space for one");
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match sendmsg(&self.fd, &[IoSlice::new(&bytes)], &mut control, flags) {
                Err(Errno::INTR) => {}
                sent => return sent.is_ok(),
            }
        }
    }

    /// Takes the next thing that has come.
    pub fn receive(&self) -> Received {
        let mut bytes = [0; BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let (len, flags) = loop {
            match recvmsg(&self.fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Received::Nothing,
                Err(_) => return Received::End,
                Ok(received) => break (received.bytes, received.flags),
            }
        };
        let mut beside = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                beside = descriptors.into_iter().next();
            }
        }
        match Note::parse(&bytes[..len]) {
            Some(note) if beside.is_none() && flags.contains(ReturnFlags::CTRUNC) => {
                Received::Truncated(note)
            }
            Some(note) => Received::Note(note, beside),
            None => Received::End,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
