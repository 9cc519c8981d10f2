//! Why an interface of a node does not run.

use crate::device::OpenError;
use crate::interface::DeviceError;
use crate::kernel::KernelError;
use crate::plain::PlainError;
use pollux_verbs::VerbsError;
use std::fmt;
use std::sync::Arc;

/// The reason for which an interface does not run. It is retried.
#[derive(Clone, Debug)]
pub(super) enum Outage {
    /// The first attempt is pending.
    Pending,
    /// The device cannot be opened.
    Missing(Arc<OpenError>),
    /// The port of the device cannot be shared.
    Unusable(VerbsError),
    /// The device refused an object of the interface.
    Refused(Arc<DeviceError>),
    /// The device failed while the interface ran.
    Failed(VerbsError),
    /// The kernel does not give its device.
    NoLink(Arc<PlainError>),
    /// The kernel's device failed while the interface ran.
    LinkFailed(KernelError),
}

impl Outage {
    /// The state in reports.
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

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending => f.write_str("the device is being opened"),
            Self::Missing(error) => write!(f, "{error}; retrying"),
            Self::Refused(error) => write!(f, "{error}; retrying"),
            Self::Unusable(error) | Self::Failed(error) => write!(f, "{error}; retrying"),
            Self::NoLink(error) => write!(f, "{error}; retrying"),
            Self::LinkFailed(error) => write!(f, "{error}; retrying"),
        }
    }
}
