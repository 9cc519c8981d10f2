//! The server of the admin socket of a fabric, a node, or a program that uses the library.
//! [`client`] is the other side; both share [`request`], [`reply`] and [`rows`]. Each connection
//! carries one request and one response, each a line of JSON.
//!
//! ```text
//! to all:                 {"show": TABLE}                              {"ok": [{...}, ...]}
//! to a fabric:            {"add_fault": RULE}                          {"ok": NUMBER}
//!                         {"remove_fault": NUMBER}                     {"ok": NUMBER}
//! to a node:              {"ping": {"address": IP, "bytes": N}}        {"ok": {...}}
//!                         {"route_to": {"address": IP}}                {"ok": {...}}
//! not now, but perhaps soon                                            {"later": "..."}
//! an error                                                             {"error": "..."}
//! ```
//!
//! A response may take time: each turn passes the request to [`Respond`] again, until it returns a
//! response. A long response is sent in pages ([`page`]).
//!
//! ```text
//!                                                                  +-- next page --+
//!                                                                  v               |
//!   Reading --- the line is complete ---> Waiting --- response ---> Writing -------+--> closed
//!     |                                      +--- timeout: error ------^
//!     +--- timeout, or the oldest when another connection needs the space: closed
//! ```
//!
//! Connections without a request cannot keep others out: at the limit, the oldest of them is
//! closed.

pub mod capture;
pub mod client;
pub mod finding;
mod neighbor_rows;
pub mod page;
pub mod reply;
pub mod request;
pub mod route;
pub mod rows;
#[cfg(test)]
mod schema_tests;
mod socket_rows;
mod topology_rows;
mod usual_drops;

use page::{Cursor, Page};
use pollux_fabric::Time;
use pollux_fabric::wire_io::listen;
use reply::{AdminAnswer, AdminReply};
use request::AdminRequest;
use rustix::event::{PollFd, PollFlags};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of connections. Each takes a descriptor, and a process has 1,024 by default.
pub const CONNECTIONS_MAX: usize = 256;
/// Maximum length of a request in bytes.
const REQUEST_LEN_MAX: usize = 4096;
/// Timeout for a client to send its request, and to read a page of the response.
const CLIENT_MAX: Duration = Duration::from_secs(5);
/// Timeout for a response to be ready. It is longer than the timeout of an echo request.
const RESPONSE_MAX: Duration = Duration::from_secs(8);
/// Pause of accepting after an error, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of pages in one turn, for all connections: other tasks of the thread wait
/// meanwhile.
const PAGES_PER_TURN: usize = 8;

const BUSY: &str = "too many queries at once; try again";

pub struct Admin {
    path: PathBuf,
    listener: UnixListener,
    /// In the order in which a turn serves them.
    connections: Vec<Connection>,
    accepted: u64,
    /// When accepting continues after a pause.
    paused_until: Option<Time>,
    /// Pages that the turn may still make.
    pages_left: usize,
}

struct Connection {
    number: u64,
    stream: UnixStream,
    until: Time,
    state: State,
}

enum State {
    /// The received part of a request.
    Reading(Vec<u8>),
    Waiting(AdminRequest),
    /// The bytes of a page, how many of them are written, and the request with the cursor of its
    /// next page.
    Writing(Vec<u8>, usize, Option<(AdminRequest, Cursor)>),
}

/// Responds to a request; the number identifies its connection. `None` if there is no response yet.
/// A cursor asks for the page that begins there.
pub type Respond<'a> = &'a mut dyn FnMut(u64, &AdminRequest, Option<&Cursor>) -> Option<Page>;

