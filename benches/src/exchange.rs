//! The control connection between the two ends of a measurement: lines of JSON on a stream socket,
//! of this machine or to another one.
//!
//! The client hangs up to end the measurement. The server checks for that only when nothing was
//! received for a while, so the check is not measured.

use crate::error::PerfError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest line. What comes from another machine may never end.
const LINE_BYTES_MAX: u64 = 1 << 20;

pub struct Exchange {
    /// Of either family: only calls that all stream sockets have.
    stream: BufReader<UnixStream>,
}

impl Exchange {
    pub fn new(stream: impl Into<OwnedFd>) -> io::Result<Self> {
        let stream = UnixStream::from(stream.into());
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub fn send(&mut self, what: &impl Serialize) -> Result<(), PerfError> {
        let line = serde_json::to_string(what).map_err(io::Error::from)?;
        writeln!(self.stream.get_mut(), "{line}").map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => PerfError::OtherEnd("it has exited".into()),
            _ => error.into(),
        })
    }

    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, PerfError> {
        let mut line = String::new();
        match self.stream.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) => Err(PerfError::OtherEnd("it has exited".into())),
            Ok(_) => serde_json::from_str(&line)
                .map_err(|error| PerfError::OtherEnd(format!("invalid message {line:?}: {error}"))),
            Err(_) => Err(PerfError::OtherEnd(format!("no message within {TIMEOUT:?}"))),
        }
    }

    /// Sends a message and receives a message of the same type.
    pub fn swap<T: Serialize + DeserializeOwned>(&mut self, mine: &T) -> Result<T, PerfError> {
        self.send(mine)?;
        self.receive()
    }

    /// Waits until the other end has called this, too.
    pub fn meet(&mut self) -> Result<(), PerfError> {
        self.swap(&()).map(drop)
    }

    /// Whether the other end has sent a message or hung up.
    pub fn is_over(&mut self) -> bool {
        let is_quiet = self.stream.get_ref().set_nonblocking(true).is_ok()
            && self.stream.fill_buf().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        let waits_again = self.stream.get_ref().set_nonblocking(false).is_ok();
        !(is_quiet && waits_again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_exchange_lines_and_detect_the_end() {
        let (one, other) = UnixStream::pair().expect("there are sockets");
        let mut one = Exchange::new(one).expect("a stream");
        let mut other = Exchange::new(other).expect("a stream");
        one.send(&7u32).expect("it is sent");
        assert_eq!(other.swap(&8u32).expect("it is received"), 7);
        assert_eq!(one.receive::<u32>().expect("it is received"), 8);
        assert!(!one.is_over() && !other.is_over());
        one.send(&"no number").expect("it is sent");
        assert!(other.is_over(), "there is a message");
        assert!(other.receive::<u32>().is_err());
        drop(other);
        assert!(one.is_over());
        assert!(one.receive::<u32>().is_err());
    }
}
