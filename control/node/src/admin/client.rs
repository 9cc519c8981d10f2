//! What asks a running fabric or node, and what it says when there is no answer.
//!
//! A process that has just been started has no socket yet, and one that has may be told to come
//! again: both pass, so a client tries again for as long as it is told to. Everything else is an
//! error at once. A process that is stopped accepts connections all the same (the system does that
//! for it) and never answers: the system is asked how it is.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::Value;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a process may say nothing: longer than it may take for any answer.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How often it is looked at whether it is stopped.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pauses between attempts.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Asks at a socket.
pub struct Client {
    path: PathBuf,
    wait: Duration,
}

/// What is done between two attempts: the reason for the first one's failure and how long to pause
/// come in, and whether to go on goes out.
pub type Pause<'a> = &'a mut dyn FnMut(&AskError, Duration) -> bool;

/// Why there is no answer: one sentence, and what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum AskError {
    /// Nobody listens at the path.
    Absent(PathBuf, io::Error),
    /// More programs want to ask than the system lets wait.
    Full(PathBuf),
    /// The process there says nothing.
    Silent {
        /// The path.
        path: PathBuf,
        /// The process, if the system can say.
        process: Option<i32>,
        /// It is stopped.
        is_stopped: bool,
        /// For how long it has said nothing.
        silent: Duration,
    },
    /// The answer ended early, after so many bytes.
    Cut(PathBuf, usize),
    /// It is no answer of a fabric or node.
    Foreign(PathBuf, serde_json::Error),
    /// There is no answer yet, and why.
    Later(String),
    /// The answer is no.
    Refused(String),
    /// The system refuses.
    System(PathBuf, io::Error),
}

impl AskError {
    /// Whether it may be different soon.
    const fn may_pass(&self) -> bool {
        matches!(self, Self::Absent(..) | Self::Full(_) | Self::Later(_))
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(path, error) => {
                let path = path.display();
                write!(
                    f,
                    "nothing listens at {path} ({error}); start a node or fabric with --socket \
                     {path}"
                )
            }
            Self::Full(path) => write!(
                f,
                "the queue of connections at {} is full; see whether the process there is stopped",
                path.display()
            ),
            Self::Silent { path, process, is_stopped, silent } => {
                let (path, seconds) = (path.display(), silent.as_secs_f64());
                let name = process.map_or("the process".into(), |it| format!("process {it}"));
                write!(f, "{name} at {path} has not answered for {seconds:.1} s: ")?;
                match (is_stopped, process) {
                    (true, Some(id)) => {
                        write!(f, "it is stopped; resume it with `kill -CONT {id}`")
                    }
                    (_, Some(id)) => {
                        write!(f, "it hangs or is overloaded; see `top -p {id}`, or restart it")
                    }
                    _ => f.write_str("it hangs or is stopped; restart it"),
                }
            }
            Self::Cut(path, bytes) => write!(
                f,
                "the answer at {} ended early, after {bytes} bytes; the process there may have \
                 ended: try again",
                path.display()
            ),
            Self::Foreign(path, error) => write!(
                f,
                "the process at {} is not a node or fabric of this version: {error}",
                path.display()
            ),
            Self::Later(why) | Self::Refused(why) => f.write_str(why),
            Self::System(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for AskError {}

impl Client {
    /// One that waits so long for what may pass.
    pub fn new(path: &Path, wait: Duration) -> Self {
        Self { path: path.into(), wait }
    }

    /// The answer to a question.
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    pub fn ask(&self, question: &str, pause: Pause<'_>) -> Result<Value, AskError> {
        let (begun, mut next) = (Instant::now(), PAUSE_MIN);
        loop {
            let error = match self.ask_once(question) {
                Err(error) if error.may_pass() => error,
                answered => return answered,
            };
            let left = self.wait.saturating_sub(begun.elapsed());
            if left.is_zero() || !pause(&error, next.min(left)) {
                return Err(error);
            }
            next = (next * 2).min(PAUSE_MAX);
        }
    }

    /// The same, without another attempt.
    pub fn ask_once(&self, question: &str) -> Result<Value, AskError> {
        let answer = self.exchange(question)?;
        let foreign = |error| AskError::Foreign(self.path.clone(), error);
        let mut answer: Value = serde_json::from_str(&answer).map_err(foreign)?;
        let words = |key: &str| answer.get(key).and_then(Value::as_str).map(String::from);
        match (words("error"), words("later")) {
            (Some(error), _) => Err(AskError::Refused(error)),
            (None, Some(why)) => Err(AskError::Later(why)),
            (None, None) => Ok(answer["ok"].take()),
        }
    }

    /// A line there, and a line back.
    fn exchange(&self, question: &str) -> Result<String, AskError> {
        let mut stream = self.connect()?;
        let mut answer = Vec::new();
        // A process that closes the socket at once has perhaps said why.
        let _ = stream.write_all(format!("{question}\n").as_bytes());
        while !answer.ends_with(b"\n") {
            self.wait_for(&stream)?;
            let mut bytes = [0; 4096];
            match stream.read(&mut bytes) {
                Ok(0) => return Err(AskError::Cut(self.path.clone(), answer.len())),
                Ok(len) => answer.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(AskError::Cut(self.path.clone(), answer.len())),
            }
        }
        Ok(String::from_utf8_lossy(&answer).into())
    }

    /// A connection, without waiting for who is slow to accept it.
    fn connect(&self) -> Result<UnixStream, AskError> {
        let connected = || {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
            Ok(socket.into())
        };
        let path = || self.path.clone();
        connected().map_err(|errno: Errno| match errno {
            Errno::NOENT | Errno::CONNREFUSED => AskError::Absent(path(), errno.into()),
            Errno::AGAIN => AskError::Full(path()),
            _ => AskError::System(path(), errno.into()),
        })
    }

    /// Waits until there is something to read; fails if that takes too long, or never can be.
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    fn wait_for(&self, stream: &UnixStream) -> Result<(), AskError> {
        let begun = Instant::now();
        let look = Timespec::try_from(LOOK_EVERY).ok();
        loop {
            match poll(&mut [PollFd::new(stream, PollFlags::IN)], look.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                _ => return Ok(()),
            }
            let silent = begun.elapsed();
            let process = socket_peercred(stream).ok().map(|it| it.pid.as_raw_nonzero().get());
            let is_stopped = silent >= LOOK_EVERY && process.is_some_and(is_stopped);
            if is_stopped || silent >= SILENCE_MAX {
                let path = self.path.clone();
                return Err(AskError::Silent { path, process, is_stopped, silent });
            }
        }
    }
}

/// Whether a process is stopped, by a signal or a debugger: its state is behind its name, which is
/// in brackets and may have any in it (proc_pid_stat(5)).
fn is_stopped(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// Asks a running fabric or node once; gives its answer as JSON.
pub fn ask(path: &Path, question: &str) -> Result<Value, AskError> {
    Client::new(path, Duration::ZERO).ask_once(question)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// What a client gets of a server that gives these answers, one to each connection.
    fn asked(test: &str, answers: &[&str]) -> (Result<Value, AskError>, usize) {
        let path = std::env::temp_dir().join(format!("client-{}-{test}", std::process::id()));
        let listener = UnixListener::bind(&path).expect("it is ours");
        let client = Client::new(&path, Duration::from_secs(3600));
        let mut pauses = 0;
        let answer = std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                for answer in answers {
                    let (mut stream, _) = listener.accept().expect("a client comes");
                    let mut bytes = [0; 64];
                    let len = stream.read(&mut bytes).expect("it asks");
                    assert_eq!(&bytes[..len], b"show ports\n");
                    stream.write_all(answer.as_bytes()).expect("it has room");
                }
            });
            let answer = client.ask("show ports", &mut |_, _| {
                pauses += 1;
                true
            });
            server.join().expect("it answers");
            answer
        });
        let _ = std::fs::remove_file(path);
        (answer, pauses)
    }

