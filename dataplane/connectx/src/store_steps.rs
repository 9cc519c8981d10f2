//! Traps each store of the program to a doorbell page or doorbell record, so that it is checked
//! when it happens (`store_trap`). This is for tests of libraries that write to rings. The
//! environment variable `POLLUX_TRAP` turns it on.
//!
//! ```text
//!   store --> page fault --> SIGSEGV handler: locks the adapter, opens the page,
//!                            sets the trap flag
//!   store, repeated -------> SIGTRAP handler: checks the store, closes the page,
//!                            unlocks the adapter
//! ```
//!
//! Why the adapter is locked in between: it must not take the doorbell before the check. Signals of
//! the thread are blocked in between, because their handlers might ring a doorbell.
//!
//! Limits: a store of another thread to the page is not noticed while the page is open. A program
//! that handles SIGSEGV or SIGTRAP itself cannot be checked.

use rustix::io::Errno;

/// The environment variable that turns it on.
const VARIABLE: &str = "POLLUX_TRAP";

/// Turns trapping on if the variable is set, and neither empty nor 0.
#[expect(clippy::disallowed_methods, reason = "the library begins here: its variable")]
pub(crate) fn begin() -> Result<(), Errno> {
    let is_set = std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty() && value != "0");
    if is_set { turn_on() } else { Ok(()) }
}

#[cfg(not(target_arch = "x86_64"))]
fn turn_on() -> Result<(), Errno> {
    eprintln!("pollux-connectx: {VARIABLE} is for x86-64, which can step; unset it here");
    Err(Errno::OPNOTSUPP)
}

#[cfg(target_arch = "x86_64")]
use step::turn_on;

#[cfg(target_arch = "x86_64")]
mod step {
    use crate::{process, store_trap};
    use libc::{SIGSEGV, SIGTRAP, c_int, siginfo_t, ucontext_t};
    use rustix::io::Errno;
    use std::ffi::c_void;
    use std::mem::MaybeUninit;
    use std::sync::OnceLock;

    pub(super) fn turn_on() -> Result<(), Errno> {
        if !store_trap::is_on() {
            handle_signals()?;
            store_trap::turn_on();
        }
        Ok(())
    }

    /// The flag of the processor that makes it trap after the next instruction.
    const TRAP_FLAG: i64 = 1 << 8;
    /// The bit in the error code of a page fault that marks a store.
    const IS_STORE: i64 = 1 << 1;
    /// All signals except SIGSEGV and SIGTRAP, in the kernel's mask.
    const OTHERS: u64 = !(1 << (SIGSEGV - 1) | 1 << (SIGTRAP - 1));

    type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

    /// The previous actions of SIGSEGV and SIGTRAP.
    static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();

    fn handle_signals() -> Result<(), Errno> {
        let handlers: [(c_int, Handler); 2] = [(SIGSEGV, faulted), (SIGTRAP, stepped)];
        let mut before = [MaybeUninit::<libc::sigaction>::zeroed(); 2];
        for ((signal, handler), before) in handlers.into_iter().zip(&mut before) {
            // SAFETY: all zeros are a valid action. The handlers have the signature that SA_SIGINFO
            // requires.
            let failed = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler as libc::sighandler_t;
                action.sa_flags = libc::SA_SIGINFO;
                libc::sigfillset(&raw mut action.sa_mask);
                libc::sigaction(signal, &raw const action, before.as_mut_ptr())
            };
            if failed != 0 {
                return Err(Errno::INVAL);
            }
        }
        // SAFETY: the successful calls of `sigaction` have written both.
        let _ = BEFORE.set(before.map(|action| unsafe { action.assume_init() }));
        // SAFETY: the function takes no arguments, and it stays mapped: a preloaded library is not
        // unloaded.
        unsafe { libc::atexit(print_counts) };
        Ok(())
    }

    extern "C" fn print_counts() {
        eprintln!("pollux-connectx: trap: {}", store_trap::counts());
    }

    /// Restores the previous action of a signal, and makes the signal occur again: the faulting
    /// instruction is repeated, and SIGTRAP is raised.
    fn pass_on(signal: c_int) {
        let Some(before) = BEFORE.get() else { return };
        let action = &before[usize::from(signal == SIGTRAP)];
        // SAFETY: the action was valid in this process before.
        unsafe {
            libc::sigaction(signal, action, std::ptr::null_mut());
            if signal == SIGTRAP {
                libc::raise(signal);
            }
        }
    }

    /// The kernel's signal mask in a context, which is shorter than libc's type for it.
    fn blocked(context: &mut ucontext_t) -> &mut u64 {
        // SAFETY: libc's mask begins with the kernel's 64 bits, and has their alignment.
        unsafe { &mut *(&raw mut context.uc_sigmask).cast::<u64>() }
    }

    extern "C" fn faulted(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel passes valid pointers for both to a handler with SA_SIGINFO.
        let (address, context) =
            unsafe { ((*info).si_addr() as u64, &mut *context.cast::<ucontext_t>()) };
        if !store_trap::is_closed(address) {
            return pass_on(signal);
        }
        process::hold();
        let registers = &mut context.uc_mcontext.gregs;
        let is_store = registers[libc::REG_ERR as usize] & IS_STORE != 0;
        registers[libc::REG_EFL as usize] |= TRAP_FLAG;
        let before = std::mem::replace(blocked(context), OTHERS);
        if !store_trap::open(address, is_store, before) {
            // Another thread has removed the page from the trap in the meantime.
            context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
            *blocked(context) = before;
            process::release();
        }
    }

    extern "C" fn stepped(signal: c_int, _: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: as in `faulted`.
        let context = unsafe { &mut *context.cast::<ucontext_t>() };
        let closed = process::with_held(store_trap::close).flatten();
        let Some(before) = closed else { return pass_on(signal) };
        context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
        *blocked(context) = before;
        process::release();
    }
}
