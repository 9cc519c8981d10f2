//! The socket at which a fabric or a node is asked: a line of words comes, a line of JSON goes, and
//! the connection ends. [`client`] is the other side of it.
//!
//! ```text
//! of a fabric
//!   show nodes | ports | links | groups                               {"ok": [{...}, ...]}
//!   fault add RULE | del NUMBER | list                                {"ok": ...}
//! of a node
//!   show interfaces | neighbors | connections | groups | drops        {"ok": [{...}, ...]}
//!   show workers                                                      {"ok": [{...}, ...]}
//!   idle poll | pause | adaptive [WORKER]                             {"ok": null}
//!   ping ADDRESS BYTES [INTERFACE]                                   {"ok": {...}}
//! what cannot be answered now, but perhaps soon                       {"later": "..."}
//! anything else                                                       {"error": "..."}
//! ```
//!
//! An answer may take time: a question is put again, under its number, until there is one.
//!
//! ```text
//!   Asking --- the line is complete ---> Waiting --- an answer ---> Answering ---> closed
//!     |                                     +--- none in time: an error ---^
//!     +--- too slow, or the oldest when another one needs the place: closed
//! ```
//!
//! A connection that asks nothing never keeps others out: it is the first to go.

pub mod client;

use pollux_fabric::Time;
use pollux_fabric::wire_io::listen;
use rustix::event::{PollFd, PollFlags};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Connections at a time. Each has a descriptor, of which a process has 1,024 by default.
pub const CONNECTIONS_MAX: usize = 256;
/// Bytes of a question.
const QUESTION_LEN_MAX: usize = 4096;
/// How long a client may take to ask, and how long to take its answer.
const CLIENT_MAX: Duration = Duration::from_secs(5);
/// How long an answer may take: an echo request waits four seconds.
const ANSWER_MAX: Duration = Duration::from_secs(8);
/// How long nobody is accepted after the system gave no descriptor.
const REST: Duration = Duration::from_millis(100);

const BUSY: &str = "too many queries at once; try again";

/// The socket, and its connections.
pub struct Admin {
    path: PathBuf,
    listener: UnixListener,
    /// The first is the oldest.
    connections: Vec<Connection>,
    accepted: u64,
    /// Nobody is accepted before then.
    rests_until: Option<Time>,
}

struct Connection {
    number: u64,
    stream: UnixStream,
    /// When its state has to be another one.
    until: Time,
    state: State,
}

enum State {
    /// So much of a question has come.
    Asking(Vec<u8>),
    /// The question has no answer yet.
    Waiting(String),
    /// So much of the answer is left.
    Answering(Vec<u8>),
}

/// Gives an answer to the question of this number, if it is time.
pub type Answer<'a> = &'a mut dyn FnMut(u64, &str) -> Option<String>;

impl Admin {
    /// Listens for this user's programs.
    pub fn listen(path: &Path) -> io::Result<Self> {
        let (listener, connections) = (listen(path)?, Vec::new());
        Ok(Self { path: path.into(), listener, connections, accepted: 0, rests_until: None })
    }

