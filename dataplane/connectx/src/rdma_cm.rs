//! The connection manager of the program: `/dev/infiniband/rdma_cm`.
//!
//! A service on the host implements it. The environment variable [`SOCKET_VARIABLE`] names the path
//! of its socket. This library forwards each command of the program, and writes the answer to the
//! program's memory. It interprets a command only to find the address of its answer, and to
//! replace what means something only in this process: a pointer to an option, and a descriptor.
//!
//! ```text
//!   program: write --command--> library --one connection per process--> service
//!            its memory <------ library <--- status, answer -----------
//!            poll, GET_EVENT <-------- one connection per open file --- one token per event
//! ```
//!
//! An open file is the program's end of a socket pair. The service sends one token for each pending
//! event. The file is therefore readable while there is an event, and blocks or not as the program
//! has set it. When its last copy is closed, in any process, the service notices.

use crate::fd_set::FdSet;
use crate::user_memory::{copy_in, copy_out};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with, socketpair,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The environment variable with the path of the service. Without it, the device does not exist.
const SOCKET_VARIABLE: &str = "POLLUX_RDMA_CM";

/// The longest command, without the value of an option.
const COMMAND_BYTES_MAX: usize = 8 + 296;
/// The longest value of an option.
const OPTION_BYTES_MAX: usize = 256;
/// The longest answer, which is an event.
const ANSWER_BYTES_MAX: usize = 336;

/// The header of a command to the service: the number of the file. 0 opens a new file with the
/// attached descriptor.
const HEAD_BYTES: usize = 4;
/// The header of an answer: an error number or 0, the file whose tokens to revoke, and their
/// number.
const ANSWER_HEAD_BYTES: usize = 12;

/// Commands that this library interprets (Linux `rdma/rdma_user_cm.h`), and the offsets of the
/// fields that it reads, counted from the end of the header.
mod command {
    pub(super) const HEADER_BYTES: usize = 8;
    pub(super) const CREATE_ID: u32 = 0;
    pub(super) const GET_EVENT: u32 = 12;
    pub(super) const SET_OPTION: u32 = 14;
    pub(super) const MIGRATE_ID: u32 = 18;
    /// The address of the answer to `CREATE_ID`. In the other commands, its offset is 0.
    pub(super) const CREATE_ID_RESPONSE: usize = 8;
    pub(super) const OPTION_ADDRESS: usize = 0;
    pub(super) const OPTION_LENGTH: usize = 20;
    pub(super) const OPTION_BYTES: usize = 24;
    pub(super) const MIGRATE_FROM: usize = 12;
}

#[expect(clippy::disallowed_methods, reason = "the library begins here: its variable")]
static PATH: LazyLock<Option<SocketAddrUnix>> =
    LazyLock::new(|| SocketAddrUnix::new(std::env::var_os(SOCKET_VARIABLE)?.as_os_str()).ok());
static FDS: FdSet = FdSet::new();
static FILES: Mutex<Files> = Mutex::new(Files { service: None, open: BTreeMap::new() });

thread_local! {
    /// The lock, held by this thread during fork(2).
    static HELD: Cell<Option<MutexGuard<'static, Files>>> = const { Cell::new(None) };
}

struct Files {
    /// The connection to the service, since the first open.
    service: Option<OwnedFd>,
    /// The service's numbers of open files, by descriptor.
    open: BTreeMap<RawFd, u32>,
}

/// An answer of the service.
struct Answer {
    bytes: Vec<u8>,
    /// A file, and the number of its tokens whose events no longer exist.
    revoked: (u32, u32),
}

fn lock() -> MutexGuard<'static, Files> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock before fork(2), so that no other thread holds it in the child's copy.
pub(crate) fn before_fork() {
    HELD.set(Some(lock()));
}

pub(crate) fn after_fork_in_parent() {
    HELD.set(None);
}

/// Forgets the parent's files in the child of fork(2). Files that the child opens use a connection
/// of its own.
pub(crate) fn after_fork_in_child() {
    FDS.clear();
    if let Some(mut files) = HELD.take() {
        (files.service, files.open) = (None, BTreeMap::new());
    }
}

/// Whether the environment names the service.
pub(crate) fn is_there() -> bool {
    PATH.is_some()
}

pub(crate) fn is_open(fd: RawFd) -> bool {
    FDS.contains(fd)
}

/// Opens `/dev/infiniband/rdma_cm`.
pub(crate) fn open(is_nonblocking: bool) -> Result<RawFd, Errno> {
    let path = PATH.as_ref().ok_or(Errno::NODEV)?;
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, is_nonblocking);
    let (program, others) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let mut files = lock();
    if files.service.is_none() {
        let kind = SocketType::SEQPACKET;
        let service = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        connect(&service, path).map_err(|_| Errno::NODEV)?;
        files.service = Some(service);
    }
    let answer = files.ask(0, &[], Some(others.as_fd()))?;
    let number = answer.bytes.first_chunk().ok_or(Errno::IO)?;
    if !FDS.insert(program.as_raw_fd()) {
        return Err(Errno::MFILE);
    }
    let fd = program.into_raw_fd();
    files.open.insert(fd, u32::from_ne_bytes(*number));
    Ok(fd)
}

