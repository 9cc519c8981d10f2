//! Why the subnet administrator did not do as asked (IBA 15.2.3), or could not be asked.

use pollux_wire::mad::MadStatus;
use pollux_wire::mad::rmpp::RmppStatus;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaError {
    Silence,
    Busy,
    NoResources,
    RequestInvalid,
    NoRecords,
    TooManyRecords,
    InvalidGid,
    InsufficientComponents,
    Denied,
    Redirected,
    NotSupported(MadStatus),
    BadAnswer,
    Aborted(RmppStatus),
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

    /// Whether the same question may well be answered later.
    pub const fn is_passing(self) -> bool {
        matches!(self, Self::Silence | Self::Busy | Self::NoResources | Self::Aborted(_))
    }
}

impl fmt::Display for SaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silence => "the subnet administrator does not answer: is a subnet manager there?",
            Self::Busy => "the subnet administrator is too busy",
            Self::NoResources => "the subnet administrator has no room for this",
            Self::RequestInvalid => "the subnet administrator finds this contradictory",
            Self::NoRecords => "the subnet administrator knows nothing like this",
            Self::TooManyRecords => "the subnet administrator knows more than one like this",
            Self::InvalidGid => "the subnet administrator does not know the GID",
            Self::InsufficientComponents => {
                "the group does not exist, and the request lacks components to create it"
            }
            Self::Denied => "the subnet administrator does not allow this to the port",
            Self::Redirected => "the subnet administrator wants to be asked elsewhere",
            Self::BadAnswer => "the subnet administrator's answer makes no sense",
            Self::NotSupported(status) => {
                return write!(f, "the subnet administrator does not know this query: {status}");
            }
            Self::Aborted(status) => {
                return write!(f, "the subnet administrator's table ended early: {status}");
            }
            Self::Other(status) => {
                return write!(f, "the subnet administrator answered with status {status}");
            }
        })
    }
}

impl std::error::Error for SaError {}
