//! A client's link: its session with the server, which may end at any time and begin anew.
//!
//! ```text
//!   apart --- connects, says Attach ---> asking --- Attached ---> joined
//!     ^                                    |                        |
//!     +---------- refused, or the server is gone; the port is down -+
//! ```
//!
//! Sockets are looked at now and then and not in every turn, since that is a system call. Nothing
//! here waits but [`ProcessLink::open`].

use super::address::Address;
use super::board::ClientBoard;
use super::chair::Chair;
use super::loans::Loans;
use super::note::{Attach, Note};
use super::session::Session;
use super::socket::{Received, Socket};
use crate::device::SoftDevice;
use crate::hca::port::Port;
use crate::hca::violation::KeyViolation;
use crate::hca::{Adapter, SEATS_MAX};
use crate::lend::Lender;
use crate::link::Link;
use crate::link::threads::Clock;
use crate::time::Time;
use pollux_mem::region::MapError;
use pollux_verbs::error::over;
use pollux_verbs::{Device, LKey, VerbsError};
use pollux_wire::mad::smp::PortState;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Turns from one look at the socket to the next.
const TURNS_PER_LOOK: u32 = 4096;
/// How long a server may take to answer who opens a port.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a port cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is none of `soft:PATH@NODE[:PORT]`.
    Name(String),
    /// Nobody listens there.
    NoServer(Address, Errno),
    /// The server answers, and says no.
    Refused(Address, String),
    /// The server does not answer.
    Silent(Address),
    /// This process has no memory to share.
    Memory(MapError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name:?} is not of the form soft:PATH@NODE[:PORT]"),
            Self::NoServer(address, errno) => {
                write!(f, "{address}: no fabric listens at {}: {errno}", address.path.display())
            }
            Self::Refused(address, reason) => write!(f, "{address}: {reason}"),
            Self::Silent(address) => {
                let seconds = PATIENCE.as_secs();
                write!(f, "{address}: the fabric does not answer within {seconds} s; ")?;
                f.write_str("is it stopped, or of another version?")
            }
            Self::Memory(error) => write!(f, "no memory to share with the fabric: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// A link to a fabric in another process.
pub struct ProcessLink {
    address: Address,
    clock: Clock,
    loans: Arc<Loans>,
    state: State,
    turns: u32,
    /// For what lies in a lane in parts, and is needed in one.
    room: Vec<u8>,
    /// Below the state: the server knows that a seat is left before somebody takes it.
    chair: Chair,
}

enum State {
    Apart,
    Asking(Socket),
    Joined(Box<Session>),
}

/// Opens the port that a name says, and puts an adapter to it.
pub fn open(name: &str, clock: Clock) -> Result<SoftDevice<ProcessLink>, OpenError> {
    let address = Address::parse(name).ok_or_else(|| OpenError::Name(name.into()))?;
    Ok(seated(name, ProcessLink::open(address, clock)?))
}

fn seated(name: &str, mut link: ProcessLink) -> SoftDevice<ProcessLink> {
    let port = link.port().unwrap_or_else(down);
    let adapter = Adapter::seated(port, link.chair.seat());
    SoftDevice::new(name, adapter, link)
}

/// A port without a fabric.
fn down() -> Port {
    let none = Port::active(Default::default(), Default::default());
    Port { state: PortState::DOWN, ..none }
}

impl ProcessLink {
    /// Attaches to a port where nobody is. Waits for the server's answer.
    pub fn open(address: Address, clock: Clock) -> Result<Self, OpenError> {
        Self::open_at(address, clock, Chair::first())
    }

    fn open_at(address: Address, clock: Clock, chair: Chair) -> Result<Self, OpenError> {
        let loans = Arc::new(Loans::new().map_err(OpenError::Memory)?);
        let (state, room) = (State::Apart, Vec::new());
        let mut link = Self { address, clock, loans, state, turns: 0, room, chair };
        let address = || link.address.clone();
        let until = (link.clock)() + PATIENCE;
        let socket = loop {
            match Socket::connect(&link.address.path) {
                Ok(socket) => break socket,
                // It lives, and has others to let in first.
                Err(Errno::AGAIN) if (link.clock)() < until => wait(&mut []),
                Err(Errno::AGAIN) => return Err(OpenError::Silent(address())),
                Err(errno) => return Err(OpenError::NoServer(address(), errno)),
            }
        };
        if !link.ask(&socket) {
            return Err(OpenError::Silent(address()));
        }
        loop {
            match joined(&socket) {
                Answer::Joined(board) => {
                    link.join(socket, board);
                    return Ok(link);
                }
                Answer::Refused(reason) => return Err(OpenError::Refused(address(), reason)),
                Answer::Ended => return Err(OpenError::Silent(address())),
                Answer::NotYet if (link.clock)() >= until => {
                    return Err(OpenError::Silent(address()));
                }
                Answer::NotYet => wait(&mut [PollFd::new(&socket, PollFlags::IN)]),
            }
        }
    }

    /// The server has let the adapter in.
    fn join(&mut self, socket: Socket, board: ClientBoard) {
        let session = Session::new(socket, board, self.loans.clone());
        self.state = State::Joined(Box::new(session));
    }

    /// The port as the server has it, if that is news.
    fn port(&mut self) -> Option<Port> {
        let State::Joined(session) = &mut self.state else { return None };
        session.board.changed_port()
    }

    /// Whether there is a server.
    pub fn is_joined(&self) -> bool {
        matches!(self.state, State::Joined(_))
    }

    /// Says which port is wanted.
    fn ask(&self, socket: &Socket) -> bool {
        let Address { node, port, .. } = &self.address;
        let (seat, secret) = (self.chair.seat(), self.chair.secret());
        let note = Note::Attach(Attach { node: node.clone(), port: *port, seat, secret });
        socket.send(&note, None)
    }

    /// Looks at the socket, and for a server if there is none.
    #[cold]
    fn look(&mut self, adapter: &mut Adapter) {
        self.turns = 0;
        match &mut self.state {
            State::Joined(session) => {
                if session.read_mail().is_err() {
                    self.state = State::Apart;
                    let port = Port { state: PortState::DOWN, ..adapter.port().clone() };
                    adapter.take_port(port);
                }
            }
            State::Apart => {
                let socket = Socket::connect(&self.address.path).ok();
                if let Some(socket) = socket.filter(|socket| self.ask(socket)) {
                    self.state = State::Asking(socket);
                }
            }
            State::Asking(socket) => match joined(socket) {
                Answer::NotYet => {}
                Answer::Refused(_) | Answer::Ended => self.state = State::Apart,
                Answer::Joined(board) => {
                    let before = std::mem::replace(&mut self.state, State::Apart);
                    let State::Asking(socket) = before else { return };
                    self.join(socket, board);
                }
            },
        }
    }
}

/// What has come of asking.
enum Answer {
    NotYet,
    Joined(ClientBoard),
    Refused(String),
    Ended,
}

fn joined(socket: &Socket) -> Answer {
    match socket.receive() {
        Received::Nothing => Answer::NotYet,
        Received::Note(Note::Attached { .. }, Some(fd)) => {
            ClientBoard::open(fd).map_or(Answer::Ended, Answer::Joined)
        }
        Received::Note(Note::Refused { reason }, _) => Answer::Refused(reason),
        Received::Note(..) | Received::Truncated(_) | Received::End => Answer::Ended,
    }
}

/// The verb that opens an adapter once more.
const OPEN_SHARED: &str = "open_shared";

/// Why an adapter that is open cannot be opened once more.
fn refused(error: OpenError) -> VerbsError {
    let errno = match &error {
        OpenError::NoServer(..) | OpenError::Silent(_) => return VerbsError::Gone,
        OpenError::Memory(_) => Errno::NOMEM,
        OpenError::Name(_) | OpenError::Refused(..) => Errno::BUSY,
    };
    VerbsError::System { verb: OPEN_SHARED, errno: errno.raw_os_error(), advice: error.to_string() }
}

/// Until something comes by one of these, or for a moment.
fn wait(fds: &mut [PollFd<'_>]) {
    let soon = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    // Whatever comes of it, what is waited for is looked at next.
    let _ = poll(fds, Some(&soon));
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
            State::Joined(session) => session.board.wants_packets(),
            _ => false,
        }
    }

    fn lends(&mut self, head: [u64; 2], keys: &mut dyn Iterator<Item = LKey>) -> bool {
        match &mut self.state {
            State::Joined(session) => session.lends(head, keys),
            _ => false,
        }
    }

    fn attach(&mut self, lender: &Arc<Lender>) {
        lender.set_loans(&self.loans);
    }

    #[inline]
    fn refresh(&mut self, adapter: &mut Adapter) {
        self.turns += 1;
        let is_wanted = match &mut self.state {
            State::Joined(session) => {
                if let Some(port) = session.board.changed_port() {
                    adapter.take_port(port);
                }
                session.wants_mail()
            }
            _ => false,
        };
        if is_wanted || self.turns >= TURNS_PER_LOOK {
            self.look(adapter);
        }
    }

    fn send_packet(&mut self, bytes: &[u8]) -> bool {
        match &mut self.state {
            State::Joined(session) => session.send_packet(bytes),
            // Without a cable it is lost.
            _ => true,
        }
    }

    #[inline]
    fn send_bytes(&mut self, head: &[u64], bytes: &[u8]) -> bool {
        match &mut self.state {
            State::Joined(session) => session.send_bytes(head, bytes),
            _ => true,
        }
    }

    #[inline]
    fn send_message(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool {
        match &mut self.state {
            State::Joined(session) => session.send_message(head, bytes, fill),
            _ => true,
        }
    }

    #[inline]
    fn receive(&mut self, now: Time, adapter: &mut Adapter) -> bool {
        match &mut self.state {
            State::Joined(session) => session.receive(now, adapter, &mut self.room),
            _ => false,
        }
    }

    fn report(&mut self, violation: &KeyViolation) {
        if let State::Joined(session) = &mut self.state {
            session.report(violation);
        }
    }

    fn open_shared(&mut self, name: &str) -> Result<Box<dyn Device + Send>, VerbsError> {
        let chair = self.chair.beside().ok_or(over(OPEN_SHARED, "seats_max", SEATS_MAX.into()))?;
        let link = Self::open_at(self.address.clone(), self.clock.clone(), chair);
        Ok(Box::new(seated(name, link.map_err(refused)?)))
    }

    fn set_deadline(&mut self, _: Option<Time>) {}

    fn idle(&mut self, _: Time) {
        std::thread::yield_now();
    }

    fn rest(&mut self) {
        self.turns = TURNS_PER_LOOK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::socket::{accept, listen_at, socket_path};
    use rustix::net::listen;
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::PathBuf;
    use std::sync::Mutex;

    /// A server that lets so few wait that the next one has to come again.
    fn full_server(name: &str) -> (PathBuf, OwnedFd, Vec<Socket>) {
        let path = std::env::temp_dir().join(format!("pollux-{name}-{}", std::process::id()));
        let listener = listen_at(&socket_path(&path)).unwrap();
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
        let address = Address::parse(&format!("soft:{}@host1", path.display())).unwrap();
        ProcessLink::open(address, clock).err().expect("nobody answers")
    }

    #[test]
    fn a_server_with_no_room_now_is_tried_again_until_the_time_is_over() {
        let (path, listener, waiting) = full_server("full");
        let steps = Mutex::new(0);
        // Every look at the clock is a second; at the third the server lets in who waits.
        let clock: Clock = Arc::new(move || {
            let mut steps = steps.lock().unwrap();
            *steps += 1;
            if *steps == 3 {
                (0..waiting.len()).for_each(|_| drop(accept(listener.as_fd()).unwrap()));
            } else if *steps == 6 {
                // It has come in, and its question is there; nobody answers.
                let socket = accept(listener.as_fd()).expect("it has tried again");
                let asked = socket.receive();
                assert!(matches!(asked, Received::Note(Note::Attach(_), None)), "{asked:?}");
            }
            Time::START + Duration::from_secs(*steps)
        });
        assert!(matches!(open_at(&path, clock), OpenError::Silent(_)));
        std::fs::remove_file(socket_path(&path)).unwrap();
    }

    #[test]
    fn a_server_that_never_has_room_is_given_up_when_the_time_is_over() {
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
