//! The programs at the service's socket: their commands, and the tokens for their events.
//!
//! ```text
//!   command: file (32 bits) | the command as the program wrote it
//!            file 0, with one end of a socket pair: opens a file
//!   answer:  error number or 0 | a file or 0 | tokens to revoke there | the answer's bytes
//!   token:   one byte at the end of the socket pair, for each event of its file
//! ```
//!
//! The first three parts of an answer are numbers of 32 bits. The number of an opened file is in
//! the answer's bytes; the program's descriptor of the file is the other end of its socket pair.
//!
//! The socket keeps the boundaries of messages (SOCK_SEQPACKET); numbers are in native byte order.
//! A program has one connection, and has ended when the connection closes. A file closes when the
//! program closes its end. No program can block the service: tokens that do not fit are sent later,
//! and an answer that does not fit ends the connection.

use pollux_control::rdma_cm::{
    COMMAND_BYTES_MAX, CommandAnswer, FileId, ProgramId, RdmaCm, RdmaCmError,
};
use pollux_fabric::listen::listen_at;
use pollux_verbs::time::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
    accept_with, recvmsg, send,
};
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Maximum number of connected programs; others wait.
pub(super) const PROGRAMS_MAX: usize = 256;
/// Maximum number of commands of a program in one turn, so that all programs are served.
const COMMANDS_PER_TURN: usize = 64;
const HEAD_BYTES: usize = 4;

pub(super) struct Programs {
    listener: OwnedFd,
    connected: BTreeMap<ProgramId, Program>,
    last: u64,
}

struct Program {
    socket: OwnedFd,
    files: BTreeMap<FileId, TokenSender>,
}

/// The socket by which the tokens of a file are sent.
struct TokenSender {
    fd: OwnedFd,
    /// Tokens that did not fit yet.
    unsent: u32,
}

impl TokenSender {
    /// Sends tokens, as far as there is space.
    fn flush(&mut self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while self.unsent > 0 && send(&self.fd, &[0], flags).is_ok() {
            self.unsent -= 1;
        }
    }
}

/// What a program sent.
enum Received {
    Nothing,
    End,
    Command { file: u32, bytes: Vec<u8>, descriptor: Option<OwnedFd> },
}

impl Programs {
    pub(super) fn listen(path: &Path) -> Result<Self, Errno> {
        let listener = listen_at(path, SocketType::SEQPACKET)?;
        Ok(Self { listener, connected: BTreeMap::new(), last: 0 })
    }

    /// Handles what programs sent. Returns whether there was anything.
    pub(super) fn turn(&mut self, now: Time, cm: &mut RdmaCm) -> bool {
        let mut busy = self.accept();
        let mut ended = Vec::new();
        for (id, program) in &mut self.connected {
            for _ in 0..COMMANDS_PER_TURN {
                match receive(&program.socket) {
                    Received::Nothing => break,
                    Received::Command { file, bytes, descriptor } => {
                        busy = true;
                        if program.answer(now, cm, *id, (file, &bytes), descriptor) {
                            continue;
                        }
                        ended.push(*id);
                        break;
                    }
                    Received::End => {
                        ended.push(*id);
                        break;
                    }
                }
            }
        }
        for id in ended {
            busy = true;
            self.connected.remove(&id);
            cm.end_program(now, id);
        }
        self.announce(cm);
        busy
    }

    /// Sends tokens for new events.
    pub(super) fn announce(&mut self, cm: &mut RdmaCm) {
        for program in self.connected.values_mut() {
            for (file, sender) in &mut program.files {
                sender.unsent = sender.unsent.saturating_add(cm.take_announcements(*file));
                sender.flush();
            }
        }
    }

    /// Ends all programs.
    pub(super) fn end(&mut self, now: Time, cm: &mut RdmaCm) {
        for (id, _) in std::mem::take(&mut self.connected) {
            cm.end_program(now, id);
        }
    }

