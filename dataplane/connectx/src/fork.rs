//! Children of fork(2), which have a copy of the memory but no copy of the adapter's thread.
//!
//! libc calls functions of `process`, `umad` and `rdma_cm` around each fork, which leave the
//! adapter, the agents and the connections to the parent. posix_spawn(3) and vfork(2) do not call
//! them, and do not need them: their children execute another program, which inherits no descriptor
//! of this library.

use crate::{process, rdma_cm, umad};
use std::sync::Once;

/// Registers the functions that libc calls around each fork. Later calls have no effect.
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
        // SAFETY: the functions stay mapped, because a preloaded library is not unloaded. Any
        // thread may call them, at any fork. In the child they only use state whose locks `prepare`
        // took, so no thread that is missing in the child holds them.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
}
