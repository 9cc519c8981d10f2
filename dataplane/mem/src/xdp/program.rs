//! The program at a device that passes frames to AF_XDP sockets (`linux/bpf.h`).
//!
//! It redirects ARP, IPv4 and IPv6 frames of one VLAN, or without a tag, to the socket of their
//! queue. All other frames, and those of queues without a socket, pass to the kernel. So LLDP,
//! other VLANs and their packet sockets continue to work.
//!
//! Why the program is written as instructions: for about twenty instructions, a loader would need
//! libbpf, libxdp, a file system for programs, and more capabilities.

use crate::system_call::{CallError, check};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// The maximum number of queues of a program.
pub const QUEUES_MAX: u32 = 64;

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const PROGRAM_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const LINK_DETACH: libc::c_long = 34;
/// `BPF_MAP_TYPE_XSKMAP`, `BPF_PROG_TYPE_XDP`, and the attach type `BPF_XDP`.
const SOCKET_MAP: u32 = 17;
const XDP_PROGRAM: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// `XDP_PASS`, and the function `bpf_redirect_map`.
const PASS: i32 = 2;
const REDIRECT_MAP: i32 = 51;

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpAttachMode {
    /// In the driver, before the kernel has made a packet of the frame.
    Native,
    /// After the kernel has made a packet of the frame. Works with every driver.
    Generic,
}

/// A program at a device, which is detached on drop.
#[derive(Debug)]
pub struct XdpProgram {
    sockets: OwnedFd,
    link: OwnedFd,
}

impl XdpProgram {
    /// Attaches a program to a device, for frames with this VLAN tag, or without any. `BUSY` if
    /// another program is attached.
    pub fn attach(device: u32, vlan: Option<u16>, mode: XdpAttachMode) -> Result<Self, CallError> {
        let sockets = create_map().map_err(CallError::of("bpf BPF_MAP_CREATE"))?;
        let code = instructions(sockets.as_raw_fd(), vlan);
        let program = load(&code).map_err(CallError::of("bpf BPF_PROG_LOAD"))?;
        let flags = match mode {
            XdpAttachMode::Generic => 1 << 1,
            XdpAttachMode::Native => 1 << 2,
        };
        let attributes = [program.as_raw_fd() as u32, device, ATTACH_XDP, flags];
        let link = bpf(LINK_CREATE, &attributes).map_err(CallError::of("bpf BPF_LINK_CREATE"))?;
        Ok(Self { sockets, link: own(link) })
    }

    /// Passes the frames of a queue to a socket.
    pub fn set_socket(&self, queue: u32, socket: impl AsFd) -> Result<(), CallError> {
        let value = socket.as_fd().as_raw_fd();
        /// `union bpf_attr`, for elements of maps.
        #[repr(C)]
        struct Element<'a> {
            map: u32,
            padding: u32,
            key: &'a u32,
            value: &'a i32,
            flags: u64,
        }
        let map = self.sockets.as_raw_fd() as u32;
        let element = Element { map, padding: 0, key: &queue, value: &value, flags: 0 };
        bpf(MAP_UPDATE, &element).map(drop).map_err(CallError::of("bpf BPF_MAP_UPDATE_ELEM"))
    }
}

/// The kernel ends the link when its last descriptor is closed. But a process that another thread
/// forks has a copy of the descriptor until its exec, and until then the device would refuse other
/// programs. So the link is detached explicitly.
impl Drop for XdpProgram {
    fn drop(&mut self) {
        let _ = bpf(LINK_DETACH, &[self.link.as_raw_fd() as u32]);
    }
}

fn create_map() -> Result<OwnedFd, Errno> {
    let (key_bytes, value_bytes) = (4_u32, 4_u32);
    bpf(MAP_CREATE, &[SOCKET_MAP, key_bytes, value_bytes, QUEUES_MAX, 0]).map(own)
}

/// Loads the program. The kernel checks its license only for functions that the program does not
/// call.
fn load(code: &[u64]) -> Result<OwnedFd, Errno> {
    const LICENSE: &[u8; 4] = b"MIT\0";
    /// `union bpf_attr`, for programs; the fields after these are zero.
    #[repr(C)]
    struct Load {
        kind: u32,
        instructions: u32,
        code: *const u64,
        license: *const u8,
        log: [u32; 2],
        log_buffer: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        device: u32,
        attach_type: u32,
    }
    let load = Load {
        kind: XDP_PROGRAM,
        instructions: code.len() as u32,
        code: code.as_ptr(),
        license: LICENSE.as_ptr(),
        log: [0; 2],
        log_buffer: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"pollux\0\0\0\0\0\0\0\0\0\0",
        device: 0,
        attach_type: ATTACH_XDP,
    };
    bpf(PROGRAM_LOAD, &load).map(own)
}

