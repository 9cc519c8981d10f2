//! Errors of system calls, and helpers for calls that rustix does not have.

use crate::region::MapError;
use rustix::io::Errno;
use std::ffi::c_int;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {errno}")]
pub struct CallError {
    /// The name of the call, with its option or command.
    pub call: &'static str,
    pub errno: Errno,
}

impl CallError {
    pub(crate) fn of(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self { call, errno }
    }

    /// The error of mapping memory.
    pub(crate) fn no_memory(error: MapError) -> Self {
        let (call, errno) = match error {
            MapError::System { call, errno } => (call, errno),
            _ => ("mmap", Errno::NOMEM),
        };
        Self { call, errno }
    }
}

/// `IFNAMSIZ`: the terminating zero is included.
pub(crate) const NAME_BYTES: usize = 16;

/// The name of a device as in `struct ifreq`. `None` if it is too long or contains a zero byte.
pub(crate) fn interface_name(name: &str) -> Option<[u8; NAME_BYTES]> {
    let mut bytes = [0; NAME_BYTES];
    let is_valid = name.len() < NAME_BYTES && !name.bytes().any(|byte| byte == 0);
    bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    is_valid.then_some(bytes)
}

/// The result of a C library call, or the error in `errno`.
pub(crate) fn check(result: c_int) -> Result<c_int, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
