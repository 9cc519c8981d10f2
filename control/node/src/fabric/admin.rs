//! The socket at which a fabric is asked: a line of words comes, a line of JSON goes, and the
//! connection ends.
//!
//! ```text
//! show nodes | ports | links | groups      {"ok": [{...}, ...]}
//! fault add RULE | del NUMBER | list       {"ok": ...}
//! anything else                            {"error": "..."}
//! ```

use pollux_fabric::Time;
use pollux_fabric::wire_io::listen;
use rustix::event::{PollFd, PollFlags};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Who asks at a time.
const ASKING_MAX: usize = 16;
/// Octets of a question.
const QUESTION_LEN_MAX: usize = 4096;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The socket, and who asks.
pub struct Admin {
    path: PathBuf,
    listener: UnixListener,
    asking: Vec<Asking>,
}

struct Asking {
    stream: UnixStream,
    until: Time,
    question: Vec<u8>,
    /// Empty until the question is complete.
    answer: Vec<u8>,
}

impl Admin {
    /// Listens for this user's programs.
    pub fn listen(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.into(), listener: listen(path)?, asking: Vec::new() })
    }

    /// What to wait for.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let has_room = self.asking.len() < ASKING_MAX;
        let listener = has_room.then(|| PollFd::new(&self.listener, PollFlags::IN));
        let asking = self.asking.iter().map(|one| {
            let is_asked = one.answer.is_empty();
            PollFd::new(&one.stream, if is_asked { PollFlags::IN } else { PollFlags::OUT })
        });
        listener.into_iter().chain(asking)
    }

    /// When somebody's time is over.
    pub fn due(&self) -> Option<Time> {
        self.asking.iter().map(|one| one.until).min()
    }

    /// Takes questions, and answers them.
    pub fn turn(&mut self, now: Time, answer: &mut dyn FnMut(&str) -> String) {
        while self.asking.len() < ASKING_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                let (question, until) = (Vec::new(), now + PATIENCE);
                self.asking.push(Asking { stream, until, question, answer: Vec::new() });
            }
        }
        self.asking.retain_mut(|one| now < one.until && one.goes_on(answer).unwrap_or(false));
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Asking {
    /// Reads, answers and writes as far as that goes; says whether there is more to do.
    fn goes_on(&mut self, answer: &mut dyn FnMut(&str) -> String) -> io::Result<bool> {
        if self.answer.is_empty() && !self.read()? {
            return Ok(true);
        }
        if self.answer.is_empty() {
            let question = String::from_utf8_lossy(&self.question);
            self.answer = (answer(question.trim()) + "\n").into_bytes();
        }
        while !self.answer.is_empty() {
            match self.stream.write(&self.answer) {
                Ok(len) => drop(self.answer.drain(..len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Says whether the question is complete: at the end of a line, or as long as any may be.
    fn read(&mut self) -> io::Result<bool> {
        let mut octets = [0; 512];
        while self.question.len() < QUESTION_LEN_MAX && !self.question.contains(&b'\n') {
            match self.stream.read(&mut octets) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.question.extend_from_slice(&octets[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Asks a running fabric; gives its answer as JSON.
pub fn ask(path: &Path, question: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(question.as_bytes())?;
    stream.write_all(b"\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
