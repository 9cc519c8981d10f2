//! Work queues of a ConnectX, written and read without libmlx5.
//!
//! [`open`] returns a [`Device`](pollux_verbs::Device), as every other backend does. The objects
//! are those of `pollux-ibverbs`, made by libibverbs and libmlx5. libmlx5 says where the rings,
//! doorbell records and doorbell registers of an object are (`mlx5dv_init_obj`); from then on, this
//! crate does the posts, polls and notifications. Without the feature `hca` the crate needs no C
//! library, and opening a device fails.
//!
//! Read in this order:
//!
//! 1. `wqe` and `cqe`: the formats; `bindings`: the same from the installed header;
//! 2. `barrier` and `memory`: the order in which processor and adapter see each other's stores;
//! 3. `rings`: send, receive, shared receive and completion queues;
//! 4. `device`: the implementation of [`Device`](pollux_verbs::Device).
//!
//! A post is: entries into the ring, the doorbell record, and for sends the doorbell, with a
//! barrier between each two. A poll is: the owner bit of an entry, a barrier, the entry; then the
//! consumer index into the record.
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

/// Opens an adapter of any kind: a ConnectX by its rings, and by libibverbs alone other adapters
/// and a ConnectX whose WQEs are signed.
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
