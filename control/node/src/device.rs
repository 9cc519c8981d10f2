//! Devices by name: only this file knows every backend.
//!
//! ```text
//! soft:                   a port of a fabric that is private to this process
//! soft:PATH@NODE[:PORT]   a port of a running `pollux fabric --socket PATH`: NODE by its name or
//!                         GUID, and without PORT the first port that has a cable
//! mlx5_0[:PORT]           a hardware adapter, by its libibverbs name; the node itself drives the
//!                         work queues of a ConnectX
//! verbs:mlx5_0[:PORT]     the same adapter through libibverbs, even if it is a ConnectX
//! null:                   a source and sink of packets, for measuring the engine alone
//! ```
//!
//! An opened device belongs to the caller ([`Device`]): two threads that want the same adapter open
//! it once, and the second thread gets a shared context ([`Device::open_shared`]). Each open of
//! `soft:` takes the next free host of the private fabric of the process. The fabric starts with
//! the first open, and ends when the last such device is dropped.

use crate::fabric::{self, Embedded, embedded};
use pollux_fabric::link::threads::Clock;
use pollux_fabric::null::NullDevice;
use pollux_fabric::process::{self, AgentPort, ProcessLink};
use pollux_fabric::{SoftDevice, Time};
use pollux_ibverbs::management::ManagementPort;
use pollux_verbs::Device;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

pub struct Opened {
    pub device: Box<dyn Device + Send>,
    /// The port, counted from 1.
    pub port: u8,
    /// The private fabric of the device, which has to outlive it.
    pub fabric: Option<Arc<Embedded>>,
    /// The MAD transport that the configuration names; without one, the port chooses.
    pub management: Option<Box<dyn ManagementPort>>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceOpenError {
    #[error(
        "{0:?} is not a device name; write soft: for a private fabric of the process, \
         soft:PATH@NODE[:PORT] for a port of one that runs as `pollux fabric --socket PATH`, \
         mlx5_0[:PORT] for an adapter, verbs:mlx5_0[:PORT] for it by libibverbs, or null: for a \
         source and sink of packets"
    )]
    Name(String),
    #[error("{}", soft_advice(.0))]
    Soft(process::OpenError),
    #[error("{0}")]
    Private(fabric::FabricStartError),
    #[error(
        "all hosts of the private fabric are in use; for more, start \
         `pollux fabric --topology single:N --socket PATH` and open soft:PATH@hostN"
    )]
    PrivateFull,
    #[error("{0}")]
    Hardware(pollux_ibverbs::HcaOpenError),
}

