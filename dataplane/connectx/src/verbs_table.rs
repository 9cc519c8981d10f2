//! The program's own calls of post, poll and arm, in which the adapter takes its turns.
//!
//! Why: a program that polls keeps a core busy. With its adapter on a thread beside it, two
//! programs need four cores, and each message waits twice for another core. So a program that polls
//! drives the adapter itself, and the thread sleeps meanwhile ([`process::take_turn`]).
//!
//! `ibv_poll_cq` and the like are inline in programs: they call functions of a table in their
//! context (`struct ibv_context_ops`, a part of the library's ABI). After a device was opened,
//! three of its functions are replaced by those here, which call the replaced ones, and take a turn
//! before a poll that would find nothing, and after the others. Programs that read their completion
//! queues by other ways (`ibv_start_poll`, libmlx5's direct access) are served by the thread.

use crate::process;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

type PollCq = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
type RequestNotification = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type PostSend = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> c_int;

/// The functions of `struct ibv_context_ops` before and between those that are replaced.
const BEFORE_POLL: usize = 11;
const BETWEEN_ARM_AND_POST: usize = 12;

/// The first members of `struct ibv_context`.
#[repr(C)]
pub(crate) struct Context {
    device: *mut c_void,
    before: [*mut c_void; BEFORE_POLL],
    poll_cq: PollCq,
    request_notification: RequestNotification,
    between: [*mut c_void; BETWEEN_ARM_AND_POST],
    post_send: PostSend,
}

#[derive(Clone, Copy)]
struct Replaced {
    poll_cq: PollCq,
    request_notification: RequestNotification,
    post_send: PostSend,
}

/// Those of the first context. The library has one function of each kind for all contexts of a
/// device; a context with others keeps them.
static REPLACED: OnceLock<Replaced> = OnceLock::new();

/// Has a context's calls take turns of the adapter.
///
/// # Safety
/// The context is null, or one that libibverbs has opened and no other thread has seen yet.
pub(crate) unsafe fn replace(context: *mut Context) {
    // SAFETY: as our caller says; the structure begins with these members in every version of the
    // library's ABI, IBVERBS_1.1.
    let Some(context) = (unsafe { context.as_mut() }) else { return };
    let Context { poll_cq, request_notification, post_send, .. } = *context;
    let own = Replaced { poll_cq, request_notification, post_send };
    let replaced = REPLACED.get_or_init(|| own);
    let is_same = replaced.poll_cq as usize == own.poll_cq as usize
        && replaced.request_notification as usize == own.request_notification as usize
        && replaced.post_send as usize == own.post_send as usize;
    if is_same {
        context.poll_cq = poll;
        context.request_notification = arm;
        context.post_send = post;
    }
}

fn replaced() -> &'static Replaced {
    REPLACED.get().expect("set before the functions below are in a table")
}

unsafe extern "C" fn poll(cq: *mut c_void, entries: c_int, out: *mut c_void) -> c_int {
    let poll_cq = replaced().poll_cq;
    if process::has_completed() {
        // SAFETY: the arguments are those that our caller gave for this very function.
        let found = unsafe { poll_cq(cq, entries, out) };
        if found != 0 {
            return found;
        }
    }
    process::take_turn(entries.max(1) as u32);
    // SAFETY: as above.
    unsafe { poll_cq(cq, entries, out) }
}

unsafe extern "C" fn arm(cq: *mut c_void, solicited_only: c_int) -> c_int {
    // SAFETY: the arguments are those that our caller gave for this very function.
    let result = unsafe { (replaced().request_notification)(cq, solicited_only) };
    process::take_turn_and_leave();
    result
}

unsafe extern "C" fn post(qp: *mut c_void, requests: *mut c_void, wrong: *mut c_void) -> c_int {
    // SAFETY: the arguments are those that our caller gave for this very function.
    let result = unsafe { (replaced().post_send)(qp, requests, wrong) };
    process::take_turn(1);
    result
}
