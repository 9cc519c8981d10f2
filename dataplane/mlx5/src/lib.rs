//! A ConnectX driver that writes and reads the work queues itself, without libmlx5.
//!
//! [`open`] returns a [`Device`](pollux_verbs::Device), as every other backend does. The objects
//! are those of `pollux-ibverbs`, which libibverbs and libmlx5 create. libmlx5 then returns the
//! addresses of the rings, doorbell records and doorbell registers of an object
//! (`mlx5dv_init_obj`). From then on, this crate posts, polls and handles notifications itself.
//! Without the feature `hca`, the crate needs no C library, and opening a device fails.
//!
//! Read in this order:
//!
//! 1. `wqe` and `cqe`: the formats of queue entries; `bindings`: the definitions in the installed
//!    header, against which the formats are checked;
//! 2. `barrier` and `memory`: the order in which processor and adapter see each other's stores;
//! 3. `rings`: send, receive, shared receive and completion queues;
//! 4. `device`: the implementation of [`Device`](pollux_verbs::Device).
//!
//! A post writes entries to the ring, then the doorbell record, and for sends then the doorbell,
//! with a barrier between these steps. A poll reads the owner bit of an entry, executes a barrier,
//! and reads the entry. Then it writes the consumer index to the doorbell record.
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg_attr(feature = "hca", allow(unsafe_code, reason = "rings that an adapter reads and writes"))]

#[cfg(feature = "hca")]
mod barrier;
#[cfg(feature = "hca")]
mod bindings;
#[cfg(feature = "hca")]
mod cqe;
#[cfg(feature = "hca")]
mod device;
#[cfg(feature = "hca")]
mod memory;
#[cfg(feature = "hca")]
mod rings;
#[cfg(feature = "hca")]
mod wqe;

use pollux_ibverbs::{HcaOpenError, OpenedHca, parse_name};
#[cfg(feature = "hca")]
use {device::ConnectX, pollux_ibverbs::Hca};

/// Opens a ConnectX: `mlx5_0`, or `mlx5_0:2` for its second port.
pub fn open(name: &str) -> Result<OpenedHca, HcaOpenError> {
    let (device, port) = parse_name(name)?;
    #[cfg(feature = "hca")]
    return ConnectX::open(device, port).map(|device| OpenedHca { device: Box::new(device), port });
    #[cfg(not(feature = "hca"))]
    {
        let _ = port;
        Err(HcaOpenError::NotBuilt { device: device.to_owned() })
    }
}

/// Opens an adapter of any kind. A ConnectX is used by its rings. Other adapters, and a ConnectX
/// whose WQEs are signed, are used by libibverbs alone.
pub fn open_or_verbs(name: &str) -> Result<OpenedHca, HcaOpenError> {
    #[cfg(not(feature = "hca"))]
    return open(name);
    #[cfg(feature = "hca")]
    {
        let (device, port) = parse_name(name)?;
        let device: Box<dyn pollux_verbs::Device + Send> =
            match ConnectX::over(Hca::open(device, port)?) {
                Ok(device) => Box::new(device),
                Err(refused) => Box::new(refused.0),
            };
        Ok(OpenedHca { device, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_adapter_is_named_in_the_error() {
        for open in [open, open_or_verbs] {
            let Err(error) = open("no_such_0:1") else { panic!("opened what does not exist") };
            assert!(error.to_string().starts_with("no_such_0: "), "{error}");
        }
    }
}
