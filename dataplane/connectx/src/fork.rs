//! Children of fork(2), which have a copy of the memory but not the adapter's thread.
//!
//! The functions that libc calls around a fork leave the adapter and the agents to the parent
//! (`process`, `umad`, `rdma_cm`).
//! posix_spawn(3) and vfork(2) call none of them, and need none: their children execute a program,
//! which finds no descriptor of this library.

use crate::{process, rdma_cm, umad};
use std::sync::Once;

/// Has libc call their functions around each fork from now on.
pub(crate) fn watch_forks() {
    extern "C" fn prepare() {
        process::hold();
        umad::before_fork();
        rdma_cm::before_fork();
    }
    extern "C" fn parent() {
        rdma_cm::after_fork_in_parent();
        umad::after_fork_in_parent();
        process::release();
    }
    extern "C" fn child() {
        rdma_cm::after_fork_in_child();
        umad::after_fork_in_child();
        process::after_fork_in_child();
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the functions stay, since a preloaded library is not unloaded. They may be called
        // at any fork, by any thread; in the child they use what its other threads cannot hold.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}
