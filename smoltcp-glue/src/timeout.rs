//! The timeout and the non-blocking mode of a socket's calls. As in `std::net`, setting one does
//! not change the other.

use pollux_verbs::time::Time;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long one call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallTimeout {
    /// Non-blocking: the call returns `WouldBlock` instead of waiting.
    Immediate,
    /// The call returns `TimedOut` after this time.
    After(Duration),
    /// The call waits indefinitely.
    Never,
}

/// The settings of one direction of a socket, in one word, so that a call reads both with one load.
pub(crate) struct SocketTimeout(AtomicU64);

/// Set if the socket is non-blocking. The other bits are the timeout in nanoseconds.
const NONBLOCKING: u64 = 1 << 63;
const NEVER: u64 = NONBLOCKING - 1;

impl SocketTimeout {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    #[inline]
    pub(crate) fn get(&self) -> CallTimeout {
        match self.0.load(Ordering::Relaxed) {
            NEVER => CallTimeout::Never,
            word if word & NONBLOCKING != 0 => CallTimeout::Immediate,
            nanoseconds => CallTimeout::After(Duration::from_nanos(nanoseconds)),
        }
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        let nanoseconds = self.0.load(Ordering::Relaxed) & NEVER;
        (nanoseconds != NEVER).then(|| Duration::from_nanos(nanoseconds))
    }

    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            let why = "a timeout has to be longer than 0; set_nonblocking(true) does not wait";
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        let nanoseconds = timeout.map(|time| time.as_nanos().min(u128::from(NEVER - 1)) as u64);
        let word = nanoseconds.unwrap_or(NEVER);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            Some(old & NONBLOCKING | word)
        });
        Ok(())
    }

    pub(crate) fn set_nonblocking(&self, is_nonblocking: bool) {
        match is_nonblocking {
            true => self.0.fetch_or(NONBLOCKING, Ordering::Relaxed),
            false => self.0.fetch_and(NEVER, Ordering::Relaxed),
        };
    }
}

impl CallTimeout {
    pub(crate) fn left(self, now: Time, begun: Time) -> Duration {
        match self {
            Self::Immediate => Duration::ZERO,
            Self::After(timeout) => timeout.saturating_sub(now.since(begun)),
            Self::Never => Duration::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_and_the_nonblocking_mode_do_not_change_each_other() {
        let (socket, second) = (SocketTimeout::new(), Duration::from_secs(1));
        for (timeout, waits) in [
            (None, CallTimeout::Never),
            (Some(second), CallTimeout::After(second)),
            (Some(Duration::MAX), CallTimeout::After(Duration::from_nanos(NEVER - 1))),
        ] {
            socket.set_timeout(timeout).expect("it is more than 0");
            assert_eq!(socket.get(), waits);
            socket.set_nonblocking(true);
            assert_eq!(socket.get(), CallTimeout::Immediate);
            assert_eq!(socket.timeout().is_some(), timeout.is_some());
            socket.set_timeout(timeout).expect("it is more than 0");
            assert_eq!(socket.get(), CallTimeout::Immediate);
            socket.set_nonblocking(false);
            assert_eq!(socket.get(), waits);
            let zero = socket.set_timeout(Some(Duration::ZERO)).expect_err("std refuses it, too");
            assert_eq!((zero.kind(), socket.get()), (ErrorKind::InvalidInput, waits));
        }
    }
}
