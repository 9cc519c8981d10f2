//! Devices by name: the one place that knows every backend.
//!
//! ```text
//! soft:PATH@NODE[:PORT]   a port of a running `pollux fabric --socket PATH`
//! mlx5_0[:PORT]           an adapter in hardware, as libibverbs calls it
//! ```
//!
//! What is opened is the caller's own ([`Device`]): two threads that want the same adapter open it
//! twice, and of a fabric two ports.

use pollux_fabric::Time;
use pollux_fabric::link::threads::Clock;
use pollux_fabric::process;
use pollux_verbs::Device;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// A device, and the port of it that its name asked for.
pub struct Opened {
    /// The device.
    pub device: Box<dyn Device + Send>,
    /// The port, counted from 1.
    pub port: u8,
}

/// Why a device cannot be opened: one sentence, and what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// No kind of device is called so.
    Name(String),
    /// The port of a fabric.
    Soft(process::OpenError),
    /// An adapter in hardware.
    Hardware(pollux_ibverbs::OpenError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "{name:?} names no device; write soft:PATH@NODE[:PORT] for a port of a fabric \
                 that runs as `pollux fabric --socket PATH`, or mlx5_0[:PORT] for an adapter"
            ),
            Self::Soft(error @ process::OpenError::NoServer(address, _)) => {
                let path = address.path.display();
                write!(f, "{error}; start one with `pollux fabric --socket {path}`")
            }
            Self::Soft(error) => error.fmt(f),
            Self::Hardware(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

/// Opens a device by its name.
pub fn open(name: &str) -> Result<Opened, OpenError> {
    match name.split_once(':') {
        Some(("soft", _)) if process::Address::parse(name).is_some() => {
            let device = process::open(name, clock()).map_err(OpenError::Soft)?;
            // The adapter has one port, whichever of the node's it is at.
            Ok(Opened { device: Box::new(device), port: 1 })
        }
        Some((kind, port)) if kind.is_empty() || port.parse::<u8>().is_err() => {
            Err(OpenError::Name(name.into()))
        }
        None if name.is_empty() => Err(OpenError::Name(name.into())),
        _ => {
            let opened = pollux_ibverbs::open(name).map_err(OpenError::Hardware)?;
            Ok(Opened { device: opened.device, port: opened.port })
        }
    }
}

/// The machine's clock, from now on.
#[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
fn clock() -> Clock {
    let start = Instant::now();
    Arc::new(move || Time::START + start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_opened_is_refused_with_advice() {
        let refusal = |name: &str| open(name).err().expect("it is refused").to_string();
        for name in ["", ":1", "soft:", "soft:/run/x", "tap:x", "soft:x@y:0"] {
            assert!(refusal(name).contains("soft:PATH@NODE[:PORT]"), "{}", refusal(name));
        }
        let nowhere = refusal("soft:/nowhere/fabric@host1");
        assert!(nowhere.contains("pollux fabric --socket /nowhere/fabric"), "{nowhere}");
        assert!(refusal("no_such_0:1").starts_with("no_such_0"), "{}", refusal("no_such_0:1"));
    }
}
