//! Errors of measurements.

use pollux::UpError;
use pollux_node::DeviceOpenError;
use pollux_node::fabric::FabricStartError;
use pollux_verbs::{CompletionStatus, PostError, VerbsError};
use std::io;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The plan cannot be measured.
    #[error("{0}")]
    Plan(String),
    #[error(transparent)]
    Fabric(#[from] FabricStartError),
    #[error(transparent)]
    Open(#[from] DeviceOpenError),
    #[error(transparent)]
    Up(#[from] UpError),
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    #[error(transparent)]
    Post(#[from] PostError),
    #[error("{}", request(*.0))]
    Request(CompletionStatus),
    #[error("{0} messages arrived with a wrong payload: the path between the ends corrupts data")]
    WrongPayloads(u64),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The other end does not answer, ended early, or broke the protocol.
    #[error("the other end: {0}")]
    OtherEnd(String),
    /// A failure on this side; the text names its cause.
    #[error("{0}")]
    Local(String),
}

/// The text for a failed request.
fn request(status: CompletionStatus) -> String {
    match status {
        CompletionStatus::RetryExceeded => {
            "the other end, or the fabric between, no longer answers".into()
        }
        other => format!("a request failed: {other:?}"),
    }
}
