//! Management datagrams, through libibumad: how subnet administration and connection management
//! leave a port of real InfiniBand (IBA 13.5).
//!
//! A [`Port`] is opened, agents are registered at it, each for a class; then datagrams go out and
//! come in. The kernel keeps the time of requests, repeats them, and gives back those that nobody
//! answers. It also owns the upper half of their transaction ids: what comes back has the lower 32
//! bits of the request, and the kernel's number for the agent above.
//!
//! The files: `library` finds libibumad; `message` is how a datagram lies in memory.

mod library;
mod message;

pub use message::Peer;

use crate::batch::Batch;
use crate::error::{self, OpenError};
use library::{NAME_BYTES, RawRegistration, Umad, umad};
use message::{HEADER_BYTES, Message};
use pollux_verbs::VerbsError;
use pollux_wire::mad::{MAD_LEN, Method, MgmtClass};
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The longest datagram: one that the kernel joined from segments, or is to cut into them.
pub const DATAGRAM_BYTES_MAX: usize = 16 << 20;

/// Devices that are listed when the one that was asked for is not there.
const DEVICES_MAX: usize = 32;

/// A port, as management sees it.
pub struct Port {
    umad: &'static Umad,
    /// The library's number.
    id: c_int,
    device: String,
    port: u8,
    received: Message,
    sent: Message,
}

/// Who sends, and to whom what comes is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Agent(u32);

/// What an agent is for.
#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    /// Its class; the answers to its own requests come to it in any case.
    pub class: MgmtClass,
    /// The class version.
    pub version: u8,
    /// Whose class it is, for the classes that vendors share.
    pub oui: [u8; 3],
    /// Requests of peers that it takes; at a port, only one agent may take each.
    pub methods: &'a [Method],
    /// Who cuts long datagrams and joins them.
    pub segments: Segments,
}

/// Who speaks the protocol of long datagrams (IBA 13.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// Nobody: the class has none.
    None,
    /// The kernel: long datagrams come and go as a whole.
    Kernel,
    /// The caller: each segment is a datagram.
    Caller,
}

/// How long a request waits for its answer, and how often it is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For one attempt; the kernel counts milliseconds.
    pub timeout: Duration,
    /// Attempts after the first.
    pub retries: u8,
}

/// What has come in.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// To whom.
    pub agent: Agent,
    /// From whom; of a request that nobody answered, to whom it went.
    pub peer: Peer,
    /// Whether it came from the network. If not, it is what we sent ourselves, at least its header,
    /// and nobody has answered.
    pub is_answered: bool,
    /// The datagram.
    pub datagram: &'a [u8],
}

impl<'a> Registration<'a> {
    /// For our own requests and their answers, and for these requests of peers.
    pub fn new(class: MgmtClass, methods: &'a [Method]) -> Self {
        let segments = if class == MgmtClass::SUBN_ADM { Segments::Kernel } else { Segments::None };
        Self { class, version: class.version(), oui: [0; 3], methods, segments }
    }
}

