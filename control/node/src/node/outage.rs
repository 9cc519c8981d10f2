//! The reasons for which an interface of a node does not run.

use crate::device::DeviceOpenError;
use crate::interface::DeviceError;
use crate::kernel::KernelError;
use crate::plain::PlainError;
use pollux_verbs::VerbsError;
use std::sync::Arc;

/// The reason why an interface does not run. The node retries it.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Outage {
    #[error("the device is being opened")]
    Pending,
    /// The device cannot be opened.
    #[error("{0}; retrying")]
    Missing(Arc<DeviceOpenError>),
    /// The port of the device cannot be shared.
    #[error("{0}; retrying")]
    Unusable(VerbsError),
    /// The device refused an object of the interface.
    #[error("{0}; retrying")]
    Refused(Arc<DeviceError>),
    /// The device failed while the interface ran.
    #[error("{0}; retrying")]
    Failed(VerbsError),
    /// The kernel's device cannot be opened.
    #[error("{0}; retrying")]
    NoLink(Arc<PlainError>),
    /// The kernel's device failed while the interface ran.
    #[error("{0}; retrying")]
    LinkFailed(KernelError),
}

impl Outage {
    pub(super) fn state(&self) -> &'static str {
        match self {
            Self::Pending => "opening",
            Self::Missing(_) => "missing",
            Self::NoLink(error) if error.is_missing() => "missing",
            Self::Unusable(_)
            | Self::Refused(_)
            | Self::Failed(_)
            | Self::NoLink(_)
            | Self::LinkFailed(_) => "failed",
        }
    }
}
