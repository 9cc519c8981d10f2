//! Errors of measurements.

use pollux::UpError;
use pollux_node::OpenError;
use pollux_node::fabric::StartError;
use pollux_verbs::{CompletionStatus, PostError, VerbsError};
use std::fmt;
use std::io;

/// The reason for which a measurement failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PerfError {
    /// The plan cannot be measured.
    Plan(String),
    /// The fabric of this process did not start.
    Fabric(StartError),
    /// A device cannot be opened.
    Open(OpenError),
    /// An interface does not come up.
    Up(UpError),
    /// A device refused a verb.
    Verbs(VerbsError),
    /// A device refused a work request.
    Post(PostError),
    /// A work request completed with an error.
    Request(CompletionStatus),
    /// A socket or a program failed.
    Io(io::Error),
    /// The other end broke the protocol, or ended early.
    OtherEnd(String),
}

impl fmt::Display for PerfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(why) => f.write_str(why),
            Self::Fabric(error) => error.fmt(f),
            Self::Open(error) => error.fmt(f),
            Self::Up(error) => error.fmt(f),
            Self::Verbs(error) => error.fmt(f),
            Self::Post(error) => error.fmt(f),
            Self::Request(status) => write!(f, "a request failed: {status:?}"),
            Self::Io(error) => error.fmt(f),
            Self::OtherEnd(what) => write!(f, "the other end: {what}"),
        }
    }
}

impl std::error::Error for PerfError {}

macro_rules! from {
    ($($error:ty => $variant:ident),+) => {
        $(impl From<$error> for PerfError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })+
    };
}

from! {
    StartError => Fabric,
    OpenError => Open,
    UpError => Up,
    VerbsError => Verbs,
    PostError => Post,
    io::Error => Io
}
