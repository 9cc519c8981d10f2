//! A shadow of an interface: a TUN device that has its addresses, MTU and carrier.
//!
//! An unmodified routing daemon speaks to its peers through the shadow, and sees by it whether the
//! interface is up. Packets for us are *punted* into the shadow of the interface where they
//! arrived; packets of the kernel are *injected* from it into the interface.
//!
//! Order of the settings: address generation and reverse path filter first, then addresses, then
//! up. In one request with *up* the kernel would make a random link-local address before it reads
//! that it shall make none. The filter is loose, since a peer's packets may arrive by another
//! interface than the route back to it leaves by. Addresses are set with their prefix length, so
//! that gateways are on the link, and without duplicate address detection: the interface itself has
//! done that.
//!
//! The kernel removes the device, and its routes, with the last descriptor. A service
//! manager that keeps another one lets the device outlive the process; the next process takes it
//! over as it is ([`TunDevice::take_over`]), and the kernel notices nothing.

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
