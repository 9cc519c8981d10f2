//! The socket at which a fabric or a node is asked: a line of words comes, a line of JSON goes, and
//! the connection ends.
//!
//! ```text
//! of a fabric
//!   show nodes | ports | links | groups                               {"ok": [{...}, ...]}
//!   fault add RULE | del NUMBER | list                                {"ok": ...}
//! of a node
//!   show interfaces | neighbors | connections | groups | drops        {"ok": [{...}, ...]}
//!   show workers                                                      {"ok": [{...}, ...]}
//!   idle poll | pause | adaptive [WORKER]                             {"ok": null}
//!   ping ADDRESS OCTETS [INTERFACE]                                   {"ok": {...}}
//! anything else                                                       {"error": "..."}
//! ```
//!
//! Whoever answers may take time for it: a question is put again, under its number, until there is
//! an answer.

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
    asked: u64,
}

struct Asking {
    number: u64,
    stream: UnixStream,
    until: Time,
    question: Vec<u8>,
    /// Empty until there is one.
    answer: Vec<u8>,
}

/// Gives an answer to the question of this number, if it is time.
pub type Answer<'a> = &'a mut dyn FnMut(u64, &str) -> Option<String>;

impl Admin {
    /// Listens for this user's programs.
    pub fn listen(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.into(), listener: listen(path)?, asking: Vec::new(), asked: 0 })
    }

    /// What to wait for.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let has_room = self.asking.len() < ASKING_MAX;
        let listener = has_room.then(|| PollFd::new(&self.listener, PollFlags::IN));
        // Of one who waits for an answer nothing is to be known, not even that it has gone: to be
        // told so again and again would be no sleep.
        let asking = self.asking.iter().filter_map(|one| match one.answer.is_empty() {
            false => Some(PollFd::new(&one.stream, PollFlags::OUT)),
            true if one.is_whole() => None,
            true => Some(PollFd::new(&one.stream, PollFlags::IN)),
        });
        listener.into_iter().chain(asking)
    }

    /// When somebody's time is over.
    pub fn due(&self) -> Option<Time> {
        self.asking.iter().map(|one| one.until).min()
    }

    /// Takes questions, and answers them.
    pub fn turn(&mut self, now: Time, answer: Answer<'_>) {
        while self.asking.len() < ASKING_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                self.asked += 1;
                let (number, question, until) = (self.asked, Vec::new(), now + PATIENCE);
                let asking = Asking { number, stream, until, question, answer: Vec::new() };
                self.asking.push(asking);
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
    fn goes_on(&mut self, answer: Answer<'_>) -> io::Result<bool> {
        if self.answer.is_empty() && !self.read()? {
            return Ok(true);
        }
        if self.answer.is_empty() {
            let question = String::from_utf8_lossy(&self.question);
            let Some(answer) = answer(self.number, question.trim()) else { return Ok(true) };
            self.answer = (answer + "\n").into_bytes();
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

    /// Whether the question is complete: at the end of a line, or as long as any may be.
    fn is_whole(&self) -> bool {
        self.question.len() >= QUESTION_LEN_MAX || self.question.contains(&b'\n')
    }

    /// Says whether the question is complete.
    fn read(&mut self) -> io::Result<bool> {
        let mut octets = [0; 512];
        while !self.is_whole() {
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

/// Asks a running fabric or node; gives its answer as JSON.
pub fn ask(path: &Path, question: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(question.as_bytes())?;
    stream.write_all(b"\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