impl Port {
    /// Opens port 2 of `mlx5_0` for `mlx5_0:2`.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let (device, port) = error::parse_name(name)?;
        let umad = umad().map_err(|reason| OpenError::NoLibrary {
            device: device.to_owned(),
            reason: reason.to_owned(),
        })?;
        let present = devices(umad);
        if !present.iter().any(|name| name == device) {
            let device = device.to_owned();
            return Err(match present.is_empty() {
                true => OpenError::NoAdapters { device, advice: error::UMAD },
                false => OpenError::NoSuchDevice { device, present },
            });
        }
        let failed = |verb, errno| OpenError::System {
            device: device.to_owned(),
            verb,
            errno,
            advice: error::umad_advice(errno),
        };
        let raw = CString::new(device).expect("a name of plain characters has no zero");
        // SAFETY: the name is a string of C for the time of the call.
        let id = unsafe { (umad.open_port)(raw.as_ptr(), port.into()) };
        if id < 0 {
            // That it could not open the device's file is all that the library says of that.
            let is_file = -id == Errno::IO.raw_os_error();
            return Err(failed("umad_open_port", if is_file { last_errno() } else { -id }));
        }
        let (received, sent) = (Message::new(MAD_LEN), Message::new(MAD_LEN));
        let opened = Self { umad, id, device: device.to_owned(), port, received, sent };
        // SAFETY: it only reads a number, which opening has set.
        if unsafe { (umad.size)() } != HEADER_BYTES {
            return Err(failed("umad_size", Errno::OPNOTSUPP.raw_os_error()));
        }
        Ok(opened)
    }

    /// Registers an agent; it ends with the port, or before.
    pub fn register(&mut self, registration: &Registration<'_>) -> Result<Agent, VerbsError> {
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
        // SAFETY: the port is open, and the library reads the one and writes the other.
        let answer = unsafe { (self.umad.register)(self.id, &raw mut raw, &raw mut agent) };
        if answer == 0 { Ok(Agent(agent)) } else { Err(self.refused(VERB, answer.abs())) }
    }

    /// Ends an agent. What has come for it before may still be received.
    pub fn unregister(&mut self, agent: Agent) -> Result<(), VerbsError> {
        // SAFETY: the port is open; of an agent that is not there the kernel says so.
        let answer = unsafe { (self.umad.unregister)(self.id, agent.0 as c_int) };
        if answer == 0 { Ok(()) } else { Err(self.refused("unregister", last_errno())) }
    }

    /// Sends a datagram. With patience it is a request: either its answer is received, or itself.
    pub fn send(
        &mut self,
        agent: Agent,
        to: &Peer,
        datagram: &[u8],
        patience: Option<Patience>,
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
        let timeout = patience.map_or(0, |patience| milliseconds(patience.timeout).max(1));
        let retries = patience.map_or(0, |patience| patience.retries.into());
        let (raw, bytes) = (self.sent.as_mut_ptr(), datagram.len() as c_int);
        // SAFETY: the port is open; the message has a header and so many bytes behind it.
        let answer =
            unsafe { (self.umad.send)(self.id, agent.0 as c_int, raw, bytes, timeout, retries) };
        if answer == 0 { Ok(()) } else { Err(self.refused(VERB, last_errno())) }
    }

    /// What has come in, or comes in within this time.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Received<'_>>, VerbsError> {
        const VERB: &str = "receive";
        loop {
            let mut bytes = self.received.bytes_max() as c_int;
            let raw = self.received.as_mut_ptr();
            // SAFETY: the port is open; there is room for a header and so many bytes behind it.
            let answer =
                unsafe { (self.umad.recv)(self.id, raw, &raw mut bytes, milliseconds(timeout)) };
            if let Ok(agent) = u32::try_from(answer) {
                return Ok(Some(Received {
                    agent: Agent(agent),
                    peer: self.received.peer(),
                    is_answered: self.received.status() == 0,
                    datagram: self.received.datagram(usize::try_from(bytes).unwrap_or(0)),
                }));
            }
            // The library's own waiting gives this number for whatever ends it.
            let errno = if -answer == Errno::IO.raw_os_error() { last_errno() } else { -answer };
            match Errno::from_raw_os_error(errno) {
                Errno::TIMEDOUT | Errno::AGAIN | Errno::INTR => return Ok(None),
                Errno::NOSPC => self.make_room(VERB, bytes)?,
                _ => return Err(self.refused(VERB, errno)),
            }
        }
    }

    /// Makes room for the datagram that waits, of which the kernel has said how long it is.
    fn make_room(&mut self, verb: &'static str, bytes: c_int) -> Result<(), VerbsError> {
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

    /// Tells the subnet that a subnet manager is at this port, for as long as the answer lives.
    /// Only one process may at a time.
    pub fn be_subnet_manager(&self) -> Result<SubnetManager, VerbsError> {
        const VERB: &str = "be_subnet_manager";
        let device = CString::new(self.device.as_str()).expect("it was one when it was opened");
        let mut path: [c_char; 256] = [0; 256];
        let (room, bytes) = (path.as_mut_ptr(), path.len() as c_int);
        // SAFETY: the name is a string of C, and there is room for the path, which ends in it.
        let answer =
            unsafe { (self.umad.issm_path)(device.as_ptr(), self.port.into(), room, bytes) };
        if answer != 0 {
            return Err(self.refused(VERB, answer.abs()));
        }
        // SAFETY: the library has written a string of C.
        let file = unsafe { open(path.as_ptr(), O_RDWR | O_NONBLOCK | O_CLOEXEC) };
        if file < 0 { Err(self.refused(VERB, last_errno())) } else { Ok(SubnetManager(file)) }
    }

    fn refused(&self, verb: &'static str, errno: i32) -> VerbsError {
        let advice = match (verb, Errno::from_raw_os_error(errno)) {
            ("register", Errno::INVAL) => {
                "another agent has the class (the kernel's ib_cm that of connections): look at \
                 `pollux doctor`"
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

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: the port is open, and is closed once; agents end with it.
        unsafe { (self.umad.close_port)(self.id) };
    }
}

impl AsFd for Port {
    /// Readable if there is something to receive: for sleeping until then.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the file is the port's, which lives as long as the answer.
        unsafe { BorrowedFd::borrow_raw((self.umad.file)(self.id)) }
    }
}

/// That a subnet manager is here; it no longer is when this is dropped.
#[derive(Debug)]
pub struct SubnetManager(c_int);

impl Drop for SubnetManager {
    fn drop(&mut self) {
        // SAFETY: the file is ours, and is closed once.
        unsafe { close(self.0) };
    }
}

// Why not the standard library's files: it calls `open64`, and what stands in for adapters where
// there are none (libumad2sim) takes the place of `open`, which libibumad calls.
unsafe extern "C" {
    unsafe fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    unsafe fn close(file: c_int) -> c_int;
}

const O_RDWR: c_int = rustix::fs::OFlags::RDWR.bits() as c_int;
const O_NONBLOCK: c_int = rustix::fs::OFlags::NONBLOCK.bits() as c_int;
const O_CLOEXEC: c_int = rustix::fs::OFlags::CLOEXEC.bits() as c_int;

/// The devices that have management.
fn devices(umad: &Umad) -> Vec<String> {
    let mut names = Batch::<[c_char; NAME_BYTES], DEVICES_MAX>::new();
    // SAFETY: there is room for as many names as it is told.
    let count = unsafe { (umad.cas_names)(names.as_mut_ptr(), DEVICES_MAX as c_int) };
    let names = names.first(usize::try_from(count).unwrap_or(0));
    let text = |name: &[c_char; NAME_BYTES]| {
        let bytes = name.map(|character| character as u8);
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        text.to_string_lossy().into_owned()
    };
    names.iter().map(text).collect()
}

/// A time as the library counts it: up, so that a short one is not none at all.
fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
