//! Errors of the libraries and the kernel, with advice.
//!
//! libibverbs returns only an errno. The usual cause of each errno is known, such as a memory
//! limit, a missing device file or a permission, and the message names it.

#[cfg(feature = "hca")]
use {pollux_verbs::VerbsError, rustix::io::Errno};

/// Why a device could not be opened. `device` is the name that the caller gave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HcaOpenError {
    #[error(
        "{device}: built without the feature `hca`, so there are no adapters; build with \
         `--features hca` (scripts/host-setup --hca installs what that needs), or use `soft:`"
    )]
    NotBuilt { device: String },
    #[error("{name:?} is no device; write `mlx5_0`, or `mlx5_0:2` for port 2")]
    BadName { name: String },
    /// The system has no libibumad, which management datagrams need.
    #[error("{device}: {reason}; install libibumad (scripts/host-setup --hca)")]
    NoLibrary { device: String, reason: String },
    /// The system has no adapter, or none that this process can see.
    #[error("{device}: there is no RDMA adapter here; {advice}")]
    NoAdapters { device: String, advice: &'static str },
    #[error("{device}: there is no such adapter; there are {}", .present.join(", "))]
    NoSuchDevice { device: String, present: Vec<String> },
    /// The mlx5 driver cannot use the rings of this device directly; it is perhaps no ConnectX.
    #[error("{device}: {reason}; write verbs:{device} to use it by libibverbs")]
    NoDirectRings { device: String, reason: &'static str },
    #[error("{device}: there is no port {port}; ports go from 1 to {ports}")]
    NoSuchPort { device: String, port: u8, ports: u8 },
    #[error("{device}: {verb}: {}; {advice}", std::io::Error::from_raw_os_error(*.errno))]
    System { device: String, verb: &'static str, errno: i32, advice: &'static str },
}

/// Parses a name such as `mlx5_0:2` into device and port; the default port is 1.
pub fn parse_name(name: &str) -> Result<(&str, u8), HcaOpenError> {
    let bad = || HcaOpenError::BadName { name: name.to_owned() };
    let (device, port) = match name.split_once(':') {
        None => (name, 1),
        Some((device, port)) => (device, port.parse().map_err(|_| bad())?),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if device.is_empty() || !device.chars().all(is_plain) || port == 0 {
        return Err(bad());
    }
    Ok((device, port))
}

/// The advice for this errno of a verb.
#[cfg(feature = "hca")]
pub(crate) fn advice(errno: i32) -> &'static str {
    match Errno::from_raw_os_error(errno) {
        Errno::NOSYS => "load the kernel module ib_uverbs, and look for it in the kernel's log",
        Errno::NOENT | Errno::NXIO => "look for /dev/infiniband/uverbs*: is ib_uverbs loaded?",
        Errno::PERM | Errno::ACCESS => {
            "look at the rights of /dev/infiniband/uverbs*: are you in the group rdma?"
        }
        Errno::NOMEM | Errno::AGAIN => {
            "look at the memory limit (ulimit -l) and at how many objects are in use (rdma \
             resource)"
        }
        Errno::INVAL => "the adapter refused the arguments; the kernel's log may say which one",
        Errno::OPNOTSUPP => "the adapter's driver does not have this",
        Errno::BUSY => "something else still uses it",
        Errno::IO | Errno::NODEV => "the adapter failed or was replaced: open it anew",
        Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::TIMEDOUT => {
            "the peer's address could not be resolved: look at the network device under the port"
        }
        _ => "look at the kernel's log",
    }
}

/// The advice if the umad devices are missing.
#[cfg(feature = "hca")]
pub(crate) const UMAD: &str = "look for /sys/class/infiniband_mad/umad*: is ib_umad loaded?";

/// The advice for this errno of libibumad.
#[cfg(feature = "hca")]
pub(crate) fn umad_advice(errno: i32) -> &'static str {
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::INVAL => UMAD,
        Errno::PERM | Errno::ACCESS => {
            "look at the rights of /dev/infiniband/umad* and issm*, which are mostly root's"
        }
        Errno::NOMEM | Errno::AGAIN => "a port has room for 32 agents; how many are there?",
        Errno::IO => "is the port still there? The kernel's log may say more",
        Errno::OPNOTSUPP => "the kernel is older than 2.6.24; Pollux needs its P_Keys",
        _ => "look at the kernel's log",
    }
}

/// The errno of this thread's last call.
#[cfg(feature = "hca")]
pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The error of a verb that the system refused.
#[cfg(feature = "hca")]
pub(crate) fn refused(device: &str, verb: &'static str, errno: i32) -> VerbsError {
    match Errno::from_raw_os_error(errno) {
        Errno::NODEV | Errno::IO if is_gone(device) => VerbsError::Gone,
        Errno::OPNOTSUPP | Errno::NOSYS => {
            VerbsError::Unsupported { verb, capability: "driver support for it" }
        }
        _ => VerbsError::System { verb, errno, advice: format!("{device}: {}", advice(errno)) },
    }
}

/// Whether a device was unplugged. The kernel reports an I/O error, as for other failures, but then
/// the device is no longer in sysfs.
#[cfg(feature = "hca")]
pub(crate) fn is_gone(device: &str) -> bool {
    !std::path::Path::new("/sys/class/infiniband").join(device).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_a_device_and_perhaps_a_port() {
        assert_eq!(parse_name("mlx5_0"), Ok(("mlx5_0", 1)));
        assert_eq!(parse_name("mlx5_0:2"), Ok(("mlx5_0", 2)));
        for name in ["", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:256", "a:1:2", "../x", "mlx5 0"] {
            assert_eq!(
                parse_name(name),
                Err(HcaOpenError::BadName { name: name.into() }),
                "{name}"
            );
        }
    }
}
