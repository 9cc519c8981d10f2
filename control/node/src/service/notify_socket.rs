//! Messages to a service manager: datagrams to a Unix socket.
//!
//! If a manager does not read its socket, a message delays the control thread for up to `SEND_MAX`,
//! but never a worker. The message is lost then. Only `READY=1` is repeated.

use rustix::io::{Errno, IoSlice, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};
use rustix::time::{ClockId, clock_gettime};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Timeout of a message for space in the manager's socket.
const SEND_MAX: Duration = Duration::from_millis(250);

/// The socket of a manager. Without a manager, messages are discarded.
#[derive(Debug, Default)]
pub struct NotifySocket(Option<Manager>);

#[derive(Debug)]
struct Manager {
    fd: OwnedFd,
    address: SocketAddrUnix,
}

impl NotifySocket {
    /// A socket to the manager at `/PATH`, or at `@NAME` in the abstract namespace.
    pub fn open(address: &str) -> Result<Self, Errno> {
        let address = match address.strip_prefix('@') {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
            None if address.starts_with('/') => SocketAddrUnix::new(address)?,
            None => return Err(Errno::AFNOSUPPORT),
        };
        let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
        let fd = socket_with(AddressFamily::UNIX, kind, flags, None)?;
        set_socket_timeout(&fd, Timeout::Send, Some(SEND_MAX))?;
        Ok(Self(Some(Manager { fd, address })))
    }

    pub const fn is_there(&self) -> bool {
        self.0.is_some()
    }

    pub fn ready(&self, status: &str) -> Result<(), Errno> {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)), None)
    }

    pub fn status(&self, status: &str) {
        let _ = self.send(&format!("STATUS={}", one_line(status)), None);
    }

    /// Reports the beginning of a reload; [`Self::ready`] ends it.
    pub fn reloading(&self) {
        // The manager compares this time with that of its request (`Type=notify-reload`).
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        let _ = self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"), None);
    }

    pub fn stopping(&self) {
        let _ = self.send("STOPPING=1", None);
    }

    pub fn alive(&self) {
        let _ = self.send("WATCHDOG=1", None);
    }

    /// Stores a descriptor with the manager, in place of another of the same name.
    pub fn keep(&self, name: &str, fd: impl AsFd) {
        self.drop_kept(name);
        let _ = self.send(&format!("FDSTORE=1\nFDNAME={name}"), Some(fd.as_fd()));
    }

    pub fn drop_kept(&self, name: &str) {
        let _ = self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None);
    }

    fn send(&self, message: &str, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let Some(Manager { fd: socket, address }) = &self.0 else { return Ok(()) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let fds = fd.as_slice();
        let parts = [IoSlice::new(message.as_bytes())];
        retry_on_intr(|| {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(fds));
            }
            sendmsg_addr(socket, address, &parts, &mut control, SendFlags::NOSIGNAL)
        })
        .map(|_| ())
    }
}

/// A message has one variable per line, so a value cannot have several lines.
fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    fn received(manager: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let len = manager.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    #[test]
    fn messages_are_sent_to_paths_and_abstract_names() {
        let name = format!("pollux-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let abstract_name = SocketAddr::from_abstract_name(&name).expect("it is short");
        for (manager, address) in [
            (UnixDatagram::bind(&path), path.display().to_string()),
            (UnixDatagram::bind_addr(&abstract_name), format!("@{name}")),
        ] {
            let manager = manager.expect("it is free");
            let socket = NotifySocket::open(&address).expect("a manager");
            assert_eq!(socket.ready("two\nlines"), Ok(()));
            assert_eq!(received(&manager), "READY=1\nSTATUS=two lines");
            socket.reloading();
            let output = received(&manager);
            let micros = output.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
            assert!(micros.is_some_and(|micros| micros.parse::<u64>().is_ok()), "{output}");
            socket.stopping();
            socket.alive();
            assert_eq!([received(&manager), received(&manager)], ["STOPPING=1", "WATCHDOG=1"]);
        }
        let _ = std::fs::remove_file(&path);
        assert_eq!(NotifySocket::default().ready("no listener"), Ok(()));
    }

    #[test]
    fn a_closed_or_full_socket_is_an_error() {
        let name = format!("pollux-notify-full-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("it is short");
        let manager = UnixDatagram::bind_addr(&address).expect("it is free");
        let socket = NotifySocket::open(&format!("@{name}")).expect("a manager");
        let refused = (0..100_000).find_map(|_| socket.ready("on and on").err());
        assert_eq!(refused, Some(Errno::AGAIN));
        drop(manager);
        assert_eq!(socket.ready("too late"), Err(Errno::CONNREFUSED));
    }
}
