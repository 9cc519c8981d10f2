//! Counters of dropped and refused packets, by reason.
//!
//! A dropped packet is lost. A refused packet is returned to its sender, which may send it again.

use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;

pub type PacketDrops = Drops<PacketDrop>;
pub type Refusals = Drops<Refusal>;
pub type ForwardDrops = Drops<ForwardDrop>;

reasons! {
    /// Why a packet was dropped.
    pub enum PacketDrop {
        /// The receive failed: a message too long, or memory that the adapter may not write.
        ReceiveFailed = "receive_failed",
        /// Not a message but a peer's RDMA write, which is not allowed.
        NotAMessage = "not_a_message",
        /// Too short for the encapsulation header.
        Runt = "runt",
        /// Not an EtherType of IPoIB.
        EtherType = "ether_type",
        /// Shorter than the minimum header of its type.
        Truncated = "truncated",
        /// The IP version differs from the type.
        Version = "version",
        /// Lengths in an IP header that contradict each other, or that of the packet.
        BadLength = "bad_length",
        /// A wrong checksum of an IPv4 header.
        Checksum = "checksum",
        /// An invalid GRH.
        Grh = "grh",
        /// An own multicast packet, received back.
        Echo = "echo",
        /// A completion of no outstanding request.
        Stray = "stray",
        /// Posted on a connection that failed or ended first.
        ConnectionLost = "connection_lost",
        /// Posted as a datagram that the adapter could not send.
        DatagramFailed = "datagram_failed",
    }
}

reasons! {
    /// Why a packet was refused.
    pub enum Refusal {
        /// Longer than the MTU: to be fragmented, or answered with an ICMP error.
        TooBig = "too_big",
        /// The send queue is full: poll, then send again.
        Full = "full",
        /// The connection has ended and the packet is too long for a datagram: send it again when
        /// control has made another connection or failed to.
        Disconnected = "disconnected",
        /// The next hop is not resolved, and no request is pending.
        Unknown = "unknown",
        Pending = "pending",
        /// The resolution of the next hop failed.
        Unreachable = "unreachable",
        /// The address handle of the route, which is of an older table, is destroyed.
        Stale = "stale",
        /// The netdev is stopped, or recovering from an error.
        Down = "down",
        /// The buffer is not of registered memory, and the packet is too long to send inline.
        Foreign = "foreign",
        /// The buffer has no headroom for the encapsulation header.
        NoHeadroom = "no_headroom",
    }
}

reasons! {
    /// Why a packet in transit, or a filtered one to the node itself, was dropped.
    pub enum ForwardDrop {
        /// A source address that no packet in transit has (RFC 1812 5.3.7).
        MartianSource = "martian_source",
        /// A destination address that no packet in transit has.
        MartianDestination = "martian_destination",
        /// Options of IPv4 that are malformed. The sender gets an ICMP error.
        BadOption = "bad_option",
        /// A source route of IPv4 (RFC 7126 4.3).
        SourceRoute = "source_route",
        /// A multicast packet, for which there is no route to another port.
        Multicast = "multicast",
        /// A multicast packet that arrived at another port than that of its route.
        MulticastRpf = "multicast_rpf",
        /// A route that drops packets silently.
        Blackhole = "blackhole",
        /// No route. The sender gets an ICMP error.
        NoRoute = "no_route",
        /// A route that rejects packets. The sender gets an ICMP error.
        Rejected = "rejected",
        /// A TTL that expired. The sender gets an ICMP error.
        TimeExceeded = "time_exceeded",
        /// The access control list where it arrived, in transit or to the node.
        AclIn = "acl_in",
        /// The access control list where it was to leave.
        AclOut = "acl_out",
        /// No path back to its source (RFC 3704 2).
        ReversePath = "reverse_path",
        /// The port where it arrived, or that of its next hop, is away.
        PortAway = "port_away",
        /// No buffer is free for a copy of a multicast packet.
        NoBuffer = "no_buffer",
    }
}
