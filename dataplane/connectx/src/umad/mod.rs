//! Management datagrams of the program: `/dev/infiniband/umad0` and `issm0`.
//!
//! [`abi`] defines the kernel's formats, and [`agents`] implements the agents of an open file. This
//! file manages the open files. Each has its own connection to the fabric. One thread reads all
//! connections.

mod abi;
mod agents;

use crate::fd_set::FdSet;
use crate::panics::end_program_at_panic;
use crate::process::{DEVICE_VARIABLE, GROUP_VARIABLE};
use crate::signals::without_signals;
use abi::{AgentRequest, Register, Register2, USER_RMPP, request};
use agents::Agents;
use pollux_fabric::link::threads::Clock;
use pollux_fabric::process::AgentPort;
use pollux_fabric::process::agent_message::AgentMessage;
use pollux_fabric::process::link::OpenError;
use pollux_verbs::time::Time;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// The longest wait for an answer of the fabric.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

static FDS: FdSet = FdSet::new();
static FILES: Mutex<Files> =
    Mutex::new(Files { open: BTreeMap::new(), managers: BTreeMap::new(), wake: None });
static START: LazyLock<Instant> = LazyLock::new(start);

thread_local! {
    /// The lock, held by this thread during fork(2).
    static HELD: Cell<Option<MutexGuard<'static, Files>>> = const { Cell::new(None) };
}

/// The open files, by descriptor.
struct Files {
    /// Open files of `umad0`.
    open: BTreeMap<RawFd, UmadFile>,
    /// Open files of `issm0`.
    managers: BTreeMap<RawFd, AgentPort>,
    /// An eventfd that ends the sleep of the thread. Created with the thread.
    wake: Option<Arc<OwnedFd>>,
}

