//! What the two ends tell each other beside what is measured: lines of JSON by a stream.
//!
//! The end that asks also says by it that all is over: it hangs up. Who answers looks for that when
//! nothing has come for a while, so a look costs nothing that is measured.

use crate::error::PerfError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long the other end may take to come up.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One end of the stream.
pub struct Exchange {
    stream: BufReader<UnixStream>,
}

impl Exchange {
    /// This end of it.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Tells the other end something.
    pub fn tell(&mut self, what: &impl Serialize) -> Result<(), PerfError> {
        let line = serde_json::to_string(what).map_err(io::Error::from)?;
        Ok(writeln!(self.stream.get_mut(), "{line}")?)
    }

    /// What the other end tells.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T, PerfError> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err(PerfError::OtherEnd("it has ended".into())),
            Ok(_) => serde_json::from_str(&line)
                .map_err(|error| PerfError::OtherEnd(format!("it says {line:?}: {error}"))),
            Err(_) => Err(PerfError::OtherEnd(format!("it is silent for {TIMEOUT:?}"))),
        }
    }

    /// Tells and hears the same.
    pub fn swap<T: Serialize + DeserializeOwned>(&mut self, mine: &T) -> Result<T, PerfError> {
        self.tell(mine)?;
        self.hear()
    }

    /// Waits until both are here.
    pub fn meet(&mut self) -> Result<(), PerfError> {
        self.swap(&()).map(drop)
    }

    /// Whether the other end has said anything more, or has hung up.
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
    fn ends_swap_lines_and_notice_the_end() {
        let (one, other) = UnixStream::pair().expect("there are sockets");
        let mut one = Exchange::new(one).expect("a stream");
        let mut other = Exchange::new(other).expect("a stream");
        one.tell(&7u32).expect("it is told");
        assert_eq!(other.swap(&8u32).expect("it is heard"), 7);
        assert_eq!(one.hear::<u32>().expect("it is heard"), 8);
        assert!(!one.is_over() && !other.is_over());
        one.tell(&"no number").expect("it is told");
        assert!(other.is_over(), "there is something to hear");
        assert!(other.hear::<u32>().is_err());
        drop(other);
        assert!(one.is_over());
        assert!(one.hear::<u32>().is_err());
    }
}
