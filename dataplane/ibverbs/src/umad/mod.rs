//! Management datagrams through libibumad, for subnet administration and connection management at a
//! hardware port on InfiniBand (IBA 13.5).
//!
//! A caller opens a [`UmadPort`], registers an agent for each class, and then sends and receives
//! datagrams. The kernel has the timers of requests, retries them, and returns unanswered ones. It
//! also owns the upper half of transaction IDs: an answer has the lower 32 bits of the request, and
//! the kernel's agent number in the upper 32 bits.
//!
//! The files: `library` loads libibumad; `message` is the format of a datagram in memory. The types
//! of the interface are in [`crate::management`], which needs no library.

mod library;
mod message;

use crate::batch::Batch;
use crate::doctor::{self, Roots};
use crate::error::{self, HcaOpenError, last_errno};
use crate::management::{
    Agent, MadPeer, ManagementPort, ReceivedMad, Registration, Segments, UmadRetryPolicy,
};
use library::{NAME_BYTES, RawRegistration, Umad, umad};
use message::{HEADER_BYTES, Message};
use pollux_verbs::VerbsError;
use pollux_wire::mad::{MAD_LEN, MgmtClass};
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

/// The longest datagram, in bytes. The kernel sends long datagrams as segments, and reassembles
/// received segments.
pub const DATAGRAM_BYTES_MAX: usize = 16 << 20;

/// A file that exists while the module ib_umad is loaded.
const ABI_VERSION: &CStr = c"/sys/class/infiniband_mad/abi_version";

/// Devices that are listed, at most.
const DEVICES_MAX: usize = 32;

pub struct UmadPort {
    umad: &'static Umad,
    /// The library's port ID.
    id: c_int,
    device: String,
    port: u8,
    received: Message,
    sent: Message,
}

impl UmadPort {
    /// Opens a port by name: for `mlx5_0:2`, port 2 of `mlx5_0`.
    pub fn open(name: &str) -> Result<Self, HcaOpenError> {
        let (device, port) = error::parse_name(name)?;
        let umad = umad().map_err(|reason| HcaOpenError::NoLibrary {
            device: device.to_owned(),
            reason: reason.to_owned(),
        })?;
        let present = devices(umad);
        if !present.iter().any(|name| name == device) {
            let device = device.to_owned();
            return Err(match present.is_empty() {
                true => HcaOpenError::NoAdapters { device, advice: error::UMAD },
                false => HcaOpenError::NoSuchDevice { device, present },
            });
        }
        let failed = |verb, errno| HcaOpenError::System {
            device: device.to_owned(),
            verb,
            errno,
            advice: error::umad_advice(errno),
        };
        let raw = CString::new(device).expect("a name of plain characters has no zero");
        // SAFETY: the name is a C string during the call.
        let id = unsafe { (umad.open_port)(raw.as_ptr(), port.into()) };
        if id < 0 {
            // The library reports only that it could not open the device's file.
            let is_file = -id == Errno::IO.raw_os_error();
            return Err(failed("umad_open_port", if is_file { last_errno() } else { -id }));
        }
        let (received, sent) = (Message::new(MAD_LEN), Message::new(MAD_LEN));
        let opened = Self { umad, id, device: device.to_owned(), port, received, sent };
        // SAFETY: the function only reads a number, which `umad_open_port` has set.
        if unsafe { (umad.size)() } != HEADER_BYTES {
            return Err(failed("umad_size", Errno::OPNOTSUPP.raw_os_error()));
        }
        Ok(opened)
    }

    /// Unregisters an agent. Datagrams that arrived earlier may still be received.
    pub fn unregister(&mut self, agent: Agent) -> Result<(), VerbsError> {
        // SAFETY: the port is open; the kernel refuses an agent that does not exist.
        let answer = unsafe { (self.umad.unregister)(self.id, agent.0 as c_int) };
        if answer == 0 { Ok(()) } else { Err(self.refused("unregister", last_errno())) }
    }

    /// Enlarges the receive buffer to `bytes`, the length that the kernel reported for the waiting
    /// datagram.
    fn enlarge_buffer(&mut self, verb: &'static str, bytes: c_int) -> Result<(), VerbsError> {
        let bytes = usize::try_from(bytes).unwrap_or(0);
        if bytes <= self.received.bytes_max() || bytes > DATAGRAM_BYTES_MAX {
            let advice = format!(
                "{}: a datagram of {bytes} bytes waits, and none may have more than \
                 {DATAGRAM_BYTES_MAX}: open the port anew, and ask for less",
                self.device
            );
            let errno = Errno::NOSPC.raw_os_error();
            return Err(VerbsError::System { verb, errno, advice });
        }
        self.received = Message::new(bytes);
        Ok(())
    }