    /// What to wait for.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let accepts = self.rests_until.is_none();
        let listener = accepts.then(|| PollFd::new(&self.listener, PollFlags::IN));
        // Not those that wait for an answer: once such a client has gone, POLLHUP would wake us in
        // a loop until its answer is there.
        let connections = self.connections.iter().filter_map(|one| match one.state {
            State::Asking(_) => Some(PollFd::new(&one.stream, PollFlags::IN)),
            State::Waiting(_) => None,
            State::Answering(_) => Some(PollFd::new(&one.stream, PollFlags::OUT)),
        });
        listener.into_iter().chain(connections)
    }

    /// When somebody's time is over.
    pub fn due(&self) -> Option<Time> {
        self.connections.iter().map(|one| one.until).chain(self.rests_until).min()
    }

    /// Takes questions, and answers them.
    pub fn turn(&mut self, now: Time, answer: Answer<'_>) {
        self.rests_until = self.rests_until.filter(|until| now < *until);
        while self.rests_until.is_none() {
            match self.listener.accept() {
                Ok((stream, _)) => self.take(now, stream, answer),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // No descriptor, or no memory: the listener would wake us in a loop.
                Err(_) => self.rests_until = Some(now + REST),
            }
        }
        self.connections.retain_mut(|one| one.goes_on(now, answer).unwrap_or(false));
    }

    /// One more connection. Where there is no room for it, the oldest that asks nothing goes, or
    /// else itself; either is told to come again.
    fn take(&mut self, now: Time, stream: UnixStream, answer: Answer<'_>) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        self.accepted += 1;
        let (number, state) = (self.accepted, State::Asking(Vec::new()));
        let mut connection = Connection { number, stream, until: now + CLIENT_MAX, state };
        if self.connections.len() == CONNECTIONS_MAX {
            let mut all = self.connections.iter();
            match all.position(|one| matches!(one.state, State::Asking(_))) {
                Some(oldest) => self.connections.remove(oldest).refuse(),
                None => return connection.refuse(),
            }
        }
        // Its question has mostly come already, so it is not one that asks nothing.
        if connection.goes_on(now, answer).unwrap_or(false) {
            self.connections.push(connection);
        }
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Connection {
    /// Reads, answers and writes as far as that goes; says whether there is more to do.
    fn goes_on(&mut self, now: Time, answer: Answer<'_>) -> io::Result<bool> {
        loop {
            let is_late = self.until <= now;
            match &mut self.state {
                State::Asking(question) => {
                    if !read(&mut self.stream, question)? {
                        return Ok(!is_late);
                    }
                    let question = String::from_utf8_lossy(question).trim().to_owned();
                    (self.state, self.until) = (State::Waiting(question), now + ANSWER_MAX);
                }
                State::Waiting(question) => {
                    let late = || {
                        let seconds = ANSWER_MAX.as_secs();
                        format!(
                            "{{\"error\":\"no worker answered for {seconds} s; a worker whose \
                             breaths stand still in `pollux show workers` hangs\"}}"
                        )
                    };
                    let answer = answer(self.number, question);
                    let Some(answer) = answer.or_else(|| is_late.then(late)) else {
                        return Ok(true);
                    };
                    let answer = (answer + "\n").into_bytes();
                    (self.state, self.until) = (State::Answering(answer), now + CLIENT_MAX);
                }
                State::Answering(answer) => {
                    return Ok(!write(&mut self.stream, answer)? && !is_late);
                }
            }
        }
    }

    /// Closes it, and says that another time may be better. A client that has asked nothing has
    /// room for that in its socket.
    fn refuse(mut self) {
        let _ = self.stream.write_all(format!("{{\"later\":{BUSY:?}}}\n").as_bytes());
    }
}

/// Takes what has come of a question; says whether it is complete: at the end of a line, or as long
/// as any may be.
fn read(stream: &mut UnixStream, question: &mut Vec<u8>) -> io::Result<bool> {
    let mut bytes = [0; 512];
    while question.len() < QUESTION_LEN_MAX && !question.contains(&b'\n') {
        match stream.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => question.extend_from_slice(&bytes[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Writes what there is room for; says whether that was all.
fn write(stream: &mut UnixStream, answer: &mut Vec<u8>) -> io::Result<bool> {
    while !answer.is_empty() {
        match stream.write(answer) {
            Ok(len) => drop(answer.drain(..len)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Socket {
        admin: Admin,
        path: PathBuf,
    }

    impl Socket {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("admin-{}-{test}", std::process::id()));
            Self { admin: Admin::listen(&path).expect("it is ours"), path }
        }

        fn connect(&self, question: &str) -> UnixStream {
            let mut stream = UnixStream::connect(&self.path).expect("it listens");
            stream.write_all(question.as_bytes()).expect("it has room");
            stream.set_nonblocking(true).expect("it is ours");
            stream
        }

        /// Questions that begin with "wait" have no answer.
        fn turn(&mut self, now: Time) {
            self.admin.turn(now, &mut |_, question| {
                (!question.starts_with("wait")).then(|| format!("{{\"ok\":{question:?}}}"))
            });
        }
    }

    fn answer(stream: &mut UnixStream) -> String {
        let mut answer = String::new();
        match stream.read_to_string(&mut answer) {
            Ok(_) => answer,
            Err(error) => format!("{answer}{:?}", error.kind()),
        }
    }

    #[test]
    fn connections_that_ask_nothing_make_room_for_one_that_does() {
        let mut socket = Socket::new("silent");
        // Some have nothing to say, some do not finish.
        let silent = |nth: usize| if nth.is_multiple_of(2) { "" } else { "show" };
        // What the system lets wait to be accepted is less than all of them.
        let mut all = Vec::new();
        for nth in 0..2 * CONNECTIONS_MAX {
            all.push(socket.connect(silent(nth)));
            socket.turn(Time::START);
        }
        let mut one = socket.connect("show ports\n");
        socket.turn(Time::START);
        assert_eq!(answer(&mut one), "{\"ok\":\"show ports\"}\n");
        assert_eq!(socket.admin.connections.len(), CONNECTIONS_MAX - 1);
        let refused = format!("{{\"later\":{BUSY:?}}}\n");
        let is_refused = |one: &mut UnixStream| answer(one).starts_with(&refused);
        let is_refused: Vec<_> = all.iter_mut().map(is_refused).collect();
        let (oldest, rest) = is_refused.split_at(CONNECTIONS_MAX + 1);
        assert!(oldest.iter().all(|refused| *refused) && !rest.contains(&true), "{is_refused:?}");
        socket.turn(Time::START + CLIENT_MAX);
        assert_eq!(socket.admin.connections.len(), 0, "they had time enough");
    }

    #[test]
    fn who_finds_all_places_waiting_for_answers_is_told_to_come_again() {
        let mut socket = Socket::new("waiting");
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            all.push(socket.connect("wait\n"));
            socket.turn(Time::START);
        }
        let mut late = socket.connect("show ports\n");
        socket.turn(Time::START);
        assert!(answer(&mut late).starts_with(&format!("{{\"later\":{BUSY:?}}}\n")));
        assert_eq!(answer(&mut all[0]), "WouldBlock");
        assert_eq!(socket.admin.due(), Some(Time::START + ANSWER_MAX));
        socket.turn(Time::START + ANSWER_MAX);
        for one in &mut all {
            assert!(answer(one).starts_with("{\"error\":\"no worker answered for 8 s"));
        }
        assert_eq!(socket.admin.connections.len(), 0);
        let mut next = socket.connect("show ports\n");
        socket.turn(Time::START + ANSWER_MAX);
        assert_eq!(answer(&mut next), "{\"ok\":\"show ports\"}\n");
    }
}
