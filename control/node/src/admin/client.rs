//! The client of the admin socket of a running fabric or node: typed requests and replies.
//!
//! The client retries, for as long as the caller wants, if there is no socket (the server may be
//! starting), if its backlog is full, or if the server replies "later". All other errors are final.
//!
//! Why [`AskError::Silent`] is not [`AskError::Absent`]: the advice differs. The kernel accepts
//! connections for a process that hangs or is stopped. The client names that process, and reads its
//! state.

use super::reply::AdminReply;
use super::request::AdminRequest;
use super::rows::TableRow;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Default timeout for a response, longer than the timeout of the server.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Interval of reads of the state of the process.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

pub struct Client {
    path: PathBuf,
    wait: Duration,
    silence_max: Duration,
}

/// Pauses after the error, for the given time. Returns whether to try again.
pub type Pause<'a> = &'a mut dyn FnMut(&AskError, Duration) -> bool;

/// Why there is no response: one sentence, with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    #[error(
        "no node or fabric at {path} ({1}); start one with `pollux run FILE --socket {path}` or \
         `pollux fabric --socket {path}`",
        path = .0.display()
    )]
    Absent(PathBuf, io::Error),
    /// The backlog of the socket is full.
    #[error(
        "the queue of connections at {} is full; see whether the process there is stopped",
        .0.display()
    )]
    Full(PathBuf),
    #[error(
        "the node or fabric at {}{} accepts requests, but has not answered within {:.1} s: {}",
        path.display(),
        process.map(|id| format!(" (process {id})")).unwrap_or_default(),
        silent.as_secs_f64(),
        silence_advice(*process, *is_stopped)
    )]
    Silent {
        path: PathBuf,
        /// The process of the server, if the kernel reports it (`SO_PEERCRED`).
        process: Option<i32>,
        /// A signal or a debugger has stopped it.
        is_stopped: bool,
        silent: Duration,
    },
    /// The response ended early, after this many bytes.
    #[error(
        "the answer at {path} ended early, after {1} bytes; the process there may have ended: try \
         again",
        path = .0.display()
    )]
    Cut(PathBuf, usize),
    #[error(
        "the process at {path} is not a node or fabric of this version: {1}",
        path = .0.display()
    )]
    Foreign(PathBuf, serde_json::Error),
    /// The request may succeed soon. The text is the reason that the server gave.
    #[error("{0}")]
    Later(String),
    #[error("{0}")]
    Refused(String),
    /// Connecting failed for another reason.
    #[error("{path}: {1}", path = .0.display())]
    System(PathBuf, io::Error),
}

impl AskError {
    const fn may_pass(&self) -> bool {
        matches!(self, Self::Absent(..) | Self::Full(_) | Self::Later(_))
    }
}

fn silence_advice(process: Option<i32>, is_stopped: bool) -> String {
    match process {
        Some(id) if is_stopped => format!("it is stopped; resume it with `kill -CONT {id}`"),
        Some(id) => format!("it hangs or is overloaded; see `top -p {id}`, or restart it"),
        None => "it hangs or is stopped; restart it".into(),
    }
}

impl Client {
    /// A client that retries for this long.
    pub fn new(path: &Path, wait: Duration) -> Self {
        Self { path: path.into(), wait, silence_max: SILENCE_MAX }
    }

    /// Replaces the default timeout of 10 s for a response.
    pub fn silence_max(self, silence_max: Duration) -> Self {
        Self { silence_max, ..self }
    }

    /// Returns all rows of a table.
    pub fn show<R: TableRow>(&self, pause: Pause<'_>) -> Result<Vec<R>, AskError> {
        self.ask(&AdminRequest::Show(R::TABLE), pause)
    }

