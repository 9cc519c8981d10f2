//! Hardware adapters, through libibverbs and libibumad.
//!
//! [`open`] returns a [`Device`], as every other backend does. Without the feature `hca` the crate
//! needs no C library, and opening a device fails; the `doctor` still works, because it reads only
//! files.
//!
//! Read in this order:
//!
//! 1. `hca`: the device, its objects, and the order of their destruction;
//! 2. `hca/post` and `hca/poll`: the fast path, with arrays from `batch`;
//! 3. `management`: the interface for management datagrams, which have a separate kernel interface;
//!    `umad`: its implementation with libibumad;
//! 4. `doctor` and `libraries`: diagnosis of this machine; `error`: errors of libraries and the
//!    kernel.
//!
//! Why `ibverbs-sys`: the crate generates its bindings from a copy of rdma-core's headers and links
//! the system's library. The bindings lack the inline functions of these headers; the fast path
//! calls the function pointers in the context instead, which costs the same.
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg_attr(feature = "hca", allow(unsafe_code, reason = "a library of C, and its pointers"))]

#[cfg(feature = "hca")]
mod batch;
pub mod doctor;
mod error;
#[cfg(feature = "hca")]
mod hca;
#[cfg(feature = "hca")]
mod libraries;
pub mod management;
#[cfg(feature = "hca")]
pub mod umad;

pub use error::{HcaOpenError, parse_name};
#[cfg(feature = "hca")]
pub use hca::{CreateQp, Hca};

use doctor::{DoctorFinding, Roots};
use management::ManagementPort;
use pollux_verbs::Device;

/// Whether this build can open any adapter.
pub const OPENS_ADAPTERS: bool = cfg!(feature = "hca");

/// A device, and the port that was given with its name.
pub struct OpenedHca {
    pub device: Box<dyn Device + Send>,
    /// The port, counted from 1.
    pub port: u8,
}

/// Opens a device by name: `mlx5_0`, or `mlx5_0:2` for its second port.
pub fn open(name: &str) -> Result<OpenedHca, HcaOpenError> {
    let (device, port) = parse_name(name)?;
    #[cfg(feature = "hca")]
    return hca::open(device, port).map(|device| OpenedHca { device: Box::new(device), port });
    #[cfg(not(feature = "hca"))]
    {
        let _ = port;
        Err(HcaOpenError::NotBuilt { device: device.to_owned() })
    }
}

/// Opens a port for management datagrams: for the name `mlx5_0:2`, port 2 of `mlx5_0`.
pub fn open_management(name: &str) -> Result<Box<dyn ManagementPort>, HcaOpenError> {
    #[cfg(feature = "hca")]
    return Ok(Box::new(umad::UmadPort::open(name)?));
    #[cfg(not(feature = "hca"))]
    Err(HcaOpenError::NotBuilt { device: parse_name(name)?.0.to_owned() })
}

/// The diagnosis of this machine, for `pollux doctor`.
pub fn diagnose() -> Vec<DoctorFinding> {
    #[cfg(feature = "hca")]
    let mut findings = libraries::examine();
    #[cfg(not(feature = "hca"))]
    let mut findings = vec![doctor::finding(
        "build",
        doctor::DoctorVerdict::Warning,
        "this program opens no adapters in hardware",
        "build it with `--features hca` (scripts/host-setup --hca), or use `soft:`",
    )];
    findings.extend(doctor::examine(&Roots::default()));
    findings
}

/// The names of the adapters that libibverbs lists.
pub fn adapters() -> Vec<String> {
    #[cfg(feature = "hca")]
    return hca::names().unwrap_or_default();
    #[cfg(not(feature = "hca"))]
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_adapter_is_named_in_the_error() {
        let Err(error) = open("no_such_0:1") else { panic!("opened what does not exist") };
        let text = error.to_string();
        assert!(text.starts_with("no_such_0: "), "{text}");
        let expected = match error {
            HcaOpenError::NotBuilt { .. } => "feature `hca`",
            HcaOpenError::NoAdapters { .. } => "there is no RDMA adapter here",
            HcaOpenError::NoSuchDevice { .. } => "there is no such adapter",
            other => panic!("{other}"),
        };
        assert!(text.contains(expected), "{text}");
    }
}
