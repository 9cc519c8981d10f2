//! AF_XDP sockets: the frames of one queue of a network device, in memory shared with the kernel.
//!
//! ```text
//!   fill ring:       chunks for frames       -->  kernel, device
//!   receive ring:    frames                  <--
//!   transmit ring:   frames                  -->
//!   completion ring: chunks of sent frames   <--
//! ```
//!
//! 1. [`XdpSocket`]: the socket of a queue, with its memory and rings; `ring`: one ring;
//! 2. [`XdpProgram`]: the program at the device that passes frames to the sockets.
//!
//! Why the memory is separate from the worker's packet pool: the kernel requires chunks of a power
//! of two of at most a page, while a packet has up to 65,520 bytes. So a frame is copied once
//! between its chunk and a buffer. If the driver copies frames as well, that is the second copy.
//!
//! The kernel is trusted as in every system call, but every chunk address that it returns is
//! checked before use.

mod program;
mod ring;

pub use program::{QUEUES_MAX, XdpAttachMode, XdpProgram};

use crate::region::Region;
use crate::system_call::CallError;
use ring::{Descriptor, Ring};
use rustix::io::Errno;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The number of slots of each ring.
const RING_FRAMES: u32 = 1024;
/// Bytes that the kernel reserves in a chunk before a frame (`XDP_PACKET_HEADROOM`).
const KERNEL_HEADROOM: usize = 256;
/// The smallest page size of all machines.
const CHUNK_BYTES_MAX: usize = 4096;
/// The number of frames that one system call sends in copy mode.
const SENT_PER_CALL: usize = 32;

pub const FRAME_BYTES_MAX: usize = CHUNK_BYTES_MAX - KERNEL_HEADROOM;

/// A socket on a queue of a device, for use by one thread.
#[derive(Debug)]
pub struct XdpSocket {
    fd: OwnedFd,
    memory: Region,
    chunk_bytes: usize,
    fill: Ring<u64>,
    receive: Ring<Descriptor>,
    transmit: Ring<Descriptor>,
    completion: Ring<u64>,
    /// Chunks of received frames for which the fill ring had no space.
    unfilled: Vec<u64>,
    /// Chunks for frames to be sent.
    free: Vec<u64>,
    /// Frames in the transmit ring that the kernel has not been notified of.
    staged: usize,
    /// Whether the kernel may not have taken all frames of the transmit ring yet.
    has_rest: bool,
}

impl XdpSocket {
    /// A socket for frames of at most `frame_bytes` bytes on a queue. With `zero_copy`, it fails if
    /// the driver does not support zero copy. It fails with `INVAL` if the device does not have
    /// this queue.
    pub fn open(
        device: u32,
        queue: u32,
        frame_bytes: usize,
        zero_copy: bool,
    ) -> Result<Self, CallError> {
        let failed = CallError::of;
        let least = frame_bytes + KERNEL_HEADROOM;
        if least > CHUNK_BYTES_MAX {
            return Err(failed("a chunk for a frame")(Errno::MSGSIZE));
        }
        let chunk_bytes = least.next_power_of_two().max(CHUNK_BYTES_MAX / 2);
        let bytes = 2 * RING_FRAMES as usize * chunk_bytes;
        let memory = Region::anonymous(bytes).map_err(CallError::no_memory)?;
        let (family, kind) = (AddressFamily::XDP, SocketType::RAW);
        let fd = socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(failed("socket"))?;
        let registered = XdpUmemReg {
            addr: memory.address().as_ptr() as u64,
            len: bytes as u64,
            chunk_size: chunk_bytes as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&fd, registered).map_err(failed("setsockopt XDP_UMEM_REG"))?;
        let set = [
            sockopt::set_xdp_umem_fill_ring_size(&fd, RING_FRAMES),
            sockopt::set_xdp_umem_completion_ring_size(&fd, RING_FRAMES),
            sockopt::set_xdp_rx_ring_size(&fd, RING_FRAMES),
            sockopt::set_xdp_tx_ring_size(&fd, RING_FRAMES),
        ];
        set.into_iter().collect::<Result<(), _>>().map_err(failed("setsockopt of an XDP ring"))?;
        let at = sockopt::xdp_mmap_offsets(&fd).map_err(failed("getsockopt XDP_MMAP_OFFSETS"))?;
        let mut socket = Self {
            fill: Ring::map(&fd, ring::FILL, &at.fr, RING_FRAMES)?,
            receive: Ring::map(&fd, ring::RECEIVE, &at.rx, RING_FRAMES)?,
            transmit: Ring::map(&fd, ring::TRANSMIT, &at.tx, RING_FRAMES)?,
            completion: Ring::map(&fd, ring::COMPLETION, &at.cr, RING_FRAMES)?,
            fd,
            memory,
            chunk_bytes,
            unfilled: Vec::new(),
            free: Vec::with_capacity(RING_FRAMES as usize),
            staged: 0,
            has_rest: false,
        };
        socket.share_out();
        let copy =
            if zero_copy { SocketAddrXdpFlags::XDP_ZEROCOPY } else { SocketAddrXdpFlags::XDP_COPY };
        let flags = copy | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        bind(&socket.fd, &SocketAddrXdp::new(flags, device, queue)).map_err(failed("bind"))?;
        Ok(socket)
    }