    /// Sends a request, and returns the value of the [`AdminAnswer`](super::reply::AdminAnswer)
    /// variant for that request.
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    pub fn ask<T: DeserializeOwned>(
        &self,
        request: &AdminRequest,
        pause: Pause<'_>,
    ) -> Result<T, AskError> {
        let (begun, mut next) = (Instant::now(), PAUSE_MIN);
        loop {
            let error = match self.ask_once(request) {
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

    fn ask_once<T: DeserializeOwned>(&self, request: &AdminRequest) -> Result<T, AskError> {
        let answer = self.exchange(request)?;
        let foreign = |error| AskError::Foreign(self.path.clone(), error);
        match serde_json::from_slice(&answer).map_err(foreign)? {
            AdminReply::Ok(answer) => Ok(answer),
            AdminReply::Error(error) => Err(AskError::Refused(error)),
            AdminReply::Later(why) => Err(AskError::Later(why)),
        }
    }

    fn exchange(&self, request: &AdminRequest) -> Result<Vec<u8>, AskError> {
        let mut stream = self.connect()?;
        let mut answer = Vec::new();
        // If the server has closed the connection, its reason may still be readable.
        let line = serde_json::to_string(request).expect("a request has no keys but strings");
        let _ = stream.write_all((line + "\n").as_bytes());
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
        Ok(answer)
    }

    /// Connects. A full backlog is an error at once.
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

    /// Waits until there is something to read. Fails after a timeout, or if the process is stopped.
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    fn wait_for(&self, stream: &UnixStream) -> Result<(), AskError> {
        let begun = Instant::now();
        let look = Timespec::try_from(LOOK_EVERY.min(self.silence_max)).ok();
        loop {
            match poll(&mut [PollFd::new(stream, PollFlags::IN)], look.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                _ => return Ok(()),
            }
            let silent = begun.elapsed();
            let process = socket_peercred(stream).ok().map(|it| it.pid.as_raw_nonzero().get());
            let is_stopped = silent >= LOOK_EVERY && process.is_some_and(is_stopped);
            if is_stopped || silent >= self.silence_max {
                let path = self.path.clone();
                return Err(AskError::Silent { path, process, is_stopped, silent });
            }
        }
    }
}

/// Whether a signal or a debugger has stopped a process. The state follows the name, which is in
/// parentheses and may contain parentheses (proc_pid_stat(5)).
fn is_stopped(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// Sends a request to a running fabric or node in one attempt, and returns the response as JSON.
pub fn ask(path: &Path, request: &AdminRequest) -> Result<Value, AskError> {
    Client::new(path, Duration::ZERO).ask_once(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::rows::FaultStatus;
    use std::os::unix::net::UnixListener;

    const LIST: &AdminRequest = &AdminRequest::ListFaults;

    /// The result of a client whose server gives these answers, one per connection, and its
    /// retries.
    fn asked(test: &str, answers: &[&str]) -> (Result<Vec<FaultStatus>, AskError>, usize) {
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
                    assert_eq!(&bytes[..len], b"\"list_faults\"\n");
                    stream.write_all(answer.as_bytes()).expect("it has space");
                }
            });
            let answer = client.ask(LIST, &mut |_, _| {
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
    fn a_truncated_response_is_an_error() {
        for (test, answer, bytes) in [("none", "", 0), ("half", "{\"ok\":[1,", 9)] {
            let (answer, pauses) = asked(test, &[answer]);
            let message = answer.unwrap_err().to_string();
            assert!(message.contains(&format!("ended early, after {bytes} bytes")), "{message}");
            assert_eq!(pauses, 0, "what was asked may have been done");
        }
        let (answer, _) = asked("foreign", &["hello\n"]);
        let message = answer.unwrap_err().to_string();
        assert!(message.contains("is not a node or fabric of this version"), "{message}");
    }

    #[test]
    fn a_busy_server_is_asked_again() {
        let busy = "{\"later\":\"busy\"}\n";
        let (answer, pauses) = asked("again", &[busy, busy, "{\"ok\":[]}\n"]);
        assert_eq!((answer.expect("the third"), pauses), (Vec::new(), 2));
        let (answer, pauses) = asked("no", &[busy, "{\"error\":\"never\"}\n"]);
        assert_eq!((answer.unwrap_err().to_string(), pauses), ("never".into(), 1));
    }

    #[test]
    fn an_absent_socket_is_tried_again() {
        let path = std::env::temp_dir().join(format!("client-{}-later", std::process::id()));
        let client = Client::new(&path, Duration::from_secs(3600));
        let mut listener = None;
        let answer = std::thread::scope(|scope| {
            client.ask::<u32>(&AdminRequest::AddFault("loss=1%".into()), &mut |error, _| {
                assert!(matches!(error, AskError::Absent(..)), "{error}");
                let bound = UnixListener::bind(&path).expect("it is ours");
                let own = bound.try_clone().expect("it is ours");
                scope.spawn(move || {
                    let (mut stream, _) = own.accept().expect("a client comes");
                    stream.write_all(b"{\"ok\":1}\n").expect("it has space");
                });
                listener.replace(bound).is_none()
            })
        });
        assert_eq!(answer.expect("the second attempt"), 1);
        let _ = std::fs::remove_file(&path);
        let gone = Client::new(&path, Duration::ZERO)
            .ask::<Vec<FaultStatus>>(LIST, &mut |_, _| panic!("no time"));
        assert!(gone.unwrap_err().to_string().contains("start one with `pollux run FILE --socket"));
    }

    #[test]
    fn a_silent_server_is_another_error_than_an_absent_one() {
        let path = std::env::temp_dir().join(format!("client-{}-hangs", std::process::id()));
        let silence_max = Duration::from_millis(20);
        let ask = || {
            let client = Client::new(&path, Duration::ZERO).silence_max(silence_max);
            client.ask::<Vec<FaultStatus>>(LIST, &mut |_, _| false)
        };
        let message = ask().unwrap_err().to_string();
        assert!(
            message.starts_with(&format!("no node or fabric at {}", path.display())),
            "{message}"
        );
        // The kernel accepts connections for the listener.
        let listener = UnixListener::bind(&path).expect("it is ours");
        let message = ask().unwrap_err().to_string();
        let (path_name, id) = (path.display(), std::process::id());
        let silent = format!(
            "the node or fabric at {path_name} (process {id}) accepts requests, but has not \
             answered within 0.0 s: it hangs or is overloaded; see `top -p {id}`"
        );
        assert!(message.starts_with(&silent), "{message}");
        // The file of the socket remains.
        drop(listener);
        let message = ask().unwrap_err().to_string();
        assert!(message.starts_with(&format!("no node or fabric at {path_name}")), "{message}");
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn a_process_is_stopped_or_not() {
        assert!(!is_stopped(std::process::id().cast_signed()));
        assert!(!is_stopped(i32::MAX), "there is none");
    }
}