    /// Sets the port's IsSM capability until the result is dropped. Only one process at a time can
    /// do so.
    pub fn be_subnet_manager(&self) -> Result<SmRole, VerbsError> {
        const VERB: &str = "be_subnet_manager";
        let device = CString::new(self.device.as_str()).expect("it was one when it was opened");
        let mut path: [c_char; 256] = [0; 256];
        let (buffer, bytes) = (path.as_mut_ptr(), path.len() as c_int);
        // SAFETY: the name is a C string, and the library writes at most `bytes` bytes.
        let answer =
            unsafe { (self.umad.issm_path)(device.as_ptr(), self.port.into(), buffer, bytes) };
        if answer != 0 {
            return Err(self.refused(VERB, answer.abs()));
        }
        // SAFETY: the library has written a C string to `path`.
        let file = unsafe { open(path.as_ptr(), O_RDWR | O_NONBLOCK | O_CLOEXEC) };
        if file < 0 { Err(self.refused(VERB, last_errno())) } else { Ok(SmRole(file)) }
    }

    fn refused(&self, verb: &'static str, errno: i32) -> VerbsError {
        let advice = match (verb, Errno::from_raw_os_error(errno)) {
            ("register", Errno::INVAL) => {
                "another agent at this port takes these requests: stop the program that has it \
                 (fuser -v /dev/infiniband/umad*)"
            }
            ("send", Errno::INVAL) => {
                "is the agent registered, and is no request with this transaction id still on \
                 its way?"
            }
            ("be_subnet_manager", Errno::AGAIN) => "another subnet manager runs at this port",
            _ => error::umad_advice(errno),
        };
        VerbsError::System {
            verb,
            errno,
            advice: format!("{}:{}: {advice}", self.device, self.port),
        }
    }
}

impl ManagementPort for UmadPort {
    fn register(&mut self, registration: &Registration<'_>) -> Result<Agent, VerbsError> {
        const VERB: &str = "register";
        let mut method_mask = [0_u64; 2];
        for method in registration.methods {
            let Some(part) = method_mask.get_mut(usize::from(method.0 >> 6)) else {
                let reason = format!("{method:?} is an answer, and those come unasked for");
                return Err(VerbsError::Invalid { verb: VERB, argument: "methods", reason });
            };
            *part |= 1 << (method.0 & 63);
        }
        let [first, second, third] = registration.oui;
        let mut raw = RawRegistration {
            mgmt_class: registration.class.0,
            mgmt_class_version: registration.version,
            flags: (registration.segments == Segments::Caller).into(),
            method_mask,
            oui: u32::from_be_bytes([0, first, second, third]),
            rmpp_version: (registration.segments != Segments::None).into(),
        };
        let mut agent = 0;
        // SAFETY: the port is open; the library reads `raw` and writes `agent`.
        let answer = unsafe { (self.umad.register)(self.id, &raw mut raw, &raw mut agent) };
        if answer == 0 {
            return Ok(Agent(agent));
        }
        let is_taken = answer.abs() == Errno::INVAL.raw_os_error();
        if is_taken && registration.class == MgmtClass::COMM_MGT {
            let advice = doctor::cm_advice(&Roots::default());
            let (device, port) = (&self.device, self.port);
            let advice = format!("{device}:{port}: the CM class is taken: {advice}");
            return Err(VerbsError::System { verb: VERB, errno: answer.abs(), advice });
        }
        Err(self.refused(VERB, answer.abs()))
    }