    /// Assigns half of the chunks to received frames and half to frames to be sent.
    fn share_out(&mut self) {
        let chunk = |at: u32| u64::from(at) * self.chunk_bytes as u64;
        (0..RING_FRAMES).for_each(|at| _ = self.fill.push(chunk(at)));
        self.fill.publish();
        self.free.extend((RING_FRAMES..2 * RING_FRAMES).map(chunk));
    }

    /// Receives at most `most` frames. Returns their number.
    pub fn receive(&mut self, most: usize, mut take: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < most
            && let Some(descriptor) = self.receive.pop()
        {
            count += 1;
            if let Some(range) = self.frame(&descriptor) {
                // SAFETY: the range is within the memory. The kernel has filled it and does not
                // write it before its chunk is in the fill ring again.
                take(unsafe {
                    std::slice::from_raw_parts(self.memory.address().as_ptr().add(range.0), range.1)
                });
            } else if descriptor.address >= self.memory.bytes() as u64 {
                continue;
            }
            self.refill(self.chunk_of(descriptor.address));
        }
        if count > 0 {
            self.receive.release();
            self.fill.publish();
        }
        if !self.unfilled.is_empty() {
            std::mem::take(&mut self.unfilled).into_iter().for_each(|chunk| self.refill(chunk));
            self.fill.publish();
        }
        if self.fill.needs_wakeup() {
            // The call only wakes the kernel: an empty buffer takes no frame.
            let _ = recv(&self.fd, &mut [0_u8; 0][..], RecvFlags::DONTWAIT);
        }
        count
    }

    /// Puts a chunk into the fill ring. The kernel publishes a received frame before the slot that
    /// its chunk had in this ring, so the ring can be full for a moment.
    #[inline]
    fn refill(&mut self, chunk: u64) {
        // The limit holds even if the kernel returns a chunk twice.
        if !self.fill.push(chunk) && self.unfilled.len() < RING_FRAMES as usize {
            self.unfilled.push(chunk);
        }
    }

    /// The offset and length of a frame, if it is within one chunk.
    fn frame(&self, descriptor: &Descriptor) -> Option<(usize, usize)> {
        let (at, len) = (descriptor.address as usize, descriptor.len as usize);
        let end = at.checked_add(len)?;
        let is_inside = end <= self.memory.bytes()
            && at / self.chunk_bytes == end.saturating_sub(1).max(at) / self.chunk_bytes;
        is_inside.then_some((at, len))
    }

    const fn chunk_of(&self, address: u64) -> u64 {
        let bytes = self.chunk_bytes as u64;
        address / bytes * bytes
    }

    /// Puts a frame into the transmit ring. Returns `false` if the ring is full or the frame is too
    /// long.
    pub fn stage(&mut self, frame: &[u8]) -> bool {
        if frame.len() > self.chunk_bytes {
            return false;
        }
        if self.free.is_empty() {
            self.reclaim();
        }
        let Some(address) = self.free.pop() else { return false };
        // SAFETY: the chunk is one of ours that is free: the kernel neither reads nor writes it,
        // and it has `chunk_bytes` bytes.
        let chunk = unsafe {
            let start = self.memory.address().as_ptr().add(address as usize);
            std::slice::from_raw_parts_mut(start, frame.len())
        };
        chunk.copy_from_slice(frame);
        let descriptor = Descriptor { address, len: frame.len() as u32, options: 0 };
        if !self.transmit.push(descriptor) {
            self.free.push(address);
            return false;
        }
        self.staged += 1;
        true
    }

    /// Sends the staged frames. [`XdpSocket::send_rest`] sends those that the kernel does not
    /// accept now.
    pub fn flush(&mut self) -> Result<(), Errno> {
        if self.staged == 0 {
            return Ok(());
        }
        self.transmit.publish();
        let calls = 1 + self.staged / SENT_PER_CALL;
        (self.staged, self.has_rest) = (0, true);
        self.push_out(calls)
    }

    /// Sends frames that the kernel has not accepted yet, for example because a queue was full.
    /// Returns whether it has accepted all of them now.
    #[inline]
    pub fn send_rest(&mut self) -> bool {
        if self.has_rest {
            let _ = self.push_out(1);
        }
        !self.has_rest
    }

    /// Calls the kernel at most `calls` times, until it has taken the frames of the transmit ring.
    fn push_out(&mut self, calls: usize) -> Result<(), Errno> {
        for _ in 0..calls {
            if self.transmit.is_taken() {
                self.has_rest = false;
                break;
            }
            // Without this flag, the driver processes the ring without a call.
            if !self.transmit.needs_wakeup() {
                break;
            }
            match send(&self.fd, &[], SendFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(Errno::BUSY | Errno::NOBUFS | Errno::INTR) => break,
                Err(errno) => {
                    // The device is down: the frames leave once it is up, with those after them.
                    self.has_rest = false;
                    return Err(errno);
                }
            }
        }
        self.has_rest &= !self.transmit.is_taken();
        self.reclaim();
        Ok(())
    }