fn own(fd: libc::c_int) -> OwnedFd {
    // SAFETY: the kernel has just created this descriptor for the caller, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The system call `bpf`, with the first part of its attributes. The kernel takes the rest as zero.
/// The descriptors that it returns are close-on-exec.
fn bpf<A>(command: libc::c_long, attributes: &A) -> Result<libc::c_int, Errno> {
    // SAFETY: the kernel reads `size_of::<A>()` bytes, which are those of a `union bpf_attr` for
    // this command. Its pointers are to the memory and of the lengths that the command requires,
    // and outlive the call; nothing in it is uninitialized.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<A>()) };
    check(result as libc::c_int)
}

/// The program. Registers: 1 the context, 2 the frame, 3 the end of the frame, 4 the end of the
/// headers, 5 the EtherType or the VLAN tag.
fn instructions(sockets: i32, vlan: Option<u16>) -> Vec<u64> {
    let header = if vlan.is_some() { 18 } else { 14 };
    let ether_type = |number: u16| i32::from(number.to_be());
    let mut code = vec![
        load_word(2, 1, 0),
        load_word(3, 1, 4),
        instruction(0xbf, 4, 2, 0, 0),
        instruction(0x07, 4, 0, 0, header),
        // A frame that is shorter than its headers passes to the kernel.
        instruction(0x2d, 4, 3, TO_PASS, 0),
        load_half(5, 2, 12),
    ];
    if let Some(vlan) = vlan {
        code.extend([
            instruction(0x55, 5, 0, TO_PASS, ether_type(VLAN)),
            load_half(5, 2, 14),
            // The tag in host byte order, then without its priority bits.
            instruction(0xdc, 5, 0, 0, 16),
            instruction(0x57, 5, 0, 0, 0xfff),
            instruction(0x55, 5, 0, TO_PASS, i32::from(vlan)),
            load_half(5, 2, 16),
        ]);
    }
    code.extend([
        instruction(0x15, 5, 0, 4, ether_type(ARP)),
        instruction(0x15, 5, 0, 3, ether_type(IPV4)),
        instruction(0x15, 5, 0, 2, ether_type(IPV6)),
    ]);
    let pass = code.len();
    code.extend([
        instruction(0xb7, 0, 0, 0, PASS),
        EXIT,
        // To the socket of the queue, or to the kernel if the queue has none.
        load_word(2, 1, 16),
        instruction(0x18, 1, 1, 0, sockets),
        0,
        instruction(0xb7, 3, 0, 0, PASS),
        instruction(0x85, 0, 0, 0, REDIRECT_MAP),
        EXIT,
    ]);
    for (at, instruction) in code.iter_mut().enumerate() {
        if *instruction >> 16 & 0xffff == TO_PASS as u64 {
            let offset = (pass - at - 1) as u64;
            *instruction = *instruction & !(0xffff << 16) | offset << 16;
        }
    }
    code
}

/// A placeholder for the offset of a jump to the instruction that passes the frame to the kernel.
const TO_PASS: i16 = 0x7fff;
const EXIT: u64 = 0x95;

fn load_word(to: u8, from: u8, at: i16) -> u64 {
    instruction(0x61, to, from, at, 0)
}

fn load_half(to: u8, from: u8, at: i16) -> u64 {
    instruction(0x69, to, from, at, 0)
}

/// `struct bpf_insn`: code, two registers of 4 bits, offset, immediate value. On a little-endian
/// machine the destination register is in the low bits of its byte.
const fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let bytes = [code, from << 4 | to];
    u16::from_le_bytes(bytes) as u64 | (offset as u16 as u64) << 16 | (value as u32 as u64) << 32
}

#[cfg(not(target_endian = "little"))]
compile_error!("instructions are put together for little-endian machines");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_end_at_the_instruction_that_passes() {
        for vlan in [None, Some(7)] {
            let code = instructions(3, vlan);
            let pass = code.iter().position(|one| *one == instruction(0xb7, 0, 0, 0, PASS));
            let pass = pass.expect("there is one");
            let jumps =
                code.iter().enumerate().filter(|(_, one)| matches!(*one & 0xff, 0x2d | 0x55));
            for (at, jump) in jumps.clone() {
                assert_eq!(at + 1 + (*jump >> 16 & 0xffff) as usize, pass);
            }
            assert_eq!(jumps.count(), if vlan.is_some() { 3 } else { 1 });
            let redirects = code.iter().enumerate().filter(|(_, one)| *one & 0xff == 0x15);
            for (at, jump) in redirects {
                assert_eq!(at + 1 + (*jump >> 16 & 0xffff) as usize, pass + 2);
            }
        }
    }
}
