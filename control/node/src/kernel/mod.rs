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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    #[error("cannot {operation}: {errno}{}", remedy(*errno))]
    System { operation: &'static str, errno: Errno },
    #[error("the kernel refused to {operation}: {errno}{}{}", in_parentheses(text), remedy(*errno))]
    Refused {
        operation: &'static str,
        errno: Errno,
        /// The message of the kernel; empty if it gave none.
        text: String,
    },
    /// A netlink request has no answer that can be read.
    #[error("the kernel gave no answer when asked to {operation}")]
    NoAnswer { operation: &'static str },
}

impl KernelError {
    pub(crate) fn system(operation: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::System { operation, errno }
    }

    pub const fn errno(&self) -> Option<Errno> {
        match *self {
            Self::System { errno, .. } | Self::Refused { errno, .. } => Some(errno),
            Self::NoAnswer { .. } => None,
        }
    }
}

const fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::PERM | Errno::ACCESS => "; give the process CAP_NET_ADMIN",
        Errno::NOENT | Errno::NXIO => "; load the kernel module tun",
        Errno::BUSY => "; a device of this name is in use, configure another name",
        Errno::INVAL => "; configure another name if a device of another kind has it",
        _ => "",
    }
}

fn in_parentheses(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}
