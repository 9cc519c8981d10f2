//! Packet sockets (`AF_PACKET`): many frames of a network device with one system call.
//!
//! Why this is in `pollux-mem`: the calls pass tables of pointers to the kernel, which is `unsafe`.
//! The tables are built for each call from slices that outlive it, so no pointer is kept.
//!
//! The network stack of the kernel receives the same frames. A filter of the socket accepts only
//! the frames of its VLAN; other frames go only to the network stack and to other sockets. The
//! kernel removes the VLAN tag, and reports it separately from the frame.

use crate::region::Region;
use crate::system_call::{CallError, check};
use libc::{c_int, c_void};
use rustix::io::Errno;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

pub const FRAMES_PER_CALL: usize = 64;
/// The requested length of the receive buffer in bytes. Without the permission to exceed the
/// system's limit, the kernel grants at most this limit.
const RECEIVE_BYTES: c_int = 8 << 20;

const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();
const IGNORE_OUTGOING: c_int = 23;
const QDISC_BYPASS: c_int = 20;
const FANOUT_UNIQUE: u32 = 0x2000;

/// Space for one control message: `struct tpacket_auxdata`.
const CONTROL_BYTES: usize = 64;

#[derive(Clone, Copy, Debug)]
pub struct SocketFrame<'a> {
    /// The frame without a VLAN tag, and without the bytes that did not fit.
    pub bytes: &'a [u8],
    pub is_truncated: bool,
    /// Whether the sender left the TCP or UDP checksum to a device: the sender is on this machine.
    pub has_partial_checksum: bool,
}

/// A group of sockets on one device, among which the kernel distributes the frames by flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanoutGroup(u16);

#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    /// The memory for received frames. `None` for a socket that only sends.
    space: Option<Region>,
    frame_bytes: usize,
    /// The number of frames that did not fit in the receive buffer.
    dropped: u64,
}

