//! Children of fork(2), which have a copy of the memory but not the adapter's thread.
//!
//! The functions that libc calls around a fork leave the adapter to the parent (`process`).
//! posix_spawn(3) and vfork(2) call none of them, and need none: their children execute a program,
//! which finds no descriptor of this library.

use crate::process::{after_fork_in_child, after_fork_in_parent, before_fork};
use std::sync::Once;

/// Has libc call the functions of `process` around each fork from now on.
pub(crate) fn watch_forks() {
    extern "C" fn prepare() {
        before_fork();
    }
    extern "C" fn parent() {
        after_fork_in_parent();
    }
    extern "C" fn child() {
        after_fork_in_child();
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the functions stay, since a preloaded library is not unloaded. They may be called
        // at any fork, by any thread; in the child they use what its other threads cannot hold.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}
