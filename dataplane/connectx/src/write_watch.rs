//! Write protection of pages with userfaultfd(2): a store to a protected page waits, and makes a
//! descriptor readable.
//!
//! It has two uses: to sleep until a doorbell is rung, and to replace pages without losing stores
//! (`shared_pages`).
//!
//! Before the adapter's thread sleeps, it protects the doorbell pages. The program's next store to
//! them waits, and wakes the thread. The thread removes the protection, and the store continues.
//! The pages are protected only during a sleep, so a busy program has no cost.
//!
//! If the kernel does not allow the system call, as in some containers, the thread instead sleeps
//! for at most a millisecond at a time.

use rustix::ioctl::{self, Updater, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
pub(crate) struct WriteWatch {
    fd: OwnedFd,
}

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    start: u64,
    bytes: u64,
    mode: u64,
}

const GROUP: u8 = 0xaa;
const API: ioctl::Opcode = opcode::read_write::<Api>(GROUP, 0x3f);
const REGISTER: ioctl::Opcode = opcode::read_write::<Register>(GROUP, 0x00);
const WRITE_PROTECT: ioctl::Opcode = opcode::read_write::<WriteProtect>(GROUP, 0x06);
/// Handle only faults in user mode, which needs no privilege (Linux 5.11).
const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
const FEATURE_WRITE_PROTECT: u64 = 1;
const MODE_WRITE_PROTECT: u64 = 2;

impl WriteWatch {
    /// Returns `None` if the kernel does not allow it.
    pub(crate) fn new() -> Option<Self> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | USER_MODE_ONLY;
        // SAFETY: the descriptor changes no memory by itself. `register` and `set_protected` change
        // no content of pages: they only make threads wait that store to them. The kernel refuses
        // pages that are not mapped.
        let fd = unsafe { userfaultfd(flags) }.ok()?;
        let mut api = Api { api: GROUP.into(), features: FEATURE_WRITE_PROTECT, ioctls: 0 };
        // SAFETY: the kernel reads and writes the structure of this command.
        unsafe { ioctl::ioctl(&fd, Updater::<API, Api>::new(&mut api)) }.ok()?;
        Some(Self { fd })
    }

    /// Registers a range of pages. Only pages that are present can be protected. Returns `false` if
    /// the kernel refuses.
    pub(crate) fn register(&self, start: u64, bytes: u64) -> bool {
        let mut register = Register { start, bytes, mode: MODE_WRITE_PROTECT, ioctls: 0 };
        // SAFETY: as in `new`.
        let updater = unsafe { Updater::<REGISTER, Register>::new(&mut register) };
        // SAFETY: as in `new`.
        unsafe { ioctl::ioctl(&self.fd, updater) }.is_ok()
    }

    /// Protects registered pages from writing; or removes the protection, so that waiting writers
    /// continue. Returns `false` if the kernel refuses.
    pub(crate) fn set_protected(&self, start: u64, bytes: u64, is_protected: bool) -> bool {
        let mut protect = WriteProtect { start, bytes, mode: is_protected.into() };
        // SAFETY: as in `new`.
        let updater = unsafe { Updater::<WRITE_PROTECT, WriteProtect>::new(&mut protect) };
        // SAFETY: as in `new`.
        unsafe { ioctl::ioctl(&self.fd, updater) }.is_ok()
    }
}

impl AsFd for WriteWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_mem::{Segment, Words};
    use rustix::event::{PollFd, PollFlags, poll};
    use std::sync::atomic::Ordering;

    #[test]
    fn a_store_to_a_protected_page_is_reported_and_continues() {
        let Some(watch) = WriteWatch::new() else {
            return println!("this kernel has no userfaultfd for programs");
        };
        let words = Words::over(Segment::create("doorbells", 4096).unwrap().map().unwrap());
        let (start, bytes) = (words.as_slice().as_ptr() as u64, 4096);
        assert!(watch.register(start, bytes) && watch.set_protected(start, bytes, true));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| words.as_slice()[7].store(9, Ordering::Relaxed));
            let mut fds = [PollFd::new(&watch, PollFlags::IN)];
            assert_eq!(poll(&mut fds, None), Ok(1));
            assert_eq!(words.as_slice()[7].load(Ordering::Relaxed), 0);
            assert!(watch.set_protected(start, bytes, false));
            writer.join().unwrap();
        });
        assert_eq!(words.as_slice()[7].load(Ordering::Relaxed), 9);
    }
}