impl PacketSocket {
    /// A socket for frames of at most `frame_bytes`, with this VLAN tag or without any.
    pub fn open(device: u32, vlan: Option<u16>, frame_bytes: usize) -> Result<Self, CallError> {
        let failed = CallError::of;
        let space =
            Region::anonymous(frame_bytes * FRAMES_PER_CALL).map_err(CallError::no_memory)?;
        let socket = Self { fd: open()?, space: Some(space), frame_bytes, dropped: 0 };
        let filter = filter_of(vlan);
        let program =
            libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        let attach = failed("setsockopt SO_ATTACH_FILTER");
        socket.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program).map_err(attach)?;
        let force = socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BYTES);
        force
            .or_else(|_| socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BYTES))
            .map_err(failed("setsockopt SO_RCVBUF"))?;
        socket.prepare(device)?;
        socket.bind(device, ALL_PROTOCOLS).map_err(failed("bind"))?;
        Ok(socket)
    }

    /// A socket that only sends. While it is open, the device receives frames to all multicast
    /// groups.
    pub fn for_sending(device: u32) -> Result<Self, CallError> {
        let socket = Self { fd: open()?, space: None, frame_bytes: 0, dropped: 0 };
        socket.prepare(device)?;
        socket.bind(device, 0).map_err(CallError::of("bind"))?;
        Ok(socket)
    }

    fn prepare(&self, device: u32) -> Result<(), CallError> {
        let failed = CallError::of;
        for (option, name) in [
            (libc::PACKET_AUXDATA, "setsockopt PACKET_AUXDATA"),
            (IGNORE_OUTGOING, "setsockopt PACKET_IGNORE_OUTGOING"),
            (QDISC_BYPASS, "setsockopt PACKET_QDISC_BYPASS"),
        ] {
            let on: c_int = 1;
            self.set(libc::SOL_PACKET, option, &on).map_err(failed(name))?;
        }
        self.receive_all_groups(device).map_err(failed("setsockopt PACKET_ADD_MEMBERSHIP"))
    }

    /// Receives frames to all multicast groups, as a router needs.
    fn receive_all_groups(&self, device: u32) -> Result<(), Errno> {
        let membership = libc::packet_mreq {
            mr_ifindex: device as c_int,
            mr_type: libc::PACKET_MR_ALLMULTI as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)
    }

    fn bind(&self, device: u32, protocol: u16) -> Result<(), Errno> {
        // SAFETY: zeros are a value of this plain structure.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = device as c_int;
        let len = size_of_val(&address) as u32;
        // SAFETY: the address is a `sockaddr_ll` of the length that is passed.
        let done = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) };
        check(done).map(drop)
    }

    /// Joins a fanout group, a new one if `group` is `None`: its sockets share the frames of the
    /// device by flow.
    pub fn join(&self, group: Option<FanoutGroup>) -> Result<FanoutGroup, Errno> {
        let argument = group.map_or(FANOUT_UNIQUE << 16, |group| u32::from(group.0));
        self.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &argument)?;
        if let Some(group) = group {
            return Ok(group);
        }
        self.read::<1>(libc::PACKET_FANOUT).map(|[value]| FanoutGroup(value as u16))
    }

    /// Frames that the kernel dropped because earlier ones were not read.
    pub fn dropped(&mut self) -> u64 {
        // `struct tpacket_stats`: frames, drops. Reading the counters resets them.
        let [_, drops] = self.read(libc::PACKET_STATISTICS).unwrap_or_default();
        self.dropped += u64::from(drops);
        self.dropped
    }

    fn read<const WORDS: usize>(&self, option: c_int) -> Result<[u32; WORDS], Errno> {
        let (mut value, mut len) = ([0_u32; WORDS], size_of::<[u32; WORDS]>() as u32);
        // SAFETY: the kernel writes at most `len` bytes, which `value` has.
        let done = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                option,
                value.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        check(done).map(|_| value)
    }

    /// Receives at most [`FRAMES_PER_CALL`] frames. Returns their number.
    pub fn receive(&mut self, mut take: impl FnMut(SocketFrame<'_>)) -> Result<usize, Errno> {
        let mut control = [[0_u64; CONTROL_BYTES / 8]; FRAMES_PER_CALL];
        let mut parts = [MaybeUninit::<libc::iovec>::uninit(); FRAMES_PER_CALL];
        // SAFETY: zeros are a value of this plain structure: a message without anything.
        let mut messages: [libc::mmsghdr; FRAMES_PER_CALL] = unsafe { zeroed() };
        let Some(space) = &self.space else { return Ok(0) };
        let start = space.address().as_ptr();
        for (at, message) in messages.iter_mut().enumerate() {
            let iov_base = start.wrapping_add(at * self.frame_bytes).cast();
            let part = parts[at].write(libc::iovec { iov_base, iov_len: self.frame_bytes });
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = control[at].as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
        let fd = self.fd.as_raw_fd();
        let (most, flags) = (FRAMES_PER_CALL as u32, libc::MSG_DONTWAIT | libc::MSG_TRUNC);
        // SAFETY: each message has a part of the space, of `frame_bytes` bytes, and memory for
        // control messages of the length in it. All outlive the call.
        let count =
            unsafe { libc::recvmmsg(fd, messages.as_mut_ptr(), most, flags as _, ptr::null_mut()) };
        let count = match check(count) {
            Ok(count) => count as usize,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            Err(errno) => return Err(errno),
        };
        for (at, message) in messages[..count].iter().enumerate() {
            let len = message.msg_len as usize;
            let start = start.wrapping_add(at * self.frame_bytes);
            // SAFETY: the kernel has written these bytes of the space, and nothing writes them
            // before the next call, which needs `self` exclusively.
            let bytes = unsafe { std::slice::from_raw_parts(start, len.min(self.frame_bytes)) };
            take(SocketFrame {
                bytes,
                is_truncated: len > self.frame_bytes,
                has_partial_checksum: has_partial_checksum(&message.msg_hdr),
            });
        }
        Ok(count)
    }

    /// Sends at most [`FRAMES_PER_CALL`] frames. Returns the number that the kernel accepted, and
    /// the error if it did not accept the first one.
    pub fn send<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) -> (usize, Option<Errno>) {
        let mut parts = [MaybeUninit::<libc::iovec>::uninit(); FRAMES_PER_CALL];
        // SAFETY: zeros are a value of this plain structure: a message without anything.
        let mut messages: [libc::mmsghdr; FRAMES_PER_CALL] = unsafe { zeroed() };
        let mut count = 0;
        for ((frame, part), message) in frames.zip(&mut parts).zip(&mut messages) {
            let iov_base: *mut c_void = frame.as_ptr().cast_mut().cast();
            message.msg_hdr.msg_iov = part.write(libc::iovec { iov_base, iov_len: frame.len() });
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        if count == 0 {
            return (0, None);
        }
        let fd = self.fd.as_raw_fd();
        // SAFETY: each of the first `count` messages has one part, which is a frame that outlives
        // the call; the kernel only reads it.
        let sent =
            unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
        match check(sent) {
            // The call reports an error only for the first frame.
            Ok(sent) => (sent as usize, None),
            Err(errno) => (0, Some(errno)),
        }
    }

    fn set<T>(&self, level: c_int, option: c_int, value: &T) -> Result<(), Errno> {
        let (value, len) = (ptr::from_ref(value).cast(), size_of::<T>() as u32);
        // SAFETY: the kernel reads at most `len` bytes, which the value has. A filter program also
        // has a pointer to its instructions, which outlive the call, and their number.
        check(unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, option, value, len) }).map(drop)
    }
}

fn open() -> Result<OwnedFd, CallError> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a call without pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    let fd = check(fd).map_err(CallError::of("socket"))?;
    // SAFETY: the kernel has just created it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether the kernel has marked the checksum of a frame as partial.
fn has_partial_checksum(message: &libc::msghdr) -> bool {
    // SAFETY: the kernel has written the control messages of this message and their length, and
    // their memory is alive.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() };
    let Some(header) = header else { return false };
    let is_auxiliary =
        header.cmsg_level == libc::SOL_PACKET && header.cmsg_type == libc::PACKET_AUXDATA;
    if !is_auxiliary {
        return false;
    }
    // SAFETY: such a message has a `tpacket_auxdata`, which need not be aligned here.
    let data = unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() };
    data.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0
}

/// The filter program of a socket that accepts frames of a VLAN, or untagged frames
/// (`linux/filter.h`).
fn filter_of(vlan: Option<u16>) -> [libc::sock_filter; 7] {
    /// `SKF_AD_OFF`, the base of the offsets of frame metadata.
    const KNOWN: u32 = 0xffff_f000;
    const VLAN_TAG: u32 = KNOWN + 44;
    const VLAN_PRESENT: u32 = KNOWN + 48;
    let (load, equal, and, answer) = (0x20, 0x15, 0x54, 0x06);
    let code = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    [
        code(load, 0, 0, VLAN_PRESENT),
        // An untagged frame: jump to the last but one instruction (accept) or to the last (refuse).
        code(equal, if vlan.is_none() { 3 } else { 4 }, 0, 0),
        code(load, 0, 0, VLAN_TAG),
        code(and, 0, 0, 0xfff),
        code(equal, 0, 1, u32::from(vlan.unwrap_or(0))),
        code(answer, 0, 0, u32::MAX),
        code(answer, 0, 0, 0),
    ]
}