impl Files {
    /// Ends a sleep of the thread.
    fn wake(&self) {
        if let Some(wake) = &self.wake {
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }
}

struct UmadFile {
    agents: Agents,
    port: Arc<AgentPort>,
    /// The program's end of a socket pair. It is readable while the program has messages to read.
    program: Arc<OwnedFd>,
    /// The other end; `None` after the fabric has ended.
    sender: Option<OwnedFd>,
    /// Whether the program's end is readable.
    is_signaled: bool,
}

#[expect(clippy::disallowed_methods, reason = "the library begins here: its clock")]
fn start() -> Instant {
    Instant::now()
}

fn now() -> Time {
    Time::START + START.elapsed()
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

/// Leaves the connections to the parent, in the child of fork(2). The files are leaked, because
/// dropping them would end the parent's connections.
pub(crate) fn after_fork_in_child() {
    FDS.clear();
    let Some(mut files) = HELD.take() else { return };
    std::mem::forget(std::mem::take(&mut files.open));
    std::mem::forget(std::mem::take(&mut files.managers));
    files.wake = None;
}

/// Whether a descriptor is an open file of umad or issm.
pub(crate) fn is_open(fd: RawFd) -> bool {
    FDS.contains(fd)
}

#[expect(clippy::disallowed_methods, reason = "the library begins here: its variables")]
fn attach(is_sm: bool) -> Result<AgentPort, Errno> {
    end_program_at_panic();
    let name = std::env::var(DEVICE_VARIABLE).map_err(|_| Errno::NODEV)?;
    let group = std::env::var(GROUP_VARIABLE).ok().and_then(|group| group.parse().ok());
    // Without a group, a random secret keeps other processes from sharing the port.
    let secret = group.unwrap_or_else(|| RandomState::new().hash_one(()));
    let clock: Clock = Arc::new(now);
    AgentPort::open(&name, secret, is_sm, &clock).map_err(|error| match error {
        OpenError::Refused(..) if is_sm => Errno::AGAIN,
        error => {
            eprintln!("pollux-connectx: {error}");
            Errno::NODEV
        }
    })
}

/// Opens `/dev/infiniband/umad0`.
pub(crate) fn open(is_nonblocking: bool) -> Result<RawFd, Errno> {
    let port = Arc::new(attach(false)?);
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, is_nonblocking);
    let (program, sender) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let own = Arc::new(program.try_clone().map_err(|_| Errno::MFILE)?);
    let mut files = lock();
    let file = UmadFile {
        agents: Agents::new(),
        port,
        program: own,
        sender: Some(sender),
        is_signaled: false,
    };
    if files.wake.is_none() {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let of_thread = wake.clone();
        let thread = std::thread::Builder::new().name("pollux-umad".into());
        without_signals(|| thread.spawn(move || run(&of_thread))).map_err(|_| Errno::AGAIN)?;
        files.wake = Some(wake);
    }
    let fd = hold(program)?;
    files.open.insert(fd, file);
    files.wake();
    Ok(fd)
}

/// Opens `/dev/infiniband/issm0`, which sets IsSM at the port until the file is closed. Fails with
/// EAGAIN if IsSM is already set.
pub(crate) fn open_manager() -> Result<RawFd, Errno> {
    let port = attach(true)?;
    let mut files = lock();
    let fd = hold(memfd_create("issm0", MemfdFlags::CLOEXEC)?)?;
    files.managers.insert(fd, port);
    Ok(fd)
}

/// Registers a descriptor as one of these files, and hands it to the program.
fn hold(fd: OwnedFd) -> Result<RawFd, Errno> {
    if !FDS.insert(fd.as_raw_fd()) {
        return Err(Errno::MFILE);
    }
    Ok(fd.into_raw_fd())
}

pub(crate) fn close(fd: RawFd) {
    FDS.remove(fd);
    let mut files = lock();
    files.managers.remove(&fd);
    if let Some(file) = files.open.remove(&fd) {
        // End the connection explicitly: the thread may have a reference to it.
        file.port.end();
        files.wake();
    }
}

pub(crate) fn write(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    let mut files = lock();
    let file = files.open.get_mut(&fd).ok_or(Errno::INVAL)?;
    if file.sender.is_none() {
        return Err(Errno::IO);
    }
    file.agents.write(now(), bytes)?;
    file.flush();
    // The deadline of the thread may have changed.
    files.wake();
    Ok(bytes.len())
}

pub(crate) fn read(fd: RawFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        let mut files = lock();
        let file = files.open.get_mut(&fd).ok_or(Errno::INVAL)?;
        let read = file.agents.read(buffer);
        file.signal();
        if read != Err(Errno::AGAIN) {
            return read;
        }
        if file.sender.is_none() {
            return Err(Errno::IO);
        }
        let program = file.program.clone();
        drop(files);
        if fcntl_getfl(&program)?.contains(OFlags::NONBLOCK) {
            return Err(Errno::AGAIN);
        }
        poll(&mut [PollFd::new(&program, PollFlags::IN)], None)?;
    }
}

/// Handles an `ioctl`. `argument` has the size that the request contains.
pub(crate) fn ioctl(fd: RawFd, number: u64, argument: &mut [u8]) -> Result<(), Errno> {
    let mut files = lock();
    let file = files.open.get_mut(&fd).ok_or(Errno::NOTTY)?;
    match number {
        request::ENABLE_PKEY => file.agents.enable_p_key(),
        request::REGISTER => {
            let register = Register::mut_from_bytes(argument).map_err(|_| Errno::INVAL)?;
            register.id = file.register(&AgentRequest::of(register)?)?;
            Ok(())
        }
        request::REGISTER2 => {
            let register = Register2::read_from_bytes(argument).map_err(|_| Errno::INVAL)?;
            let is_known = register.flags & !USER_RMPP == 0;
            let result = if is_known {
                AgentRequest::of_second(&register).and_then(|request| file.register(&request))
            } else {
                Err(Errno::INVAL)
            };
            let id = *result.as_ref().unwrap_or(&register.id);
            let flags = if is_known { register.flags } else { USER_RMPP };
            argument.copy_from_slice(Register2 { id, flags, ..register }.as_bytes());
            result.map(drop)
        }
        request::UNREGISTER => {
            let id = u32::read_from_bytes(argument).map_err(|_| Errno::INVAL)?;
            file.agents.remove(id)?;
            file.flush();
            file.signal();
            Ok(())
        }
        _ => Err(Errno::NOTTY),
    }
}

