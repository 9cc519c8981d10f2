//! The kernel's device of a plain interface: TUN or Ethernet.

use super::ethernet_device::{EthernetDevice, EthernetError};
use crate::kernel::KernelError;
use crate::kernel::tun_device::TunDevice;
use pollux_control::plain::PlainInterface;
use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// Interval of checks of an Ethernet device: carrier, MTU and address.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A device of the kernel: a TUN device of this process, or an Ethernet device found by its name.
pub(super) enum PlainDevice {
    Tun(TunDevice),
    Ethernet {
        device: EthernetDevice,
        look_at: Time,
        /// The failure at the last check.
        failed: Option<EthernetError>,
    },
}

impl PlainDevice {
    /// Sets a TUN device to the state of the interface, or the interface to the state of an
    /// Ethernet device.
    pub(super) fn follow(
        &mut self,
        now: Time,
        control: &mut PlainInterface,
        kernel_addresses: &BTreeSet<(IpAddr, u8)>,
    ) -> Result<(), KernelError> {
        match self {
            // The carrier is set last, so that the device is complete; but it is set even after a
            // refusal.
            Self::Tun(device) => device
                .set_mtu(control.mtu())
                .and_then(|()| device.set_addresses(kernel_addresses))
                .and_then(|()| device.set_up())
                .and(device.set_carrier(control.is_up())),
            Self::Ethernet { device, look_at, failed } => {
                *look_at = now + LOOK_EVERY;
                match device.look() {
                    Ok(down) => control.set_link(now, down),
                    Err(why) => *failed = Some(why),
                }
                Ok(())
            }
        }
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.poll_timeout().is_some_and(|due| due <= now)
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match self {
            Self::Tun(_) => None,
            Self::Ethernet { look_at, failed, .. } => failed.is_none().then_some(*look_at),
        }
    }

    /// Why the device cannot be used any more.
    pub(super) fn failed(&self) -> Option<EthernetError> {
        match self {
            Self::Tun(_) => None,
            Self::Ethernet { failed, .. } => failed.clone(),
        }
    }

    pub(super) const fn mtu_max(&self) -> u32 {
        match self {
            Self::Tun(_) => u32::MAX,
            Self::Ethernet { device, .. } => device.mtu(),
        }
    }

    /// The method by which packets pass, for reports.
    pub(super) fn method(&self) -> String {
        match self {
            Self::Tun(device) => format!("packets pass to and from {}", device.name()),
            Self::Ethernet { device, .. } => device.method(),
        }
    }

    pub(super) fn leave(&mut self) {
        if let Self::Tun(device) = self {
            let _ = device.set_carrier(false);
        }
    }
}
