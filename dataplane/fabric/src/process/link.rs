//! A client's link: its session with the server, which may end and start again at any time.
//!
//! ```text
//!   disconnected --- connects, sends Attach ---> attaching --- Attached ---> attached
//!        ^                                           |                          |
//!        +--------------- refused, or the server has ended; the port is down ---+
//!                                                                               |
//!                                              lost <--- if it ends with its server
//! ```
//!
//! The link does not read its socket in every turn, because that is a system call. Only
//! [`ProcessLink::open`] waits.

use super::address::PortAddress;
use super::control_message::{Attach, ControlMessage};
use super::port_page::ClientPage;
use super::session::Session;
use super::shared_leases::SharedLeases;
use super::socket::{ReceivedMessage, Socket};
use super::vhca_index::VhcaIndex;
use super::wake_socket::WakeSet;
use crate::link::threads::Clock;
use crate::link::{FrameSink, Link};
use crate::time::Time;
use pollux_hca::port::Port;
use pollux_hca::violation::KeyViolation;
use pollux_hca::{Adapter, LeaseTable, PORT_CONTEXTS_MAX, SoftDevice};
use pollux_mem::region::MapError;
use pollux_verbs::error::over;
use pollux_verbs::{Device, LKey, VerbsError};
use pollux_wire::mad::smp::PortState;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Turns between reads of the socket.
const TURNS_PER_SOCKET_READ: u32 = 4096;
/// The interval at which a sleeping client without a server tries to connect.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(20);
/// The longest wait for the answer of a server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("{0:?} is not of the form soft:PATH@NODE[:PORT]")]
    Name(String),
    #[error("{0}: no fabric listens at {path}: {1}", path = .0.path.display())]
    NoServer(PortAddress, Errno),
    #[error("{0}: {1}")]
    Refused(PortAddress, String),
    #[error(
        "{0}: the fabric does not answer within {seconds} s; is it stopped, or of another version?",
        seconds = ANSWER_TIMEOUT.as_secs()
    )]
    Silent(PortAddress),
    #[error("no memory to share with the fabric: {0}")]
    Memory(MapError),
    #[error("no descriptor left ({0}); `ulimit -n` has the limit")]
    Descriptor(Errno),
}

pub struct ProcessLink {
    address: PortAddress,
    clock: Clock,
    leases: Arc<SharedLeases>,
    wake_set: Arc<WakeSet>,
    state: State,
    ends_with_server: bool,
    turns: u32,
    /// A contiguous copy of an entry that wraps around in its ring.
    buffer: Vec<u8>,
    /// Declared after `state`, so that it is dropped after it: the connection has ended before
    /// another adapter takes the index.
    vhca_index: VhcaIndex,
}

enum State {
    Disconnected,
    Attaching(Socket),
    Attached(Box<Session>),
    /// The server has ended, and the link has ended with it.
    Lost,
}

pub fn open(name: &str, clock: Clock) -> Result<SoftDevice<ProcessLink>, OpenError> {
    let address = PortAddress::parse(name).ok_or_else(|| OpenError::Name(name.into()))?;
    Ok(in_context(name, ProcessLink::open(address, clock)?))
}

/// Opens a port that other processes with this secret may have open, too. The process with vHCA
/// index 0, which is usually the first one, gets the management datagrams.
pub fn open_in_group(
    name: &str,
    clock: &Clock,
    secret: u64,
) -> Result<SoftDevice<ProcessLink>, OpenError> {
    let address = PortAddress::parse(name).ok_or_else(|| OpenError::Name(name.into()))?;
    let mut number = 0;
    loop {
        let index = VhcaIndex::of_group(secret, number);
        match ProcessLink::open_at(address.clone(), clock.clone(), index) {
            Err(OpenError::Refused(..)) if number + 1 < PORT_CONTEXTS_MAX => number += 1,
            opened => return Ok(in_context(name, opened?)),
        }
    }
}

fn in_context(name: &str, mut link: ProcessLink) -> SoftDevice<ProcessLink> {
    let port = link.port().unwrap_or_else(down_port);
    let adapter = Adapter::in_context(port, link.vhca_index.number());
    SoftDevice::new(name, adapter, link)
}

/// The state of a port without a fabric.
fn down_port() -> Port {
    let none = Port::active(Default::default(), Default::default());
    Port { state: PortState::DOWN, ..none }
}

