//! The listener for metrics: HTTP, one request and one reply for each connection, in the poll loop
//! of the control thread.
//!
//! ```text
//!   Reading --head complete, or 4 KiB--> Writing --all written--> Closing --end, timeout--> closed
//!      |                                    |
//!      +----------------- timeout, error, or newer connections: closed
//! ```
//!
//! Nothing here blocks, and every state has a timeout. A turn makes the body of each format at most
//! once, and its clients share the body. At the limit of connections, the oldest is closed: a
//! client on this machine gets its reply in the turn of its request, so the oldest is slow or
//! silent.
//!
//! Why a connection is not closed at once after its reply: with unread bytes of the request,
//! closing would reset the connection, and the reply would be lost.

use super::exposition::MetricsFormat;
use super::request::{RequestError, read_request};
use crate::config::MetricsAddress;
use pollux_fabric::wire_io::listen;
use pollux_verbs::time::Time;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, send, shutdown};
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub const SCRAPES_MAX: usize = 16;
const HEAD_BYTES_MAX: usize = 4096;
/// Timeouts of a client for its request, for reading the reply, and for closing.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);
const REPLY_TIME_MAX: Duration = Duration::from_secs(10);
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);
/// Pause of accepting after an error, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of accepted connections, and of reads of a closing connection, in one turn.
const STEPS_MAX: usize = 2 * SCRAPES_MAX;

pub type MakeBody<'a> = &'a mut dyn FnMut(MetricsFormat) -> String;

pub struct MetricsServer {
    listener: OwnedFd,
    /// The file of a Unix socket, which is removed at the end.
    path: Option<PathBuf>,
    /// The oldest first.
    connections: Vec<Scrape>,
    /// When accepting continues after a pause.
    paused_until: Option<Time>,
}

struct Scrape {
    stream: OwnedFd,
    until: Time,
    state: ScrapeState,
}

enum ScrapeState {
    Reading(Vec<u8>),
    /// The head and the body of the reply, and how many bytes of both are written.
    Writing(String, Arc<str>, usize),
    Closing,
}

/// The bodies that a turn has made, by format.
struct Bodies<'a> {
    make: MakeBody<'a>,
    openmetrics: Option<Arc<str>>,
    text: Option<Arc<str>>,
}

impl MetricsServer {
    pub fn listen(address: &MetricsAddress) -> io::Result<Self> {
        let (listener, path): (OwnedFd, _) = match address {
            MetricsAddress::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                (listener.into(), None)
            }
            MetricsAddress::Unix(path) => (listen(path)?.into(), Some(path.clone())),
        };
        Ok(Self { listener, path, connections: Vec::new(), paused_until: None })
    }

    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let accepts = self.paused_until.is_none();
        let listener = accepts.then(|| PollFd::new(&self.listener, PollFlags::IN));
        let connections = self.connections.iter().map(|one| match one.state {
            ScrapeState::Reading(_) | ScrapeState::Closing => (one, PollFlags::IN),
            ScrapeState::Writing(..) => (one, PollFlags::OUT),
        });
        let connections = connections.map(|(one, flags)| PollFd::new(&one.stream, flags));
        listener.into_iter().chain(connections)
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.connections.iter().map(|one| one.until).chain(self.paused_until).min()
    }

    pub fn turn(&mut self, now: Time, make: MakeBody<'_>) {
        let mut bodies = Bodies { make, openmetrics: None, text: None };
        self.paused_until = self.paused_until.filter(|until| now < *until);
        self.connections.retain_mut(|one| one.step(now, &mut bodies).unwrap_or(false));
        for _ in 0..STEPS_MAX {
            if self.paused_until.is_some() {
                break;
            }
            match accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(stream) => self.add(now, stream, &mut bodies),
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // No descriptors, or no memory. The listener stays readable, and would wake the
                // thread in a loop.
                Err(_) => self.paused_until = Some(now + ACCEPT_PAUSE),
            }
        }
    }

    fn add(&mut self, now: Time, stream: OwnedFd, bodies: &mut Bodies<'_>) {
        let state = ScrapeState::Reading(Vec::new());
        let mut scrape = Scrape { stream, until: now + REQUEST_TIME_MAX, state };
        // The request has usually arrived already.
        if scrape.step(now, bodies).unwrap_or(false) {
            if self.connections.len() == SCRAPES_MAX {
                self.connections.remove(0);
            }
            self.connections.push(scrape);
        }
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Bodies<'_> {
    fn of(&mut self, format: MetricsFormat) -> Arc<str> {
        let made = match format {
            MetricsFormat::OpenMetrics => &mut self.openmetrics,
            MetricsFormat::Text => &mut self.text,
        };
        Arc::clone(made.get_or_insert_with(|| (self.make)(format).into()))
    }
}

