//! Errors of verbs and of posts.

use std::fmt;

/// Why a verb failed. A failed verb changes nothing, unless its documentation says otherwise.
///
/// Each message names the argument or limit, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerbsError {
    Invalid {
        verb: &'static str,
        argument: &'static str,
        reason: String,
    },
    /// The handle names no existing object.
    NoSuch {
        verb: &'static str,
        what: &'static str,
    },
    /// Over a limit of the adapter; [`DeviceAttributes`](crate::DeviceAttributes) has the limits.
    Limit {
        verb: &'static str,
        limit: &'static str,
        max: u64,
    },
    /// The object is in use.
    Busy {
        verb: &'static str,
        by: &'static str,
    },
    Unsupported {
        verb: &'static str,
        capability: &'static str,
    },
    /// The driver or the kernel refused.
    System {
        verb: &'static str,
        errno: i32,
        advice: String,
    },
    /// Part of the adapter failed permanently: open the device again.
    Lost {
        what: &'static str,
        why: &'static str,
    },
    /// The adapter is gone: it was unplugged or its server ended.
    Gone,
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { verb, argument, reason } => write!(f, "{verb}: {argument}: {reason}"),
            Self::NoSuch { verb, what } => write!(f, "{verb}: there is no such {what}"),
            Self::Limit { verb, limit, max } => {
                write!(f, "{verb}: over the adapter's {limit} of {max}")
            }
            Self::Busy { verb, by } => write!(f, "{verb}: still in use by {by}; end that first"),
            Self::Unsupported { verb, capability } => {
                write!(f, "{verb}: this adapter has no {capability}")
            }
            Self::System { verb, errno, advice } => {
                let system = std::io::Error::from_raw_os_error(*errno);
                write!(f, "{verb}: {system}; {advice}")
            }
            Self::Lost { what, why } => write!(f, "the {what} is lost: {why}"),
            Self::Gone => f.write_str("the adapter is gone"),
        }
    }
}

impl std::error::Error for VerbsError {}

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

/// A partial post: the adapter owns the first `accepted` requests of the batch, the caller the
/// rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostError {
    pub accepted: usize,
    /// Why the next one was refused. [`PostRefusal::Full`] is a normal result.
    pub refusal: PostRefusal,
}

/// Why a work request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostRefusal {
    /// The queue is full: poll, then post again.
    Full,
    /// No queue has this handle any more.
    NoSuchQueue,
    /// The queue pair's state does not allow the request.
    State(crate::QpState),
    TooManySges,
    InlineTooLong,
    /// The transport does not support the operation, or its address handle or key does not exist.
    BadOperation,
    /// Longer than the longest message of 2^31 bytes.
    TooLong,
    /// The driver refused, with this error number.
    System(i32),
    Gone,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} of the batch was refused: ", self.accepted)?;
        match self.refusal {
            PostRefusal::Full => {
                f.write_str("the queue is full; poll completions, then post again")
            }
            PostRefusal::NoSuchQueue => f.write_str("there is no such queue"),
            PostRefusal::State(state) => write!(f, "the queue pair is in state {state}"),
            PostRefusal::TooManySges => f.write_str("more entries than the queue was created for"),
            PostRefusal::InlineTooLong => {
                f.write_str("more inline data than the queue was created for")
            }
            PostRefusal::BadOperation => f.write_str("this transport has no such request"),
            PostRefusal::System(errno) => {
                let system = std::io::Error::from_raw_os_error(errno);
                write!(f, "{system}; query the queue pair, and look at the kernel's log")
            }
            PostRefusal::TooLong => f.write_str("a message has at most 2^31 bytes"),
            PostRefusal::Gone => f.write_str("the adapter is gone"),
        }
    }
}

impl std::error::Error for PostError {}
