//! The properties of a network device by ioctl (`linux/if.h`): index, flags, MTU, address.
//!
//! Why this is in `pollux-mem`: an ioctl passes memory to the kernel, which is `unsafe`. Each
//! request passes its own `ifreq`, and the kernel writes at most the size of `struct ifreq`. Why
//! not netlink: the replies to four ioctls need no parser. The four values are not one atomic
//! snapshot.

use crate::system_call::{NAME_BYTES, interface_name};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::os::fd::{AsFd, OwnedFd};

/// `SIOCGIFFLAGS`, and the requests for MTU, hardware address and index.
const READ_FLAGS: Opcode = 0x8913;
const READ_MTU: Opcode = 0x8921;
const READ_ADDRESS: Opcode = 0x8927;
const READ_INDEX: Opcode = 0x8933;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    value: [u8; 24],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);

/// `IFF_UP`.
const UP: u16 = 1;
/// `IFF_RUNNING`.
const RUNNING: u16 = 1 << 6;
/// `ARPHRD_ETHER`.
const ETHERNET: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetDevice {
    /// The kernel's index, which differs when a device of the same name replaces this one.
    pub index: u32,
    /// Whether the administrator has enabled the device.
    pub is_up: bool,
    /// Whether it is operational (RFC 2863): it has a carrier, and does not wait for another
    /// protocol.
    pub has_carrier: bool,
    /// In bytes, without the link-layer header.
    pub mtu: u32,
    /// `None` if the device is not Ethernet.
    pub address: Option<[u8; 6]>,
}

/// A socket for queries about the devices of a network namespace.
#[derive(Debug)]
pub struct NetDeviceSocket(OwnedFd);

impl NetDeviceSocket {
    /// Opens the socket in the namespace of this thread.
    pub fn open() -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC;
        socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).map(Self)
    }

    /// Reads the properties of a device. Fails with `NODEV` if no device has this name.
    pub fn read(&self, name: &str) -> Result<NetDevice, Errno> {
        let word = |value: [u8; 24]| u32::from_ne_bytes([value[0], value[1], value[2], value[3]]);
        let short = |value: [u8; 24]| u16::from_ne_bytes([value[0], value[1]]);
        let index = word(self.ask::<READ_INDEX>(name)?);
        let flags = short(self.ask::<READ_FLAGS>(name)?);
        let mtu = word(self.ask::<READ_MTU>(name)?);
        let address = self.ask::<READ_ADDRESS>(name)?;
        let [_, _, a, b, c, d, e, f, ..] = address;
        Ok(NetDevice {
            index,
            is_up: flags & UP != 0,
            has_carrier: flags & RUNNING != 0,
            mtu,
            address: (short(address) == ETHERNET).then_some([a, b, c, d, e, f]),
        })
    }

    fn ask<const REQUEST: Opcode>(&self, name: &str) -> Result<[u8; 24], Errno> {
        let name = interface_name(name).ok_or(Errno::NODEV)?;
        let mut request = InterfaceRequest { name, value: [0; 24] };
        // SAFETY: the four requests above read and write a `struct ifreq`, and InterfaceRequest has
        // its size.
        unsafe { ioctl(self.0.as_fd(), Updater::<REQUEST, _>::new(&mut request)) }?;
        Ok(request.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_a_device_and_none_of_ethernet() {
        let devices = NetDeviceSocket::open().expect("a socket");
        let lo = devices.read("lo").expect("every namespace has it");
        assert!(lo.index > 0 && lo.mtu > 0 && lo.address.is_none(), "{lo:?}");
        assert_eq!(devices.read("no such device"), Err(Errno::NODEV));
        assert_eq!(devices.read("none"), Err(Errno::NODEV));
    }
}
