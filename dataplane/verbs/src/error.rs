//! What a verb answers when it cannot do what it was asked to.

use std::fmt;

/// Why a verb failed. Nothing has changed then, unless the verb says otherwise.
///
/// The texts are for people: each names the argument or the limit, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerbsError {
    /// An argument that no adapter could accept.
    Invalid {
        /// The verb.
        verb: &'static str,
        /// The argument, as it is called in the contract.
        argument: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A handle of something that does not exist, or no longer does.
    NoSuch {
        /// The verb.
        verb: &'static str,
        /// What was looked for.
        what: &'static str,
    },
    /// More than the adapter has; [`DeviceAttributes`](crate::DeviceAttributes) has the limits.
    Limit {
        /// The verb.
        verb: &'static str,
        /// The limit's name.
        limit: &'static str,
        /// Its value.
        max: u64,
    },
    /// Something else still needs it.
    Busy {
        /// The verb.
        verb: &'static str,
        /// Who.
        by: &'static str,
    },
    /// Not in this adapter's power.
    Unsupported {
        /// The verb.
        verb: &'static str,
        /// What it lacks.
        capability: &'static str,
    },
    /// The adapter, or the system below it, refused.
    System {
        /// The verb.
        verb: &'static str,
        /// The system's number for it.
        errno: i32,
        /// What to check.
        advice: String,
    },
    /// Something of the adapter's does not work any more: the device is to be opened anew.
    Lost {
        /// What.
        what: &'static str,
        /// How that shows.
        why: &'static str,
    },
    /// The adapter is gone: unplugged, or its server ended.
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

/// [`VerbsError::NoSuch`].
pub const fn none(verb: &'static str, what: &'static str) -> VerbsError {
    VerbsError::NoSuch { verb, what }
}

/// [`VerbsError::Limit`].
pub fn over(verb: &'static str, limit: &'static str, max: u32) -> VerbsError {
    VerbsError::Limit { verb, limit, max: max.into() }
}

/// [`VerbsError::Invalid`].
pub fn invalid(
    verb: &'static str,
    argument: &'static str,
    reason: impl Into<String>,
) -> VerbsError {
    VerbsError::Invalid { verb, argument, reason: reason.into() }
}

/// Refuses a number above its limit.
pub fn within(
    verb: &'static str,
    limit: &'static str,
    asked: u32,
    max: u32,
) -> Result<(), VerbsError> {
    if asked > max { Err(over(verb, limit, max)) } else { Ok(()) }
}

/// How far a post came: the first `accepted` requests of the batch are the adapter's now, the rest
/// is still the caller's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostError {
    /// Requests that were taken.
    pub accepted: usize,
    /// Why the next one was not. A queue that is full is [`PostRefusal::Full`], an answer and no
    /// fault.
    pub refusal: PostRefusal,
}

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostRefusal {
    /// No room: poll, then post again.
    Full,
    /// No such queue.
    NoSuchQueue,
    /// The queue pair's state takes no such request.
    State(crate::QpState),
    /// More gather or scatter entries than the queue was made for.
    TooManySges,
    /// More inline data than the queue was made for.
    InlineTooLong,
    /// A request that this transport does not have, or that its address or key is missing for.
    BadOperation,
    /// Longer than any message: 2^31 bytes.
    TooLong,
    /// The driver refused, with this number of the system's.
    System(i32),
    /// The adapter is gone.
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
