//! Errors of verbs and of posts.

use std::io;

/// The error of a verb. A failed verb changes nothing, unless its documentation says otherwise.
///
/// Each message names the argument or limit, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    #[error("{verb}: {argument}: {reason}")]
    Invalid { verb: &'static str, argument: &'static str, reason: String },
    /// No object has the handle.
    #[error("{verb}: there is no such {what}")]
    NoSuch { verb: &'static str, what: &'static str },
    /// The request exceeds a limit of the adapter, which is in
    /// [`DeviceAttributes`](crate::DeviceAttributes).
    #[error("{verb}: over the adapter's {limit} of {max}")]
    Limit { verb: &'static str, limit: &'static str, max: u64 },
    /// The object is in use.
    #[error("{verb}: still in use by {by}; end that first")]
    Busy { verb: &'static str, by: &'static str },
    #[error("{verb}: this adapter has no {capability}")]
    Unsupported { verb: &'static str, capability: &'static str },
    /// The driver or the kernel refused.
    #[error("{verb}: {}; {advice}", io::Error::from_raw_os_error(*errno))]
    System { verb: &'static str, errno: i32, advice: String },
    /// The driver created the object with a layout that this build does not support.
    #[error(
        "the {what} has an unknown form: {why}; use the device by libibverbs alone (verbs:NAME)"
    )]
    UnknownForm { what: &'static str, why: &'static str },
    /// Part of the adapter failed permanently: open the device again.
    #[error("the {what} is lost: {why}")]
    Lost { what: &'static str, why: &'static str },
    /// The adapter was unplugged, or the server of a software adapter ended.
    #[error("the adapter is gone")]
    Gone,
}

pub const fn none(verb: &'static str, what: &'static str) -> VerbsError {
    VerbsError::NoSuch { verb, what }
}

pub fn over(verb: &'static str, limit: &'static str, max: u32) -> VerbsError {
    VerbsError::Limit { verb, limit, max: max.into() }
}

pub fn invalid(
    verb: &'static str,
    argument: &'static str,
    reason: impl Into<String>,
) -> VerbsError {
    VerbsError::Invalid { verb, argument, reason: reason.into() }
}

pub fn within(
    verb: &'static str,
    limit: &'static str,
    asked: u32,
    max: u32,
) -> Result<(), VerbsError> {
    if asked > max { Err(over(verb, limit, max)) } else { Ok(()) }
}

/// A post that accepted only part of its batch: the adapter owns the first `accepted` requests, the
/// caller the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {accepted} of the batch was refused: {refusal}")]
pub struct PostError {
    pub accepted: usize,
    /// Why the next request was refused. [`PostRefusal::Full`] is a normal result.
    pub refusal: PostRefusal,
}

/// Why a work request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostRefusal {
    #[error("the queue is full; poll completions, then post again")]
    Full,
    #[error("there is no such queue")]
    NoSuchQueue,
    #[error("the queue pair is in state {0}")]
    State(crate::QpState),
    #[error("more entries than the queue was created for")]
    TooManySges,
    #[error("more inline data than the queue was created for")]
    InlineTooLong,
    /// The transport does not support the operation, or its address handle or key does not exist.
    #[error("this transport has no such request")]
    BadOperation,
    #[error("a message has at most 2^31 bytes")]
    TooLong,
    /// The driver refused, with this error number.
    #[error(
        "{}; query the queue pair, and look at the kernel's log",
        io::Error::from_raw_os_error(*.0)
    )]
    System(i32),
    #[error("the adapter is gone")]
    Gone,
}
