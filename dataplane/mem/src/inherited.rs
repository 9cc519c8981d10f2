//! Descriptors that a process was started with.
//!
//! Why this is in `pollux-mem`: making an owned descriptor out of a number is `unsafe`.
//!
//! Why it is sound for callers: only descriptors without close-on-exec are taken, and taking a
//! descriptor sets close-on-exec. Everything that this process opens itself has it from the start,
//! so a descriptor without it was inherited through exec and has no owner in this process, and none
//! is taken twice.

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The first descriptor number after standard error.
const FIRST: RawFd = 3;
pub const INHERITED_MAX: usize = 1024;

/// The `count` descriptors from number 3 on, in order; `None` for a descriptor that does not exist
/// or is not inherited. No program that this process starts inherits them.
pub fn inherited(count: usize) -> Vec<Option<OwnedFd>> {
    (FIRST..).take(count.min(INHERITED_MAX)).map(take).collect()
}

fn take(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the number is not -1, and the kernel refuses one that is not open. An inherited
    // descriptor has no owner that could close it; of any other, only the flags are read.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(fd).ok()?;
    if flags.contains(FdFlags::CLOEXEC) {
        return None;
    }
    fcntl_setfd(fd, flags | FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open, and has no other owner (see the top of this file).
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn descriptors_that_this_process_opened_are_not_inherited() {
        let file = std::fs::File::open("/dev/null").expect("it is there");
        assert!(file.as_raw_fd() >= FIRST);
        assert!(take(file.as_raw_fd()).is_none());
        assert!(take(RawFd::MAX).is_none());
        assert_eq!(inherited(0).len(), 0);
    }
}
