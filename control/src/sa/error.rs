//! Failures of SA queries (IBA 15.2.3).

use pollux_wire::mad::MadStatus;
use pollux_wire::mad::rmpp::RmppStatus;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaError {
    #[error("the subnet administrator does not answer: is a subnet manager there?")]
    NoResponse,
    #[error("the subnet administrator is too busy")]
    Busy,
    #[error("the subnet administrator has no resources for this request")]
    NoResources,
    #[error("the subnet administrator rejects the request as invalid")]
    RequestInvalid,
    #[error("the subnet administrator has no matching record")]
    NoRecords,
    #[error("the subnet administrator has more than one matching record")]
    TooManyRecords,
    #[error("the subnet administrator does not know the GID")]
    InvalidGid,
    #[error("the group does not exist, and the request lacks components to create it")]
    InsufficientComponents,
    #[error("the subnet administrator does not allow this to the port")]
    Denied,
    #[error("the subnet administrator redirects the request, which is not supported")]
    Redirected,
    #[error("the subnet administrator does not know this query: {0}")]
    NotSupported(MadStatus),
    #[error("the subnet administrator's reply is invalid")]
    BadAnswer,
    #[error("the subnet administrator's table ended early: {0}")]
    Aborted(RmppStatus),
    #[error("the subnet administrator answered with status {0}")]
    Other(MadStatus),
}

impl SaError {
    pub(super) fn of_status(status: MadStatus) -> Self {
        match status {
            MadStatus::BUSY => Self::Busy,
            MadStatus::REDIRECT => Self::Redirected,
            MadStatus::BAD_VERSION
            | MadStatus::BAD_METHOD
            | MadStatus::BAD_METHOD_ATTRIBUTE
            | MadStatus::BAD_FIELD => Self::NotSupported(status),
            MadStatus::SA_NO_RESOURCES => Self::NoResources,
            MadStatus::SA_REQUEST_INVALID => Self::RequestInvalid,
            MadStatus::SA_NO_RECORDS => Self::NoRecords,
            MadStatus::SA_TOO_MANY_RECORDS => Self::TooManyRecords,
            MadStatus::SA_INVALID_GID => Self::InvalidGid,
            MadStatus::SA_INSUFFICIENT_COMPONENTS => Self::InsufficientComponents,
            MadStatus::SA_DENIED => Self::Denied,
            _ => Self::Other(status),
        }
    }

    /// Whether a retry can succeed.
    pub const fn is_passing(self) -> bool {
        matches!(self, Self::NoResponse | Self::Busy | Self::NoResources | Self::Aborted(_))
    }
}