impl Admin {
    /// Listens at `path`, for programs of this user.
    pub fn listen(path: &Path) -> io::Result<Self> {
        let (listener, connections) = (listen(path)?, Vec::new());
        Ok(Self {
            path: path.into(),
            listener,
            connections,
            accepted: 0,
            paused_until: None,
            pages_left: PAGES_PER_TURN,
        })
    }

    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let accepts = self.paused_until.is_none();
        let listener = accepts.then(|| PollFd::new(&self.listener, PollFlags::IN));
        // Clients that wait are not polled: after such a client has closed, POLLHUP would wake the
        // thread in a loop.
        let connections = self.connections.iter().filter_map(|one| match one.state {
            State::Reading(_) => Some(PollFd::new(&one.stream, PollFlags::IN)),
            State::Waiting(_) => None,
            State::Writing(..) => Some(PollFd::new(&one.stream, PollFlags::OUT)),
        });
        listener.into_iter().chain(connections)
    }

    /// The time of the next timeout, or [`Time::START`] if there is more to do now.
    pub fn due(&self) -> Option<Time> {
        let more = (self.pages_left == 0).then_some(Time::START);
        self.connections.iter().map(|one| one.until).chain(self.paused_until).chain(more).min()
    }

    pub fn turn(&mut self, now: Time, respond: Respond<'_>) {
        self.pages_left = PAGES_PER_TURN;
        self.paused_until = self.paused_until.filter(|until| now < *until);
        while self.paused_until.is_none() {
            match self.listener.accept() {
                Ok((stream, _)) => self.accept(now, stream, respond),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // No descriptors, or no memory. The listener stays readable, and would wake the
                // thread in a loop.
                Err(_) => self.paused_until = Some(now + ACCEPT_PAUSE),
            }
        }
        let pages_left = &mut self.pages_left;
        self.connections.retain_mut(|one| one.step(now, respond, pages_left).unwrap_or(false));
        // Other connections are first in the next turn.
        if self.pages_left == 0 {
            let count = self.connections.len().min(PAGES_PER_TURN);
            self.connections.rotate_left(count);
        }
    }

    /// Adds a connection. At the limit, closes the oldest connection without a request, or else the
    /// new one. The client of the closed connection is asked to try again.
    fn accept(&mut self, now: Time, stream: UnixStream, respond: Respond<'_>) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        self.accepted += 1;
        let (number, state) = (self.accepted, State::Reading(Vec::new()));
        let mut connection = Connection { number, stream, until: now + CLIENT_MAX, state };
        if self.connections.len() == CONNECTIONS_MAX {
            let all = self.connections.iter().enumerate();
            let reading = all.filter(|(_, one)| matches!(one.state, State::Reading(_)));
            match reading.min_by_key(|(_, one)| one.number).map(|(at, _)| at) {
                Some(oldest) => self.connections.remove(oldest).refuse(),
                None => return connection.refuse(),
            }
        }
        // The request has usually arrived already.
        if connection.step(now, respond, &mut self.pages_left).unwrap_or(false) {
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
    /// Advances the connection as far as possible. Returns whether it stays open.
    fn step(
        &mut self,
        now: Time,
        respond: Respond<'_>,
        pages_left: &mut usize,
    ) -> io::Result<bool> {
        loop {
            let is_late = self.until <= now;
            match &mut self.state {
                State::Reading(line) => {
                    if !read(&mut self.stream, line)? {
                        return Ok(!is_late);
                    }
                    match serde_json::from_slice(line) {
                        Ok(request) => {
                            (self.state, self.until) =
                                (State::Waiting(request), now + RESPONSE_MAX);
                        }
                        Err(error) => self.refuse_request(
                            now,
                            format!(
                                "the request is not one of this version: {error}; use the `pollux` \
                                 of this node or fabric"
                            ),
                        ),
                    }
                }
                State::Waiting(_) if *pages_left == 0 => return Ok(true),
                State::Waiting(request) => match respond(self.number, request, None) {
                    Some(page) => {
                        *pages_left -= 1;
                        let request = request.clone();
                        self.write_page(now, request, &page, true);
                    }
                    None if is_late => self.refuse_request(
                        now,
                        format!(
                            "no worker answered for {} s; a worker whose breaths stand still in \
                             `pollux show workers` hangs",
                            RESPONSE_MAX.as_secs()
                        ),
                    ),
                    None => return Ok(true),
                },
                State::Writing(bytes, written, next) => {
                    if !write(&mut self.stream, bytes, written)? {
                        return Ok(!is_late);
                    }
                    if next.is_some() && *pages_left == 0 {
                        return Ok(true);
                    }
                    let Some((request, cursor)) = next.take() else { return Ok(false) };
                    *pages_left -= 1;
                    let page = respond(self.number, &request, Some(&cursor));
                    let page = page.unwrap_or_else(|| AdminReply::Ok(AdminAnswer::Done).into());
                    self.write_page(now, request, &page, false);
                }
            }
        }
    }

    fn write_page(&mut self, now: Time, request: AdminRequest, page: &Page, is_first: bool) {
        let next = page.next.clone().map(|cursor| (request, cursor));
        (self.state, self.until) =
            (State::Writing(page.bytes(is_first), 0, next), now + CLIENT_MAX);
    }

    fn refuse_request(&mut self, now: Time, why: String) {
        let bytes = Page::from(AdminReply::Error(why)).bytes(true);
        (self.state, self.until) = (State::Writing(bytes, 0, None), now + CLIENT_MAX);
    }

    /// Asks the client to try again, and closes the connection. Nothing was written to the socket
    /// before, so it has space for that.
    fn refuse(mut self) {
        let busy = Page::from(AdminReply::Later(BUSY.into()));
        let _ = self.stream.write_all(&busy.bytes(true));
    }
}

/// Reads a part of a request. Returns whether it is complete: with the end of the line, or at the
/// maximum length.
fn read(stream: &mut UnixStream, line: &mut Vec<u8>) -> io::Result<bool> {
    let mut bytes = [0; 512];
    while line.len() < REQUEST_LEN_MAX && !line.contains(&b'\n') {
        match stream.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => line.extend_from_slice(&bytes[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Writes as much of a page as the socket takes. Returns whether the page is complete.
fn write(stream: &mut UnixStream, bytes: &[u8], written: &mut usize) -> io::Result<bool> {
    while *written < bytes.len() {
        match stream.write(&bytes[*written..]) {
            Ok(len) => *written += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::request::AdminTable;
    use super::rows::FaultStatus;
    use super::*;

    /// Pages of the table of groups, each larger than the buffer of the socket.
    const PAGES: u32 = 40;
    const PAGE_BYTES: usize = 1 << 20;

    struct Socket {
        admin: Admin,
        path: PathBuf,
        pages: usize,
    }

    impl Socket {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("admin-{}-{test}", std::process::id()));
            Self { admin: Admin::listen(&path).expect("it is ours"), path, pages: 0 }
        }

        fn connect(&self, request: &str) -> UnixStream {
            let mut stream = UnixStream::connect(&self.path).expect("it listens");
            stream.write_all(request.as_bytes()).expect("it has space");
            stream.set_nonblocking(true).expect("it is ours");
            stream
        }

        /// Only `ListFaults` and the table of groups have a response.
        fn turn(&mut self, now: Time) {
            self.admin.turn(now, &mut |_, request, cursor| {
                let faults = |faults| AdminReply::Ok(AdminAnswer::Faults(faults));
                match request {
                    AdminRequest::ListFaults => Some(faults(Vec::new()).into()),
                    AdminRequest::Show(AdminTable::Groups) => {
                        self.pages += 1;
                        let number: u32 = cursor.map_or(0, |it| it.interface.len() as u32);
                        let row = FaultStatus { number, rule: "x".repeat(PAGE_BYTES) };
                        let interface = "x".repeat(number as usize + 1);
                        let next = Cursor { interface, after: None };
                        let next = (number + 1 < PAGES).then_some(next);
                        Some(Page { reply: faults(vec![row]), next })
                    }
                    _ => None,
                }
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
    fn connections_without_a_request_are_closed_for_one_with_a_request() {
        let mut socket = Socket::new("silent");
        // Some send nothing, some half a request.
        let silent = |nth: usize| if nth.is_multiple_of(2) { "" } else { "\"list" };
        // The kernel's backlog is shorter than this, so each connection is accepted at once.
        let mut all = Vec::new();
        for nth in 0..2 * CONNECTIONS_MAX {
            all.push(socket.connect(silent(nth)));
            socket.turn(Time::START);
        }
        let mut one = socket.connect("\"list_faults\"\n");
        socket.turn(Time::START);
        assert_eq!(answer(&mut one), "{\"ok\":[]}\n");
        assert_eq!(socket.admin.connections.len(), CONNECTIONS_MAX - 1);
        let refused = format!("{{\"later\":{BUSY:?}}}\n");
        let is_refused = |one: &mut UnixStream| answer(one).starts_with(&refused);
        let is_refused: Vec<_> = all.iter_mut().map(is_refused).collect();
        let (oldest, rest) = is_refused.split_at(CONNECTIONS_MAX + 1);
        assert!(oldest.iter().all(|refused| *refused) && !rest.contains(&true), "{is_refused:?}");
        socket.turn(Time::START + CLIENT_MAX);
        assert_eq!(socket.admin.connections.len(), 0, "they timed out");
    }

    #[test]
    fn a_request_of_another_version_is_refused() {
        let mut socket = Socket::new("version");
        let mut one = socket.connect("show ports\n");
        socket.turn(Time::START);
        assert!(
            answer(&mut one).starts_with("{\"error\":\"the request is not one of this version")
        );
    }

    #[test]
    fn a_client_that_never_reads_has_one_page_and_others_have_theirs() {
        let mut socket = Socket::new("pages");
        let table = "{\"show\":\"groups\"}\n";
        let never = socket.connect(table);
        let mut reader = socket.connect(table);
        let (mut line, mut bytes) = (Vec::new(), vec![0; PAGE_BYTES]);
        while !line.ends_with(b"\n") {
            let before = socket.pages;
            socket.turn(Time::START);
            assert!(socket.pages - before <= PAGES_PER_TURN);
            let mut other = socket.connect("\"list_faults\"\n");
            socket.turn(Time::START);
            assert_eq!(answer(&mut other), "{\"ok\":[]}\n", "it waits for no other");
            while let Ok(len @ 1..) = reader.read(&mut bytes) {
                line.extend_from_slice(&bytes[..len]);
            }
        }
        assert_eq!(socket.pages, PAGES as usize + 1, "the first page of the one that never reads");
        let reply: AdminReply<Vec<FaultStatus>> = serde_json::from_slice(&line).expect("a line");
        let AdminReply::Ok(rows) = reply else { panic!("it has rows") };
        assert!(rows.iter().map(|row| row.number).eq(0..PAGES));
        assert_eq!(socket.admin.due(), Some(Time::START + CLIENT_MAX));
        socket.turn(Time::START + CLIENT_MAX);
        assert_eq!(socket.admin.connections.len(), 0, "it timed out");
        drop(never);
    }

    #[test]
    fn a_turn_makes_few_pages_and_is_due_again() {
        let mut socket = Socket::new("turns");
        let count = 3 * PAGES_PER_TURN;
        let mut all: Vec<_> = (0..count).map(|_| socket.connect("\"list_faults\"\n")).collect();
        let answered = |all: &mut [UnixStream]| {
            all.iter_mut().map(answer).filter(|answer| answer.starts_with("{\"ok\"")).count()
        };
        let mut left = count;
        while left > 0 {
            socket.turn(Time::START);
            let now = answered(&mut all);
            assert_eq!(now, PAGES_PER_TURN);
            assert_eq!(socket.admin.due(), Some(Time::START), "there is more, or may be");
            left -= now;
        }
        socket.turn(Time::START);
        assert_eq!(socket.admin.due(), None);
    }

    #[test]
    fn a_client_beyond_the_limit_of_waiting_ones_gets_later() {
        let mut socket = Socket::new("waiting");
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            all.push(socket.connect("{\"show\":\"ports\"}\n"));
            socket.turn(Time::START);
        }
        let mut late = socket.connect("\"list_faults\"\n");
        socket.turn(Time::START);
        assert!(answer(&mut late).starts_with(&format!("{{\"later\":{BUSY:?}}}\n")));
        assert_eq!(answer(&mut all[0]), "WouldBlock");
        assert_eq!(socket.admin.due(), Some(Time::START + RESPONSE_MAX));
        socket.turn(Time::START + RESPONSE_MAX);
        for one in &mut all {
            assert!(answer(one).starts_with("{\"error\":\"no worker answered for 8 s"));
        }
        assert_eq!(socket.admin.connections.len(), 0);
        let mut next = socket.connect("\"list_faults\"\n");
        socket.turn(Time::START + RESPONSE_MAX);
        assert_eq!(answer(&mut next), "{\"ok\":[]}\n");
    }
}
