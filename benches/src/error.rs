//! Errors of measurements.

use pollux::UpError;
use pollux_node::OpenError;
use pollux_node::fabric::StartError;
use pollux_verbs::{CompletionStatus, PostError, VerbsError};
use std::io;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The plan cannot be measured.
    #[error("{0}")]
    Plan(String),
    #[error(transparent)]
    Fabric(#[from] StartError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Up(#[from] UpError),
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    #[error(transparent)]
    Post(#[from] PostError),
    #[error("a request failed: {0:?}")]
    Request(CompletionStatus),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It broke the protocol, or ended early.
    #[error("the other end: {0}")]
    OtherEnd(String),
}
