//! A service manager for tests, in the place of systemd: it receives what a node tells it, keeps
//! the descriptors that it is given, and gives them to the next process.

use crate::running::{Ending, TIMEOUT, folder};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg, sockopt,
};
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A manager, in a folder of its own.
pub struct ServiceManager {
    pub folder: PathBuf,
    socket: UnixDatagram,
    pub kept: BTreeMap<String, OwnedFd>,
}

impl ServiceManager {
    pub fn new(test: &str) -> Self {
        let folder = folder(test);
        std::fs::create_dir(&folder).expect("no other test has this folder");
        let socket = UnixDatagram::bind(folder.join("notify")).expect("it is free");
        sockopt::set_socket_recv_buffer_size(&socket, 1 << 20).expect("a larger buffer");
        Self { folder, socket, kept: BTreeMap::new() }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Starts `program` as a service, with these words before it, with the one descriptor that it
    /// keeps if there is one, and with a watchdog of so many seconds.
    pub fn start(&self, words: &[&str], program: &[&str], watchdog: Option<u32>) -> Ending {
        let mut command = Command::new("sh");
        // The shell's id becomes that of the program, and its input the descriptor 3.
        let script = match self.kept.len() {
            0 => "exec \"$@\"",
            _ => "exec 3<&0 </dev/null; LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"",
        };
        command.args(["-c", script, "sh"]).args(words).args(program);
        let output = std::fs::File::create(self.folder.join("output")).expect("a file");
        command.current_dir(&self.folder).stdout(output).stdin(Stdio::null());
        command.env("NOTIFY_SOCKET", self.path("notify"));
        if let Some(seconds) = watchdog {
            command.env("WATCHDOG_USEC", (u64::from(seconds) * 1_000_000).to_string());
        }
        assert!(self.kept.len() < 2, "it has one input");
        if let Some((name, fd)) = self.kept.first_key_value() {
            command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", name);
            command.stdin(fd.try_clone().expect("it is open"));
        }
        Ending(command.spawn().expect("it starts"))
    }

    /// The next message, of which descriptors are kept or no longer kept. `None` if there is none
    /// within this time.
    pub fn next(&mut self, timeout: std::time::Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(timeout)).expect("it is not zero");
        let (mut bytes, mut space) = ([0; 4096], [MaybeUninit::uninit(); 256]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        let received = received.ok()?;
        assert!(!received.flags.contains(ReturnFlags::CTRUNC), "more than a descriptor");
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fd = fds.flatten().next();
        let text = String::from_utf8_lossy(&bytes[..received.bytes]).into_owned();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
        if let (Some(name), Some(fd)) = (name, fd) {
            assert!(text.starts_with("FDSTORE=1\n"), "{text}");
            self.kept.insert(name.to_owned(), fd);
        } else if let Some(name) = name {
            assert!(text.starts_with("FDSTOREREMOVE=1\n"), "{text}");
            self.kept.remove(name);
        }
        Some(text)
    }

    /// Receives messages up to the first with these words; gives them all.
    pub fn until(&mut self, words: &str) -> Vec<String> {
        let (start, mut all) = (Instant::now(), Vec::new());
        loop {
            all.extend(self.next(TIMEOUT));
            if all.last().is_some_and(|message| message.contains(words)) {
                return all;
            }
            assert!(start.elapsed() < TIMEOUT, "no {words} in {all:?}");
        }
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