impl UmadFile {
    fn register(&mut self, request: &AgentRequest) -> Result<u32, Errno> {
        let id = self.agents.free_id().ok_or(Errno::NOMEM)?;
        self.flush();
        let until = now() + ANSWER_TIMEOUT;
        while let Err(error) = self.port.send(&AgentMessage::Register(request.registration())) {
            self.wait(error, PollFlags::OUT, until)?;
        }
        loop {
            match self.port.receive() {
                // Another agent at the port has registered one of the methods.
                Ok(AgentMessage::Registered(None)) => return Err(Errno::INVAL),
                Ok(AgentMessage::Registered(Some(number))) => {
                    self.agents.insert(id, number, request);
                    return Ok(id);
                }
                Ok(message) => self.handle(&message),
                Err(error) => self.wait(error, PollFlags::IN, until)?,
            }
        }
    }

    /// Waits until the connection is ready for `flags`, but not longer than `until`. Fails if
    /// `error` is not EAGAIN, or if the time is over.
    fn wait(&self, error: Errno, flags: PollFlags, until: Time) -> Result<(), Errno> {
        let left = until.since(now());
        if error != Errno::AGAIN || left.is_zero() {
            return Err(Errno::NODEV);
        }
        let _ = poll(&mut [PollFd::new(&*self.port, flags)], Some(&timespec(left)));
        Ok(())
    }

    fn handle(&mut self, message: &AgentMessage) {
        if let AgentMessage::Mad(mad) = message {
            self.agents.handle(now(), mad);
        }
    }

    /// Handles received messages and expired timers.
    fn turn(&mut self) {
        loop {
            match self.port.receive() {
                Ok(message) => self.handle(&message),
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.sender = None;
                    break;
                }
            }
        }
        self.agents.handle_timeout(now());
        self.flush();
        self.signal();
    }

    /// Sends waiting messages, as far as the connection has space.
    fn flush(&mut self) {
        while let Some(message) = self.agents.poll_transmit() {
            if self.port.send(&message) == Err(Errno::AGAIN) {
                return self.agents.hold(message);
            }
        }
    }

    /// Makes the program's descriptor readable if there are messages to read, and not readable
    /// otherwise.
    fn signal(&mut self) {
        let is_readable = self.agents.is_readable();
        if is_readable == self.is_signaled {
            return;
        }
        self.is_signaled = is_readable;
        // After the end of the fabric, the descriptor stays readable, because its other end is
        // closed.
        let Some(sender) = &self.sender else { return };
        if is_readable {
            let _ = send(sender, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        } else {
            let _ = recv(&self.program, &mut [0; 1], RecvFlags::DONTWAIT);
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

/// The main function of the thread that serves all open files.
fn run(wake: &OwnedFd) {
    loop {
        let mut files = lock();
        let mut ports = Vec::new();
        let mut due = None;
        for file in files.open.values_mut().filter(|file| file.sender.is_some()) {
            file.turn();
            let flags = match file.agents.has_outgoing() {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            // Do not poll a connection that has ended: it would always be readable.
            if file.sender.is_some() {
                ports.push((file.port.clone(), flags));
            }
            due = [due, file.agents.poll_timeout()].into_iter().flatten().min();
        }
        drop(files);
        let timeout = due.map(|due| timespec(due.since(now())));
        let ports = ports.iter().map(|(port, flags)| (port.as_fd(), *flags));
        let fds = ports.chain([(wake.as_fd(), PollFlags::IN)]);
        let mut fds: Vec<_> = fds
            .map(|(fd, flags): (BorrowedFd<'_>, _)| PollFd::from_borrowed_fd(fd, flags))
            .collect();
        // A signal ends a sleep early, which is harmless.
        let _ = poll(&mut fds, timeout.as_ref());
        let _ = rustix::io::read(wake, &mut [0; 8]);
    }
}
