//! A TUN device of this process, with its MTU, addresses and carrier.
//!
//! When the last queue is closed, the kernel removes the device and its routes. A persistent device
//! of another process remains; attaching to it needs no capability.

use super::netlink_socket::NetlinkSocket;
use super::tun::{TunOptions, TunQueue};
use super::{ADD_ADDRESS, KernelError};
use crate::config::is_link_local;
use pollux_mem::tun::{OFFLOAD_CHECKSUM, OFFLOAD_TSO_V4, OFFLOAD_TSO_V6};
use pollux_wire::netlink::ip_address::{AddressFlags, AddressMessage};
use pollux_wire::netlink::link::LinkChange;
use pollux_wire::netlink::{MessageFlags, MessageType};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// `RT_SCOPE_LINK`: the address is valid on its link only.
const SCOPE_LINK: u8 = 253;
/// Length of the kernel's transmit queue of the device, in packets.
const QUEUE_LEN: u32 = 1000;

/// A TUN device, and its first queue.
#[derive(Debug)]
pub struct TunDevice {
    queue: TunQueue,
    requests: NetlinkSocket,
    index: u32,
    addresses: BTreeSet<(IpAddr, u8)>,
    mtu: Option<u32>,
    carrier: Option<bool>,
    is_up: bool,
}

impl TunDevice {
    /// Makes the device `name`, without carrier and without addresses.
    ///
    /// Fails with `EBUSY` if another process has the device.
    pub fn open(name: &str, options: TunOptions) -> Result<Self, KernelError> {
        let queue = TunQueue::open(name, options)?;
        if options.vnet_header {
            queue.set_offload(OFFLOAD_CHECKSUM | OFFLOAD_TSO_V4 | OFFLOAD_TSO_V6)?;
        }
        let mut device = Self::of_queue(queue)?;
        device.set_carrier(false)?;
        Ok(device)
    }

    /// Takes over the device `name` from an earlier process by its descriptor. The device keeps its
    /// addresses, MTU and carrier. `None` if the descriptor is not one of this device.
    pub fn take_over(
        fd: OwnedFd,
        name: &str,
        options: TunOptions,
    ) -> Result<Option<Self>, KernelError> {
        let queue = TunQueue::of_descriptor(fd, name, options);
        let Some(mut device) = queue.map(Self::of_queue).transpose()? else { return Ok(None) };
        let all = device.requests.addresses()?;
        let own = all.into_iter().filter(|address| address.index == device.index);
        device.addresses = own.map(|one| (one.address, one.prefix_len)).collect();
        device.is_up = true;
        Ok(Some(device))
    }

    fn of_queue(queue: TunQueue) -> Result<Self, KernelError> {
        let requests = NetlinkSocket::for_requests()?;
        let index = rustix::net::netdevice::name_to_index(&requests, queue.name())
            .map_err(KernelError::system("find the index of a TUN device"))?;
        Ok(Self {
            queue,
            requests,
            index,
            addresses: BTreeSet::new(),
            mtu: None,
            carrier: None,
            is_up: false,
        })
    }

    /// The carrier that this process has set; `None` if it has set none.
    pub const fn carrier(&self) -> Option<bool> {
        self.carrier
    }

    pub const fn addresses(&self) -> &BTreeSet<(IpAddr, u8)> {
        &self.addresses
    }

    pub fn name(&self) -> &str {
        self.queue.name()
    }

    pub const fn index(&self) -> u32 {
        self.index
    }

    pub const fn queue(&self) -> &TunQueue {
        &self.queue
    }

    pub fn set_mtu(&mut self, mtu: u32) -> Result<(), KernelError> {
        if self.mtu != Some(mtu) {
            self.change_link(LinkChange { mtu: Some(mtu), ..LinkChange::default() })?;
            self.mtu = Some(mtu);
        }
        Ok(())
    }

    /// Sets the carrier, by which routing daemons see whether the interface is up.
    pub fn set_carrier(&mut self, carrier: bool) -> Result<(), KernelError> {
        if self.carrier != Some(carrier) {
            self.queue.set_carrier(carrier)?;
            self.carrier = Some(carrier);
        }
        Ok(())
    }

    /// Sets the device up, at the first call only: an administrator may set it down later.
    pub fn set_up(&mut self) -> Result<(), KernelError> {
        if !self.is_up {
            self.change_link(LinkChange {
                promote_secondaries: Some(true),
                queue_len: Some(QUEUE_LEN),
                up: Some(true),
                ..LinkChange::default()
            })?;
            self.is_up = true;
        }
        Ok(())
    }

    /// Makes the next [`Self::set_addresses`] set all addresses again. The kernel removes IPv6
    /// addresses when a device is set down.
    pub fn forget_addresses(&mut self) {
        self.addresses.clear();
    }

    /// Sets the addresses of the kernel's end, each with its prefix length. Adds new addresses
    /// before it removes old ones: without an address, the kernel would remove the routes through
    /// the device. When an address is removed, another address of the same subnet replaces it.
    pub fn set_addresses(&mut self, wanted: &BTreeSet<(IpAddr, u8)>) -> Result<(), KernelError> {
        let old = self.addresses.clone();
        for &(address, prefix_len) in wanted.difference(&old) {
            self.add_address(address, prefix_len)?;
            self.addresses.insert((address, prefix_len));
        }
        for &(address, prefix_len) in old.difference(wanted) {
            self.remove_address(address, prefix_len)?;
            self.addresses.remove(&(address, prefix_len));
        }
        Ok(())
    }

    pub(super) fn change_link(&mut self, change: LinkChange) -> Result<(), KernelError> {
        let change = LinkChange { index: self.index, ..change };
        let operation = "change the link of a TUN device";
        let (kind, flags) = (MessageType::SET_LINK, MessageFlags::NONE);
        self.requests.request(operation, kind, flags, |out| change.write(out))
    }

    fn add_address(&mut self, address: IpAddr, prefix_len: u8) -> Result<(), KernelError> {
        let message = self.address_message(address, prefix_len);
        let flags = MessageFlags::CREATE.with(MessageFlags::REPLACE);
        let kind = MessageType::NEW_ADDRESS;
        self.requests.request(ADD_ADDRESS, kind, flags, |out| message.write(out))
    }

    /// If an administrator has removed the address already, that is no error.
    fn remove_address(&mut self, address: IpAddr, prefix_len: u8) -> Result<(), KernelError> {
        let message = self.address_message(address, prefix_len);
        let (operation, kind) = ("remove an address from a TUN device", MessageType::DEL_ADDRESS);
        let flags = MessageFlags::NONE;
        match self.requests.request(operation, kind, flags, |out| message.write(out)) {
            Err(error) if error.errno() == Some(Errno::ADDRNOTAVAIL) => Ok(()),
            result => result,
        }
    }

    fn address_message(&self, address: IpAddr, prefix_len: u8) -> AddressMessage {
        AddressMessage {
            index: self.index,
            address,
            prefix_len,
            flags: AddressFlags::PERMANENT.with(AddressFlags::NO_DAD),
            scope: if is_link_local(address) { SCOPE_LINK } else { 0 },
        }
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}
