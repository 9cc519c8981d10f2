//! Management datagrams at a port of which the kernel owns queue pairs 0 and 1: the interface of
//! libibumad, in the types of Pollux.
//!
//! Why a trait, although `umad` has the only implementation: users of the interface are built and
//! tested without the library.

use pollux_verbs::{GlobalRoute, VerbsError};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::mad::{Method, MgmtClass};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A port with agents for management classes, and their datagrams.
pub trait ManagementPort: Send {
    /// Registers an agent, which ends when the port is dropped.
    fn register(&mut self, registration: &Registration<'_>) -> Result<Agent, VerbsError>;

    /// Sends a datagram. A request has a retry policy: [`receive`](Self::receive) then returns its
    /// response, or the request itself if no response arrives. Without a retry policy, the kernel
    /// drops any response.
    fn send(
        &mut self,
        agent: Agent,
        to: &MadPeer,
        datagram: &[u8],
        retry_policy: Option<UmadRetryPolicy>,
    ) -> Result<(), VerbsError>;

    /// Receives a datagram; waits for at most `timeout`.
    fn receive(&mut self, timeout: Duration) -> Result<Option<ReceivedMad<'_>>, VerbsError>;

    /// A descriptor that is readable when there is a datagram to receive, for callers that sleep;
    /// `None` if the port has no descriptor.
    fn descriptor(&self) -> Option<OwnedFd>;
}

/// The destination or source of a datagram. The source of a request can be used as the destination
/// of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadPeer {
    pub lid: Lid,
    /// The peer's queue pair: 0 for subnet management, else usually 1.
    pub qpn: Qpn,
    pub sl: u8,
    /// The path bits of the port's own LID.
    pub path_bits: u8,
    /// The GRH, if there is one. `dgid` is always the GID of the peer, also in a received datagram.
    pub grh: Option<GlobalRoute>,
    pub pkey_index: u16,
}

/// An agent: the sender of datagrams, and the receiver of their responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Agent(pub u32);

#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    /// The class of the agent. The agent receives answers to its own requests even without
    /// `methods`.
    pub class: MgmtClass,
    pub version: u8,
    /// OUI of the vendor, for vendor classes with an OUI.
    pub oui: [u8; 3],
    /// Methods of requests that the agent receives. Only one agent of a port can receive each
    /// method of a class.
    pub methods: &'a [Method],
    pub segments: Segments,
}

/// The side that runs RMPP (IBA 13.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// No RMPP: the class does not use it.
    None,
    /// The kernel: long datagrams are sent and received unsegmented.
    Kernel,
    /// The caller: each segment is a separate datagram.
    Caller,
}

/// How long a request waits for its answer, and how often it is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmadRetryPolicy {
    /// Timeout of one attempt; the kernel uses whole milliseconds.
    pub timeout: Duration,
    /// Attempts after the first.
    pub retries: u8,
}

#[derive(Clone, Copy, Debug)]
pub struct ReceivedMad<'a> {
    pub agent: Agent,
    /// The source of the datagram; for a request that timed out, the destination.
    pub peer: MadPeer,
    /// Whether the datagram was received from the network. Otherwise it is a request of the agent
    /// that timed out, or only the header of that request.
    pub is_answered: bool,
    pub datagram: &'a [u8],
}

impl<'a> Registration<'a> {
    /// For requests of the agent and their answers, and for requests of peers with these methods.
    pub fn new(class: MgmtClass, methods: &'a [Method]) -> Self {
        let segments = if class == MgmtClass::SUBN_ADM { Segments::Kernel } else { Segments::None };
        Self { class, version: class.version(), oui: [0; 3], methods, segments }
    }
}
