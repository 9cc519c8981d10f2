//! The socket between a client and the server (SOCK_SEQPACKET), which carries control messages and
//! descriptors.
//!
//! Its path is the path of the fabric's administration socket with the suffix `.ports`. Only the
//! user of the server can connect to it ([`listen`](crate::listen)). Any process that can connect
//! can use the fabric.

use super::agent_message::{self, AgentMessage};
use super::control_message::{BYTES_MAX, ControlMessage};
use rustix::io::{DupFlags, Errno, dup3};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, connect, recv, recvmsg, send, sendmsg, shutdown, socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Descriptors of a message, at most. Further ones are closed.
const DESCRIPTORS_MAX: usize = 1;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

#[derive(Debug)]
pub enum ReceivedMessage {
    Nothing,
    /// The other end has closed, or sent an invalid message.
    End,
    Message(ControlMessage, Option<OwnedFd>),
    /// A message that lost its descriptor, because this process is at its limit of descriptors.
    Truncated(ControlMessage),
}

/// The socket for the ports of the fabric with this path.
pub fn socket_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".ports");
    name.into()
}

pub fn accept(listener: BorrowedFd<'_>) -> Option<Socket> {
    accept_with(listener, FLAGS).ok().map(|fd| Socket { fd })
}

impl Socket {
    /// Connects to the server of a fabric. `AGAIN` means that the server is alive and its backlog
    /// is full.
    pub fn connect(path: &Path) -> Result<Self, Errno> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        connect(&fd, &SocketAddrUnix::new(socket_path(path))?)?;
        Ok(Self { fd })
    }

    /// In a child of fork(2): closes only the child's descriptor. Dropping the socket would shut
    /// down the connection, which the parent still uses.
    pub fn leave_to_parent(mut self) {
        // The shutdown by `drop` then affects only this unconnected socket.
        let unconnected = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None);
        let replaced = unconnected.and_then(|other| dup3(other, &mut self.fd, DupFlags::CLOEXEC));
        if replaced.is_err() {
            std::mem::forget(self);
        }
    }

    /// The ID of the process at the other end; `None` if it is in another PID namespace.
    pub fn process(&self) -> Option<u32> {
        let pid = socket_peercred(&self.fd).ok()?.pid;
        Some(pid.as_raw_nonzero().get().cast_unsigned())
    }

    /// Sends a message, with a descriptor if there is one. Returns `false` if the other end is gone
    /// or its buffer is full.
    #[must_use]
    pub fn send(&self, message: &ControlMessage, descriptor: Option<BorrowedFd<'_>>) -> bool {
        let bytes = message.emit();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
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

    pub fn receive(&self) -> ReceivedMessage {
        let mut bytes = [0; BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let (len, flags) = loop {
            match recvmsg(&self.fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return ReceivedMessage::Nothing,
                Err(_) => return ReceivedMessage::End,
                Ok(received) => break (received.bytes, received.flags),
            }
        };
        let mut descriptor = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptor = descriptors.into_iter().next();
            }
        }
        match ControlMessage::parse(&bytes[..len]) {
            Some(message) if descriptor.is_none() && flags.contains(ReturnFlags::CTRUNC) => {
                ReceivedMessage::Truncated(message)
            }
            Some(message) => ReceivedMessage::Message(message, descriptor),
            None => ReceivedMessage::End,
        }
    }

    pub(super) fn end(&self) {
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    /// Sends an [`AgentMessage`] as bytes.
    pub(super) fn send_bytes(&self, bytes: &[u8]) -> Result<(), Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match send(&self.fd, bytes, flags) {
                Err(Errno::INTR) => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// Receives a message of agents. `AGAIN` if there is none; another error if the other end has
    /// closed, or sent an invalid message.
    pub(super) fn receive_agent(&self) -> Result<AgentMessage, Errno> {
        // One byte more than a message has, so that a longer message is found to be invalid.
        let mut bytes = [0; agent_message::BYTES + 1];
        loop {
            match recv(&self.fd, &mut bytes, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
                Ok((_, received)) => {
                    return AgentMessage::parse(&bytes[..received]).ok_or(Errno::PIPE);
                }
            }
        }
    }
}

/// Shuts down the connection, so that the other end sees its end at once. Closing the descriptor is
/// not enough: a child that another thread has forked holds a copy of it until its exec.
impl Drop for Socket {
    fn drop(&mut self) {
        self.end();
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::listen_at;

    #[test]
    fn a_child_that_leaves_a_connection_to_its_parent_does_not_end_it() {
        let path = std::env::temp_dir().join(format!("pollux-leave-{}", std::process::id()));
        let listener = listen_at(&socket_path(&path), SocketType::SEQPACKET).unwrap();
        let parent = Socket::connect(&path).unwrap();
        let server = accept(listener.as_fd()).unwrap();
        let child = Socket { fd: parent.fd.try_clone().unwrap() };
        child.leave_to_parent();
        assert!(parent.send(&ControlMessage::Wake, None));
        assert!(matches!(server.receive(), ReceivedMessage::Message(ControlMessage::Wake, None)));
        drop(parent);
        assert!(matches!(server.receive(), ReceivedMessage::End));
        std::fs::remove_file(socket_path(&path)).unwrap();
    }
}