fn soft_advice(error: &process::OpenError) -> String {
    match error {
        process::OpenError::NoServer(address, _) => {
            let path = address.path.display();
            format!("{error}; start one with `pollux fabric --socket {path}`")
        }
        _ => error.to_string(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    Private,
    Null,
    Soft(process::PortAddress),
    Adapter {
        device: String,
        /// The number after the colon, by default 1.
        port: u8,
        /// Whether libibverbs drives the adapter even if it is a ConnectX.
        is_verbs: bool,
    },
}

/// The prefix of a name that selects libibverbs.
const VERBS: &str = "verbs:";

impl DeviceName {
    /// Parses a name. The device may be missing.
    pub fn parse(name: &str) -> Result<Self, DeviceOpenError> {
        let wrong = || DeviceOpenError::Name(name.into());
        match name.split_once(':') {
            Some(("soft", "")) => Ok(Self::Private),
            Some(("null", "")) => Ok(Self::Null),
            Some(("soft", _)) => {
                process::PortAddress::parse(name).map(Self::Soft).ok_or_else(wrong)
            }
            // The colon is missing, or something follows it.
            None if matches!(name, "soft" | "null" | "verbs") => Err(wrong()),
            Some(("null", _)) => Err(wrong()),
            _ => {
                let adapter = name.strip_prefix(VERBS);
                let is_verbs = adapter.is_some();
                let parsed = pollux_ibverbs::parse_name(adapter.unwrap_or(name));
                let (device, port) = parsed.map_err(|_| wrong())?;
                Ok(Self::Adapter { device: device.into(), port, is_verbs })
            }
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Private => f.write_str("soft:"),
            Self::Null => f.write_str("null:"),
            Self::Soft(address) => address.fmt(f),
            Self::Adapter { device, port, is_verbs } => {
                write!(f, "{}{device}:{port}", if *is_verbs { VERBS } else { "" })
            }
        }
    }
}

pub fn open(name: &str) -> Result<Opened, DeviceOpenError> {
    match DeviceName::parse(name)? {
        DeviceName::Private => open_private(),
        DeviceName::Null => Ok(alone(Box::new(NullDevice::new()), 1)),
        DeviceName::Soft(_) => {
            let device = process::open(name, clock()).map_err(DeviceOpenError::Soft)?;
            // A software device has one port, number 1, whichever port of the fabric node it is.
            Ok(alone(Box::new(device), 1))
        }
        DeviceName::Adapter { device, port, is_verbs } => {
            let open = if is_verbs { pollux_ibverbs::open } else { pollux_mlx5::open_or_verbs };
            let opened = open(&format!("{device}:{port}")).map_err(DeviceOpenError::Hardware)?;
            Ok(alone(opened.device, opened.port))
        }
    }
}

/// Opens a port of a software fabric that all processes with this secret may open. The port keeps
/// its cable while the caller holds the returned [`AgentPort`].
pub(crate) fn open_in_group(
    name: &str,
    secret: u64,
) -> Result<(SoftDevice<ProcessLink>, AgentPort), DeviceOpenError> {
    let held = AgentPort::open(name, secret, false, &clock()).map_err(DeviceOpenError::Soft)?;
    let opened = process::open_in_group(name, &clock(), secret).map_err(DeviceOpenError::Soft)?;
    Ok((opened, held))
}

/// Opens the device `name`. `management` is the libibumad port for the MADs of the device's port.
pub fn open_managed(name: &str, management: Option<&str>) -> Result<Opened, DeviceOpenError> {
    let opened = open(name)?;
    let management = management.map(pollux_ibverbs::open_management).transpose();
    Ok(Opened { management: management.map_err(DeviceOpenError::Hardware)?, ..opened })
}

fn alone(device: Box<dyn Device + Send>, port: u8) -> Opened {
    Opened { device, port, fabric: None, management: None }
}

/// Opens the next free host of the private fabric.
fn open_private() -> Result<Opened, DeviceOpenError> {
    let fabric = embedded::private().map_err(DeviceOpenError::Private)?;
    for name in fabric.ports_in_turn() {
        match process::open(&name, clock()) {
            Err(process::OpenError::Refused(..)) => {}
            Err(error) => return Err(DeviceOpenError::Soft(error)),
            Ok(device) => {
                let fabric = Some(Arc::clone(&fabric));
                return Ok(Opened { fabric, ..alone(Box::new(device), 1) });
            }
        }
    }
    Err(DeviceOpenError::PrivateFull)
}

#[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
fn clock() -> Clock {
    let start = Instant::now();
    Arc::new(move || Time::START + start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_devices_are_refused_with_advice() {
        let refusal = |name: &str| open(name).err().expect("it is refused").to_string();
        let wrong = ["", ":1", "soft:@", "soft:/run/x", "tap:x", "soft:x@y:0", "soft:x@y:999"];
        for name in
            wrong.into_iter().chain(["null:2", "null", "soft", "mlx5_0:0", "mlx5_0:300", "a b"])
        {
            assert!(refusal(name).contains("soft:PATH@NODE[:PORT]"), "{}", refusal(name));
        }
        assert!(
            DeviceOpenError::PrivateFull.to_string().contains("pollux fabric --topology single:N")
        );
        assert_eq!(open("null:").expect("it needs nothing").device.attributes().name, "null:");
        let nowhere = refusal("soft:/nowhere/fabric@host1");
        assert!(nowhere.contains("pollux fabric --socket /nowhere/fabric"), "{nowhere}");
        assert!(refusal("no_such_0:1").starts_with("no_such_0"), "{}", refusal("no_such_0:1"));
    }

    #[test]
    fn adapters_are_used_by_libibverbs_on_request() {
        let adapter = |port, is_verbs| {
            let device = "mlx5_0".into();
            DeviceName::Adapter { device, port, is_verbs }
        };
        for (name, expected) in [
            ("mlx5_0", adapter(1, false)),
            ("mlx5_0:2", adapter(2, false)),
            ("verbs:mlx5_0", adapter(1, true)),
            ("verbs:mlx5_0:2", adapter(2, true)),
        ] {
            let parsed = DeviceName::parse(name).expect("it is a name");
            assert_eq!(parsed, expected);
            assert_eq!(DeviceName::parse(&parsed.to_string()).expect("it is one"), expected);
        }
        for name in ["verbs", "verbs:", "verbs:mlx5_0:0", "verbs:soft:"] {
            assert!(DeviceName::parse(name).is_err(), "{name}");
        }
        let missing = open("verbs:no_such_0").err().expect("it is refused").to_string();
        assert!(missing.starts_with("no_such_0: "), "{missing}");
    }

    #[test]
    fn devices_of_a_process_share_one_fabric() {
        let all: Vec<_> = (0..16).map(|_| open("soft:").expect("there is a host")).collect();
        assert!(matches!(open("soft:"), Err(DeviceOpenError::PrivateFull)));
        let fabric = all[0].fabric.as_ref().expect("it is ours");
        let is_same = |one: &Opened| one.fabric.as_ref().is_some_and(|it| Arc::ptr_eq(it, fabric));
        assert!(all.iter().all(is_same));
        let path = fabric.path();
        drop(all);
        assert!(!path.exists(), "the last one ends it");
        assert!(open("soft:").is_ok(), "and the next begins another");
    }
}
