//! Keeps signals of the program away from this library's threads.
//!
//! The kernel delivers a signal for the process to any thread that does not block it. If a program
//! blocks a signal in all of its threads to wait for it with sigwait(3), a thread of this library
//! that does not block it would receive it, and the default action would end the program. If a
//! signal handler calls the device in such a thread, it would wait for a lock that the same thread
//! holds.

use std::mem::MaybeUninit;

/// Signals for faults of the thread itself, which must end the program or reach its crash handler.
const FAULTS: [libc::c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT];

/// Calls a function with all signals blocked except [`FAULTS`]. Threads that it starts inherit
/// this.
pub(crate) fn without_signals<T>(call: impl FnOnce() -> T) -> T {
    let mut before = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initializes `blocked`, which the kernel only reads. It writes the old
    // mask to `before`.
    unsafe {
        let mut blocked = MaybeUninit::uninit();
        libc::sigfillset(blocked.as_mut_ptr());
        FAULTS.iter().for_each(|fault| _ = libc::sigdelset(blocked.as_mut_ptr(), *fault));
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
    }
    let result = call();
    // SAFETY: the first call has written `before`: it can fail only for an invalid first argument.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the calling thread blocks a signal.
    fn blocks(signal: libc::c_int) -> bool {
        let mut mask = MaybeUninit::uninit();
        // SAFETY: without a new mask, the call only writes the current mask to `mask`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr());
            libc::sigismember(mask.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn a_thread_has_no_signals_of_the_program_but_its_own_faults() {
        let of_thread = || [libc::SIGUSR1, libc::SIGALRM, libc::SIGSEGV].map(blocks);
        let thread = without_signals(|| std::thread::spawn(of_thread));
        assert_eq!(thread.join().unwrap(), [true, true, false]);
        assert_eq!(of_thread(), [false; 3]);
    }
}
