//! A port: packets arrive and leave there, in batches.
//!
//! ```text
//!   poll: receive --> verdict --+-- local, punt ----> sockets, control     (the port's own)
//!                               +-- transit --------> batch --> `crate::forward` --+
//!   send: next hop --> neighbor --> queue pair <-----------------------------------+
//! ```
//!
//! Interfaces of IPoIB, of the kernel and of Ethernet are ports, so forwarding depends on none of
//! them.
//! A call per batch costs nothing per packet, so a port may be behind a pointer.
//!
//! Buffers: the ports of a worker share its packet memory, and a packet keeps its buffer from port
//! to port. A port copies packets from other memory.

use crate::acl::AclFilter;
use crate::headers::PacketHeaders;
use crate::reason::ForwardDrop;
use pollux_mem::Buf;
use pollux_verbs::WakeSource;
use pollux_verbs::time::Time;
use pollux_wire::ethernet::EtherType;
use std::net::IpAddr;

/// Packets that a port receives in one poll.
pub const BATCH_MAX: usize = 64;

/// A port of a node. All workers and the FIB use the same identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

#[derive(Debug)]
pub struct TransitPacket {
    /// Begins with the IP header.
    pub packet: Buf,
    pub headers: PacketHeaders,
}

#[derive(Debug)]
pub struct TxPacket {
    /// The TTL is already decremented.
    pub packet: Buf,
    /// IPv4 or IPv6, for the header of the link.
    pub ether_type: EtherType,
    /// On the link of the port.
    pub next_hop: IpAddr,
    pub from: PortId,
}

/// The reason for which control gets a packet in transit. It sends an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransitError {
    NoRoute,
    Unreachable,
    Prohibited,
    /// The access control list of the port where it leaves prohibits it.
    Filtered,
    TimeExceeded,
    /// Options of IPv4 are malformed at this byte of the packet.
    BadOption(u8),
}

impl TransitError {
    pub const fn reason(self) -> ForwardDrop {
        match self {
            Self::NoRoute => ForwardDrop::NoRoute,
            Self::Unreachable | Self::Prohibited => ForwardDrop::Rejected,
            Self::Filtered => ForwardDrop::AclOut,
            Self::TimeExceeded => ForwardDrop::TimeExceeded,
            Self::BadOption(_) => ForwardDrop::BadOption,
        }
    }
}

pub trait PacketPort {
    /// Receives at most [`BATCH_MAX`] packets. Those in transit are appended to `transit`; sockets
    /// and control get the others. Returns whether there was anything to do.
    fn poll(&mut self, now: Time, transit: &mut Vec<TransitPacket>) -> bool;

    /// Sets the access control list of arriving packets, in transit and to the node, but for those
    /// of the link's own protocols, without which there is no link
    /// ([`Verdict::Punt`](crate::verdict::Verdict::Punt)).
    fn set_filter(&mut self, filter: Option<AclFilter>);

    /// Sends packets, which leaves `batch` empty. Control gets those that have to wait for the
    /// neighbor or are longer than its MTU; those without space are dropped and counted.
    fn send(&mut self, now: Time, batch: &mut Vec<TxPacket>);

    /// Passes a packet that arrived here and cannot be forwarded to control, and counts it.
    fn reject(&mut self, packet: Buf, why: TransitError);

    /// Drops a packet that arrived here, and counts it.
    fn drop_transit(&mut self, packet: Buf, why: ForwardDrop);

    /// A copy of a packet that arrived here; `None` if no buffer is free, which is counted as
    /// [`ForwardDrop::NoBuffer`].
    fn copy(&mut self, packet: &Buf) -> Option<Buf>;

    /// Since the start.
    fn packets(&self) -> u64;

    fn poll_timeout(&self) -> Option<Time>;

    /// Arms the port to end a sleep at the next packet; `false` if it cannot. The caller polls once
    /// more before it sleeps.
    fn arm(&mut self) -> bool;

    /// The source that ends a sleep.
    fn wake_source(&mut self) -> Option<WakeSource<'_>>;

    fn woken(&mut self);
}