    #[test]
    fn an_answer_that_ends_early_is_an_error_that_says_so() {
        for (test, answer, bytes) in [("none", "", 0), ("half", "{\"ok\":[1,", 9)] {
            let (answer, pauses) = asked(test, &[answer]);
            let said = answer.unwrap_err().to_string();
            assert!(said.contains(&format!("ended early, after {bytes} bytes")), "{said}");
            assert_eq!(pauses, 0, "what was asked may have been done");
        }
        let (answer, _) = asked("foreign", &["hello\n"]);
        let said = answer.unwrap_err().to_string();
        assert!(said.contains("is not a node or fabric of this version"), "{said}");
    }

    #[test]
    fn who_is_told_to_come_again_comes_again() {
        let busy = "{\"later\":\"busy\"}\n";
        let (answer, pauses) = asked("again", &[busy, busy, "{\"ok\":7}\n"]);
        assert_eq!((answer.expect("the third"), pauses), (Value::from(7), 2));
        let (answer, pauses) = asked("no", &[busy, "{\"error\":\"never\"}\n"]);
        assert_eq!((answer.unwrap_err().to_string(), pauses), ("never".into(), 1));
    }

    #[test]
    fn a_socket_that_nobody_has_made_yet_is_waited_for() {
        let path = std::env::temp_dir().join(format!("client-{}-later", std::process::id()));
        let client = Client::new(&path, Duration::from_secs(3600));
        let mut listener = None;
        let answer = std::thread::scope(|scope| {
            client.ask("show ports", &mut |error, _| {
                assert!(matches!(error, AskError::Absent(..)), "{error}");
                let bound = UnixListener::bind(&path).expect("it is ours");
                let own = bound.try_clone().expect("it is ours");
                scope.spawn(move || {
                    let (mut stream, _) = own.accept().expect("a client comes");
                    stream.write_all(b"{\"ok\":1}\n").expect("it has room");
                });
                listener.replace(bound).is_none()
            })
        });
        assert_eq!(answer.expect("the second attempt"), Value::from(1));
        let _ = std::fs::remove_file(&path);
        let gone = Client::new(&path, Duration::ZERO).ask("x", &mut |_, _| panic!("no time"));
        assert!(gone.unwrap_err().to_string().contains("start a node or fabric with --socket"));
    }

    #[test]
    fn a_process_is_stopped_or_not() {
        assert!(!is_stopped(std::process::id().cast_signed()));
        assert!(!is_stopped(i32::MAX), "there is none");
    }
}
