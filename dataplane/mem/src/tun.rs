//! The ioctl requests of TUN devices (`linux/if_tun.h`).
//!
//! Why this is in `pollux-mem`: an ioctl passes memory to the kernel, which is `unsafe`. Each
//! function below passes its own memory, of the type and length that its request requires. The
//! kernel checks the descriptor: on a file that is no TUN device, a request fails with ENOTTY or
//! EBADFD.

use crate::system_call::{NAME_BYTES, interface_name};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl};
use std::os::fd::{AsFd, BorrowedFd};

/// `TUNSETIFF`, with an [`InterfaceRequest`].
const SET_INTERFACE: Opcode = 0x4004_54ca;
/// `TUNGETIFF`, with an [`InterfaceRequest`].
const GET_INTERFACE: Opcode = 0x8004_54d2;
/// `TUNSETOFFLOAD`, with a number.
const SET_OFFLOAD: Opcode = 0x4004_54d0;
/// `TUNSETVNETHDRSZ`, with a pointer to an `int`.
const SET_HEADER_LEN: Opcode = 0x4004_54d8;
/// `TUNSETCARRIER`, with a pointer to an `int`.
const SET_CARRIER: Opcode = 0x4004_54e2;

/// `struct ifreq`, as used by requests to a TUN device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);

impl InterfaceRequest {
    fn name(&self) -> String {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }
}

/// IP packets, without link-layer headers (`IFF_TUN`).
pub const FLAG_TUN: u16 = 0x0001;
/// Packets without the four bytes of packet information before each (`IFF_NO_PI`).
pub const FLAG_NO_PACKET_INFORMATION: u16 = 0x1000;
/// A `virtio_net_hdr` before each packet (`IFF_VNET_HDR`).
pub const FLAG_VNET_HEADER: u16 = 0x4000;
/// Several descriptors, one for each worker (`IFF_MULTI_QUEUE`).
pub const FLAG_MULTI_QUEUE: u16 = 0x0100;

/// Packets may have partial checksums (`TUN_F_CSUM`).
pub const OFFLOAD_CHECKSUM: u32 = 0x01;
/// TCP over IPv4 may be segmented by the receiver (`TUN_F_TSO4`).
pub const OFFLOAD_TSO_V4: u32 = 0x02;
/// TCP over IPv6 may be segmented by the receiver (`TUN_F_TSO6`).
pub const OFFLOAD_TSO_V6: u32 = 0x04;

/// Attaches a descriptor of `/dev/net/tun` to the device `name`, which is created if it does not
/// exist. Returns the actual name: the kernel replaces `ib%d` by `ib0`, for example.
pub fn attach(tun: impl AsFd, name: &str, flags: u16) -> Result<String, Errno> {
    let name = interface_name(name).ok_or(Errno::INVAL)?;
    let mut request = InterfaceRequest { name, flags, rest: [0; 22] };
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, and InterfaceRequest has its size.
    unsafe { ioctl(tun, Updater::<SET_INTERFACE, _>::new(&mut request)) }?;
    Ok(request.name())
}

/// The name of the device that a descriptor is attached to, and its flags.
pub fn attached(tun: impl AsFd) -> Result<(String, u16), Errno> {
    let mut request = InterfaceRequest { name: [0; NAME_BYTES], flags: 0, rest: [0; 22] };
    // SAFETY: TUNGETIFF writes a `struct ifreq`, and InterfaceRequest has its size.
    unsafe { ioctl(tun, Updater::<GET_INTERFACE, _>::new(&mut request)) }?;
    Ok((request.name(), request.flags))
}

pub fn set_carrier(tun: impl AsFd, carrier: bool) -> Result<(), Errno> {
    // SAFETY: TUNSETCARRIER reads an `int`.
    unsafe { ioctl(tun, Setter::<SET_CARRIER, i32>::new(i32::from(carrier))) }
}

/// Sets the length of the `virtio_net_hdr` before each packet, in bytes: 10 or 12.
pub fn set_vnet_header_len(tun: impl AsFd, len: u32) -> Result<(), Errno> {
    let len = i32::try_from(len).map_err(|_| Errno::INVAL)?;
    // SAFETY: TUNSETVNETHDRSZ reads an `int`.
    unsafe { ioctl(tun, Setter::<SET_HEADER_LEN, i32>::new(len)) }
}

/// Sets the offloads: the work that the kernel may leave to the reader of the device, as a sum of
/// `OFFLOAD` bits.
pub fn set_offload(tun: BorrowedFd<'_>, offload: u32) -> Result<(), Errno> {
    // SAFETY: TUNSETOFFLOAD takes a number, no pointer.
    unsafe { ioctl(tun, IntegerSetter::<SET_OFFLOAD>::new_usize(offload as usize)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_tun_device_is_refused() {
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        assert_eq!(attach(&null, "ib0", FLAG_TUN), Err(Errno::NOTTY));
        assert_eq!(attached(&null), Err(Errno::NOTTY));
        assert_eq!(set_carrier(&null, true), Err(Errno::NOTTY));
        assert_eq!(set_vnet_header_len(&null, 10), Err(Errno::NOTTY));
        assert_eq!(set_offload(null.as_fd(), OFFLOAD_CHECKSUM), Err(Errno::NOTTY));
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        assert_eq!(attach(&null, "sixteen-bytes-at", FLAG_TUN), Err(Errno::INVAL));
        assert_eq!(attach(&null, "a\0b", FLAG_TUN), Err(Errno::INVAL));
    }
}
