//! System calls that rustix does not have, and why one failed.

use crate::region::MapError;
use rustix::io::Errno;
use std::ffi::c_int;
use std::fmt;

/// A system call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError {
    /// Its name, with the option or command of it.
    pub call: &'static str,
    /// Why it failed.
    pub errno: Errno,
}

impl CallError {
    pub(crate) fn of(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self { call, errno }
    }

    /// There is no memory for packets.
    pub(crate) fn no_memory(error: MapError) -> Self {
        let (call, errno) = match error {
            MapError::System { call, errno } => (call, errno),
            _ => ("mmap", Errno::NOMEM),
        };
        Self { call, errno }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.errno)
    }
}

impl std::error::Error for CallError {}

/// The result of a call of the C library.
pub(crate) fn check(result: c_int) -> Result<c_int, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