    fn send(
        &mut self,
        agent: Agent,
        to: &MadPeer,
        datagram: &[u8],
        retry_policy: Option<UmadRetryPolicy>,
    ) -> Result<(), VerbsError> {
        const VERB: &str = "send";
        if !(MAD_LEN..=DATAGRAM_BYTES_MAX).contains(&datagram.len()) {
            let reason = format!("it has {MAD_LEN} to {DATAGRAM_BYTES_MAX} bytes");
            return Err(VerbsError::Invalid { verb: VERB, argument: "datagram", reason });
        }
        if datagram.len() > self.sent.bytes_max() {
            self.sent = Message::new(datagram.len());
        }
        self.sent.write(to, datagram);
        let timeout = retry_policy.map_or(0, |policy| milliseconds(policy.timeout).max(1));
        let retries = retry_policy.map_or(0, |policy| policy.retries.into());
        let (raw, bytes) = (self.sent.as_mut_ptr(), datagram.len() as c_int);
        // SAFETY: the port is open; the message has a header and `bytes` bytes behind it.
        let answer =
            unsafe { (self.umad.send)(self.id, agent.0 as c_int, raw, bytes, timeout, retries) };
        if answer == 0 { Ok(()) } else { Err(self.refused(VERB, last_errno())) }
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<ReceivedMad<'_>>, VerbsError> {
        const VERB: &str = "receive";
        loop {
            let mut bytes = self.received.bytes_max() as c_int;
            let raw = self.received.as_mut_ptr();
            // SAFETY: the port is open; the message has a header and `bytes` bytes behind it.
            let answer =
                unsafe { (self.umad.recv)(self.id, raw, &raw mut bytes, milliseconds(timeout)) };
            if let Ok(agent) = u32::try_from(answer) {
                return Ok(Some(ReceivedMad {
                    agent: Agent(agent),
                    peer: self.received.peer(),
                    is_answered: self.received.status() == 0,
                    datagram: self.received.datagram(usize::try_from(bytes).unwrap_or(0)),
                }));
            }
            // The library's wait returns EIO for every cause.
            let errno = if -answer == Errno::IO.raw_os_error() { last_errno() } else { -answer };
            match Errno::from_raw_os_error(errno) {
                Errno::TIMEDOUT | Errno::AGAIN | Errno::INTR => return Ok(None),
                Errno::NOSPC => self.enlarge_buffer(VERB, bytes)?,
                _ => return Err(self.refused(VERB, errno)),
            }
        }
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        // With libumad2sim the descriptor is not one of the system, and the clone fails.
        self.as_fd().try_clone_to_owned().ok()
    }
}

impl Drop for UmadPort {
    fn drop(&mut self) {
        // SAFETY: the port is open, and is closed only here; its agents end with it.
        unsafe { (self.umad.close_port)(self.id) };
    }
}

impl AsFd for UmadPort {
    /// A descriptor that is readable when there is a datagram to receive.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the port, which the result borrows.
        unsafe { BorrowedFd::borrow_raw((self.umad.file)(self.id)) }
    }
}

/// The IsSM capability of a port, which the kernel clears when this value is dropped.
#[derive(Debug)]
pub struct SmRole(c_int);

impl Drop for SmRole {
    fn drop(&mut self) {
        // SAFETY: only this value owns the descriptor, and it is closed once.
        unsafe { close(self.0) };
    }
}

// Why not `std::fs::File`: the standard library calls `open64`, but the simulator libumad2sim
// replaces only `open`, which libibumad calls.
unsafe extern "C" {
    unsafe fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    unsafe fn close(file: c_int) -> c_int;
}

const O_RDWR: c_int = rustix::fs::OFlags::RDWR.bits() as c_int;
const O_NONBLOCK: c_int = rustix::fs::OFlags::NONBLOCK.bits() as c_int;
const O_CLOEXEC: c_int = rustix::fs::OFlags::CLOEXEC.bits() as c_int;

/// The names of the devices with umad ports, or why the library could not be loaded.
pub(crate) fn device_names() -> Result<Vec<String>, &'static str> {
    umad().map(devices)
}

/// The names of the devices with umad ports. Without the kernel module, the library returns a
/// device that does not exist and prints an error each time, so this function checks for the module
/// first.
fn devices(umad: &Umad) -> Vec<String> {
    static READING: Mutex<()> = Mutex::new(());
    let _reading = READING.lock();
    // SAFETY: the path is a C string, and the descriptor is closed once.
    let has_module = unsafe {
        let file = open(ABI_VERSION.as_ptr(), O_CLOEXEC);
        file >= 0 && close(file) == 0
    };
    // SAFETY: the lock ensures that no other thread calls `umad_init`, which reads the same file
    // and stores its number in a global variable.
    if !has_module || unsafe { (umad.init)() } < 0 {
        return Vec::new();
    }
    let mut names = Batch::<[c_char; NAME_BYTES], DEVICES_MAX>::new();
    // SAFETY: the batch has as many names as the library may write.
    let count = unsafe { (umad.cas_names)(names.as_mut_ptr(), DEVICES_MAX as c_int) };
    let names = names.first(usize::try_from(count).unwrap_or(0));
    let text = |name: &[c_char; NAME_BYTES]| {
        let bytes = name.map(|character| character as u8);
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        text.to_string_lossy().into_owned()
    };
    names.iter().map(text).collect()
}

/// A duration in milliseconds, rounded up so that a short one is not 0.
fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}
