//! What went wrong, as `std::io` says it, so that sockets here read like those of `std::net`.

use crate::stack::{BindError, TcpError, UdpError};
use pollux_node::OpenError;
use pollux_node::config::ConfigError;
use pollux_node::interface::port_driver::DeviceError;
use std::fmt;
use std::io::{self, ErrorKind};

/// Why there is no interface: one sentence, and what to do.
#[non_exhaustive]
pub enum UpError {
    /// The device cannot be opened.
    Open(OpenError),
    /// The device has not what an interface needs.
    Device(DeviceError),
    /// A file cannot be read, or does not say what a node is to be.
    File(ConfigError),
    /// A file says nothing of such an interface.
    Interface(String),
    /// An address is none, or has no prefix.
    Address(String),
    /// It did not come up in time: its state, and why.
    NotUp(String),
    /// There is no such core for its worker.
    Core(usize),
    /// There is no worker, and why.
    Worker(String),
}

impl fmt::Display for UpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::Device(error) => error.fmt(f),
            Self::File(error) => error.fmt(f),
            Self::Interface(why) => f.write_str(why),
            Self::Address(text) => {
                write!(f, "{text:?} is no address with a prefix; write 10.0.0.1/24 or fd00::1/64")
            }
            Self::NotUp(why) => write!(
                f,
                "the interface does not come up: {why}; see whether a subnet manager runs, and \
                 whether the port is a full member of the partition"
            ),
            Self::Core(core) => {
                write!(f, "no worker can stay on core {core}; name one that this process may use")
            }
            Self::Worker(why) => write!(f, "the interface has no thread of its own: {why}"),
        }
    }
}

/// The same sentence: this is what is printed of an error that `main` returns.
impl fmt::Debug for UpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for UpError {}

impl fmt::Display for TcpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "there is no such connection any more",
            Self::Refused => "nobody listens there",
            Self::Reset => "the peer has ended the connection",
            Self::TimedOut => "the peer does not answer",
            Self::Unreachable => "there is no way to the peer",
            Self::ShutDown => "the connection was shut down on this side",
        })
    }
}

impl fmt::Display for UdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("there is no such socket any more"),
            Self::Refused => f.write_str("the peer has no socket at that port"),
            Self::Unreachable => f.write_str("there is no way to the peer"),
            Self::TooBig(max) => {
                write!(f, "a datagram to there has {max} bytes at most; send less at a time")
            }
            Self::BadAddress => {
                f.write_str("no datagram goes there from this socket; mind family and port")
            }
            Self::Full => f.write_str("there is no room now"),
        }
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InUse => "another socket is at that address and port",
            Self::NotOurs => "the interface cannot have a socket there; bind to an address of its",
            Self::Full => "there are too many sockets, or no port is free; close some",
        })
    }
}

impl std::error::Error for TcpError {}
impl std::error::Error for UdpError {}
impl std::error::Error for BindError {}

impl From<UpError> for io::Error {
    fn from(error: UpError) -> Self {
        let kind = match error {
            UpError::File(_) | UpError::Interface(_) | UpError::Address(_) | UpError::Core(_) => {
                ErrorKind::InvalidInput
            }
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
            TcpError::Reset => ErrorKind::ConnectionReset,
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
            BindError::NotOurs => ErrorKind::AddrNotAvailable,
            BindError::Full => ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}