    /// Returns the chunks of sent frames to `free`.
    fn reclaim(&mut self) {
        while let Some(address) = self.completion.pop() {
            // The limit holds even if the kernel returns a chunk twice.
            if self.free.len() < RING_FRAMES as usize && address < self.memory.bytes() as u64 {
                self.free.push(self.chunk_of(address));
            }
        }
        self.completion.release();
    }

    /// Frames that the kernel dropped because earlier ones were not read, or because they are
    /// longer than a chunk.
    pub fn dropped(&self) -> u64 {
        let Ok(counts) = sockopt::xdp_statistics(&self.fd) else { return 0 };
        counts.rx_dropped + counts.rx_ring_full.unwrap_or(0)
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::net::xdp::XdpRingOffset;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const CHUNK_BYTES: usize = 2048;
    const PRODUCER: u64 = 0;
    const CONSUMER: u64 = 64;
    const SLOTS: u64 = 128;

    /// A ring in a file, which a test reads and writes as the kernel.
    fn ring<T: ring::Slot>() -> (Ring<T>, File) {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let at = XdpRingOffset { producer: PRODUCER, consumer: CONSUMER, desc: SLOTS, flags: None };
        ftruncate(&fd, SLOTS + 16 * u64::from(RING_FRAMES)).unwrap();
        let ring = Ring::map(&fd, 0, &at, RING_FRAMES).unwrap();
        (ring, fd.into())
    }

    fn set(ring: &File, word: u64, value: u32) {
        ring.write_all_at(&value.to_ne_bytes(), word).unwrap();
    }

    /// The chunks that a socket has put into its fill ring beyond the first `RING_FRAMES`.
    fn refilled(fill: &File) -> Vec<u64> {
        let mut bytes = [0; 4];
        fill.read_exact_at(&mut bytes, PRODUCER).unwrap();
        let count = u32::from_ne_bytes(bytes) - RING_FRAMES;
        let chunk = |nth| {
            let mut bytes = [0; 8];
            fill.read_exact_at(&mut bytes, SLOTS + 8 * u64::from(nth)).unwrap();
            u64::from_ne_bytes(bytes)
        };
        (0..count).map(chunk).collect()
    }

    /// A socket with the kernel's ends of its receive ring and fill ring.
    fn socket() -> (XdpSocket, File, File) {
        let ((fill, fills), (receive, receives)) = (ring(), ring());
        let mut socket = XdpSocket {
            fd: memfd_create("test", MemfdFlags::CLOEXEC).unwrap(),
            memory: Region::anonymous(2 * RING_FRAMES as usize * CHUNK_BYTES).unwrap(),
            chunk_bytes: CHUNK_BYTES,
            fill,
            receive,
            transmit: ring().0,
            completion: ring().0,
            unfilled: Vec::new(),
            free: Vec::new(),
            staged: 0,
            has_rest: false,
        };
        socket.share_out();
        (socket, receives, fills)
    }

    /// The kernel passes frames at these addresses.
    fn pass(receives: &File, addresses: &[u64]) {
        for (nth, address) in (0..).zip(addresses) {
            let at = SLOTS + 16 * nth;
            receives.write_all_at(&address.to_ne_bytes(), at).unwrap();
            receives.write_all_at(&10u64.to_ne_bytes(), at + 8).unwrap();
        }
        set(receives, PRODUCER, addresses.len() as u32);
    }

    #[test]
    fn only_chunks_within_the_memory_are_filled_again() {
        let (mut socket, receives, fills) = socket();
        let (chunk, bytes) = (CHUNK_BYTES as u64, socket.memory.bytes() as u64);
        // A frame, one that exceeds its chunk, and addresses beyond the memory.
        pass(&receives, &[chunk + 256, 3 * chunk - 5, bytes, u64::MAX]);
        set(&fills, CONSUMER, RING_FRAMES);
        let mut lens = Vec::new();
        assert_eq!(socket.receive(8, |frame| lens.push(frame.len())), 4);
        assert_eq!((lens, refilled(&fills)), (vec![10], vec![chunk, 2 * chunk]));
    }

    /// The kernel publishes a received frame before the slot of its chunk in the fill ring.
    #[test]
    fn a_chunk_waits_for_space_in_the_fill_ring() {
        let (mut socket, receives, fills) = socket();
        let chunk = CHUNK_BYTES as u64;
        pass(&receives, &[chunk + 256]);
        assert_eq!(socket.receive(8, |_| ()), 1);
        assert_eq!(refilled(&fills), []);
        set(&fills, CONSUMER, 1);
        assert_eq!(socket.receive(8, |_| ()), 0);
        assert_eq!(refilled(&fills), [chunk]);
    }
}
