//! A TUN device: the kernel's end is a network interface, ours a descriptor of IP packets.
//!
//! A read gives one packet, a write takes one; both return at once. Packets from the kernel wait in
//! the device's transmit queue, whose length is bounded (`queue_len` of
//! [`pollux_wire::netlink::link::LinkChange`]); the kernel drops and counts packets that find no
//! space.

use super::{KernelError, MAKE_TUN, OPEN_TUN};
use pollux_mem::tun as ioctl;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, readv, retry_on_intr, writev};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Length in bytes of the `virtio_net_hdr` before each packet, if [`TunOptions::vnet_header`] is
/// set.
pub const VNET_HEADER_BYTES: usize = 10;

/// The options of a TUN device to create or to attach to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunOptions {
    /// One descriptor for each worker; the kernel spreads flows over them.
    pub multi_queue: bool,
    /// A `virtio_net_hdr` precedes each packet, for checksums and segmentation offload.
    pub vnet_header: bool,
}

impl TunOptions {
    const fn flags(self) -> u16 {
        let mut flags = ioctl::FLAG_TUN | ioctl::FLAG_NO_PACKET_INFORMATION;
        if self.multi_queue {
            flags |= ioctl::FLAG_MULTI_QUEUE;
        }
        if self.vnet_header {
            flags |= ioctl::FLAG_VNET_HEADER;
        }
        flags
    }
}

#[derive(Debug)]
pub struct TunQueue {
    fd: OwnedFd,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunWritten {
    Taken,
    Full,
    /// The device is down, or the bytes are not an IP packet.
    Refused,
}

impl TunQueue {
    /// Opens a queue of the device `name`, and creates the device if it does not exist. The device
    /// goes away with its last descriptor, unless it is persistent.
    pub fn open(name: &str, options: TunOptions) -> Result<Self, KernelError> {
        let open = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", open, Mode::empty())
            .map_err(KernelError::system(OPEN_TUN))?;
        let name =
            ioctl::attach(&fd, name, options.flags()).map_err(KernelError::system(MAKE_TUN))?;
        if options.vnet_header {
            ioctl::set_vnet_header_len(&fd, VNET_HEADER_BYTES as u32)
                .map_err(KernelError::system("set the header length of a TUN device"))?;
        }
        Ok(Self { fd, name })
    }

    /// The queue of an existing device, by a descriptor from another process. `None` if the
    /// descriptor does not belong to the device `name` with these options.
    pub fn of_descriptor(fd: OwnedFd, name: &str, options: TunOptions) -> Option<Self> {
        let (attached, flags) = ioctl::attached(&fd).ok()?;
        let kind = ioctl::FLAG_TUN
            | ioctl::FLAG_NO_PACKET_INFORMATION
            | ioctl::FLAG_MULTI_QUEUE
            | ioctl::FLAG_VNET_HEADER;
        let is_same = attached == name && flags & kind == options.flags();
        is_same.then_some(Self { fd, name: attached })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Duplicates the descriptor of the queue.
    pub(crate) fn share(&self) -> Result<Self, KernelError> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
            .map_err(KernelError::system("share a queue of a TUN device"))?;
        Ok(Self { fd, name: self.name.clone() })
    }

    /// Sets the carrier of the device. Needs no capability.
    pub fn set_carrier(&self, carrier: bool) -> Result<(), KernelError> {
        ioctl::set_carrier(&self.fd, carrier)
            .map_err(KernelError::system("set the carrier of a TUN device"))
    }

    /// Lets the kernel send packets with partial checksums, or packets that still need
    /// segmentation. `offload` is a sum of the `OFFLOAD` bits of [`pollux_mem::tun`]. Needs a
    /// `virtio_net_hdr`.
    pub fn set_offload(&self, offload: u32) -> Result<(), KernelError> {
        ioctl::set_offload(self.fd.as_fd(), offload)
            .map_err(KernelError::system("set the offloads of a TUN device"))
    }

    /// Reads one packet of the kernel; `None` when there is none. A packet that does not fit into
    /// `buffer` is truncated.
    pub fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>, KernelError> {
        self.read_parts(&mut [IoSliceMut::new(buffer)])
    }

    /// Reads one packet into several buffers, such as one for a header and one for the packet.
    pub fn read_parts(&self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, KernelError> {
        match retry_on_intr(|| readv(&self.fd, parts)) {
            Ok(len) => Ok(Some(len)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(KernelError::system("read a TUN device")(errno)),
        }
    }

    pub fn write(&self, packet: &[u8]) -> Result<TunWritten, KernelError> {
        self.write_parts(&[IoSlice::new(packet)])
    }

    /// Writes one packet from several buffers.
    pub fn write_parts(&self, parts: &[IoSlice<'_>]) -> Result<TunWritten, KernelError> {
        match retry_on_intr(|| writev(&self.fd, parts)) {
            Ok(_) => Ok(TunWritten::Taken),
            Err(Errno::AGAIN | Errno::NOBUFS) => Ok(TunWritten::Full),
            // EIO: the device is down. EINVAL: the packet has no IP version.
            Err(Errno::IO | Errno::INVAL) => Ok(TunWritten::Refused),
            Err(errno) => Err(KernelError::system("write a TUN device")(errno)),
        }
    }
}

impl AsFd for TunQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
