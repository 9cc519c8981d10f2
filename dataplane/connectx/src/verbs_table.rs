//! Drives the adapter within the program's own calls that post sends, poll, and arm completion
//! queues.
//!
//! Why: a program that polls keeps a core busy. If the adapter ran only in its own thread, two such
//! programs would need four cores, and each message would wait for another core twice. A program
//! that polls therefore drives the adapter itself ([`process::take_turn`]), and the thread sleeps.
//!
//! `ibv_poll_cq` and similar functions are inlined in programs. They call functions through a table
//! in the context (`struct ibv_context_ops`, which is part of the library's ABI). After a device is
//! opened, [`replace`] replaces three functions of the table. The new functions call the original
//! ones. They take a turn before a poll that would find no completion, and after an arm or a post.
//! If a program polls in another way (`ibv_start_poll`, direct access to libmlx5's queues), the
//! thread drives the adapter.

use crate::process;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

type PollCq = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
type RequestNotification = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type PostSend = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> c_int;

/// The number of functions in `struct ibv_context_ops` before and between the replaced ones.
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

/// The original functions of the first context. The library uses the same functions for all
/// contexts of a device. A context with other functions is left unchanged.
static REPLACED: OnceLock<Replaced> = OnceLock::new();

/// Replaces the functions of a context, so that its calls take turns of the adapter.
///
/// # Safety
/// `context` is null, or points to a context that libibverbs has opened and no other thread has
/// seen yet.
pub(crate) unsafe fn replace(context: *mut Context) {
    // SAFETY: by our contract, a context that is not null is valid, and only this thread accesses
    // it. It begins with the members of `Context` in every library with the ABI IBVERBS_1.1.
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
        // SAFETY: the program passed these arguments for this function.
        let found = unsafe { poll_cq(cq, entries, out) };
        if found != 0 {
            return found;
        }
    }
    process::take_turn(entries.max(1) as u32);
    // SAFETY: the program passed these arguments for this function.
    unsafe { poll_cq(cq, entries, out) }
}

unsafe extern "C" fn arm(cq: *mut c_void, solicited_only: c_int) -> c_int {
    // SAFETY: the program passed these arguments for this function.
    let result = unsafe { (replaced().request_notification)(cq, solicited_only) };
    process::take_turn_and_leave();
    result
}

unsafe extern "C" fn post(qp: *mut c_void, requests: *mut c_void, wrong: *mut c_void) -> c_int {
    // SAFETY: the program passed these arguments for this function.
    let result = unsafe { (replaced().post_send)(qp, requests, wrong) };
    process::take_turn(1);
    result
}