impl Scrape {
    /// Advances the connection as far as possible. Returns whether it stays open.
    fn step(&mut self, now: Time, bodies: &mut Bodies<'_>) -> Result<bool, Errno> {
        loop {
            let is_late = self.until <= now;
            match &mut self.state {
                ScrapeState::Reading(head) => {
                    let Some(request) = read(&self.stream, head)? else { return Ok(!is_late) };
                    self.state = reply(request, bodies);
                    self.until = now + REPLY_TIME_MAX;
                }
                ScrapeState::Writing(head, body, written) => {
                    if !write(&self.stream, [head, body], written)? {
                        return Ok(!is_late);
                    }
                    shutdown(&self.stream, Shutdown::Write)?;
                    self.state = ScrapeState::Closing;
                    self.until = now + CLOSE_TIME_MAX;
                }
                ScrapeState::Closing => return Ok(!has_closed(&self.stream)? && !is_late),
            }
        }
    }
}

/// Reads a part of a request. Returns the format that it asks for, once it is complete.
fn read(
    stream: &OwnedFd,
    head: &mut Vec<u8>,
) -> Result<Option<Result<MetricsFormat, RequestError>>, Errno> {
    let mut bytes = [0; 512];
    loop {
        match recv(stream, &mut bytes[..], RecvFlags::empty()) {
            Ok((_, 0)) => return Err(Errno::CONNRESET),
            Ok((_, len)) => head.extend_from_slice(&bytes[..len]),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
        if let Some(request) = read_request(head) {
            return Ok(Some(request));
        }
        if head.len() >= HEAD_BYTES_MAX {
            return Ok(Some(Err(RequestError::TooLong)));
        }
    }
}

fn reply(request: Result<MetricsFormat, RequestError>, bodies: &mut Bodies<'_>) -> ScrapeState {
    let (status, kind, body) = match request {
        Ok(format) => ("200 OK", format.content_type(), bodies.of(format)),
        Err(error) => {
            let (status, text) = error.reply();
            (status, "text/plain; charset=utf-8", Arc::from(text))
        }
    };
    let allow = if request == Err(RequestError::Method) { "Allow: GET\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    ScrapeState::Writing(head, body, 0)
}

/// Writes as much of a reply as the socket takes. Returns whether the reply is complete.
fn write(stream: &OwnedFd, parts: [&str; 2], written: &mut usize) -> Result<bool, Errno> {
    let [head, body] = parts.map(str::as_bytes);
    while *written < head.len() + body.len() {
        let rest = match written.checked_sub(head.len()) {
            Some(of_body) => &body[of_body..],
            None => &head[*written..],
        };
        match send(stream, rest, SendFlags::NOSIGNAL) {
            Ok(len) => *written += len,
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Whether the client has closed. Bytes that it still sends are read and ignored.
fn has_closed(stream: &OwnedFd) -> Result<bool, Errno> {
    let mut bytes = [0; 512];
    for _ in 0..STEPS_MAX {
        match recv(stream, &mut bytes[..], RecvFlags::empty()) {
            Ok((_, 0)) => return Ok(true),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    const GET: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    /// Longer than the buffers of a connection.
    const LONG: usize = 32 << 20;

    /// A listener at a free port, with bodies of so many bytes.
    struct Listening {
        server: MetricsServer,
        address: SocketAddr,
        bytes: usize,
        bodies: usize,
    }

    impl Listening {
        fn new(bytes: usize) -> Self {
            let any = MetricsAddress::Tcp(([127, 0, 0, 1], 0).into());
            let server = MetricsServer::listen(&any).expect("a free port");
            let listener = server.listener.try_clone().expect("a descriptor");
            let address = TcpListener::from(listener).local_addr().expect("it has one");
            Self { server, address, bytes, bodies: 0 }
        }

        fn connect(&self, request: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).expect("it listens");
            stream.write_all(request.as_bytes()).expect("it has space");
            stream
        }

        fn turn(&mut self, now: Time) {
            let Self { server, bytes, bodies, .. } = self;
            server.turn(now, &mut |_| {
                *bodies += 1;
                "x".repeat(*bytes)
            });
        }

        /// Turns until a condition holds: data between two sockets takes a moment.
        fn until(&mut self, now: Time, is: impl Fn(&MetricsServer) -> bool) {
            for _ in 0..10_000_000 {
                self.turn(now);
                if is(&self.server) {
                    return;
                }
                std::thread::yield_now();
            }
            panic!("it does not come to that");
        }

        /// The bytes that a client reads until the end, while the listener turns.
        fn reply(&mut self, stream: &mut (impl Read + Write), now: Time) -> String {
            let (mut text, mut bytes) = (Vec::new(), vec![0; 1 << 20]);
            loop {
                self.turn(now);
                match stream.read(&mut bytes) {
                    Ok(0) => return String::from_utf8(text).expect("text"),
                    Ok(len) => text.extend_from_slice(&bytes[..len]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error} after {} bytes", text.len()),
                }
            }
        }

        fn ask(&mut self, request: &str) -> String {
            let mut stream = self.connect(request);
            stream.set_nonblocking(true).expect("it can");
            self.reply(&mut stream, Time::START)
        }
    }

    #[test]
    fn a_request_gets_a_complete_reply_and_others_the_reason() {
        let mut all = Listening::new(5);
        assert_eq!(
            all.ask(GET),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
             Content-Length: 5\r\nCache-Control: no-store\r\nConnection: close\r\n\r\nxxxxx"
        );
        let openmetrics = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
        assert!(all.ask(openmetrics).contains("application/openmetrics-text; version=1.0.0"));
        assert!(all.ask("POST /metrics HTTP/1.1\r\n\r\n").contains("405 Method Not Allowed"));
        assert!(all.ask("POST /metrics HTTP/1.1\r\n\r\n").contains("Allow: GET\r\n"));
        assert!(all.ask("GET / HTTP/1.1\r\n\r\n").ends_with("the metrics are at /metrics\n"));
        assert!(all.ask("nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(3 * HEAD_BYTES_MAX));
        assert!(all.ask(&long).starts_with("HTTP/1.1 431 "), "and is not reset");
        all.until(Time::START, |server| server.connections.is_empty());
        assert_eq!(all.bodies, 2);
    }

    #[test]
    fn slow_clients_time_out_and_delay_no_others() {
        let mut all = Listening::new(LONG);
        let silent = all.connect("");
        let half = all.connect("GET /metrics HTTP/1.1\r\n");
        let slow = all.connect(GET);
        all.until(Time::START, |server| {
            let written = |one: &Scrape| matches!(one.state, ScrapeState::Writing(..));
            server.connections.len() == 3 && server.connections.iter().any(written)
        });
        assert!(all.ask(GET).ends_with(&"x".repeat(LONG)));
        all.until(Time::START, |server| server.connections.len() == 3);
        assert_eq!(all.server.poll_timeout(), Some(Time::START + REQUEST_TIME_MAX));
        all.turn(Time::START + REQUEST_TIME_MAX);
        assert_eq!(all.server.connections.len(), 1, "the slow reader");
        all.turn(Time::START + REPLY_TIME_MAX);
        assert_eq!(all.server.connections.len(), 0);
        drop((silent, half, slow));
    }

    #[test]
    fn the_oldest_makes_space_and_clients_of_a_turn_share_a_body() {
        let mut all = Listening::new(5);
        let mut silent: Vec<_> = (0..SCRAPES_MAX).map(|_| all.connect("")).collect();
        all.until(Time::START, |server| server.connections.len() == SCRAPES_MAX);
        let _newer = all.connect("");
        all.turn(Time::START);
        assert_eq!(all.server.connections.len(), SCRAPES_MAX);
        assert_eq!(silent[0].read(&mut [0]).ok(), Some(0), "the oldest");
        assert!(all.ask(GET).ends_with("xxxxx"));
        // The last request may have closed another silent connection.
        let (before, others) = (all.bodies, &mut silent[2..]);
        others.iter_mut().for_each(|one| one.write_all(GET.as_bytes()).expect("space"));
        let served = others.iter_mut().map(|one| all.reply(one, Time::START));
        assert!(served.collect::<Vec<_>>().iter().all(|reply| reply.ends_with("xxxxx")));
        assert_eq!(all.bodies, before + 1);
    }

    #[test]
    fn a_unix_socket_is_private_and_removed_with_the_listener() {
        let path = std::env::temp_dir().join(format!("pollux-metrics-{}", std::process::id()));
        let mut server = MetricsServer::listen(&MetricsAddress::Unix(path.clone())).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(GET.as_bytes()).unwrap();
        server.turn(Time::START, &mut |_| "metrics".into());
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.ends_with("\r\n\r\nmetrics"), "{reply}");
        drop(server);
        assert!(!path.exists());
    }
}
