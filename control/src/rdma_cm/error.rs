//! Why a command of a program is refused, and the kernel's `errno` for it.

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaCmError {
    #[error("there is no such ID")]
    NoId,
    #[error("no event is queued")]
    NoEvent,
    #[error("a limit is reached: destroy IDs, end connections, or take events")]
    NoMemory,
    #[error("the address is not one of this host")]
    NoAddress,
    #[error("the command or its value is invalid, or the ID is in another state")]
    Invalid,
    #[error("too many open files: close some")]
    NoFile,
    #[error("the command is unknown")]
    Unsupported,
    #[error("the family of the address is unknown")]
    WrongFamily,
    #[error("the port is in use")]
    AddressInUse,
    #[error("all ports are in use")]
    NoPort,
}

impl RdmaCmError {
    /// The `errno` (Linux `errno-base.h`, `errno.h`).
    pub const fn errno(self) -> i32 {
        match self {
            Self::NoId => 2,
            Self::NoEvent => 11,
            Self::NoMemory => 12,
            Self::NoAddress => 19,
            Self::Invalid => 22,
            Self::NoFile => 24,
            Self::Unsupported => 38,
            Self::WrongFamily => 97,
            Self::AddressInUse => 98,
            Self::NoPort => 99,
        }
    }
}

/// The status of an event after a timeout: ETIMEDOUT.
pub(super) const TIMED_OUT: i32 = -110;