/// Forgets a descriptor before it is closed. The service notices the end of the file by itself.
pub(crate) fn close(fd: RawFd) {
    FDS.remove(fd);
    lock().open.remove(&fd);
}

/// Executes a command of the program, which is a `write` to an open file.
pub(crate) fn write(fd: RawFd, address: u64, bytes: usize) -> Result<usize, Errno> {
    if !(command::HEADER_BYTES..=COMMAND_BYTES_MAX).contains(&bytes) {
        return Err(Errno::INVAL);
    }
    let mut command = copy_in(address, bytes)?;
    let number = word(&command, 0);
    let answer_max = usize::from(half(&command, 6));
    let field = |at| command::HEADER_BYTES + at;
    match number {
        command::GET_EVENT => take_token(fd)?,
        command::SET_OPTION => {
            let length = word(&command, field(command::OPTION_LENGTH)) as usize;
            if length > OPTION_BYTES_MAX {
                return Err(Errno::INVAL);
            }
            let value = copy_in(long(&command, field(command::OPTION_ADDRESS)), length)?;
            command.resize(field(command::OPTION_BYTES), 0);
            command.extend(value);
        }
        _ => {}
    }
    let answer = loop {
        let mut files = lock();
        let file = *files.open.get(&fd).ok_or(Errno::IO)?;
        if number == command::MIGRATE_ID {
            let from = word(&command, field(command::MIGRATE_FROM)).cast_signed();
            let from = *files.open.get(&from).ok_or(Errno::INVAL)?;
            let at = field(command::MIGRATE_FROM);
            command.resize(command.len().max(at + 4), 0);
            command[at..at + 4].copy_from_slice(&from.to_ne_bytes());
        }
        match files.ask(file, &command, None) {
            // The event of the token is gone: another thread has destroyed or migrated its ID.
            Err(Errno::AGAIN) if number == command::GET_EVENT => {}
            answer => break files.settle(answer?),
        }
        drop(files);
        take_token(fd)?;
    };
    let response = match number {
        command::CREATE_ID => field(command::CREATE_ID_RESPONSE),
        _ => field(0),
    };
    let answer = &answer[..answer.len().min(answer_max)];
    if !answer.is_empty() {
        copy_out(long(&command, response), answer)?;
    }
    Ok(bytes)
}

/// Takes the token of an event. Waits for it if the descriptor is blocking.
fn take_token(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: the program passed the open descriptor to this call, and does not close it during the
    // call. If it does, `recv` fails or reads from another file, as it would with the kernel.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    match recv(file, &mut [0; 1], RecvFlags::empty())? {
        // The service has ended.
        (_, 0) => Err(Errno::IO),
        _ => Ok(()),
    }
}

impl Files {
    /// Sends a command, and receives its answer.
    fn ask(
        &mut self,
        file: u32,
        command: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Answer, Errno> {
        let service = self.service.as_ref().ok_or(Errno::IO)?;
        let head: [u8; HEAD_BYTES] = file.to_ne_bytes();
        let parts = [IoSlice::new(&head), IoSlice::new(command)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        again(|| sendmsg(service, &parts, &mut control, SendFlags::NOSIGNAL))
            .map_err(|_| Errno::IO)?;
        let mut bytes = [0; ANSWER_HEAD_BYTES + ANSWER_BYTES_MAX];
        let received = again(|| recv(service, &mut bytes[..], RecvFlags::empty()));
        let (_, length) = received.map_err(|_| Errno::IO)?;
        let rest = bytes[..length].get(ANSWER_HEAD_BYTES..).ok_or(Errno::IO)?;
        match word(&bytes, 0) {
            0 => {
                let revoked = (word(&bytes, 4), word(&bytes, 8));
                Ok(Answer { bytes: rest.to_vec(), revoked })
            }
            error => Err(Errno::from_raw_os_error(error.cast_signed())),
        }
    }

    /// Revokes the tokens of events that no longer exist. If another thread has already taken such
    /// a token, it gets no event and waits again.
    fn settle(&self, answer: Answer) -> Vec<u8> {
        let (file, count) = answer.revoked;
        let of_file = self.open.iter().find(|(_, number)| **number == file);
        if let Some((fd, _)) = of_file {
            // SAFETY: as in `take_token`.
            let file = unsafe { BorrowedFd::borrow_raw(*fd) };
            for _ in 0..count {
                let _ = recv(file, &mut [0; 1], RecvFlags::DONTWAIT);
            }
        }
        answer.bytes
    }
}

/// Repeats a call while signals interrupt it.
fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Bytes at an offset. Bytes beyond the end are zero.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes.get(at + index).copied().unwrap_or(0))
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(part(bytes, at))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(part(bytes, at))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(part(bytes, at))
}
