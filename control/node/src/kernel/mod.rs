//! The Linux kernel beside a router: a routing daemon installs routes there, and speaks to its
//! peers through devices of the kernel.
//!
//! 1. [`netlink_socket`]: notifications of links, addresses, routes and nexthop objects; requests;
//! 2. [`route_watch`]: a mirror of the kernel's routes;
//! 3. [`tun`]: queues of TUN devices, through which IP packets pass to and from the kernel;
//!    [`tun_device`]: the device itself, with MTU, addresses and carrier;
//! 4. [`shadow`]: a TUN device that represents an interface to routing daemons.
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
    #[error("cannot {operation}: {errno}{}", remedy(operation, *errno))]
    System { operation: &'static str, errno: Errno },
    #[error(
        "the kernel refused to {operation}: {errno}{}{}",
        in_parentheses(text),
        remedy(operation, *errno)
    )]
    Refused {
        operation: &'static str,
        errno: Errno,
        /// The message of the kernel; empty if it gave none.
        text: String,
    },
    /// The answer to a netlink request is missing, or cannot be read.
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

// Operations with remedies of their own.
const OPEN_TUN: &str = "open /dev/net/tun";
const MAKE_TUN: &str = "make a TUN device";
const ADD_ADDRESS: &str = "add an address to a TUN device";

fn remedy(operation: &str, errno: Errno) -> &'static str {
    match (operation, errno) {
        (OPEN_TUN, Errno::NOENT | Errno::NXIO | Errno::NODEV) => "; load the kernel module tun",
        (MAKE_TUN, Errno::BUSY) => "; a device of this name is in use, configure another name",
        (MAKE_TUN, Errno::INVAL) => "; configure another name if a device of another kind has it",
        // Without a capability the error is EPERM.
        (ADD_ADDRESS, Errno::ACCESS) => {
            "; enable IPv6 (sysctl net.ipv6.conf.NAME.disable_ipv6), or configure no IPv6 address"
        }
        (_, Errno::PERM | Errno::ACCESS) => "; give the process CAP_NET_ADMIN",
        _ => "",
    }
}

fn in_parentheses(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(operation: &'static str, errno: Errno) -> String {
        KernelError::Refused { operation, errno, text: String::new() }.to_string()
    }

    #[test]
    fn a_remedy_is_for_the_operation_that_failed() {
        let open = KernelError::system(OPEN_TUN)(Errno::NOENT).to_string();
        assert!(open.ends_with("; load the kernel module tun"), "{open}");
        let make = KernelError::system(MAKE_TUN)(Errno::BUSY).to_string();
        assert!(make.contains("configure another name"), "{make}");
        for errno in [Errno::NOENT, Errno::NXIO, Errno::BUSY, Errno::INVAL] {
            let address = refused(ADD_ADDRESS, errno);
            assert!(!address.contains("module") && !address.contains("name"), "{address}");
        }
        let disabled = refused(ADD_ADDRESS, Errno::ACCESS);
        assert!(disabled.contains("IPv6") && !disabled.contains("CAP_NET_ADMIN"), "{disabled}");
        let address = refused(ADD_ADDRESS, Errno::PERM);
        assert!(address.ends_with("; give the process CAP_NET_ADMIN"), "{address}");
    }
}
