//! Signals of the program, which are not for the adapter's thread.
//!
//! A signal to the process interrupts any thread that does not block it. A program that blocks one
//! in all of its threads, to wait for it by sigwait(3), would be ended by this library's thread;
//! and a handler that calls the device would wait there for the lock that the thread itself holds.

use std::mem::MaybeUninit;

/// Signals of the thread's own faults, which end the program or are for its crash handler.
const FAULTS: [libc::c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT];

/// Calls a function with all signals blocked but [`FAULTS`]: threads that it starts keep it so.
pub(crate) fn without_signals<T>(call: impl FnOnce() -> T) -> T {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the set is initialized by `sigfillset`; the kernel reads it and writes the other.
    unsafe {
        let mut blocked = MaybeUninit::uninit();
        libc::sigfillset(blocked.as_mut_ptr());
        FAULTS.iter().for_each(|fault| _ = libc::sigdelset(blocked.as_mut_ptr(), *fault));
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
    }
    let result = call();
    // SAFETY: the call above has written it; it fails for an unknown first argument only.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the calling thread blocks a signal.
    fn blocks(signal: libc::c_int) -> bool {
        let mut mask = MaybeUninit::uninit();
        // SAFETY: without a new set, the call only writes the present one.
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
