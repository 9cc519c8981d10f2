//! Errors, and their mapping to the `std::io::ErrorKind` that `std::net` returns.

use crate::stack::{BindError, KEEPALIVE_MIN, TcpError, UdpError};
use pollux_node::DeviceOpenError;
use pollux_node::config::ConfigErrors;
use pollux_node::interface::DeviceError;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::Duration;

/// Why an interface did not come up. The message says what to do.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum UpError {
    /// The device cannot be opened.
    #[error("{0}")]
    Open(DeviceOpenError),
    /// The device lacks something that an interface needs.
    #[error("{0}")]
    Device(DeviceError),
    /// The configuration file cannot be read, or is invalid.
    #[error("{0}")]
    File(ConfigErrors),
    /// The configuration file has no such interface, or a setting is invalid.
    #[error("{0}")]
    Interface(String),
    /// An address is invalid, or has no prefix length.
    #[error("{0:?} is not an address with a prefix length; write 10.0.0.1/24 or fd00::1/64")]
    Address(String),
    /// Another host has an address of the interface: it answered the probe for it.
    #[error(
        "another host has {address}, at link address {holder}; give this interface another \
         address, or stop the interface that has it"
    )]
    AddressInUse {
        /// The address.
        address: IpAddr,
        /// The link address (flags, QPN and GID) of the interface that has it.
        holder: String,
    },
    /// The interface did not come up within the timeout; holds its state and the reason for it.
    #[error(
        "the interface did not come up: {0}; check that a subnet manager runs and that the port is \
         a full member of the partition"
    )]
    NotUp(String),
    /// A worker cannot be pinned to this core.
    #[error("cannot pin a worker to core {0}; choose a core of this process")]
    Core(usize),
    /// A worker did not start; holds the reason.
    #[error("cannot start the workers: {0}")]
    Worker(String),
    /// The admin socket cannot be opened at this path.
    #[error("cannot listen at the socket {0}: {1}")]
    Socket(String, io::Error),
    /// The system cannot create a thread, or a descriptor to wake one.
    #[error("cannot start the control thread of the interface: {0}")]
    Thread(io::Error),
}

/// The same as `Display`, because an error that `main` returns is printed by `Debug`.
impl fmt::Debug for UpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<UpError> for io::Error {
    fn from(error: UpError) -> Self {
        let kind = match error {
            UpError::File(_) | UpError::Interface(_) | UpError::Address(_) | UpError::Core(_) => {
                ErrorKind::InvalidInput
            }
            UpError::AddressInUse { .. } => ErrorKind::AddrInUse,
            UpError::NotUp(_) => ErrorKind::NetworkDown,
            _ => ErrorKind::Other,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<TcpError> for io::Error {
    fn from(error: TcpError) -> Self {
        let kind = match error {
            TcpError::Closed => ErrorKind::NotConnected,
            TcpError::Refused => ErrorKind::ConnectionRefused,
            TcpError::Reset | TcpError::PeerGone => ErrorKind::ConnectionReset,
            TcpError::TimedOut => ErrorKind::TimedOut,
            TcpError::Unreachable => ErrorKind::HostUnreachable,
            TcpError::ShutDown => ErrorKind::BrokenPipe,
        };
        Self::new(kind, error)
    }
}

impl From<UdpError> for io::Error {
    fn from(error: UdpError) -> Self {
        let kind = match error {
            UdpError::Closed => ErrorKind::NotConnected,
            UdpError::Refused => ErrorKind::ConnectionRefused,
            UdpError::Unreachable => ErrorKind::HostUnreachable,
            UdpError::TooBig(_) | UdpError::BadAddress => ErrorKind::InvalidInput,
            UdpError::Full => ErrorKind::WouldBlock,
        };
        Self::new(kind, error)
    }
}

impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        let kind = match error {
            BindError::InUse => ErrorKind::AddrInUse,
            BindError::AddressNotAvailable => ErrorKind::AddrNotAvailable,
            BindError::Full => ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}

pub(crate) fn check_keepalive(idle: Option<Duration>) -> io::Result<()> {
    match idle.filter(|idle| *idle < KEEPALIVE_MIN) {
        None => Ok(()),
        Some(idle) => {
            let why = format!("a keep-alive time of {idle:?} is too short; at least 1 s");
            Err(io::Error::new(ErrorKind::InvalidInput, why))
        }
    }
}
