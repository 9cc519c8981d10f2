//! Why nothing was measured.

use pollux::UpError;
use pollux_node::OpenError;
use pollux_node::fabric::StartError;
use pollux_verbs::{CompletionStatus, PostError, VerbsError};
use std::fmt;
use std::io;

/// Why nothing was measured: one sentence, and what to do where there is something.
#[derive(Debug)]
#[non_exhaustive]
pub enum PerfError {
    /// Nobody can measure that.
    Plan(String),
    /// The fabric of our own.
    Fabric(StartError),
    /// A device.
    Open(OpenError),
    /// An interface.
    Up(UpError),
    /// An adapter refused something.
    Verbs(VerbsError),
    /// Or a request.
    Post(PostError),
    /// A request failed.
    Request(CompletionStatus),
    /// A socket, or a program.
    Io(io::Error),
    /// The other end said something strange, or ended before its time.
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
