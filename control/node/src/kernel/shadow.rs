//! A shadow of an interface: a TUN device that has the addresses, MTU and carrier of the interface.
//!
//! An unmodified routing daemon speaks to its peers through the shadow, and its carrier shows
//! whether the interface is up. Packets to this host are *punted* into the shadow of the interface
//! where they arrived. Packets from the kernel are *injected* from the shadow into the interface.
//!
//! Why address generation and reverse path filter are set before the device is set up: in one
//! request with *up*, the kernel would generate a random link-local address before it reads that it
//! must not. The filter is loose, since packets of a peer may arrive by another interface than the
//! one of the route to the peer. Addresses are set with their prefix length, so that gateways are
//! on the link, and without duplicate address detection, which the interface itself has done.
//!
//! When the last descriptor is closed, the kernel removes the device and its routes. If a service
//! manager keeps a descriptor, the device outlives the process, and the next process takes it over
//! unchanged ([`TunDevice::take_over`]).

use super::KernelError;
use super::tun::TunOptions;
use super::tun_device::TunDevice;
use pollux_wire::netlink::link::LinkChange;

/// Reverse path filter: a source needs a route, by whatever interface (RFC 3704 2.4).
const RP_FILTER_LOOSE: u32 = 2;
/// The kernel makes no link-local address.
const ADDR_GEN_MODE_NONE: u8 = 1;

/// Makes the device `name`, without carrier and without addresses, and sets it up.
///
/// Fails with `EBUSY` if a device of this name is there already.
pub fn open_shadow(name: &str) -> Result<TunDevice, KernelError> {
    let mut device = TunDevice::open(name, TunOptions::default())?;
    device.change_link(LinkChange {
        rp_filter: Some(RP_FILTER_LOOSE),
        addr_gen_mode: Some(ADDR_GEN_MODE_NONE),
        ..LinkChange::default()
    })?;
    device.set_up()?;
    Ok(device)
}
