//! Stops the program at each store to a doorbell page or a record, and has it judged at its instant
//! (`store_trap`). For tests of what writes rings; the variable `POLLUX_TRAP` turns it on.
//!
//! ```text
//!   store --> page fault --> handler of SIGSEGV: the adapter is locked, the page opened,
//!                            the trap flag set
//!     again --> done --> handler of SIGTRAP: judged; the page closed, the adapter unlocked
//! ```
//!
//! Why the adapter is locked in between: it must not take the doorbell before it is judged. The
//! thread has no signals meanwhile, whose handlers might ring a doorbell themselves.
//!
//! Not seen is a store of another thread to a page that is open for the first one's. A program that
//! handles SIGSEGV or SIGTRAP itself cannot be judged so.

use rustix::io::Errno;

/// The environment variable that turns it on.
const VARIABLE: &str = "POLLUX_TRAP";

/// Begins, if the variable says so.
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

    /// The processor traps after the next instruction.
    const TRAP_FLAG: i64 = 1 << 8;
    /// A bit of the error code of a page fault: it was a store.
    const IS_STORE: i64 = 1 << 1;
    /// The signals of the kernel's mask but those of the step itself.
    const OTHERS: u64 = !(1 << (SIGSEGV - 1) | 1 << (SIGTRAP - 1));

    type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

    /// The actions that were there before, of SIGSEGV and SIGTRAP.
    static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();

    fn handle_signals() -> Result<(), Errno> {
        let handlers: [(c_int, Handler); 2] = [(SIGSEGV, faulted), (SIGTRAP, stepped)];
        let mut before = [MaybeUninit::<libc::sigaction>::zeroed(); 2];
        for ((signal, handler), before) in handlers.into_iter().zip(&mut before) {
            // SAFETY: zeros are an action without flags; the handlers are of the form that
            // SA_SIGINFO asks for.
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
        // SAFETY: zeros are actions, and both were written since.
        let _ = BEFORE.set(before.map(|action| unsafe { action.assume_init() }));
        // SAFETY: the function only prints.
        unsafe { libc::atexit(print_counts) };
        Ok(())
    }

    extern "C" fn print_counts() {
        eprintln!("pollux-connectx: trap: {}", store_trap::counts());
    }

    /// Leaves a signal to the action that was there before.
    fn pass_on(signal: c_int) {
        let Some(before) = BEFORE.get() else { return };
        let action = &before[usize::from(signal == SIGTRAP)];
        // SAFETY: the action was the process's own. The instruction that faulted does so again.
        unsafe {
            libc::sigaction(signal, action, std::ptr::null_mut());
            if signal == SIGTRAP {
                libc::raise(signal);
            }
        }
    }

    /// The kernel's mask of signals in a context; that of libc is longer than the kernel's.
    fn blocked(context: &mut ucontext_t) -> &mut u64 {
        // SAFETY: the mask begins with the kernel's 64 bits, and is aligned as those.
        unsafe { &mut *(&raw mut context.uc_sigmask).cast::<u64>() }
    }

    extern "C" fn faulted(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel gives a handler with SA_SIGINFO both of these.
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
            // It was opened for good meanwhile.
            context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
            *blocked(context) = before;
            process::release();
        }
    }

    extern "C" fn stepped(signal: c_int, _: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: as above.
        let context = unsafe { &mut *context.cast::<ucontext_t>() };
        let closed = process::with_held(store_trap::close).flatten();
        let Some(before) = closed else { return pass_on(signal) };
        context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
        *blocked(context) = before;
        process::release();
    }
}
