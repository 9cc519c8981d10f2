//! A port, where packets arrive and leave in batches.
//!
//! ```text
//!   poll: receive --> verdict --+-- local, punt ----> sockets, control     (the port's own)
//!                               +-- transit --------> batch --> `crate::forward` --+
//!   send: next hop --> neighbor --> queue pair <-----------------------------------+
//! ```
//!
//! IPoIB interfaces, kernel interfaces and Ethernet interfaces are ports, so forwarding does not
//! depend on their types. There is one call per batch, so a port may be behind a pointer without a
//! cost per packet.
//!
//! Buffers: the ports of a worker share its packet memory, and a packet stays in its buffer from
//! port to port. A port copies packets that are in other memory.

use crate::acl::AclFilter;
use crate::headers::PacketHeaders;
use crate::reason::ForwardDrop;
use pollux_mem::Buf;
use pollux_verbs::WakeSource;
use pollux_verbs::time::Time;
use pollux_wire::ethernet::EtherType;
use std::net::IpAddr;

/// The maximum number of packets that a port receives in one poll.
pub const BATCH_MAX: usize = 64;

/// A port of a node. All workers and the FIB use the same identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

#[derive(Debug)]
pub struct TransitPacket {
    /// The packet, which begins with its IP header.
    pub packet: Buf,
    pub headers: PacketHeaders,
}

#[derive(Debug)]
pub struct TxPacket {
    /// The packet, whose TTL is already decremented.
    pub packet: Buf,
    /// IPv4 or IPv6, for the header of the link.
    pub ether_type: EtherType,
    /// An address on the link of the port.
    pub next_hop: IpAddr,
    pub from: PortId,
}

/// Why a packet in transit is passed to control, which sends an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransitError {
    NoRoute,
    Unreachable,
    Prohibited,
    /// The access control list of the outgoing port rejects it.
    Filtered,
    TimeExceeded,
    /// The IPv4 options are malformed at this byte offset of the packet.
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
    /// Receives at most [`BATCH_MAX`] packets. Packets in transit are appended to `transit`;
    /// sockets and control get the others. Returns whether there was anything to do.
    fn poll(&mut self, now: Time, transit: &mut Vec<TransitPacket>) -> bool;

    /// Sets the access control list for arriving packets, both in transit and to the node. It does
    /// not apply to the link's own protocols ([`Verdict::Punt`](crate::verdict::Verdict::Punt)),
    /// without which the link does not work.
    fn set_filter(&mut self, filter: Option<AclFilter>);

    /// Sends all packets of `batch` and empties it. Packets that must wait for the neighbor, or are
    /// longer than its MTU, are passed to control. Packets for which there is no space are dropped
    /// and counted.
    fn send(&mut self, now: Time, batch: &mut Vec<TxPacket>);

    /// Passes a packet that arrived here and cannot be forwarded to control, and counts it.
    fn reject(&mut self, packet: Buf, why: TransitError);

    /// Drops a packet that arrived here, and counts it.
    fn drop_transit(&mut self, packet: Buf, why: ForwardDrop);

    /// A copy of a packet that arrived here; `None` if no buffer is free, which is counted as
    /// [`ForwardDrop::NoBuffer`].
    fn copy(&mut self, packet: &Buf) -> Option<Buf>;

    /// The number of packets received and sent since the start.
    fn packets(&self) -> u64;

    fn poll_timeout(&self) -> Option<Time>;

    /// Arms the port to end a sleep at the next packet. Returns `false` if it cannot. The caller
    /// must poll once more before it sleeps.
    fn arm(&mut self) -> bool;

    /// The event source that ends a sleep.
    fn wake_source(&mut self) -> Option<WakeSource<'_>>;

    fn woken(&mut self);
}