    /// The descriptors that end a sleep.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let accepts = self.connected.len() < PROGRAMS_MAX;
        let listener = accepts.then(|| PollFd::new(&self.listener, PollFlags::IN));
        let programs = self.connected.values().flat_map(|program| {
            let files = program.files.values().map(|sender| {
                let waits = if sender.unsent > 0 { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::new(&sender.fd, waits)
            });
            [PollFd::new(&program.socket, PollFlags::IN)].into_iter().chain(files)
        });
        listener.into_iter().chain(programs)
    }

    /// Closes the files whose descriptors programs have closed.
    pub(super) fn close_ended(&mut self, now: Time, cm: &mut RdmaCm) {
        for program in self.connected.values_mut() {
            let files: Vec<_> = program.files.keys().copied().collect();
            let senders = program.files.values();
            let mut fds: Vec<_> =
                senders.map(|sender| PollFd::new(&sender.fd, PollFlags::empty())).collect();
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            if !poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0) {
                continue;
            }
            let has_ended = |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::HUP);
            let ended = files.into_iter().zip(&fds).filter(|(_, fd)| has_ended(fd));
            let ended: Vec<_> = ended.map(|(file, _)| file).collect();
            drop(fds);
            for file in ended {
                program.files.remove(&file);
                cm.close(now, file);
            }
        }
    }

    fn accept(&mut self) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut busy = false;
        while self.connected.len() < PROGRAMS_MAX
            && let Ok(socket) = accept_with(&self.listener, flags)
        {
            self.last += 1;
            let program = Program { socket, files: BTreeMap::new() };
            self.connected.insert(ProgramId(self.last), program);
            busy = true;
        }
        busy
    }
}

impl Program {
    /// Answers a command. `false` if the program does not take the answer.
    fn answer(
        &mut self,
        now: Time,
        cm: &mut RdmaCm,
        id: ProgramId,
        (file, command): (u32, &[u8]),
        descriptor: Option<OwnedFd>,
    ) -> bool {
        let result = match (file, descriptor) {
            (0, Some(fd)) => cm.open(id).map(|file| {
                self.files.insert(file, TokenSender { fd, unsent: 0 });
                CommandAnswer { bytes: file.0.to_ne_bytes().to_vec(), ..CommandAnswer::default() }
            }),
            (0, None) => Err(RdmaCmError::NoFile),
            (file, _) => cm.handle_command(now, id, FileId(file), command),
        };
        // Tokens are sent before the answer, which may take some back.
        for (file, sender) in &mut self.files {
            sender.unsent = sender.unsent.saturating_add(cm.take_announcements(*file));
            sender.flush();
        }
        let error = result.as_ref().err().map_or(0, |error| error.errno());
        let mut answer = result.unwrap_or_default();
        let revoked_at = answer.revoked_at.unwrap_or(FileId(0));
        if let Some(sender) = self.files.get_mut(&revoked_at) {
            let unsent = sender.unsent.min(answer.revoked);
            sender.unsent -= unsent;
            answer.revoked -= unsent;
        }
        let mut bytes = error.to_ne_bytes().to_vec();
        bytes.extend(revoked_at.0.to_ne_bytes());
        bytes.extend(answer.revoked.to_ne_bytes());
        bytes.extend(answer.bytes);
        send(&self.socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
    }
}

fn receive(socket: &OwnedFd) -> Received {
    // The rest of a longer message is not read. If its command is longer, too, it is refused, as
    // the command's header has its length.
    let mut bytes = [0; HEAD_BYTES + COMMAND_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let length = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(received) => received.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
        Err(_) => return Received::End,
    };
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.into_iter().next();
        }
    }
    match bytes[..length].split_first_chunk() {
        Some((file, command)) => {
            let (file, bytes) = (u32::from_ne_bytes(*file), command.to_vec());
            Received::Command { file, bytes, descriptor }
        }
        // The end of the connection is read as a message without bytes.
        None => Received::End,
    }
}