impl ProcessLink {
    /// Attaches to a free port. Waits for the server's answer.
    pub fn open(address: PortAddress, clock: Clock) -> Result<Self, OpenError> {
        Self::open_at(address, clock, VhcaIndex::first())
    }

    fn open_at(
        address: PortAddress,
        clock: Clock,
        vhca_index: VhcaIndex,
    ) -> Result<Self, OpenError> {
        let leases = Arc::new(SharedLeases::new().map_err(OpenError::Memory)?);
        let wake_set = Arc::new(WakeSet::new().map_err(OpenError::Descriptor)?);
        let (state, buffer) = (State::Disconnected, Vec::new());
        let mut link = Self {
            address,
            clock,
            leases,
            wake_set,
            state,
            ends_with_server: false,
            turns: 0,
            buffer,
            vhca_index,
        };
        let (socket, page) = attach(&link.address, &link.attach_message(), &link.clock)?;
        let page = page.and_then(ClientPage::open);
        let page = page.ok_or_else(|| OpenError::Silent(link.address.clone()))?;
        link.start_session(socket, page);
        Ok(link)
    }

    /// In a child of fork(2): leaves the session to the parent, and writes nothing to the memory
    /// that the parent shares with the fabric.
    pub fn leave_to_parent(&mut self) {
        match std::mem::replace(&mut self.state, State::Disconnected) {
            State::Disconnected | State::Lost => {}
            State::Attaching(socket) => socket.leave_to_parent(),
            State::Attached(session) => session.socket.leave_to_parent(),
        }
    }

    /// Makes the link lost when the server ends ([`Link::is_lost`]). Without this call, the link
    /// attaches to the next server at its path.
    pub fn end_with_server(&mut self) {
        self.ends_with_server = true;
    }

    fn start_session(&mut self, socket: Socket, page: ClientPage) {
        let session = Session::new(socket, page, self.leases.clone(), self.wake_set.clone());
        self.state = State::Attached(Box::new(session));
    }

    fn port(&mut self) -> Option<Port> {
        let State::Attached(session) = &mut self.state else { return None };
        session.page.changed_port()
    }

    fn attach_message(&self) -> ControlMessage {
        let PortAddress { node, port, .. } = &self.address;
        let (context, secret) = (self.vhca_index.number(), self.vhca_index.secret());
        ControlMessage::Attach(Attach { node: node.clone(), port: *port, context, secret })
    }

    /// Reads the socket; connects if there is no session.
    #[cold]
    fn check_server(&mut self, adapter: &mut Adapter) {
        self.turns = 0;
        match &mut self.state {
            State::Attached(session) => {
                if session.read_socket().is_err() {
                    self.state = match self.ends_with_server {
                        true => State::Lost,
                        false => State::Disconnected,
                    };
                    let port = Port { state: PortState::DOWN, ..adapter.port().clone() };
                    adapter.take_port(port);
                }
            }
            State::Lost => {}
            State::Disconnected => {
                let socket = Socket::connect(&self.address.path).ok();
                let message = self.attach_message();
                if let Some(socket) = socket.filter(|socket| socket.send(&message, None)) {
                    self.state = State::Attaching(socket);
                }
            }
            State::Attaching(socket) => match read_answer(socket) {
                Answer::NotYet => {}
                Answer::Refused(_) | Answer::Ended => self.state = State::Disconnected,
                Answer::Attached(page) => {
                    let before = std::mem::replace(&mut self.state, State::Disconnected);
                    let State::Attaching(socket) = before else { return };
                    if let Some(page) = page.and_then(ClientPage::open) {
                        self.start_session(socket, page);
                    }
                }
            },
        }
    }
}

/// Connects to the server of a port, sends it `message`, and waits for the answer. Returns the
/// connection and the descriptor in the answer.
pub(super) fn attach(
    address: &PortAddress,
    message: &ControlMessage,
    clock: &Clock,
) -> Result<(Socket, Option<OwnedFd>), OpenError> {
    let until = clock() + ANSWER_TIMEOUT;
    let socket = loop {
        match Socket::connect(&address.path) {
            Ok(socket) => break socket,
            // The server is alive; its backlog is full.
            Err(Errno::AGAIN) if clock() < until => wait(&mut []),
            Err(Errno::AGAIN) => return Err(OpenError::Silent(address.clone())),
            Err(errno) => return Err(OpenError::NoServer(address.clone(), errno)),
        }
    };
    if !socket.send(message, None) {
        return Err(OpenError::Silent(address.clone()));
    }
    loop {
        match read_answer(&socket) {
            Answer::Attached(descriptor) => return Ok((socket, descriptor)),
            Answer::Refused(reason) => return Err(OpenError::Refused(address.clone(), reason)),
            Answer::Ended => return Err(OpenError::Silent(address.clone())),
            Answer::NotYet if clock() >= until => return Err(OpenError::Silent(address.clone())),
            Answer::NotYet => wait(&mut [PollFd::new(&socket, PollFlags::IN)]),
        }
    }
}

