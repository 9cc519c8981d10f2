//! The Linux kernel beside a router: a routing daemon installs routes there, and speaks to its
//! peers through devices of the kernel.
//!
//! 1. [`netlink_socket`]: notifications of links, addresses, routes and nexthop objects; requests;
//! 2. [`route_watch`]: the mirror of its routes;
//! 3. [`tun`]: queues of TUN devices, by which IP packets go to the kernel and come from it;
//!    [`tun_device`]: the device itself, with MTU, addresses and carrier;
//! 4. [`shadow`]: a TUN device for each interface, that looks to daemons as if it were the
//!    interface.
//!
//! Everything here runs in the control thread, except the queues of a TUN device that is a port of
//! workers. No call blocks.

pub mod netlink_socket;
pub mod route_watch;
pub mod shadow;
pub mod tun;
pub mod tun_device;

use rustix::io::Errno;
use std::fmt;

/// Why the kernel did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelError {
    /// A system call failed.
    System {
        /// What it was to do.
        operation: &'static str,
        /// Why it failed.
        errno: Errno,
    },
    /// A netlink request was refused.
    Refused {
        /// What it was to do.
        operation: &'static str,
        /// Why the kernel refused it.
        errno: Errno,
        /// The kernel's own sentence, if it gave one.
        text: String,
    },
    /// A netlink request has no answer that can be read.
    NoAnswer {
        /// What it was to do.
        operation: &'static str,
    },
}

impl KernelError {
    pub(crate) fn system(operation: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::System { operation, errno }
    }

    /// The errno of it, if there is one.
    pub const fn errno(&self) -> Option<Errno> {
        match *self {
            Self::System { errno, .. } | Self::Refused { errno, .. } => Some(errno),
            Self::NoAnswer { .. } => None,
        }
    }

    /// What the administrator can do about it.
    fn remedy(&self) -> &'static str {
        match self.errno() {
            Some(Errno::PERM | Errno::ACCESS) => "; give the process CAP_NET_ADMIN",
            Some(Errno::NOENT | Errno::NXIO) => "; load the kernel module tun",
            Some(Errno::BUSY) => "; a device of this name is in use, configure another name",
            Some(Errno::INVAL) => "; configure another name if a device of another kind has it",
            _ => "",
        }
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { operation, errno } => write!(f, "cannot {operation}: {errno}")?,
            Self::Refused { operation, errno, text } if text.is_empty() => {
                write!(f, "the kernel refused to {operation}: {errno}")?;
            }
            Self::Refused { operation, errno, text } => {
                write!(f, "the kernel refused to {operation}: {errno} ({text})")?;
            }
            Self::NoAnswer { operation } => {
                write!(f, "the kernel gave no answer when asked to {operation}")?;
            }
        }
        f.write_str(self.remedy())
    }
}

impl std::error::Error for KernelError {}
