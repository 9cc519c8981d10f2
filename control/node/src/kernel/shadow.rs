//! A shadow of an interface: a TUN device that has its addresses, MTU and carrier.
//!
//! A routing daemon that was never changed for us speaks to its peers through the shadow and sees
//! the interface come and go by it. Packets for us are *punted* into the shadow of the interface
//! they came in by; packets of the kernel are *injected* from it into the interface.
//!
//! Order of the settings: address generation and reverse path filter first, then addresses, then
//! up. In one request with *up* the kernel would make a random link-local address before it reads
//! that it shall make none. The filter is loose, since a peer's packets may come in by another
//! interface than the route back to it leaves by. Addresses are set with their whole prefix, so
//! that gateways are on the link, and without duplicate address detection: the interface itself has
//! done that.
//!
//! The device goes with its last descriptor, and the kernel's routes through it as well. A service
//! manager that keeps another one lets the device outlive the process; the next process takes it
//! over as it is ([`Shadow::take_over`]), and the kernel notices nothing.

use super::KernelError;
use super::tun::{TunOptions, TunWritten};
use super::tun_device::TunDevice;
use pollux_wire::netlink::link::LinkChange;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Reverse path filter: a source needs a route, by whatever interface (RFC 3704 2.4).
const RP_FILTER_LOOSE: u32 = 2;
/// The kernel makes no link-local address.
const ADDR_GEN_MODE_NONE: u8 = 1;

/// Packets of a shadow, and its drops by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShadowCounters {
    /// Packets that the kernel took.
    pub punted: u64,
    /// Packets that it had no room for.
    pub punt_full: u64,
    /// Packets that it refused: the shadow is down, or they are no IP packets.
    pub punt_refused: u64,
    /// Packets that came from the kernel.
    pub injected: u64,
}

/// The shadow of one interface.
#[derive(Debug)]
pub struct Shadow {
    device: TunDevice,
    counters: ShadowCounters,
}

impl Shadow {
    /// Makes the device `name`, without carrier and without addresses, and sets it up.
    ///
    /// Fails with `EBUSY` if a device of this name is there already.
    pub fn open(name: &str) -> Result<Self, KernelError> {
        let mut device = TunDevice::open(name, TunOptions::default())?;
        device.change_link(LinkChange {
            rp_filter: Some(RP_FILTER_LOOSE),
            addr_gen_mode: Some(ADDR_GEN_MODE_NONE),
            ..LinkChange::default()
        })?;
        device.set_up()?;
        Ok(Self { device, counters: ShadowCounters::default() })
    }

    /// Takes the device `name` over from an earlier process, by the descriptor that this one had,
    /// with its addresses, MTU and carrier. `None` if the descriptor is none of that device.
    pub fn take_over(fd: OwnedFd, name: &str) -> Result<Option<Self>, KernelError> {
        let device = TunDevice::take_over(fd, name, TunOptions::default())?;
        Ok(device.map(|device| Self { device, counters: ShadowCounters::default() }))
    }

    /// The carrier that it was given since it was made or taken over.
    pub const fn carrier(&self) -> Option<bool> {
        self.device.carrier()
    }

    /// The addresses that it has.
    pub const fn addresses(&self) -> &BTreeSet<(IpAddr, u8)> {
        self.device.addresses()
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// Index of the device.
    pub const fn index(&self) -> u32 {
        self.device.index()
    }

    /// Packets and drops so far.
    pub const fn counters(&self) -> ShadowCounters {
        self.counters
    }

    /// Sets the MTU: that of IP on the interface.
    pub fn set_mtu(&mut self, mtu: u32) -> Result<(), KernelError> {
        self.device.set_mtu(mtu)
    }

    /// Sets the carrier: whether the interface is up. Daemons converge by it.
    pub fn set_carrier(&mut self, carrier: bool) -> Result<(), KernelError> {
        self.device.set_carrier(carrier)
    }

    /// Sets the VRF device that it belongs to, by index; 0 for none.
    pub fn set_master(&mut self, master: u32) -> Result<(), KernelError> {
        self.device.change_link(LinkChange { master: Some(master), ..LinkChange::default() })
    }

    /// Sets the addresses, each with its prefix length.
    pub fn set_addresses(&mut self, wanted: &BTreeSet<(IpAddr, u8)>) -> Result<(), KernelError> {
        self.device.set_addresses(wanted)
    }

    /// The device was set down and up again: the kernel took addresses of IPv6 from it, which
    /// [`Self::set_addresses`] gives it again.
    pub fn forget_addresses(&mut self) {
        self.device.forget_addresses();
    }

    /// Gives the kernel a packet that came in by the interface and is for this host.
    pub fn punt(&mut self, packet: &[u8]) -> Result<TunWritten, KernelError> {
        let written = self.device.own_queue().write(packet)?;
        let counter = match written {
            TunWritten::Taken => &mut self.counters.punted,
            TunWritten::Full => &mut self.counters.punt_full,
            TunWritten::Refused => &mut self.counters.punt_refused,
        };
        *counter += 1;
        Ok(written)
    }

    /// Takes a packet that the kernel sends by the interface; gives its length.
    pub fn inject(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, KernelError> {
        let len = self.device.own_queue().read(buffer)?;
        self.counters.injected += u64::from(len.is_some());
        Ok(len)
    }
}

impl AsFd for Shadow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.own_queue().as_fd()
    }
}
