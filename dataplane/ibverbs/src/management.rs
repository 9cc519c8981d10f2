//! Management datagrams at a port whose queue pairs 0 and 1 belong to the kernel: the interface of
//! libibumad in our types.
//!
//! Why a trait, when `umad` has the only implementation: users of the interface are built and
//! tested where the library is not.

use pollux_verbs::{GlobalRoute, VerbsError};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::mad::{Method, MgmtClass};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A port, as management sees it: agents for classes, and their datagrams.
pub trait ManagementPort: Send {
    /// Registers an agent; it ends with the port.
    fn register(&mut self, registration: &Registration<'_>) -> Result<Agent, VerbsError>;

    /// Sends a datagram. With a timeout it is a request: either its response is received, or the
    /// request itself, unanswered. Without one the kernel drops the response.
    fn send(
        &mut self,
        agent: Agent,
        to: &MadPeer,
        datagram: &[u8],
        retry_policy: Option<UmadRetryPolicy>,
    ) -> Result<(), VerbsError>;

    /// Receives a datagram, waiting for this time at most.
    fn receive(&mut self, timeout: Duration) -> Result<Option<ReceivedMad<'_>>, VerbsError>;

    /// A descriptor that is readable if there is something to receive, for sleeping until then;
    /// `None` if the system has none for the port.
    fn descriptor(&self) -> Option<OwnedFd>;
}

/// The destination or source of a datagram. The source of a request is the destination of its
/// answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadPeer {
    pub lid: Lid,
    /// The peer's queue pair: 0 for subnet management, else mostly 1.
    pub qpn: Qpn,
    pub sl: u8,
    /// The path bits of our LID.
    pub path_bits: u8,
    /// The GRH if there is one; `dgid` is the peer in any case.
    pub grh: Option<GlobalRoute>,
    pub pkey_index: u16,
}

/// An agent: the sender of datagrams, and the receiver of their responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Agent(pub u32);

#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    /// Answers to own requests are received in any case.
    pub class: MgmtClass,
    pub version: u8,
    /// The vendor, for the classes that vendors share.
    pub oui: [u8; 3],
    /// Requests of peers that it takes; at a port, only one agent may take each.
    pub methods: &'a [Method],
    pub segments: Segments,
}

/// The side that runs RMPP (IBA 13.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// No RMPP: the class has none.
    None,
    /// The kernel: long datagrams are sent and received unsegmented.
    Kernel,
    /// The caller: each segment is a datagram.
    Caller,
}

/// How long a request waits for its answer, and how often it is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmadRetryPolicy {
    /// For one attempt; the kernel counts milliseconds.
    pub timeout: Duration,
    /// Attempts after the first.
    pub retries: u8,
}

#[derive(Clone, Copy, Debug)]
pub struct ReceivedMad<'a> {
    pub agent: Agent,
    /// Its source; the destination of a request that timed out.
    pub peer: MadPeer,
    /// Whether it was received from the network. If not, it is our own request (at least its
    /// header), which timed out.
    pub is_answered: bool,
    pub datagram: &'a [u8],
}

impl<'a> Registration<'a> {
    /// For our own requests and their answers, and for these requests of peers.
    pub fn new(class: MgmtClass, methods: &'a [Method]) -> Self {
        let segments = if class == MgmtClass::SUBN_ADM { Segments::Kernel } else { Segments::None };
        Self { class, version: class.version(), oui: [0; 3], methods, segments }
    }
}