enum Answer {
    NotYet,
    /// With the descriptor of the shared port page, for an adapter.
    Attached(Option<OwnedFd>),
    Refused(String),
    Ended,
}

fn read_answer(socket: &Socket) -> Answer {
    match socket.receive() {
        ReceivedMessage::Nothing => Answer::NotYet,
        ReceivedMessage::Message(ControlMessage::Attached { .. }, descriptor) => {
            Answer::Attached(descriptor)
        }
        ReceivedMessage::Message(ControlMessage::Refused { reason }, _) => Answer::Refused(reason),
        ReceivedMessage::Message(..) | ReceivedMessage::Truncated(_) | ReceivedMessage::End => {
            Answer::Ended
        }
    }
}

const OPEN_SHARED: &str = "open_shared";

fn refused(error: OpenError) -> VerbsError {
    let errno = match &error {
        OpenError::NoServer(..) | OpenError::Silent(_) => return VerbsError::Gone,
        OpenError::Memory(_) => Errno::NOMEM,
        OpenError::Descriptor(errno) => *errno,
        OpenError::Name(_) | OpenError::Refused(..) => Errno::BUSY,
    };
    VerbsError::System { verb: OPEN_SHARED, errno: errno.raw_os_error(), advice: error.to_string() }
}

/// Waits until one of these is readable, for 10 ms at most.
fn wait(fds: &mut [PollFd<'_>]) {
    let soon = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    // An error needs no handling, because the caller polls in any case.
    let _ = poll(fds, Some(&soon));
}

impl FrameSink for ProcessLink {
    fn can_lease(&mut self, head: [u64; 2], keys: &mut dyn Iterator<Item = LKey>) -> bool {
        match &mut self.state {
            State::Attached(session) => session.can_lease(head, keys),
            _ => false,
        }
    }

    fn send_packet(&mut self, bytes: &[u8]) -> bool {
        match &mut self.state {
            State::Attached(session) => session.send_packet(bytes),
            // Without a session the link is down, so the frame is lost.
            _ => true,
        }
    }

    #[inline]
    fn send_bytes(&mut self, head: &[u64], bytes: &[u8]) -> bool {
        match &mut self.state {
            State::Attached(session) => session.send_bytes(head, bytes),
            _ => true,
        }
    }

    #[inline]
    fn send_message(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool {
        match &mut self.state {
            State::Attached(session) => session.send_message(head, bytes, fill),
            _ => true,
        }
    }
}

impl Link for ProcessLink {
    fn now(&self) -> Time {
        (self.clock)()
    }

    fn is_virtual(&self) -> bool {
        false
    }

    fn wants_packets(&self) -> bool {
        match &self.state {
            State::Attached(session) => session.page.wants_packets(),
            _ => false,
        }
    }

    fn attach(&mut self, leases: &Arc<LeaseTable>) {
        leases.set_publisher(self.leases.clone());
    }

    #[inline]
    fn refresh(&mut self, adapter: &mut Adapter) {
        self.turns += 1;
        let is_wanted = match &mut self.state {
            State::Attached(session) => {
                if let Some(port) = session.page.changed_port() {
                    adapter.take_port(port);
                }
                session.wants_socket()
            }
            _ => false,
        };
        if is_wanted || self.turns >= TURNS_PER_SOCKET_READ {
            self.check_server(adapter);
        }
    }

    #[inline]
    fn receive(&mut self, now: Time, adapter: &mut Adapter) -> bool {
        match &mut self.state {
            State::Attached(session) => session.receive(now, adapter, &mut self.buffer),
            _ => false,
        }
    }

    fn report(&mut self, violation: &KeyViolation) {
        if let State::Attached(session) = &mut self.state {
            session.report(violation);
        }
    }

    fn open_shared(&mut self, name: &str) -> Result<Box<dyn Device + Send>, VerbsError> {
        let vhca_index = self.vhca_index.another().ok_or(over(
            OPEN_SHARED,
            "port_contexts_max",
            PORT_CONTEXTS_MAX.into(),
        ))?;
        let link = Self::open_at(self.address.clone(), self.clock.clone(), vhca_index);
        Ok(Box::new(in_context(name, link.map_err(refused)?)))
    }

    fn set_deadline(&mut self, _: Option<Time>) {}

    fn idle(&mut self, end: Time) {
        let left = end.since_start().saturating_sub((self.clock)().since_start());
        self.wake_set.sleep(left.min(self.sleep_max()));
        if let State::Attached(session) = &mut self.state {
            session.handle_wake_up();
        }
        self.turns = TURNS_PER_SOCKET_READ;
    }

    fn fall_asleep(&mut self) {
        self.turns = TURNS_PER_SOCKET_READ;
        let now = (self.clock)();
        if let State::Attached(session) = &mut self.state {
            session.fall_asleep(now);
        }
    }

    fn is_asleep(&self) -> bool {
        // Without a server there is nothing to receive.
        if let State::Attached(session) = &self.state { session.is_asleep() } else { true }
    }

    fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost)
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake_set.as_fd())
    }

    fn sleep_max(&self) -> Duration {
        match &self.state {
            State::Attached(session) => session.sleep_max(),
            State::Disconnected | State::Attaching(_) => RECONNECT_INTERVAL,
            State::Lost => Duration::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::listen_at;
    use crate::process::socket::{accept, socket_path};
    use rustix::net::{SocketType, listen};
    use std::path::PathBuf;
    use std::sync::Mutex;

    /// A server with a full backlog.
    fn full_server(name: &str) -> (PathBuf, OwnedFd, Vec<Socket>) {
        let path = std::env::temp_dir().join(format!("pollux-{name}-{}", std::process::id()));
        let listener = listen_at(&socket_path(&path), SocketType::SEQPACKET).unwrap();
        listen(&listener, 1).unwrap();
        let mut waiting = Vec::new();
        loop {
            match Socket::connect(&path) {
                Ok(socket) => waiting.push(socket),
                Err(errno) => {
                    assert_eq!(errno, Errno::AGAIN);
                    return (path, listener, waiting);
                }
            }
        }
    }

    fn open_at(path: &std::path::Path, clock: Clock) -> OpenError {
        let address = PortAddress::parse(&format!("soft:{}@host1", path.display())).unwrap();
        ProcessLink::open(address, clock).err().expect("no server answers")
    }

    #[test]
    fn a_full_backlog_is_retried_until_the_timeout() {
        let (path, listener, waiting) = full_server("full");
        let steps = Arc::new(Mutex::new(0));
        let seen = Arc::clone(&steps);
        // Every reading of the clock is a second later. At the third reading, the server accepts
        // the waiting clients.
        let clock: Clock = Arc::new(move || {
            let mut steps = seen.lock().unwrap();
            *steps += 1;
            if *steps == 3 {
                (0..waiting.len()).for_each(|_| drop(accept(listener.as_fd()).unwrap()));
            } else if *steps == 6 {
                // The request has arrived; it gets no answer.
                let socket = accept(listener.as_fd()).expect("it has tried again");
                let asked = socket.receive();
                assert!(
                    matches!(asked, ReceivedMessage::Message(ControlMessage::Attach(_), None)),
                    "{asked:?}"
                );
            }
            Time::START + Duration::from_secs(*steps)
        });
        assert!(matches!(open_at(&path, clock), OpenError::Silent(_)));
        assert!(*steps.lock().unwrap() >= 6, "it has not tried again");
        std::fs::remove_file(socket_path(&path)).unwrap();
    }

    #[test]
    fn a_backlog_that_stays_full_is_an_error_after_the_timeout() {
        let (path, _listener, _waiting) = full_server("never");
        let steps = Mutex::new(0);
        let clock: Clock = Arc::new(move || {
            *steps.lock().unwrap() += 1;
            Time::START + Duration::from_secs(*steps.lock().unwrap())
        });
        assert!(matches!(open_at(&path, clock), OpenError::Silent(_)));
        std::fs::remove_file(socket_path(&path)).unwrap();
    }
}
